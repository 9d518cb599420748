"""Lightning with an optimizer on the sample clock: every step is told how many samples its gradient is the mean of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size

from rootscale.training.sample_clock import SampleClock

__all__ = ["SampleClockCallback"]


class SampleClockCallback(Callback):
    """Count the samples of each step, over micro-batches and devices, for optimizers on the sample clock.

    Lightning averages the gradients of devices with equal weights. So devices whose batches differ are refused, unless
    the module weighs its loss (`rootscale.training.samples.count_ranks`) and says so with ``weighted``.

    Args:
        samples: a function of a batch that returns its samples, such as the tokens that count; None is the batch size
            that Lightning finds.
        weighted: the module's loss has the weights of unequal devices.
    """

    def __init__(self, samples: Callable[[Any], float] | None = None, *, weighted: bool = False) -> None:
        self.samples, self.weighted = samples or extract_batch_size, weighted
        self._batch = self._step = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Count the batch on every device."""
        own = torch.tensor(float(self.samples(batch)), dtype=torch.float64, device=pl_module.device)
        counts = torch.as_tensor(pl_module.all_gather(own))
        if not self.weighted and not bool(counts.eq(own).all()):
            raise ValueError(
                f"the devices have unequal samples ({', '.join(f'{n:g}' for n in counts.flatten().tolist())}), but "
                "their gradients are averaged with equal weights: multiply the loss by the weight of "
                "rootscale.training.samples.count_ranks and give SampleClockCallback(weighted=True)"
            )
        self._batch = float(counts.sum())

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count a micro-batch once its gradient is there."""
        self._step += self._batch

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Tell the optimizer."""
        if isinstance(optimizer, SampleClock):
            optimizer.next_samples(self._step)
        self._step = 0.0
