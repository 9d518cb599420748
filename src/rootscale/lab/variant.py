"""How a run differs from the plan of its task."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rootscale.changes import ScalingWarning
from rootscale.format import show
from rootscale.plan import Plan
from rootscale.rules import Averaging, Rule, get_rule

__all__ = ["Variant"]


@dataclass(frozen=True)
class Variant:
    """How a run differs from the task's plan.

    Args:
        kappa: batch size over the plan's.
        rule: by which hyperparameters and state are converted; None is the optimizer's own.
        keep: rows of the rule (`rootscale units`) that are left alone.
        ell: SVAG's; 1 is ordinary training.
        averaging: ``paper`` or ``power``, as for `rootscale.Plan.at`.
        ramp: further switches, each the samples seen before it and the batch size over the plan's from there on.
        zero_state: throw the optimizer's state away at the switch, as some tools do.
        name: for legends; made from the rest where it is empty.
    """

    kappa: Fraction | float = Fraction(1)
    rule: str | None = None
    keep: tuple[str, ...] = ()
    ell: float = 1.0
    averaging: Averaging = "paper"
    ramp: tuple[tuple[int, Fraction | float], ...] = ()
    zero_state: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kappa", Fraction(self.kappa))
        object.__setattr__(self, "keep", tuple(self.keep))
        object.__setattr__(self, "ramp", tuple((int(at), Fraction(kappa)) for at, kappa in self.ramp))
        for kappa in self.kappas:
            if kappa <= 0:
                raise ValueError(f"kappa must be positive, got {show(kappa)}")
        if self.ramp and self.ell != 1:
            raise ValueError("a ramp of batch sizes is for ordinary training, ell = 1")
        places = [at for at, _ in self.ramp]
        if places != sorted(set(places)):
            raise ValueError(f"the switches of a ramp must follow each other, got {places}")

    @property
    def kappas(self) -> tuple[Fraction, ...]:
        """Of all stages."""
        return (Fraction(self.kappa), *(Fraction(kappa) for _, kappa in self.ramp))

    def the_rule(self, plan: Plan) -> Rule:
        """The rule with what is left alone taken out."""
        return get_rule(self.rule, plan.optimizer.name, self.averaging).without(*self.keep)

    def plan(self, plan: Plan) -> Plan:
        """The plan of the (last stage of the) run; SVAG's, where ``ell`` is not 1."""
        return self._converted(plan, self.kappas[-1])[0]

    def plans(self, plan: Plan) -> list[Plan]:
        """Of all stages."""
        return [self._converted(plan, kappa)[0] for kappa in self.kappas]

    def guards(self, plan: Plan) -> tuple[str, ...]:
        """What the conversion warns of."""
        return tuple(dict.fromkeys(text for kappa in self.kappas for text in self._converted(plan, kappa)[1]))

    def _converted(self, plan: Plan, kappa: Fraction) -> tuple[Plan, list[str]]:
        size = Fraction(plan.batch_size.total) * kappa
        if size.denominator != 1:
            raise ValueError(f"kappa={show(kappa)} makes a batch of {show(size)} samples; it must be whole")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScalingWarning)
            new = plan.at(int(size), self.the_rule(plan), self.averaging)
        messages = [str(one.message) for one in caught if issubclass(one.category, ScalingWarning)]
        return (new if self.ell == 1 else new.svag(self.ell, self.averaging)), messages

    def label(self, plan: Plan) -> str:
        """In words, for legends."""
        if self.name:
            return self.name
        sizes = [show(Fraction(plan.batch_size.total) * kappa) for kappa in self.kappas]
        text = f"B = {' -> '.join(sizes)}"
        if self.ell != 1:
            return f"SVAG ell = {show(self.ell)}" + (f", {text}" if self.kappa != 1 else "")
        if set(self.kappas) != {1} and self.rule is not None:
            text += f", {self.rule}"
        text += f" without {', '.join(self.keep)}" if self.keep else ""
        return text + (", state zeroed" if self.zero_state else "")

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        ramp = [[at, str(kappa)] for at, kappa in self.ramp]
        plain = {key: value for key, value in self.__dict__.items() if key != "name"}
        return {**plain, "kappa": str(self.kappa), "keep": list(self.keep), "ramp": ramp}
