"""The tasks of GLUE: their tsv files, the paper's grids of fine-tunings, and their texts as tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootscale.lab.task import Tensors
from rootscale.paper.text.corpora import existing, read_lines
from rootscale.paper.text.vocabularies import Vocabulary

__all__ = ["GLUE", "Glue", "Point", "encode_texts", "encoded_glue", "generated_glue", "glue_file", "read_glue"]


@dataclass(frozen=True)
class Glue:
    """A task of GLUE: how its tsv files are read, how it is judged, and the paper's grid for it.

    Args:
        texts: columns of the sentence, or of two.
        label: its column.
        labels: the classes as they are written; none where a number is predicted.
        metric: one of `SCORES`.
        header: whether the first line names the columns.
        dev: the name of the file to test with.
        batch_sizes, etas, epochs: of the grid, from the appendix's table.
    """

    texts: tuple[int, ...]
    label: int
    labels: tuple[str, ...]
    metric: str
    header: bool = True
    dev: str = "dev"
    batch_sizes: tuple[int, ...] = (16, 32)
    etas: tuple[float, ...] = (1e-5, 3e-5, 5e-5, 8e-5)
    epochs: tuple[int, ...] = (3, 5, 10)

    def grid(self) -> list[Point]:
        """All points of it."""
        return [Point(*point) for point in product(self.batch_sizes, self.etas, self.epochs)]


@dataclass(frozen=True)
class Point:
    """Of the grid: batch size, peak learning rate and epochs of a fine-tuning."""

    batch_size: int
    eta: float
    epochs: int


_LARGE: dict[str, Any] = {"batch_sizes": (32,), "etas": (5e-5, 8e-5), "epochs": (3, 5)}
_ENTAILED = ("not_entailment", "entailment")
#: The tasks of the paper's table, in its order.
GLUE: Mapping[str, Glue] = MappingProxyType(
    {
        "CoLA": Glue((3,), 1, ("0", "1"), "Matthews correlation", header=False),
        "SST-2": Glue((0,), 1, ("0", "1"), "accuracy"),
        "MRPC": Glue((3, 4), 0, ("0", "1"), "F1"),
        "STS-B": Glue((7, 8), 9, (), "Spearman correlation"),
        "QQP": Glue((3, 4), 5, ("0", "1"), "F1", **_LARGE),
        "MNLI": Glue((8, 9), -1, ("contradiction", "entailment", "neutral"), "accuracy", dev="dev_matched", **_LARGE),
        "QNLI": Glue((1, 2), 3, _ENTAILED, "accuracy", **_LARGE),
        "RTE": Glue((1, 2), 3, _ENTAILED, "accuracy"),
    }
)


def glue_file(folder: str | os.PathLike[str], name: str, split: str = "train") -> Path:
    """The tsv file of a task; the arguments are those of `read_glue`."""
    if name not in GLUE:
        raise ValueError(f"a task of GLUE must be one of {', '.join(GLUE)}, got {name!r}")
    if split not in ("train", "dev"):
        raise ValueError(f"split must be train or dev, got {split!r}")
    root = Path(folder).expanduser()
    file = f"{GLUE[name].dev if split == 'dev' else split}.tsv"
    places = [root / "glue" / name, root / name, *([root] if root.name == name else [])]
    path = next((found for place in places if (found := existing(place / file))), None)
    if path is None:
        raise ValueError(f"there is no {file} (plain, .xz or .gz) of {name} in {', '.join(map(str, places))}")
    return path


def read_glue(
    folder: str | os.PathLike[str], name: str, split: str = "train"
) -> tuple[list[tuple[str, ...]], list[float]]:
    """Sentences (or pairs) and labels of a task of GLUE, from its tsv file: plain, .xz or .gz.

    Args:
        folder: that holds ``glue/NAME``, or ``NAME``, or the files.
        name: one of `GLUE`.
        split: ``train`` or ``dev``.
    """
    path = glue_file(folder, name, split)
    task = GLUE[name]
    lines = [line.rstrip("\r\n").split("\t") for line in read_lines([path])]
    lines = [line for line in (lines[1:] if task.header else lines) if line != [""]]
    needed = max(*task.texts, task.label) + 1
    whole_lines = [line for line in lines if len(line) >= needed]
    if not whole_lines or len(whole_lines) < 0.99 * len(lines):  # a few of QQP's are broken as published
        raise ValueError(
            f"{path} must have lines of at least {needed} columns with tabs between, got {len(whole_lines)} "
            f"of {len(lines)}"
        )
    try:
        given = [line[task.label] for line in whole_lines]
        labels = [float(task.labels.index(label) if task.labels else label) for label in given]
    except ValueError:
        wanted = f"one of {', '.join(task.labels)}" if task.labels else "numbers"
        raise ValueError(f"labels of {path} (column {task.label}) must be {wanted}") from None
    return [tuple(line[column] for column in task.texts) for line in whole_lines], labels


def encode_texts(texts: Sequence[tuple[str, ...]], vocabulary: Vocabulary, length: int) -> Tensor:
    """Tokens of sentences, ``begin A end``, or of pairs, ``begin A end end B end``, filled up with padding.

    What is too long is cut at its end, the longer sentence of a pair first. For a vocabulary of words, sentences are
    cut up as WikiText is (`as_in_wikitext`).
    """
    begin, end, pad = (vocabulary.special(name) for name in ("begin", "end", "pad"))
    out = torch.full((len(texts), length), pad)
    for row, sentences in zip(out, texts, strict=True):
        if vocabulary.kind == "word":
            sentences = tuple(map(as_in_wikitext, sentences))
        parts = [vocabulary.encode(sentence) for sentence in sentences]
        room = length - 2 * len(parts)
        while sum(map(len, parts)) > room:
            longest = max(parts, key=len)
            longest.pop()
        numbers = [begin]
        for i, part in enumerate(parts):
            numbers += [*([end] if i else []), *part, end]
        row[: len(numbers)] = torch.tensor(numbers)
    return out


def as_in_wikitext(sentence: str) -> str:
    """With spaces around punctuation, as in WikiText: without them a fifth of GLUE's words are not in its vocabulary.

    >>> as_in_wikitext("He didn't pay $1,000 for a well-known dog.")
    "He didn 't pay $ 1 @,@ 000 for a well @-@ known dog ."
    """
    sentence = re.sub(r"\s?n't\b", "n 't", sentence)
    sentence = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", sentence)
    sentence = re.sub(r"(?<=\d)([.,])(?=\d)", r" @\1@ ", sentence)
    return " ".join(re.sub(r"(@[-.,]@|'\w+|[^\w\s])", r" \1 ", sentence).split())


@lru_cache(maxsize=16)  # a grid asks for them often
def encoded_glue(name: str, folder: str, vocabulary: Vocabulary, length: int) -> tuple[Tensors, Tensors]:
    """Tokens and labels of train and dev, of one length.

    Args:
        name, folder: as for `read_glue`.
        vocabulary: of the tokens.
        length: at most; less where the longest text needs less, in multiples of 8, since padding costs time.
    """
    parts = []
    for split in ("train", "dev"):
        texts, labels = read_glue(folder, name, split)
        targets = torch.tensor(labels)
        inputs = encode_texts(texts, vocabulary, length)
        parts.append(Tensors(inputs, targets.long() if GLUE[name].labels else targets))
    longest = max(int((part.inputs != vocabulary.special("pad")).sum(1).max()) for part in parts)
    needed = min(length, -(-longest // 8) * 8)
    train, dev = (Tensors(part.inputs[:, :needed].contiguous(), part.targets) for part in parts)
    return train, dev


def generated_glue(folder: Path) -> None:
    """Write three tasks in the form of GLUE: is there a certain word, are two sentences alike, how much so."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 128), ("dev", 64)):
        for name in ("CoLA", "MRPC", "STS-B"):
            lines = [] if name == "CoLA" else ["\t".join(f"column {i}" for i in range(10))]
            for _ in range(count):
                first = generator.integers(10, size=6)
                second = np.where(generator.random(6) < 0.5, first, generator.integers(10, size=6))
                alike = float((first == second).mean())
                one, two = (" ".join(f"w{i}" for i in numbers) for numbers in (first, second))
                lines.append(
                    {
                        "CoLA": f"here\t{int(1 in first)}\t\t{one}",
                        "MRPC": f"{int(alike > 0.5)}\t1\t2\t{one}\t{two}",
                        "STS-B": "\t".join(["x"] * 7 + [one, two, f"{5 * alike:.3f}"]),
                    }[name]
                )
            (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
            (folder / "glue" / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
