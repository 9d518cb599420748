"""What a training step computes from sample numbers: the batch, and the loss of each of its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rootscale.lab.replicas import Replicas
from rootscale.lab.task import Task

#: For each pass of a step: sample numbers ``[R, B]``, and uniforms ``[R, B, draws]`` where there is augmentation.
Batches = Sequence[tuple[Tensor, Tensor | None]]
#: A value for each sample from a model's outputs and the targets: a loss or a metric.
PerSample = Callable[[Any, Tensor], Tensor]


def as_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is."""
    return function


class Objective:
    """The losses of replicas on samples of a task.

    Args:
        task: whose data, augmentation and loss are used.
        replicas: the models.
        device: to which the training data are moved.
        amp: whether the models run in bfloat16 (autocast).
        wrap: is applied to ``batch`` and ``losses``, such as ``torch.compile``.

    Attributes:
        batch: ``batch(index, uniforms)`` returns inputs and targets of the samples ``index`` ``[R, B]``, prepared and
            augmented.
        losses: ``losses(x, y)`` returns the loss of each sample, ``[R, B]``.
    """

    def __init__(
        self,
        task: Task,
        replicas: Replicas,
        device: torch.device,
        amp: bool = False,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = as_is,
    ) -> None:
        self.task, self.replicas, self.device, self.amp = task, replicas, device, amp
        self.data = task.train.to(device)
        self.batch: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]] = wrap(self._batch)
        self.losses: Callable[[Tensor, Tensor], Tensor] = wrap(self._losses)

    def precision(self) -> AbstractContextManager[object]:
        """Return the context in which models and losses are called."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.amp else nullcontext()

    def per_sample(self, function: PerSample, outputs: Any, y: Tensor) -> Tensor:
        """Return a function of each sample's output and target, for all replicas at once: ``[R, B]``."""
        size = y.shape[:2]
        values = function(outputs.flatten(0, 1), y.flatten(0, 1))
        if values.shape[:1] != (size[0] * size[1],):
            raise ValueError(
                f"loss and metrics must give one value for each of {size[0] * size[1]} samples, "
                f"got the shape {list(values.shape)}; use reduction='none'"
            )
        return values.reshape(*size, -1).mean(-1)

    def _batch(self, index: Tensor, uniforms: Tensor | None) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        if self.task.prepare is not None:
            x = _each(self.task.prepare, x)
        if self.task.augment is not None and uniforms is not None:
            x = _each(self.task.augment, x, uniforms)
        return x, y

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        with self.precision():
            outputs = self.replicas.forward(self.replicas.params, self.replicas.buffers, x)
            return self.per_sample(self.task.loss, outputs, y)


def _each(function: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """Apply a function of a batch to ``[R, B, ...]``."""
    flat = function(x.flatten(0, 1), *(other.flatten(0, 1) for other in others))
    return flat.view(*x.shape[:2], *flat.shape[1:]) if x.shape[0] > 1 else flat[None]
