"""How often the wide bands of `rootscale.bands` hold the true gap at all 60 times and for all 6 functions at once.

On synthetic runs whose true gap is known, next to other ways of choosing the half-width. 95 % is right; the last line
is the lowest and the highest figure of the way that is used, without the row that is there to show its limit.

    python benchmarks/bands.py [--repeats 200] [--resamples 500]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from rootscale.trajectory import Trajectory
from rootscale.verdict import compare

Array = NDArray[np.float64]
Process = Callable[[np.random.Generator, int], Array]  # the noise of so many runs, [R, F, T]
Rival = Callable[[np.random.Generator, Array, int], float]

PROGRESS = np.linspace(0, 1, 60)
TIMES = 1 + PROGRESS  # in mid-run: what is before the first step has no part in a comparison
SCALES = np.array([1, 0.3, 2, 0.1, 5, 1])[:, None]  # of the noise of the six functions
CURVE = 20 * np.exp(-3 * PROGRESS)
GAP = PROGRESS * (1 - PROGRESS)


def root(kernel: Callable[[Array, Array], Array]) -> Array:
    """A square root of the covariance over times."""
    values, vectors = np.linalg.eigh(kernel(PROGRESS[:, None], PROGRESS))
    found: Array = vectors * np.sqrt(np.clip(values, 0, None))
    return found


SMOOTH = root(lambda s, t: np.exp(-(((s - t) / 0.15) ** 2) / 2))
ROUGH = root(lambda s, t: np.exp(-np.abs(s - t) / 0.05))
BROWNIAN = root(np.minimum)


def gaussian(over_times: Array, common: float = 0.0) -> Process:
    """Paths with a part ``common`` to all functions."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        z = common * rng.standard_normal((n, 1, 60)) + math.sqrt(1 - common**2) * rng.standard_normal((n, 6, 60))
        found: Array = SCALES * (z @ over_times.T)
        return found

    return draw


def heavy(rng: np.random.Generator, n: int) -> Array:
    """Some runs are wild: Student's t with 3 degrees of freedom."""
    return gaussian(SMOOTH, 0.95)(rng, n) * np.sqrt(3 / rng.chisquare(3, (n, 1, 1)))


def skewed(rng: np.random.Generator, n: int) -> Array:
    """Log-normal with skewness 2.9, mean zero."""
    found: Array = SCALES * (np.exp(0.7 * gaussian(SMOOTH, 0.95)(rng, n) / SCALES) - math.exp(0.245))
    return found


def none(rng: np.random.Generator, n: int) -> Array:
    """Runs without noise."""
    return np.zeros((n, 6, 60))


# name: the noise of the other runs, and of the base's
CASES: dict[str, tuple[Process, Process]] = {
    "smooth": (gaussian(SMOOTH), gaussian(SMOOTH)),
    "smooth, functions correlated .9": (gaussian(SMOOTH, 0.95), gaussian(SMOOTH, 0.95)),
    "rough": (gaussian(ROUGH), gaussian(ROUGH)),
    "Brownian, none at t = 0": (gaussian(BROWNIAN), gaussian(BROWNIAN)),
    "heavy tails": (heavy, heavy),
    "skewed alike": (skewed, skewed),
    "5 x the base's noise": (lambda rng, n: 5 * gaussian(SMOOTH)(rng, n), gaussian(SMOOTH)),
    "limit: only the other is skewed": (skewed, none),
}
SIZES = (5, 8, 16)
LIMIT = "limit: only the other is skewed"


def trajectory(values: Array, seeds: Sequence[int]) -> Trajectory:
    return Trajectory(TIMES, {f"f{i}": values[:, i] for i in range(6)}, meta={"seeds": list(seeds)})


