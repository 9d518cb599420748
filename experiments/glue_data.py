"""GLUE: its files, the paper's grids of fine-tunings, its scores, and a fine-tuning as a task of the lab.

The files are GLUE's own, ``glue/NAME/train.tsv`` and ``dev.tsv``, plain or compressed. Scores are taken on the dev sets
by scikit-learn and SciPy (extra ``lab``).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from language_models import Encoder, encoder_net
from text import Vocabulary, compressed, read_lines
from torch import Tensor, nn

from rootscale import AdamW, BatchSize, Plan, Schedule
from rootscale.lab import Task, Tensors
from rootscale.lab.tasks import accuracy, cross_entropy

__all__ = [
    "GLUE",
    "SCORES",
    "Glue",
    "Point",
    "Score",
    "available",
    "encode_texts",
    "fine_tuning",
    "generate",
    "read_glue",
]


@dataclass(frozen=True)
class Point:
    """A point of a grid: batch size, peak learning rate and epochs of a fine-tuning."""

    batch_size: int
    eta: float
    epochs: int


@dataclass(frozen=True)
class Glue:
    """A task of GLUE: how its tsv files are read, how it is judged, and the paper's grid for it.

    Args:
        texts: columns of the sentence, or of two.
        label: its column.
        labels: the classes as they are written; none where a number is predicted.
        metric: one of `SCORES`.
        majority: the score of one answer for all, the most frequent of the dev set; None where that was not computed.
        header: whether the first line names the columns.
        dev: the name of the file to test with.
        batch_sizes, etas, epochs: of the grid, from the appendix's table.
    """

    texts: tuple[int, ...]
    label: int
    labels: tuple[str, ...]
    metric: str
    majority: float | None = None
    header: bool = True
    dev: str = "dev"
    batch_sizes: tuple[int, ...] = (16, 32)
    etas: tuple[float, ...] = (1e-5, 3e-5, 5e-5, 8e-5)
    epochs: tuple[int, ...] = (3, 5, 10)

    def grid(self) -> list[Point]:
        """Return all points of the grid."""
        return [Point(*point) for point in product(self.batch_sizes, self.etas, self.epochs)]


_LARGE: dict[str, Any] = {"batch_sizes": (32,), "etas": (5e-5, 8e-5), "epochs": (3, 5)}
_ENTAILED = ("not_entailment", "entailment")
#: The tasks of the paper's table, in its order.
GLUE: Mapping[str, Glue] = {
    "CoLA": Glue((3,), 1, ("0", "1"), "Matthews correlation", 0.0, header=False),
    "SST-2": Glue((0,), 1, ("0", "1"), "accuracy", 0.509),
    "MRPC": Glue((3, 4), 0, ("0", "1"), "F1", 0.812),
    "STS-B": Glue((7, 8), 9, (), "Spearman correlation", 0.0),
    "QQP": Glue((3, 4), 5, ("0", "1"), "F1", **_LARGE),
    "MNLI": Glue((8, 9), -1, ("contradiction", "entailment", "neutral"), "accuracy", dev="dev_matched", **_LARGE),
    "QNLI": Glue((1, 2), 3, _ENTAILED, "accuracy", **_LARGE),
    "RTE": Glue((1, 2), 3, _ENTAILED, "accuracy", 0.527),
}


# -- files -------------------------------------------------------------------------------------------------------------


def read_glue(
    folder: str | os.PathLike[str], name: str, split: str = "train"
) -> tuple[list[tuple[str, ...]], list[float]]:
    """Return sentences (or pairs) and labels of a task of GLUE.

    Args:
        folder: that holds ``glue/NAME``, or ``NAME``, or the files.
        name: one of `GLUE`.
        split: ``train`` or ``dev``.
    """
    path, task = _file(folder, name, split), GLUE[name]
    lines = [line.rstrip("\r\n").split("\t") for line in read_lines([path])]
    lines = [line for line in (lines[1:] if task.header else lines) if line != [""]]
    needed = max(*task.texts, task.label) + 1
    complete = [line for line in lines if len(line) >= needed]
    if not complete or len(complete) < 0.99 * len(lines):  # a few of QQP's are broken as published
        raise ValueError(
            f"{path} must have lines of at least {needed} columns with tabs between, got {len(complete)} of "
            f"{len(lines)}"
        )
    try:
        written = [line[task.label] for line in complete]
        labels = [float(task.labels.index(label) if task.labels else label) for label in written]
    except ValueError:
        wanted = f"one of {', '.join(task.labels)}" if task.labels else "numbers"
        raise ValueError(f"labels of {path} (column {task.label}) must be {wanted}") from None
    return [tuple(line[column] for column in task.texts) for line in complete], labels


def _file(folder: str | os.PathLike[str], name: str, split: str) -> Path:
    if name not in GLUE:
        raise ValueError(f"a task of GLUE must be one of {', '.join(GLUE)}, got {name!r}")
    if split not in ("train", "dev"):
        raise ValueError(f"split must be train or dev, got {split!r}")
    root = Path(folder).expanduser()
    file = f"{GLUE[name].dev if split == 'dev' else split}.tsv"
    places = [root / "glue" / name, root / name, *([root] if root.name == name else [])]
    path = next((there for place in places if (there := compressed(place / file))), None)
    if path is None:
        raise ValueError(f"there is no {file} (plain, .xz or .gz) of {name} in {', '.join(map(str, places))}")
    return path


def available(folder: Path) -> list[str]:
    """Return the tasks whose files are in a folder, at least one."""
    names = []
    for name in GLUE:
        try:
            _file(folder, name, "train"), _file(folder, name, "dev")
        except ValueError:
            continue
        names.append(name)
    if not names:
        raise ValueError(f"there is no task of GLUE in {folder}: it must hold glue/NAME/train.tsv and dev.tsv")
    return names


def generate(folder: Path) -> None:
    """Write three tasks in the form of GLUE: is there a certain word, are two sentences alike, how much so."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 128), ("dev", 64)):
        for name in ("CoLA", "MRPC", "STS-B"):
            lines = [] if name == "CoLA" else ["\t".join(f"column {i}" for i in range(10))]
            for _ in range(count):
                first = generator.integers(10, size=6)
                second = np.where(generator.random(6) < 0.5, first, generator.integers(10, size=6))
                alike = float((first == second).mean())
                a, b = (" ".join(f"w{i}" for i in numbers) for numbers in (first, second))
                lines.append(
                    {
                        "CoLA": f"here\t{int(1 in first)}\t\t{a}",
                        "MRPC": f"{int(alike > 0.5)}\t1\t2\t{a}\t{b}",
                        "STS-B": "\t".join(["x"] * 7 + [a, b, f"{5 * alike:.3f}"]),
                    }[name]
                )
            (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
            (folder / "glue" / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


# -- as tokens ---------------------------------------------------------------------------------------------------------


def encode_texts(texts: Sequence[tuple[str, ...]], vocabulary: Vocabulary, length: int) -> Tensor:
    """Return tokens of sentences, ``begin A end``, or of pairs, ``begin A end end B end``, filled up with padding.

    What is too long is cut at its end, the longer sentence of a pair first. For a vocabulary of words, sentences are
    cut up as WikiText is.
    """
    begin, end, pad = (vocabulary.special(name) for name in ("begin", "end", "pad"))
    rows = torch.full((len(texts), length), pad)
    for row, sentences in zip(rows, texts, strict=True):
        if vocabulary.kind == "word":
            sentences = tuple(map(_as_in_wikitext, sentences))
        parts = [vocabulary.encode(sentence) for sentence in sentences]
        room = length - 2 * len(parts)
        while sum(map(len, parts)) > room:
            max(parts, key=len).pop()
        numbers = [begin]
        for i, part in enumerate(parts):
            numbers += [*([end] if i else []), *part, end]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows


def _as_in_wikitext(sentence: str) -> str:
    """Put spaces around punctuation, as WikiText has: otherwise a fifth of GLUE's words are not in its vocabulary.

    >>> _as_in_wikitext("He didn't pay $1,000 for a well-known dog.")
    "He didn 't pay $ 1 @,@ 000 for a well @-@ known dog ."
    """
    sentence = re.sub(r"\s?n't\b", "n 't", sentence)
    sentence = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", sentence)
    sentence = re.sub(r"(?<=\d)([.,])(?=\d)", r" @\1@ ", sentence)
    return " ".join(re.sub(r"(@[-.,]@|'\w+|[^\w\s])", r" \1 ", sentence).split())


@lru_cache(maxsize=16)  # a grid asks for them often
def _encoded(name: str, folder: str, vocabulary: Vocabulary, length: int) -> tuple[Tensors, Tensors]:
    """Return tokens and labels of train and dev, of the longest text's length in multiples of 8: padding costs time."""
    parts = []
    for split in ("train", "dev"):
        texts, labels = read_glue(folder, name, split)
        targets = torch.tensor(labels)
        parts.append((encode_texts(texts, vocabulary, length), targets.long() if GLUE[name].labels else targets))
    longest = max(int((inputs != vocabulary.special("pad")).sum(1).max()) for inputs, _ in parts)
    needed = min(length, -(-longest // 8) * 8)
    train, dev = (Tensors(inputs[:, :needed].contiguous(), targets) for inputs, targets in parts)
    return train, dev


# -- scores ------------------------------------------------------------------------------------------------------------


def _metric(name: str, **options: Any) -> Callable[[Any, Any], float]:
    return lambda predicted, true: float(getattr(_library("sklearn.metrics"), name)(true, predicted, **options))


def _spearman(predicted: Any, true: Any) -> float:
    if len(set(predicted.tolist())) < 2:  # it is not defined, and nothing has been learned
        return 0.0
    return float(_library("scipy.stats").spearmanr(predicted, true).statistic)


#: How answers are judged: functions of what was predicted (a class or a number) and what is true.
SCORES: Mapping[str, Callable[[Any, Any], float]] = {
    "Matthews correlation": _metric("matthews_corrcoef"),
    "F1": _metric("f1_score", zero_division=0.0),
    "accuracy": _metric("accuracy_score"),
    "Spearman correlation": _spearman,
}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"the scores of GLUE need {name}; pip install 'rootscale[lab]'") from None


@dataclass(frozen=True, eq=False)
class Score:
    """A number for a model's answers to all of some data; a function of `Task`.

    Args:
        metric: one of `SCORES`.
        data: inputs and targets.
        at_once: samples through the model at once.
    """

    metric: str
    data: Tensors
    at_once: int = 256

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Return the score of this model; NaN where its outputs are not finite."""
        device = next(model.parameters()).device
        starts = range(0, len(self.data), self.at_once)
        parts = [self.data.inputs[start : start + self.at_once].to(device) for start in starts]
        outputs = torch.cat([model(part).float().cpu() for part in parts])
        if not torch.isfinite(outputs).all():
            return float("nan")
        predicted = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(1)
        return SCORES[self.metric](predicted.numpy(), self.data.targets.numpy())


# -- fine-tuning -------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """An encoder with RoBERTa's head on the first token: tokens [n, length] to outputs [n, classes].

    Args:
        encoder: the net; what only its head for hidden tokens uses is fixed.
        classes: outputs; 1 for a number.
        pad: the token that is not there.
        dropout: before and in the head.
    """

    def __init__(self, encoder: Encoder, classes: int, pad: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.pad = encoder, pad
        head = encoder.net.lm_head
        for fixed in (head.dense, head.layer_norm):
            fixed.requires_grad_(False)
        head.bias.requires_grad_(False)
        width = encoder.net.config.hidden_size
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, classes)
        )
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=encoder.net.config.initializer_range)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs of each class."""
        outputs: Tensor = self.head(self.encoder(tokens, tokens != self.pad)[:, 0])
        return outputs


#: By seed: a file that a `rootscale.lab.Store` with ``keep_models`` wrote, and the place of the seed's model in it.
Models = Mapping[int, tuple[Path, int]]


def _classifier(vocabulary: int, model: str, length: int, classes: int, pad: int, models: Models | None) -> nn.Module:
    """Return a `Classifier` on the encoder of a `MaskedLM` that was stored, or on a random one."""
    encoder = encoder_net(vocabulary, model, length)
    if models is not None:
        # The lab sets the seed before it asks for the model of a run. Without one it asks for the layers alone.
        stored = models.get(torch.initial_seed())
        if stored is not None:
            encoder.load_state_dict(_stored_encoder(*stored))
    return Classifier(encoder, classes, pad)


def _stored_encoder(path: Path, place: int) -> dict[str, Tensor]:
    models = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(models, list) or not 0 <= place < len(models) or models[place] is None:
        raise ValueError(
            f"{path} must hold a list of models, as Store(..., keep_models=True) writes it, with one at {place}"
        )
    parts = {name: value for name, value in models[place].items() if name.startswith("encoder.")}
    return {name.removeprefix("encoder."): value for name, value in parts.items()}


@lru_cache(maxsize=64)
def _digest(path: Path, place: int, changed: int) -> str:
    """Return a digest of an encoder's parameters; ``changed`` is when the file was."""
    digest = hashlib.sha256()
    for name, value in _stored_encoder(path, place).items():
        digest.update(name.encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:10]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample's only output."""
    return (outputs[..., 0] - targets).square()


def fine_tuning(
    name: str, folder: str | os.PathLike[str], vocabulary: Vocabulary, point: Point, *, model: str = "roberta-large",
    models: Models | None = None, positions: int = 128,
) -> Task:  # fmt: skip
    """Return a fine-tuning on a task of GLUE by the appendix's table: betas .9 and .98, eps 1e-6, weight decay .1.

    The learning rate rises linearly in the first 6 % of the steps and then falls linearly to 0. The task's function is
    the metric of GLUE on the dev data.

    Args:
        name: one of `GLUE`.
        folder: as for `read_glue`.
        vocabulary: of the pre-training.
        point: of the grid (`Glue.grid`).
        model: the encoder, as in pre-training.
        models: pre-trained ones by seed; None starts from a random encoder.
        positions: of the encoder, and most tokens of an input. Where the longest text of a task is shorter, inputs are.
    """
    if positions < 8:
        raise ValueError(f"positions must be at least 8, got {positions}")
    train, dev = _encoded(name, os.fspath(folder), vocabulary, positions)
    task = GLUE[name]
    steps = point.epochs * max(1, len(train) // point.batch_size)
    plan = Plan(
        AdamW(point.eta, 0.9, 0.98, 1e-6, weight_decay=0.1),
        BatchSize(point.batch_size),
        steps=steps,
        schedule=Schedule("linear", warmup=Fraction(6 * steps, 100)),
    )
    # The lab sees a model's shape but not its values: they are part of the name.
    values = [_digest(path, place, path.stat().st_mtime_ns) for path, place in (models or {}).values()]
    pad, classes = vocabulary.special("pad"), len(task.labels) or 1
    return Task(
        f"glue-{name}-{model}-{'-'.join(values) or 'random'}",
        plan,
        partial(_classifier, vocabulary.total, model, positions, classes, pad, models),
        cross_entropy if task.labels else squared_error,
        train,
        dev,
        {"accuracy": accuracy} if task.labels else {},
        {task.metric: Score(task.metric, dev)},
    )
