"""Fine-tuning on GLUE: a pre-trained encoder with a head, and the task."""

from __future__ import annotations

import hashlib
import os
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.lab.task import Task
from rootscale.paper.language.glue_data import GLUE, Point, encoded_glue
from rootscale.paper.language.glue_scores import Score
from rootscale.paper.language.roberta_task import Encoder, encoder_net
from rootscale.paper.tasks import accuracy, cross_entropy
from rootscale.paper.text.vocabularies import Vocabulary
from rootscale.plan import Plan
from rootscale.schedule import Schedule

__all__ = ["Classifier", "classifier_net", "glue", "squared_error"]


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


def classifier_net(
    vocabulary: int, model: str, length: int, classes: int, pad: int, pretrained: tuple[str, int] | None
) -> nn.Module:
    """Return a `Classifier`, with the encoder of a `MaskedLM` that a sweep has kept, or a random one."""
    encoder = encoder_net(vocabulary, model, length)
    if pretrained is not None:
        encoder.load_state_dict(pretrained_encoder(*pretrained))
    return Classifier(encoder, classes, pad)


def pretrained_encoder(path: str, replica: int) -> dict[str, Tensor]:
    """Return the parameters of the encoder, from a file that a `rootscale.lab.Store` with ``keep_models`` wrote."""
    models = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(models, list) or not 0 <= replica < len(models) or models[replica] is None:
        raise ValueError(
            f"{path} must hold a list of models, as Store(..., keep_models=True) writes it, with one at {replica}"
        )
    parts = {name: value for name, value in models[replica].items() if name.startswith("encoder.")}
    return {name.removeprefix("encoder."): value for name, value in parts.items()}


@lru_cache(maxsize=64)
def _values(path: str, replica: int, changed: int) -> str:
    """A digest of the encoder's parameters; ``changed`` is when the file was."""
    digest = hashlib.sha256()
    for name, value in pretrained_encoder(path, replica).items():
        digest.update(name.encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:10]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each sample's only output."""
    return (outputs[..., 0] - targets).square()


def glue(
    name: str,
    folder: str | os.PathLike[str],
    vocabulary: Vocabulary,
    *,
    point: Point,
    model: str = "roberta-large",
    pretrained: tuple[str | os.PathLike[str], int] | None = None,
    positions: int = 128,
) -> Task:
    """Return a fine-tuning on a task of GLUE by the appendix's table: betas .9 and .98, eps 1e-6, weight decay .1.

    The learning rate rises linearly in the first 6 % of the steps and then falls linearly to 0. The task's function is
    the metric of GLUE on the dev data.

    Args:
        name: one of `GLUE`.
        folder: as for `read_glue`.
        vocabulary: of the pre-training.
        point: of the grid (`Glue.grid`).
        model: the encoder, as in pre-training.
        pretrained: a file and a place in it, as in `rootscale.lab.Sweep.models`; None is a random encoder.
        positions: of the encoder, and most tokens of an input. Where the longest text of a task is shorter, inputs are.
    """
    if positions < 8:
        raise ValueError(f"positions must be at least 8, got {positions}")
    train, dev = encoded_glue(name, os.fspath(folder), vocabulary, positions)
    task = GLUE[name]
    steps = point.epochs * max(1, len(train) // point.batch_size)
    plan = Plan(
        hparams.AdamW(point.eta, 0.9, 0.98, 1e-6, weight_decay=0.1),
        BatchSize(point.batch_size),
        steps=steps,
        schedule=Schedule("linear", warmup=Fraction(6 * steps, 100)),
    )
    source = None if pretrained is None else (os.fspath(pretrained[0]), pretrained[1])
    # The sweep sees a model's shape but not its values: they are part of the name.
    values = "random" if source is None else _values(*source, Path(source[0]).stat().st_mtime_ns)
    classes, pad = len(task.labels) or 1, vocabulary.special("pad")
    return Task(
        f"glue-{name}-{model}-{values}",
        plan,
        partial(classifier_net, vocabulary.total, model, positions, classes, pad, source),
        cross_entropy if task.labels else squared_error,
        train,
        dev,
        {"accuracy": accuracy} if task.labels else {},
        {task.metric: Score(task.metric, dev)},
    )
