"""One metric of one run over its clock: cleaned of restarts and values that are not finite, then put on a grid.

On the grid a curve is interpolated, or smoothed by a line fitted in a window around each point. For the values ``y_i``
at the places ``x_i`` within half a window of the point g, the line through them has at g the value

    a = sum_i w_i y_i,   w_i = 1/n + (g - xbar) (x_i - xbar) / sum_j (x_j - xbar)^2

A mean would be drawn to one side where values are unevenly spaced or the curve is steep; the line is not. The same
window on both sides bends both curves alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rootscale.compare.columns import Clock
from rootscale.compare.log import Array, Log
from rootscale.format import show

#: A larger number has no square: it counts as one that is not finite.
LARGEST = 1e150
#: Four values have a cubic through them where no distance of two is more than so many times another.
UNEVEN = 3.0
#: Windows over which the variance of the residuals is averaged, to either side.
_NEIGHBOURS = 2


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

    @cached_property
    def interval(self) -> float:
        """Return the median distance between two values."""
        return float(np.median(np.diff(self.places))) if len(self.places) > 1 else 0.0

    @cached_property
    def noise(self) -> float:
        """Return the standard deviation of a value around the smooth curve, from second differences.

        It is that of noise which is independent from one value to the next. Of noise with a long memory it sees little.
        """
        if len(self.values) < 5:
            return 0.0
        x, y = self.places, self.values
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        bent = y[1:-1] - (1 - share) * y[:-2] - share * y[2:]
        scaled = bent / np.sqrt(1 + (1 - share) ** 2 + share**2)
        # The median does not mind a steep start; 0.6745 is that of |z| for normal z.
        return float(np.median(np.abs(scaled)) / 0.6745)

    def between(self, low: float, high: float) -> slice:
        """Return which values lie between two places, both included."""
        first, last = np.searchsorted(self.places, low, "left"), np.searchsorted(self.places, high, "right")
        return slice(int(first), int(last))


def read_curve(log: Log, metric: str, clock: Clock) -> Curve:
    """Return a metric of a log on its clock.

    Where the clock goes back, the run was resumed from there: what was logged before at that place and after it is
    left out. Of values at one place the last is taken. A value that is not finite (or above `LARGEST`) is left out
    where finite ones follow; where none do, the run diverged there.
    """
    series = log.columns[metric]
    places, values, notes = clock.places(series), series.values, list(log.notes)
    known = np.isfinite(places)
    if not known.all():
        notes.append(f"{(~known).sum()} values of {metric} before the first {clock.unit} were left out")
        places, values = places[known], values[known]
    if len(places) > 2 and np.all(np.diff(places) < 0):  # newest first
        places, values = places[::-1], values[::-1]
    if np.any(np.diff(places) <= 0):
        keep = _not_repeated(places)
        back, lost = int(np.sum(np.diff(places) < 0)), len(places) - len(keep)
        if back:
            notes.append(
                f"resumed {back} time{'s' * (back > 1)}; of {metric}, {lost} values that were logged again were left "
                "out, the later ones count"
            )
        else:
            notes.append(f"{lost} values of {metric} were logged again at the same place; the last count")
        places, values = places[keep], values[keep]
    diverged_at = None
    if len(values) and max(values.max(), -values.min()) > LARGEST:
        values = np.where(np.abs(values) > LARGEST, np.inf, values)
    if not np.isfinite(values).all():  # otherwise they stay as they are: logs may have millions of them
        finite = np.flatnonzero(np.isfinite(values))
        end = int(finite[-1]) + 1 if finite.size else 0
        diverged_at = float(places[end]) if end < len(places) else None
        if end - finite.size:
            notes.append(
                f"{end - finite.size} values of {metric} that are not finite were left out; finite ones follow"
            )
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


@dataclass(frozen=True, eq=False)
class Smoothed:
    """A curve on a grid.

    Args:
        values: ``[T]``; NaN from where the run had diverged.
        se: ``[T]``, the standard error that the scatter of the logged values alone gives each of them. It knows nothing
            of how far another seed would be.
    """

    values: Array
    se: Array


def smooth(curve: Curve, grid: Array, window: float) -> Smoothed:
    """Return a curve on a grid; ``window`` is the width of the smoothing, and 0 interpolates.

    The error of a smoothed value is that of its line, with the variance of the residuals nearby. It is widened by
    ``(1 + r) / (1 - r)``, where r is the correlation of a residual with the next, where that is above 0.
    """
    lost = grid >= (np.inf if curve.diverged_at is None else curve.diverged_at)
    if not len(curve.places):
        return Smoothed(np.full(len(grid), np.nan), np.full(len(grid), np.nan))
    values = np.interp(grid, curve.places, curve.values)
    se = np.full(len(grid), curve.noise)
    if window > 0:
        values, se = _fitted(curve, grid, window, values, se)
    return Smoothed(np.where(lost, np.nan, values), np.where(lost, np.nan, se))


def _fitted(curve: Curve, grid: Array, window: float, values: Array, se: Array) -> tuple[Array, Array]:
    """Return values and errors; those of the interpolation remain where a window has fewer than 3 values."""
    values, weights, squares, freedom = values.copy(), np.zeros(len(grid)), np.zeros(len(grid)), np.zeros(len(grid))
    products, neighbours = 0.0, 0.0
    for i, g in enumerate(grid):
        low, high = np.searchsorted(curve.places, [g - window / 2, g + window / 2])
        x, y = curve.places[low:high] - g, curve.values[low:high]
        if len(x) < 3:
            continue
        away = x - x.mean()
        square = _dot(away, away)
        slope = _dot(away, y) / square
        values[i] = y.mean() - slope * x.mean()
        residuals = y - y.mean() - slope * away
        weights[i] = 1 / len(x) + x.mean() ** 2 / square
        squares[i], freedom[i] = _dot(residuals, residuals), len(x) - 2
        products += _dot(residuals[1:], residuals[:-1])
        neighbours += len(x) - 1
    if not freedom.any():
        return values, se
    kernel = np.ones(2 * _NEIGHBOURS + 1)
    near = np.convolve(np.pad(freedom, _NEIGHBOURS), kernel, "valid")
    variance = np.convolve(np.pad(squares, _NEIGHBOURS), kernel, "valid") / np.maximum(near, 1)
    mean_square = squares.sum() / freedom.sum()
    r = min(0.95, max(0.0, products / neighbours / mean_square)) if mean_square > 0 else 0.0
    known = freedom > 0
    return values, np.where(known, np.sqrt(variance * weights * (1 + r) / (1 - r)), se)


def _dot(a: Array, b: Array) -> float:
    """Return the sum of products. BLAS would start threads for these few thousand numbers, and wait for them."""
    return float(np.sum(a * b))
