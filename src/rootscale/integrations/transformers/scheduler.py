"""A loaded scheduler of the Trainer at a step of the run with the new batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from rootscale.format import show
from rootscale.rules import Rule
from rootscale.training.scheduler_units import write

__all__ = ["scheduler_at"]


def scheduler_at(given: Any, step: int, rule: Rule, kappa: float) -> Callable[[], None]:
    """Check a loaded scheduler, whose formula is the new run's, and return what takes it to that step of the new run.

    Raises:
        TypeError: it is not one that the Trainer makes.
        ValueError: its learning rate does not fit the checkpoint's.
    """
    scheduler, groups = given, given.optimizer.param_groups

    def convert(value: float) -> float:
        return float(rule.convert("eta", value, kappa))

    if isinstance(given, ReduceLROnPlateau):  # counts evaluations

        def move_plateau() -> None:
            scheduler.min_lrs = [convert(value) for value in scheduler.min_lrs]
            scheduler.eps = convert(scheduler.eps)
            scheduler._last_lr = [group["lr"] for group in groups]

        return move_plateau
    if type(given) is not LambdaLR:
        raise TypeError(
            f"the scheduler must be one that the Trainer makes (lr_scheduler_type), got {type(scheduler).__name__}, "
            "whose clock is not known"
        )
    bases = [convert(base) for base in scheduler.base_lrs]
    # Numbers of steps are rounded, and the last step of an epoch is a smaller one: by more, and it is another schedule.
    off = 1 + math.ceil(abs(step - scheduler.last_epoch / kappa))
    for base, factor, group in zip(bases, scheduler.lr_lambdas, groups, strict=True):
        around = [base * factor(max(0, k)) for k in range(step - off, step + off + 1)]
        now, slack = convert(float(group["lr"])), 1e-6 * base
        if not min(around) - slack <= now <= max(around) + slack:
            raise ValueError(
                f"the checkpoint's learning rate becomes {show(now)}, but the schedule of the arguments has "
                f"{show(around[off])} at step {show(step)}: take them from scale_training_arguments(the old ones, "
                "to=...)"
            )

    def move() -> None:
        scheduler.base_lrs, scheduler.last_epoch, scheduler._step_count = bases, step, step + 1
        for base, factor, group in zip(bases, scheduler.lr_lambdas, groups, strict=True):
            write(group, "lr", base * factor(step))
        scheduler._last_lr = [group["lr"] for group in groups]

    return move
