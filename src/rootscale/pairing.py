"""Which runs and times a comparison takes: pairs of equal seeds, the window, and what diverged runs leave.

`rootscale.gap` has the definitions; this is where they are carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rootscale.noise import NOISE_SCALE
from rootscale.trajectory import Trajectory

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-6  # relative: what single precision cannot tell from nothing


@dataclass(frozen=True)
class Sample:
    """Independent runs (or differences of pairs) of all functions, ``[R, F, T]``, less those that had diverged.

    Args:
        mean: ``[F, T]``; NaN where no run is left.
        deviations: ``[R, F, T]`` from the mean; zero for what was left out.
        alive: ``[R, T]``, 1 for a run that is left, 0 for others.
    """

    mean: Array
    deviations: Array
    alive: Array

    @classmethod
    def of(cls, values: Array, lost: Mask) -> Sample:
        """Return the sample of these runs, of which those of ``lost [R, T]`` had diverged."""
        gone = lost[:, None, :]
        alive = (~lost).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(gone, 0.0, values).sum(0) / alive.sum(0)
        return cls(mean, np.where(gone, 0.0, values - mean), alive)

    @property
    def runs(self) -> int:
        """How many there were."""
        return len(self.deviations)

    @cached_property
    def count(self) -> Array:
        """How many are left, ``[T]``."""
        found: Array = self.alive.sum(0)
        return found

    @cached_property
    def variance(self) -> Array:
        """Of the mean, ``[F, T]``; NaN where fewer than two runs are left."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = (self.deviations**2).sum(0) / (self.count * (self.count - 1))
        return np.where(self.count > 1, found, np.nan)


@dataclass(frozen=True)
class PairedRuns:
    """Two sets of runs over the window, in units of the ranges of the base's mean curves.

    Args:
        names: the test functions that have a range.
        times: ``[T]``, the window.
        spans: the smallest and largest value of the mean curve of each; a range is the distance of the two.
        samples: the differences of pairs; or the other's runs and the base's, where they are independent.
        seeds: how many runs of the other and of the base were taken.
        left_out: how many runs were not, as only one of the two has their seed.
        diverged: how many runs of the other and of the base had diverged at the end.
        flat: test functions without a range.
    """

    names: tuple[str, ...]
    times: Array
    spans: tuple[tuple[float, float], ...]
    samples: tuple[Sample, ...]
    seeds: tuple[int, int]
    left_out: int
    diverged: tuple[int, int]
    flat: tuple[str, ...]

    @property
    def paired(self) -> bool:
        """Whether runs of equal seeds were compared with each other."""
        return len(self.samples) == 1

    @cached_property
    def gap(self) -> Array:
        """The gap, ``[F, T]``; NaN where fewer than half of the runs are left."""
        known = np.all([2 * sample.count >= sample.runs for sample in self.samples], axis=0)
        gap = self.samples[0].mean - (0.0 if self.paired else self.samples[1].mean)
        return np.where(known, gap, np.nan)

    @cached_property
    def se(self) -> Array:
        """Its standard error over seeds, ``[F, T]``."""
        return np.sqrt(sum((sample.variance for sample in self.samples), np.zeros_like(self.gap)))


def window(trajectory: Trajectory) -> slice:
    """Return the times that are compared: those after the first step (`rootscale.gap`)."""
    places = trajectory.meta.get("samples")
    first = trajectory.times[0] if places is None else places[0]
    return slice(1 if first == 0 and len(trajectory.times) > 2 else 0, None)


