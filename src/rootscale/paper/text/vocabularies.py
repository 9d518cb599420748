"""Tokens of a text: words, bytes, or the pieces of a trained BPE (byte-pair encoding)."""

from __future__ import annotations

import importlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KINDS", "SPECIAL", "Vocabulary", "check_kind", "vocabulary_of"]


#: How text can be cut up.
KINDS = ("word", "byte", "bpe")
#: Numbers after those of the ordinary tokens, in this order: padding, begin and end of a text, and a hidden token.
SPECIAL = ("pad", "begin", "end", "mask")
#: The word for words that are not in the vocabulary, and for the end of a line.
UNKNOWN, LINE = "<unk>", "<eos>"


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
        """Return the number of one of `SPECIAL`.

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
        numbers, unknown = self._numbers, self._numbers.get(UNKNOWN, 0)
        return [numbers.get(word, unknown) for word in _words(text)]

    def lines(self, lines: Iterator[str]) -> NDArray[Any]:
        """Return the numbers of all tokens of some lines."""
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


def check_kind(kind: str, size: int | None) -> None:
    """Raise an error where a text cannot be cut up that way, or not into so many tokens."""
    if kind not in KINDS:
        raise ValueError(f"tokens must be one of {', '.join(KINDS)}, got {kind!r}")
    if size is not None and (kind == "byte" or size < (2 if kind == "word" else 257)):
        raise ValueError(f"the size of a vocabulary is for word (>= 2) and bpe (>= 257), got {size} for {kind}")


def vocabulary_of(kind: str, size: int | None, lines: Callable[[], Iterator[str]]) -> Vocabulary:
    """Return the tokens of some lines, which are asked for once or twice."""
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
    """Return words by how often they come, ties in the order of their first appearance, and the word for all others."""
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
