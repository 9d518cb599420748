"""The registry of optimizer families: one row for each, as data.

A family is a kind of update, whoever implements it. Its row says which record holds its hyperparameters, which rule
keeps its dynamics and how sure that is, what state it carries in which units, and how torch spells all of that. Plans,
snippets, live conversions, the noise metric, the lab and the converters of configurations read this table.
`rootscale.training.adapters` leads from a live torch optimizer to its row, by the names of classes here and in
`rootscale.spellings.libraries`. To add an optimizer, add a row here, or call `rootscale.training.register`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rootscale import records
from rootscale.hparams import SGD, Adam, AdamW, Optimizer, RMSprop
from rootscale.spellings import Fields, Spelling, decoupled_or_not, kind_of_rmsprop
from rootscale.units import LI, PAPER, SCALES, Status

#: What libraries call the option that weight decay is decoupled from the gradient.
_DECOUPLED = ("decoupled_weight_decay", "weight_decouple")


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
            name: self.unit(held) if isinstance(held, str) else tuple(self.unit(each) for each in held)
            for name, held in self.torch.values.items()
            if not isinstance(held, str) or self.unit(held)
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
        return {name: self.state[key] for name, key in self.torch.parameter_state.items()}

    def unknown_state(self, states: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the names of numbers and tensors in a state that the family has not: they would keep the old units.

        >>> from rootscale.optimizers import FAMILIES
        >>> FAMILIES["adam"].unknown_state([{"exp_avg": 0.5, "velocity": 0.5, "is_frozen": False}])
        ['velocity']
        """
        spelling = self.torch
        known = {*(name.partition("[")[0] for name in spelling.parameter_state), *spelling.unchanged}
        held = {str(name) for state in states for name, value in state.items() if _has_numbers(value)}
        return sorted(held - known)


def _has_numbers(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_numbers(one) for one in value)
    return value is not None and not isinstance(value, bool | str)


_MOMENTS: Mapping[str, str] = MappingProxyType({"m": "m", "v": "v", "v_max": "v", "step": "step_counter"})
_ADAM_VALUES: Mapping[str, Fields] = MappingProxyType(
    {"lr": "eta", "betas": ("beta1", "beta2"), "eps": "eps", "weight_decay": "weight_decay"}
)
_ADAM_STATE: Mapping[str, str] = MappingProxyType(
    {"exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "v_max", "step": "step"}
)
_RMS_VALUES: Mapping[str, Fields] = MappingProxyType(
    {"lr": "eta", "alpha": "beta", "eps": "eps", "weight_decay": "weight_decay"}
)
#: What Schedule-Free keeps beside its hyperparameters; its step is ``k`` or ``step``.
_AVERAGE_WEIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "group.k": "step",
        "group.step": "step",
        "group.lr_max": "eta_max",
        "group.scheduled_lr": "eta_max",
        "group.weight_sum": "weights",
    }
)
#: Momentum that averages gradients, or sums them, as some classes do.
_MOMENTUM: Mapping[str, str] = MappingProxyType({"m": "m", "b": "m_sum"})
_SQRT = ("sqrt",)
_NORMALIZED = ("normalized-sqrt", "normalized-half", "normalized-linear")
_SIGNS = "SDE derived, orders measured"
_NO_SDE = f"{SCALES}; no SDE is known"


def _torch(name: str, family: str, values: Mapping[str, Fields], state: Mapping[str, str], **columns: Any) -> Spelling:
    """Return how torch spells a family."""
    return Spelling((name,), family, values, state, "torch", **columns)


def _elsewhere(
    name: str, family: str, values: Mapping[str, Fields], state: Mapping[str, str], **columns: Any
) -> Spelling:
    """Return how the libraries spell a family that torch does not have."""
    return Spelling((name,), family, values, state, **columns)


