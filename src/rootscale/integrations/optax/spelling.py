"""How optax names the arguments of the families of `rootscale.optimizers`, as a table.

To add an optimizer of optax, add a row to `MAKERS`, and one to `rootscale.integrations.optax.kinds` for each kind of
state that it keeps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rootscale.optimizers import FAMILIES, Spelling
from rootscale.rules import Rule, get_rule
from rootscale.spelling import kind_of_rmsprop
from rootscale.units import UNITS

__all__ = ["MAKERS", "Maker", "Quantity", "Rules", "find_maker", "rule_of"]

#: A rule for everything, or one for each family by its name; None is each one's own.
Rules = str | Rule | Mapping[str, str | Rule | None] | None
#: The name of an argument, with the family by whose rule it is converted and its unit.
Quantity = tuple[str, str, str]


def rule_of(rule: Rules, family: str) -> Rule:
    """Return the rule of a family."""
    return get_rule(rule.get(family) if isinstance(rule, Mapping) else rule, family)


@dataclass(frozen=True)
class Maker:
    """A function of optax that makes an optimizer.

    Args:
        family: in `rootscale.optimizers.FAMILIES`.
        spelling: of the family's hyperparameters and state; its name is that of the function.
        module: that the function is in.
        others: families that it makes with other arguments.
        kind: gives the family, by the arguments.
        must_be: the values that an argument may have; with others the update is another one.
        why: what that is for.
        switch: ``(argument, value, fields)``: with this value, some arguments hold other fields of the record.
        units: of arguments that hold no field of the record.
        beside: a family that some parameters are left to, and the fields of its record that arguments hold.
        same_as: arguments that are those of another name where they are None.
        takes_record: whether a record of the family says all that the function needs.
    """

    family: str
    spelling: Spelling
    module: str = "optax"
    others: tuple[str, ...] = ()
    kind: Callable[[Mapping[str, Any]], str] | None = None
    must_be: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    why: str = ""
    switch: tuple[str, object, Mapping[str, str]] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, Mapping[str, str]] | None = None
    same_as: Mapping[str, str] = field(default_factory=dict)
    takes_record: bool = True

    @property
    def name(self) -> str:
        """The function's name, with its module."""
        return f"{self.module}.{self.spelling.name}"

    @property
    def families(self) -> tuple[str, ...]:
        """All families that it makes."""
        return self.family, *self.others

    def function(self) -> Any:
        """Return the function; None where this version of optax has none."""
        return getattr(importlib.import_module(self.module), self.spelling.name, None)

    def fields(self, switched: bool = False) -> dict[str, Any]:
        """Return the fields of the record that the arguments hold, by the arguments' names."""
        return {**self.spelling.values, **(self.switch[2] if switched and self.switch else {})}

    def family_of(self, values: Mapping[str, Any]) -> str:
        """Return the family that it makes of these arguments."""
        return self.family if self.kind is None else self.kind(values)

    def quantities(self, values: Mapping[str, Any]) -> Iterator[Quantity]:
        """Yield the arguments that have a unit, which may depend on their values."""
        name = self.family_of(values)
        switched = self.switch is not None and values.get(self.switch[0]) == self.switch[1]
        state = {argument: FAMILIES[name].state[key] for argument, key in self.spelling.state.items()}
        fields = {argument: _unit(name, held) for argument, held in self.fields(switched).items()}
        yield from ((argument, name, unit) for argument, unit in {**fields, **state, **self.units}.items())
        if self.beside:
            family, held = self.beside
            yield from ((argument, family, _unit(family, one)) for argument, one in held.items())


def _unit(family: str, name: str) -> str:
    """Return the unit of a field; one that only optax has, such as an eps inside the root, is called as its unit."""
    unit = FAMILIES[family].unit(name) or name
    assert unit in UNITS, (family, name)
    return unit


def _look_ahead(values: Mapping[str, Any]) -> str:
    return "nadam" if values.get("nesterov") else "adam"


def _look_ahead_w(values: Mapping[str, Any]) -> str:
    return "nadam" if values.get("nesterov") else "adamw"


_ADAM = {"learning_rate": "eta", "b1": "beta1", "b2": "beta2", "eps": "eps", "eps_root": "eps_root"}
_DECAY = {**_ADAM, "weight_decay": "weight_decay"}
_DECOUPLED = {"weight_decay": "decoupled_decay"}
_CONTRIB = "optax.contrib"
_FREE = {"weight_lr_power": (2, 2.0)}
_WEIGHTS = "the sum of its weights is known to scale only where a step weighs lr^2"


