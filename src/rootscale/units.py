"""The table of units: how each quantity of a run changes with the batch size.

A run of an adaptive optimizer is a discretised stochastic differential equation (SDE). Its four constants

    sigma0 = sigma * eta,   c1 = (1 - beta1) / eta^2,   c2 = (1 - beta2) / eta^2,   eps0 = eps * eta

and its clock ``t = k * eta^2`` (``k`` counts steps) are all there is; the batch size ``B`` enters only through the
noise, ``sigma ~ 1 / sqrt(B)``. Multiplying the batch size by ``kappa`` is therefore a change of units: what leaves the
constants and the clock as they were is the scaling rule. Everything counted in steps or measured in gradient noise has
to be converted, and nothing else. This module is that table, as data; `rootscale.rules` says which rows a rule applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Literal

from rootscale.messages import say

Number = int | float | Fraction
Status = Literal["theorem", "derived", "measured", "heuristic"]

HALF = Fraction(1, 2)
PAPER = "Malladi et al. 2022 (arXiv 2205.10287)"
LI = "Li et al. 2021 (arXiv 2102.12470)"
#: A count of powers of kappa in drift and noise (`rootscale.degrees`), checked on toy problems: no SDE is behind it.
SCALES = "scales of drift and noise"


def _no_limit(value: Number) -> float:
    return math.inf


@dataclass(frozen=True)
class Form:
    """Says how a value ``x`` changes when the batch size is multiplied by ``kappa``.

    Args:
        text: the formula, in terms of ``x`` and ``kappa``.
        apply: the formula, as a function of ``(x, kappa)``; it is never asked for ``kappa = 1``.
        limit: the ``kappa`` that must not be reached, as a function of ``x``.
        floor: below which the formula does not go; a value that is below it already is kept.
        follows: the key of an average. The formula then takes its weight before and after as two more arguments.
        kind: of the formula, by which others than Python evaluate it (``website/calculator_tables.py``); ``factor`` is
            any other multiplication with a number that depends on kappa alone.
        exponent: of kappa in it.
    """

    text: str
    apply: Callable[..., Number]
    limit: Callable[[Number], float] = _no_limit
    floor: float | None = None
    follows: str | None = None
    kind: str = ""
    exponent: Fraction = Fraction(1)

    def __call__(self, value: Number, kappa: Number, *more: Number) -> Number:
        """Return the converted value; ``kappa = 1`` gives the value itself, to the bit."""
        return value if kappa == 1 else self.apply(value, kappa, *more)


@cache
def power(exponent: Fraction | int) -> Form:
    """Return the form ``x * kappa^exponent``; it is exact for rational ``x`` and whole exponents, such as steps.

    >>> power(Fraction(1, 2))(3e-4, 4)
    0.0006
    >>> power(-1)(100, Fraction(16))
    Fraction(25, 4)
    """
    exponent = Fraction(exponent)

    def apply(value: Number, kappa: Number) -> Number:
        if exponent.denominator == 1 and not isinstance(value, float):
            return Fraction(value) * Fraction(kappa) ** int(exponent)
        factor: float = float(kappa) ** float(exponent)
        return float(value) * factor

    text = {-1: "x / kappa", 1: "x * kappa"}.get(exponent, f"x * kappa^({exponent})")  # type: ignore[call-overload]
    return Form(text, apply, kind="power", exponent=exponent)


def shortened(exponent: Fraction) -> Form:
    """Return the form ``1 - kappa^exponent (1 - x)`` for the weight of the past in an average over steps.

    >>> shortened(HALF)(0.9, 4)
    0.8
    """

    def apply(value: Number, kappa: Number) -> Number:
        beta = float(value)
        return beta and 1 - float(kappa) ** float(exponent) * (1 - beta)

    def limit(value: Number) -> float:
        return math.inf if value in (0, 1) else float((1 - float(value)) ** float(-1 / exponent))

    return Form(f"1 - kappa^({exponent}) * (1 - x)", apply, limit, kind="shortened", exponent=exponent)


def _average(value: Number, kappa: Number) -> Number:
    beta = float(value)
    return beta and 1 - float(kappa) * (1 - beta)


def _window(value: Number, kappa: Number) -> Number:
    if not value:
        raise ValueError("without momentum there is no window to keep")
    return _average(value, kappa)


def _average_limit(value: Number) -> float:
    return math.inf if value in (0, 1) else 1 / (1 - float(value))


def _complement(value: Number, kappa: Number) -> Number:
    p = float(value)
    return 1.0 if p == 1 else -math.expm1(float(kappa) * math.log1p(-p))


@cache
def floored(floor: float) -> Form:
    """Return the paper's form for the weight of an average, down to a floor.

    A weight that is below the floor already is kept.

    >>> floored(0.8)(0.98, 4), floored(0.8)(0.9, 16), floored(0.8)(0.5, 16)
    (0.9199999999999999, 0.8, 0.5)
    """

    def apply(value: Number, kappa: Number) -> Number:
        beta = float(value)
        return beta and max(1 - float(kappa) * (1 - beta), min(floor, beta))

    return Form(say("floored", floor=f"{floor:g}"), apply, floor=floor, kind="floored")


def stops(form: Form, before: Number, after: Number, kappa: Number) -> bool:
    """Return whether a weight has stopped at the floor of its form instead of following the paper's.

    >>> stops(floored(0.8), 0.9, 0.8, 2), stops(floored(0.8), 0.9, 0.8, 4)
    (False, True)
    """
    return form.floor is not None and kappa != 1 and not _as_paper(before, after, kappa)


def _as_paper(before: Number, after: Number, kappa: Number) -> bool:
    return math.isclose(_average(before, kappa), after, rel_tol=1e-9, abs_tol=1e-12)


def _moment(value: Number, kappa: Number, before: Number, after: Number) -> Number:
    """Return ``m`` at the noise level of its new weight; unchanged where that is the paper's.

    >>> _moment(1.0, 4, 0.98, 0.92), _moment(1.0, 4, 0.9, 0.9)
    (1.0, 0.5)
    """
    if _as_paper(before, after, kappa):  # the square root below is 1 there, and not what rounding leaves of it
        return value
    return float(value) * math.sqrt((1 - float(after)) / (float(kappa) * (1 - float(before))))


def summed(exponent: Fraction) -> Form:
    """Return the form of a momentum buffer that sums gradients, where their average would take ``kappa^exponent``.

    A sum with the weight ``mu`` of the past is ``1 / (1 - mu)`` times the average.

    >>> summed(-HALF)(1.0, 4, 0.95, 0.95), round(summed(Fraction(0))(1.0, 4, 0.95, 0.8), 9)
    (0.5, 0.25)
    """

    def apply(value: Number, kappa: Number, before: Number, after: Number) -> Number:
        factor: float = float(kappa) ** float(exponent)
        return float(value) * factor * (1 - float(before)) / (1 - float(after))

    text = f"x * kappa^({exponent}) * (1 - mu) / (1 - mu')"
    return Form(text, apply, follows="mu", kind="summed", exponent=exponent)


#: What grows with the gradient, and with which power; everything else does not know the gradient's size.
GRADIENT_DEGREES = {
    "m": 1, "m_sum": 1, "m2": 1, "v": 2, "sum": 2, "sup": 1, "eps": 1, "eps_sum": 1, "eps_m": 1, "eps_root": 2,
    "l2": 1, "clip": 1,
}  # fmt: skip


@cache
def times(form: Form, exponent: int) -> Form:
    """Return a form times a power of kappa.

    >>> times(power(-1), 2)(1.0, 4), times(power(-1), 0)(1.0, 4)
    (4.0, 0.25)
    """
    if not exponent:
        return form
    if form.kind in ("kept", "power"):
        old = form.exponent if form.kind == "power" else Fraction(0)
        both = power(old + exponent)
        return Form(f"{form.text}, times kappa^{exponent}", both.apply, kind="power", exponent=old + exponent)

    def apply(value: Number, kappa: Number, *more: Number) -> Number:
        return float(form.apply(value, kappa, *more)) * float(kappa) ** exponent

    return replace(form, text=f"{form.text}, times kappa^{exponent}", apply=apply, kind=f"{form.kind} summed")


KEPT = Form("x", lambda value, kappa: value, kind="kept")
#: Weight of the past in an average over steps, as the paper converts it. 0 means that nothing is averaged and stays 0.
AVERAGE = Form("1 - kappa * (1 - x)", _average, _average_limit, kind="shortened")
#: The weight of the past in a sum over steps; a rule that keeps its window in samples needs one to keep.
WINDOW = Form("1 - kappa * (1 - x), for x above 0", _window, _average_limit, kind="window")
#: The same average, exact over ``kappa`` steps: agrees with `AVERAGE` to first order in ``1 - x`` and stays in (0, 1).
AVERAGE_POWER = Form("x^kappa", lambda value, kappa: math.pow(value, kappa), kind="to the power")
#: The forms for beta1 and beta2 by default: short averages stop where steps become too coarse (`rootscale.rules`).
AVERAGE_1 = AVERAGE_2 = floored(0.9)
#: The first moment. An average with weight beta1 of gradients of variance ``s`` has the variance ``s (1 - beta1) / 2``,
#: to first order in ``1 - beta1``, and ``s`` falls as 1/kappa: so ``m`` is multiplied by ``sqrt((1 - beta1') / (kappa
#: (1 - beta1)))``. Where beta1 follows the paper that is 1, so that ``m`` stays; where it stops at a floor, ``m`` gets
#: the noise level of that average; and changes one after the other multiply exactly.
MOMENT = Form("x * sqrt((1 - beta1') / (kappa (1 - beta1)))", _moment, follows="beta1", kind="moment")
#: Weight of the present in an average over steps (BatchNorm's ``momentum``).
COMPLEMENT = Form("1 - (1 - x)^kappa", _complement, kind="complement")


@dataclass(frozen=True)
class Unit:
    """One row of the table.

    Args:
        key: the name by which records and rules refer to the row.
        label: what the row is about, in words.
        form: how the value changes with ``kappa``.
        status: ``theorem`` (proven), ``derived`` (follows from the SDE by a calculation) or ``heuristic``.
        source: where it comes from.
        why: the reason, in one line.
    """

    key: str
    label: str
    form: Form
    status: Status
    source: str
    why: str


_DERIVED = "from the SDE's constants"
_CLOCK = "the clock: a step covers kappa times the samples"
#: The theorem is for constant hyperparameters; a schedule is the same SDE with coefficients that depend on time.
_SCHEDULES = "the clock of Thm 5.3, for hyperparameters that change with time"

#: Every quantity that a change of batch size converts, a row for each.
TABLE: tuple[Unit, ...] = (
    Unit(
        "eta", "learning rate (Adam, RMSprop)", power(HALF), "theorem", f"{PAPER}, Thm 5.3",
        "keeps sigma0 = sigma * eta, since sigma ~ 1/sqrt(B)",
    ),
    Unit(
        "beta1", "beta1 (Adam)", AVERAGE_1, "theorem", f"{PAPER}, Thm 5.3",
        "keeps c1 = (1 - beta1) / eta^2: averages over the same samples",
    ),
    Unit(
        "beta2", "beta2 (Adam), beta (RMSprop; torch: alpha)", AVERAGE_2, "theorem", f"{PAPER}, Thm 5.3",
        "keeps c2 = (1 - beta2) / eta^2: averages over the same samples",
    ),
    Unit(
        "eps", "eps added to sqrt(v)", power(-HALF), "theorem", f"{PAPER}, Thm 5.3",
        "keeps eps0 = eps * eta, as sqrt(v) shrinks with the noise",
    ),
    Unit(
        "eps_root", "eps added inside the root", power(-1), "derived", _DERIVED,
        "keeps eps_root * eta^2: it is added to v, which shrinks as 1/kappa",
    ),
    Unit("steps", "steps, every interval in steps", power(-1), "theorem", f"{PAPER}, Thm 5.3", _CLOCK),
    Unit("warmup", "warm-up steps", power(-1), "derived", _SCHEDULES, _CLOCK),
    Unit("schedule", "milestones and periods of a schedule", power(-1), "derived", _SCHEDULES, _CLOCK),
    Unit(
        "min_eta", "lowest / final learning rate of a schedule", power(HALF), "derived", _DERIVED,
        "it is a learning rate",
    ),
    Unit(
        "l2", "L2 penalty in the gradient (Adam's weight_decay)", KEPT, "derived", _DERIVED,
        "it is part of the loss, which has no units of steps or noise",
    ),
    Unit(
        "decoupled_decay", "decoupled weight decay (AdamW)", power(HALF), "derived", _DERIVED,
        "keeps lambda / eta, the decay per unit of time",
    ),
    Unit(
        "ema", "decay of a parameter average (EMA)", AVERAGE_POWER, "derived",
        "Busbridge et al. 2023 (arXiv 2307.13813)", "averages over the same samples",
    ),
    Unit(
        "batchnorm", "BatchNorm's momentum", COMPLEMENT, "derived", _DERIVED,
        "averages over the same samples",
    ),
    Unit(
        "clip", "gradient-norm clip", power(-HALF), "heuristic", "the norm of noise ~ 1/sqrt(B)",
        "where noise dominates, the norm shrinks with it",
    ),
    Unit(
        "v", "state v (second moment; AMSGrad's maximum)", power(-1), "derived", f"{PAPER}, Def. 4.1",
        "u = v / sigma^2 is the SDE's state, and sigma^2 falls as 1/kappa",
    ),
    Unit(
        "m", "state m (first moment)", MOMENT, "derived", f"{PAPER}, Def. 4.4",
        "m itself is the SDE's state; where beta1 stops at its floor, m gets the noise level of that average",
    ),
    Unit(
        "step_counter", "step counter of the bias correction", power(-1), "derived", _DERIVED,
        _CLOCK,
    ),
    Unit(
        "mu", "momentum that is normalised (Muon, Signum; Lion's beta2)", KEPT, "derived", SCALES,
        "the learning rate follows the noise that momentum leaves: sqrt(kappa) where its window in steps is kept",
    ),
    Unit(
        "mix", "weight of momentum beside the gradient (Lion's beta1)", KEPT, "derived", SCALES,
        "keeps the shares of momentum and gradient in the update",
    ),
    Unit(
        "eps_m", "eps beside the norm of momentum (Muon)", power(-HALF), "derived", SCALES,
        "it is measured in the noise of momentum",
    ),
    Unit(
        "m_sum", "normalised momentum that sums gradients (the first Muon)", summed(-HALF), "derived", SCALES,
        "1 / (1 - mu) times the average",
    ),
    Unit(
        "step_decay", "weight decay of each step, whatever the learning rate", power(1), "derived", SCALES,
        "keeps the decay per sample: 1/kappa times the steps",
    ),
    Unit(
        "m_steps", "average of steps (Adafactor's first moment)", power(1), "derived", SCALES,
        "a step covers kappa times the samples",
    ),
    Unit(
        "trust_decay", "weight decay inside a normalised step (LAMB)", KEPT, "derived", SCALES,
        "it is added to m / sqrt(v), which has no unit where beta1 is kept",
    ),
    Unit(
        "momentum_decay", "momentum_decay (NAdam)", power(1), "derived", SCALES,
        "the ramp of the momentum is counted in steps",
    ),
    Unit(
        "product", "state mu_product (NAdam)", KEPT, "derived", SCALES,
        "1/kappa times the factors, each to the power kappa",
    ),
    Unit(
        "sup", "state u, the largest |g| (Adamax)", power(-HALF), "heuristic", SCALES,
        "it is measured in noise; the logarithm of the window's length is left out",
    ),
    Unit(
        "beta3", "weight of a slow average or of a preconditioner (AdEMAMix, SOAP)", AVERAGE_2, "derived", SCALES,
        "averages over the same samples",
    ),
    Unit(
        "m2", "state m2, the slow average (AdEMAMix)", KEPT, "derived", SCALES, "as m: a mean of gradients",
    ),
    Unit(
        "frequency", "steps between renewals of a preconditioner (SOAP, Shampoo)", power(-1), "derived", SCALES, _CLOCK,
    ),
    Unit(
        "interpolation", "beta1 of Schedule-Free", KEPT, "derived", SCALES, "a point between two averages: no unit",
    ),
    Unit(
        "weight_sum", "sum of the weights of Schedule-Free's average", KEPT, "derived", SCALES,
        "1/kappa times the steps, each of weight eta^2",
    ),
    Unit(
        "sum", "state s, the sum of squared gradients (Adagrad)", power(-2), "derived", SCALES,
        "1/kappa times the terms, each 1/kappa as large",
    ),
    Unit("eps_sum", "eps beside the root of that sum", power(-1), "derived", SCALES, "as the root of the sum"),
    Unit("lr_decay", "decay of the learning rate per step (Adagrad)", power(1), "derived", SCALES, _CLOCK),
    Unit(
        "buffer", "momentum buffer that sums steps (SGD, RMSprop, LARS)", KEPT, "derived", SCALES,
        "its window in steps is kept, and what it sums has no unit",
    ),
    Unit(
        "sgd_eta", "learning rate (SGD)", power(1), "theorem", LI,
        "the linear rule: keeps sqrt(eta) * sigma, and the clock t = k * eta",
    ),
    Unit(
        "momentum", "momentum (SGD)", KEPT, "theorem", LI,
        "the linear rule is stated for a fixed momentum",
    ),
)  # fmt: skip
UNITS: dict[str, Unit] = {unit.key: unit for unit in TABLE}
