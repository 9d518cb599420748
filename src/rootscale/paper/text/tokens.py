"""Texts as numbers.

A corpus is turned into numbers once; they are kept as ``.npy`` files which later runs map into memory, next to a small
``.json`` with the vocabulary:

    CACHE/<corpus>-<kind>-<digest>-<part>.npy    token numbers, uint8 for bytes and int32 otherwise
    CACHE/<corpus>-<kind>-<digest>.json          the vocabulary; written last, so that it says that all is there

The digest is of the files' contents and of the kind of tokens: other text makes other files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rootscale.files import whole
from rootscale.paper.text.corpora import Corpus, read_bytes, read_lines
from rootscale.paper.text.vocabularies import Vocabulary, check_kind, vocabulary_of

__all__ = ["CACHE", "Tokens", "chain", "from_text", "tokenise"]


#: The environment variable that names the folder where token numbers are kept.
CACHE = "ROOTSCALE_CACHE"
#: Shares of train, valid and test where a single file holds everything: the usual 90, 5 and 5 million of enwik8.
SHARES = {"train": (0.0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1.0)}
VERSION = 1  # of the files; another one makes new files


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
        """Return all parts one after the other."""
        parts = list(self.parts.values())
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def tokenise(
    text: Corpus,
    kind: str | None = None,
    size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Tokens:
    """Return the numbers of a corpus, from the kept files where it was done before.

    Args:
        text: the corpus.
        kind: one of `KINDS`; None is the usual one of the corpus.
        size: most words of a vocabulary (None: all), or tokens of a BPE (None: 50,257, as GPT-2's).
        cache: folder of the kept files; None is ``ROOTSCALE_CACHE``, and else ``rootscale-cache`` beside the data.
    """
    kind = kind or text.kind
    check_kind(kind, size)
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
    r"""Return the numbers of a text in memory, as one part ``train``.

    >>> tokens = from_text("the cat\nthe dog\n")
    >>> tokens.vocabulary.words, tokens.parts["train"].tolist()
    (('the', '<eos>', 'cat', 'dog', '<unk>'), [0, 2, 1, 0, 3, 1])
    """
    check_kind(kind, size)
    vocabulary = vocabulary_of(kind, size, lambda: iter(text.splitlines(keepends=True)))
    numbers = vocabulary.lines(iter(text.splitlines(keepends=True)))
    return Tokens(name, {"train": torch.from_numpy(numbers.copy())}, vocabulary)


def chain(words: int = 50, length: int = 20_000, follow: float = 0.75, seed: int = 0) -> str:
    """Return a generated text for smoke tests: each word is mostly followed by one of its own; lines have 16 words.

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


def _digest(text: Corpus, kind: str, size: int | None) -> str:
    """Return a digest of what is in the files, as they are on disk, and of how it is cut up."""
    whole_text = hashlib.sha256(f"{VERSION} {kind} {size}".encode())
    for part, paths in text.parts.items():
        for path in paths:
            with path.open("rb") as file:
                whole_text.update(f"{part} {path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return whole_text.hexdigest()[:12]


def _keep(text: Corpus, kind: str, size: int | None, folder: Path, stem: str) -> None:
    """Write the numbers of a corpus, and its vocabulary last."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"no permission to write to {folder}")
    except OSError as error:
        raise ValueError(f"token numbers cannot be kept: {error}; name another folder in {CACHE}") from None
    vocabulary = vocabulary_of(kind, size, lambda: read_lines(text.files))
    parts: dict[str, NDArray[Any]] = {}
    for part, paths in text.parts.items():
        parts[part] = read_bytes(paths) if kind == "byte" else vocabulary.lines(read_lines(paths))
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
