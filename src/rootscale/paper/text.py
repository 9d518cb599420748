"""Text on disk as numbers: corpora in their published layouts, cut into words, bytes or pieces of a trained BPE.

Nothing is downloaded. A corpus is turned into numbers once; they are kept as ``.npy`` files which later runs map into
memory, next to a small ``.json`` with the vocabulary:

    CACHE/<corpus>-<kind>-<digest>-<part>.npy    token numbers, uint8 for bytes and int32 otherwise
    CACHE/<corpus>-<kind>-<digest>.json          the vocabulary; written last, so that it says that all is there

The digest is of the files' contents and of the kind of tokens: other text makes other files.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import lzma
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rootscale.files import whole
from rootscale.paper.data import VARIABLE

__all__ = [
    "CACHE",
    "CORPORA",
    "KINDS",
    "SPECIAL",
    "Corpus",
    "Tokens",
    "Vocabulary",
    "chain",
    "corpus",
    "from_text",
    "tokenise",
]

#: The environment variable that names the folder where token numbers are kept.
CACHE = "ROOTSCALE_CACHE"
#: How text can be cut up.
KINDS = ("word", "byte", "bpe")
#: Numbers after those of the ordinary tokens, in this order: padding, begin and end of a text, and a hidden token.
SPECIAL = ("pad", "begin", "end", "mask")
#: Compressed files are read as they are.
SUFFIXES = ("", ".xz", ".gz")
#: The word for words that are not in the vocabulary, and for the end of a line.
UNKNOWN, LINE = "<unk>", "<eos>"
#: Shares of train, valid and test where a single file holds everything: the usual 90, 5 and 5 million of enwik8.
SHARES = {"train": (0.0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1.0)}
VERSION = 1  # of the files; another one makes new files


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
    """The corpus in a folder: WikiText-103, WikiText-2 or enwik8 in their published layout, or any text files.

    Files may be compressed (.xz, .gz). A folder of other text has ``train.txt`` and ``valid.txt`` (and ``test.txt``),
    or any files ``*.txt``, at any depth, which are taken in the order of their names.

    Args:
        folder: that holds the files, or the folder of the corpus; None is ``ROOTSCALE_DATA``.
        name: one of `CORPORA`; None is the first that is there, and else all text files of the folder.
    """
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        raise ValueError(f"text needs the folder that holds it: set the environment variable {VARIABLE} to it")
    root = Path(given).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"there is no folder {root}{'' if folder is not None else f' (from {VARIABLE})'} to read text from"
        )
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
    """The files of those parts that are there."""
    paths = {part: existing(place / name) for part, name in names.items()}
    return {part: (path,) for part, path in paths.items() if path is not None}


def existing(path: Path) -> Path | None:
    """The file, or a compressed one in its place."""
    found = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((one for one in found if one.is_file()), None)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a text.

    Args:
        kind: one of `KINDS`.
        words: of a vocabulary of words, by number.
        model: of a BPE, in the form of ``tokenizers``.
    """

    kind: str
    words: tuple[str, ...] = ()
    model: str = ""

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def _bpe(self) -> Any:
        return _tokenizers().Tokenizer.from_str(self.model)

    @cached_property
    def size(self) -> int:
        """How many ordinary tokens there are."""
        if self.kind == "bpe":
            return int(self._bpe.get_vocab_size())
        return 256 if self.kind == "byte" else len(self.words)

    @property
    def total(self) -> int:
        """With the tokens of `SPECIAL`."""
        return self.size + len(SPECIAL)

    def special(self, name: str) -> int:
        """The number of one of `SPECIAL`.

        >>> Vocabulary("byte").special("mask")
        259
        """
        return self.size + SPECIAL.index(name)

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's tokens.

        >>> Vocabulary("word", ("<unk>", "a", "b")).encode("b a c")
        [2, 1, 0]
        """
        if self.kind == "byte":
            return list(text.encode())
        if self.kind == "bpe":
            return list(self._bpe.encode(text).ids)
        numbers, unknown = self._numbers, self._numbers.get(UNKNOWN, 0)
        return [numbers.get(word, unknown) for word in _words(text)]

    def lines(self, lines: Iterator[str]) -> NDArray[Any]:
        """The numbers of all tokens of some lines."""
        if self.kind == "byte":
            return np.frombuffer("".join(lines).encode(), np.uint8)
        out = array("i")
        for some in _batches(lines, 4096):
            if self.kind == "word":
                out.extend(self.encode("".join(some)))
            else:
                for one in self._bpe.encode_batch(some):
                    out.extend(one.ids)
        return np.frombuffer(out, np.int32) if out else np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as numbers.

    Args:
        name: of the corpus and how it was cut up.
        parts: token numbers of ``train``, ``valid`` and ``test``, one-dimensional; perhaps only of ``train``.
        vocabulary: what the numbers stand for.
    """

    name: str
    parts: Mapping[str, Tensor]
    vocabulary: Vocabulary

    def __len__(self) -> int:
        """How many tokens there are in all parts."""
        return sum(len(part) for part in self.parts.values())

    def joined(self) -> Tensor:
        """All parts one after the other."""
        parts = list(self.parts.values())
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def tokenise(
    text: Corpus,
    kind: str | None = None,
    size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Tokens:
    """The numbers of a corpus, from the kept files where it was done before.

    Args:
        text: the corpus.
        kind: one of `KINDS`; None is the usual one of the corpus.
        size: most words of a vocabulary (None: all), or tokens of a BPE (None: 50,257, as GPT-2's).
        cache: folder of the kept files; None is ``ROOTSCALE_CACHE``, and else ``rootscale-cache`` beside the data.
    """
    kind = kind or text.kind
    _check_kind(kind, size)
    folder = Path(cache or os.environ.get(CACHE) or text.folder / "rootscale-cache").expanduser()
    digest = _digest(text, kind, size)
    stem = f"{text.name}-{kind}{'' if size is None else f'-{size}'}-{digest}"
    record = folder / f"{stem}.json"
    if not record.exists():
        _keep(text, kind, size, folder, stem)
    held = json.loads(record.read_text(encoding="utf-8"))
    parts = {part: torch.from_numpy(np.load(folder / f"{stem}-{part}.npy", mmap_mode="c")) for part in held["parts"]}
    vocabulary = Vocabulary(kind, tuple(held["words"]), held["model"])
    return Tokens(f"{text.name}-{kind}{'' if size is None else f'-{size}'}", parts, vocabulary)


def from_text(text: str, kind: str = "word", name: str = "text", size: int | None = None) -> Tokens:
    r"""The numbers of a text in memory, as one part ``train``.

    >>> tokens = from_text("the cat\nthe dog\n")
    >>> tokens.vocabulary.words, tokens.parts["train"].tolist()
    (('the', '<eos>', 'cat', 'dog', '<unk>'), [0, 2, 1, 0, 3, 1])
    """
    _check_kind(kind, size)
    vocabulary = _vocabulary(kind, size, lambda: iter(text.splitlines(keepends=True)))
    numbers = vocabulary.lines(iter(text.splitlines(keepends=True)))
    return Tokens(name, {"train": torch.from_numpy(numbers.copy())}, vocabulary)


def chain(words: int = 50, length: int = 20_000, follow: float = 0.75, seed: int = 0) -> str:
    """A generated text for smoke tests: each word is mostly followed by one of its own; lines have 16 words.

    Args:
        words: of the vocabulary, ``w0, w1, ...``.
        length: in words.
        follow: how likely the word is that usually follows.
        seed: of the text; the same every time.
    """
    generator = np.random.default_rng(seed)
    usual = generator.permutation(words)
    free, draws = generator.random(length) >= follow, generator.integers(words, size=length)
    out, word = [], 0
    for i in range(length):
        word = int(draws[i]) if free[i] else int(usual[word])
        out.append(f"w{word}" + ("\n" if i % 16 == 15 else " "))
    return "".join(out)


# -- making the files ------------------------------------------------------------------------------------------------


def _check_kind(kind: str, size: int | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"tokens must be one of {', '.join(KINDS)}, got {kind!r}")
    if size is not None and (kind == "byte" or size < (2 if kind == "word" else 257)):
        raise ValueError(f"the size of a vocabulary is for word (>= 2) and bpe (>= 257), got {size} for {kind}")


def _digest(text: Corpus, kind: str, size: int | None) -> str:
    """Of what is in the files, as they are on disk, and how it is cut up."""
    whole_text = hashlib.sha256(f"{VERSION} {kind} {size}".encode())
    for part, paths in text.parts.items():
        for path in paths:
            with path.open("rb") as file:
                whole_text.update(f"{part} {path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return whole_text.hexdigest()[:12]


def _keep(text: Corpus, kind: str, size: int | None, folder: Path, stem: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no permission to write to {folder}")
    except OSError as error:
        raise ValueError(f"token numbers cannot be kept: {error}; name another folder in {CACHE}") from None
    vocabulary = _vocabulary(kind, size, lambda: read_lines(text.files))
    parts: dict[str, NDArray[Any]] = {}
    for part, paths in text.parts.items():
        parts[part] = _bytes(paths) if kind == "byte" else vocabulary.lines(read_lines(paths))
    if "all" in parts:
        numbers = parts.pop("all")
        parts = {part: numbers[int(a * len(numbers)) : int(b * len(numbers))] for part, (a, b) in SHARES.items()}
    for part, numbers in parts.items():
        if not len(numbers):
            raise ValueError(f"the {part} part of {text.name} has no tokens; its files are {text.files[0]} ...")
        with whole(folder / f"{stem}-{part}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, numbers)
    held = {"parts": list(parts), "words": vocabulary.words, "model": vocabulary.model}
    with whole(folder / f"{stem}.json") as temporary:
        temporary.write_text(json.dumps(held), encoding="utf-8")


def _vocabulary(kind: str, size: int | None, lines: Any) -> Vocabulary:
    if kind == "byte":
        return Vocabulary("byte")
    if kind == "word":
        return Vocabulary("word", _most_frequent(lines(), size))
    library = _tokenizers()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size or 50_257,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_batches(lines(), 1024), trainer)
    return Vocabulary("bpe", model=made.to_str())


def _most_frequent(lines: Iterator[str], size: int | None) -> tuple[str, ...]:
    """Words by how often they come, ties in the order of their first appearance, and the word for all others."""
    count: Counter[str] = Counter()
    for some in _batches(lines, 4096):
        count.update(_words("".join(some)))
    count[UNKNOWN] += 1  # of equal counts, the one that came first is first
    words = [word for word, _ in count.most_common()]
    if size is not None and len(words) > size:
        words = [*[word for word in words if word != UNKNOWN][: size - 1], UNKNOWN]
    return tuple(words)


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {LINE} ").split()


def _batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    some: list[str] = []
    for line in lines:
        some.append(line)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def _open(path: Path) -> IO[bytes]:
    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    stream: IO[bytes] = openers.get(path.suffix, open)(path, "rb")
    return stream


def read_lines(paths: Sequence[Path]) -> Iterator[str]:
    """The lines of files, one after the other."""
    for path in paths:
        try:
            with _open(path) as file:
                for line in file:
                    yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8: {error}; cut it into bytes (byte) instead") from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None


def _bytes(paths: Sequence[Path]) -> NDArray[np.uint8]:
    parts = []
    for path in paths:
        try:
            with _open(path) as file:
                parts.append(np.frombuffer(file.read(), np.uint8))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None
    return np.concatenate(parts)


def _tokenizers() -> Any:
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise ValueError(
            "a BPE needs tokenizers, which is not installed; pip install 'rootscale[transformers]', or cut into words"
        ) from None
    for part in ("models", "pre_tokenizers", "decoders", "trainers"):
        importlib.import_module(f"tokenizers.{part}")
    return library
