"""The units that a run is in, written into what people save anyway: plain numbers in the optimizer's parameter groups.

Stock optimizers load, save and ignore them. A run that was never converted has none, unless `track_` was called.

| key | meaning |
|---|---|
| ``rootscale_kappa`` | the batch size over that of the run's script: the product of all changes |
| ``rootscale_batch_size`` | the batch size itself, where it was given |
| ``rootscale_scheduler_kappa`` | how far the scheduler that was converted along was converted |
| ``rootscale_forward_kappa`` | the same of BatchNorm's momentum, which no ``state_dict`` holds |
| ``rootscale_ema_kappa`` | the same of the decay of parameter averages |
| ``rootscale_ema_decay_0``, ... | the decay after it, of averages that may have it in a state of their own |
| ``rootscale_beta1``, ``rootscale_beta2``, ... | the weight of an average without its floor; None above it |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rootscale.format import show
from rootscale.units import Form

__all__ = [
    "FREE",
    "KAPPA",
    "PARTS",
    "TAG",
    "Carried",
    "Part",
    "first_weight",
    "is_tracked",
    "past_weights",
    "remember",
    "same",
    "units_of",
]

KAPPA, BATCH_SIZE = "rootscale_kappa", "rootscale_batch_size"
#: Before the unit of an average: where a group remembers the weight that it would have without floors.
FREE = "rootscale_"
#: The attribute of a BatchNorm layer or of a parameter average that says how far its number has been converted.
TAG = "rootscale_kappa"


@dataclass(frozen=True)
class Part:
    """Something beside the optimizer that is converted with it.

    Args:
        argument: of `rescale_` and `restore_`.
        key: of the parameter groups.
        what: is converted, in words.
    """

    argument: str
    key: str
    what: str


PARTS = (
    Part("scheduler", "rootscale_scheduler_kappa", "the scheduler"),
    Part("model", "rootscale_forward_kappa", "BatchNorm's momentum"),
    Part("ema", "rootscale_ema_kappa", "the decay of the parameter average"),
)
KEYS = (KAPPA, BATCH_SIZE, *(part.key for part in PARTS))
#: Before the number of an average, in the order that they are given in: where its decay is remembered.
DECAY = "rootscale_ema_decay_"


def same(one: float, other: float) -> bool:
    """Return whether two factors are equal up to rounding."""
    return math.isclose(one, other, rel_tol=1e-9)


@dataclass(frozen=True)
class Carried:
    """The units that a run is in.

    Args:
        kappa: the product of all changes of batch size.
        batch_size: where it is known.
        parts: how far each of `PARTS` was converted, by its argument; 1 where it is absent.
        decays: of the parameter averages that were converted, by their number; see `rootscale.training.decays`.
    """

    kappa: float = 1.0
    batch_size: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    decays: Mapping[int, float] = field(default_factory=dict)

    @property
    def converted(self) -> bool:
        """Whether the run has other units than its script."""
        return not same(self.kappa, 1.0)

    def advance(
        self,
        kappa: float,
        batch_size: float | None = None,
        parts: Mapping[str, float] | None = None,
        decays: Mapping[int, float] | None = None,
    ) -> Carried:
        """Return the units after one more change.

        Args:
            kappa: new batch size over old one.
            batch_size: the new one; None is the old one times ``kappa``, where that is known.
            parts: how far each part has been converted in all, the change included; the others stay.
            decays: those after the change; None are the old ones.
        """
        if batch_size is None and self.batch_size is not None:
            batch_size = self.batch_size * kappa
        held = self.decays if decays is None else decays
        return Carried(self.kappa * kappa, batch_size, {**self.parts, **(parts or {})}, held)

    def write(self, group: MutableMapping[str, Any]) -> None:
        """Put the units into a parameter group; in the script's own units, and at no known size, there are none."""
        for key in [key for key in group if key in KEYS or key.startswith(DECAY)]:
            del group[key]
        if self.batch_size is not None:
            group[BATCH_SIZE] = float(self.batch_size)
        rest = {KAPPA: self.kappa, **{part.key: self.parts.get(part.argument, 1.0) for part in PARTS}}
        if self.batch_size is not None or not all(same(factor, 1.0) for factor in rest.values()):
            # All of them, or none: loaders such as DCP load only keys that they know.
            group.update({key: 1.0 if same(factor, 1.0) else factor for key, factor in rest.items()})
        if not same(self.parts.get("ema", 1.0), 1.0):
            group.update({f"{DECAY}{i}": decay for i, decay in self.decays.items()})

    def __str__(self) -> str:
        size = "" if self.batch_size is None else f" (batch size {show(self.batch_size)})"
        return f"kappa = {show(self.kappa)}{size}"


def units_of(groups: Sequence[Mapping[str, Any]]) -> Carried:
    """Return the units that parameter groups, live or of a ``state_dict``, are in; the first group speaks for all."""
    group: Mapping[str, Any] = groups[0] if groups else {}
    parts = {part.argument: float(group[part.key]) for part in PARTS if part.key in group}
    size = group.get(BATCH_SIZE)
    decays = {int(key.removeprefix(DECAY)): float(group[key]) for key in group if key.startswith(DECAY)}
    return Carried(float(group.get(KAPPA, 1.0)), None if size is None else float(size), parts, decays)


def is_tracked(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether these groups carry their batch size, and so their units whatever they are."""
    return bool(groups) and BATCH_SIZE in groups[0]


def past_weights(group: Mapping[str, Any], unit: str, value: float, form: Form) -> tuple[float, float]:
    """Return what the weight of an average would be without floors, and what it was at the run's first batch size.

    The first is remembered where a floor has stopped the weight; a weight above its floor has been set anew since.
    """
    held, kappa = group.get(f"{FREE}{unit}"), float(group.get(KAPPA, 1.0))
    if form.kind == "floored" and form.floor is not None and value > form.floor:
        held = None
    free = value if held is None else float(held)
    return free, first_weight(value, free, kappa)


def first_weight(value: float, free: float, kappa: float) -> float:
    """Return what a weight was at the run's first batch size.

    It matters where the batch has become smaller: a weight that was below its floor returns to there.
    """
    return value if kappa >= 1 else 1 - (1 - free) / kappa


def remember(group: MutableMapping[str, Any], unit: str, weight: float, free: float | None) -> None:
    """Write what a weight would be without floors into its group, if a floor has stopped it; None forgets it.

    A tracked run has the key in any case, as loaders such as DCP load only keys that they know.
    """
    key = f"{FREE}{unit}"
    if free is not None and not math.isclose(free, weight, rel_tol=1e-9):
        group[key] = free
    elif key in group and is_tracked([group]):
        group[key] = None
    else:
        group.pop(key, None)
