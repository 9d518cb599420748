"""Text on disk as numbers: corpora in their published layouts, cut into words, bytes or pieces of a BPE, and windows.

A corpus is a folder of text files, plain or compressed (.xz, .gz). `tokenise` turns it into numbers; words and bytes
are counted here, and a byte-pair encoding (BPE) is trained by the library ``tokenizers``. `windows` divides the
numbers into samples of a language model. Nothing is downloaded, and nothing is written beside the data: numbers that
take long to make are stored in the folder that ``ROOTSCALE_CACHE`` names, by default that of the user's caches, and
are made again where that folder cannot be written.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import logging
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rootscale.files import cache_folder, whole
from rootscale.lab.data import data_folder

__all__ = [
    "CORPORA", "KINDS", "SPECIAL", "Corpus", "Tokens", "Vocabulary", "Windows", "chain", "compressed", "corpus",
    "from_text", "read_lines", "tokenise", "windows",
]  # fmt: skip

_log = logging.getLogger(__name__)

#: Compressed files are read as they are.
SUFFIXES = ("", ".xz", ".gz")
#: How text can be cut up.
KINDS = ("word", "byte", "bpe")
#: Numbers after those of the ordinary tokens, in this order: padding, begin and end of a text, and a hidden token.
SPECIAL = ("pad", "begin", "end", "mask")
#: The word for words that are not in the vocabulary, and for the end of a line.
UNKNOWN, LINE = "<unk>", "<eos>"
#: Tokens of a BPE unless another number is asked for: those of GPT-2.
BPE_SIZE = 50_257
#: Shares of train, valid and test where one file holds everything: the usual 90, 5 and 5 million of enwik8.
SHARES = {"train": (0.0, 0.9), "valid": (0.9, 0.95), "test": (0.95, 1.0)}
#: Changes when the same text gives other numbers, so that older stored ones are not read.
VERSION = 2
#: Lines that are cut up at once.
LINES = 4096


# -- files of text -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Files of text.

    Args:
        name: for messages, tasks and stored numbers.
        parts: the files of ``train``, ``valid`` and ``test``; a single part ``all`` is cut up by `SHARES`.
        kind: how it is usually cut up, one of `KINDS`.
    """

    name: str
    parts: Mapping[str, tuple[Path, ...]]
    kind: str

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [path for paths in self.parts.values() for path in paths]


def _three(pattern: str) -> dict[str, str]:
    return {part: pattern.format(part) for part in ("train", "valid", "test")}


#: For each corpus: how it is usually cut up, and its layouts, a folder and the names of the parts, in the order in
#: which they are looked for.
CORPORA: Mapping[str, tuple[str, tuple[tuple[str, Mapping[str, str]], ...]]] = {
    name: (
        kind,
        (
            (name, _three("wiki.{}.tokens")),
            (f"{name}-raw", _three("wiki.{}.raw")),
            (name, _three("wiki.{}.raw")),
            (name, _three("{}.txt")),
        ),
    )
    for name, kind in (("wikitext-103", "bpe"), ("wikitext-2", "word"))
} | {"enwik8": ("byte", (("enwik8", {"all": "enwik8"}), (".", {"all": "enwik8"})))}