def _adam_like() -> Iterator[Family]:
    yield Family(
        "adam", Adam, _SQRT, _MOMENTS,
        _torch("Adam", "adam", _ADAM_VALUES, _ADAM_STATE, family_of=decoupled_or_not),
        "theorem", f"{PAPER}, Thm 5.3",
        "theta moves by eta m / sqrt(v), and sqrt(v) is the noise: the SDE's constants are sigma eta, (1 - beta) / "
        "eta^2 and eps eta, its clock is k eta^2.",
        bias_corrected=True, elementwise=True,
    )  # fmt: skip
    yield Family(
        "adamw", AdamW, _SQRT, _MOMENTS, _torch("AdamW", "adamw", _ADAM_VALUES, _ADAM_STATE),
        "derived", f"{PAPER}, Thm 5.3",
        "Adam's SDE with a drift -(lambda / eta) theta: lambda / eta is the decay per unit of time.",
        bias_corrected=True, elementwise=True,
    )  # fmt: skip
    yield Family(
        "rmsprop", RMSprop, _SQRT, {"v": "v", "step": "step_counter"},
        _torch(
            "RMSprop", "rmsprop", _RMS_VALUES, {"square_avg": "v", "step": "step"}, unchanged=("momentum_buffer",),
            family_of=kind_of_rmsprop,
        ), "theorem",
        f"{PAPER}, Thm 4.2",
        "Adam's SDE without averaging of the gradient.",
        elementwise=True,
    )  # fmt: skip
    yield Family(
        "rmsprop-momentum", records.RMSpropMomentum, ("sqrt", "sqrt-time"),
        {"v": "v", "b": "buffer", "step": "step_counter"},
        _torch(
            "RMSprop", "rmsprop-momentum", {**_RMS_VALUES, "momentum": "momentum"},
            {"square_avg": "v", "momentum_buffer": "b", "step": "step"},
        ),
        "derived", SCALES,
        "The buffer sums g / sqrt(v), which has no unit. Kept in steps it makes the learning rate eta / (1 - mu), "
        "as in SGD; kept in samples (sqrt-time) it needs eta kappa^(3/2).",
        elementwise=True,
    )  # fmt: skip
    yield Family(
        "rmsprop-centered", records.RMSpropCentered, ("sqrt", "sqrt-time"),
        {"v": "v", "a": "m", "b": "buffer", "step": "step_counter"},
        _torch(
            "RMSprop", "rmsprop-centered", {**_RMS_VALUES, "momentum": "momentum"},
            {"square_avg": "v", "grad_avg": "a", "momentum_buffer": "b", "step": "step"},
            defaults={"centered": True},
        ),
        "derived", SCALES,
        "v - a^2 is the variance of the noise, which falls as 1/kappa also where the mean is not small; the mean a "
        "is kept, so v becomes a^2 + (v - a^2) / kappa.",
    )  # fmt: skip
    yield Family(
        "nadam", records.NAdam, _SQRT, {**_MOMENTS, "product": "product"},
        _torch(
            "NAdam", "nadam", {**_ADAM_VALUES, "momentum_decay": "momentum_decay"},
            {**_ADAM_STATE, "mu_product": "product"},
        ),
        "derived", SCALES,
        "Adam; the look-ahead adds (1 - mu) g, which vanishes beside m as eta^2 does. The ramp of mu is counted in "
        "steps. It starts at beta1 / 2, which no rule can convert: true after about 100 / momentum_decay steps.",
        bias_corrected=True, elementwise=True,
    )  # fmt: skip
    yield Family(
        "radam", records.RAdam, _SQRT, _MOMENTS, _torch("RAdam", "radam", _ADAM_VALUES, _ADAM_STATE), "derived", SCALES,
        "Adam times a rectification of rho, a number of steps: rho scales as 1/kappa with the counter and beta2, "
        "and the rectification depends on ratios of it. Its first steps, rho <= 5, do not divide by v and are not "
        "kept.",
        bias_corrected=True,
    )  # fmt: skip
    yield Family(
        "adamax", records.Adamax, _SQRT, {"m": "m", "u": "sup", "step": "step_counter"},
        _torch("Adamax", "adamax", _ADAM_VALUES, {"exp_avg": "m", "exp_inf": "u", "step": "step"}), "heuristic", SCALES,
        "The maximum of |g| is measured in noise, kappa^(-1/2); but the maximum over fewer steps is smaller, by the "
        "logarithm of their number, which no power of kappa follows.",
    )  # fmt: skip
    yield Family(
        "microbatchadam", Adam, ("invariant",), _MOMENTS,
        _elsewhere("MicroBatchAdam", "microbatchadam", _ADAM_VALUES, _ADAM_STATE),
        "derived", "arXiv 2402.18824",
        "v averages squares of micro-batches of a fixed size and does not depend on the batch size: Adam scales as "
        "SGD.",
        bias_corrected=True, elementwise=True,
    )  # fmt: skip


