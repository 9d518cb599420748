"""The steps of a Hugging Face `Trainer` in another batch size: what a resumed run and a converted folder share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.format import show

__all__ = ["INTERVALS", "Epochs", "counted", "interval_at", "layout_at", "seen_again", "updates"]

#: Entries of ``trainer_state.json`` that are intervals in steps.
INTERVALS = ("logging_steps", "eval_steps", "save_steps")


@dataclass(frozen=True)
class Epochs:
    """The optimizer steps of one epoch, at the old and at the new batch size."""

    old: int
    new: int


def updates(number: int, size: BatchSize, drop_last: bool) -> int:
    """Return the optimizer steps in an epoch, as the Trainer counts them.

    Args:
        number: of samples in the data.
        size: the batch size.
        drop_last: whether a last batch that is not full is left out.
    """
    batch = int(size.forward)
    batches = number // batch if drop_last else math.ceil(number / batch)
    return max(1, math.ceil(batches / size.accumulation))


def counted(step: int, old: BatchSize, new: BatchSize, epochs: Epochs | None) -> tuple[int, int]:
    """Return a number of steps in steps of the new batch size, and how many samples are seen again.

    Args:
        step: steps of the old batch size.
        old: that batch size.
        new: the new one.
        epochs: the steps in an epoch; None is one long epoch, as of a stream.
    """
    if epochs is None:
        return divmod(step * int(old.total), int(new.total))
    epoch, within = divmod(step, epochs.old)
    steps, again = divmod(within * int(old.total), int(new.total))
    return steps + epoch * epochs.new, again


def seen_again(step: int, again: int, old: BatchSize, new: BatchSize) -> str:
    """Return the warning that a new run starts in the middle of one of its steps."""
    return (
        f"{again} samples are seen again: after {step} steps of batch size {show(old.total)} the new run would be in "
        f"the middle of a step of {show(new.total)}"
    )


def layout_at(old: BatchSize, new: BatchSize) -> BatchSize:
    """Return a layout of another total: the workers stay, and the micro-batch too, or the largest below that divides.

    Raises:
        ValueError: the total does not divide among the workers.
    """
    if new.laid_out:
        return new
    each = Fraction(new.total) / old.workers
    if each.denominator != 1:
        below = int(each) * old.workers
        near = f"{below} or {below + old.workers}" if below else f"{old.workers}"
        raise ValueError(f"to={show(new.total)} does not divide among {old.workers} workers; {near} would")
    micro = next(size for size in range(int(old.micro), 0, -1) if each % size == 0)
    return BatchSize(micro, int(each) // micro, old.workers)


def interval_at(value: Any, kappa: Fraction) -> Any:
    """Return an interval in steps at the new batch size; a share of the run stays what it is."""
    return value if not value or value < 1 else max(1, round(value / kappa))
