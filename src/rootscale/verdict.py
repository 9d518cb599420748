"""The verdict on two sets of runs: whether the gap of their mean curves is within a tolerance.

`rootscale.gap` defines the gap and `rootscale.bands` its bands: one that holds at all times and for all deciding test
functions at once, and narrower ones that hold at each time by itself. Runs are *different* where the first lies wholly
outside of the tolerance at some time. They are the *same* where, at all times, the gap averaged over neighbouring times
lies within the tolerance with its whole narrow band, the gap at the time itself within twice the tolerance, and the gap
at the last time within the tolerance. `definition` says so in one sentence. A `Judge` may also ask for the end alone.

Both hold however often one looks: the verdict may be asked for again with more seeds, at every number of them, and the
chance that any of its answers is wrong stays what ``level`` says (`rootscale.looks.LOOKS`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rootscale.bands import Critical, Draws, Forecast, Seen, averaged, critical_values, pooled_se
from rootscale.format import percent
from rootscale.gap import SPIKE, Gap, Verdict, gaps_of
from rootscale.looks import LOOKS
from rootscale.pairing import ROUNDING, Mask, PairedRuns, Sample, pair_runs
from rootscale.stats import barnard_exact
from rootscale.tolerance import (
    Absolute,
    Tolerance,
    share_of_range,
    tolerance_from_json,
    tolerance_text,
    tolerance_to_json,
)
from rootscale.trajectory import Trajectory, need_keys

__all__ = ["Absolute", "Judge", "compare"]

#: Verdicts on test functions, from what says least to what settles the whole.
_SEVERITY: Mapping[str | None, int] = {None: 0, "same": 0, "undecided": 1, "different": 2}
FEWEST = 2  # seeds (pairs, where paired) for a band; it is of use from 4 on
#: What a verdict rests on, if nothing else is asked for.
LOSSES = ("train loss", "test loss")
#: Over which part of the runs a verdict is given.
OVER = ("curve", "end")
#: The numbers of runs on a side for which a test of divergence is forecast.
_FORECAST: tuple[int, ...] = (*range(3, 128), *range(128, 513, 8))


@dataclass(frozen=True)
class Judge:
    """What makes two sets of runs the same; everything here that says *same* or *different* asks a judge.

    Args:
        tolerance: within which a gap counts as none: a share of the range of the base's mean curve, or an `Absolute`
            difference.
        level: the chance that a verdict is right.
        decide_by: the test functions on which the verdict rests; None is the losses. All others are compared as well,
            but for the noise scale, and shown with verdicts of their own.
        looks: at which numbers of seeds the verdict may be asked for: at ``any``, each time after ``doubling`` them, or
            ``once``, at a number that was fixed before. The fewer, the narrower are the bands.
        over: ``curve``, all times and the end; or ``end``, the last evaluation alone.
        against: the label of the arm that runs are compared with; empty is the base. With the label of a null (the
            base with other samples), a gap is judged beside that of the null: less the gap that a rerun has.
    """

    tolerance: Tolerance = 0.05
    level: float = 0.95
    decide_by: Sequence[str] | None = None
    looks: str = "any"
    over: str = "curve"
    against: str = ""

    def __post_init__(self) -> None:
        size = self.tolerance.value if isinstance(self.tolerance, Absolute) else self.tolerance
        if not (0 < size < math.inf and 0 < self.level < 1):
            raise ValueError(f"need a tolerance above 0 and a level between 0 and 1, got {size} and {self.level}")
        for name, known in (("looks", LOOKS), ("over", OVER)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")

    def compare(self, base: Trajectory, other: Trajectory, *, whole: Trajectory | None = None) -> Comparison:
        """Compare two sets of runs; `compare` has the arguments and the rules."""
        names = [name for name in base.names if name in LOSSES] if self.decide_by is None else list(self.decide_by)
        return compare(
            base, other, tolerance=self.tolerance, level=self.level, looks=self.looks, over=self.over, deciding=names,
            whole=whole,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        names = None if self.decide_by is None else list(self.decide_by)
        return {**asdict(self), "tolerance": tolerance_to_json(self.tolerance), "decide_by": names}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Judge:
        """Read what `to_dict` gave."""
        return cls(**{**data, "tolerance": tolerance_from_json(data["tolerance"])})


def definition(tolerance: Tolerance, level: float, over: str = "curve") -> str:
    """Return what *same* means, in the sentence that the commands, the report and the documentation share.

    >>> definition(0.05, 0.95, "end")
    "Same means, with 95 % confidence: the gap at the last evaluation is at most 5 % of the base curve's range."
    """
    limit = tolerance_text(tolerance)
    head = f"Same means, with {percent(level)} confidence: the gap"
    if over == "end":
        return f"{head} at the last evaluation is at most {limit}."
    return (
        f"{head}, averaged over a fifth of the run, is at most {limit} at all times; at every single evaluation it is "
        "at most twice that, and at the last one at most that."
    )


@dataclass(frozen=True)
class Comparison:
    """All test functions of two sets of runs.

    Args:
        gaps: by test function.
        tolerance: what is still the same: a share of the base curve's range, or an `Absolute` difference.
        level: of the verdict, however often one looks.
        seeds: how many there were of the other, and of the base.
        paired: whether runs of equal seeds were compared with each other.
        diverged: how many runs of the other, and of the base, had diverged at the end.
        notes: what a reader should know, each in a sentence: runs or functions left out, divergence.
        critical: half the width of the band of all times at once, in standard errors pooled over time; None where
            there was no band.
        deciding: the test functions on which the verdict rests; all, where empty.
        looks: at which numbers of seeds the verdict may be asked for: a key of `rootscale.looks.LOOKS`.
        partial: whether runs end early, so that the rest of the others is not compared: that is not "same".
        over: which part of the runs the verdict is on: a value of `Judge`.
    """

    gaps: Mapping[str, Gap]
    tolerance: Tolerance
    level: float
    seeds: tuple[int, int]
    paired: bool
    diverged: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    critical: float | None = None
    deciding: tuple[str, ...] = ()
    looks: str = "any"
    partial: bool = False
    over: str = "curve"

    def limit(self, gap: Gap) -> float:
        """Return the tolerance as a share of the range of one of the gaps; NaN where it says nothing about it."""
        return share_of_range(self.tolerance, gap.name, gap.range)

    @property
    def decisive(self) -> tuple[Gap, ...]:
        """The gaps on which the verdict rests."""
        return tuple(gap for name, gap in self.gaps.items() if not self.deciding or name in self.deciding)

    @property
    def worst(self) -> Gap | None:
        """The gap that settled the verdict: the largest of the severest verdict among those on which it rests."""

        def rank(gap: Gap) -> tuple[int, float]:
            return _SEVERITY[gap.verdict], float(np.nan_to_num(abs(gap.judged.gap)))

        return max(self.decisive, key=rank, default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Different if any deciding test function is (or how many runs diverge), same if all are.

        None where there were fewer than `FEWEST` seeds.
        """
        if min(self.seeds) < FEWEST:
            return None
        verdicts = {gap.verdict for gap in self.decisive}
        if not verdicts or None in verdicts:  # stored without bands
            return None
        verdicts |= {self.divergence, "undecided" if self.partial else "same"}
        return "different" if "different" in verdicts else "undecided" if "undecided" in verdicts else "same"

    @property
    def end(self) -> Verdict | None:
        """The verdict on the last evaluation alone, on the functions that decide; None where there is no verdict."""
        if self.verdict is None:
            return None
        verdicts = {gap.at_end(self.limit(gap)) for gap in self.decisive}
        return "different" if "different" in verdicts else "undecided" if "undecided" in verdicts else "same"

    @property
    def definition(self) -> str:
        """What *same* means here."""
        return definition(self.tolerance, self.level, self.over)

    @property
    def reliability(self) -> str:
        """How often a verdict is wrong, and on which condition."""
        often = "" if self.looks == "once" else ", however often you add seeds and ask again"
        return (
            f"A verdict is wrong in at most {percent(1 - self.level)} of such comparisons{often}, if the seeds show "
            "what happens: a run in ten that goes wrong is rarely among four."
        )

    @property
    def divergence(self) -> Verdict:
        """The verdict on how many runs diverged: same if equally many, different if Barnard's exact test says so."""
        if self.diverged[0] * self.seeds[1] == self.diverged[1] * self.seeds[0]:
            return "same"
        return "different" if barnard_exact(self.diverged, self.seeds) < self.spent(min(self.seeds)) else "undecided"

    def spent(self, seeds: int) -> float:
        """Return the chance of an error that a look at so many seeds may have."""
        return (1 - self.level) * LOOKS[self.looks](seeds)

    @property
    def seeds_needed(self) -> int | None:
        """Where the verdict is undecided, how many seeds would decide it; None where no number can."""
        if self.verdict != "undecided":
            return None
        if self.divergence == "undecided":  # as long as more runs of one side diverge, it can be no other verdict
            return self._seeds_for_divergence()
        needed = [gap.seeds_needed for gap in self.decisive if gap.verdict == "undecided"]
        numbers = [n for n in needed if n is not None]
        return max(numbers) if numbers and len(numbers) == len(needed) else None

    def _seeds_for_divergence(self) -> int | None:
        """Return the size of the larger side at which Barnard's test would reject, if as many of its runs diverge."""
        for larger in [n for n in _FORECAST if n > max(self.seeds)]:
            runs = [round(larger * n / max(self.seeds)) for n in self.seeds]
            lost = [one * n // of for one, n, of in zip(self.diverged, runs, self.seeds, strict=True)]
            if barnard_exact((lost[0], lost[1]), (runs[0], runs[1])) < self.spent(min(runs)):
                return larger
        return None

    @property
    def settled_after(self) -> float | None:
        """The time from which on the deciding gaps stay within the tolerance; None where one does not at the last."""
        times = [gap.settled_after(self.limit(gap)) for gap in self.decisive]
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "verdict": self.verdict,
            "gaps": [gap.to_dict() for gap in self.gaps.values()],
            "tolerance": tolerance_to_json(self.tolerance),
            "level": self.level,
            "looks": self.looks,
            "seeds": list(self.seeds),
            "paired": self.paired,
            "diverged": list(self.diverged),
            "notes": list(self.notes),
            "critical": self.critical,
            "deciding": list(self.deciding),
            "partial": self.partial,
            "over": self.over,
            "end": self.end,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Read what `to_dict` gave; older records are of one look."""
        keys = ("gaps", "tolerance", "level", "seeds", "paired", "diverged", "notes", "critical", "deciding")
        need_keys("a comparison", data, keys)
        gaps = [Gap.from_dict(gap) for gap in data["gaps"]]
        try:
            (seeds, base_seeds), (diverged, base_diverged) = data["seeds"], data["diverged"]
        except (TypeError, ValueError):
            raise ValueError("seeds and diverged of a comparison must be two numbers each") from None
        return cls(
            {gap.name: gap for gap in gaps}, tolerance_from_json(data["tolerance"]), data["level"],
            (seeds, base_seeds), data["paired"], (diverged, base_diverged), tuple(data["notes"]), data["critical"],
            tuple(data["deciding"]), data.get("looks", "once"), data.get("partial", False), data.get("over", "curve"),
        )  # fmt: skip

    def __str__(self) -> str:
        """Return a line on the whole, one on each test function, and the notes."""
        other, base = self.seeds
        runs = f"{other} pairs of runs" if self.paired else f"{other} runs against {base}"
        looks = "" if self.looks == "once" else ", however often you look"
        level = f"; {percent(self.level)} sure{looks}" if self.critical else ""
        head = f"{self.verdict or 'not judged'}: {runs}, tolerance {tolerance_text(self.tolerance)}{level}"
        followed = {gap.name for gap in self.gaps.values()} - {gap.name for gap in self.decisive}
        rows = [f"  {gap}{' (followed)' if name in followed else ''}" for name, gap in self.gaps.items()]
        return "\n".join([head, *rows, *(f"  note: {note}" for note in self.notes)])


def compare(
    base: Trajectory,
    other: Trajectory,
    functions: Sequence[str] | None = None,
    *,
    tolerance: Tolerance = 0.05,
    level: float = 0.95,
    looks: str = "any",
    over: str = "curve",
    resamples: int = 4000,
    seed: int = 0,
    deciding: Sequence[str] = (),
    whole: Trajectory | None = None,
) -> Comparison:
    """Compare two sets of runs: the gap of their mean curves, with bands, and whether it is within ``tolerance``.

    `rootscale.gap` says what the gap is, which times and runs make it, and what a diverged run does; this module, what
    *same*, *different* and *undecided* mean.

    One run (pair) has a gap, but neither band nor verdict. Nor has a time at which fewer than 2 runs, or less than half
    of them, are left. That more runs diverge on one side is itself a finding: the verdict is then not "same", and
    "different" if Barnard's exact test rejects.

    Args:
        base, other: with ``values [R, T]`` on the same times.
        functions: which test functions; all that both have, but for the noise scale, if None.
        tolerance: share of the range of the base's mean curve, or an `Absolute` difference. A flat base curve has no
            range: it is an error where the verdict would rest on it, unless all runs have the very same values and
            ``functions`` did not ask for it.
        level: the chance that a verdict is right, however often ``looks`` allows to ask for it.
        looks: at which numbers of seeds it may be asked for: at ``any``, each time after ``doubling`` them, or
            ``once``, at a number that was fixed before. The fewer, the narrower are the bands.
        over: ``curve``, all times and the end; or ``end``, the last evaluation alone.
        resamples: how many rotations.
        seed: of the resamples.
        deciding: the test functions on which the verdict rests, with one band for all of them; all, where empty. Each
            of the others has a band and a verdict for itself.
        whole: the base over a longer window, whose range is taken as the unit instead.
    """
    Judge(tolerance, level, None, looks, over)  # which refuses what cannot be asked for
    if resamples < 100:
        raise ValueError(f"need at least 100 resamples, got {resamples}")
    runs = pair_runs(base, other, functions, whole=whole)
    compared = (*runs.names, *runs.flat)
    for name in deciding:
        if name not in compared:
            raise ValueError(f"the verdict cannot rest on {name!r}; compared are {', '.join(map(repr, compared))}")
    notes = _notes(base, other, runs, asked=functions is not None)
    result = Comparison(
        gaps_of(runs), tolerance, level, runs.seeds, runs.paired, runs.diverged, tuple(notes), None, tuple(deciding),
        looks, over=over,
    )  # fmt: skip
    _need_units(result)
    if min(runs.seeds) < FEWEST:
        return result
    _need_ranges(base, other, runs, functions is not None, set(deciding) or set(compared))
    result = _judged(result, runs, Draws(resamples, np.random.default_rng(seed)))
    return replace(result, notes=(*result.notes, _divergence_note(result))) if any(runs.diverged) else result


def _need_units(result: Comparison) -> None:
    """Refuse a tolerance that says nothing about a test function on which the verdict rests."""
    for gap in result.decisive if result.deciding else ():
        if math.isnan(result.limit(gap)):
            raise ValueError(
                f"a tolerance of {result.tolerance} says nothing about {gap.name!r}, on which the verdict rests; give "
                "one for all test functions (0.05, '0.02 absolute'), or let the verdict rest on others"
            )


def _judged(result: Comparison, runs: PairedRuns, draws: Draws) -> Comparison:
    """Return the comparison with bands and verdicts."""
    judged = np.all([(one.count >= FEWEST) & (2 * one.count >= one.runs) for one in runs.samples], axis=0)
    names = list(result.gaps)
    deciding = [i for i, name in enumerate(names) if not result.deciding or name in result.deciding]
    groups = [deciding, *([i] for i in range(len(names)) if i not in deciding)]
    seeds = min(runs.seeds)
    with np.errstate(invalid="ignore"):
        use = judged & (runs.se > ROUNDING)
        local = tuple(averaged(one, use) for one in runs.samples)
        found, near = (
            critical_values(samples, use, groups, result.spent(seeds), draws) for samples in (runs.samples, local)
        )
    forecast = Forecast(seeds, len(runs.samples), LOOKS[result.looks])
    single, around = (
        _seen(samples, judged, use, {i: c for group, c in zip(groups, critical, strict=True) for i in group})
        for samples, critical in ((runs.samples, found), (local, near))
    )
    gaps = {}
    for (name, gap), one, mean in zip(result.gaps.items(), single, around, strict=True):
        limit, last = result.limit(gap), one.last
        end = last.critical.each_time * last.se[0]
        half = one.critical.all_times * one.se
        asked = [(last, last.critical.each_time, limit)]
        if result.over == "end":
            half = np.append(np.full(len(half) - 1, np.nan), last.critical.all_times * last.se[0])
        else:
            asked += [(mean, mean.critical.each_time, limit), (one, one.critical.each_time, SPIKE * limit)]
        made = replace(
            gap, low=gap.gap - half, high=gap.gap + half, local=mean.gap, margin=mean.critical.each_time * mean.se,
            single=one.critical.each_time * one.se, end=end,
        )  # fmt: skip
        verdict: Verdict | None = None if math.isnan(limit) else _verdict(made, limit, result.over)
        shown = last if result.over == "end" else one
        needed = forecast.seeds_for(asked, shown, limit) if verdict == "undecided" else None
        gaps[name] = replace(made, verdict=verdict, seeds_needed=needed)
    notes = result.notes
    if not judged.all():
        notes += (
            f"{(~judged).sum()} of {len(judged)} times, from t = {runs.times[~judged][0]:.4g} on, are not judged: "
            "too few runs had not diverged",
        )
    return replace(result, gaps=gaps, notes=notes, critical=found[0].all_times)


def _seen(samples: Sequence[Sample], judged: Mask, use: Mask, critical: Mapping[int, Critical]) -> list[Seen]:
    """Return what is seen of each test function, with errors pooled over time; NaN where it is not judged."""
    zero = np.zeros_like(samples[0].mean)
    gap = samples[0].mean - (zero if len(samples) == 1 else samples[1].mean)
    se = np.sqrt(sum((one.variance for one in samples), zero))
    spread = np.sqrt(sum((one.runs * one.variance for one in samples), zero))  # of one seed on each side
    gap, se, spread = (np.where(judged, part, np.nan) for part in (gap, pooled_se(se, use), pooled_se(spread, use)))
    return [Seen(gap[i], se[i], spread[i], critical[i]) for i in range(len(gap))]


def _verdict(gap: Gap, limit: float, over: str) -> Verdict:
    if over == "end":
        return gap.at_end(limit)
    if gap.outside(limit).any():
        return "different"
    return "same" if gap.within(limit).all() else "undecided"


def diverged_counts(result: Comparison) -> str:
    """Return how many runs of either side diverged, in words."""
    (other, base), (n, m) = result.diverged, result.seeds
    return f"{other} of {n} runs of the other and {base} of {m} of the base diverged"


def _divergence_note(result: Comparison) -> str:
    counts = diverged_counts(result)
    if result.divergence == "same":
        return f"{counts}; the gap is that of the runs that did not"
    meaning = "different" if result.divergence == "different" else "no proof of a difference, but not the same either"
    return f"{counts} (Barnard's exact test: p = {barnard_exact(result.diverged, result.seeds):.2g}): {meaning}"


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
