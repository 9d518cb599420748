"""The verdict on two sets of runs: whether the gap of their mean curves is within a tolerance.

`rootscale.gap` defines the gap. For test function f at time t, with se its standard error over seeds, the band is
``gap ± c se``, with one c for all functions and times. c is the ``level`` quantile of

    max over f, t of |gap*(f, t)| / se*(f, t)

where gap* and se* are those of the runs' deviations from their mean after a random rotation of the runs among
themselves (a rotation test; signs or a permutation of the runs are special rotations). Every run keeps its course over
all times and functions, and thereby their dependence; se* is computed anew, and so accounts for how few seeds se rests
on. For a single time and function, c is Student's quantile. What the bands cover, measured, is in docs/verdict.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootscale.format import percent
from rootscale.gap import Gap, Verdict, gaps_of
from rootscale.pairing import ROUNDING, Array, Mask, PairedRuns, Sample, pair_runs
from rootscale.stats import fisher_exact, student_log_tail, student_of_log_tail
from rootscale.trajectory import Trajectory, need_keys

__all__ = ["FEWEST", "Comparison", "Gap", "Verdict", "compare", "need_levels"]

FEWEST = 4  # seeds (pairs, where paired) for a band; it is of use from 6 or 8 on
_MOST = 10_000  # seeds: more than these are no advice


@dataclass(frozen=True)
class Comparison:
    """All test functions of two sets of runs.

    Args:
        gaps: by test function.
        tolerance: share of the base curve's range that is still the same.
        level: of the bands, simultaneously over times and test functions.
        seeds: how many there were of the other, and of the base.
        paired: whether runs of equal seeds were compared with each other.
        diverged: how many runs of the other, and of the base, had diverged at the end.
        notes: what a reader should know, each in a sentence: runs or functions left out, divergence.
        critical: c, the half-width of the band in standard errors; None where there was no band.
        deciding: the test functions on which the verdict rests; all, where empty.
    """

    gaps: Mapping[str, Gap]
    tolerance: float
    level: float
    seeds: tuple[int, int]
    paired: bool
    diverged: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    critical: float | None = None
    deciding: tuple[str, ...] = ()

    @property
    def decisive(self) -> tuple[Gap, ...]:
        """The gaps on which the verdict rests."""
        return tuple(gap for name, gap in self.gaps.items() if not self.deciding or name in self.deciding)

    @property
    def verdict(self) -> Verdict | None:
        """Different if any deciding test function is (or how many runs diverge), same if all are.

        None where there were fewer than `FEWEST` seeds.
        """
        if min(self.seeds) < FEWEST:
            return None
        verdicts = {gap.verdict for gap in self.decisive} | {self.divergence}
        return "different" if "different" in verdicts else "undecided" if "undecided" in verdicts else "same"

    @property
    def divergence(self) -> Verdict:
        """The verdict on how many runs diverged: same if equally many, different if Fisher's exact test says so."""
        if self.diverged[0] * self.seeds[1] == self.diverged[1] * self.seeds[0]:
            return "same"
        return "different" if fisher_exact(self.diverged, self.seeds) < 1 - self.level else "undecided"

    @property
    def seeds_needed(self) -> int | None:
        """Where the verdict is undecided, how many seeds would decide it; None where no number can."""
        if self.verdict != "undecided":
            return None
        needed = [gap.seeds_needed for gap in self.decisive if gap.verdict == "undecided"]
        if self.divergence == "undecided":
            needed.append(_seeds_for_divergence(self.diverged, self.seeds, self.level))
        numbers = [n for n in needed if n is not None]
        return max(numbers) if len(numbers) == len(needed) else None

    @property
    def settled_after(self) -> float | None:
        """The time from which on the deciding bands stay within the tolerance; None where one does not at the last."""
        times = [gap.settled_after(self.tolerance) for gap in self.decisive]
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "verdict": self.verdict,
            "gaps": [gap.to_dict() for gap in self.gaps.values()],
            "tolerance": self.tolerance,
            "level": self.level,
            "seeds": list(self.seeds),
            "paired": self.paired,
            "diverged": list(self.diverged),
            "notes": list(self.notes),
            "critical": self.critical,
            "deciding": list(self.deciding),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Read what `to_dict` gave."""
        keys = ("gaps", "tolerance", "level", "seeds", "paired", "diverged", "notes", "critical", "deciding")
        need_keys("a comparison", data, keys)
        gaps = [Gap.from_dict(gap) for gap in data["gaps"]]
        try:
            (seeds, base_seeds), (diverged, base_diverged) = data["seeds"], data["diverged"]
        except (TypeError, ValueError):
            raise ValueError("seeds and diverged of a comparison must be two numbers each") from None
        return cls(
            {gap.name: gap for gap in gaps}, data["tolerance"], data["level"], (seeds, base_seeds), data["paired"],
            (diverged, base_diverged), tuple(data["notes"]), data["critical"], tuple(data["deciding"]),
        )  # fmt: skip

    def __str__(self) -> str:
        """Return a line on the whole, one on each test function, and the notes."""
        other, base = self.seeds
        runs = f"{other} pairs of runs" if self.paired else f"{other} runs against {base}"
        bands = f"; bands hold at {percent(self.level)} for all times and functions at once" if self.critical else ""
        head = f"{self.verdict or 'not judged'}: {runs}, tolerance {percent(self.tolerance)}{bands}"
        followed = {gap.name for gap in self.gaps.values()} - {gap.name for gap in self.decisive}
        rows = [f"  {gap}{' (followed)' if name in followed else ''}" for name, gap in self.gaps.items()]
        return "\n".join([head, *rows, *(f"  note: {note}" for note in self.notes)])


def compare(
    base: Trajectory,
    other: Trajectory,
    functions: Sequence[str] | None = None,
    *,
    tolerance: float = 0.05,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    deciding: Sequence[str] = (),
) -> Comparison:
    """Compare two sets of runs: the gap of their mean curves, with a band, and whether it is within ``tolerance``.

    A test function is the *same* where the band lies within ``[-tolerance, tolerance]`` at all times, *different* where
    it lies wholly outside at some time, and *undecided* otherwise. `rootscale.gap` says what the gap is, which times
    and runs make it, and what a diverged run does.

    Fewer than 4 runs (pairs) have a gap, but neither band nor verdict. Nor has a time at which fewer than 4 runs, or
    less than half of them, are left. That more runs diverge on one side is itself a finding: the verdict is then not
    "same", and "different" if Fisher's exact test rejects at ``1 - level``.

    Args:
        base, other: with ``values [R, T]`` on the same times.
        functions: which test functions; all that both have, but for the noise scale, if None.
        tolerance: share of the range of the base's mean curve. A flat base curve has none: it is an error where the
            verdict would rest on it, unless all runs have the very same values and ``functions`` did not ask for it.
        level: that the bands hold at all times and for all functions at once.
        resamples: how many rotations.
        seed: of the resamples.
        deciding: the test functions on which the verdict rests; all, where empty. The bands hold for all either way.
    """
    need_levels(tolerance, level)
    if resamples < 100:
        raise ValueError(f"need at least 100 resamples, got {resamples}")
    runs = pair_runs(base, other, functions)
    compared = (*runs.names, *runs.flat)
    for name in deciding:
        if name not in compared:
            raise ValueError(f"the verdict cannot rest on {name!r}; compared are {', '.join(map(repr, compared))}")
    notes = _notes(base, other, runs, asked=functions is not None)
    result = Comparison(
        gaps_of(runs), tolerance, level, runs.seeds, runs.paired, runs.diverged, tuple(notes), None, tuple(deciding)
    )
    if min(runs.seeds) < FEWEST:
        return result
    _need_ranges(base, other, runs, functions is not None, set(deciding) or set(compared))
    result = _judged(result, runs, resamples, np.random.default_rng(seed))
    return replace(result, notes=(*result.notes, _divergence_note(result))) if any(runs.diverged) else result


def need_levels(tolerance: float, level: float) -> None:
    """Refuse what is no tolerance or no level; also for those who compare only after long work."""
    if not (0 < tolerance < math.inf and 0 < level < 1):
        raise ValueError(f"need a tolerance above 0 and a level between 0 and 1, got {tolerance} and {level}")


def _judged(result: Comparison, runs: PairedRuns, resamples: int, rng: np.random.Generator) -> Comparison:
    """Return the comparison with bands and verdicts."""
    tolerance = result.tolerance
    judged = np.all([(one.count >= FEWEST) & (2 * one.count >= one.runs) for one in runs.samples], axis=0)
    se = np.where(judged, runs.se, np.nan)
    with np.errstate(invalid="ignore"):
        c = _critical(runs.samples, judged & (se > ROUNDING), result.level, resamples, rng)
    notes = result.notes
    if not judged.all():
        notes += (
            f"{(~judged).sum()} of {len(judged)} times, from t = {runs.times[~judged][0]:.4g} on, are not judged: "
            "too few runs had not diverged",
        )
    # Per-run variance of the gap: se(n) = spread / sqrt(n) for n seeds on each side.
    spread = np.sqrt(sum((one.runs * one.variance for one in runs.samples), np.zeros_like(se)))
    log_tail = student_log_tail(c, sum(runs.seeds) / (1 + runs.paired) - len(runs.samples))
    gaps = {}
    for i, (name, gap) in enumerate(result.gaps.items()):
        half = c * se[i]
        found = replace(gap, low=gap.gap - half, high=gap.gap + half, verdict="undecided")
        if found.outside(tolerance).any():
            found = replace(found, verdict="different")
        elif found.within(tolerance).all():
            found = replace(found, verdict="same")
        else:
            known = np.where(judged, gap.gap, np.nan)
            needed = _seeds_for_band(known, spread[i], tolerance, log_tail, len(runs.samples), min(runs.seeds))
            found = replace(found, seeds_needed=needed)
        gaps[name] = found
    return replace(result, gaps=gaps, notes=notes, critical=c)


def _critical(samples: Sequence[Sample], use: Mask, level: float, resamples: int, rng: np.random.Generator) -> float:
    """Return c: the ``level`` quantile of the largest |t| over ``use [F, T]`` when runs are rotated among themselves.

    Under a rotation of n deviations ``a`` their mean is ``w a / sqrt(n)``, with w uniform on the unit sphere, and their
    sum of squares stays: nothing but w needs to be drawn.
    """
    directions = [rng.standard_normal((resamples, sample.runs)) for sample in samples]
    norms = [np.sqrt(z**2 @ sample.alive) for z, sample in zip(directions, samples, strict=True)]
    largest = np.zeros(resamples)
    for i, keep in enumerate(use):
        if not keep.any():
            continue
        mean = np.zeros((resamples, int(keep.sum())))
        variance = np.zeros_like(mean)
        for z, norm, sample in zip(directions, norms, samples, strict=True):
            n = sample.count[keep]
            # Deviations from a mean of n are short by sqrt(1 - 1/n).
            deviations = sample.deviations[:, i, keep] * np.sqrt(n / (n - 1))
            along = z @ deviations / norm[:, keep]
            mean += along / np.sqrt(n)
            variance += ((deviations**2).sum(0) - along**2) / (n * (n - 1))
        np.maximum(largest, (mean**2 / np.maximum(variance, 1e-12 * mean**2)).max(1), out=largest)
    return float(np.sqrt(np.quantile(largest, level, method="inverted_cdf")))


def _seeds_for_band(
    gap: Array, spread: Array, tolerance: float, log_tail: float, samples: int, present: int
) -> int | None:
    """Return the smallest n at which ``gap ± c(n) spread / sqrt(n)`` decides.

    c(n) is the t-quantile, at n's degrees of freedom, of the tail that c has at the present ones.
    """
    size, toward_different = np.abs(gap), bool(np.any(np.abs(gap) > tolerance))

    def decides(n: int) -> bool:
        half = student_of_log_tail(log_tail, samples * (n - 1)) * spread / math.sqrt(n)
        return bool(np.any(size - half > tolerance) if toward_different else np.all(size + half <= tolerance))

    low, high = present, _MOST
    if not decides(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _seeds_for_divergence(diverged: tuple[int, int], runs: tuple[int, int], level: float) -> int | None:
    """Return the size of the larger side at which Fisher's test would reject, were both sides some times larger."""
    for times in range(2, 1 + 1000 // max(runs)):
        if fisher_exact((times * diverged[0], times * diverged[1]), (times * runs[0], times * runs[1])) < 1 - level:
            return times * max(runs)
    return None


def _divergence_note(result: Comparison) -> str:
    (other, base), (n, m) = result.diverged, result.seeds
    counts = f"{other} of {n} runs of the other and {base} of {m} of the base diverged"
    if result.divergence == "same":
        return f"{counts}; the gap is that of the runs that did not"
    meaning = "different" if result.divergence == "different" else "no proof of a difference, but not the same either"
    return f"{counts} (Fisher's exact test: p = {fisher_exact(result.diverged, result.seeds):.2g}): {meaning}"


def _notes(base: Trajectory, other: Trajectory, runs: PairedRuns, asked: bool) -> list[str]:
    """Return what was left out."""
    notes = []
    only = sorted({*base.names} ^ {*other.names})
    if only and not asked:
        notes.append(f"left out, as only one of the two has it: {', '.join(only)}")
    if runs.left_out:
        pairs = f"the {runs.seeds[0]} seed{'s' * (runs.seeds[0] != 1)} that both have"
        notes.append(f"paired by {pairs}; {runs.left_out} runs with other seeds were left out")
    if runs.flat:
        notes.append(f"left out, as the base's mean curve is flat and has no range: {', '.join(runs.flat)}")
    return notes


def _need_ranges(base: Trajectory, other: Trajectory, runs: PairedRuns, asked: bool, deciding: set[str]) -> None:
    """Refuse a verdict that would rest on a function without a range."""
    if not any(np.isfinite(base.values[name]).any(0).sum() > 1 for name in (*runs.names, *runs.flat)):
        raise ValueError("all runs of the base had diverged after the first time: there is nothing to compare with")
    for name in runs.flat:
        kept = np.concatenate([one.values[name][np.isfinite(one.values[name])] for one in (base, other)])
        constant = not kept.size or np.ptp(kept) <= ROUNDING * np.abs(kept).max()
        if name in deciding and (asked or not constant):
            raise ValueError(
                f"the base's mean curve of {name!r} is flat, and a gap cannot be a share of its range: leave {name!r} "
                "out of functions, or compare over a time in which it moves"
            )
    if not runs.names:
        raise ValueError(f"no test function is left: the base's mean curve of {', '.join(runs.flat)} is flat")
