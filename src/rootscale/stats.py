"""Statistics that the comparison of runs and the estimates of noise share."""

from __future__ import annotations

from statistics import NormalDist

__all__ = ["student_quantile"]


def student_quantile(freedom: int, level: float = 0.975) -> float:
    """The quantile of Student's t, by its expansion about the normal one; to 1e-3 from 7 degrees on."""
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
