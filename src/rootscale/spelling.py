"""What a row of the registry of optimizers is: `Family`, and how a tool names what a family has: `Spelling`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rootscale.hparams import Optimizer
from rootscale.units import Status

__all__ = ["Family", "Fields", "Spelling", "kind_of_rmsprop"]

#: One or several fields of a record that a tool keeps under one name, such as torch's ``betas``.
Fields = str | tuple[str, ...]
#: What libraries call the option that weight decay is decoupled from the gradient.
_DECOUPLED = ("decoupled_weight_decay", "weight_decouple")


def _frozen(mapping: Mapping[str, Any]) -> Any:
    return field(default_factory=lambda: MappingProxyType(dict(mapping)))


@dataclass(frozen=True)
class Spelling:
    """How a tool names what a family has.

    Args:
        name: of the optimizer in that tool.
        values: the tool's names of the hyperparameters, with the fields of the record that they hold.
        state: the tool's names of the state, with the keys of `Family.state`.
        options: the tool's names of what has no unit, such as ``nesterov``, with the fields that they hold.
        group_state: the names of state that the tool keeps beside the hyperparameters, as ``state``.
        codes: of state in few bits: the names of the codes, which stay, with the names of the scales, which change.
        fixed: the options whose values make the tool's optimizer one of this family.
        in_torch: whether it is a class of ``torch.optim``.
        unsure: what is not known of the state, where it matters as soon as momentum's weight changes.
        foreign: names of state that another family has: parameters that have it are another optimizer's.
        kept: the names of state that has no unit and stays, such as Schedule-Free's ``z``.
    """

    name: str
    values: Mapping[str, Fields] = _frozen({})
    state: Mapping[str, str] = _frozen({})
    options: Mapping[str, str] = _frozen({})
    group_state: Mapping[str, str] = _frozen({})
    codes: Mapping[str, str] = _frozen({})
    fixed: Mapping[str, object] = _frozen({})
    in_torch: bool = True
    unsure: str = ""
    foreign: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def arguments(self, record: Optimizer) -> dict[str, Any]:
        """Return the hyperparameters of a record under the tool's names.

        >>> from rootscale.hparams import Adam
        >>> from rootscale.optimizers import FAMILIES
        >>> FAMILIES["adam"].torch.arguments(Adam(1e-3))
        {'lr': 0.001, 'betas': (0.9, 0.999), 'eps': 1e-08, 'weight_decay': 0.0}
        """
        return {
            name: getattr(record, held) if isinstance(held, str) else tuple(getattr(record, one) for one in held)
            for name, held in {**self.values, **self.options}.items()
        } | dict(self.fixed)

    def summing(self) -> Spelling:
        """Return the spelling of classes that sum gradients in their momentum, ``b = mu b + g``, and do not average."""
        state = {name: "b" if key == "m" else key for name, key in self.state.items()}
        return replace(self, state=MappingProxyType(state), unsure="")

    def state_name(self, key: str) -> str | None:
        """Return the tool's name of a piece of state such as ``v``; None where the optimizer has none."""
        return next((name for name, held in self.state.items() if held == key), None)


@dataclass(frozen=True)
class Family:
    """One kind of optimizer.

    Args:
        name: as on the command line, in plan files and in rules.
        record: of its hyperparameters; each field names its unit.
        rules: the names of the rules that keep its dynamics; the first is its own, which is the default.
        state: what it carries from step to step, by the paper's letters, with the units.
        torch: how torch spells it, or the library that most use where torch has no such class.
        status: how sure the rule is for this family: ``theorem``, ``derived`` or ``heuristic``.
        source: what the status rests on.
        why: the derivation, in a sentence or two.
        measured: the folder of ``results/`` with the family's gap in training; empty where nothing was measured.
        bias_corrected: whether it divides by ``sqrt(v / (1 - beta2^k))`` rather than by ``sqrt(v)``.
        degree: of the update in the gradient: 1 for SGD, 0 where doubling all gradients changes no step.
        elementwise: whether it divides each number by ``sqrt(v) + eps`` of its own and by nothing else, so that
            gradients and their noise can be measured in these units (`rootscale.training.metric`).
    """

    name: str
    record: type[Optimizer]
    rules: tuple[str, ...]
    state: Mapping[str, str]
    torch: Spelling
    status: Status = "derived"
    source: str = ""
    why: str = ""
    measured: str = ""
    bias_corrected: bool = False
    degree: int = 0
    elementwise: bool = False

    @property
    def adaptive(self) -> bool:
        """Whether the update is divided by the root of a second moment."""
        return "v" in self.state

    def unit(self, name: str) -> str:
        """Return the unit of a field of the record; empty where it has none."""
        found = self.record.__dataclass_fields__.get(name)  # schedulers ask at every step: `fields` takes its time
        return "" if found is None else str(found.metadata.get("unit", ""))

    def torch_units(self) -> dict[str, Fields]:
        """Return the units of torch's hyperparameters, by torch's names.

        >>> from rootscale.optimizers import FAMILIES
        >>> FAMILIES["rmsprop"].torch_units()
        {'lr': 'eta', 'alpha': 'beta2', 'eps': 'eps', 'weight_decay': 'l2'}
        """
        return {
            name: self.unit(held) if isinstance(held, str) else tuple(self.unit(one) for one in held)
            for name, held in self.torch.values.items()
        }

    def group_units(self, group: Mapping[str, Any]) -> dict[str, Fields]:
        """Return the units of what a parameter group holds: hyperparameters, and state that is kept there.

        Many libraries let a group say which kind of weight decay it has.
        """
        units = {name: unit for name, unit in self.torch_units().items() if group.get(name) is not None}
        for flag in _DECOUPLED:
            if flag in group and "weight_decay" in units:
                units["weight_decay"] = "decoupled_decay" if group[flag] else "l2"
        if group.get("fixed_decay") and units.get("weight_decay") == "decoupled_decay":
            units["weight_decay"] = "step_decay"
        held = {name: self.state[key] for name, key in self.torch.group_state.items()}
        return units | {name: unit for name, unit in held.items() if group.get(name) is not None}

    def torch_state_units(self) -> dict[str, str]:
        """Return the units of torch's state, by torch's names."""
        return {name: self.state[held] for name, held in self.torch.state.items()}

    def unknown_state(self, states: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the names of numbers and tensors in a state that the family has not: they would keep the old units.

        >>> from rootscale.optimizers import FAMILIES
        >>> FAMILIES["adam"].unknown_state([{"exp_avg": 0.5, "velocity": 0.5, "is_frozen": False}])
        ['velocity']
        """
        spelling = self.torch
        known = {*(name.partition("[")[0] for name in spelling.state), *spelling.codes.values(), *spelling.kept}
        held = {str(name) for state in states for name, value in state.items() if _has_numbers(value)}
        return sorted(held - known)


def kind_of_rmsprop(optimizer: Any, group: Mapping[str, Any]) -> str:
    """Return the family of a group of RMSprop, as torch and optax have it: centered, with momentum or neither."""
    return "rmsprop-centered" if group.get("centered") else "rmsprop-momentum" if group.get("momentum") else "rmsprop"


def _has_numbers(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_numbers(one) for one in value)
    return value is not None and not isinstance(value, bool | str)
