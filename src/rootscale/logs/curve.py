"""One metric of one run over its clock, cleaned: restarts, repeated places, values that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rootscale.format import show
from rootscale.logs.clock import Clock
from rootscale.logs.record import Array, Log

__all__ = ["Curve", "common_window", "logged_like", "read_curve", "rough_noise"]

#: Four values have a cubic through them where no distance of two is more than so many times another.
UNEVEN = 3.0


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of a run.

    Args:
        name: of the run.
        places: ``[N]``, on the clock, increasing.
        values: ``[N]``, finite.
        diverged_at: the place from which on nothing that was logged is finite; None for a run that did not diverge.
        notes: what was done to it.
        edges: ``[N + 1]``, where a value is the mean between two of them, with its place in the middle; None where it
            is that of its place.
    """

    name: str
    places: Array
    values: Array
    diverged_at: float | None
    notes: tuple[str, ...]
    edges: Array | None = None

    @property
    def interval(self) -> float:
        """Return the median distance between two values."""
        return float(np.median(np.diff(self.places))) if len(self.places) > 1 else 0.0


def read_curve(log: Log, metric: str, clock: Clock) -> Curve:
    """Return a metric of a log on its clock.

    Where the clock goes back, the run was resumed from there: what was logged before at that place and after it is
    left out. Of values at one place the last is taken. A value that is not finite is left out where finite ones follow;
    where none do, the run diverged there.
    """
    series = log.columns[metric]
    places, values, notes = clock.places(series), series.values, list(log.notes)
    known = np.isfinite(places)
    if not known.all():
        notes.append(f"{(~known).sum()} values of {metric} before the first {clock.unit} were left out")
        places, values = places[known], values[known]
    if len(places) > 2 and np.all(np.diff(places) < 0):  # newest first
        places, values = places[::-1], values[::-1]
    keep = _not_repeated(places)
    back = int(np.sum(np.diff(places) < 0))
    if back:
        notes.append(
            f"resumed {back} time{'s' * (back > 1)}; of {metric}, {len(places) - len(keep)} values that were logged "
            "again were left out, the later ones count"
        )
    elif len(keep) < len(places):
        notes.append(
            f"{len(places) - len(keep)} values of {metric} were logged again at the same place; the last count"
        )
    places, values = places[keep], values[keep]
    finite = np.flatnonzero(np.isfinite(values))
    end = int(finite[-1]) + 1 if finite.size else 0
    diverged_at = float(places[end]) if end < len(places) else None
    if end - finite.size:
        notes.append(f"{end - finite.size} values of {metric} that are not finite were left out; finite ones follow")
    if diverged_at is not None:
        notes.append(f"diverged: {metric} is not finite from {show(diverged_at)} {clock.unit} on")
    places, values = places[finite], values[finite]
    if metric not in log.averaged or not len(places):
        return Curve(log.name, places, values, diverged_at, tuple(notes))
    edges = np.concatenate([[min(0.0, places[0])], places])
    return Curve(log.name, (edges[1:] + edges[:-1]) / 2, values, diverged_at, tuple(notes), edges)


def logged_like(curve: Curve, other: Curve, low: float, high: float) -> Curve:
    """Return a curve as it would be if it had been logged where another one was, between two places.

    Two curves on the same places are bent alike by what is done to them afterwards, so that equal runs have equal
    curves. A mean since the last value is that of the finer curve over the same samples; other values are interpolated.

    >>> x = np.arange(1.0, 9)
    >>> fine, coarse = Curve("a", x, x**2, None, ()), Curve("b", x[1::2], x[1::2] ** 2, None, ())
    >>> logged_like(fine, coarse, 2, 8).values.tolist()
    [4.0, 16.0, 36.0, 64.0]
    """
    own = curve.places if curve.edges is None else curve.edges
    begin, end = (other.places, other.places) if other.edges is None else (other.edges[:-1], other.edges[1:])
    inside = (other.places >= low) & (other.places <= high) & (begin >= own[0]) & (end <= own[-1])
    places, begin, end = other.places[inside], begin[inside], end[inside]
    if other.edges is None:
        return replace(curve, places=places, values=_between(curve, places), edges=None)
    total = _total(curve)
    values = (total(end) - total(begin)) / (end - begin)
    return replace(curve, places=places, values=values, edges=np.append(begin[:1], end))


def _between(curve: Curve, at: Array) -> Array:
    """Return values between those of a curve: of the cubic through four of them, or of a line where they are uneven."""
    x, y = curve.places, curve.values
    found = np.interp(at, x, y)
    if len(x) < 4:
        return found
    near = np.clip(np.searchsorted(x, at) - 2, 0, len(x) - 4)[:, None] + np.arange(4)
    steps = np.diff(x[near], axis=1)
    even = steps.max(axis=1) <= UNEVEN * steps.min(axis=1)
    weights = np.ones(near.shape)
    for i in range(4):
        for j in set(range(4)) - {i}:
            weights[:, i] *= (at - x[near[:, j]]) / (x[near[:, i]] - x[near[:, j]])
    return np.where(even, (weights * y[near]).sum(axis=1), found)


def _total(curve: Curve) -> Callable[[Array], Array]:
    """Return the integral of a curve up to a place."""
    if curve.edges is not None:
        x, parts = curve.edges, curve.values * np.diff(curve.edges)
    else:
        x = curve.places
        parts = (curve.values[1:] + curve.values[:-1]) / 2 * np.diff(x)
    sums = np.concatenate([[0.0], np.cumsum(parts)])
    return lambda at: np.interp(at, x, sums)


def _not_repeated(places: Array) -> NDArray[np.int64]:
    """Return the indices of the values that no later one replaces: all that come at a smaller place than what follows.

    >>> _not_repeated(np.array([1.0, 2, 3, 4, 2, 3, 3])).tolist()
    [0, 4, 6]
    """
    later = np.minimum.accumulate(places[::-1])[::-1]
    return np.flatnonzero(places < np.append(later[1:], np.inf))


def rough_noise(curve: Curve) -> float:
    """Return the standard deviation of a value around the smooth curve, from second differences.

    It is that of noise which is independent from one value to the next. Of noise with a long memory it sees little.
    """
    if len(curve.values) < 5:
        return 0.0
    x, y = curve.places, curve.values
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    bent = y[1:-1] - (1 - share) * y[:-2] - share * y[2:]
    scaled = bent / np.sqrt(1 + (1 - share) ** 2 + share**2)
    # The median does not mind a steep start; 0.6745 is that of |z| for normal z.
    return float(np.median(np.abs(scaled)) / 0.6745)


def common_window(curves: Sequence[Curve], unit: str) -> tuple[float, float]:
    """Return where all runs have values; a run that diverged ends nothing."""
    for curve in curves:
        if len(curve.places) < 2 and curve.diverged_at is None:
            raise ValueError(f"{curve.name} has {len(curve.places)} values; a curve needs at least 2")
    whole = [curve for curve in curves if curve.diverged_at is None]
    if not whole:
        raise ValueError("all runs of both sides diverged: there is nothing to compare")
    low = max(float(curve.places[0]) for curve in curves if len(curve.places))
    high = min(float(curve.places[-1]) for curve in whole)
    if not low < high:
        late = max((curve for curve in curves if len(curve.places)), key=lambda curve: curve.places[0])
        early = min(whole, key=lambda curve: curve.places[-1])
        raise ValueError(
            f"the runs do not overlap: {late.name} begins at {show(low)} {unit}, and {early.name} ends at "
            f"{show(high)}; were the batch sizes given in the right order?"
        )
    return low, high