def covered(rng: np.random.Generator, case: str, n: int, m: int, paired: bool, resamples: int) -> bool:
    """Whether the band of one draw holds the truth everywhere."""
    other, base = CASES[case]
    share = gaussian(SMOOTH, 0.5)(rng, n) if paired else np.zeros(1)
    x = trajectory(CURVE + SCALES * GAP + share + other(rng, n), range(n))
    y = trajectory(CURVE + share + base(rng, m), range(m) if paired else range(n, n + m))
    result = compare(y, x, resamples=resamples, seed=int(rng.integers(2**31)), looks="once")
    return all(
        bool(np.all((g.low * g.range <= SCALES[i] * GAP + 1e-12) & (SCALES[i] * GAP <= g.high * g.range + 1e-12)))
        for i, g in enumerate(result.gaps.values())
    )


def bootstrap_t(rng: np.random.Generator, unit: Array, resamples: int) -> float:
    """Draw runs with replacement."""
    n = len(unit)
    draws = rng.multinomial(n, np.full(n, 1 / n), resamples).astype(np.float64)
    mean = draws @ unit / n
    variance = (draws @ unit**2 - n * mean**2) / (n - 1)
    return float(np.quantile((np.abs(mean) / np.sqrt(np.maximum(variance, 1e-12) / n)).max(1), 0.95))


def multivariate_t(rng: np.random.Generator, unit: Array, resamples: int) -> float:
    """Gaussian weights (thus the estimated correlations), over one common root of a chi-square."""
    n = len(unit)
    chi = np.sqrt(rng.chisquare(n - 1, resamples) / (n - 1))
    return float(np.quantile(np.abs(rng.standard_normal((resamples, n)) @ unit).max(1) / chi, 0.95))


def signs(rng: np.random.Generator, unit: Array, resamples: int) -> float:
    """Every run keeps or changes its sign (the wild bootstrap)."""
    n = len(unit)
    square = ((1.0 - 2.0 * rng.integers(0, 2, (resamples, n))) @ unit) ** 2 / n
    return float(np.sqrt((n - 1) * np.quantile((square / np.maximum(1 - square, 1e-12)).max(1), 0.95)))


RIVALS: dict[str, Rival] = {"bootstrap-t": bootstrap_t, "multivariate t": multivariate_t, "signs": signs}


def rival(rng: np.random.Generator, case: str, n: int, way: Rival, resamples: int) -> bool:
    """The same for pairs, with another critical value."""
    other, base = CASES[case]
    x = (other(rng, n) - base(rng, n)).reshape(n, -1)
    x = x[:, x.std(0) > 1e-9]
    spread = x.std(0, ddof=1)
    unit = (x - x.mean(0)) / spread / math.sqrt(n - 1)
    return bool(np.abs(x.mean(0) / spread).max() * math.sqrt(n) <= way(rng, unit, resamples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=500)
    args = parser.parse_args()
    console, found = Console(width=140), []
    designs = [(n, n, True) for n in (2, 3, 4, 6, 8, 16)] + [(4, 4, False), (8, 8, False), (6, 16, False)]
    console.print(f"rotations (as used): coverage in %, {args.repeats} repeats each", style="bold")
    table = Table("runs", box=box.MARKDOWN)
    for n, m, paired in designs:
        table.add_column(f"{n} pairs" if paired else f"{n} and {m}", justify="right")
    for i, case in enumerate(CASES):
        row = []
        for j, (n, m, paired) in enumerate(designs):
            rng = np.random.default_rng((1, i, j))
            hits = [covered(rng, case, n, m, paired, args.resamples) for _ in range(args.repeats)]
            row.append(100 * sum(hits) / len(hits))
        found += row if case != LIMIT else []
        table.add_row(case, *(f"{value:.1f}" for value in row))
    console.print(table)

    for name, way in RIVALS.items():
        console.print(f"{name}: coverage in %", style="bold")
        table = Table("runs", box=box.MARKDOWN)
        for n in SIZES:
            table.add_column(f"{n} pairs", justify="right")
        for i, case in enumerate(CASES):
            row = []
            for n in SIZES:
                rng = np.random.default_rng((2, i, n))
                hits = [rival(rng, case, n, way, args.resamples) for _ in range(args.repeats)]
                row.append(100 * sum(hits) / len(hits))
            table.add_row(case, *(f"{value:.1f}" for value in row))
        console.print(table)
    console.print(f"rotations: coverage {min(found):.1f} to {max(found):.1f} %")


if __name__ == "__main__":
    main()
