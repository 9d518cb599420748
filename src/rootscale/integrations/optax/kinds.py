"""The kinds of states that optax's transformations keep: whose they are, and the units of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rootscale.integrations.optax.spelling import Maker
from rootscale.optimizers import FAMILIES

__all__ = ["CENTERED", "FROM_1", "HYPERPARAMETERS", "KEPT", "KINDS", "WALK", "Kind", "family_of_chain"]

#: What is done with a field that has no unit: look into it, keep it, or convert the arguments it holds.
WALK, KEPT, HYPERPARAMETERS = "walk", "kept", "hyperparameters"
#: A second moment beside a mean: only what exceeds the mean's square is noise. And a clock whose first step is 1.
CENTERED, FROM_1 = "centered", "from 1"


@dataclass(frozen=True)
class Kind:
    """A kind of state.

    Args:
        fields: letters of the family's state, units, or what else is done. ``b*eta`` is a piece of state that was
            multiplied by the learning rate before it was kept.
        families: whose it may be; the first one's, if nothing else tells.
        own: fields that differ in one of them.
        ask: whether the user has to say whose it is, where it stands alone.
    """

    fields: Mapping[str, str]
    families: tuple[str, ...] = ()
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ask: bool = False

    def units(self, family: str) -> dict[str, str]:
        """Return the units of the fields, for a family that it may be of, or what else is done with them."""
        state = FAMILIES[family].state if family in self.families else {}
        held = {**self.fields, **self.own.get(family, {})}
        return {name: "*".join(state.get(one, one) for one in what.split("*")) for name, what in held.items()}


_ADAM = {"count": "step", "mu": "m", "nu": "v"}
_CLOCK = {"count": "steps"}
_AFTER_ETA = {"trace": "b*eta"}
_RMS = ("rmsprop", "rmsprop-momentum", "schedulefree-adamw")
#: optax's states by name.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "EmptyState": Kind({}),
        "MaskedNode": Kind({}),
        "ScaleByAdamState": Kind(
            _ADAM, ("adam", "adamw", "nadam", "radam", "lamb", "adamax", "schedulefree-adamw"),
            {"adamax": {"nu": "u"}, "schedulefree-adamw": {"mu": KEPT}},
        ),
        "ScaleByAmsgradState": Kind({**_ADAM, "nu_max": "v"}, ("adam",)),
        "ScaleByRmsState": Kind({"nu": "v"}, _RMS),
        "ScaleByRmsWithCountState": Kind({"count": "step", "nu": "v"}, _RMS),
        "ScaleByRStdDevState": Kind({"mu": KEPT, "nu": CENTERED}, ("rmsprop-centered",)),
        "FactoredState": Kind({"count": "step", "v_row": "row", "v_col": "column", "v": "v"}, ("adafactor",)),
        "ScaleByRssState": Kind({"sum_of_squares": "s"}, ("adagrad",)),
        "ScaleByAdemamixState": Kind(
            {"count": "step", "count_m2": "step", "m1": "m", "m2": "m2", "nu": "v"}, ("ademamix",)
        ),
        "ScaleByLionState": Kind({**_CLOCK, "mu": "m"}, ("lion",)),
        "MuonState": Kind({**_CLOCK, "mu": "m", "ns_coeffs": KEPT}, ("muon",)),
        "TraceState": Kind(
            {"trace": "b"}, ("sgd", "rmsprop-momentum", "rmsprop-centered", "lars"),
            dict.fromkeys(("rmsprop-momentum", "rmsprop-centered", "lars"), _AFTER_ETA),
        ),
        "EmaState": Kind({**_CLOCK, "ema": "m"}, ("signum", "adafactor"), ask=True),
        "ScheduleFreeState": Kind(
            {
                "b1": KEPT, "weight_sum": "weights", "step_count": FROM_1, "max_lr": "eta_max",
                "base_optimizer_state": WALK, "z": KEPT,
            },
            ("schedulefree-sgd", "schedulefree-adamw"),
        ),
        "ScaleByScheduleState": Kind(_CLOCK),
        "WeightDecaySchedule": Kind(_CLOCK),
        "WrappedScheduleState": Kind(_CLOCK),
        "MaskedState": Kind({"inner_state": WALK}),
        "PartitionState": Kind({"inner_states": WALK}),
        "ApplyIfFiniteState": Kind(
            {"notfinite_count": KEPT, "last_finite": KEPT, "total_notfinite": KEPT, "inner_state": WALK}
        ),
        "MultiStepsState": Kind({
            "mini_step": KEPT, "gradient_step": "steps", "inner_opt_state": WALK, "acc_grads": KEPT, "skip_state": KEPT,
        }),
        "ZeroNansState": Kind({"found_nan": KEPT}),
        "InjectHyperparamsState": Kind({**_CLOCK, "hyperparams": HYPERPARAMETERS, "inner_state": WALK}),
        "InjectStatefulHyperparamsState": Kind(
            {**_CLOCK, "hyperparams": HYPERPARAMETERS, "hyperparams_states": WALK, "inner_state": WALK}
        ),
    }
)  # fmt: skip


def family_of_chain(kinds: Sequence[str], path: str, named: Maker | None) -> str | None:
    """Return the family of the states that act on the same parameters, in their order; None where there are none.

    Raises:
        ValueError: no family has them together, or they do not show which of several it is.
    """
    held = [kind for kind in kinds if KINDS[kind].families]
    if not held:
        return None
    together = [one for one in KINDS[held[0]].families if all(one in KINDS[kind].families for kind in held)]
    by_name = [one for one in (named.families if named else ()) if one in together]
    family = (by_name or together or [""])[0]
    if not family:
        raise ValueError(
            f"{path} has {' and '.join(held)} for the same parameters; no known optimizer has them together"
        )
    if "TraceState" in held and len(held) > 1 and not by_name:
        raise ValueError(
            f"{path} has a trace (momentum) besides a second moment; if it is that of optax.rmsprop, which stands "
            "after the learning rate, say optimizer='rmsprop'"
        )
    if held == ["TraceState"] and kinds[-1] == "TraceState" and family == "sgd":
        raise ValueError(
            f"{path} has a trace (momentum) behind everything else, the learning rate too, where its unit is another "
            "one; keep it before, as optax.sgd does, or say optimizer='lars' if it is that of optax.lars"
        )
    if all(KINDS[kind].ask for kind in held) and not by_name:
        raise ValueError(
            f"{path} has {' and '.join(held)}, which does not show what is averaged; say optimizer='signum' if it is "
            "that of optax.signum"
        )
    return family
