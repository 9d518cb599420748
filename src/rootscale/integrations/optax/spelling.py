"""How optax names the families of `rootscale.optimizers`: their arguments and their states, as tables.

To add an optimizer of optax, add a row to `MAKERS`, and one to `STATES` for each state that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rootscale.optimizers import FAMILIES, Spelling

__all__ = ["ARGUMENTS", "HYPERPARAMETERS", "KEPT", "MAKERS", "SECOND_MOMENTS", "STATES", "WALK", "Maker"]


@dataclass(frozen=True)
class Maker:
    """A function of optax that makes an optimizer.

    Args:
        family: in `rootscale.optimizers.FAMILIES`.
        spelling: of the family's hyperparameters and state; its name is that of the function.
        must_be: arguments that must have these values, or the update is another one.
        switch: ``(argument, value, fields)``: with this value, some arguments hold other fields of the record.
    """

    family: str
    spelling: Spelling
    must_be: Mapping[str, object] = field(default_factory=dict)
    switch: tuple[str, object, Mapping[str, str]] | None = None

    def fields(self, switched: bool = False) -> dict[str, Any]:
        """Return the fields of the record that the arguments hold, by the arguments' names."""
        return {**self.spelling.values, **(self.switch[2] if switched and self.switch else {})}

    def units(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the units of the arguments, which may depend on their values."""
        row = FAMILIES[self.family]
        switched = self.switch is not None and values.get(self.switch[0]) == self.switch[1]
        held = {name: row.unit(one) for name, one in self.fields(switched).items()}
        return held | {name: row.state[key] for name, key in self.spelling.state.items()}


_ADAM = {"learning_rate": "eta", "b1": "beta1", "b2": "beta2", "eps": "eps", "eps_root": "eps_root"}
#: optax's optimizers by name. ``state`` of a spelling holds the arguments that are a state's value at the start.
MAKERS: Mapping[str, Maker] = MappingProxyType(
    {
        one.spelling.name: one
        for one in (
            Maker("adam", Spelling("adam", _ADAM), {"nesterov": False}),
            Maker("adamw", Spelling("adamw", {**_ADAM, "weight_decay": "weight_decay"}), {"nesterov": False}),
            Maker("adam", Spelling("amsgrad", _ADAM)),
            Maker(
                "rmsprop",
                Spelling(
                    "rmsprop",
                    {"learning_rate": "eta", "decay": "beta", "eps": "eps_root"},
                    {"initial_scale": "v"},
                ),
                {"momentum": None, "centered": False},
                switch=("eps_in_sqrt", False, {"eps": "eps"}),
            ),
            Maker("sgd", Spelling("sgd", {"learning_rate": "eta", "momentum": "momentum"})),
        )
    }
)

#: What is done with a field of a state that has no unit: look into it, keep it, or convert the arguments it holds.
WALK, KEPT, HYPERPARAMETERS = "walk", "kept", "hyperparameters"


def _state(family: str, names: Mapping[str, str]) -> dict[str, str]:
    """The units of an optimizer's state from the paper's letters, by optax's names."""
    return {name: FAMILIES[family].state[key] for name, key in names.items()}


_ADAM_STATE = _state("adam", {"count": "step", "mu": "m", "nu": "v"})
_CLOCK = {"count": "steps"}
#: optax's states by name: the units of their fields, or what else is done with them.
STATES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "EmptyState": {},
        "MaskedNode": {},
        "ScaleByAdamState": _ADAM_STATE,
        "ScaleByAmsgradState": {**_ADAM_STATE, **_state("adam", {"nu_max": "v"})},
        "ScaleByRmsState": _state("rmsprop", {"nu": "v"}),
        "ScaleByRmsWithCountState": _state("rmsprop", {"count": "step", "nu": "v"}),
        "ScaleByScheduleState": _CLOCK,
        "WeightDecaySchedule": _CLOCK,
        "WrappedScheduleState": _CLOCK,
        "EmaState": {"count": "step_counter", "ema": "m"},
        "TraceState": {"trace": "m"},
        "MaskedState": {"inner_state": WALK},
        "PartitionState": {"inner_states": WALK},
        "ApplyIfFiniteState": {
            "notfinite_count": KEPT, "last_finite": KEPT, "total_notfinite": KEPT, "inner_state": WALK,
        },
        "MultiStepsState": {
            "mini_step": KEPT, "gradient_step": "steps", "inner_opt_state": WALK, "acc_grads": KEPT, "skip_state": KEPT,
        },
        "ZeroNansState": {"found_nan": KEPT},
        "InjectHyperparamsState": {**_CLOCK, "hyperparams": HYPERPARAMETERS, "inner_state": WALK},
        "InjectStatefulHyperparamsState": {
            **_CLOCK, "hyperparams": HYPERPARAMETERS, "hyperparams_states": WALK, "inner_state": WALK,
        },
    }
)  # fmt: skip
SECOND_MOMENTS = frozenset(name for name, units in STATES.items() if "v" in units.values())


def _certain(name: str) -> dict[str, str]:
    """The units of a maker's arguments, but for those that a switch changes."""
    maker = MAKERS[name]
    return {key: unit for key, unit in maker.units({}).items() if maker.switch is None or key not in maker.switch[2]}


#: The units of the arguments that ``inject_hyperparams`` holds, by the state beside them that tells the optimizer.
ARGUMENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "ScaleByAdamState": _certain("adam"),
        "ScaleByAmsgradState": _certain("amsgrad"),
        "ScaleByRmsState": _certain("rmsprop"),
        "ScaleByRmsWithCountState": _certain("rmsprop"),
    }
)
