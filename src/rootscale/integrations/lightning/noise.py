"""The noise of the gradient, measured while the Trainer fits."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size

from rootscale.changes import ScalingWarning
from rootscale.integrations.lightning.batches import device_count
from rootscale.noise import Noise
from rootscale.tracking import above_noise, numbers
from rootscale.training import NoiseMeter

__all__ = ["NoiseLog"]


class NoiseLog:
    """A `NoiseMeter` fed by the Trainer's own backwards: each batch is a part of its step.

    Args:
        trainer: of the fit.
        module: that is trained.
        window: how many steps to measure over.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, window: int) -> None:
        devices = device_count(trainer)
        if not module.automatic_optimization:
            raise ValueError("noise=True needs automatic optimization: the parts of a step are its batches")
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise ValueError("noise=True does not work with a GradScaler (precision='16-mixed'); bf16-mixed does")
        if devices > 1 and not isinstance(trainer.strategy, DDPStrategy):
            raise ValueError(f"noise=True needs one device or DDP, got {type(trainer.strategy).__name__}")
        group = torch.distributed.group.WORLD if devices > 1 else None
        self._meter = NoiseMeter(trainer.optimizers[0], window, process_group=group)
        self._devices, self._parts, self._samples = devices, 0, 1
        self._part: AbstractContextManager[None] | None = None
        self._warned = False

    def start_batch(self, batch: Any) -> None:
        """Take the number of samples of the next batch."""
        self._samples = extract_batch_size(batch)

    def start_backward(self, trainer: Trainer) -> None:
        """Start a part of the step, with the weight that Lightning gives it."""
        self._part = self._meter.part(self._samples, 1 / trainer.accumulate_grad_batches)
        self._part.__enter__()

    def end_backward(self) -> None:
        """End the part."""
        if self._part is not None:
            self._part.__exit__(None, None, None)
            self._part, self._parts = None, self._parts + 1

    def end_step(self, trainer: Trainer, module: LightningModule, size: float) -> None:
        """Take in a complete gradient, not yet clipped, and log the noise scale where it is time to log.

        Args:
            trainer, module: of the fit.
            size: the global batch size.
        """
        parts, self._parts = self._parts, 0
        if parts * self._devices < 2:  # no accumulation, or the last batch of an epoch by itself
            self._meter.discard()
            return
        self._meter.update()
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            with suppress(ValueError):  # too few steps yet
                noise = self.estimate()
                module.log_dict(numbers(noise), batch_size=1)
                self._warn(noise, size)

    def _warn(self, noise: Noise, size: float) -> None:
        """Say once in a fit that the batch exceeds the noise scale."""
        message = "" if self._warned else above_noise(noise, size)
        if message:
            self._warned = True
            rank_zero_warn(message, category=ScalingWarning)

    def estimate(self) -> Noise:
        """Return the noise over the latest steps."""
        return self._meter.estimate()

    def remove(self) -> None:
        """Take the hooks off."""
        self._meter.remove()
