"""Two sets of runs: how far apart their mean trajectories are, and whether that is within a tolerance.

For test function f at time t, with d = mean of the other - mean of the base and se its standard error over seeds, the
band is ``d ± c se``, with one c for all functions and times. c is the ``level`` quantile of

    max over f, t of |d*(f, t)| / se*(f, t)

where d* and se* are d and se of the runs' deviations from their mean after a random rotation of the runs among
themselves (a rotation test; signs or a permutation of the runs are special rotations). Every run keeps its course over
all times and functions, and thereby their dependence; se* is computed anew, and so accounts for how few seeds se rests
on. For a single time and function, c is Student's quantile. What the bands cover, measured, is in docs/verdict.md.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Comparison", "Gap", "Verdict", "compare", "need_levels"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Verdict = Literal["same", "different", "undecided"]

FEWEST = 4  # seeds (pairs, where paired) for a band; it is of use from 6 or 8 on
_MOST = 10_000  # seeds: more than these are no advice
_ROUNDING = 1e-6  # relative: what single precision cannot tell from nothing
_STYLES: dict[Verdict, str] = {"same": "bold green", "different": "bold red", "undecided": "bold yellow"}


@dataclass(frozen=True)
class Gap:
    """One test function: the other mean curve minus the base's, as a share of the range of the base's.

    NaN in ``gap``, ``low`` and ``high`` marks times that cannot be judged: too few runs had not diverged.

    Args:
        name: of the test function.
        times: ``[T]``.
        gap: ``[T]``.
        low, high: ``[T]``, the band that holds the true gap at all times (and of all test functions) at once.
        range: largest minus smallest value of the base's mean curve.
        verdict: on this test function.
        seeds_needed: where undecided, how many seeds would decide if the gap is what it seems; None if no number can.
    """

    name: str
    times: Array
    gap: Array
    low: Array
    high: Array
    range: float
    verdict: Verdict
    seeds_needed: int | None = None

    @property
    def largest(self) -> tuple[float, float, float, float]:
        """``(gap, low, high, time)`` where the gap is largest in absolute value."""
        at = int(np.argmax(np.nan_to_num(np.abs(self.gap), nan=-1.0)))
        return float(self.gap[at]), float(self.low[at]), float(self.high[at]), float(self.times[at])

    def within(self, tolerance: float) -> Mask:
        """``[T]``: where the whole band lies within ``[-tolerance, tolerance]``."""
        return (self.low >= -tolerance) & (self.high <= tolerance)

    def outside(self, tolerance: float) -> Mask:
        """``[T]``: where the whole band lies outside ``[-tolerance, tolerance]``."""
        return (self.low > tolerance) | (self.high < -tolerance)

    def settled_after(self, tolerance: float) -> float | None:
        """The time from which on the band stays within the tolerance; None where it does not at the last."""
        bad = np.flatnonzero(~self.within(tolerance))
        first = int(bad[-1]) + 1 if bad.size else 0
        return float(self.times[first]) if first < len(self.times) else None

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types; None for NaN."""
        return {
            "name": self.name,
            **{key: _to_json(getattr(self, key)) for key in ("times", "gap", "low", "high")},
            "range": self.range,
            "verdict": self.verdict,
            "seeds_needed": self.seeds_needed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Gap:
        """What `to_dict` gave."""
        return cls(**{**data, **{key: np.array(data[key], np.float64) for key in ("times", "gap", "low", "high")}})

    def __str__(self) -> str:
        """One line, in percent of the base curve's range."""
        gap, low, high, time = self.largest
        needed = f", {self.seeds_needed} seeds would decide" if self.seeds_needed else ""
        return (
            f"{self.name}: {self.verdict}{needed}; the largest gap is {_percent(gap)} of the base curve's range "
            f"at t = {time:.4g}, between {_percent(low)} and {_percent(high)}"
        )


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
        critical: c, the half-width of the band in standard errors.
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
        """Of the test functions on which the verdict rests."""
        return tuple(gap for name, gap in self.gaps.items() if not self.deciding or name in self.deciding)

    @property
    def verdict(self) -> Verdict:
        """Different if any deciding test function is (or how many runs diverge), same if all are."""
        verdicts = {gap.verdict for gap in self.decisive} | {self.divergence}
        return "different" if "different" in verdicts else "undecided" if "undecided" in verdicts else "same"

    @property
    def divergence(self) -> Verdict:
        """On how many runs diverged: same if equally many, different if Fisher's exact test says so."""
        if self.diverged[0] * self.seeds[1] == self.diverged[1] * self.seeds[0]:
            return "same"
        return "different" if _fisher(self.diverged, self.seeds) < 1 - self.level else "undecided"

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
        """In JSON's types."""
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
        """What `to_dict` gave."""
        gaps = [Gap.from_dict(gap) for gap in data["gaps"]]
        return cls(
            {gap.name: gap for gap in gaps}, data["tolerance"], data["level"], (data["seeds"][0], data["seeds"][1]),
            data["paired"], (data["diverged"][0], data["diverged"][1]), tuple(data["notes"]), data["critical"],
            tuple(data["deciding"]),
        )  # fmt: skip

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("test function", "largest gap", "band there", "at t", "tolerance", "verdict", "seeds needed"):
            left = column in ("test function", "verdict")
            table.add_column(column, justify="left" if left else "right", no_wrap=True)
        for gap in self.gaps.values():
            value, low, high, time = gap.largest
            undecided = gap.verdict == "undecided"
            table.add_row(
                gap.name + ("" if gap.name in {one.name for one in self.decisive} else " (followed)"),
                f"{_percent(value)} ± {100 * (high - low) / 2:.1f} %",
                f"{_percent(low)} to {_percent(high)}",
                f"{time:.4g}",
                f"{100 * self.tolerance:.3g} %",
                Text(gap.verdict, style=_STYLES[gap.verdict]),
                ("no number" if gap.seeds_needed is None else str(gap.seeds_needed)) if undecided else "",
            )
        other, base = self.seeds
        runs = f"{other} pairs of runs" if self.paired else f"{other} runs against {base}"
        title = Text.assemble(
            (self.verdict, _STYLES[self.verdict]),
            f": {runs}, in % of the base curve's range; bands hold at {100 * self.level:.3g} % for all times and "
            "functions at once",
        )
        return Group(title, table, *(Text(f"note: {note}", style="yellow") for note in self.notes))

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120, no_color=True, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


@dataclass(frozen=True)
class _Sample:
    """Independent runs (or differences of pairs) of all functions, ``[R, F, T]``, less those that had diverged.

    Args:
        mean: ``[F, T]``; NaN where no run was left.
        deviations: ``[R, F, T]`` from the mean; zero for what was lost.
        alive: ``[R, T]``, 1 for a run that is left, 0 for others.
    """

    mean: Array
    deviations: Array
    alive: Array

    @classmethod
    def of(cls, values: Array, lost: Mask) -> _Sample:
        gone = lost[:, None, :]
        alive = (~lost).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(gone, 0.0, values).sum(0) / alive.sum(0)
        return cls(mean, np.where(gone, 0.0, values - mean), alive)

    @property
    def count(self) -> Array:
        """``[T]``, of runs left."""
        found: Array = self.alive.sum(0)
        return found

    @property
    def runs(self) -> int:
        return len(self.deviations)

    @property
    def judged(self) -> Mask:
        """``[T]``: at least `FEWEST` runs and half of them are left."""
        return (self.count >= FEWEST) & (2 * self.count >= self.runs)

    @property
    def variance(self) -> Array:
        """``[F, T]``, of the mean."""
        found: Array = (self.deviations**2).sum(0) / np.maximum(self.count * (self.count - 1), 1.0)
        return found


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
    it lies wholly outside at some time, and *undecided* otherwise.

    Runs are paired where ``meta["seeds"]`` (one integer a run) says that both sets have the same seeds, in any order:
    they share initialisation and samples, and their differences vary less. If only some seeds are common, those are
    paired and the rest is left out, as the sets are neither paired nor independent. Disjoint or unknown seeds make
    independent sets, of any two sizes.

    Runs that have diverged are left out from then on; times where less than half of the runs, or fewer than 4, are left
    are not judged. That more runs diverge on one side is itself a finding: the verdict is then not "same", and
    "different" if Fisher's exact test rejects at ``1 - level``.

    Args:
        base, other: with ``values [R, T]`` on the same times; at least 4 runs (pairs) each.
        functions: which test functions; all that both have, if None.
        tolerance: share of the range of the base's mean curve, which must not be flat. A flat function is an error,
            but left out (with a note) where ``functions`` is None and the other runs have the very same values, or
            where the verdict rests on others.
        level: that the bands hold at all times and for all functions at once.
        resamples: how many rotations.
        seed: of the resamples.
        deciding: the test functions on which the verdict rests; all, where empty. The bands hold for all either way.
    """
    need_levels(tolerance, level)
    if resamples < 100:
        raise ValueError(f"need at least 100 resamples, got {resamples}")
    _same_times(base, other)
    names, notes = _functions(base, other, functions)
    for name in deciding:
        if name not in names:
            raise ValueError(f"the verdict cannot rest on {name!r}; compared are {', '.join(map(repr, names))}")
    # Only what is compared: a run is lost where one of these is not finite, and others may be undefined.
    base, other = (Trajectory(one.times, {n: one.values[n] for n in names}, meta=one.meta) for one in (base, other))
    pick, paired = _pairs(base, other, notes)
    runs = {"other": len(pick[0]), "base": len(pick[1])}
    if min(runs.values()) < FEWEST:
        raise ValueError(
            f"need at least {FEWEST} {'pairs of runs with equal seeds' if paired else 'runs of each'} (8 or more are "
            f"better), got {runs['other']} of the other and {runs['base']} of the base"
        )
    lost = (other.lost[pick[0]], base.lost[pick[1]])
    diverged = (int(lost[0].any(1).sum()), int(lost[1].any(1).sum()))
    ranges = np.array([_range(base, name) for name in names])
    flat = [name for name, r in zip(names, ranges, strict=True) if r == 0]
    if flat:
        notes += _leave_out(flat, base, other, functions is not None, set(deciding) or set(names))
        names, ranges = [name for name in names if name not in flat], ranges[ranges > 0]
        if not names:
            raise ValueError(f"no test function is left: the base's mean curve of {', '.join(flat)} is flat")

    unit = ranges[:, None]
    x = np.stack([other.values[name][pick[0]] for name in names], 1) / unit
    y = np.stack([base.values[name][pick[1]] for name in names], 1) / unit
    if paired:
        with np.errstate(invalid="ignore"):
            samples = [_Sample.of(x - y, lost[0] | lost[1])]
    else:
        samples = [_Sample.of(x, lost[0]), _Sample.of(y, lost[1])]
    judged = np.all([sample.judged for sample in samples], axis=0)
    gap = samples[0].mean - (0.0 if paired else samples[1].mean)
    gap = np.where(judged, gap, np.nan)
    se = np.sqrt(sum((sample.variance for sample in samples), np.zeros_like(gap)))
    c = _critical(samples, judged & (se > _ROUNDING), level, resamples, np.random.default_rng(seed))
    if not judged.all():
        notes.append(
            f"{(~judged).sum()} of {len(judged)} times, from t = {base.times[~judged][0]:.4g} on, are not judged: "
            "too few runs had not diverged"
        )
    # Per-run variance of the gap: se(n) = spread / sqrt(n) for n seeds on each side.
    spread = np.sqrt(sum((sample.runs * sample.variance for sample in samples), np.zeros_like(gap)))
    seeds = (runs["other"], runs["base"])
    tail = _student_tail(c, sum(seeds) / (1 + paired) - len(samples))
    gaps = {}
    for i, name in enumerate(names):
        half = c * se[i]
        found = Gap(name, base.times, gap[i], gap[i] - half, gap[i] + half, float(ranges[i]), "undecided")
        if found.outside(tolerance).any():
            found = replace(found, verdict="different")
        elif found.within(tolerance).all():
            found = replace(found, verdict="same")
        else:
            needed = _seeds_for_band(gap[i], spread[i], tolerance, tail, len(samples), min(seeds))
            found = replace(found, seeds_needed=needed)
        gaps[name] = found
    result = Comparison(gaps, tolerance, level, seeds, paired, diverged, tuple(notes), c, tuple(deciding))
    return replace(result, notes=(*notes, _divergence_note(result))) if any(diverged) else result


def need_levels(tolerance: float, level: float) -> None:
    """Refuse what is no tolerance or no level; also for those who compare only after long work."""
    if not (0 < tolerance < math.inf and 0 < level < 1):
        raise ValueError(f"need a tolerance above 0 and a level between 0 and 1, got {tolerance} and {level}")


def _critical(samples: Sequence[_Sample], use: Mask, level: float, resamples: int, rng: np.random.Generator) -> float:
    """c: the ``level`` quantile of the largest |t| over ``use [F, T]`` when runs are rotated among themselves.

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


def _seeds_for_band(gap: Array, spread: Array, tolerance: float, tail: float, samples: int, present: int) -> int | None:
    """The smallest n at which ``gap ± c(n) spread / sqrt(n)`` decides.

    c(n) is the t-quantile, at n's degrees of freedom, of the tail that c has at the present ones.
    """
    size, toward_different = np.abs(gap), bool(np.any(np.abs(gap) > tolerance))

    def decides(n: int) -> bool:
        half = _student_quantile(tail, samples * (n - 1)) * spread / math.sqrt(n)
        return bool(np.any(size - half > tolerance) if toward_different else np.all(size + half <= tolerance))

    low, high = present, _MOST
    if not decides(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


@lru_cache(maxsize=128)
def _student(nu: float) -> tuple[Array, Array]:
    """Points t, and log P(|T| > t) for Student's t with ``nu`` degrees of freedom, to three digits."""
    s = np.linspace(0.0, 19.0, 2048)  # t = sinh(s) up to 1e8
    t = np.sinh(s)
    density = np.exp(-(nu + 1) / 2 * np.log1p(t**2 / nu)) * np.cosh(s)
    tail = np.append(np.cumsum(((density[1:] + density[:-1]) / 2)[::-1])[::-1], 0.0)
    keep = tail > 1e-290
    return t[keep], np.log(tail[keep] / tail[0])


def _student_tail(t: float, nu: float) -> float:
    """The logarithm of P(|T| > t)."""
    return float(np.interp(t, *_student(nu)))


def _student_quantile(tail: float, nu: float) -> float:
    """The t with log P(|T| > t) = ``tail``."""
    t, tails = _student(nu)
    return float(np.interp(-tail, -tails, t))


def _fisher(diverged: tuple[int, int], runs: tuple[int, int]) -> float:
    """P(a table as unlikely as this, or more) when both sides diverge equally often: Fisher's exact test."""
    total = sum(diverged)
    weights = [
        math.comb(runs[0], k) * math.comb(runs[1], total - k)
        for k in range(max(0, total - runs[1]), min(runs[0], total) + 1)
    ]
    seen = math.comb(runs[0], diverged[0]) * math.comb(runs[1], diverged[1])
    return sum(weight for weight in weights if weight <= seen) / sum(weights)


def _seeds_for_divergence(diverged: tuple[int, int], runs: tuple[int, int], level: float) -> int | None:
    """The size of the larger side at which Fisher's test would reject, were both sides a whole number times larger."""
    for times in range(2, 1 + 1000 // max(runs)):
        if _fisher((times * diverged[0], times * diverged[1]), (times * runs[0], times * runs[1])) < 1 - level:
            return times * max(runs)
    return None


def _divergence_note(result: Comparison) -> str:
    (other, base), (n, m) = result.diverged, result.seeds
    counts = f"{other} of {n} runs of the other and {base} of {m} of the base diverged"
    if result.divergence == "same":
        return f"{counts}; the gap is that of the runs that did not"
    meaning = "different" if result.divergence == "different" else "no proof of a difference, but not the same either"
    return f"{counts} (Fisher's exact test: p = {_fisher(result.diverged, result.seeds):.2g}): {meaning}"


def _same_times(base: Trajectory, other: Trajectory) -> None:
    for label, trajectory in (("base", base), ("other", other)):
        if not trajectory.values:
            raise ValueError(
                f"the {label} has means and standard errors only; a comparison needs the values [R, T] of every run"
            )
    a, b = base.times, other.times
    if len(a) != len(b) or not np.allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.ptp(a))):
        raise ValueError(
            f"both must have the same times, got {_grid(a)} for the base and {_grid(b)} for the other; record both at "
            "the same continuous times"
        )


def _grid(times: Array) -> str:
    return f"{len(times)} times from {times[0]:.6g} to {times[-1]:.6g}"


def _functions(base: Trajectory, other: Trajectory, asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The names to compare, and a note on those that cannot be."""
    common = [name for name in base.names if name in other.names]
    if asked is None:
        only = [name for name in (*base.names, *other.names) if name not in common]
        if not common:
            raise ValueError(f"no test function in common: the base has {base.names}, the other {other.names}")
        return common, [f"left out, as only one of the two has it: {', '.join(only)}"] if only else []
    names = list(dict.fromkeys([asked] if isinstance(asked, str) else asked))
    missing = [name for name in names if name not in common]
    if missing or not names:
        raise ValueError(
            f"functions must name test functions of both, got {list(names)}; there are {', '.join(common) or 'none'}"
        )
    return names, []


def _pairs(base: Trajectory, other: Trajectory, notes: list[str]) -> tuple[tuple[list[int], list[int]], bool]:
    """Which runs of the other and of the base to take, and whether they are pairs."""
    seeds = []
    for label, trajectory in (("other", other), ("base", base)):
        given = trajectory.meta.get("seeds")
        if given is not None and (len(given) != trajectory.replicas or len(set(given)) != len(given)):
            raise ValueError(
                f"meta['seeds'] must hold one seed for each of the {trajectory.replicas} runs of the {label}, all "
                f"different, got {list(given)}"
            )
        seeds.append(None if given is None else {int(value): i for i, value in enumerate(given)})
    everything = (list(range(other.replicas)), list(range(base.replicas)))
    if seeds[0] is None or seeds[1] is None:
        return everything, False
    common = [value for value in seeds[1] if value in seeds[0]]
    if not common:
        return everything, False
    left = other.replicas + base.replicas - 2 * len(common)
    if left:
        if len(common) < FEWEST:
            raise ValueError(
                f"the sets share {len(common)} of {other.replicas} and {base.replicas} seeds: they are not "
                f"independent, and pairs need at least {FEWEST} in common; use the same seeds for both, or different "
                "ones throughout"
            )
        notes.append(f"paired by the {len(common)} seeds that both have; {left} runs with other seeds were left out")
    return ([seeds[0][value] for value in common], [seeds[1][value] for value in common]), True


def _range(base: Trajectory, name: str) -> float:
    """Of the mean over the runs that never diverged, as the last values before one does may be huge; 0 for rounding."""
    whole = ~base.lost.any(1)
    curve = base.values[name][whole].mean(0) if whole.sum() >= FEWEST else base[name].mean
    curve = curve[np.isfinite(curve)]
    if not curve.size:
        raise ValueError("all runs of the base had diverged at all times: there is nothing to compare with")
    if curve.size == 1 and len(base.times) > 1:
        raise ValueError("all runs of the base had diverged after the first time: there is nothing to compare with")
    found = float(np.ptp(curve))
    return found if found > _ROUNDING * float(np.abs(curve).max()) else 0.0


def _leave_out(flat: Sequence[str], base: Trajectory, other: Trajectory, named: bool, deciding: set[str]) -> list[str]:
    """A note on functions whose base curve is flat, where they may be left out."""
    if not deciding & set(flat):
        return [f"left out, as the base's mean curve is flat and has no range: {', '.join(flat)}"]
    for name in flat:
        a, b = base.values[name], other.values[name]
        kept = np.concatenate([a[np.isfinite(a)], b[np.isfinite(b)]])
        if named or (kept.size and np.ptp(kept) > _ROUNDING * np.abs(kept).max()):
            raise ValueError(
                f"the base's mean curve of {name!r} is flat, and a gap cannot be a share of its range: leave {name!r} "
                "out of functions, or compare over a time in which it moves"
            )
    return [f"left out, as it is the same constant in all runs: {', '.join(flat)}"]


def _to_json(values: Array) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %" if math.isfinite(share) else "unknown"
