"""Scaling rules: a rule is a choice of rows of the table of units, with a form of averaging.

A quantity that a rule has no row for is kept. Every rule converts the clock (``steps``): runs are compared after equal
numbers of samples. A rule can be written as text, ``[NAME] [with AVERAGING] [without ROW, ROW]``, and its name is that
text: ``"sqrt"``, ``"with power"`` (the optimizer's own rule, with ``beta^kappa``), ``"sqrt without beta2, v"``.

**Averaging.** The paper turns ``beta`` into ``1 - kappa (1 - beta)``, which ends at ``kappa = 1 / (1 - beta)``: 10 for
beta1 = .9. Long before that the average is too short to damp single steps, and they have become longer: along a
direction in which the loss has the curvature ``h`` (over ``sqrt(v)``), Adam is stable while
``eta h < 2 (1 + beta1) / (1 - beta1)`` (Cohen et al. 2022, arXiv 2207.14484). The rule multiplies ``eta h`` by kappa,
as ``sqrt(v)`` shrinks, and the paper's form divides the bound by about as much. Adam is linear in ``m``: as long as the
memory of beta1 is short beside the time in which the loss changes, drift and diffusion of the SDE do not depend on
beta1. So beta1 may stop at a floor, if ``m`` gets the noise level that an average of that length has. By default the
betas follow the paper down to floors of .9, and nothing is refused for its kappa. experiments/floors.py measured which
one: on a GPT at 16 times the batch a floor of .8 threw the loss up, and .9 did not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from rootscale.averagings import AVERAGINGS, get_averaging
from rootscale.format import show
from rootscale.hparams import DOMAINS, number, positive
from rootscale.messages import say
from rootscale.optimizers import FAMILIES, OPTIMIZERS, family
from rootscale.rule_rows import all_rows
from rootscale.units import AVERAGE, GRADIENT_DEGREES, KEPT, UNITS, Form, Number, Unit, stops, times

__all__ = ["RULES", "Rule", "get_rule", "svag_weights"]

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Rule:
    """A choice of rows of the table.

    Args:
        key: of the rule in `RULES`, from which this one was made.
        summary: what it is, in one line.
        units: the rows it applies, by key.
        adaptive: whether it is for optimizers whose update does not grow with the gradient, and refuses others.
        averaging: the form in which beta1, beta2 and m are converted: a name that `get_averaging` knows.
        left_out: rows that were taken out; those quantities are kept.
        holds_for: the optimizers whose dynamics it keeps.
    """

    key: str
    summary: str
    units: Mapping[str, Unit]
    adaptive: bool = False
    averaging: str = "floor"
    left_out: tuple[str, ...] = ()
    holds_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The rule as text, which `get_rule` reads.

        >>> RULES["sqrt"].averaged("power").without("beta2", "v").name
        'sqrt with power without beta2, v'
        """
        return rule_text(self.key, self.averaging, self.left_out)

    @property
    def refuses(self) -> tuple[str, ...]:
        """The optimizers it is not defined for."""
        return tuple(name for name, row in FAMILIES.items() if self.adaptive and row.degree)

    def convert(self, key: str, value: Number, kappa: Number, name: str | None = None) -> Number:
        """Return ``value``, a quantity of the unit ``key``, at ``kappa`` times the batch size.

        ``name`` is how errors call it.

        Raises:
            ValueError: there is no valid value; the message has the largest ``kappa`` that has one.
        """
        unit = self.units.get(key)
        if unit is None or kappa == 1:
            return value
        name, form = name or key, unit.form
        limit = form.limit(value)
        if float(kappa) >= limit * (1 - 1e-12):  # 1 - 10 (1 - .9) is 0, and not what rounding leaves of it
            text = say("too large", kappa=show(kappa), name=name, value=show(form(value, kappa)), limit=show(limit))
            if UNITS[key].form.floor is not None:
                text += say("or floors", name=name, value=show(UNITS[key].form(value, kappa)))
            raise ValueError(text)
        try:
            result = form(value, kappa)
            if value:
                DOMAINS.get(key, positive)(name, float(result))
        except (OverflowError, ValueError, ZeroDivisionError):
            raise ValueError(
                say("out of range", kappa=show(kappa), name=name, value=show(value), form=form.text)
            ) from None
        return result

    def factor(self, key: str, kappa: Number, before: Mapping[str, float], after: Mapping[str, float]) -> float:
        """Return what a piece of state of the unit ``key`` is multiplied by.

        Args:
            key: of the unit.
            kappa: new batch size over old one.
            before, after: the weights of the averages that the optimizer has, by their keys.
        """
        unit = self.units.get(key)
        followed = unit.form.follows if unit else None
        if unit is None or followed is None:
            return float(self.convert(key, 1.0, kappa))
        return float(unit.form(1.0, kappa, before[followed], after[followed])) if followed in before else 1.0

    def row(self, key: str, before: Number | None, after: Number | None, kappa: Number) -> Unit | None:
        """Return the row that was applied to a value: where it has stopped at a floor, one that says so."""
        unit = self.units.get(key)
        if unit is None or before is None or after is None or not stops(unit.form, before, after, kappa):
            return unit
        words = {"value": show(AVERAGE.apply(before, kappa)), "floor": show(unit.form.floor)}
        if unit.form.kind == "floored" and before < (unit.form.floor or 0.0):
            return replace(unit, status="heuristic", why=say("below floor", **words))
        return replace(unit, status="measured", source="experiments/floors.py", why=say("floor", **words))

    def converted(self, record: Any, kappa: Number) -> dict[str, Any]:
        """Return the values at ``kappa`` of the record's own fields that have a unit, lists and mappings by item."""
        new: dict[str, Any] = {}
        for f in fields(record):
            value, key = getattr(record, f.name), f.metadata.get("unit")
            if key is None or value is None:
                continue
            label = f.metadata["label"] or f.name
            if isinstance(value, tuple):
                new[f.name] = tuple(self.convert(key, item, kappa, label) for item in value)
            elif isinstance(value, Mapping):
                new[f.name] = {name: self.convert(key, item, kappa, f"{label} {name}") for name, item in value.items()}
            else:
                new[f.name] = self.convert(key, value, kappa, label)
        return new

    def convert_record(self, record: _Record, kappa: Number) -> _Record:
        """Return a record, such as an optimizer's, at ``kappa`` times the batch size."""
        return replace(record, **self.converted(record, kappa))  # type: ignore[type-var]

    def without(self, *keys: str) -> Rule:
        """Return the rule with some rows left out: those quantities are kept (``rootscale units`` lists the keys).

        >>> RULES["sqrt"].without("beta2", "v").name
        'sqrt without beta2, v'
        """
        for key in keys:
            if key not in self.units or key == "steps":
                rows = ", ".join(row for row in self.units if row != "steps")
                raise ValueError(f"rule {self.name!r} has no row {key!r} to leave out; it has {rows}")
        rest = {key: unit for key, unit in self.units.items() if key not in keys}
        return replace(self, units=MappingProxyType(rest), left_out=(*self.left_out, *keys), holds_for=())

    def averaged(self, form: str) -> Rule:
        """Return the rule with another form of averaging, by its name.

        >>> RULES["sqrt"].averaged("power").units["beta1"].form.text
        'x^kappa'
        """
        new = get_averaging(form)
        if form == self.averaging:
            return self
        old = get_averaging(self.averaging)
        origin = RULES[self.key].units if self.key in RULES else self.units
        rows = {}
        for key, unit in self.units.items():
            if key in new.forms and unit.form is old.forms[key]:
                base = replace(origin[key], form=new.forms[key])
                rows[key] = replace(base, status="derived", why=f"{base.why}; {new.why}") if new.why else base
        return replace(self, units=MappingProxyType({**self.units, **rows}), averaging=form)

    def summed(self, degree: int) -> Rule:
        """Return the rule for a loss that is the sum over the batch and not its mean.

        The gradient of a sum is ``B`` times that of the mean, ``G = B g``. So whatever is measured in gradients is
        measured in units that grow with the batch: a quantity that scales as ``g^d`` takes ``kappa^d`` more than under
        the mean. With noise, ``v`` of the mean takes ``1/kappa``, and of the sum ``kappa^2 / kappa = kappa``; ``m``
        takes ``kappa``, an ``eps`` beside ``sqrt(v)`` and a clip ``kappa^(1/2)``, and an L2 penalty, which is added to
        the gradient, ``kappa``. The learning rate of an update that does not grow with the gradient stays that of the
        mean; that of SGD takes ``1/kappa`` more, so that the linear rule leaves it as it is.

        Args:
            degree: of the family's update in the gradient, as in `Family.degree`.

        >>> RULES["sqrt"].summed(0).units["v"].form.text, RULES["sqrt"].summed(0).convert("eps", 1e-8, 4)
        ('x / kappa, times kappa^2', 2e-08)
        """
        powers = {**GRADIENT_DEGREES, **({"eta": -1, "min_eta": -1, "buffer": 1} if degree else {})}
        rows = {
            key: replace(unit, form=times(unit.form, powers[key]), status="derived", why=say("summed", why=unit.why))
            for key, unit in self.units.items()
            if powers.get(key)
        }
        kept = {
            key: replace(UNITS[key], form=times(KEPT, power), status="derived", why=say("summed", why="kept"))
            for key, power in powers.items()
            if key not in self.units and key in UNITS and power and key not in self.left_out
        }
        return replace(self, units=MappingProxyType({**self.units, **kept, **rows}), holds_for=self.holds_for)

    def compared(self) -> Rule:
        """Return the rule as it is for an optimizer whose dynamics it does not keep: no row is a theorem there."""
        rows = {
            key: replace(unit, status="heuristic", why=say("compared", why=unit.why))
            for key, unit in self.units.items()
            if unit.status == "theorem" and key != "steps"
        }
        return replace(self, units=MappingProxyType({**self.units, **rows}), holds_for=())

    def check(self, optimizer: str) -> list[str]:
        """Return the warnings that hold for this optimizer at any ``kappa``.

        Raises:
            ValueError: the rule is not defined for this optimizer.
        """
        own = default_rule(optimizer).name
        if optimizer in self.refuses:
            able = ", ".join(name for name in OPTIMIZERS if name not in self.refuses)
            raise ValueError(say("refused", rule=self.name, able=able, optimizer=optimizer, own=own))
        if optimizer in self.holds_for:
            return []
        if self.key == "invariant":
            return [say("invariant", optimizer=optimizer, own=own)]
        return [say("other dynamics", rule=self.name, optimizer=optimizer, own=own)]

    def check_averages(self, kappa: Number, beta1: float, beta2: float | None) -> list[str]:
        """Return warnings where the averages become too short for the SDE to describe them, which floors prevent."""
        weights = {"beta2": beta2, "beta1": beta1 or None}
        return [
            say(f"short {key}", value=show(kappa * (1 - beta)), limit=show(shortest_average(beta)))
            for key, beta in weights.items()
            if beta is not None and self.shortens(key) and kappa >= shortest_average(beta)
        ]

    def longest_momentum(self, mu: float, batches: float) -> float:
        """Return the kappa up to which momentum that is normalised is more noise than gradient.

        Its noise, which the rule measures steps by, is that of `averaged_batches`; beyond it a step has a fixed length.
        Nothing limits a rule that follows no noise of momentum: its step is linear in it, or grows with kappa.

        Args:
            mu: the weight of momentum.
            batches: the noise scale in batches of the present size.
        """
        form = self.form("m")
        if not mu or form.kind != "power" or not form.exponent:
            return math.inf
        return float((batches / averaged_batches(mu)) ** float(-1 / (2 * form.exponent)))

    def form(self, key: str) -> Form:
        """Return the form in which a quantity of the unit ``key`` is converted."""
        return self.units[key].form if key in self.units else KEPT

    def shortens(self, key: str) -> bool:
        """Return whether the average of that key gets shorter without a floor as the batch grows."""
        return key in self.units and self.units[key].form.floor is None


