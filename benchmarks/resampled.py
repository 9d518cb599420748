"""Runs that look like stored ones: a Gaussian or heavy-tailed process fitted to the curves of a check in results/.

A fit has the base's mean curve, the spread of the runs (or of the differences of pairs) at every time, their
correlation between times (a part that a run keeps for ever, one that fades, one that is new at every time) and between
test functions. The losses of a check are what is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rootscale.bands import pooled_se
from rootscale.lab import Table
from rootscale.pairing import pair_runs, window
from rootscale.trajectory import Trajectory
from rootscale.verdict import LOSSES

__all__ = ["CASES", "Process", "fitted", "trajectories"]

Array = NDArray[np.float64]
RESULTS = Path(__file__).resolve().parent.parent / "results"
LENGTHS = (0.05, 0.1, 0.2, 0.5, 1.0)  # over which the fading part fades, as a share of the run


@dataclass(frozen=True)
class Process:
    """What is drawn.

    Args:
        curve: ``[F, T]``, the mean of the base, in units of its ranges.
        spread: ``[F, T]``, the standard deviation of a run, or of the difference of a pair.
        root: ``[T, T]``, a root of the correlation between times.
        common: the correlation between the two test functions.
        paired: whether the differences of pairs have this spread; otherwise the runs of either side.
        tail: degrees of freedom of Student's t that every run's noise has; None is Gaussian.
    """

    curve: Array
    spread: Array
    root: Array
    common: float
    paired: bool
    tail: int | None

    def draw(self, rng: np.random.Generator, runs: int) -> Array:
        """Return the noise of so many runs, ``[R, F, T]``, with the standard deviation ``spread``."""
        count, length = self.spread.shape
        z = np.sqrt(self.common) * rng.standard_normal((runs, 1, length))
        z = z + np.sqrt(1 - self.common) * rng.standard_normal((runs, count, length))
        noise: Array = (z @ self.root.T) * self.spread
        if self.tail is not None:
            noise = noise * np.sqrt((self.tail - 2) / rng.chisquare(self.tail, (runs, 1, 1)))
        return noise


# name: the check, the arms whose differences to the base are pooled (none: runs of the base itself), heavy tails
CASES: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "GPT, pairs": ("gpt-check", ("B = 32, sqrt", "B = 128, sqrt"), None),
    "GPT, pairs, heavy tails": ("gpt-check", ("B = 32, sqrt", "B = 128, sqrt"), 4),
    "GPT under SVAG, pairs": ("gpt-svag-check", ("SVAG ell = 2",), None),
    "BatchNorm net, pairs": ("cifar10-switch", ("256 → 4,096, everything converted",), None),
    "BatchNorm net, pairs, heavy tails": ("cifar10-switch", ("256 → 4,096, everything converted",), 4),
    "BatchNorm net, ramp, pairs": ("cifar10-switch", ("ramp 256 → 1,024 → 4,096 → 16,384",), None),
    "GPT, independent runs": ("gpt-svag-check", (), None),
    "BatchNorm net, independent runs": ("cifar10-switch", (), None),
}


def fitted(case: str) -> Process:
    """Return the process of a case."""
    folder, labels, tail = CASES[case]
    check = Table.load(RESULTS / folder)
    base = check.base.trajectory
    part = window(base)
    curve = np.stack([base.values[name][:, part].mean(0) for name in LOSSES])
    ranges = np.ptp(curve, axis=1)
    if labels:
        sets = [pair_runs(base, check[label].trajectory, LOSSES).samples[0].deviations for label in labels]
    else:
        values = np.stack([base.values[name][:, part] for name in LOSSES], 1) / ranges[:, None]
        sets = [values - values.mean(0)]
    spread, root, common = _moments(sets)
    return Process(curve / ranges[:, None], spread, root, common, bool(labels), tail)


def _moments(sets: Sequence[Array]) -> tuple[Array, Array, float]:
    """Return spread, root of the correlation over time, and correlation of the functions, of sets of deviations."""
    variance = np.mean([(one**2).sum(0) / (len(one) - 1) for one in sets], axis=0)
    moves = variance > 1e-12
    spread = np.where(moves, pooled_se(np.sqrt(variance), moves), 0.0)
    unit = np.concatenate([one * np.sqrt(len(one) / (len(one) - 1)) for one in sets]) / np.where(moves, spread, 1.0)
    used = unit[:, :, moves.all(0)]
    common = float(np.clip((used[:, 0] * used[:, 1]).mean() / (used**2).mean(), 0.0, 0.99))
    length = spread.shape[1]
    lags = np.arange(1, used.shape[2] // 2)
    seen = np.array([(used[..., :-lag] * used[..., lag:]).mean() / (used**2).mean() for lag in lags])
    fits = []
    for share in LENGTHS:
        design = np.stack([np.ones(len(lags)), np.exp(-lags / (share * length))], 1)
        weights = np.clip(np.linalg.lstsq(design, seen, rcond=None)[0], 0.0, None)
        weights = weights / max(1.0, weights.sum() / 0.98)
        fits.append((float(((design @ weights - seen) ** 2).sum()), share, weights))
    _, share, (lasting, fading) = min(fits, key=lambda fit: fit[0])
    distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    kernel = lasting + fading * np.exp(-distance / (share * length)) + (1 - lasting - fading) * np.eye(length)
    return spread, np.linalg.cholesky(kernel + 1e-10 * np.eye(length)), common


def trajectories(process: Process, gap: Array, seeds: int, rng: np.random.Generator) -> tuple[Trajectory, Trajectory]:
    """Return base and other, with this true gap ``[T]`` of both losses."""
    times, count = 1 + np.linspace(0, 1, process.curve.shape[1]), len(process.curve)
    scale = 1.0 if not process.paired else np.sqrt(0.5)  # of either run of a pair
    noise = [scale * process.draw(rng, seeds) for _ in range(2)]
    # Where both sides scatter, the mean curve of the base does too: its range is what the verdict takes as the unit.
    numbers = [list(range(seeds)), list(range(seeds) if process.paired else range(seeds, 2 * seeds))]
    return (
        _trajectory(times, process.curve + noise[0], numbers[0], count),
        _trajectory(times, process.curve + gap + noise[1], numbers[1], count),
    )


def first_seeds(trajectory: Trajectory, count: int) -> Trajectory:
    """Return the first runs alone."""
    values = {name: value[:count] for name, value in trajectory.values.items()}
    return Trajectory(trajectory.times, values, meta={"seeds": trajectory.meta["seeds"][:count]})


def _trajectory(times: Array, values: Array, seeds: list[int], count: int) -> Trajectory:
    return Trajectory(times, {LOSSES[i]: values[:, i] for i in range(count)}, meta={"seeds": seeds})
