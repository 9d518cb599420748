"""The order of a weak error: the power of the step ``h`` that it falls with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rootscale.theory.weak import LARGEST, RESOLVED, WeakError

__all__ = ["Order", "fit_order"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """A power law ``|error| = C h^slope``, fitted.

    Args:
        name: the test function.
        slope: the order.
        se: its standard error, widened where the points scatter more than their own errors allow.
        used: the ``h`` of the points that were fitted.
        unresolved: the ``h`` of those below 5 standard errors, left out.
        large: the ``h`` of those too large to be asymptotic, left out.
        notes: what makes the fit doubtful.
    """

    name: str
    slope: float
    se: float
    used: tuple[float, ...]
    unresolved: tuple[float, ...] = ()
    large: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval; NaN where fewer than two points are resolved."""
        return self.slope - 1.96 * self.se, self.slope + 1.96 * self.se

    def covers(self, order: float, within: float = 0.0) -> bool:
        """Return whether the slope is within so much of ``order``; without two resolved points it is not."""
        return bool(abs(self.slope - order) <= within)

    def __str__(self) -> str:
        """Return a line such as ``theta: 1.02 ± 0.03 (5 points)``, and the notes."""
        if not math.isfinite(self.slope):
            return f"{self.name}: unresolved"
        text = f"{self.name}: {self.slope:.3f} ± {1.96 * self.se:.3f} ({len(self.used)} points)"
        return "; ".join((text, *self.notes))


def fit_order(
    errors: WeakError, name: str, *, time: int = -1, threshold: float = RESOLVED, largest: float = LARGEST
) -> Order:
    """Fit the order of the error in ``h``: a weighted straight line through ``log |error|`` over ``log h``.

    ``notes`` of the result say what makes the fit doubtful: the error changes its sign, or the largest ``h`` that is
    used does not lie on the line of the others.

    Args:
        errors: from `weak_error`.
        name: the test function.
        time: the index of the time.
        threshold: how many standard errors an error must have to be used.
        largest: ``h`` from which on points are left out as not asymptotic.
    """
    h = np.array(errors.h)
    error, se = errors.at(name, time)
    small, resolved = h < largest, np.abs(error) >= threshold * se
    use = small & resolved
    left = {"unresolved": tuple(h[small & ~resolved].tolist()), "large": tuple(h[~small].tolist())}
    if len(set(h[use])) < 2:
        return Order(name, math.nan, math.nan, tuple(h[use].tolist()), **left)
    order = np.argsort(h[use])
    x, y, s = np.log(h[use][order]), np.log(np.abs(error[use][order])), (se / np.abs(error))[use][order]
    slope, slope_se = _line(x, y, s)
    return Order(name, slope, slope_se, tuple(np.exp(x).tolist()), **left, notes=tuple(_notes(x, y, s, error[use])))


def _notes(x: Array, y: Array, s: Array, error: Array) -> list[str]:
    """Return what makes a fit of ``y`` over ``x`` with errors ``s`` doubtful; the points are in the order of ``x``."""
    notes = []
    if len(set(np.sign(error))) > 1:
        notes.append("the error changes its sign, so it follows no power of h yet")
    if len(x) > 2:
        rest, rest_se = _line(x[:-1], y[:-1], s[:-1])
        intercept = np.average(y[:-1] - rest * x[:-1], weights=s[:-1] ** -2)
        gap = y[-1] - intercept - rest * x[-1]
        if abs(gap) > 0.1 and abs(gap) > 2 * math.hypot(s[-1], rest_se * (x[-1] - x[:-1].mean())):
            notes.append(
                f"h={math.exp(x[-1]):.4g} is off the line of the others by {100 * abs(math.expm1(gap)):.0f} %; "
                f"without it the order is {rest:.3f} ± {1.96 * rest_se:.3f}"
            )
    return notes


def _line(x: Array, y: Array, s: Array) -> tuple[float, float]:
    """Return slope and standard error of a weighted straight line, with Birge's factor for excess scatter."""
    weight = s**-2.0
    centre = np.average(x, weights=weight)
    spread = float(weight @ (x - centre) ** 2)
    slope = float(weight @ ((x - centre) * y)) / spread
    rest = y - np.average(y, weights=weight) - slope * (x - centre)
    birge = float(weight @ rest**2) / (len(x) - 2) if len(x) > 2 else 1.0
    return slope, math.sqrt(max(1.0, birge) / spread)