def shortest_average(beta: float) -> float:
    """Return the ``kappa`` at which ``kappa (1 - beta)`` is 1/2: beyond it the average is too short for the SDE."""
    return 1 / (2 * (1 - beta))


def averaged_batches(beta: float) -> float:
    """Return how many batches have as little noise together as their average of weight ``beta``.

    >>> round(averaged_batches(0.95))
    39
    """
    return (1 + beta) / (1 - beta)


def _held(rule: Rule) -> Rule:
    """The rule with the optimizers whose own it is."""
    return replace(rule, holds_for=tuple(name for name, row in FAMILIES.items() if rule.key in row.rules))


_RULES = {row.key: _held(Rule(*row)) for row in all_rows()}
#: Every rule by its name; the command line, the docs and the report iterate this table.
RULES: Mapping[str, Rule] = MappingProxyType(_RULES)


def add_rule(rule: Rule) -> None:
    """Add a rule of a user's own; the rules of this package cannot be replaced."""
    if rule.key in RULES and RULES[rule.key].units != rule.units:
        raise ValueError(f"there is a rule {rule.key!r} already; choose another name")
    own = _held(rule)
    _RULES[rule.key] = own if own.holds_for else rule


def svag_weights(ell: float) -> tuple[float, float]:
    """Return SVAG's ``r1, r2 = (1 -+ sqrt(2 ell^2 - 1)) / 2``: their sum is 1 and the sum of their squares ``ell^2``.

    SVAG's hyperparameters need no formula of their own: they are those of the square root rule at ``kappa = ell^-2``.

    >>> svag_weights(1)
    (0.0, 1.0)
    """
    number("ell", ell, "a finite number >= 1 with a finite square", lambda x: 1 <= x < 1e150)
    root = math.sqrt(2 * ell**2 - 1)
    return (1 - root) / 2, (1 + root) / 2


