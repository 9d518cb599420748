"""Learning-rate schedulers in mid-run: the scheduler keeps the clock and the units of the run it was made for.

A scheduler counts the steps of its own run and knows that run's learning rates. After the batch size has been
multiplied by ``kappa`` one optimizer step covers ``kappa`` of those steps. So a converted scheduler, on each step,

1. turns the optimizer's hyperparameters back into its own units,
2. steps as often as its own clock ticks, ``kappa`` times on average, and
3. turns what it has set into the units of the run as it is now: learning rates, and a momentum or a weight decay.

At equal samples seen the learning rate is then exactly the rule's multiple of the original one. No scheduler's formula
is touched, so this holds for every subclass of `torch.optim.lr_scheduler.LRScheduler` that sets learning rates in
``step()``: those of torch, nested ones, and users' own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.format import show
from rootscale.rules import Rule, get_rule
from rootscale.training.markers import same
from rootscale.training.scheduler_state import (
    FRAMES,
    OWED,
    TICKS,
    Frame,
    frames_kappa,
    is_own,
    is_sealed,
    read_frame,
    seal,
    unseal,
)
from rootscale.training.scheduler_units import own_units, to_own


class RescaledScheduler(LRScheduler):
    """Step a scheduler in its own clock and units; `rescale` puts this before the scheduler's own class."""

    _rootscale_frames: list[Frame]  # the changes of units since the scheduler was made, first one first
    _rootscale_ticks: float  # steps of the scheduler's own clock in one call of step()
    _rootscale_owed: float  # the part of a tick that has passed, in [0, 1)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance by one optimizer step; an explicit epoch or metric is a time of its own and is passed on once."""
        explicit = any(value is not None for value in (*args, *kwargs.values()))
        ticks = 1 if explicit else self._rootscale_tick()
        frames = frames_of(self)
        try:
            with own_units(self.optimizer, frames) if frames and ticks else nullcontext():
                for _ in range(ticks):
                    super().step(*args, **kwargs)
        finally:
            self._last_lr = learning_rates(self)

    def _rootscale_tick(self) -> int:
        owed = self._rootscale_owed + self._rootscale_ticks
        ticks = math.floor(owed + 1e-9)  # kappa = 1/3, three times, is one tick
        self._rootscale_owed = max(0.0, owed - ticks)
        # The last step of a run may reach past its end by a part of a step; a schedule that ends there stays there.
        left = ticks_left(self)
        return int(left) if 0 < left < ticks else ticks

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, which an ordinary scheduler cannot take for its own; see `scheduler_state`."""
        return seal(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume a saved run of the same units, or any run with a scheduler that was not converted yet."""
        there, here = frames_kappa(state_dict.get(FRAMES, ())), frames_kappa(self._rootscale_frames)
        if not same(here, 1.0) and not same(here, there):
            raise ValueError(
                f"this {own_name(self)} was converted by kappa = {show(here)}, and the state was saved at kappa = "
                f"{show(there)}: {advice(here, there, 'scheduler')}"
            )
        super().load_state_dict(unseal(state_dict))
        vars(self).update({name: state_dict.get(name, fresh) for name, fresh in _FRESH.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self).__mro__[2], self.__dict__)


#: The schedulers that have been converted and are alive, to ask for those of an optimizer.
_CONVERTED: weakref.WeakSet[LRScheduler] = weakref.WeakSet()
#: What a scheduler in its own units has of `scheduler_state`.
_FRESH: dict[str, Any] = {FRAMES: (), TICKS: 1.0, OWED: 0.0}


def advice(here: float, there: float, name: str) -> str:
    """Return what to do where a state of other units is loaded into an object that was converted."""
    if same(there, 1.0):
        return (
            f"swap the two lines, first {name}.load_state_dict(...) and then rescale_(...); or, to go back to before "
            f"the switch, call rescale_(..., {show(1 / here)}) and then load"
        )
    return (
        f"leave rescale_ out: {name}.load_state_dict(...) into fresh objects, and then restore_(optimizer, ...), which "
        "brings all else to the same units"
    )


