"""What goes around an optimizer on the sample clock: schedules that count samples, and the weights of ranks."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rootscale.hparams import nonnegative
from rootscale.training.schedulers import RescaledScheduler, nested, ticks_left

__all__ = ["RankShare", "SampleScheduler", "count_ranks", "follow_samples"]


class SampleScheduler(LRScheduler):
    """Step a scheduler as often as reference batches have passed; `follow_samples` puts this before its own class."""

    _rootscale_since: float  # the optimizer's clock when the scheduler's was 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Catch up with the optimizer; an explicit epoch is a time of its own and is passed on."""
        if any(value is not None for value in (*args, *kwargs.values())):
            super().step(*args, **kwargs)
            return
        due = math.floor(_clock(self.optimizer) - self._rootscale_since - _position(self) + 1e-6)  # 3 * (1/3) is 1
        left = ticks_left(self)  # the last step may reach past the end of a schedule
        for _ in range(int(min(due, left)) if left > 0 else due):
            super().step()

    def __reduce__(self) -> Any:
        return _rebuild, (type(self).__mro__[2], self.__dict__)


def _rebuild(cls: type[LRScheduler], attributes: dict[str, Any]) -> LRScheduler:
    scheduler = object.__new__(_following(cls))  # type: ignore[arg-type]
    scheduler.__dict__.update(attributes)
    return scheduler


@cache
def _following(cls: Any) -> type[LRScheduler]:
    return type(f"Sample{cls.__name__}", (SampleScheduler, cls), {"__module__": __name__, "__doc__": cls.__doc__})


def _clock(optimizer: Any) -> float:
    """Return the reference batches that an optimizer, or the one inside a wrapper, has seen."""
    inner: Any = optimizer if hasattr(optimizer, "reference_steps") else getattr(optimizer, "optimizer", None)
    if not hasattr(inner, "reference_steps"):
        raise TypeError(f"the scheduler's optimizer must be on the sample clock, got {type(optimizer).__name__}")
    return float(inner.reference_steps)


def _position(scheduler: LRScheduler) -> float:
    """Return the scheduler's own clock; a chain has that of its members."""
    return float(next(one.last_epoch for one in nested(scheduler) if hasattr(one, "last_epoch")))


def follow_samples(scheduler: Any) -> LRScheduler:
    """Let a scheduler count samples: one tick for each reference batch that its optimizer has seen, whole ones.

    Make the scheduler for the steps of the reference batch, call this, and go on calling ``scheduler.step()`` after
    each optimizer step. Checkpoints of both resume as usual.

    Args:
        scheduler: of an optimizer on the sample clock; one that is stepped with the optimizer. It is changed in place.

    Returns:
        The same scheduler.
    """
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau | RescaledScheduler):
        raise TypeError(f"scheduler must be one that counts optimizer steps, got {type(scheduler).__name__}")
    if not isinstance(scheduler, SampleScheduler):
        since = _clock(scheduler.optimizer) - _position(scheduler)
        scheduler.__class__ = _following(type(scheduler))  # type: ignore[arg-type]
        vars(scheduler)["_rootscale_since"] = since
    return scheduler


class RankShare(NamedTuple):
    """The samples of a step over all ranks, and what this rank multiplies its mean loss by."""

    samples: float
    weight: float


def count_ranks(
    samples: float, process_group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> RankShare:
    """Return the samples of a step over all data-parallel ranks, and the weight of this rank's mean loss.

    DDP and FSDP average gradients over ranks with equal weights. Where ranks have unequal samples the mean over all
    samples needs ``loss * samples * ranks / total``. Call this before the backward, on every rank, also on one without
    samples.

    >>> count_ranks(48)  # in a single process
    RankShare(samples=48.0, weight=1.0)

    Args:
        samples: of this rank, in the step; with accumulation, of all its micro-batches.
        process_group: the data-parallel ranks; None is all of them.
        device: where the backend needs its tensors, ``"cuda"`` for NCCL.
    """
    own = nonnegative("samples", samples)
    if not (dist.is_available() and dist.is_initialized()):
        return RankShare(own, 1.0)
    total = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(total, group=process_group)
    if not total:
        raise ValueError("samples must be above 0 on one rank at least, got 0 on all of them")
    return RankShare(float(total), own * dist.get_world_size(process_group) / float(total))
