"""The edits of a conversion: each knows what to report, how to make its change, and how to take it back exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.changes import Change
from rootscale.format import show
from rootscale.optimizers import Family
from rootscale.rules import Rule
from rootscale.training import schedulers
from rootscale.training.markers import FREE, KAPPA, past_weights, remember, units_of
from rootscale.training.scheduler_changes import rescale_scheduler, save_scheduler, ticks
from rootscale.training.scheduler_units import Value, as_tuple, convert_kept, kept_units, read, write
from rootscale.training.watch import save_watch, settle
from rootscale.units import UNITS

__all__ = [
    "Action",
    "Edit",
    "free_keys",
    "group_edits",
    "group_values",
    "is_frozen",
    "plural",
    "scheduler_edit",
    "units_edit",
    "whole_number",
    "with_kappa",
]

Action = Callable[[], None]


@dataclass(frozen=True)
class Edit:
    """A change that has been found possible.

    Args:
        changes: the rows to report.
        apply: makes the change.
        save: returns a function that puts back what is there now; it works after half an ``apply`` too.
    """

    changes: tuple[Change, ...]
    apply: Action
    save: Callable[[], Action]


def is_frozen(value: Any) -> bool:
    """Return whether a value is a tensor made under `torch.inference_mode`, and this is outside of it."""
    return isinstance(value, torch.Tensor) and value.is_inference() and not torch.is_inference_mode_enabled()


def plural(things: Sequence[Any], name: str) -> str:
    """Return the number of things with their name: ``1 layer``, ``2 layers``."""
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


# ---- the optimizer's groups


def group_values(group: dict[str, Any], family: Family) -> dict[str, float]:
    """Return the hyperparameters of a parameter group as numbers, by their units."""
    return {
        unit: value
        for key, units in family.group_units(group).items()
        for unit, value in zip(as_tuple(units), as_tuple(read(group[key])), strict=True)
    }


def group_edits(optimizer: Any, family: Family, rule: Rule, kappa: float, state: bool = True) -> Iterator[Edit]:
    """Yield the edits of the hyperparameters in every group, in the defaults, and of what schedulers keep there.

    With ``state``, those of the state that some libraries keep in groups too, such as a step counter.
    """
    groups: list[dict[str, Any]] = optimizer.param_groups
    torch_units = family.torch_units()
    for i, group in enumerate([*groups, optimizer.defaults]):  # groups that are added later start from the defaults
        unused = i == len(groups)
        units = {key: unit for key, unit in family.group_units(group).items() if state or key in torch_units}
        suffix = f" (group {i})" if len(groups) > 1 else ""
        for key, unit in units.items():
            before = read(group[key])
            try:
                after = _converted(with_kappa(group, groups), key, unit, rule, kappa)
            except ValueError:
                if unused:  # it has no value there; no parameter follows it
                    continue
                raise
            names = (key,) if isinstance(unit, str) else family.torch.values[key]
            used, note = whole_number(group[key], after)
            each = zip(as_tuple(names), as_tuple(unit), as_tuple(before), as_tuple(after), strict=True)
            rows = (
                Change(f"{name or key}{suffix}", old, new, rule.row(u, old, new, kappa), used, note)
                for name, u, old, new in each
            )
            yield _group_edit(() if unused else tuple(rows), group, key, after if used is None else used)
            yield from _free_edits(group, unit, before, after, rule, kappa)
    for group in groups:
        for key, kept in kept_units(group, family).items():
            yield _group_edit((), group, key, convert_kept(rule, kept, float(group[key]), kappa, key))


def with_kappa(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a group holds, with the kappa of its run: groups that were added later, and defaults, have none."""
    return {KAPPA: units_of(groups).kappa, **group}


def whole_number(held: Any, after: Any) -> tuple[int | None, str]:
    """Return the whole number to use where one was held, and what the rounding does; None where none is needed.

    >>> whole_number(10, 2.5), whole_number(10.0, 2.5)
    ((2, 'rounded from 2.5'), (None, ''))
    """
    integer = isinstance(held, int) or (isinstance(held, torch.Tensor) and not held.is_floating_point())
    if not integer or isinstance(held, bool) or not isinstance(after, float):
        return None, ""
    used = max(1, round(after)) if held else 0
    return used, "" if used == after else f"rounded from {show(after)}"


