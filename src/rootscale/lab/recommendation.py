"""What to do, in plain words, from what a check found: verdicts, the noise scale along the run, and the averages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from rootscale.compare.result import Result, Table
from rootscale.format import few_digits, listed, percent, show
from rootscale.lab.causes import FEW_STEPS
from rootscale.lab.rounds import MOST
from rootscale.noise import NO_GRADIENT, scale_curve
from rootscale.rules import default_rule
from rootscale.tolerance import tolerance_text

#: Where the noise scale is this many times the batch size, the noise of the gradient dominates clearly.
CLEARLY = 2.0
_SVAG = {
    "same": "its simulation agrees with the run, as it should where the rule holds",
    "different": "its simulation differs from the run, so that the theory does not vouch for the rule here; the "
    "verdicts on the batch sizes are measured and stand by themselves",
    "undecided": "its simulation can be told neither from the run nor from another one yet",
}


def recommend(check: Table) -> tuple[str, ...]:
    """Return what to do, a sentence or two each: on batch sizes by the optimizer's own rule, other rules, and SVAG."""
    arms = [arm for arm in check.others if arm.verdict is not None]
    own = [arm for arm in arms if arm.kind != "svag" and _is_own_rule(arm)]
    return (
        *_safe([arm for arm in own if arm.verdict == "same"], check),
        *(sentence for arm in own if arm.verdict == "different" for sentence in _different(arm, own, check)),
        *(_undecided(arm, check) for arm in own if arm.verdict == "undecided"),
        *_other_rules([arm for arm in arms if arm.kind != "svag" and arm not in own]),
        *_svag([arm for arm in arms if arm.kind == "svag"]),
    )


def _is_own_rule(arm: Result) -> bool:
    """Return whether an arm was converted as the optimizer needs it, or not by us at all."""
    variant = arm.trajectory.meta.get("variant")
    if isinstance(variant, Mapping) and variant.get("zero_state"):
        return False
    if arm.changes is None or arm.plan is None:
        return True
    return bool(arm.changes["rule"] == default_rule(arm.plan.optimizer.name).name)


def _name(arm: Result) -> str:
    """Return the batch sizes of an arm: ``64``, of a ramp with the base's ``4 → 16 → 64``; its label without a plan."""
    if arm.plan is None:
        return arm.label
    sizes = _sizes(arm)
    base = [sizes[0] / Fraction(arm.trajectory.meta["variant"]["kappa"])] if _ramp(arm) else []
    return " → ".join(show(size) for size in (*base, *sizes))


def _ramp(arm: Result) -> Sequence[Sequence[Any]]:
    """Return the later switches of an arm: the samples before each, and kappa."""
    variant = arm.trajectory.meta.get("variant")
    return variant.get("ramp") or () if isinstance(variant, Mapping) else ()


def _sizes(arm: Result) -> list[Fraction]:
    if arm.plan is None:
        return []
    last, ramp = Fraction(arm.plan.batch_size.total), _ramp(arm)
    if not ramp:
        return [last]
    kappas = [Fraction(arm.trajectory.meta["variant"]["kappa"]), *(Fraction(kappa) for _, kappa in ramp)]
    return [last * kappa / kappas[-1] for kappa in kappas]


def _safe(arms: Sequence[Result], check: Table) -> Iterator[str]:
    if not arms:
        return
    names = listed([_name(arm) for arm in arms])
    comparison = arms[0].comparison
    assert comparison is not None
    places = [check.switch_at, *(at for at, _ in _ramp(arms[0]))] if len(arms) == 1 else [check.switch_at]
    start = f"switched after {listed([show(at) for at in places])} samples" if check.switch_at else "from the start"
    start = f"from {check.made['checkpoint']} on" if "checkpoint" in check.made else start
    yield (
        f"{names} {'is' if len(arms) == 1 else 'are'} safe, {start}: the same as {check.base.label} within "
        f"{tolerance_text(comparison.tolerance)}, on the way and at the end."
    )


def _different(arm: Result, own: Sequence[Result], check: Table) -> Iterator[str]:
    """Yield in what regime a batch size differs, and how it may be used after all.

    Where the rule cannot hold, nothing is advised but to leave that regime: no number would be right there.
    """
    assert arm.comparison is not None
    worst = arm.comparison.worst
    far = math.nan if worst is None else abs(worst.judged.gap)
    by = f"by up to {percent(far)} of the range" if math.isfinite(far) else "as its runs diverge"
    regime, later = list(_regime(arm, check)), list(_later(arm, check))
    ways = later if regime else [*later, *_longer_averages(arm), *_smaller(arm, own)]
    text = f"{_name(arm)} is different, {by}"
    if regime:
        text += f". {' '.join(regime)}"
        yield f"{text} If you can, {' or '.join(ways)}." if ways else text
    else:
        yield f"{text}: {' or '.join(ways)}." if ways else f"{text}."
    settled = arm.comparison.settled_after
    if settled is not None and arm.comparison.decisive and settled > arm.comparison.decisive[0].times[0]:
        yield f"{_name(arm)} comes back: from about {_samples_at(arm, settled)} on it is the same again."


def _regime(arm: Result, check: Table) -> Iterator[str]:
    """Yield why the rule cannot be expected to hold: what the loop overwrites, where its runs begin, few steps."""
    if "variant" not in arm.trajectory.meta and arm.causes:  # a loop of the user's, whose own `Run` has warned
        yield f"Mend the loop first, which does not do what was converted: {arm.causes[0]}."
    if not check.switch_at and "checkpoint" not in check.made:
        yield (
            "Its runs are from scratch, where noise does not dominate the first steps and no rule is known to keep a "
            "run: compare from a later point (--switch-at)."
        )
    steps = _steps(arm, check)
    if steps is not None and steps < FEW_STEPS:
        yield f"It takes {show(steps)} steps in all, too few for averages over steps: compare longer runs."


