"""The noise of the gradient, measured while the `Trainer` trains."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

from rootscale.integrations.transformers.arguments import global_batch_size
from rootscale.noise import Noise
from rootscale.training import NoiseMeter

__all__ = ["NoiseLog"]


class NoiseLog:
    """A `NoiseMeter` fed by the Trainer's own backwards: each micro-batch is a part of its step.

    The Trainer clips the gradient before it calls a callback at the end of a step. So the parts are taken where
    autograd ends each backward, not at the Trainer's events.

    Args:
        args: the `TrainingArguments`.
        model: that is trained.
        optimizer: that trains it.
        window: how many of the latest measurements to average over.
    """

    def __init__(self, args: Any, model: torch.nn.Module, optimizer: Any, window: int) -> None:
        size = global_batch_size(args)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized() and args.world_size > 1
        if args.fsdp or args.deepspeed:
            raise ValueError("noise_every needs whole gradients on every device: not with fsdp or deepspeed")
        if size.accumulation < 2 and not distributed:
            raise ValueError(
                "noise_every needs gradient_accumulation_steps >= 2 or several processes to tell noise from gradient"
            )
        group = torch.distributed.group.WORLD if distributed else None
        self._meter = NoiseMeter(optimizer, window, process_group=group)
        self._samples, self._parts = int(args.train_batch_size), size.accumulation
        self._seen, self.steps = 0, 0
        self._part: AbstractContextManager[None] | None = None
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._hook = register_multi_grad_hook(parameters, self._backward, mode="any")

    def begin(self) -> None:
        """Start the measurement of a step."""
        self._seen = 0
        self._open()

    def _open(self) -> None:
        self._part = self._meter.part(self._samples, 1 / self._parts)
        self._part.__enter__()

    def _backward(self, gradient: torch.Tensor) -> None:
        """Wait, at the first gradient of a backward, until all are there and DistributedDataParallel is done too."""
        if self._part is not None:
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._over))

    def _over(self) -> None:
        if self._part is not None:
            part, self._part = self._part, None
            part.__exit__(None, None, None)
            self._seen += 1
            if self._seen < self._parts:
                self._open()
            else:
                self._meter.update()
                self.steps += 1

    def end(self) -> None:
        """End the measurement; a last step of an epoch that had fewer parts, with other weights, is left out."""
        if self._part is not None:
            stop = RuntimeError("left out")
            self._part.__exit__(RuntimeError, stop, None)
            self._part = None
            self._meter.discard()

    def estimate(self) -> Noise | None:
        """Return the noise over the latest measurements; None while they are too few."""
        return self._meter.estimate() if self.steps >= 8 else None

    def remove(self) -> None:
        """Take the hooks off."""
        self._hook.remove()
        self._meter.remove()
