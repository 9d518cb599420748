"""The findings of a check in words: plain text, not yet HTML. Nothing is computed here that another module defines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from rootscale.compare.result import Result, Table, clock, clock_unit
from rootscale.format import few_digits, listed, plus_minus, typeset
from rootscale.format import percent as format_percent
from rootscale.gap import Gap, Largest
from rootscale.lab.settings import Measure
from rootscale.noise import NO_GRADIENT, NOISE_SCALE, Dominance, scale_curve
from rootscale.pairing import Array
from rootscale.tolerance import tolerance_text
from rootscale.trajectory import Trajectory
from rootscale.verdict import FEWEST, LOSSES, Comparison

#: The words for the verdicts, in the order of the page; the last is for runs that were too few for one.
VERDICTS = {"same": "Same", "different": "Different", "undecided": "Undecided", "unjudged": "Not judged"}


def percent(share: float, sign: str = "") -> str:
    """Return a share in percent, with a minus sign and spaces that do not break."""
    return typeset(format_percent(share, sign=sign))


def number(value: float, digits: int = 3) -> str:
    """Return a number with few digits and a minus sign."""
    return typeset(few_digits(value, digits))


def with_error(mean: float, se: float) -> str:
    """Return a mean and two standard errors."""
    return typeset(plus_minus(mean, 2 * se))


def with_se(largest: Largest) -> str:
    """Return the largest gap and its standard error."""
    return typeset(format_percent(largest.gap, largest.se))


def with_band(largest: Largest) -> str:
    """Return the largest gap with its band, or its standard error where there is no band."""
    if not math.isfinite(largest.low):
        return with_se(largest)
    return f"{percent(largest.gap)} ({percent(largest.low)} to {percent(largest.high)})"


def clock_name(trajectory: Trajectory) -> str:
    """Return what `clock` counts, for an axis."""
    unit = clock_unit(trajectory)
    return "continuous time" if unit is None else f"{unit} seen" if unit in ("samples", "tokens") else unit


def clock_of_gap(gap: Gap, trajectory: Trajectory) -> Array:
    """Return the clock at the times of a gap."""
    return np.interp(gap.times, trajectory.times, clock(trajectory))


def deciding(check: Table) -> tuple[str, ...]:
    """Return the test functions on which the verdicts rest; where there is none, those on which they would."""
    for arm in check.others:
        if arm.comparison is not None and arm.comparison.gaps:
            return tuple(gap.name for gap in arm.comparison.decisive)
    names = _followed(check)
    return tuple(name for name in names if name in LOSSES) or tuple(names[:1])


def tolerance(check: Table, name: str) -> float | None:
    """Return the tolerance of the verdicts on a test function, as a share of its range; None where there is none."""
    for arm in check.others:
        gap = arm.comparison.gaps.get(name) if arm.comparison and arm.verdict else None
        if arm.comparison and gap is not None and math.isfinite(arm.comparison.limit(gap)):
            return arm.comparison.limit(gap)
    return None


def decide(comparison: Comparison) -> str:
    """Return what it would take to decide."""
    if comparison.seeds_needed is not None:
        return f"about {comparison.seeds_needed:,} seeds would decide (there are {min(comparison.seeds)})"
    (lost, lost_base), (runs, runs_base) = comparison.diverged, comparison.seeds
    if not lost and not lost_base:
        return "no number of seeds would decide, if the gap is what it seems: it lies on the tolerance"
    return f"{lost} of {runs} runs diverged, of the base {lost_base} of {runs_base}: too few to tell"


def diverged(arm: Result) -> str:
    """Return how many runs of the arm diverged; nothing if none did."""
    lost = int(arm.trajectory.diverged[-1])
    return f"{lost} of {arm.trajectory.replicas} runs diverged" if lost else ""


def judged(arm: Result) -> str:
    """Return the verdict on an arm, or that there is none: a key of `VERDICTS`."""
    return arm.verdict or "unjudged"


def too_few(arms: Iterable[Result]) -> str:
    """Return why there is no verdict."""
    runs = sorted({arm.trajectory.replicas for arm in arms})
    there = f"; there {'is' if runs == [1] else 'are'} {listed([str(n) for n in runs])}" if max(runs) < FEWEST else ""
    return f"a verdict needs at least {FEWEST} seeds{there}"


@dataclass(frozen=True)
class Sentence:
    """A verdict in plain words.

    Args:
        verdict: a key of `VERDICTS`, whose word the sentence begins with.
        text: what follows that word.
        arms: on whom: the number of the arm (0 is the base), its label, and what is to be said of it alone.
    """

    verdict: str
    text: str
    arms: tuple[tuple[int, str, str], ...]

    def __str__(self) -> str:
        arms = "; ".join(label + (f": {said}" if said else "") for _, label, said in self.arms)
        return f"{VERDICTS[self.verdict]}{self.text}: {arms}"


def sentences(check: Table) -> list[Sentence]:
    """Return a sentence for each verdict on a change, in the order of `VERDICTS`."""
    groups: dict[str, list[tuple[int, Result]]] = {}
    asked = [arm.label for arm in check.changed]
    for i, arm in enumerate(check.others, 1):
        if arm.label in asked:
            groups.setdefault(judged(arm), []).append((i, arm))
    return [_sentence(check, verdict, groups[verdict]) for verdict in VERDICTS if verdict in groups]


def _sentence(check: Table, verdict: str, arms: Sequence[tuple[int, Result]]) -> Sentence:
    base, names = typeset(check.base.label), deciding(check)
    limit = next((tolerance_text(arm.comparison.tolerance) for _, arm in arms if arm.comparison), "")
    limit = typeset(limit).replace("the base curve's range", "its range")
    what = listed(names) if len(names) <= 3 else f"{len(names)} test functions"
    texts = {
        "same": f" as {base}, within {limit} ({what})",
        "different": f" from {base}, by more than {limit} ({what})",
        "undecided": f" whether the same as {base} within {limit} ({what})",
        "unjudged": f": {too_few(arm for _, arm in arms)}",
    }
    return Sentence(
        verdict, texts[verdict], tuple((i, typeset(arm.label), _said(arm, len(names) > 1)) for i, arm in arms)
    )


def _said(arm: Result, several: bool) -> str:
    """Return what the sentence adds on one arm; with the test function, where several decide."""
    if arm.comparison is None or arm.verdict in (None, "same"):
        return ""
    if arm.verdict == "undecided":
        return decide(arm.comparison)
    gap = arm.comparison.worst
    if gap is not None and gap.verdict == "different" and math.isfinite(gap.judged.gap):
        return f"by up to {percent(abs(gap.judged.gap))}" + (f" ({gap.name})" if several else "")
    return diverged(arm)  # which can make the difference by itself


def stages(arm: Result) -> list[tuple[float, float]]:
    """Return each batch size of a run, with the samples seen before it; only the plan's where no others are known."""
    if arm.plan is None:
        return []
    size = float(arm.plan.batch_size.total)
    variant, plan = arm.trajectory.meta.get("variant"), arm.trajectory.meta.get("base_plan")
    if not isinstance(variant, Mapping) or not isinstance(plan, Mapping):
        return [(0.0, size)]
    ramp = [(float(at), Fraction(kappa)) for at, kappa in variant.get("ramp", ())]
    # The plan of an arm is that of its last stage.
    kappas = [Fraction(variant.get("kappa", 1)), *(kappa for _, kappa in ramp)]
    places = [float(arm.trajectory.meta.get("switch_at", 0)), *(at for at, _ in ramp)]
    return [(at, size * float(kappa / kappas[-1])) for at, kappa in zip(places, kappas, strict=True)]


