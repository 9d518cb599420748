"""The global batch size of a fit under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer

from rootscale.hparams import positive

__all__ = ["device_count", "global_batch_size"]


def device_count(trainer: Trainer) -> int:
    """Return how many devices take batches of their own."""
    sampler: Mapping[str, int] = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return int(sampler.get("num_replicas", 1))


def global_batch_size(trainer: Trainer, batch_size: int | Callable[[Trainer], int] | None = None) -> int:
    """Return the samples per optimizer step over all devices of a fit under way.

    Args:
        trainer: its Trainer.
        batch_size: that number, or a function that returns it, where it cannot be found.
    """
    if batch_size is not None:
        return int(positive("batch_size", batch_size(trainer) if callable(batch_size) else batch_size))
    loader: Any = trainer.train_dataloader
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"the batch size cannot be found in the train_dataloader, a {type(loader).__name__}; give "
            "RescaleCallback(batch_size=...), samples per optimizer step over all devices"
        )
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(
            "under manual optimization only the module knows how many batches make a step; give "
            "RescaleCallback(batch_size=...), samples per optimizer step over all devices"
        )
    return size * int(trainer.accumulate_grad_batches) * device_count(trainer)
