"""Schedulers as files have them, in the units of another batch size.

A scheduler's ``state_dict`` has its numbers under the names of its class's attributes. Lengths and places in steps are
divided by kappa, learning rates converted by the rule, and all else stays. Lengths have to be whole numbers, so they
are rounded, and the report says so. A function that the script hands over (`LambdaLR`) is not in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rootscale.changes import Change
from rootscale.checkpoints.optimizers import SavedOptimizer
from rootscale.checkpoints.pickled import Kept, name_of
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.units import UNITS

#: Lengths in steps, of which none may become 0.
_LENGTHS = ("T_max", "T_0", "T_i", "total_iters", "total_steps", "step_size", "anneal_epochs")
#: Places in a schedule, in steps; -1 says that it has not begun.
_PLACES = ("last_epoch", "T_cur")
_RATES = ("base_lrs", "max_lrs", "min_lrs", "_last_lr", "eta_min", "default_min_lr")
#: With one of these, ``gamma`` is a factor for each of their ends and not for each step.
_ENDS = {"step_size", "milestones"}
#: What version 0.1 kept of a converted scheduler: its changes of units.
_FRAMES = "_rootscale_frames"


def is_scheduler(thing: Any) -> bool:
    """Return whether something that was read is the ``state_dict`` of a scheduler of torch's kind."""
    if not isinstance(thing, dict) or not {"_last_lr", "_step_count"} & thing.keys():
        return False
    inner = thing.get("_schedulers")  # of a ChainedScheduler, which has no counter itself
    return "last_epoch" in thing or (isinstance(inner, list) and bool(inner) and all(map(is_scheduler, inner)))


@dataclass
class SavedScheduler:
    """A scheduler in a file.

    Args:
        name: where it is in the file, for messages.
        attributes: its ``state_dict``, which `convert` changes.
        tensor: returns a tensor of the file, mapped, or None for what is none.
        interval: whether it is stepped with the optimizer's steps or with epochs; None is found.
        optimizer: the one that it belongs to.
    """

    name: str
    attributes: dict[str, Any]
    tensor: Callable[[Any], Tensor | None]
    interval: str | None = None
    optimizer: SavedOptimizer = field(init=False)

    def fits(self, optimizer: SavedOptimizer) -> bool:
        """Return whether it has set the learning rates of an optimizer."""
        rates = [float(group["lr"]) for group in optimizer.live.param_groups]
        last = self.attributes.get("_last_lr")
        return last is None or (len(last) == len(rates) and all(map(_equal, last, rates)))

    def clock(self, epoch: int | None) -> str:
        """Return the interval: the given one, or that which the counters show.

        Args:
            epoch: that the file is of.
        """
        if self.interval is not None:
            return self.interval
        made, steps = float(_made(self.attributes)), self.optimizer.steps
        if "num_bad_epochs" in self.attributes or (steps is not None and made >= 0.8 * steps):
            return "step"
        if epoch is not None and 0 <= made - epoch <= 1:
            return "epoch"
        if steps is None:
            raise ValueError(
                f"{self.name} has made {made:,.0f} steps, and the file does not say whether they are those of the "
                "optimizer: give --interval step or --interval epoch"
            )
        raise ValueError(
            f"{self.name} has made {made:,.0f} steps and the optimizer {steps:,.0f}: give --interval epoch if it is "
            "stepped once an epoch, --interval step if with every step of the optimizer"
        )

    @property
    def has_functions(self) -> bool:
        """Whether its schedule is a function of the step that the script hands over."""
        return any("lr_lambdas" in one for one in _nested(self.attributes))

    def convert(self, rule: Rule, kappa: float, interval: str) -> list[Change]:
        """Bring the state to another batch size, and return the rows to report."""
        if any(one.get(_FRAMES) or isinstance(one.get("last_epoch"), str) for one in _nested(self.attributes)):
            raise ValueError(
                f"{self.name} was converted in place by rootscale 0.1: load it with that version, go back to the "
                "script's batch size there, and save it again"
            )
        steps = kappa if interval == "step" and "num_bad_epochs" not in self.attributes else 1.0
        return list(_converted(self.attributes, self.name, _Units(rule, kappa, steps, self.tensor)))


def _made(attributes: dict[str, Any]) -> int:
    """Return the steps that a scheduler has made."""
    if "last_epoch" in attributes:
        return int(attributes["last_epoch"])
    return max(_made(inner) for inner in attributes["_schedulers"])