def switches(check: Table) -> list[tuple[float, str]]:
    """Return where all runs change their batch size, by the clock, and what to write there."""
    if not check.switch_at:
        return []
    base = check.base.trajectory
    if clock_unit(base) is None:
        return [(float(base.times[0]), "switch")]
    ways = [stages(arm) for arm in check.others if arm.kind == "batch size"]
    found = [(float(check.switch_at), "switch")]
    if ways and all(way == ways[0] for way in ways) and len(ways[0]) > 1:
        found = [(at, f"B → {number(size, 6)}") for at, size in ways[0]]
    return found


def batch_sizes(check: Table) -> list[tuple[int, float]]:
    """Return the first arm (0 is the base) that has each batch size at some time; SVAG's is nominal and left out."""
    sizes: dict[float, int] = {}
    for i, arm in enumerate((check.base, *check.others)):
        for _, size in stages(arm) if arm.kind != "svag" else ():
            sizes.setdefault(size, i)
    return [(i, size) for size, i in sorted(sizes.items())]


def noise_levels(check: Table) -> tuple[float, float]:
    """Return the lowest and highest level that a figure of the noise scale has to show, batch sizes included.

    Where no gradient was seen the noise scale is beyond what was measured: there a curve leaves the figure.
    """
    curve = scale_curve(check.warm, check.base.trajectory)
    scales = np.array([*([] if curve is None else curve.middle), *(size for _, size in batch_sizes(check))])
    seen = scales[(scales > 0) & (scales < NO_GRADIENT)]
    return float(seen.min()), float(seen.max())


def noise_dominates(check: Table) -> list[tuple[int, str]]:
    """Return for each batch size (with its first arm) where in the comparison the noise dominates the gradient."""
    curve = scale_curve(check.base.trajectory)
    if curve is None:
        return []
    unit = clock_unit(check.base.trajectory) or "(time)"
    return [
        (arm, f"B = {number(size, 6)}: {Dominance(curve, size, Measure.noise_samples, unit).where}")
        for arm, size in batch_sizes(check)
    ]


def _followed(check: Table) -> list[str]:
    return [name for name in check.base.trajectory.names if name != NOISE_SCALE]


def functions(check: Table) -> list[str]:
    """Return the test functions, those that decide first; the noise scale has a place of its own."""
    first = deciding(check)
    return sorted(_followed(check), key=lambda name: name not in first)


def described(value: Any) -> str:
    """Return anything that JSON can hold, as text.

    >>> described({"torch": "2.6", "numpy": "2.0"}), described([1, 2]), described(83.4)
    ('torch 2.6, numpy 2.0', '1, 2', '83.4')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {described(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(described, value))
    return str(value)
