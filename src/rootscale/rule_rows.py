"""The rows of the table of rules: which quantities each rule converts, how, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from rootscale.units import (
    AVERAGE,
    AVERAGE_1,
    HALF,
    KEPT,
    PAPER,
    SCALES,
    UNITS,
    WINDOW,
    Form,
    Status,
    Unit,
    power,
    shortened,
    summed,
)


class RuleRow(NamedTuple):
    """A row of the table of rules; `rootscale.rules.Rule` explains its fields."""

    key: str
    summary: str
    units: Mapping[str, Unit]
    adaptive: bool = False


def _rows(*units: str | Unit) -> Mapping[str, Unit]:
    rows = [UNITS[unit] if isinstance(unit, str) else unit for unit in units]
    return MappingProxyType({row.key: row for row in rows})


def _row(key: str, form: Form, status: Status, source: str, why: str) -> Unit:
    return replace(UNITS[key], form=form, status=status, source=source, why=why)


_CLOCK = ("steps", "warmup", "schedule")  # under every rule
_COMMON = (
    *_CLOCK,
    "step_decay",
    "l2",
    "ema",
    "batchnorm",
    "clip",
    "m",
)  # the same under every rule that keeps the dynamics
_LINEAR_ETA = replace(UNITS["sgd_eta"], key="eta")
_LINEAR_MIN = _row("min_eta", power(1), "derived", "follows the learning rate", "it is a learning rate")
_MICRO = "arXiv 2402.18824; micro-batch second moment"
_AS_BETA1 = "as Adam's beta1, for comparison: Adam's rule does not keep what normalises momentum itself"


def _normalized(key: str, a: Fraction, summary: str) -> RuleRow:
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

    return RuleRow(
        key,
        f"for Muon, Lion, Signum and LAMB, a = {a}: {summary}",
        _rows(
            derived("eta", rate, "keeps drift per sample: eta over the noise of momentum grows with kappa"),
            derived("min_eta", rate, "it is a learning rate"),
            derived("mu", past, "a choice: the learning rate and the buffer follow it"),
            derived("mix", shortened(a / 2) if a else KEPT, UNITS["mix"].why),
            derived("m", noise, "the noise of momentum, which the update is measured by"),
            derived("m_sum", summed((a - 1) / 2), UNITS["m_sum"].why),
            derived("eps_m", noise, UNITS["eps_m"].why),
            derived("decoupled_decay", power((1 - a) / 2), "keeps eta * lambda per sample"),
            derived("trust_decay", power(a / 2), "it is added to m / sqrt(v), which scales so"),
            *("beta2", "eps", "eps_root", "v", "step_counter"),
            *(row for row in _COMMON if row != "m"),
        ),
        adaptive=True,
    )


def _in_samples(key: str, rate: Fraction, who: str) -> RuleRow:
    """A rule for momentum ``b = mu b + step`` whose window is kept in samples: ``1 - mu`` takes ``kappa``.

    ``b`` sums ``1 / (1 - mu)`` steps, ``1 / kappa`` times as many: ``eta`` takes one more power of ``kappa`` than with
    momentum kept in steps. A step scales as ``kappa^(1 - rate)``, and ``b`` as ``kappa^(-rate)``.
    """
    form = power(rate + 1)
    own = ("beta2", "eps", "eps_root", "v", "step_counter") if rate == HALF else ()
    return RuleRow(
        key,
        f"for {who} with momentum: its window in samples kept, as that of Adam's beta1",
        _rows(
            _row("eta", form, "derived", SCALES, "keeps eta / (1 - mu), the learning rate that momentum makes of eta"),
            _row("min_eta", form, "derived", SCALES, "it is a learning rate"),
            _row("momentum", WINDOW, "derived", SCALES, "sums over the same samples"),
            _row("buffer", power(-rate), "derived", SCALES, "a sum over 1/kappa times the steps"),
            _row("decoupled_decay", power(-rate), "derived", SCALES, "keeps eta * lambda per sample"),
            *own,
            *_COMMON,
        ),
        adaptive=bool(own),
    )


def all_rows() -> Iterator[RuleRow]:
    yield RuleRow(
        "sqrt",
        "the square root rule of the paper, for Adam, AdamW and RMSprop: every row of the table",
        _rows(
            *(unit for key, unit in UNITS.items() if key not in ("sgd_eta", "sum", "eps_sum", "lr_decay")),
            _row("momentum", KEPT, "derived", SCALES, "what it sums has no unit: its window in steps is kept"),
            *(_row(key, AVERAGE_1, "heuristic", PAPER, _AS_BETA1) for key in ("mu", "mix")),
            _row("m_sum", summed(Fraction(0)), "heuristic", PAPER, _AS_BETA1),
        ),
        adaptive=True,
    )
    yield RuleRow(
        "linear",
        "the linear rule: keeps the dynamics of SGD; on Adam and RMSprop (eta, 1-beta1, 1-beta2) for comparison",
        _rows(
            *(_LINEAR_ETA, _LINEAR_MIN, "momentum", "beta1", "beta2", "step_counter", "interpolation"), *_COMMON,
            _row("buffer", power(-HALF), "derived", SCALES, "the noise of a sum over as many steps as before"),
            _row("weight_sum", power(1), "derived", SCALES, "1/kappa times the steps, each of weight eta^2"),
        ),
    )  # fmt: skip
    yield RuleRow("none", "hyperparameters kept; only the clock is converted", _rows(*_CLOCK))
    yield RuleRow(
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
    # What most people do. Other subsets of a rule are written as the rule without rows: "sqrt without beta2, v".
    yield RuleRow(
        "sqrt-eta",
        "the learning rate alone by the square root, for comparison",
        _rows("eta", "min_eta", *_CLOCK),
        adaptive=True,
    )
    yield RuleRow(
        "linear-eta",
        "the learning rate alone, scaled linearly, for comparison",
        _rows(
            _row("eta", power(1), "heuristic", f"{PAPER}, ablations", "scaled linearly, for comparison"),
            _LINEAR_MIN,
            *_CLOCK,
        ),
        adaptive=True,
    )
    yield _in_samples("linear-time", Fraction(1), "SGD")
    yield _in_samples("sqrt-time", HALF, "RMSprop")
    yield RuleRow(
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
