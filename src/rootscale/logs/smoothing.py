"""Curves on a common grid: smoothed by a line fitted in a window around each point, or interpolated.

For the values ``y_i`` at the places ``x_i`` within half a window of the point g, the line through them has at g the
value

    a = sum_i w_i y_i,   w_i = 1/n + (g - xbar) (x_i - xbar) / sum_j (x_j - xbar)^2

A mean would be drawn to one side where values are unevenly spaced or the curve is steep; the line is not. The same
window on both sides bends both curves alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootscale.logs.curve import Curve, rough_noise
from rootscale.logs.record import Array

__all__ = ["Smoothed", "smooth"]

#: Windows over which the variance of the residuals is averaged, to either side.
_NEIGHBOURS = 2


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
    se = np.full(len(grid), rough_noise(curve))
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
        slope = float(away @ y / (away @ away))
        values[i] = y.mean() - slope * x.mean()
        residuals = y - y.mean() - slope * away
        weights[i] = 1 / len(x) + x.mean() ** 2 / (away @ away)
        squares[i], freedom[i] = residuals @ residuals, len(x) - 2
        products += float(residuals[1:] @ residuals[:-1])
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
