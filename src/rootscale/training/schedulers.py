"""Learning-rate schedulers in mid-run: the scheduler keeps the clock and the units of the run it was made for.

A scheduler counts the steps of its own run and knows that run's learning rates. After the batch size has been
multiplied by ``kappa`` one optimizer step covers ``kappa`` of those steps. So a converted scheduler, on each step,

1. turns the optimizer's learning rate (and beta1, where the scheduler cycles it) back into its own units,
2. steps as often as its own clock ticks, ``kappa`` times on average, and
3. turns the result into the units of the run as it is now.

At equal samples seen the learning rate is then exactly the rule's multiple of the original one. No scheduler's formula
is touched, so this holds for every subclass of `torch.optim.lr_scheduler.LRScheduler` that sets learning rates in
``step()``: those of torch, nested ones, and users' own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
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
    is_sealed,
    read_frame,
    seal,
    unseal,
)
from rootscale.units import AVERAGE

#: What schedulers keep or change in an optimizer's groups, and its unit.
UNITS: dict[str, str | tuple[str, ...]] = {
    "lr": "eta",
    "initial_lr": "eta",
    "max_lr": "eta",
    "swa_lr": "eta",
    "min_lr": "min_eta",
    "betas": ("beta1", "beta2"),
    "base_momentum": "beta1",
    "max_momentum": "beta1",
}

Value = float | tuple[float, ...]


def read(value: Any) -> Value:
    """Return a group's value as plain numbers; tensors (``capturable``, compiled steps) are read."""
    return tuple(float(item) for item in value) if isinstance(value, tuple | list) else float(value)


def write(group: dict[str, Any], key: str, value: Value) -> None:
    """Put a value into a group; a tensor is filled, so that whoever holds it (a CUDA graph, say) sees the change."""
    old = group[key]
    if isinstance(old, torch.Tensor):
        old.fill_(value)  # type: ignore[arg-type]
    elif isinstance(old, tuple | list) and any(isinstance(item, torch.Tensor) for item in old):
        for item, number in zip(old, value, strict=True):  # type: ignore[arg-type]
            item.fill_(number)
    else:
        group[key] = value


def convert(rule: Rule, unit: str | tuple[str, ...], value: Value, kappa: float, name: str | None = None) -> Value:
    """Return a group's value at ``kappa``; a pair by a pair of units."""
    if isinstance(value, tuple):
        return tuple(float(rule.convert(u, v, kappa)) for u, v in zip(unit, value, strict=True))
    return float(rule.convert(str(unit), value, kappa, name))


def convert_kept(rule: Rule, key: str, value: Value, kappa: float) -> Value:
    """Return at ``kappa`` what a scheduler keeps in a group; the ends of a cycle of beta1 as they are without floors.

    The scheduler has to find them again in its own units, and a floor has no way back.
    """
    unit = UNITS[key]
    row = rule.units.get(unit) if isinstance(unit, str) else None
    if row is not None and row.form.floor is not None:
        return float(AVERAGE.apply(value, kappa))
    return convert(rule, unit, value, kappa, key)


def places(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the groups and keys of an optimizer where a scheduler's values are."""
    for group in optimizer.param_groups:
        for key, unit in UNITS.items():
            # A cycled momentum is beta1 where there is a beta1; SGD's is kept by every rule.
            if key in group and (unit != "beta1" or "betas" in group):
                yield group, key


class RescaledScheduler(LRScheduler):
    """Step a scheduler in its own clock and units; `rescale` puts this before the scheduler's own class."""

    _rootscale_frames: list[Frame]  # the changes of units since the scheduler was made, first one first
    _rootscale_ticks: float  # steps of the scheduler's own clock in one call of step()
    _rootscale_owed: float  # the part of a tick that has passed, in [0, 1)

    def _rootscale_convert(self, key: str, value: Value, back: bool) -> Value:
        frames = reversed(self._rootscale_frames) if back else self._rootscale_frames
        for rule, kappa in map(read_frame, frames):
            chosen = get_rule(rule, "adam")
            unit, by = UNITS[key], 1 / kappa if back else kappa
            if unit in ("eta", "min_eta"):  # a schedule may pass below zero, where it ends between two of our steps
                value = float(chosen.convert(str(unit), 1.0, by)) * value  # type: ignore[operator]
            else:
                value = convert_kept(chosen, key, value, by)
        return value

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance by one optimizer step; an explicit epoch or metric is a time of its own and is passed on once."""
        explicit = any(value is not None for value in (*args, *kwargs.values()))
        ticks = 1 if explicit else self._rootscale_tick()
        held = list(places(self.optimizer))
        # Each pass reads everything before it writes anything: groups may share one tensor as their learning rate.
        now = [read(group[key]) for group, key in held]
        for (group, key), value in zip(held, now, strict=True):
            write(group, key, self._rootscale_convert(key, value, back=True))
        own = [read(group[key]) for group, key in held]
        try:
            for _ in range(ticks):
                super().step(*args, **kwargs)
        finally:
            # What the scheduler left alone is put back as it was, so that no rounding accumulates.
            after = [
                before if (new := read(group[key])) == mine else self._rootscale_convert(key, new, back=False)
                for (group, key), before, mine in zip(held, now, own, strict=True)
            ]
            for (group, key), value in zip(held, after, strict=True):
                write(group, key, value)
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
    rates = [read(group["lr"]) for group in scheduler.optimizer.param_groups]
    if isinstance(scheduler, RescaledScheduler):
        rates = [scheduler._rootscale_convert("lr", rate, back=True) for rate in rates]
    return rates  # type: ignore[return-value]


def is_loaded(scheduler: LRScheduler) -> bool:
    """Return whether an ordinary scheduler has loaded the state of a converted one, and has not been restored."""
    attributes = vars(scheduler)
    unconverted = FRAMES in attributes and not isinstance(scheduler, RescaledScheduler)
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