def _makers() -> Iterator[Maker]:
    yield Maker("adam", Spelling("adam", _ADAM), others=("nadam",), kind=_look_ahead)
    yield Maker("adamw", Spelling("adamw", _DECAY), others=("nadam",), kind=_look_ahead_w, units=_DECOUPLED)
    yield Maker("adam", Spelling("amsgrad", _ADAM))
    yield Maker("nadam", Spelling("nadam", _ADAM), others=("adam",), kind=_look_ahead, takes_record=False)
    yield Maker("nadam", Spelling("nadamw", _DECAY), others=("adamw",), kind=_look_ahead_w, units=_DECOUPLED)
    yield Maker("radam", Spelling("radam", _ADAM))
    plain = {name: held for name, held in _ADAM.items() if name != "eps_root"}
    yield Maker("adamax", Spelling("adamax", plain))
    yield Maker("adamax", Spelling("adamaxw", plain), units=_DECOUPLED)
    yield Maker(
        "rmsprop",
        Spelling(
            "rmsprop",
            {"learning_rate": "eta", "decay": "beta", "eps": "eps_root", "momentum": "momentum"},
            {"initial_scale": "v"},
        ),
        others=("rmsprop-momentum", "rmsprop-centered"),
        kind=lambda values: kind_of_rmsprop(None, values),
        switch=("eps_in_sqrt", False, {"eps": "eps"}),
    )
    yield Maker("sgd", Spelling("sgd", {"learning_rate": "eta", "momentum": "momentum"}))
    # the eps of Adagrad is added to the sum, inside the root
    accumulated = {"learning_rate": "eta", "initial_accumulator_value": "start"}
    yield Maker("adagrad", Spelling("adagrad", accumulated, {"eps": "s"}), takes_record=False)
    yield Maker(
        "adafactor", Spelling("adafactor", {"learning_rate": "eta", "momentum": "beta1", "eps": "eps1"}),
        units={"weight_decay_rate": "step_decay", "decay_offset": "steps"}, takes_record=False,
    )  # fmt: skip
    yield Maker(
        "lars",
        Spelling(
            "lars", {"learning_rate": "eta", "momentum": "momentum", "weight_decay": "weight_decay", "eps": "eps"}
        ),
        takes_record=False,
    )
    yield Maker("lamb", Spelling("lamb", _DECAY))
    mixed = {"learning_rate": "eta", "b1": "beta1", "b2": "beta2", "weight_decay": "weight_decay"}
    yield Maker("lion", Spelling("lion", mixed))
    yield Maker("signum", Spelling("signum", {"learning_rate": "eta", "beta": "mu"}))
    yield Maker("signum", Spelling("sign_sgd", {"learning_rate": "eta"}), takes_record=False)
    yield Maker(
        "muon",
        Spelling(
            "muon", {"learning_rate": "eta", "beta": "mu", "eps": "eps", "weight_decay": "weight_decay"},
            options={"nesterov": "nesterov"},
        ),
        _CONTRIB,
        must_be={"adaptive": (False,), "preconditioning": ("frobenius", "spectral")},
        why="only steps of the size of an orthogonal matrix, with an eps beside the norm, are known here",
        beside=("adamw", {
            "adam_learning_rate": "eta", "adam_b1": "beta1", "adam_b2": "beta2", "eps": "eps",
            "adam_eps_root": "eps_root", "adam_weight_decay": "weight_decay",
        }),
        same_as={"adam_learning_rate": "learning_rate"},
    )  # fmt: skip
    yield Maker("ademamix", Spelling("ademamix", {**_DECAY, "b3": "beta3"}, options={"alpha": "alpha"}), _CONTRIB)
    free = {"learning_rate": "eta", "b1": "beta1", "weight_decay": "weight_decay", "warmup_steps": "warmup"}
    yield Maker("schedulefree-sgd", Spelling("schedule_free_sgd", free), _CONTRIB, must_be=_FREE, why=_WEIGHTS)
    yield Maker(
        "schedulefree-adamw", Spelling("schedule_free_adamw", {**free, "b2": "beta2", "eps": "eps"}),
        _CONTRIB, must_be=_FREE, why=_WEIGHTS,
    )  # fmt: skip


#: optax's optimizers by name. ``state`` of a spelling holds the arguments that are a state's value at the start.
MAKERS: Mapping[str, Maker] = MappingProxyType({one.spelling.name: one for one in _makers()})


def find_maker(optimizer: Any) -> Maker:
    """Return the row of a function of optax, given by its name or itself."""
    for name, maker in MAKERS.items():
        function = maker.function()
        if optimizer == name or (function is not None and optimizer is function):
            if function is None:
                raise ValueError(f"this version of optax has no {maker.name}")
            return maker
    got = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", repr(optimizer))
    raise ValueError(f"optimizer must be one of {', '.join(MAKERS)}, or a record of rootscale; got {got!r}")
