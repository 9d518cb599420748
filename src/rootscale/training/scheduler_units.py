"""What schedulers set and keep in an optimizer's groups: which units it has, and the way from units to units and back.

A scheduler sets learning rates, and some set a momentum, a weight decay or another hyperparameter beside them. All of
these have the units of the group's family. What torch's schedulers keep in a group for themselves, such as the ends of
a cycle, has the units of what it is an end of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rootscale.optimizers import Family
from rootscale.rules import Rule
from rootscale.training.adapters import families_of
from rootscale.training.markers import first_weight, past_weights, remember
from rootscale.units import AVERAGE

__all__ = [
    "KEPT_KEYS",
    "Frames",
    "Value",
    "as_tuple",
    "convert_kept",
    "cycled_unit",
    "families_by_group",
    "from_own",
    "kept_units",
    "own_units",
    "read",
    "to_own",
    "write",
]

Value = float | tuple[float, ...]
#: The changes of units since a scheduler was made, first one first.
Frames = Sequence[tuple[Rule, float]]

#: What each of torch's schedulers keeps in groups, all of it at once: a user's own ``min_lr`` alone is not theirs.
_KEPT_TOGETHER = (
    ("initial_lr",),
    ("initial_lr", "swa_lr"),
    ("initial_lr", "max_lr", "min_lr"),
    ("initial_lr", "base_momentum", "max_momentum"),
)
KEPT_KEYS = frozenset(key for keys in _KEPT_TOGETHER for key in keys)
#: The kinds of forms that multiply a value, whatever it is.
_FACTORS = ("kept", "power", "sized")
#: Counted in steps and often whole numbers; no scheduler sets them.
_COUNTED = ("warmup", "frequency")


def read(value: Any) -> Value:
    """Return a group's value as plain numbers; tensors (``capturable``, compiled steps) are read."""
    return tuple(float(item) for item in value) if isinstance(value, tuple | list) else float(value)


def write(group: dict[str, Any], key: str, value: Value) -> None:
    """Put a value into a group; a tensor is filled, so that whoever holds it (a CUDA graph, say) sees the change."""
    old = group[key]
    if isinstance(old, torch.Tensor):
        old.fill_(value)  # type: ignore[arg-type]
    elif _has_tensors(old):
        pairs = zip(old, as_tuple(value), strict=True)
        group[key] = type(old)([item.fill_(new) if isinstance(item, torch.Tensor) else new for item, new in pairs])
    else:
        group[key] = value


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return the numbers of ``betas``, and one number, or one unit, as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


# ---- which units


def families_by_group(optimizer: Any) -> list[tuple[dict[str, Any], Family]]:
    """Return the groups of an optimizer, each with its family."""
    wrapped = type(optimizer).__module__.partition(".")[0] == "accelerate"
    own = optimizer.optimizer if wrapped else optimizer
    families = {i: family for family, numbers in families_of(own) for i in numbers}
    return [(group, families[i]) for i, group in enumerate(own.param_groups)]


def cycled_unit(group: Mapping[str, Any], family: Family) -> str:
    """Return the unit of what torch's schedulers cycle as momentum: beta1 where there are betas; empty for nothing."""
    units = family.group_units(group)
    return str(as_tuple(units.get("betas", units.get("momentum", "")))[0])


def kept_units(group: Mapping[str, Any], family: Family) -> dict[str, str]:
    """Return the units of what schedulers keep in a group for themselves, by its keys."""
    held = {key for keys in _KEPT_TOGETHER if group.keys() >= set(keys) for key in keys}
    units = {}
    for key in sorted(held - family.torch_units().keys()):
        units[key] = cycled_unit(group, family) if "momentum" in key else "min_eta" if key == "min_lr" else "eta"
    return units


# ---- the way there and back


def convert_kept(rule: Rule, unit: str, value: float, kappa: float, name: str) -> float:
    """Return at ``kappa`` what a scheduler keeps in a group; the ends of a cycle of beta1 as they are without floors.

    The scheduler has to find them again in its own units, and a floor has no way back.
    """
    form = rule.form(unit)
    if form.floor is not None:
        return float(AVERAGE(value, kappa))
    if form.kind in _FACTORS:  # a schedule may pass below zero, where it ends between two of our steps
        return value * float(form(1.0, kappa))
    return float(rule.convert(unit, value, kappa, name))