def _beyond_adam() -> Iterator[Family]:
    yield Family(
        "adafactor", records.Adafactor, _SQRT,
        {"v": "v", "row": "v", "column": "v", "m": "m_steps", "step": "step_counter"},
        _torch(
            "Adafactor", "adafactor",
            {"lr": "eta", "weight_decay": "weight_decay", "beta2_decay": "beta2_decay", "d": "clip"},
            {"row_var": "row", "col_var": "column", "variance": "v", "step": "step"},
        ),
        "derived", SCALES,
        "g / sqrt(v) as in RMSprop: rows and columns of v by 1/kappa, k^(-1/2) by the clock, the clip of an rms "
        "near 1 kept. The weight 1 - k^(-0.8) follows the clock up to kappa^(1/5).",
    )  # fmt: skip
    yield Family(
        "ademamix", records.AdEMAMix, _SQRT, {**_MOMENTS, "m2": "m2"},
        _elsewhere(
            "AdEMAMix", "ademamix",
            {
                "lr": "eta", "betas": ("beta1", "beta2", "beta3"), "eps": "eps", "weight_decay": "weight_decay",
                "t_alpha_beta3": "warmup", "alpha": "alpha",
            },
            {"exp_avg": "m", "exp_avg_sq": "v", "exp_avg_slow": "m2", "step": "step", "group.step": "step"},
        ),
        "derived", SCALES,
        "Adam with a second average of g: 1 - beta3 scales as 1 - beta1, m2 is kept as m is, alpha is a ratio, and "
        "the warm-ups of alpha and beta3 are counted in steps.",
        bias_corrected=True,
    )  # fmt: skip
    yield Family(
        "soap", records.SOAP, _SQRT,
        {**_MOMENTS, "left": "v", "right": "v", "frequency": "frequency", "beta3": "beta3"},
        _elsewhere(
            "SOAP", "soap",
            {
                "lr": "eta", "betas": ("beta1", "beta2"), "shampoo_beta": "shampoo_beta", "eps": "eps",
                "weight_decay": "weight_decay", "precondition_frequency": "frequency",
            },
            {
                "exp_avg": "m", "exp_avg_sq": "v", "GG": "left", "precondition_frequency": "frequency",
                "shampoo_beta": "beta3", "step": "step", "group.step": "step",
            }, unchanged=("Q",),
        ),
        "derived", SCALES,
        "Adam in the eigenbasis of averages of g g^T: they fall as 1/kappa in all directions, so the basis stays; "
        "it is renewed after equal samples.",
        bias_corrected=True,
    )  # fmt: skip
    yield Family(
        "shampoo", records.Shampoo, _SQRT, {"m": "m", "left": "v", "right": "v", "step": "step_counter"},
        _elsewhere(
            "Shampoo", "shampoo",
            {
                "lr": "eta", "betas": ("beta1", "beta2"), "eps": "eps", "weight_decay": "weight_decay",
                "precondition_frequency": "frequency",
            },
            {"exp_avg": "m", "step": "step"},
        ),
        "derived", SCALES,
        "L^(-1/4) m R^(-1/4) with averages L and R that fall as 1/kappa: the step grows as kappa^(1/2), as Adam's "
        "does.",
    )  # fmt: skip
    yield Family(
        "schedulefree-adamw", records.ScheduleFreeAdamW, _SQRT,
        {"v": "v", "step": "step_counter", "eta_max": "eta", "weights": "weight_sum"},
        _elsewhere(
            "AdamWScheduleFree", "schedulefree-adamw",
            {
                "lr": "eta", "betas": ("beta1", "beta2"), "eps": "eps", "weight_decay": "weight_decay",
                "warmup_steps": "warmup",
            },
            {"exp_avg_sq": "v", **_AVERAGE_WEIGHTS}, unchanged=("z",),
        ),
        "derived", SCALES,
        "RMSprop on z with an average x over all steps: beta1 is a point between x and z and has no unit. A step "
        "weighs eta^2, kappa times as much, and there are 1/kappa times the steps: the sum of weights is kept.",
        bias_corrected=True,
    )  # fmt: skip
    yield Family(
        "adagrad", records.Adagrad, ("adagrad",), {"s": "sum", "step": "step_counter"},
        _torch(
            "Adagrad", "adagrad",
            {
                "lr": "eta", "eps": "eps", "weight_decay": "weight_decay", "lr_decay": "lr_decay",
                "initial_accumulator_value": "start",
            },
            {"sum": "s", "step": "step"},
        ),
        "derived", SCALES,
        "The sum of squares has 1/kappa times the terms, each 1/kappa as large: its root falls as 1/kappa, which is "
        "all that the learning rate would have to grow by.",
    )  # fmt: skip
    yield Family(
        "lars", records.LARS, _SQRT, {"b": "buffer"},
        _elsewhere(
            "LARS", "lars", {"lr": "eta", "momentum": "momentum", "weight_decay": "weight_decay"},
            {"momentum_buffer": "b"},
        ),
        "derived", SCALES,
        "The gradient is divided by its norm, which is the noise's: kappa^(-1/2), as sqrt(v). The buffer sums steps "
        "without unit and is kept.",
    )  # fmt: skip


