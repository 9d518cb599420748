"""Scaling rules: a rule is a choice of rows of the table of units.

A quantity that a rule has no row for is kept. Every rule converts the clock (``steps``): runs are compared after equal
numbers of samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from rootscale.format import show
from rootscale.hparams import DOMAINS, number, positive
from rootscale.units import AVERAGE, AVERAGE_POWER, KEPT, PAPER, UNITS, Form, Number, Unit, power

Averaging = Literal["paper", "power"]
_Record = TypeVar("_Record")
ADAPTIVE = ("adam", "adamw", "rmsprop")


@dataclass(frozen=True)
class Rule:
    """Which rows of the table are applied.

    Args:
        name: as on the command line.
        summary: what it is, in one line.
        units: the rows it applies, by key.
        holds_for: the optimizers whose dynamics it keeps.
        refuses: the optimizers it is not defined for.
        averaging: ``paper`` (``1 - kappa (1 - beta)``) or ``power`` (``beta^kappa``) for beta1 and beta2.
    """

    name: str
    summary: str
    units: Mapping[str, Unit]
    holds_for: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    averaging: Averaging = "paper"

    def convert(self, key: str, value: Number, kappa: Number, name: str | None = None) -> Number:
        """``value``, a quantity of the unit ``key``, at ``kappa`` times the batch size.

        Raises:
            ValueError: there is no valid value; the message has the largest ``kappa`` that has one.
        """
        unit = self.units.get(key)
        if unit is None or kappa == 1:
            return value
        name, form = name or key, unit.form
        limit = form.limit(value)
        if float(kappa) >= limit * (1 - 1e-12):  # 1 - 10 (1 - .9) is 0, and not what rounding leaves of it
            raise ValueError(
                f"kappa={show(kappa)} gives {name}={show(form(value, kappa))}; need kappa < {show(limit)}, or "
                f"averaging='power', which gives {name}={show(AVERAGE_POWER(value, kappa))}"
            )
        try:
            result = form(value, kappa)
            if value:
                DOMAINS.get(key, positive)(name, float(result))
        except (OverflowError, ValueError, ZeroDivisionError):
            raise ValueError(
                f"kappa={show(kappa)} turns {name}={show(value)} into a number that is out of range "
                f"({name} becomes {form.text}); use a kappa nearer to 1"
            ) from None
        return result

    def converted(self, record: Any, kappa: Number) -> dict[str, Any]:
        """The values at ``kappa`` of the record's own fields that have a unit; lists and mappings item by item."""
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
        """A record, such as an optimizer's, at ``kappa`` times the batch size."""
        return replace(record, **self.converted(record, kappa))  # type: ignore[type-var]

    def without(self, *keys: str) -> Rule:
        """The rule with some rows left out: those quantities stay as they are (``rootscale units`` has the keys).

        >>> RULES["sqrt"].without("beta2", "v").name
        'sqrt without beta2, v'
        """
        for key in keys:
            if key not in self.units or key == "steps":
                rows = ", ".join(row for row in self.units if row != "steps")
                raise ValueError(f"rule {self.name!r} has no row {key!r} to leave out; it has {rows}")
        if not keys:
            return self
        rest = {key: unit for key, unit in self.units.items() if key not in keys}
        name = f"{self.name}{', ' if ' without ' in self.name else ' without '}{', '.join(keys)}"
        return replace(self, name=name, units=MappingProxyType(rest), holds_for=())

    def check(self, optimizer: str) -> list[str]:
        """Warnings that hold for this optimizer at any ``kappa``.

        Raises:
            ValueError: the rule is not defined for this optimizer.
        """
        own = default_rule(optimizer).name
        if optimizer in self.refuses:
            raise ValueError(f"rule {self.name!r} is for {', '.join(ADAPTIVE)}; the rule of {optimizer} is {own!r}")
        if optimizer in self.holds_for:
            return []
        if self.name == "invariant":
            return [
                "rule 'invariant' holds only where v averages the squared gradients of micro-batches of a fixed size; "
                f"the rule of ordinary {optimizer} is {own!r}"
            ]
        return [f"rule {self.name!r} does not keep the dynamics of {optimizer}; the one that does is {own!r}"]

    def check_averages(self, kappa: Number, beta1: float, beta2: float | None) -> list[str]:
        """Warnings where the averages become too short for the SDE to describe them."""
        warnings = []
        if beta2 is not None and "beta2" in self.units and kappa * (1 - beta2) >= 1 / 2:
            warnings.append(
                f"kappa * (1 - beta2) = {show(kappa * (1 - beta2))} is outside the theorem's range "
                f"(eta^2 < 1 / (2 c2), that is kappa < {show(shortest_average(beta2))})"
            )
        if beta1 and "beta1" in self.units and kappa * (1 - beta1) >= 1 / 2:
            warnings.append(
                f"kappa * (1 - beta1) = {show(kappa * (1 - beta1))}: the first moment averages over less than two "
                f"steps, too few for the SDE to resolve (kappa < {show(shortest_average(beta1))} would be)"
            )
        return warnings


def shortest_average(beta: float) -> float:
    """The ``kappa`` at which ``kappa (1 - beta)`` is 1/2: from there on the average is too short for the SDE."""
    return 1 / (2 * (1 - beta))


def _rows(*units: str | Unit) -> Mapping[str, Unit]:
    rows = [UNITS[unit] if isinstance(unit, str) else unit for unit in units]
    return MappingProxyType({row.key: row for row in rows})