def from_own(frames: Frames, unit: str, value: float, name: str) -> tuple[float, float]:
    """Return a scheduler's value in the units of the run as it is now, and what it would be without floors."""
    free, so_far = value, 1.0
    for rule, kappa in frames:
        if rule.form(unit).floor is None:
            value = free = convert_kept(rule, unit, value, kappa, name)
        else:
            past = free, first_weight(value, free, so_far)
            value = float(rule.convert(unit, value, kappa, name, past))
            free = float(AVERAGE(free, kappa))
        so_far *= kappa
    return value, free


def to_own(frames: Frames, unit: str, value: float) -> float:
    """Return a value, as it is without floors, in the units of the scheduler: the inverse of every change."""
    for rule, kappa in reversed(frames):
        form = rule.form(unit)
        if form.kind in _FACTORS:
            value = value / float(form(1.0, kappa))
        elif value:  # an average of weight 0 is none
            value = float((form if form.floor is None else AVERAGE)(value, 1 / kappa))
    return value


@dataclass(frozen=True)
class _Held:
    """A value of a group before a scheduler's step.

    Args:
        group, key: where it is.
        units: of its numbers.
        entry: what is there, a number, a tensor or several of them.
        kept: whether a scheduler keeps it for itself.
    """

    group: dict[str, Any]
    key: str
    units: tuple[str, ...]
    entry: Any
    numbers: tuple[float, ...]
    kept: bool

    def own(self, frames: Frames) -> tuple[float, ...]:
        """Return the numbers in the scheduler's units."""
        pairs = list(zip(self.units, self.numbers, strict=True))
        if not self.kept:
            last = frames[-1][0]
            pairs = [(unit, past_weights(self.group, unit, value, last.form(unit))[0]) for unit, value in pairs]
        return tuple(to_own(frames, unit, value) for unit, value in pairs)

    def now(self, frames: Frames, mine: tuple[float, ...], new: tuple[float, ...]) -> list[tuple[float, float | None]]:
        """Return the numbers in the units of the run, with those without floors where the scheduler has set them anew.

        What it left alone stays as it was, so that no rounding accumulates.
        """
        each = zip(self.units, self.numbers, mine, new, strict=True)
        return [(before, None) if own == set_ else self._set(frames, unit, set_) for unit, before, own, set_ in each]

    def _set(self, frames: Frames, unit: str, value: float) -> tuple[float, float | None]:
        if not self.kept:
            return from_own(frames, unit, value, self.key)
        for rule, kappa in frames:
            value = convert_kept(rule, unit, value, kappa, self.key)
        return value, None

    def put(self, value: tuple[float, ...]) -> None:
        """Write numbers into the group."""
        write(self.group, self.key, value if isinstance(self.entry, tuple | list) else value[0])

    def put_back(self) -> None:
        """Put back what was there, whole numbers as such and tensors with what they held."""
        self.group[self.key] = self.entry
        if _has_tensors(self.entry):
            self.put(self.numbers)


def _has_tensors(entry: Any) -> bool:
    return any(isinstance(item, torch.Tensor) for item in (entry if isinstance(entry, tuple | list) else (entry,)))


def _held(optimizer: Any) -> Iterator[_Held]:
    """Yield what schedulers may set in the groups of an optimizer, and what they keep there."""
    for group, family in families_by_group(optimizer):
        own, kept = family.torch_units(), kept_units(group, family)
        for key, units in {**family.group_units(group), **kept}.items():
            if (key in own or key in kept) and units not in _COUNTED:
                numbers = as_tuple(read(group[key]))
                yield _Held(group, key, as_tuple(units), group[key], numbers, key in kept)


@contextmanager
def own_units(optimizer: Any, frames: Frames) -> Iterator[None]:
    """Bring the groups of an optimizer to a scheduler's own units, and what it has set there back to those of the run.

    If the scheduler fails, or sets what has no value in those units, the groups are left as they were.
    """
    # Each pass reads everything before it writes anything: groups may share one tensor as their learning rate.
    held = list(_held(optimizer))
    own = [one.own(frames) for one in held]
    try:
        for one, value in zip(held, own, strict=True):
            one.put(value)
        own = [as_tuple(read(one.group[one.key])) for one in held]
        yield
        new = [as_tuple(read(one.group[one.key])) for one in held]
        now = [one.now(frames, mine, value) for one, mine, value in zip(held, own, new, strict=True)]
    except BaseException:
        for one in held:
            one.put_back()
        raise
    for one, mine, value, pairs in zip(held, own, new, now, strict=True):
        if mine == value:
            one.put_back()
        else:
            one.put(tuple(number for number, _ in pairs))
            for unit, (number, free) in zip(one.units, pairs, strict=True):
                if free is not None:
                    remember(one.group, unit, number, free)
