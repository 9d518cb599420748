"""Scaling rules: a rule is a choice of rows of the table of units, with a form of averaging.

A quantity that a rule has no row for is kept. Every rule converts the clock (``steps``): runs are compared after equal
numbers of samples. A rule can be written as text, ``[NAME] [with AVERAGING] [without ROW, ROW]``, and its name is that
text: ``"sqrt"``, ``"with power"`` (the optimizer's own rule, with ``beta^kappa``), ``"sqrt without beta2, v"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar

from rootscale.format import show
from rootscale.hparams import DOMAINS, number, positive
from rootscale.optimizers import FAMILIES, OPTIMIZERS, family
from rootscale.units import (
    AVERAGE,
    AVERAGE_POWER,
    SCALES,
    HALF,
    KEPT,
    PAPER,
    UNITS,
    Form,
    Number,
    Status,
    Unit,
    power,
    shortened,
)

__all__ = ["AVERAGINGS", "RULES", "Rule", "default_rule", "get_rule", "rule_text", "shortest_average", "svag_weights"]

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Averaging:
    """A form in which the weight of an average over steps is converted.

    Args:
        form: of the weight of the past.
        why: added to the reason of each row that takes this form; such a row is derived, not a theorem.
    """

    form: Form
    why: str = ""


#: The forms of averaging for beta1 and beta2, by name; the first is the paper's.
AVERAGINGS: Mapping[str, Averaging] = MappingProxyType(
    {
        "paper": Averaging(AVERAGE),
        "power": Averaging(AVERAGE_POWER, "agrees with 1 - kappa (1 - beta) to first order and stays in (0, 1)"),
    }
)


@dataclass(frozen=True)
class Rule:
    """A choice of rows of the table.

    Args:
        key: of the rule in `RULES`, from which this one was made.
        summary: what it is, in one line.
        units: the rows it applies, by key.
        adaptive: whether it is for optimizers whose update does not grow with the gradient, and refuses others.
        averaging: the form in which beta1 and beta2 are converted, one of `AVERAGINGS`.
        left_out: rows that were taken out; those quantities are kept.
        holds_for: the optimizers whose dynamics it keeps.
    """

    key: str
    summary: str
    units: Mapping[str, Unit]
    adaptive: bool = False
    averaging: str = "paper"
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
                f"kappa={show(kappa)} gives {name}={show(form(value, kappa))}; need kappa < {show(limit)}, or the "
                f"form beta^kappa, which gives {name}={show(AVERAGE_POWER(value, kappa))} "
                "(--averaging power; in Python rule='with power')"
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
        """Return the rule with another form of averaging, one of `AVERAGINGS`.

        >>> RULES["sqrt"].averaged("power").units["beta1"].form.text
        'x^kappa'
        """
        if form not in AVERAGINGS:
            texts = " or ".join(f"{name!r} ({row.form.text})" for name, row in AVERAGINGS.items())
            raise ValueError(f"averaging must be {texts}, got {form!r}")
        if form == self.averaging:
            return self
        old, new = AVERAGINGS[self.averaging].form, AVERAGINGS[form]
        origin = RULES[self.key].units if self.key in RULES else self.units
        rows = {
            key: replace(unit, form=new.form, status="derived", why=f"{origin[key].why}; {new.why}")
            if new.why
            else origin[key]
            for key, unit in self.units.items()
            if unit.form is old
        }
        return replace(self, units=MappingProxyType({**self.units, **rows}), averaging=form)

    def check(self, optimizer: str) -> list[str]:
        """Return the warnings that hold for this optimizer at any ``kappa``.

        Raises:
            ValueError: the rule is not defined for this optimizer.
        """
        own = default_rule(optimizer).name
        if optimizer in self.refuses:
            able = ", ".join(name for name in OPTIMIZERS if name not in self.refuses)
            raise ValueError(f"rule {self.name!r} is for {able}; the rule of {optimizer} is {own!r}")
        if optimizer in self.holds_for:
            return []
        if self.key == "invariant":
            return [
                "rule 'invariant' holds only where v averages the squared gradients of micro-batches of a fixed size; "
                f"the rule of ordinary {optimizer} is {own!r}"
            ]
        return [f"rule {self.name!r} does not keep the dynamics of {optimizer}; the one that does is {own!r}"]

    def check_averages(self, kappa: Number, beta1: float, beta2: float | None) -> list[str]:
        """Return warnings where the averages become too short for the SDE to describe them."""
        warnings = []
        if beta2 is not None and "beta2" in self.units and kappa >= shortest_average(beta2):
            warnings.append(
                f"kappa * (1 - beta2) = {show(kappa * (1 - beta2))} is outside the theorem's range "
                f"(eta^2 < 1 / (2 c2), that is kappa < {show(shortest_average(beta2))})"
            )
        if beta1 and "beta1" in self.units and kappa >= shortest_average(beta1):
            warnings.append(
                f"kappa * (1 - beta1) = {show(kappa * (1 - beta1))}: the first moment averages over less than two "
                f"steps, too few for the SDE to resolve; kappa < {show(shortest_average(beta1))} would be enough"
            )
        return warnings


def shortest_average(beta: float) -> float:
    """Return the ``kappa`` at which ``kappa (1 - beta)`` is 1/2: beyond it the average is too short for the SDE."""
    return 1 / (2 * (1 - beta))


def _rows(*units: str | Unit) -> Mapping[str, Unit]:
    rows = [UNITS[unit] if isinstance(unit, str) else unit for unit in units]
    return MappingProxyType({row.key: row for row in rows})


def _row(key: str, form: Form, status: Status, source: str, why: str) -> Unit:
    return replace(UNITS[key], form=form, status=status, source=source, why=why)


_CLOCK = ("steps", "warmup", "schedule")  # under every rule
_COMMON = (*_CLOCK, "l2", "ema", "batchnorm", "clip", "m")  # the same under every rule that keeps the dynamics
_LINEAR_ETA = replace(UNITS["sgd_eta"], key="eta")
_LINEAR_MIN = _row("min_eta", power(1), "derived", "follows the learning rate", "it is a learning rate")
_MICRO = "arXiv 2402.18824; micro-batch second moment"
_AS_BETA1 = "as Adam's beta1, for comparison: Adam's rule does not keep what normalises momentum itself"
_ABLATION = f"{PAPER}, ablations"


def _normalized(key: str, a: Fraction, summary: str) -> Rule:
    """A rule for updates that normalise momentum ``m`` itself, with ``1 - mu`` multiplied by ``kappa^a``.

    The noise of ``m`` is ``sqrt((1 - mu) / B)``, so that it scales as ``kappa^((a-1)/2)``, and so do the buffer and the
    eps beside its norm. A step moves by ``eta grad / noise`` and there are ``1 / kappa`` times the steps: ``eta`` takes
    ``kappa^((1+a)/2)``. Then the diffusion, ``eta^2`` times the ``1 / (1 - mu)`` steps for which a sign lasts, is kept
    too. Decay per sample is ``eta lambda / B``. Lion's gradient beside ``m`` has noise ``B^(-1/2)``: its share
    ``1 - beta1`` takes ``kappa^(a/2)``.
    """
    noise, rate = power((a - 1) / 2), power((1 + a) / 2)
    past = {0: KEPT, 1: AVERAGE}.get(a, shortened(a))  # type: ignore[call-overload]

    def derived(name: str, form: Form, why: str) -> Unit:
        return _row(name, form, "derived", SCALES, why)

    return Rule(
        key,
        f"for Muon, Lion, Signum and LAMB, a = {a}: {summary}",
        _rows(
            derived("eta", rate, "keeps drift per sample: eta over the noise of momentum grows with kappa"),
            derived("min_eta", rate, "it is a learning rate"),
            derived("mu", past, "a choice: the learning rate and the buffer follow it"),
            derived("mix", shortened(a / 2) if a else KEPT, UNITS["mix"].why),
            derived("m", noise, "the noise of momentum, which the update is measured by"),
            derived("eps_m", noise, UNITS["eps_m"].why),
            derived("decoupled_decay", power((1 - a) / 2), "keeps eta * lambda per sample"),
            derived("trust_decay", power(a / 2), "it is added to m / sqrt(v), which scales so"),
            *("beta2", "eps", "eps_root", "v", "step_counter"),
            *(row for row in _COMMON if row != "m"),
        ),
        adaptive=True,
    )


def _in_samples(key: str, rate: Fraction, who: str) -> Rule:
    """A rule for momentum ``b = mu b + step`` whose window is kept in samples: ``1 - mu`` takes ``kappa``.

    ``b`` sums ``1 / (1 - mu)`` steps, ``1 / kappa`` times as many: ``eta`` takes one more power of ``kappa`` than with
    momentum kept in steps. A step scales as ``kappa^(1 - rate)``, and ``b`` as ``kappa^(-rate)``.
    """
    form = power(rate + 1)
    own = ("beta2", "eps", "eps_root", "v", "step_counter") if rate == HALF else ()
    return Rule(
        key,
        f"for {who} with momentum: its window in samples kept, as that of Adam's beta1",
        _rows(
            _row("eta", form, "derived", SCALES, "keeps eta / (1 - mu), the learning rate that momentum makes of eta"),
            _row("min_eta", form, "derived", SCALES, "it is a learning rate"),
            _row("momentum", AVERAGE, "derived", SCALES, "sums over the same samples"),
            _row("buffer", power(-rate), "derived", SCALES, "a sum over 1/kappa times the steps"),
            _row("decoupled_decay", power(-rate), "derived", SCALES, "keeps eta * lambda per sample"),
            *own,
            *_COMMON,
        ),
        adaptive=bool(own),
    )


def _sqrt_ablation(*also: str) -> Rule:
    return Rule(
        "-".join(("sqrt-eta", *also)),
        f"ablation of the paper: the square root rule for {', '.join(('eta', *also))} only",
        _rows("eta", "min_eta", *_CLOCK, *also),
        adaptive=True,
    )


def _linear_ablation(*also: str) -> Rule:
    eta = _row("eta", power(1), "heuristic", _ABLATION, "scaled linearly, for comparison")
    return Rule(
        "-".join(("linear-eta", *also)),
        f"ablation of the paper: {', '.join(('eta', *also))} scaled linearly, the rest kept",
        _rows(eta, _LINEAR_MIN, *_CLOCK, *also),
        adaptive=True,
    )


def _all_rules() -> Iterable[Rule]:
    yield Rule(
        "sqrt",
        "the square root rule of the paper, for Adam, AdamW and RMSprop: every row of the table",
        _rows(
            *(unit for key, unit in UNITS.items() if key not in ("sgd_eta", "sum", "eps_sum", "lr_decay")),
            _row("momentum", KEPT, "derived", SCALES, "what it sums has no unit: its window in steps is kept"),
            *(_row(key, AVERAGE, "heuristic", PAPER, _AS_BETA1) for key in ("mu", "mix")),
        ),
        adaptive=True,
    )
    yield Rule(
        "linear",
        "the linear rule: keeps the dynamics of SGD; on Adam and RMSprop (eta, 1-beta1, 1-beta2) for comparison",
        _rows(
            _LINEAR_ETA, _LINEAR_MIN, "momentum", "beta1", "beta2", "step_counter", *_COMMON, *("buffer", "interpolation"),
            _row("weight_sum", power(1), "derived", SCALES, "1/kappa times the steps, each of weight eta^2"),
        ),
    )  # fmt: skip
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
        adaptive=True,
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
    yield _in_samples("linear-time", Fraction(1), "SGD")
    yield _in_samples("sqrt-time", HALF, "RMSprop")
    yield Rule(
        "adagrad",
        "for Adagrad: the learning rate kept, as the sum of squares falls with steps and noise",
        _rows(
            _row("eta", KEPT, "derived", SCALES, "the root of the sum falls as 1/kappa, and steps grow by it"),
            _row("min_eta", KEPT, "derived", SCALES, "it is a learning rate"),
            _row("decoupled_decay", power(1), "derived", SCALES, "keeps eta * lambda per sample"),
            *("sum", "eps_sum", "lr_decay", "step_counter"),
            *_COMMON,
        ),
        adaptive=True,
    )
    yield _normalized("normalized-sqrt", Fraction(0), "momentum kept, learning rate by the square root")
    yield _normalized("normalized-half", HALF, "halfway: learning rate by kappa^(3/4)")
    yield _normalized("normalized-linear", Fraction(1), "momentum's window in samples kept, learning rate linear")


def _held(rule: Rule) -> Rule:
    """The rule with the optimizers whose own it is."""
    return replace(rule, holds_for=tuple(name for name, row in FAMILIES.items() if rule.key in row.rules))


#: Every rule by its name; the command line, the docs and the report iterate this table.
RULES: Mapping[str, Rule] = MappingProxyType({rule.key: _held(rule) for rule in _all_rules()})


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


_TEXT = re.compile(r"(?P<key>[\w-]*)(?:(?:^| )with (?P<averaging>\S+))?(?:(?:^| )without (?P<rows>.+))?")


def rule_text(key: str | None = None, averaging: str = "paper", left_out: Iterable[str] = ()) -> str:
    """Return the text of a rule; without a key it stands for the optimizer's own rule.

    >>> rule_text("sqrt", "power", ["v"]), rule_text(None, "power")
    ('sqrt with power without v', 'with power')
    """
    rows = ", ".join(left_out)
    parts = (key, averaging != next(iter(AVERAGINGS)) and f"with {averaging}", rows and f"without {rows}")
    return " ".join(part for part in parts if part)


def get_rule(rule: str | Rule | None, optimizer: str) -> Rule:
    """Return the rule of that text; None, or a text without a name, is the one that keeps the optimizer's dynamics.

    >>> get_rule("sqrt without beta2, v", "adam") == RULES["sqrt"].without("beta2", "v")
    True
    >>> get_rule("with power", "adam").name
    'sqrt with power'
    """
    if isinstance(rule, Rule):
        return rule
    match = _TEXT.fullmatch((rule or "").strip())
    key = match["key"] if match else ""
    if match is None or (key and key not in RULES):
        raise ValueError(
            f"rule must be one of {', '.join(RULES)}, with what may follow (such as 'sqrt with power without v'), "
            f"got {rule!r}"
        )
    chosen = RULES[key] if key else default_rule(optimizer)
    if match["averaging"]:
        chosen = chosen.averaged(match["averaging"])
    rows = [row.strip() for row in (match["rows"] or "").split(",") if row.strip()]
    return chosen.without(*rows) if rows else chosen
