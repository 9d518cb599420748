"""Statistics that comparisons of runs and estimates of noise share. No torch, no scipy."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@lru_cache(maxsize=128)
def _student(freedom: float) -> tuple[Array, Array]:
    """Return points ``s`` and ``log P(|T| > sinh(s))`` of Student's t, by the trapezoidal rule; exact to 1e-5."""
    s, width = np.linspace(0.0, 19.0, 16384, retstep=True)  # t up to 1e8; log P is close to linear in s far out
    density = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(s) ** 2 / freedom)) * np.cosh(s)
    beyond = density[-1] / (freedom * width)  # there it falls as exp(-freedom s)
    tail = np.append(np.cumsum(((density[1:] + density[:-1]) / 2)[::-1])[::-1], 0.0) + beyond
    keep = tail > 1e-290
    return s[keep], np.log(tail[keep] / tail[0])


def student_log_tail(t: float, freedom: float) -> float:
    """Return ``log P(|T| > t)`` for Student's t with so many degrees of freedom."""
    return float(np.interp(math.asinh(t), *_student(freedom)))


def student_of_log_tail(log_tail: float, freedom: float) -> float:
    """Return the t with ``log P(|T| > t) = log_tail``: the inverse of `student_log_tail`."""
    s, log_tails = _student(freedom)
    return math.sinh(float(np.interp(-log_tail, -log_tails, s)))


def student_quantile(freedom: float, level: float = 0.975) -> float:
    """Return the t with ``P(T <= t) = level``, for a level of at least 1/2."""
    return student_of_log_tail(math.log(2 * (1 - level)), freedom)


@lru_cache(maxsize=256)
def barnard_exact(events: tuple[int, int], trials: tuple[int, int]) -> float:
    """Return the p-value of Barnard's exact test that two groups have events equally often (two-sided).

    It is the largest chance, over all rates that the groups may share, of a table whose score statistic is at least
    that of the one seen. Fisher's test, which also fixes the number of events, rejects less: for 4 of 4 against 0 of 4
    it gives 0.029, this one 2 / 2^8.

    >>> round(barnard_exact((4, 0), (4, 4)), 5), barnard_exact((2, 2), (8, 8))
    (0.00781, 1.0)
    """
    first, second = (np.arange(n + 1) for n in trials)
    shared = (first[:, None] + second) / sum(trials)
    spread = shared * (1 - shared) * (1 / trials[0] + 1 / trials[1])
    difference = first[:, None] / trials[0] - second / trials[1]
    score = np.divide(difference**2, spread, out=np.zeros_like(difference), where=spread > 0)
    extreme = score >= score[events] * (1 - 1e-9)
    rates = np.linspace(0, 1, 201)[1:-1]
    tables = [_binomial(n, rates) for n in trials]
    return float(min(1.0, ((tables[0].T @ extreme) * tables[1].T).sum(1).max()))


def _binomial(trials: int, rates: Array) -> Array:
    """Return the chance of each number of events ``[n + 1, P]`` at each rate ``[P]``."""
    counts = np.arange(trials + 1)[:, None]
    ways = np.array([[math.log(math.comb(trials, k))] for k in range(trials + 1)])
    found: Array = np.exp(ways + counts * np.log(rates) + (trials - counts) * np.log1p(-rates))
    return found


def binomial_limit(events: int, trials: int, level: float = 0.95) -> float:
    """Return Clopper and Pearson's exact upper limit of a rate, at this one-sided level.

    It is the rate p at which ``P(at most this many events) = 1 - level``.

    >>> round(binomial_limit(0, 200), 4), binomial_limit(3, 3)
    (0.0149, 1.0)
    """
    if events >= trials:
        return 1.0
    low, high = events / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        log_terms = [
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + (k * math.log(p) if k else 0.0) + (trials - k) * math.log1p(-p)
            for k in range(events + 1)
        ]  # fmt: skip
        low, high = (p, high) if sum(map(math.exp, log_terms)) > 1 - level else (low, p)
    return high
