"""A parameter group at another batch size: what a step of ``kappa`` times the samples needs, and in what units its
state is.

The group itself keeps the numbers of the script. `GroupProjection` reads them, whoever has set them (the script, a
scheduler, a loop that writes ``group["lr"]`` at every step), and gives those of the batch size of now. It remembers
nothing, so it composes: four times and four times the batch is sixteen times, and the way back leads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rootscale.changes import Change
from rootscale.format import show

if TYPE_CHECKING:
    from rootscale.optimizers import Family
    from rootscale.rules import Rule

#: Kinds of forms that multiply a value, whatever it is.
FACTORS = ("kept", "power", "factor")
#: Units of what a scheduler cycles as momentum, the first of ``betas`` among them.
_CYCLED = ("beta1", "mu")


def numbers_of(value: Any) -> tuple[float, ...]:
    """Return the numbers of a group's entry: one, or those of ``betas``; tensors are read."""
    return tuple(float(item) for item in value) if isinstance(value, tuple | list) else (float(value),)


def whole_number(held: Any, after: float) -> float | int:
    """Return a value as it can be used where a whole number was held.

    >>> whole_number(10, 2.6), whole_number(10.0, 2.6), whole_number(0, 0.0)
    (3, 2.6, 0)
    """
    whole = isinstance(held, int) or (isinstance(held, torch.Tensor) and not held.is_floating_point())
    if not whole or isinstance(held, bool):
        return after
    return max(1, round(after)) if held else 0


class GroupProjection:
    """The hyperparameters of one parameter group that have a unit, and the rule that converts them.

    Args:
        family: of the group, as its library spells it.
        rule: for the family.
        group: as the optimizer holds it.
    """

    def __init__(self, family: Family, rule: Rule, group: Mapping[str, Any]) -> None:
        self.family, self.rule = family, rule
        own = family.torch_units()
        self.units: dict[str, tuple[str, ...]] = {
            key: unit if isinstance(unit, tuple) else (unit,)
            for key, unit in family.group_units(group).items()
            if key in own
        }
        for key, units in self.units.items():
            count = len(numbers_of(group[key]))
            if count != len(units):
                raise ValueError(
                    f"{key} holds {count} numbers, and the row of {family.name} has {len(units)} units for it: "
                    "register the optimizer with one for each"
                )
        self._latest: dict[str, tuple[Any, float, Any]] = {}

    def factor(self, key: str, kappa: float) -> float | None:
        """Return what a hyperparameter is multiplied by; None where its form is no factor."""
        (unit, *more) = self.units[key]
        form = self.rule.form(unit)
        return float(form(1.0, kappa)) if not more and form.kind in FACTORS else None

    def at(self, key: str, value: Any, kappa: float) -> Any:
        """Return the entry of a group at ``kappa`` times the batch size; it is of the type of ``value``.

        Raises:
            ValueError: there is no valid value; the message has the largest ``kappa`` that has one.
        """
        before, at, after = self._latest.get(key, (None, 0.0, None))
        if at == kappa and type(before) is type(value) and before == value and not isinstance(value, torch.Tensor):
            return after
        after = self._convert(key, value, kappa)
        self._latest[key] = value, kappa, after
        return after

    def _convert(self, key: str, value: Any, kappa: float) -> Any:
        several = isinstance(value, tuple | list)
        converted = [
            self._number(unit, number, kappa, None if several else key)
            for unit, number in zip(self.units[key], numbers_of(value), strict=True)
        ]
        if not several:
            return whole_number(value, converted[0])
        return type(value)([whole_number(held, new) for held, new in zip(value, converted, strict=True)])

    def _number(self, unit: str, value: float, kappa: float, name: str | None) -> float:
        form = self.rule.form(unit)
        if value <= 0 and form.kind in FACTORS:  # a schedule may end below zero
            return value * float(form(1.0, kappa))
        return float(self.rule.convert(unit, value, kappa, name))

    def check(self, group: Mapping[str, Any], kappa: float) -> None:
        """Refuse a batch size at which a value of the group, or an end of a momentum that is cycled, has no value."""
        for key, units in self.units.items():
            self.at(key, group[key], kappa)
            if units[0] in _CYCLED:
                _, *others = numbers_of(group[key])
                for end in ("base_momentum", "max_momentum"):  # torch's cycling schedulers keep them in the group
                    if end in group:
                        several = isinstance(group[key], tuple | list)
                        self._convert(key, (group[end], *others) if several else group[end], kappa)

    def values(self, group: Mapping[str, Any], kappa: float = 1.0) -> dict[str, float]:
        """Return the hyperparameters as numbers by their units, at ``kappa`` times the batch size."""
        return {
            unit: number
            for key, units in self.units.items()
            for unit, number in zip(units, numbers_of(self.at(key, group[key], kappa)), strict=True)
        }

    def state_factor(self, unit: str, group: Mapping[str, Any], kappa: float) -> float:
        """Return what state of a unit is multiplied by, from the script's batch size to ``kappa`` times it."""
        if kappa == 1:
            return 1.0
        return self.rule.factor(unit, kappa, self.values(group), self.values(group, kappa))

    def changes(self, group: Mapping[str, Any], kappa: float, suffix: str = "") -> list[Change]:
        """Return the rows to report: the number of the script and that of a step."""
        rows = []
        for key, units in self.units.items():
            names = self.family.torch.values[key] if len(units) > 1 else (key,)
            exact = [
                self._number(unit, number, kappa, None)
                for unit, number in zip(units, numbers_of(group[key]), strict=True)
            ]
            used = numbers_of(self.at(key, group[key], kappa))
            for name, unit, before, after, new in zip(names, units, numbers_of(group[key]), exact, used, strict=True):
                note = "" if new == after else f"rounded from {show(after)}"
                row = self.rule.row(unit, before, after, kappa)
                rows.append(Change(f"{name or key}{suffix}", before, after, row, None if new == after else new, note))
        return rows
