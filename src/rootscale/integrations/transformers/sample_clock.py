"""The Trainer with an optimizer on the sample clock: every step is told how many tokens its loss is the mean of."""

from __future__ import annotations

from typing import Any

from accelerate.optimizer import AcceleratedOptimizer

from rootscale.training.sample_clock import SampleClock

__all__ = ["SampleClockMixin"]


class SampleClockMixin:
    """Tell the optimizer the Trainer's ``num_items_in_batch``; put it before the Trainer's own class.

        class MyTrainer(SampleClockMixin, Trainer): ...

    These are the labels that count (not -100) of all micro-batches of a step, on all processes: what the Trainer
    divides the loss by. So ``reference_batch`` is a number of tokens. The optimizer is given by
    ``Trainer(optimizers=...)``.
    """

    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the items of a step, before its first micro-batch."""
        batches, items = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        optimizer = self.optimizer
        while isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        if not isinstance(optimizer, SampleClock):
            raise TypeError(
                f"SampleClockMixin needs an optimizer on the sample clock, got {type(optimizer).__name__}: give "
                "Trainer(optimizers=(rootscale.training.optim.AdamW(..., reference_batch=...), None))"
            )
        if self.args.n_gpu > 1 or (self.args.world_size > 1 and not self.args.average_tokens_across_devices):
            raise ValueError(
                "the Trainer counts the items of all processes only with average_tokens_across_devices=True and one "
                "process for each GPU"
            )
        if items is None and batches:
            raise ValueError(
                "the Trainer did not count num_items_in_batch: it does so for batches with labels, if the model takes "
                "loss arguments or compute_loss_func is given"
            )
        optimizer.next_samples(items)
        return batches, items