def corpus(folder: str | os.PathLike[str] | None = None, name: str | None = None) -> Corpus:
    """Return the corpus in a folder: WikiText-103, WikiText-2 or enwik8 in their published layout, or any text files.

    A folder of other text has ``train.txt`` and ``valid.txt`` (and ``test.txt``), or any files ``*.txt``, at any depth,
    which are taken in the order of their names.

    Args:
        folder: that holds the files, or the folder of the corpus; None is ``ROOTSCALE_DATA``.
        name: one of `CORPORA`; None is the first that is there, and else all text files of the folder.
    """
    root = data_folder(folder, name or "text")
    if name is not None and name not in CORPORA:
        raise ValueError(f"a corpus must be one of {', '.join(CORPORA)}, got {name!r}")
    for wanted in CORPORA if name is None else (name,):
        kind, layouts = CORPORA[wanted]
        for below, names in layouts:
            # Files with names of their own are known in any folder; train.txt may be anything.
            named = root.name == below or name is not None
            here = named or names.get("train", "").startswith("wiki.")
            for place in (root / below, *((root,) if here else ())):
                parts = _present(place, names)
                if len(parts) == len(names):
                    known = named or place != root or "all" in parts
                    return Corpus(wanted if known else root.resolve().name, parts, kind)
    parts = _present(root, _three("{}.txt"))
    label = root.resolve().name or "text"
    if name is None and {"train", "valid"} <= set(parts):
        return Corpus(label, parts, "bpe")
    files = sorted(path for suffix in SUFFIXES for path in root.rglob(f"*.txt{suffix}") if path.is_file())
    if name is not None or not files:
        first = (next(iter(names.values())) for _, names in CORPORA[name or "wikitext-103"][1])
        raise ValueError(
            f"{name or 'text'} is not in {root}; looked for {', '.join(dict.fromkeys(first))}"
            f"{' and *.txt' if name is None else ''} (plain, .xz or .gz) there and in its folder"
        )
    return Corpus(label, {"all": tuple(files)}, "bpe")


