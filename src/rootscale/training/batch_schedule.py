"""Batch-size schedules: the batch size as a function of the samples seen.

Everything is a function of a single number, the **position**: how many samples the run has taken, over all ranks. The
batch that begins at position ``p`` has the size ``B(p)`` of the stage that ``p`` lies in, and takes the positions from
``p`` to ``p + B(p)`` of an order of samples that knows nothing of batches. So a change of batch size in the middle of
an epoch neither repeats nor skips a sample, a checkpoint is one number, and ``W`` ranks that take a slice each see what
one process would.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from rootscale.format import show
from rootscale.hparams import number
from rootscale.plan import Plan
from rootscale.rules import Rule, get_rule

Stages = tuple[tuple[int, int], ...]


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number that is at least ``least``, or raise a `ValueError` with the name of the value."""
    return int(number(name, value, f"a whole number >= {least}", lambda x: x >= least and x == int(x)))


class BatchSchedule:
    """Hold the batch size as a function of the samples seen.

    A batch has the size of the stage in which it **begins**: no batch is cut, so a change comes with the first batch
    that begins at or after the stage's sample.

    >>> schedule = BatchSchedule([(0, 256), (1_000_000, 1024)])
    >>> schedule.size(999_999), schedule.size(1_000_000)
    (256, 1024)
    >>> print(schedule)
    256 from the start, 1,024 from sample 1,000,000

    Args:
        stages: pairs of the sample from which a size holds, the first of them 0, and the size: samples per optimizer
            step, over all ranks and micro-batches.

    Attributes:
        grown: whether stages were added to those given, as `Grow` does.
    """

    def __init__(self, stages: Iterable[tuple[int, int]]) -> None:
        self.grown = False
        self.stages: Stages = tuple((whole("a stage's start", a, 0), whole("batch size", b)) for a, b in _pairs(stages))
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(
                "stages must be pairs (sample, batch size) that begin with sample 0 and increase, such as "
                f"[(0, 256), (1_000_000, 1024)]; got samples {', '.join(map(str, starts)) or 'none'}"
            )

    @classmethod
    def instead_of_decay(
        cls, plan: Plan, *, most: int, factor: int = 2, by_batch: float = 1.0, rule: str | Rule | None = None
    ) -> BatchSchedule:
        """Return a schedule that raises the batch size where the plan lowers its learning rate; the trajectory stays.

        The run with its decaying learning rate, converted by the rule to ``kappa`` times its batch size, has the same
        SDE, whatever ``kappa`` is; its learning rate is ``sqrt(kappa)`` times the decayed one. This schedule chooses,
        where the learning rate has fallen to ``1/q`` of its peak, the largest ``kappa = factor^i`` with

            sqrt(kappa) <= q^by_batch      (``kappa <= q^by_batch`` by SGD's linear rule).

        So with ``by_batch=1`` the batch takes all of the decay: where the plan halves its learning rate, Adam's batch
        becomes four times as large and its learning rate stays. With ``by_batch=1/2`` both share it: the batch is
        doubled and the learning rate divided by ``sqrt(2)``. **Keep the scheduler that decays**: `ScheduledRun`
        converts it, with everything else (``docs/batch-schedules.md`` has the derivation).

        Args:
            plan: its batch size, schedule and length; the batch grows from the end of the warm-up on.
            most: the largest batch size; learning rates that fall to 0 would raise it without end.
            factor: by which the batch size grows, 2 or more, a whole number.
            by_batch: the share of the decay (of its logarithm) that the batch size takes, in (0, 1].
            rule: None is that of the plan's optimizer.

        >>> from rootscale import Adam, Plan, Schedule
        >>> plan = Plan(Adam(1e-3), 64, steps=300, schedule=Schedule("multistep", milestones=[100, 200], gamma=0.5))
        >>> print(BatchSchedule.instead_of_decay(plan, most=1024))
        64 from the start, 256 from sample 6,400, 1,024 from sample 12,800
        >>> print(BatchSchedule.instead_of_decay(plan, most=1024, by_batch=1 / 2))
        64 from the start, 128 from sample 6,400, 256 from sample 12,800
        """
        base = whole("the plan's batch size", plan.batch_size.total)
        chosen = get_rule(rule, plan.optimizer.name)
        factor, most = whole("factor", factor, 2), whole("most", most, base)
        by_batch = number("by_batch", by_batch, "in (0, 1]", lambda x: 0 < x <= 1)
        peak, stages = plan.optimizer.eta, {0: base}
        for i in range(1, math.floor(math.log(most / base, factor) + 1e-9) + 1):
            raised = float(chosen.convert("eta", 1.0, float(factor) ** i))
            step = _first_step_below(plan, peak * raised ** (-1 / by_batch) * (1 + 1e-9))
            if step is not None:
                stages[step * base] = base * factor**i
        return cls(stages.items())

    def __str__(self) -> str:
        words = [
            f"{show(size)} from {f'sample {show(start)}' if start else 'the start'}" for start, size in self.stages
        ]
        return ", ".join(words)

    def size(self, position: int) -> int:
        """Return the size of the batch that begins at this position."""
        return self.stages[bisect_right(self.stages, position, key=lambda stage: stage[0]) - 1][1]

    def walk(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the batches that begin in ``[position, end)``, as ``(position, size, number of batches)``."""
        while position < end:
            size = self.size(position)
            limit = min([end, *(start for start, _ in self.stages if start > position)])
            batches = -(-(limit - position) // size)
            yield position, size, batches
            position += batches * size

    def extend(self, start: int, size: int) -> None:
        """Add a stage after the others."""
        self.stages = BatchSchedule([*self.stages, (start, size)]).stages
        self.grown = True


def _pairs(stages: Any) -> list[tuple[Any, Any]]:
    try:
        return [(start, size) for start, size in stages]
    except (TypeError, ValueError):
        raise ValueError(
            f"stages must be pairs (sample, batch size), such as [(0, 256), (1_000_000, 1024)]; got {stages!r}"
        ) from None


def _first_step_below(plan: Plan, eta: float) -> int | None:
    """Return the first step after the warm-up with a learning rate of at most ``eta``; None if the plan has none."""
    low = math.ceil(plan.schedule.warmup)
    high = math.ceil(plan.total_steps) if plan.total_steps is not None else max(low, 1)
    if plan.total_steps is None:  # no end: look ahead until it is low enough, or for longer than any run
        while plan.learning_rate(high) > eta and high < 2**40:
            high *= 2
        high += 1
    if high <= low or plan.learning_rate(high - 1) > eta:
        return None
    return low + bisect_left(range(low, high), -eta, key=lambda step: -plan.learning_rate(step))