def _rebuild(cls: type[LRScheduler], attributes: dict[str, Any]) -> LRScheduler:
    scheduler: LRScheduler = object.__new__(rescaled_class(cls))  # type: ignore[arg-type]
    scheduler.__dict__.update(attributes)
    _CONVERTED.add(scheduler)
    return scheduler


@cache
def rescaled_class(cls: Any) -> type[LRScheduler]:
    """Return the class of converted schedulers of a class."""
    return type(f"Rescaled{cls.__name__}", (RescaledScheduler, cls), {"__module__": __name__, "__doc__": cls.__doc__})


def unwrap(scheduler: LRScheduler) -> None:
    """Make a converted scheduler that is in its own units an ordinary one again."""
    scheduler.__class__ = type(scheduler).__mro__[2]
    for name in _FRESH:
        scheduler.__dict__.pop(name, None)


def own_name(scheduler: LRScheduler) -> str:
    """Return the name of a scheduler's class, converted or not."""
    cls = type(scheduler)
    return cls.__mro__[2].__name__ if isinstance(scheduler, RescaledScheduler) else cls.__name__


def own_learning_rates(scheduler: LRScheduler) -> list[float]:
    """Return the learning rates in use, in the units that the scheduler was made with."""
    frames = frames_of(scheduler)
    return [to_own(frames, "eta", float(group["lr"])) for group in scheduler.optimizer.param_groups]


def frames_of(scheduler: LRScheduler) -> list[tuple[Rule, float]]:
    """Return the changes of units since a scheduler was made, first one first."""
    frames = map(read_frame, vars(scheduler).get(FRAMES, ()))
    return [(get_rule(rule, "adam"), kappa) for rule, kappa in frames]


def is_loaded(scheduler: LRScheduler) -> bool:
    """Return whether an ordinary scheduler has loaded the state of a converted one, and has not been restored."""
    unconverted = not isinstance(scheduler, RescaledScheduler) and not is_own(vars(scheduler))
    return unconverted or any(is_sealed(vars(one)) for one in nested(scheduler))


def wrap(scheduler: LRScheduler) -> None:
    """Make an ordinary scheduler one that steps in the clock and the units that its attributes say, its own if none."""
    for one in nested(scheduler):
        attributes = unseal(vars(one))
        vars(one).clear()
        vars(one).update(attributes)
    for name, fresh in _FRESH.items():
        vars(scheduler).setdefault(name, fresh)
    if not isinstance(scheduler, RescaledScheduler):
        scheduler.__class__ = rescaled_class(type(scheduler))  # type: ignore[arg-type]
    _CONVERTED.add(scheduler)


def converted(optimizer: torch.optim.Optimizer) -> list[RescaledScheduler]:
    """Return the converted schedulers that drive an optimizer, by itself or in a wrapper such as accelerate's."""
    found = [one for one in _CONVERTED if isinstance(one, RescaledScheduler)]
    owners = [(one, getattr(one, "optimizer", None)) for one in found]
    return [one for one, own in owners if own is optimizer or getattr(own, "optimizer", None) is optimizer]


def learning_rates(scheduler: LRScheduler) -> list[Any]:
    """Return copies of the learning rates in use."""
    rates = (group["lr"] for group in scheduler.optimizer.param_groups)
    return [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]


def ticks_left(scheduler: Any) -> float:
    """Return how far the scheduler can go before it refuses, as OneCycleLR does after its ``total_steps``."""
    children = getattr(scheduler, "_schedulers", None)
    if children is not None:
        starts = getattr(scheduler, "_milestones", None)
        if starts is None:  # chained: all of them run at once
            return min(ticks_left(child) for child in children)
        total = getattr(children[-1], "total_steps", math.inf)  # one after the other: the last one may have an end
        return float(total) + (starts[-1] if starts else 0) - float(scheduler.last_epoch)
    return float(getattr(scheduler, "total_steps", math.inf)) - float(scheduler.last_epoch)


def nested(scheduler: Any) -> Iterator[Any]:
    """Yield the scheduler and all that it holds."""
    yield scheduler
    for child in getattr(scheduler, "_schedulers", ()):
        yield from nested(child)