def _present(place: Path, names: Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    """Return the files of those parts that are in a folder."""
    paths = {part: compressed(place / name) for part, name in names.items()}
    return {part: (path,) for part, path in paths.items() if path is not None}


def compressed(path: Path) -> Path | None:
    """Return the file, or a compressed one in its place; None where there is neither."""
    paths = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((candidate for candidate in paths if candidate.is_file()), None)


def _opened(path: Path) -> IO[bytes]:
    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    stream: IO[bytes] = openers.get(path.suffix, open)(path, "rb")
    return stream


def read_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of files, one file after the other."""
    for path in paths:
        try:
            with _opened(path) as file:
                for line in file:
                    yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be UTF-8: {error}; cut it into bytes (byte) instead") from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None


def _read_bytes(paths: Sequence[Path]) -> NDArray[np.uint8]:
    parts = []
    for path in paths:
        try:
            with _opened(path) as file:
                parts.append(np.frombuffer(file.read(), np.uint8))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read or is truncated: {error}") from None
    return np.concatenate(parts)


# -- vocabularies ------------------------------------------------------------------------------------------------------


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

    @classmethod
    def of(cls, kind: str, size: int | None, lines: Callable[[], Iterator[str]]) -> Vocabulary:
        """Return the tokens of some lines, which are asked for once."""
        if kind == "byte":
            return cls("byte")
        if kind == "word":
            return cls("word", _most_frequent(lines(), size))
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size or BPE_SIZE, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(_batches(lines(), 1024), trainer)
        return cls("bpe", model=tokenizer.to_str())

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
        """How many tokens there are with those of `SPECIAL`."""
        return self.size + len(SPECIAL)

    def special(self, name: str) -> int:
        """Return the number of a token of `SPECIAL`.

        >>> Vocabulary("byte").special("mask")
        259
        """
        return self.size + SPECIAL.index(name)

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's tokens.

        >>> Vocabulary("word", ("<unk>", "a", "b")).encode("b a c")
        [2, 1, 0]
        """
        if self.kind == "byte":
            return list(text.encode())
        if self.kind == "bpe":
            return list(self._bpe.encode(text).ids)
        unknown = self._numbers.get(UNKNOWN, 0)
        return [self._numbers.get(word, unknown) for word in _words(text)]

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text of some tokens; of words, those of a line with spaces between them."""
        if self.kind == "byte":
            return bytes(numbers).decode()
        if self.kind == "bpe":
            return str(self._bpe.decode(list(numbers)))
        return " ".join(self.words[number] for number in numbers)

    def lines(self, lines: Iterator[str]) -> NDArray[Any]:
        """Return the numbers of all tokens of some lines."""
        parts: list[NDArray[Any]] = []
        for batch in _batches(lines, LINES):
            if self.kind == "bpe":
                parts += [np.array(line.ids, np.int32) for line in self._bpe.encode_batch(batch)]
            else:
                parts.append(np.array(self.encode("".join(batch)), np.uint8 if self.kind == "byte" else np.int32))
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _most_frequent(lines: Iterator[str], size: int | None) -> tuple[str, ...]:
    """Return words by how often they come, ties in the order of their first appearance, and the word for all others."""
    count: Counter[str] = Counter()
    for batch in _batches(lines, LINES):
        count.update(_words("".join(batch)))
    count[UNKNOWN] += 1  # of equal counts, the word that came first is first
    words = [word for word, _ in count.most_common()]
    if size is not None and len(words) > size:
        words = [*[word for word in words if word != UNKNOWN][: size - 1], UNKNOWN]
    return tuple(words)


def _words(text: str) -> list[str]:
    return text.replace("\n", f" {LINE} ").split()


def _batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    while batch := list(islice(lines, size)):
        yield batch


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


# -- texts as numbers --------------------------------------------------------------------------------------------------


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
    text: Corpus, kind: str | None = None, size: int | None = None, cache: str | os.PathLike[str] | None = None
) -> Tokens:
    """Return the numbers of a corpus; those of words and of a BPE are read where they were stored before.

    Args:
        text: the corpus.
        kind: one of `KINDS`; None is the usual one of the corpus.
        size: most words of a vocabulary (None: all), or tokens of a BPE (None: 50,257, as GPT-2's).
        cache: folder of the stored numbers; None is ``ROOTSCALE_CACHE``, or else that of the user's caches.
    """
    kind = kind or text.kind
    _check_kind(kind, size)
    name = f"{text.name}-{kind}{'' if size is None else f'-{size}'}"
    if kind == "byte":  # reading the text is all there is to do
        return _tokens(name, Vocabulary("byte"), _numbers(text, Vocabulary("byte")))
    path = Path(cache or cache_folder()).expanduser() / f"{name}-{_digest(text, kind, size)}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            record = json.loads(str(stored["vocabulary"]))
            vocabulary = Vocabulary(kind, tuple(record["words"]), record["model"])
            return _tokens(name, vocabulary, {part: stored[part] for part in record["parts"]})
    vocabulary = Vocabulary.of(kind, size, lambda: read_lines(text.files))
    parts = _numbers(text, vocabulary)
    record = {"parts": list(parts), "words": vocabulary.words, "model": vocabulary.model}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary, temporary.open("wb") as file:
            arrays: dict[str, Any] = {"vocabulary": np.array(json.dumps(record)), **parts}
            np.savez_compressed(file, **arrays)
    except OSError as error:
        _log.warning("the numbers of %s are not stored: %s; name another folder in ROOTSCALE_CACHE", name, error)
    return _tokens(name, vocabulary, parts)


def from_text(text: str, kind: str = "word", name: str = "text", size: int | None = None) -> Tokens:
    r"""Return the numbers of a text in memory, as one part ``train``.

    >>> tokens = from_text("the cat\nthe dog\n")
    >>> tokens.vocabulary.words, tokens.parts["train"].tolist()
    (('the', '<eos>', 'cat', 'dog', '<unk>'), [0, 2, 1, 0, 3, 1])
    """
    _check_kind(kind, size)
    vocabulary = Vocabulary.of(kind, size, lambda: iter(text.splitlines(keepends=True)))
    return _tokens(name, vocabulary, {"train": vocabulary.lines(iter(text.splitlines(keepends=True)))})


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
    text, word = [], 0
    for i in range(length):
        word = int(draws[i]) if free[i] else int(usual[word])
        text.append(f"w{word}" + ("\n" if i % 16 == 15 else " "))
    return "".join(text)


def _check_kind(kind: str, size: int | None) -> None:
    """Raise where a text cannot be cut up that way, or not into so many tokens."""
    if kind not in KINDS:
        raise ValueError(f"tokens must be one of {', '.join(KINDS)}, got {kind!r}")
    if size is not None and (kind == "byte" or size < (2 if kind == "word" else 257)):
        raise ValueError(f"the size of a vocabulary is for word (>= 2) and bpe (>= 257), got {size} for {kind}")


def _numbers(text: Corpus, vocabulary: Vocabulary) -> dict[str, NDArray[Any]]:
    """Return the numbers of each part of a corpus, none of which is empty."""
    parts: dict[str, NDArray[Any]] = {
        part: _read_bytes(paths) if vocabulary.kind == "byte" else vocabulary.lines(read_lines(paths))
        for part, paths in text.parts.items()
    }
    if "all" in parts:
        numbers = parts.pop("all")
        parts = {part: numbers[int(a * len(numbers)) : int(b * len(numbers))] for part, (a, b) in SHARES.items()}
    for part, numbers in parts.items():
        if not len(numbers):
            raise ValueError(f"the {part} part of {text.name} has no tokens; its files are {text.files[0]} ...")
    return parts


def _tokens(name: str, vocabulary: Vocabulary, parts: Mapping[str, NDArray[Any]]) -> Tokens:
    writable = {part: numbers if numbers.flags.writeable else numbers.copy() for part, numbers in parts.items()}
    return Tokens(name, {part: torch.from_numpy(numbers) for part, numbers in writable.items()}, vocabulary)


def _digest(text: Corpus, kind: str, size: int | None) -> str:
    """Return a digest of what is in the files, as they are on disk, and of how it is cut up."""
    digest = hashlib.sha256(f"{VERSION} {kind} {size}".encode())
    for part, paths in text.parts.items():
        for path in paths:
            with path.open("rb") as file:
                digest.update(f"{part} {path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()[:12]


# -- windows -----------------------------------------------------------------------------------------------------------

#: The paper's share of training windows, and the seed of the split.
SHARE, SPLIT_SEED = 0.9, 0
#: How a text is divided: windows at random, 9:1, as in the paper, or by the parts that the corpus has.
SPLITS = ("paper", "own")


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a text, by number: `rootscale.lab.Data`. Targets are the tokens that follow, or the tokens themselves.

    >>> data = Windows(torch.arange(10), torch.tensor([0, 3, 6]), length=3)
    >>> data[torch.tensor([1])]
    (tensor([[3, 4, 5]]), tensor([[4, 5, 6]]))

    Args:
        tokens: all of the text, one-dimensional, of any type of whole numbers.
        starts: where each window begins.
        length: of the inputs.
        ahead: whether the targets are the following tokens (1), or the tokens themselves (0).
    """

    tokens: Tensor
    starts: Tensor
    length: int
    ahead: int = 1

    def __post_init__(self) -> None:
        if not len(self.starts):
            raise ValueError(
                f"a text of {len(self.tokens):,} tokens has no window of {self.length + self.ahead}: take shorter ones"
            )

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.starts)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and targets of these windows."""
        places = torch.arange(self.length + self.ahead, device=self.tokens.device)
        taken = self.tokens[self.starts[index][..., None] + places].long()
        return taken[..., : self.length], taken[..., self.ahead :]

    def to(self, device: torch.device) -> Windows:
        """Return the same windows on another device."""
        return Windows(self.tokens.to(device), self.starts.to(device), self.length, self.ahead)


def windows(tokens: Tokens, length: int, split: str = "paper", ahead: int = 1) -> tuple[Windows, Windows]:
    """Return windows to train with, and others to test with; they do not overlap.

    Args:
        tokens: of the text.
        length: of a window.
        split: ``paper``: all windows of the text, divided at random 9:1 ("uniformly with a ratio 9:1", always in the
            same way); ``own``: the parts ``train`` and ``valid`` of the corpus.
        ahead: as for `Windows`.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "own":
        if "valid" not in tokens.parts:
            raise ValueError(f"{tokens.name} has no part 'valid', only {', '.join(tokens.parts)}; take split='paper'")
        train, test = tokens.parts["train"], tokens.parts["valid"]
        return (
            Windows(train, _starts(train, length), length, ahead),
            Windows(test, _starts(test, length), length, ahead),
        )
    joined = tokens.joined()
    starts = _starts(joined, length)
    starts = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(SPLIT_SEED))]
    first = int(SHARE * len(starts))
    if not 0 < first < len(starts):
        raise ValueError(f"{tokens.name} has {len(starts)} windows of {length} tokens, too few to divide 9:1")
    return Windows(joined, starts[:first], length, ahead), Windows(joined, starts[first:], length, ahead)


def _starts(tokens: Tensor, length: int) -> Tensor:
    if length < 1:
        raise ValueError(f"windows must have at least 1 token, got {length}")
    return torch.arange(0, max(0, len(tokens) - length), length)