def _row(key: str, form: Form, status: Literal["theorem", "derived", "heuristic"], source: str, why: str) -> Unit:
    return replace(UNITS[key], form=form, status=status, source=source, why=why)


_CLOCK = ("steps", "warmup")  # under every rule
_COMMON = (*_CLOCK, "l2", "ema", "batchnorm", "clip", "m")  # the same under every rule that keeps the dynamics
_LINEAR_ETA = replace(UNITS["sgd_eta"], key="eta")
_LINEAR_MIN = _row("min_eta", power(1), "derived", "follows the learning rate", "it is a learning rate")
_MICRO = "arXiv 2402.18824; micro-batch second moment"
_ABLATION = f"{PAPER}, ablations"


def _sqrt_ablation(*also: str) -> Rule:
    return Rule(
        "-".join(("sqrt-eta", *also)),
        f"ablation of the paper: the square root rule for {', '.join(('eta', *also))} only",
        _rows("eta", "min_eta", *_CLOCK, *also),
        refuses=("sgd",),
    )


def _linear_ablation(*also: str) -> Rule:
    eta = _row("eta", power(1), "heuristic", _ABLATION, "scaled linearly, for comparison")
    return Rule(
        "-".join(("linear-eta", *also)),
        f"ablation of the paper: {', '.join(('eta', *also))} scaled linearly, the rest kept",
        _rows(eta, _LINEAR_MIN, *_CLOCK, *also),
        refuses=("sgd",),
    )


def _all_rules() -> Iterable[Rule]:
    yield Rule(
        "sqrt",
        "the square root rule of the paper, for Adam, AdamW and RMSprop: every row of the table",
        MappingProxyType({key: unit for key, unit in UNITS.items() if key not in ("sgd_eta", "momentum")}),
        holds_for=ADAPTIVE,
        refuses=("sgd",),
    )
    yield Rule(
        "linear",
        "the linear rule: keeps the dynamics of SGD; on Adam and RMSprop (eta, 1-beta1, 1-beta2) for comparison",
        _rows(_LINEAR_ETA, _LINEAR_MIN, "momentum", "beta1", "beta2", "step_counter", *_COMMON),
        holds_for=("sgd",),
    )
    yield Rule("none", "hyperparameters kept; only the clock is converted", _rows(*_CLOCK))
    yield Rule(
        "invariant",
        "linear learning rate for Adam whose v averages squared gradients of fixed-size micro-batches",
        _rows(
            _row("eta", power(1), "derived", _MICRO, "v does not depend on the batch size, so Adam scales as SGD does"),
            _LINEAR_MIN,
            "beta1",
            "beta2",
            _row("eps", KEPT, "derived", _MICRO, "sqrt(v) does not depend on the batch size"),
            _row("eps_root", KEPT, "derived", _MICRO, "v does not depend on the batch size"),
            _row("decoupled_decay", KEPT, "derived", _MICRO, "the learning rate already carries kappa"),
            _row("v", KEPT, "derived", _MICRO, "v does not depend on the batch size"),
            "step_counter",
            *_COMMON,
        ),
        holds_for=("microbatchadam",),
        refuses=("sgd",),
    )
    yield _sqrt_ablation()
    yield _sqrt_ablation("eps")
    yield _sqrt_ablation("eps", "beta1")
    yield _sqrt_ablation("eps", "beta2")
    yield _sqrt_ablation("eps", "beta1", "beta2")
    yield _linear_ablation()
    yield _linear_ablation("beta1")
    yield _linear_ablation("beta2")
    yield _linear_ablation("beta1", "beta2")


#: Every rule by its name; the command line, the docs and the report iterate this table.
RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _all_rules()})


def svag_weights(ell: float) -> tuple[float, float]:
    """SVAG's ``r1, r2 = (1 -+ sqrt(2 ell^2 - 1)) / 2``: their sum is 1 and the sum of their squares ``ell^2``.

    SVAG's hyperparameters need no formula of their own: they are those of the square root rule at ``kappa = ell^-2``.

    >>> svag_weights(1)
    (0.0, 1.0)
    """
    number("ell", ell, "a finite number >= 1 with a finite square", lambda x: 1 <= x < 1e150)
    root = math.sqrt(2 * ell**2 - 1)
    return (1 - root) / 2, (1 + root) / 2


def default_rule(optimizer: str) -> Rule:
    """The rule that keeps this optimizer's dynamics."""
    return next(rule for rule in RULES.values() if optimizer in rule.holds_for)


def get_rule(rule: str | Rule | None, optimizer: str, averaging: Averaging = "paper") -> Rule:
    """The rule of that name (None: the one that keeps this optimizer's dynamics), with this form of averaging.

    >>> get_rule("sqrt without beta2, v", "adam") == RULES["sqrt"].without("beta2", "v")
    True
    """
    if rule is None:
        rule = default_rule(optimizer)
    elif isinstance(rule, str):
        name, _, left_out = rule.partition(" without ")
        if name not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
        rule = RULES[name].without(*(left_out.split(", ") if left_out else ()))
    if averaging not in get_args(Averaging):
        raise ValueError(f"averaging must be 'paper' (1 - kappa (1 - beta)) or 'power' (beta^kappa), got {averaging!r}")
    if averaging == "power":
        why = "agrees with 1 - kappa (1 - beta) to first order and stays in (0, 1)"
        power_rows = {
            key: replace(unit, form=AVERAGE_POWER, status="derived", why=f"{unit.why}; {why}")
            for key, unit in rule.units.items()
            if unit.form is AVERAGE
        }
        rule = replace(rule, units=MappingProxyType({**rule.units, **power_rows}), averaging="power")
    return rule