def _equal(one: Any, other: float) -> bool:
    return isinstance(one, int | float) and abs(float(one) - other) <= 1e-6 * max(abs(other), 1e-12)


def _nested(attributes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield attributes
    for child in attributes.get("_schedulers") or ():
        if isinstance(child, dict):
            yield from _nested(child)


@dataclass(frozen=True)
class _Units:
    """What a change of batch size makes of steps and learning rates."""

    rule: Rule
    kappa: float
    steps: float
    tensor: Callable[[Any], Tensor | None]

    def rate(self, value: Any) -> Any:
        """Return a learning rate converted; a tensor is filled."""
        mapped = self.tensor(value)
        if mapped is not None:
            mapped.fill_(float(self.rule.convert("eta", float(mapped), self.kappa)))
            return value
        if isinstance(value, list | tuple):
            if any(isinstance(item, list | tuple) for item in value):
                raise ValueError("a scheduler has learning rates of lists in lists, which are none")
            return type(value)(self.rate(item) for item in value)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return float(self.rule.convert("eta", float(value), self.kappa)) if plain and value else value

    def length(self, value: Any, least: int = 0) -> Any:
        """Return a number of steps, as a whole one; -1 stays."""
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0 or self.steps == 1:
            return value
        return max(least if value else 0, math.floor(value / self.steps + 0.5))


def _converted(attributes: dict[str, Any], name: str, units: _Units) -> Iterator[Change]:
    """Bring a state to new units; yield a row for each number of steps, and one for the learning rates."""
    old = dict(attributes)
    for child in attributes.get("_schedulers") or ():
        yield from _converted(child, f"{name}._schedulers", units)
    for key in attributes.keys() & {*_LENGTHS, *_PLACES}:
        attributes[key] = units.length(old[key], least=1 if key in _LENGTHS else 0)
    if "T_cur" in old and "T_i" in old:
        attributes["T_cur"] = min(attributes["T_cur"], max(0, attributes["T_i"] - 1))
    if isinstance(old.get("_step_count"), int) and isinstance(old.get("last_epoch"), int):
        attributes["_step_count"] = attributes["last_epoch"] + old["_step_count"] - old["last_epoch"]
    for key in attributes.keys() & {"milestones", "_milestones"}:
        attributes[key] = _ends(old[key], units)
    if "total_size" in old:
        attributes["total_size"] = old["total_size"] / units.steps
    if units.steps != 1:
        for phase in attributes.get("_schedule_phases") or ():
            phase["end_step"] = (phase["end_step"] + 1) / units.steps - 1
        each_step = old.get("mode") == "exp_range" if "total_size" in old else not _ENDS & old.keys()
        if "gamma" in old and each_step:
            attributes["gamma"] = old["gamma"] ** units.steps
            note = "a factor for each step: to the power of kappa"
            yield Change(f"{name}.gamma", old["gamma"], attributes["gamma"], UNITS["steps"], note=note)
    for key in attributes.keys() & set(_RATES):
        attributes[key] = units.rate(old[key])
    if "num_bad_epochs" in old:
        attributes["eps"] = units.rate(old["eps"])
    for key in (*_PLACES[:1], *_LENGTHS):
        if key in old and isinstance(old[key], int | float) and old[key] != attributes[key]:
            exact = old[key] / units.steps
            note = "" if exact == attributes[key] else f"rounded from {show(exact)}"
            yield Change(f"{name}.{key}", old[key], exact, UNITS["steps"], attributes[key], note)
    rates = old.get("base_lrs")
    if isinstance(rates, list) and rates and isinstance(rates[0], int | float):
        unit = units.rule.units.get("eta")
        yield Change(f"{name}.base_lrs", float(rates[0]), float(attributes["base_lrs"][0]), unit)


def _ends(held: Any, units: _Units) -> Any:
    """Return milestones: a list, or a counter, which a pickle has as a call and JSON as names."""
    if isinstance(held, list):
        return [units.length(one) for one in held]
    if isinstance(held, Kept) and name_of(held) == "collections.Counter" and held.arguments:
        held.arguments = (_counts(held.arguments[0], units), *held.arguments[1:])
        return held
    return _counts(held, units) if isinstance(held, dict) else held


def _counts(held: dict[Any, Any], units: _Units) -> dict[Any, Any]:
    new: dict[Any, Any] = {}
    for end, times in held.items():
        key = type(end)(units.length(int(end)))
        new[key] = new.get(key, 0) + times
    return new
