"""How far does a run overshoot beyond Adam's bound? As far as the memory of v lets it.

Claim. Beyond ``eta h = 2 (1 + beta1) / (1 - beta1)`` a direction grows until its own gradients reach ``v``, which takes
``1 / (1 - beta2)`` steps. A run with a short memory of ``v`` is past the same bound and throws its loss less.

Fixed before it was run: with beta2 = .95 the peak of the loss is less than half of that with .999 at 16 times the
batch, where .999 becomes .984 and .95 becomes .9, and more than half at 64 times, where .999 becomes .936; contradicted
if one of the six comparisons is on the other side.

Protocol. A quadratic of 256 coordinates with curvature along one random direction, noise of deviation 1 in every
coordinate, Adam with ``eta h = 2.2`` at the switch; everything converted at 16 and 64 times the batch, beta2 down to a
floor of .9, beta1 at 0, .5 and .8. The number is the peak of the mean loss of 40 replicas over its mean before the
switch. Seed 0, float64.

Cost. Half a minute on a core of a CPU.

Finding. All six comparisons are as fixed (n = 40).

    python experiments/overshoot.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from results import Claim

from rootscale.files import write_json

Array = np.ndarray[Any, np.dtype[np.float64]]

GROUP = "beyond"
NAME = "overshoot"
CLAIM = "Adam beyond its bound: with a short memory of v the loss overshoots less"
SIZE, REPLICAS, ETA, ETA_H = 256, 40, 1e-3, 2.2
BEFORE, AFTER = 4000, 8000  # steps at the first batch size


class Adam:
    """Adam on the quadratic, for all replicas at once; v is in its steady state from the start."""

    def __init__(self, beta1: float, beta2: float, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        direction = self.random.standard_normal(SIZE)
        self.direction = direction / np.linalg.norm(direction)
        self.curvature = ETA_H / ETA
        self.theta, self.m = np.zeros((REPLICAS, SIZE)), np.zeros((REPLICAS, SIZE))
        self.v = np.ones((REPLICAS, SIZE))
        self.eta, self.sigma, self.beta1, self.beta2 = ETA, 1.0, beta1, beta2

    def run(self, steps: int) -> Iterator[float]:
        """Yield the mean loss after each step."""
        for _ in range(steps):
            along = self.theta @ self.direction
            gradient = self.curvature * along[:, None] * self.direction
            gradient += self.sigma * self.random.standard_normal((REPLICAS, SIZE))
            self.m += (1 - self.beta1) * (gradient - self.m)
            self.v += (1 - self.beta2) * (gradient**2 - self.v)
            self.theta -= self.eta * self.m / np.sqrt(self.v)
            yield float((self.curvature * (self.theta @ self.direction) ** 2 / 2).mean())

    def switch(self, kappa: float, beta1: float) -> None:
        """Convert everything; m gets the noise level of its new average."""
        ratio = (1 - beta1) / (1 + beta1) / (kappa * (1 - self.beta1) / (1 + self.beta1))
        self.m *= ratio**0.5
        self.v /= kappa
        self.eta, self.sigma = ETA * kappa**0.5, kappa**-0.5
        self.beta1, self.beta2 = beta1, max(1 - kappa * (1 - self.beta2), 0.9)


def peak(kappa: float, beta1: float, beta2: float, seed: int = 0) -> tuple[float, float]:
    """Return the peak of the loss after the switch over its mean before, and beta2 after it."""
    run = Adam(0.9, beta2, seed)
    before = float(np.mean(list(run.run(BEFORE))[BEFORE // 2 :]))
    run.switch(kappa, beta1)
    return max(run.run(int(AFTER / kappa))) / before, run.beta2


def measure() -> list[dict[str, float]]:
    """Return a row for each number of times and each beta1: how far beyond the bound, and the peak for each beta2."""
    rows = []
    for kappa in (16, 64):
        for beta1 in (0.0, 0.5, 0.8):
            (long, beta2_long), (short, beta2_short) = (peak(kappa, beta1, beta2) for beta2 in (0.999, 0.95))
            share = kappa * ETA_H * (1 - beta1) / (2 * (1 + beta1))
            rows.append({
                "kappa": kappa, "beta1": beta1, "beyond": round(share, 3), "peak .999": float(f"{long:.4g}"),
                "beta2 after .999": round(beta2_long, 4), "peak .95": float(f"{short:.4g}"),
                "beta2 after .95": round(beta2_short, 4),
            })  # fmt: skip
    return rows


def stored(results: Path) -> list[dict[str, float]]:
    """Return the stored rows."""
    path = results / f"{NAME}.json"
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else []


def ratios(rows: list[dict[str, float]], kappa: int) -> list[float]:
    """Return the peak with beta2 = .95 over that with .999, for each beta1."""
    return [row["peak .95"] / row["peak .999"] for row in rows if row["kappa"] == kappa]


def claims(results: Path) -> list[Claim]:
    """Return the row of the table of claims."""
    rows = stored(results)
    if not rows:
        return [Claim(CLAIM, "", "", "", __file__)]
    least, most = ratios(rows, 16), ratios(rows, 64)
    held = "**held**" if max(least) < 0.5 < min(most) else "**contradicted**"
    parts = (f"{min(found):.2f} to {max(found):.2f} at {kappa} times" for kappa, found in ((16, least), (64, most)))
    text = f"{held}: the peak with .95 over that with .999 is {', '.join(parts)}"
    return [Claim(CLAIM, text, str(REPLICAS), f"{NAME}.json", __file__)]


def page(results: Path) -> str:
    """Return the stored rows as a table in Markdown."""
    rows = stored(results)
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"] if rows else []
    return "\n".join([*lines, *("| " + " | ".join(f"{value:g}" for value in row.values()) + " |" for row in rows)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder of overshoot.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / f"{NAME}.json", {"replicas": REPLICAS, "rows": measure()}, indent=1)
    print(page(args.out))
