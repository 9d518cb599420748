"""Two sets of runs: how far apart their mean trajectories are, and whether that is within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rootscale.trajectory import Trajectory

__all__ = ["Comparison", "Gap", "Verdict", "compare"]

Array = NDArray[np.float64]
Verdict = Literal["same", "different", "undecided"]


@dataclass(frozen=True)
class Gap:
    """One test function: the other mean curve minus the base's, as a share of the range of the base's.

    Args:
        name: of the test function.
        times: ``[T]``.
        gap: ``[T]``.
        low, high: ``[T]``, the band that holds the true gap at all times (and of all test functions) at once.
        range: largest minus smallest value of the base's mean curve.
        verdict: on this test function.
        seeds_needed: where undecided, how many seeds would decide if the gap is what it seems; None where no number can.
    """

    name: str
    times: Array
    gap: Array
    low: Array
    high: Array
    range: float
    verdict: Verdict
    seeds_needed: int | None = None


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
    """

    gaps: Mapping[str, Gap]
    tolerance: float
    level: float
    seeds: tuple[int, int]
    paired: bool
    diverged: tuple[int, int] = (0, 0)

    @property
    def verdict(self) -> Verdict:
        """Different if any test function is, same if all are."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """What `to_dict` gave."""
        raise NotImplementedError


def compare(
    base: Trajectory,
    other: Trajectory,
    functions: Sequence[str] | None = None,
    *,
    tolerance: float = 0.05,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two sets of runs."""
    raise NotImplementedError