def _degree_0() -> Iterator[Family]:
    yield Family(
        "muon", records.Muon, _NORMALIZED, _MOMENTUM,
        _torch(
            "Muon", "muon",
            {"lr": "eta", "momentum": "mu", "weight_decay": "weight_decay", "eps": "eps", "nesterov": "nesterov"},
            {"momentum_buffer": "m"},
        ),
        "derived", _NO_SDE,
        "Momentum is divided by its own size, the noise that its average leaves. a = 0 is the default, as many loops "
        "set mu themselves at every step; a = 1/2 is nearer where none does.",
    )  # fmt: skip
    yield Family(
        "lion", records.Lion, _NORMALIZED, {"m": "m"},
        _elsewhere(
            "Lion", "lion", {"lr": "eta", "betas": ("beta1", "beta2"), "weight_decay": "weight_decay"},
            {"exp_avg": "m"},
        ),
        "derived", _SIGNS,
        "The sign of momentum plus gradient is momentum divided by the noise of both: as Muon, by coordinates. Its "
        "SDEs keep a = 0 (mu in steps) and a = 1 (mu in samples).",
    )  # fmt: skip
    yield Family(
        "signum", records.Signum, _NORMALIZED, _MOMENTUM,
        _elsewhere(
            "Signum", "signum", {"lr": "eta", "momentum": "mu", "weight_decay": "weight_decay"},
            {"momentum_buffer": "m"},
        ),
        "derived", f"{_SIGNS}; for mu = 0 also arXiv 2411.15958",
        "The sign of momentum is on average its mean over its noise: as Muon, by coordinates. Its SDEs keep a = 0 (mu "
        "in steps) and a = 1 (mu in samples).",
    )  # fmt: skip
    yield Family(
        "lamb", records.LAMB, ("normalized-half", "normalized-linear", "normalized-sqrt"), _MOMENTS,
        _elsewhere(
            "Lamb", "lamb", {**_ADAM_VALUES, "max_grad_norm": "max_grad_norm"},
            {"exp_avg": "m", "exp_avg_sq": "v", "step": "step", "group.step": "step"},
            unchanged=("weight_norm", "adam_norm", "trust_ratio"),  # a record of the last step
        ), "derived", _NO_SDE,
        "Adam's step is divided by its own norm, the noise that beta1's average leaves: as Muon, with v by 1/kappa.",
        bias_corrected=True,
    )  # fmt: skip


def _degree_1() -> Iterator[Family]:
    yield Family(
        "sgd", SGD, ("linear", "linear-time"), {"b": "buffer"},
        _torch(
            "SGD", "sgd", {"lr": "eta", "momentum": "momentum", "weight_decay": "weight_decay"},
            {"momentum_buffer": "b"},
        ),
        "theorem", LI,
        "theta moves by eta g: the SDE's constants are sqrt(eta) sigma, its clock is k eta. Momentum makes it eta / "
        "(1 - mu); its window is kept in steps (linear) or in samples (linear-time, derived).",
        degree=1,
    )  # fmt: skip
    yield Family(
        "schedulefree-sgd", records.ScheduleFreeSGD, ("linear",),
        {"step": "step_counter", "eta_max": "eta", "weights": "weight_sum"},
        _elsewhere(
            "SGDScheduleFree", "schedulefree-sgd",
            {"lr": "eta", "momentum": "beta1", "weight_decay": "weight_decay", "warmup_steps": "warmup"},
            _AVERAGE_WEIGHTS, unchanged=("z",),
        ),
        "derived", SCALES,
        "SGD on z with an average x: a step weighs eta^2, kappa^2 times as much, and there are 1/kappa times the "
        "steps.",
        degree=1,
    )  # fmt: skip


_FAMILIES: dict[str, Family] = {
    row.name: row for rows in (_adam_like, _beyond_adam, _degree_0, _degree_1) for row in rows()
}
_OPTIMIZERS: dict[str, type[Optimizer]] = {
    row.name: row.record for row in _FAMILIES.values() if row.record.name == row.name
}
#: Every family by its name.
FAMILIES: Mapping[str, Family] = MappingProxyType(_FAMILIES)
#: The records by the names that the command line, plan files and rules use.
OPTIMIZERS: Mapping[str, type[Optimizer]] = MappingProxyType(_OPTIMIZERS)


def family(name: str) -> Family:
    """Return the row of that name."""
    if name not in FAMILIES:
        raise ValueError(f"optimizer must be one of {', '.join(FAMILIES)}, got {name!r}")
    return FAMILIES[name]


def add_family(row: Family) -> None:
    """Add a row of a user's own; the rows of this module cannot be replaced."""
    if row.name in FAMILIES and FAMILIES[row.name] != row:
        raise ValueError(f"there is a family {row.name!r} already; choose another name")
    _FAMILIES[row.name] = row
    if row.record.name == row.name:
        _OPTIMIZERS[row.name] = row.record