def _steps(arm: Result, check: Table) -> int | None:
    """Return how many steps the runs take after the switch, where that is known."""
    meta = arm.trajectory.meta
    if "steps" in meta:
        return int(meta["steps"])
    if arm.plan is None or meta.get("clock") != "samples":
        return None
    trained = float(meta["samples"][-1]) - check.switch_at
    return math.ceil(trained / float(arm.plan.batch_size.total))


def _later(arm: Result, check: Table) -> Iterator[str]:
    """Yield when the noise scale has risen clearly above the batch size for good, if it has."""
    curve, sizes = scale_curve(check.warm, check.base.trajectory), _sizes(arm)
    if curve is None or not sizes or check.base.trajectory.meta.get("samples") is None:
        return
    size = float(max(sizes))
    known = np.isfinite(curve.middle)
    clock, middle = curve.clock[known], curve.middle[known]
    low = np.flatnonzero(middle < CLEARLY * size)
    first = int(low[-1]) + 1 if low.size else 0
    if first < len(clock) and clock[first] > check.switch_at:
        yield (
            f"switch after about {few_digits(float(clock[first]), 2)} samples, from where on the noise scale is twice "
            f"as large as it"
        )
    elif first == len(clock):
        most = float(middle[middle < NO_GRADIENT].max()) if (middle < NO_GRADIENT).any() else math.nan
        if most < size:
            yield f"not in this part of the run, where the noise scale is at most {few_digits(most, 2)} samples"


def _longer_averages(arm: Result) -> Iterator[str]:
    """Yield the betas of the base with which no average would stop at a floor."""
    changes: Mapping[str, Any] = arm.changes or {}
    for row in changes.get("changes", ()):
        beta = row["field"].rpartition(".")[2] in ("beta1", "beta2", "beta")
        if beta and row.get("source") == "experiments/floors.py":
            needed = 1 - (1 - row["used"]) / changes["kappa"]
            yield f"use {row['name']} >= {math.ceil(1e4 * needed) / 1e4:g} at {_first_size(arm)} from the start"


def _first_size(arm: Result) -> str:
    assert arm.plan is not None
    assert arm.changes is not None
    return show(Fraction(arm.plan.batch_size.total) / Fraction(arm.changes["kappa"]).limit_denominator(10**6))


def _smaller(arm: Result, own: Sequence[Result]) -> Iterator[str]:
    """Yield the batch size that is probably within the tolerance, where none that was tried is known to be.

    It is that of the base times a power of 2; nothing where that is less than twice the base, as it is not worth a try.
    """
    if arm.changes is None or arm.plan is None or any(one.verdict == "same" for one in own):
        return
    assert arm.comparison is not None
    kappa = float(arm.changes["kappa"])
    excess = max(abs(gap.largest.gap) / arm.comparison.limit(gap) for gap in arm.comparison.decisive)
    if kappa > 1 and 1 < excess < math.inf:
        times = 2 ** math.floor(math.log2(1 + (kappa - 1) / excess))
        if 2 <= times < kappa:
            size = Fraction(arm.plan.batch_size.total) / Fraction(kappa).limit_denominator(10**6) * times
            yield f"try {show(size)}, as the error of larger steps grows in proportion to them"


def _undecided(arm: Result, check: Table) -> str:
    assert arm.comparison is not None
    comparison, needed = arm.comparison, arm.comparison.seeds_needed
    (lost, lost_base), (runs, runs_base) = comparison.diverged, comparison.seeds
    if lost or lost_base:
        chance = "" if needed is None or needed > MOST else f"; about {needed:,} seeds would show whether it is chance"
        return (
            f"{_name(arm)} is undecided: {lost} of its {runs} runs diverged, and {lost_base} of the {runs_base} of "
            f"{check.base.label}. Find out why before you switch{chance}."
        )
    made = arm.kind != "log" or "seeds" in check.made  # by the check, and not elsewhere
    if needed is None or needed > MOST:
        more = "its gap lies about on the tolerance, and more seeds would hardly decide. Take a smaller batch, or a "
        more += "tolerance that you can live with"
    elif made:
        more = f"about {needed:,} seeds would decide (--seeds {needed}, or --seeds auto)"
    else:
        more = f"about {needed:,} runs of each side would decide; compare them again when you have them"
    return f"{_name(arm)} is undecided with {min(runs, runs_base)} {'seeds' if made else 'runs a side'}: {more}."


def _other_rules(arms: Sequence[Result]) -> Iterator[str]:
    wrong = [f"{arm.label} ({_off(arm)})" for arm in arms if arm.verdict == "different"]
    if wrong:
        yield f"Convert everything, by the optimizer's own rule. What differs: {listed(wrong)}."
    right = [arm.label for arm in arms if arm.verdict == "same"]
    if right:
        yield f"Here {listed(right)} would do as well."


def _off(arm: Result) -> str:
    assert arm.comparison is not None
    gaps = [abs(gap.largest.gap) for gap in arm.comparison.decisive if math.isfinite(gap.largest.gap)]
    return f"off by {percent(max(gaps))}" if gaps else "its runs diverge"


def _svag(arms: Sequence[Result]) -> Iterator[str]:
    for arm in arms:
        assert arm.verdict is not None
        yield f"{arm.label} is a test of the theory behind the rule, not of a change: {_SVAG[arm.verdict]}."


def _samples_at(arm: Result, time: float) -> str:
    samples = arm.trajectory.meta.get("samples")
    if samples is None:
        return f"time {few_digits(time)}"
    return f"{few_digits(float(np.interp(time, arm.trajectory.times, samples)), 2)} samples"
