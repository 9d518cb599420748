"""Learning-rate schedulers in a `Run`: they keep their numbers, and count steps of the script's batch size.

A scheduler counts the calls of its ``step()``. Where it is stepped with the optimizer, one call covers ``kappa`` of the
steps it was made for, so it advances that often: ``kappa`` times on average, where ``kappa`` is not whole. Where it is
stepped once an epoch, or with a metric, its clock is that of the data and nothing changes. No formula is touched, so
this holds for every subclass of `torch.optim.lr_scheduler.LRScheduler`, nested ones too; its ``state_dict`` is that of
an ordinary scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from torch.optim.lr_scheduler import LRScheduler

from rootscale.training.attachment import Attachment
from rootscale.training.projected import ProjectedOptimizer

Interval = Literal["step", "epoch"]
#: The part of a tick that float32 step counters may be off by.
_SLACK = 1e-3


def check_interval(interval: Any) -> Interval | None:
    """Return an interval, or refuse what is none."""
    if interval not in (None, "step", "epoch"):
        raise ValueError(f"interval must be 'step', 'epoch' or None (found from the calls), got {interval!r}")
    return interval  # type: ignore[no-any-return]


def is_driven(optimizer: Any) -> bool:
    """Return whether a scheduler of torch was made for an optimizer."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def nested(scheduler: Any) -> Iterator[Any]:
    """Yield the scheduler and all that it holds: in torch's way, or in attributes of its own, as many warm-ups do."""
    seen: set[int] = set()
    waiting = [scheduler]
    while waiting:
        held = waiting.pop(0)
        if id(held) in seen:
            continue
        seen.add(id(held))
        yield held
        for value in getattr(held, "__dict__", {}).values():
            items = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            )
            waiting += [item for item in items if isinstance(item, LRScheduler)]


def ticks_left(scheduler: Any) -> float:
    """Return how far a scheduler can go before it refuses, as OneCycleLR does after its ``total_steps``."""
    children = getattr(scheduler, "_schedulers", None)
    if children is not None:
        starts = getattr(scheduler, "_milestones", None)
        if starts is None:  # chained: all of them run at once
            return min(ticks_left(child) for child in children)
        total = getattr(children[-1], "total_steps", math.inf)  # one after the other: the last one may have an end
        return float(total) + (starts[-1] if starts else 0) - float(scheduler.last_epoch)
    return float(getattr(scheduler, "total_steps", math.inf)) - float(getattr(scheduler, "last_epoch", 0))


class SteppedScheduler:
    """Step a scheduler as often as its own clock ticks.

    Args:
        scheduler: the outermost one.
        optimizer: that it drives.
        interval: whether it is stepped with every optimizer step or once an epoch; None is found from its calls: one
            that comes after a single step of the optimizer is a step, and one after several is an epoch. Where the
            first comes after none, a `GradScaler` has skipped a step, or a loop that accumulates calls it for every
            micro-batch; the second never has two calls in a row with a step before each.

    Attributes:
        per_step: ticks of an optimizer step of the script, whose batch size is that of the script.
        per_call: ticks of a call at that batch size; a framework may call it several times a step.
    """

    def __init__(self, scheduler: Any, optimizer: ProjectedOptimizer, interval: Interval | None = None) -> None:
        self.scheduler, self.interval = scheduler, interval
        self.per_step = self.per_call = 1.0
        self._optimizer = optimizer
        self._since = optimizer.steps
        self._unsure, self._previous = 0, 0  # calls that may have been of micro-batches; steps before the last call
        self._seen_step = False
        self._owed: float | None = None
        self._attachment: Attachment | None = None

    def attach(self) -> None:
        """Answer its ``step``."""
        methods: dict[str, Callable[..., Any]] = {
            "step": self._step,
            "state_dict": self._state_dict,
            "load_state_dict": self._load_state_dict,
        }
        self._attachment = Attachment(self.scheduler, methods)

    def detach(self) -> None:
        """Leave the scheduler as it was made."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if any(value is not None for value in (*args, *kwargs.values())):  # an explicit time, or a metric
            original(*args, **kwargs)
            return
        if self._owed is None:
            self._owed = self._part_passed()
        rate = self._ticks_of_call()
        if rate == 1 and not self._owed:
            original()
            return
        owed = self._owed + rate
        ticks = max(0, math.floor(owed + _SLACK))
        self._owed = 0.0 if abs(owed - ticks) <= _SLACK else owed - ticks
        # The last step of a run may reach past its end by a part of a step; a schedule that ends there stays there.
        left = ticks_left(self.scheduler)
        for _ in range(int(left) if 0 < left < ticks else ticks):
            original()

    def _ticks_of_call(self) -> float:
        """Return how many of the scheduler's own steps this call covers."""
        steps = min(self._optimizer.steps - self._since, self._optimizer.steps_since_load)
        before, self._since, self._previous = self._previous, self._optimizer.steps, steps
        if self.interval is not None:
            return self.per_call * self._optimizer.kappa if self.interval == "step" else 1.0
        if self._seen_step:
            return 1.0 if steps > 1 else self._optimizer.kappa  # one step, or one that GradScaler skipped
        if steps > 1 or self._looks_like_epochs():
            self._unsure = 0
            return 1.0
        if steps == 1 and (before == 1 or not self._unsure):
            self._seen_step = True
            missed, self._unsure = self._unsure, 0
            return self._optimizer.kappa + missed * (self._optimizer.kappa - 1)
        self._unsure += 1
        return 1.0

    def _looks_like_epochs(self) -> bool:
        """Return whether the scheduler has made far fewer steps than its optimizer, as one of epochs has."""
        made = max(float(getattr(one, "last_epoch", 0)) for one in nested(self.scheduler))
        return self._optimizer.clock > 20 and 0 < made < 0.1 * self._optimizer.clock

    def _part_passed(self) -> float:
        """Return the part of a tick that has passed: that of the optimizer's clock, which checkpoints have."""
        made = self._optimizer.kappa if self._optimizer.steps_since_load else 0.0  # by the step that this call follows
        before_call = (self._optimizer.clock - made) * self.per_step
        part = before_call - math.floor(before_call + _SLACK)
        return part if part > _SLACK else 0.0

    def _state_dict(self, original: Callable[..., Any]) -> dict[str, Any]:
        hidden = ("step", "state_dict", "load_state_dict", "__getstate__")
        return {key: value for key, value in original().items() if key not in hidden}

    def _load_state_dict(self, original: Callable[..., Any], state_dict: dict[str, Any]) -> None:
        marked = state_dict.get("_rootscale_frames")
        if marked or isinstance(state_dict.get("last_epoch"), str):
            raise ValueError(
                f"this state of {type(self.scheduler).__name__} was converted in place by rootscale 0.1: load it with "
                "that version, go back to the script's batch size there, and save it again"
            )
        original(state_dict)
        self._owed, self._since = None, self._optimizer.steps
