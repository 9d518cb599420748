"""How optax names the arguments of its functions, and the fields of its states.

A function that makes several families, by its arguments, has a row for each; so has a state that several of them keep.
The ``state`` of a function's row has the arguments that are a state's value at the start. optax is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rootscale.optimizers import FAMILIES
from rootscale.spellings import Fields, Options, Spelling, kind_of_rmsprop, only
from rootscale.units import UNITS

#: The name of an argument, with the family by whose rule it is converted and its unit.
Argument = tuple[str, str, str]

# ---- functions that make optimizers

_ADAM: Mapping[str, Fields] = {
    "learning_rate": "eta", "b1": "beta1", "b2": "beta2", "eps": "eps", "eps_root": "eps_root",
}  # fmt: skip
_PLAIN = {name: held for name, held in _ADAM.items() if name != "eps_root"}
_DECAY = {**_ADAM, "weight_decay": "weight_decay"}
_DECOUPLED = {**_ADAM, "weight_decay": "decoupled_decay"}
_FREE = only("the sum of its weights is known to scale only where a step weighs lr^2", weight_lr_power=(2, 2.0))
_SIZES = only(
    "only steps of the size of an orthogonal matrix, with an eps beside the norm, are known here",
    adaptive=(False,), preconditioning=("frobenius", "spectral"),
)  # fmt: skip
#: The arguments of ``optax.contrib.muon`` for the Adam that other parameters are left to.
_BESIDE = {
    "adam_learning_rate": "eta", "adam_b1": "beta1", "adam_b2": "beta2", "eps": "eps", "adam_eps_root": "eps_root",
    "adam_weight_decay": "weight_decay",
}  # fmt: skip


def _look_ahead(optimizer: Any, options: Options) -> str:
    return "nadam" if options.get("nesterov") else "adam"


def _look_ahead_decoupled(optimizer: Any, options: Options) -> str:
    return "nadam" if options.get("nesterov") else "adamw"


def _eps_of_rmsprop(options: Options) -> Iterator[Argument]:
    """Yield the eps of RMSprop, inside the root or beside it, where that is known."""
    if "eps_in_sqrt" in options:
        yield "eps", kind_of_rmsprop(None, options), "eps_root" if options["eps_in_sqrt"] else "eps"


def _adam_of_muon(options: Options) -> Iterator[Argument]:
    """Yield the arguments of the Adam beside Muon; one has a single learning rate if it says nothing else."""
    yield from ((name, "adamw", _unit("adamw", held)) for name, held in _BESIDE.items())


def _functions() -> Iterator[Spelling]:
    def rows(name: str, values: Mapping[str, Fields], *families: str, **columns: Any) -> Iterator[Spelling]:
        for family in families:
            yield Spelling((name,), family, values, **{"package": "optax", **columns})

    yield from rows("adam", _ADAM, "adam", "nadam", family_of=_look_ahead)
    yield from rows("adamw", _DECAY, "adamw", family_of=_look_ahead_decoupled)
    yield from rows("adamw", _DECOUPLED, "nadam", family_of=_look_ahead_decoupled)
    yield from rows("amsgrad", _ADAM, "adam")
    yield from rows("nadam", _ADAM, "nadam", "adam", family_of=_look_ahead)
    yield from rows("nadamw", _DECOUPLED, "nadam", "adamw", family_of=_look_ahead_decoupled)
    yield from rows("radam", _ADAM, "radam")
    yield from rows("adamax", _PLAIN, "adamax")
    yield from rows("adamaxw", {**_PLAIN, "weight_decay": "decoupled_decay"}, "adamax")
    yield from rows(
        "rmsprop", {"learning_rate": "eta", "decay": "beta", "momentum": "momentum"},
        "rmsprop", "rmsprop-momentum", "rmsprop-centered",
        state={"initial_scale": "v"}, family_of=kind_of_rmsprop, more=_eps_of_rmsprop,
    )  # fmt: skip
    yield from rows("sgd", {"learning_rate": "eta", "momentum": "momentum"}, "sgd")
    # the eps of Adagrad is added to the sum, inside the root
    accumulated = {"learning_rate": "eta", "initial_accumulator_value": "start"}
    yield from rows("adagrad", accumulated, "adagrad", state={"eps": "s"})
    factored = {
        "learning_rate": "eta", "momentum": "beta1", "eps": "eps1", "weight_decay_rate": "step_decay",
        "decay_offset": "steps",
    }  # fmt: skip
    yield from rows("adafactor", factored, "adafactor")
    momentum = {"learning_rate": "eta", "momentum": "momentum", "weight_decay": "weight_decay", "eps": "eps"}
    yield from rows("lars", momentum, "lars")
    yield from rows("lamb", _DECAY, "lamb")
    yield from rows(
        "lion", {"learning_rate": "eta", "b1": "beta1", "b2": "beta2", "weight_decay": "weight_decay"}, "lion"
    )
    yield from rows("signum", {"learning_rate": "eta", "beta": "mu"}, "signum")
    yield from rows("sign_sgd", {"learning_rate": "eta"}, "signum")
    orthogonal = {
        "learning_rate": "eta", "beta": "mu", "eps": "eps", "weight_decay": "weight_decay", "nesterov": "nesterov",
    }  # fmt: skip
    contrib = {"package": "optax.contrib"}
    yield from rows("muon", orthogonal, "muon", check=_SIZES, more=_adam_of_muon, **contrib)
    yield from rows("ademamix", {**_DECAY, "b3": "beta3", "alpha": "alpha"}, "ademamix", **contrib)
    free = {"learning_rate": "eta", "b1": "beta1", "weight_decay": "weight_decay", "warmup_steps": "warmup"}
    yield from rows("schedule_free_sgd", free, "schedulefree-sgd", check=_FREE, **contrib)
    yield from rows(
        "schedule_free_adamw", {**free, "b2": "beta2", "eps": "eps"}, "schedulefree-adamw", check=_FREE, **contrib
    )


def _by_name(rows: Iterator[Spelling]) -> Mapping[str, tuple[Spelling, ...]]:
    table: dict[str, tuple[Spelling, ...]] = {}
    for row in rows:
        table[row.name] = (*table.get(row.name, ()), row)
    return MappingProxyType(table)


#: The rows of optax's functions by their names; the first one is of the family that it makes by default.
FUNCTIONS: Mapping[str, tuple[Spelling, ...]] = _by_name(_functions())


def families_of(rows: tuple[Spelling, ...]) -> tuple[str, ...]:
    """Return the families of rows of one name."""
    return tuple(row.family for row in rows if row.family)


def quantities(rows: tuple[Spelling, ...], options: Options) -> list[Argument]:
    """Return the arguments of a function that have a unit, which may depend on their values.

    >>> quantities(FUNCTIONS["sgd"], {})
    [('learning_rate', 'sgd', 'eta'), ('momentum', 'sgd', 'momentum')]
    """
    first = rows[0]
    family = first.family if first.family_of is None else first.family_of(None, options)
    row = next(row for row in rows if row.family == family)
    held = {(name, family): _unit(family, str(held)) for name, held in row.values.items()}
    held |= {(name, family): FAMILIES[family].state[key] for name, key in row.state.items()}
    held |= {(name, other): unit for name, other, unit in (row.more(options) if row.more else ())}
    return [(name, other, unit) for (name, other), unit in held.items() if unit]


def _unit(family: str, held: str) -> str:
    """Return the unit of a field; one that only optax has, such as an eps inside the root, is called as its unit."""
    if held in FAMILIES[family].record.__dataclass_fields__:
        return FAMILIES[family].unit(held)
    assert held in UNITS, (family, held)
    return held


# ---- states

#: What is done with a field that has no unit: look into it, leave it, or convert the arguments it holds.
WALK, UNCHANGED, HYPERPARAMETERS = "walk", "unchanged", "hyperparameters"
#: A second moment beside a mean: only what exceeds the mean's square is noise. And a clock whose first step is 1.
CENTERED, FROM_1 = "centered", "from 1"


def _states() -> Iterator[Spelling]:
    """Yield optax's states: the letters of the family's state, units, or what else is done with their fields.

    ``b*eta`` is a piece of state that was multiplied by the learning rate before it was kept.
    """

    def rows(name: str, fields: Mapping[str, str], *families: str, unsure: str = "") -> Iterator[Spelling]:
        for family in families or ("",):
            yield Spelling((name,), family, state=fields, unsure=unsure)

    adam, clock = {"count": "step", "mu": "m", "nu": "v"}, {"count": "steps"}
    yield from rows("EmptyState", {})
    yield from rows("MaskedNode", {})
    yield from rows("ScaleByAdamState", adam, "adam", "adamw", "nadam", "radam", "lamb")
    yield from rows("ScaleByAdamState", {**adam, "nu": "u"}, "adamax")
    yield from rows("ScaleByAdamState", {**adam, "mu": UNCHANGED}, "schedulefree-adamw")
    yield from rows("ScaleByAmsgradState", {**adam, "nu_max": "v"}, "adam")
    rms = ("rmsprop", "rmsprop-momentum", "schedulefree-adamw")
    yield from rows("ScaleByRmsState", {"nu": "v"}, *rms)
    yield from rows("ScaleByRmsWithCountState", {"count": "step", "nu": "v"}, *rms)
    yield from rows("ScaleByRStdDevState", {"mu": UNCHANGED, "nu": CENTERED}, "rmsprop-centered")
    yield from rows("FactoredState", {"count": "step", "v_row": "row", "v_col": "column", "v": "v"}, "adafactor")
    yield from rows("ScaleByRssState", {"sum_of_squares": "s"}, "adagrad")
    yield from rows(
        "ScaleByAdemamixState", {"count": "step", "count_m2": "step", "m1": "m", "m2": "m2", "nu": "v"}, "ademamix"
    )
    yield from rows("ScaleByLionState", {**clock, "mu": "m"}, "lion")
    yield from rows("MuonState", {**clock, "mu": "m", "ns_coeffs": UNCHANGED}, "muon")
    yield from rows("TraceState", {"trace": "b"}, "sgd")
    yield from rows("TraceState", {"trace": "b*eta"}, "rmsprop-momentum", "rmsprop-centered", "lars")
    averaged = "which does not show what is averaged; say optimizer='signum' if it is that of optax.signum"
    yield from rows("EmaState", {**clock, "ema": "m"}, "signum", "adafactor", unsure=averaged)
    free = {
        "b1": UNCHANGED, "weight_sum": "weights", "step_count": FROM_1, "max_lr": "eta_max",
        "base_optimizer_state": WALK, "z": UNCHANGED,
    }  # fmt: skip
    yield from rows("ScheduleFreeState", free, "schedulefree-sgd", "schedulefree-adamw")
    for name in ("ScaleByScheduleState", "WeightDecaySchedule", "WrappedScheduleState"):
        yield from rows(name, clock)
    yield from rows("MaskedState", {"inner_state": WALK})
    yield from rows("PartitionState", {"inner_states": WALK})
    finite = dict.fromkeys(("notfinite_count", "last_finite", "total_notfinite"), UNCHANGED)
    yield from rows("ApplyIfFiniteState", {**finite, "inner_state": WALK})
    several = dict.fromkeys(("mini_step", "acc_grads", "skip_state"), UNCHANGED)
    yield from rows("MultiStepsState", {**several, "gradient_step": "steps", "inner_opt_state": WALK})
    yield from rows("ZeroNansState", {"found_nan": UNCHANGED})
    injected = {**clock, "hyperparams": HYPERPARAMETERS, "inner_state": WALK}
    yield from rows("InjectHyperparamsState", injected)
    yield from rows("InjectStatefulHyperparamsState", {**injected, "hyperparams_states": WALK})


#: The rows of optax's states by their names: a row for each family that may keep one.
STATES: Mapping[str, tuple[Spelling, ...]] = _by_name(_states())


def units_of_state(name: str, family: str) -> dict[str, str]:
    """Return the units of a state's fields, for a family that it may be of, or what else is done with them.

    >>> units_of_state("TraceState", "lars")
    {'trace': 'buffer*eta'}
    """
    row = next((row for row in STATES[name] if row.family == family), STATES[name][0])
    letters = FAMILIES[row.family].state if row.family else {}
    return {name: "*".join(letters.get(part, part) for part in what.split("*")) for name, what in row.state.items()}