def pair_runs(
    base: Trajectory, other: Trajectory, functions: Sequence[str] | None = None, *, whole: Trajectory | None = None
) -> PairedRuns:
    """Return what `gaps` and verdicts are made of: the runs that are compared, as shares of the base's ranges."""
    _same_times(base, other)
    names = _functions(base, other, functions)
    pick, paired, left_out = _pairs(base, other)
    base, other = _over_window(base, names), _over_window(other, names)
    unit = base if whole is None else _over_window(whole, names)
    all_spans = {name: _span(unit, name) for name in names}
    flat = tuple(name for name, (low, high) in all_spans.items() if low == high)
    names = [name for name in names if name not in flat]
    spans = tuple(all_spans[name] for name in names)
    ranges = np.array([high - low for low, high in spans])
    lost = (other.lost[pick[0]], base.lost[pick[1]])
    x, y = (
        np.stack([one.values[name][rows] for name in names], 1) / ranges[:, None]
        if names
        else np.zeros((len(rows), 0, len(base.times)))
        for one, rows in ((other, pick[0]), (base, pick[1]))
    )
    if paired:
        with np.errstate(invalid="ignore"):
            samples: tuple[Sample, ...] = (Sample.of(x - y, lost[0] | lost[1]),)
    else:
        samples = (Sample.of(x, lost[0]), Sample.of(y, lost[1]))
    diverged = (int(lost[0].any(1).sum()), int(lost[1].any(1).sum()))
    seeds = (len(pick[0]), len(pick[1]))
    return PairedRuns(tuple(names), base.times, spans, samples, seeds, left_out, diverged, flat)


def _over_window(trajectory: Trajectory, names: Sequence[str]) -> Trajectory:
    """Return the window of these functions alone: a run is lost where one of them is not finite."""
    part = window(trajectory)
    values = {name: trajectory.values[name][:, part] for name in names}
    return Trajectory(trajectory.times[part], values, meta=trajectory.meta)


def _span(base: Trajectory, name: str) -> tuple[float, float]:
    """Return the extremes of the mean over the runs that never diverged, else of all that are left; equal if flat."""
    never = ~base.lost.any(1)
    curve = base.values[name][never].mean(0) if never.any() else base[name].mean
    curve = curve[np.isfinite(curve)]
    low, high = (float(curve.min()), float(curve.max())) if curve.size else (0.0, 0.0)
    return (low, high) if high - low > ROUNDING * max(abs(low), abs(high)) else (low, low)


def _same_times(base: Trajectory, other: Trajectory) -> None:
    for label, trajectory in (("base", base), ("other", other)):
        if not trajectory.values:
            raise ValueError(
                f"the {label} has means and standard errors only; a comparison needs the values [R, T] of every run"
            )
    a, b = base.times, other.times
    if len(a) != len(b) or not np.allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.ptp(a))):
        texts = [f"{len(times)} times from {times[0]:.6g} to {times[-1]:.6g}" for times in (a, b)]
        raise ValueError(
            f"both must have the same times, got {texts[0]} for the base and {texts[1]} for the other; record both at "
            "the same continuous times"
        )


def _functions(base: Trajectory, other: Trajectory, asked: Sequence[str] | None) -> list[str]:
    common = [name for name in base.names if name in other.names]
    if asked is None:
        names = [name for name in common if name != NOISE_SCALE]
        if not names:
            raise ValueError(f"no test function in common: the base has {base.names}, the other {other.names}")
        return names
    names = list(dict.fromkeys([asked] if isinstance(asked, str) else asked))
    if not names or not set(names) <= set(common):
        raise ValueError(
            f"functions must name test functions of both, got {list(names)}; there are {', '.join(common) or 'none'}"
        )
    return names


def _pairs(base: Trajectory, other: Trajectory) -> tuple[tuple[list[int], list[int]], bool, int]:
    """Return which runs of the other and of the base to take, whether they are pairs, and how many are left out."""
    rows = [_rows_by_seed("other", other), _rows_by_seed("base", base)]
    common = [seed for seed in rows[1] if seed in rows[0]]
    if not common:
        return (list(range(other.replicas)), list(range(base.replicas))), False, 0
    left_out = other.replicas + base.replicas - 2 * len(common)
    return ([rows[0][seed] for seed in common], [rows[1][seed] for seed in common]), True, left_out


def _rows_by_seed(label: str, trajectory: Trajectory) -> dict[int, int]:
    given = trajectory.meta.get("seeds", ())
    if given and (len(given) != trajectory.replicas or len(set(given)) != len(given)):
        raise ValueError(
            f"meta['seeds'] must hold one seed for each of the {trajectory.replicas} runs of the {label}, all "
            f"different, got {list(given)}"
        )
    return {int(seed): row for row, seed in enumerate(given)}