def group_averages(group: dict[str, Any], family: Family, rule: Rule, kappa: float) -> tuple[dict[str, float], ...]:
    """Return the hyperparameters of a group before and after, by their units."""
    after = {
        unit: value
        for key, units in family.group_units(group).items()
        for unit, value in zip(as_tuple(units), as_tuple(_converted(group, key, units, rule, kappa)), strict=True)
    }
    return group_values(group, family), after


def _converted(group: dict[str, Any], key: str, units: Any, rule: Rule, kappa: float) -> Value:
    """Return a value of a group at ``kappa``."""
    before = read(group[key])
    if len(as_tuple(units)) != len(as_tuple(before)):
        held, row = plural(as_tuple(before), "number"), plural(as_tuple(units), "unit")
        raise ValueError(f"{key} holds {held}, and the optimizer's row has {row} for it: register it with one for each")
    name = None if isinstance(before, tuple) else key
    after = tuple(
        float(rule.convert(unit, value, kappa, name, past_weights(group, unit, value, rule.form(unit))))
        for unit, value in zip(as_tuple(units), as_tuple(before), strict=True)
    )
    return after if isinstance(before, tuple) else after[0]


def _free_edits(group: dict[str, Any], units: Any, before: Any, after: Any, rule: Rule, kappa: float) -> Iterator[Edit]:
    """Yield the edits that remember the weights that floors have stopped, so that the way back leads to the first."""
    for unit, old, new in zip(as_tuple(units), as_tuple(before), as_tuple(after), strict=True):
        key, form = f"{FREE}{unit}", rule.form(unit)
        stops = form.floor is not None and old
        free = 1 - kappa * (1 - past_weights(group, unit, old, form)[0]) if stops else None
        if stops or key in group:
            yield Edit((), partial(remember, group, unit, new, free), partial(_save_entry, group, key))


def _save_entry(group: dict[str, Any], key: str) -> Action:
    held = dict(group)

    def restore() -> None:
        group.pop(key, None)
        group.update({key: held[key]} if key in held else {})

    return restore


def free_keys(optimizer: Any, family: Family, rule: Rule) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the places where the groups of a tracked run remember the weights that floors stop."""
    for group in optimizer.param_groups:
        for units in family.group_units(group).values():
            for unit in as_tuple(units):
                if unit in rule.units and rule.units[unit].form.floor is not None:
                    yield group, f"{FREE}{unit}"


def _group_edit(rows: tuple[Change, ...], group: dict[str, Any], key: str, after: Value) -> Edit:
    held = group[key] if isinstance(group[key], list | tuple) else (group[key],)
    if any(is_frozen(one) for one in held):
        raise TypeError(
            f"the optimizer's {key} is an inference tensor, which cannot be changed in place; "
            "replace it by its clone(), made outside of torch.inference_mode()"
        )

    def save() -> Action:
        entry, number = group[key], read(group[key])

        def restore() -> None:
            group[key] = entry
            if read(entry) != number:  # a tensor, or a list of them, that has been filled
                write(group, key, number)

        return restore

    return Edit(rows, partial(write, group, key, after), save)


def units_edit(
    optimizer: torch.optim.Optimizer,
    kappa: float,
    batch_size: float | None,
    parts: Mapping[str, float],
    decays: Mapping[int, float] | None = None,
) -> Edit:
    """Return the edit of the units that an optimizer carries.

    Args:
        optimizer: that carries them.
        kappa, batch_size, parts, decays: as for `Carried.advance`.
    """
    groups: list[dict[str, Any]] = optimizer.param_groups
    carried = units_of(groups).advance(kappa, batch_size, parts, decays)

    def apply() -> None:
        for group in groups:
            carried.write(group)
        settle(optimizer, parts)

    def save() -> Action:
        held, forget = units_of(groups), save_watch(optimizer)

        def restore() -> None:
            for group in groups:
                held.write(group)
            forget()

        return restore

    return Edit((), apply, save)


# ---- schedulers


def scheduler_edit(scheduler: LRScheduler, rule: Rule, kappa: float, interval: str) -> Edit:
    """Return the edit of a scheduler's clock and units."""
    before, after = ticks(scheduler, 1, interval), ticks(scheduler, kappa, interval)
    if before == after:
        note = "it is stepped as often as before: its clock is not the optimizer's"
    else:
        note = "steps of its own clock in one step of the optimizer"
    change = Change(f"{schedulers.own_name(scheduler)} clock", before, after, UNITS["steps"], note=note)
    apply = rescale_scheduler(scheduler, rule, kappa, interval)
    return Edit((change,), apply, partial(save_scheduler, scheduler))
