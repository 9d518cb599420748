"""How a run differs from the plan of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from rootscale.format import show
from rootscale.plan import Plan
from rootscale.rules import Rule, get_rule, rule_text


@dataclass(frozen=True)
class Variant:
    """How a run differs from the task's plan.

    Args:
        kappa: batch size over the plan's.
        rule: by which hyperparameters and state are converted, as text (``"linear"``, ``"with power"``,
            ``"sqrt without v, step_counter"``) or as a `Rule`, of which the text is kept; None is the optimizer's own.
        ell: SVAG's; 1 is ordinary training.
        ramp: further switches, each the samples seen before it and the batch size over the plan's from there on.
        zero_state: whether the optimizer's state is thrown away at the switch, as some tools do.
        other_samples: whether it draws its samples anew, which makes it the null: the same run but for its luck. All
            other variants of a seed see the same samples in the same order.
        name: for legends; made from the rest where it is empty.
    """

    kappa: Fraction | float = Fraction(1)
    rule: str | Rule | None = None
    ell: float = 1.0
    ramp: tuple[tuple[int, Fraction | float], ...] = ()
    zero_state: bool = False
    other_samples: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kappa", Fraction(self.kappa))
        object.__setattr__(self, "ramp", tuple((int(at), Fraction(kappa)) for at, kappa in self.ramp))
        object.__setattr__(self, "rule", _text(self.rule))
        for kappa in self.kappas:
            if kappa <= 0:
                raise ValueError(f"kappa must be positive, got {show(kappa)}")
        if self.ramp and self.ell != 1:
            raise ValueError("a ramp of batch sizes is for ordinary training, ell = 1")
        places = [at for at, _ in self.ramp]
        if places != sorted(set(places)):
            raise ValueError(f"the switches of a ramp must follow each other, got {places}")

    @cached_property
    def kappas(self) -> tuple[Fraction, ...]:
        """Return the batch sizes of all stages over the plan's."""
        return (Fraction(self.kappa), *(Fraction(kappa) for _, kappa in self.ramp))

    @property
    def text(self) -> str | None:
        """The rule as text; None is the optimizer's own."""
        return self.rule if self.rule is None else str(self.rule)

    def the_rule(self, plan: Plan) -> Rule:
        """Return the rule by which a plan is converted."""
        return get_rule(self.rule, plan.optimizer.name)

    def plan(self, plan: Plan) -> Plan:
        """Return the plan of the last stage of the run; SVAG's, where ``ell`` is not 1."""
        return self.plans(plan)[-1]

    def plans(self, plan: Plan) -> list[Plan]:
        """Return the plans of all stages."""
        return [self._converted(plan, kappa)[0] for kappa in self.kappas]

    def guards(self, plan: Plan) -> tuple[str, ...]:
        """Return what the conversion warns of."""
        return tuple(dict.fromkeys(text for kappa in self.kappas for text in self._converted(plan, kappa)[1]))

    def _converted(self, plan: Plan, kappa: Fraction) -> tuple[Plan, tuple[str, ...]]:
        """Return a stage and the warnings of its conversion, which is made once for each plan."""
        known = self._conversions.get((id(plan), kappa))
        if known is None:
            known = self._conversions[id(plan), kappa] = (plan, *self._convert(plan, kappa))
        return known[1:]

    @cached_property
    def _conversions(self) -> dict[tuple[int, Fraction], tuple[Plan, Plan, tuple[str, ...]]]:
        return {}  # the plan is held with what was made of it, so that its id is not given to another

    def _convert(self, plan: Plan, kappa: Fraction) -> tuple[Plan, tuple[str, ...]]:
        size = Fraction(plan.batch_size.total) * kappa
        if size.denominator != 1:
            raise ValueError(f"kappa={show(kappa)} makes a batch of {show(size)} samples; it must be whole")
        rule = self.the_rule(plan)
        made = plan.convert(int(size), rule)
        new = made.plan if self.ell == 1 else made.plan.svag(self.ell, rule_text(None, rule.averaging))
        return new, made.warnings

    def label(self, plan: Plan) -> str:
        """Return a name for legends, such as ``B = 16, linear`` or ``SVAG ell = 2``."""
        if self.name:
            return self.name
        sizes = [show(Fraction(plan.batch_size.total) * kappa) for kappa in self.kappas]
        text = f"B = {' -> '.join(sizes)}"
        if self.ell != 1:
            return f"SVAG ell = {show(self.ell)}" + (f", {text}" if self.kappa != 1 else "")
        if set(self.kappas) != {1} and isinstance(self.rule, str):
            text += f" {self.rule}" if self.rule.startswith("with") else f", {self.rule}"
        text += ", state zeroed" if self.zero_state else ""
        return text + (", other samples" if self.other_samples else "")

    @property
    def factors(self) -> dict[str, Any]:
        """What the run differs by, as fields of a table: only what is other than the plan's."""
        found: dict[str, Any] = {"kappa": str(self.kappas[-1])} if set(self.kappas) != {1} else {}
        found |= {"rule": self.rule} if self.rule is not None and found else {}
        found |= {"ell": self.ell} if self.ell != 1 else {}
        for name in ("ramp", "zero_state", "other_samples"):
            found |= {name: True} if getattr(self, name) else {}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        ramp = [[at, str(kappa)] for at, kappa in self.ramp]
        plain = {key: getattr(self, key) for key in ("kappa", "rule", "ell", "ramp", "zero_state")}
        plain |= {"other_samples": True} if self.other_samples else {}  # older runs have no such key
        return {**plain, "kappa": str(self.kappa), "ramp": ramp}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Variant:
        """Return what `to_dict` wrote, also in older versions, which kept averaging and left-out rows apart."""
        rule = record.get("rule")
        if "keep" in record or "averaging" in record:
            rule = rule_text(rule, record.get("averaging", "paper"), record.get("keep", ()))
        ramp = tuple((at, Fraction(kappa)) for at, kappa in record.get("ramp", ()))
        flags = {name: record.get(name, False) for name in ("zero_state", "other_samples")}
        return cls(Fraction(record["kappa"]), rule, record.get("ell", 1.0), ramp, **flags)


def _text(rule: str | Rule | None) -> str | None:
    """Return the text of a rule; a `Rule` must be one that its text leads back to."""
    if not isinstance(rule, Rule):
        return (rule or "").strip() or None
    if get_rule(rule.name, "") != rule:
        raise ValueError(
            f"a variant's rule must be one of rootscale.RULES, or made from one by without() and averaged(); got "
            f"{rule.name!r}, which is another one"
        )
    return rule.name