def default_rule(optimizer: str) -> Rule:
    """Return the rule that keeps this optimizer's dynamics."""
    return RULES[family(optimizer).rules[0]]


_TEXT = re.compile(r"(?P<key>[\w-]*(?::[\w.+-]+)?)(?:(?:^| )with (?P<averaging>\S+))?(?:(?:^| )without (?P<rows>.+))?")


def rule_text(key: str | None = None, averaging: str = "floor", left_out: Iterable[str] = ()) -> str:
    """Return the text of a rule; without a key it stands for the optimizer's own rule.

    >>> rule_text("sqrt", "power", ["v"]), rule_text(None, "power")
    ('sqrt with power without v', 'with power')
    """
    rows = ", ".join(left_out)
    parts = (key, averaging != next(iter(AVERAGINGS)) and f"with {averaging}", rows and f"without {rows}")
    return " ".join(part for part in parts if part)


def get_rule(rule: str | Rule | None, optimizer: str) -> Rule:
    """Return the rule of that text; None, or a text without a name, is the one that keeps the optimizer's dynamics.

    A rule that does not keep them is one for comparison. Without an optimizer ("") it is as the table has it.

    >>> get_rule("sqrt without beta2, v", "adam") == RULES["sqrt"].without("beta2", "v")
    True
    >>> get_rule("with power", "adam").name
    'sqrt with power'
    """
    if isinstance(rule, Rule):
        return rule
    match = _TEXT.fullmatch(str(rule or "").strip())
    key = match["key"] if match else ""
    if match is None or (key and key not in RULES):
        raise ValueError(
            f"rule must be one of {', '.join(RULES)}, with what may follow (such as 'sqrt with power without v'); got "
            f"{rule!r}"
        )
    chosen = RULES[key] if key else default_rule(optimizer)
    holds = not optimizer or optimizer in chosen.holds_for
    if match["averaging"]:
        chosen = chosen.averaged(match["averaging"])
    rows = [row.strip() for row in (match["rows"] or "").split(",") if row.strip()]
    if rows:
        chosen = chosen.without(*rows)
    return chosen if holds else chosen.compared()
