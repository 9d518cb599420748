"""How wide the bands of a comparison are: standard errors pooled over time, and critical values from rotations.

At test function f and time t the band is ``gap ± c s``. Here s(f, t) is the standard error whose square is the mean
of the squared standard errors over seeds at the neighbouring times, a fifth of all: what a few seeds show of their
spread at one time is little. Two values of c belong to it:

- ``all_times``: the band holds everywhere at once. It is the ``1 - alpha`` quantile of ``max |gap*| / s*`` over times
  and functions. Only a gap beyond the tolerance somewhere makes runs different, and there are many places to find one.
- ``each_time``: the band holds at one time by itself, on the side where it would err. It is the ``1 - 2 alpha``
  quantile of ``|gap*| / s*``, over all times and functions together. Runs are the same only if all times are, so that
  a wrong "same" needs an error at the one time where the gap is beyond the tolerance (an intersection-union test:
  Berger 1982, Technometrics 24; for one time it is Schuirmann's two one-sided tests).

Sameness is asked of the gap averaged over the same neighbouring times (`averaged`), and with twice the tolerance of the
gap at every single time: much of what pairs scatter by is new at every measurement, and says nothing about training.
At the last time, which is what a user ships, it is asked of the gap itself with the plain tolerance. That place has
quantiles of its own, ``end`` and ``end_together``, like ``each_time`` and ``all_times`` for the last time alone.

gap* and s* are those of the runs' deviations from their mean after a random rotation of the runs among themselves (a
rotation test: Langsrud 2005, Statistics and Computing 15). Every run keeps its course over all times and functions,
and thereby their dependence; s* is computed anew, and so accounts for how few seeds s rests on. For a single time and
function, c is Student's quantile. What the bands cover, measured, is in docs/same.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rootscale.pairing import Array, Mask, Sample
from rootscale.stats import student_log_tail, student_of_log_tail

#: Times on either side over which a squared standard error is averaged, as a share of all times.
WINDOW = 0.1
_MOST = 10_000  # seeds: more than these are no advice
#: Runs that are rotated at a time.
BLOCK = 256


@dataclass(frozen=True)
class Critical:
    """Half-widths of bands in pooled standard errors.

    Args:
        all_times: of the band that holds at all times and for all functions at once.
        each_time: of that which holds at each time by itself.
        end: of that which holds at the last time of each function.
        end_together: of that which holds at the last time of all functions at once.
    """

    all_times: float
    each_time: float
    end: float
    end_together: float


def pooled_se(se: Array, use: Mask) -> Array:
    """Return standard errors ``[F, T]`` whose squares are averaged over neighbouring times; others stay as they are.

    Args:
        se: over seeds.
        use: ``[F, T]``, the times that are averaged.
    """
    found = np.array(se)
    for row, squares, keep in zip(found, se**2, use, strict=True):
        row[keep] = np.sqrt(squares[keep] @ _window(keep))
    return found


def averaged(sample: Sample, use: Mask) -> Sample:
    """Return runs of which each is averaged over neighbouring times, those at which it had not diverged.

    Args:
        sample: the runs, or differences of pairs.
        use: ``[F, T]``, the times that are averaged; others stay as they are.
    """
    gone = sample.alive[:, None, :] == 0
    values = np.where(gone, 0.0, sample.mean + sample.deviations)
    for i, keep in enumerate(use):
        near, alive = _near(keep), sample.alive[:, keep]
        values[:, i, keep] = (values[:, i, keep] @ near) / np.maximum(alive @ near, 1.0)
    return Sample.of(values, sample.alive == 0)


def _near(keep: Mask) -> Array:
    """Return which of the S times that are kept are neighbours, ``[S, S]``: 1, or 0."""
    places = np.flatnonzero(keep)
    found: Array = (np.abs(places[:, None] - places) <= int(WINDOW * len(keep))).astype(np.float64)
    return found


def _window(keep: Mask) -> Array:
    """Return weights ``[S, S]`` of the mean over the neighbours of each of the S times that are kept."""
    near = _near(keep)
    found: Array = near / near.sum(0)
    return found


@dataclass(frozen=True)
class Draws:
    """How many rotations are drawn, and from which source."""

    count: int
    rng: np.random.Generator


def critical_values(
    samples: Sequence[Sample], use: Mask, groups: Sequence[Sequence[int]], alpha: float, draws: Draws
) -> list[Critical]:
    """Return the critical values of each group of test functions, which share theirs.

    Args:
        samples: independent sets of runs whose means are subtracted; one, of differences, where they are paired.
        use: ``[F, T]``, where bands have a width.
        groups: numbers of functions.
        alpha: the chance of an error.
        draws: the random rotations.
    """
    rotations = [_Rotation.drawn(sample, draws) for sample in samples]
    found = []
    for group in groups:
        parts = [_statistics(rotations, i, use[i]) for i in group if use[i].any()]
        if not parts:
            found.append(Critical(0.0, 0.0, 0.0, 0.0))
            continue
        largest = np.max([part.max(1) for part in parts], axis=0)
        every = np.concatenate([part.ravel() for part in parts])
        last = np.array([part[:, -1] for part in parts])
        # A single deviation makes all functions look like one: each then gets its part of the error.
        sharing = len(parts) if sum(sample.runs - 1 for sample in samples) == 1 else 1
        one_sided = min(2 * alpha, 1.0)
        found.append(
            Critical(
                _upper(largest, alpha / sharing), _upper(every, one_sided),
                _upper(last.ravel(), one_sided), _upper(last.max(0), alpha / sharing),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Rotation:
    """Means of a sample after random rotations of its deviations.

    Under a rotation of n deviations ``a`` their mean is ``w a / sqrt(n)``, with w uniform on the unit sphere, and their
    sum of squares stays: nothing but w needs to be drawn.

    Args:
        along: ``[draws, F, T]``, the deviations along the random directions.
        squares: ``[F, T]``, the sums of their squares.
        count: ``[T]``, how many runs are left.
    """

    along: Array
    squares: Array
    count: Array

    @classmethod
    def drawn(cls, sample: Sample, draws: Draws) -> _Rotation:
        functions, times = sample.deviations.shape[1:]
        along, lengths = np.zeros((draws.count, functions * times)), np.zeros((draws.count, times))
        for first in range(0, sample.runs, BLOCK):  # so that thousands of runs take no more memory than a few
            part = slice(first, first + BLOCK)
            alive = sample.alive[part]
            z = draws.rng.standard_normal((draws.count, len(alive)))
            along += z @ sample.deviations[part].reshape(len(alive), -1)
            lengths += z**2 @ alive
        with np.errstate(divide="ignore", invalid="ignore"):
            # Deviations from a mean of n are short by sqrt(1 - 1/n).
            more = np.sqrt(sample.count / (sample.count - 1))
            found = along.reshape(-1, functions, times) * (more / np.sqrt(lengths))[:, None, :]
            return cls(found, (sample.deviations**2).sum(0) * more**2, sample.count)


def _statistics(rotations: Sequence[_Rotation], i: int, keep: Mask) -> Array:
    """Return the squares of ``gap* / s*`` of a test function, ``[draws, times]``."""
    mean: Array | float = 0.0
    variance: Array | float = 0.0
    for rotation in rotations:
        n, along = rotation.count[keep], rotation.along[:, i, keep]
        mean = mean + along / np.sqrt(n)
        variance = variance + (rotation.squares[i, keep] - along**2) / (n * (n - 1))
    squares = np.square(mean)
    pooled = np.asarray(variance) @ _window(keep)
    found: Array = squares / np.maximum(pooled, 1e-12 * squares)
    return found


def _upper(squares: Array, alpha: float) -> float:
    """Return the root of the smallest value that at most a share ``alpha`` of the squares exceeds."""
    place = min(len(squares) - 1, max(0, math.ceil(len(squares) * (1 - alpha)) - 1))
    return math.sqrt(float(np.partition(squares, place)[place]))


@dataclass(frozen=True)
class Seen:
    """What is seen of one test function, ``[T]`` each.

    Args:
        gap: NaN where it is not judged.
        se: its standard error, pooled over time.
        spread: the standard error that one seed on each side would have.
        critical: half-widths of its bands.
    """

    gap: Array
    se: Array
    spread: Array
    critical: Critical

    @property
    def last(self) -> Seen:
        """The last time alone."""
        critical = replace(self.critical, all_times=self.critical.end_together, each_time=self.critical.end)
        return Seen(self.gap[-1:], self.se[-1:], self.spread[-1:], critical)


@dataclass(frozen=True)
class Forecast:
    """How the critical values would change with more seeds, if gap and spread stay what they seem.

    c(n) is the t-quantile, at n's degrees of freedom, of the tail that c has at the present ones, less what a later
    look may spend.

    Args:
        present: seeds, on the smaller side.
        samples: independent sets of runs, 1 where they are paired.
        spent: the share of the error that a look may spend, by the number of seeds.
    """

    present: int
    samples: int
    spent: Callable[[int], float]

    def at(self, c: float, n: int) -> float:
        """Return the critical value c as it would be with n seeds."""
        tail = student_log_tail(c, self.samples * (self.present - 1))
        tail += math.log(self.spent(n) / self.spent(self.present))
        freedom = self.samples * (n - 1)
        return student_of_log_tail(tail, freedom if freedom < 30 else float(f"{freedom:.0e}"))  # each costs a table

    def seeds_for(self, asked: Sequence[tuple[Seen, float, float]], single: Seen, tolerance: float) -> int | None:
        """Return the smallest number of seeds at which the bands decide; None where no number does.

        Args:
            asked: of runs that are the same: what has to lie within a limit, half the width of its band in standard
                errors, and the limit.
            single: the gap at the times that may show a difference; ``critical.all_times`` is its band.
            tolerance: beyond which that band makes a difference.
        """
        beyond = any(np.any(np.abs(seen.gap) > limit) for seen, _, limit in asked)

        def half(seen: Seen, c: float, n: int) -> Array:
            return self.at(c, n) * seen.spread / math.sqrt(n)

        def decides(n: int) -> bool:
            if beyond:
                return bool(np.any(np.abs(single.gap) - half(single, single.critical.all_times, n) > tolerance))
            return all(np.all(np.abs(seen.gap) + half(seen, c, n) <= limit) for seen, c, limit in asked)

        low, high = self.present, _MOST
        if not decides(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if decides(middle) else (middle, high)
        return high
