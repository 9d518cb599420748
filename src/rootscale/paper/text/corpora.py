"""Files of text: corpora in their published layouts, plain or compressed."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rootscale.paper.data.layouts import data_folder

__all__ = ["CORPORA", "Corpus", "corpus", "existing", "read_bytes", "read_lines"]


#: Compressed files are read as they are.
SUFFIXES = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Layout:
    """Where a corpus lies below the folder that is given, and what the files of its parts are called."""

    folders: tuple[str, ...]
    parts: Mapping[str, str]
    kind: str


def _parts(pattern: str) -> dict[str, str]:
    return {part: pattern.format(part) for part in ("train", "valid", "test")}


#: The layouts of each corpus, in the order in which they are looked for.
CORPORA: Mapping[str, tuple[Layout, ...]] = {
    "wikitext-103": (
        Layout(("wikitext-103",), _parts("wiki.{}.tokens"), "bpe"),
        Layout(("wikitext-103-raw", "wikitext-103"), _parts("wiki.{}.raw"), "bpe"),
        Layout(("wikitext-103",), _parts("{}.txt"), "bpe"),
    ),
    "wikitext-2": (
        Layout(("wikitext-2",), _parts("wiki.{}.tokens"), "word"),
        Layout(("wikitext-2-raw", "wikitext-2"), _parts("wiki.{}.raw"), "word"),
        Layout(("wikitext-2",), _parts("{}.txt"), "word"),
    ),
    "enwik8": (Layout(("enwik8", "."), {"all": "enwik8"}, "byte"),),
}


@dataclass(frozen=True)
class Corpus:
    """Files of text.

    Args:
        name: for messages, tasks and the names of kept files.
        parts: the files of ``train``, ``valid`` and ``test``; a single part ``all`` is cut up by `SHARES`.
        kind: how it is usually cut up, one of `KINDS`.
        folder: that holds it.
    """

    name: str
    parts: Mapping[str, tuple[Path, ...]]
    kind: str
    folder: Path

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [path for paths in self.parts.values() for path in paths]


def corpus(folder: str | os.PathLike[str] | None = None, name: str | None = None) -> Corpus:
    """Return the corpus in a folder: WikiText-103, WikiText-2 or enwik8 in their published layout, or any text files.

    Files may be compressed (.xz, .gz). A folder of other text has ``train.txt`` and ``valid.txt`` (and ``test.txt``),
    or any files ``*.txt``, at any depth, which are taken in the order of their names.

    Args:
        folder: that holds the files, or the folder of the corpus; None is ``ROOTSCALE_DATA``.
        name: one of `CORPORA`; None is the first that is there, and else all text files of the folder.
    """
    root = data_folder(folder, name or "text")
    if name is not None and name not in CORPORA:
        raise ValueError(f"a corpus must be one of {', '.join(CORPORA)}, got {name!r}")
    for wanted in CORPORA if name is None else (name,):
        for layout in CORPORA[wanted]:
            # Files with names of their own are known in any folder; train.txt may be anything.
            known = root.name in layout.folders or name is not None
            here = known or layout.parts.get("train", "").startswith("wiki.")
            for place in (*(root / below for below in layout.folders), *((root,) if here else ())):
                found = _found(place, layout.parts)
                if len(found) == len(layout.parts):
                    label = wanted if known or place != root or "all" in found else root.resolve().name
                    return Corpus(label, found, layout.kind, place)
    found = _found(root, _parts("{}.txt"))
    if name is None and {"train", "valid"} <= set(found):
        return Corpus(root.resolve().name or "text", found, "bpe", root)
    files = sorted(path for suffix in SUFFIXES for path in root.rglob(f"*.txt{suffix}") if path.is_file())
    if name is not None or not files:
        names = [layout.parts.get("train", layout.parts.get("all", "")) for layout in CORPORA[name or "wikitext-103"]]
        raise ValueError(
            f"{name or 'text'} is not in {root}; looked for {', '.join(names)}{' and *.txt' if name is None else ''} "
            f"(plain, .xz or .gz) there and in its folder"
        )
    return Corpus(root.resolve().name or "text", {"all": tuple(files)}, "bpe", root)


def _found(place: Path, names: Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    """Return the files of those parts that are there."""
    paths = {part: existing(place / name) for part, name in names.items()}
    return {part: (path,) for part, path in paths.items() if path is not None}


def existing(path: Path) -> Path | None:
    """Return the file, or a compressed one in its place; None where there is neither."""
    found = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((one for one in found if one.is_file()), None)


def _open(path: Path) -> IO[bytes]:
    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    stream: IO[bytes] = openers.get(path.suffix, open)(path, "rb")
    return stream


def read_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of files, one file after the other."""
    for path in paths:
        try:
            with _open(path) as file:
                for line in file:
                    yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8: {error}; cut it into bytes (byte) instead") from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None


def read_bytes(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Return the bytes of files, one file after the other."""
    parts = []
    for path in paths:
        try:
            with _open(path) as file:
                parts.append(np.frombuffer(file.read(), np.uint8))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None
    return np.concatenate(parts)
