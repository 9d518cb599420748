"""How far does a run overshoot beyond Adam's bound? As far as the memory of v lets it.

Claim. Beyond ``eta h = 2 (1 + beta1) / (1 - beta1)`` a direction grows until its own gradients reach ``v``, which takes
``1 / (1 - beta2)`` steps. A run with a short memory of ``v`` is past the same bound and throws its loss less.

Protocol. A quadratic of 256 coordinates with curvature along one random direction, noise of deviation 1 in every
coordinate, Adam with ``eta h = 2.2`` at the switch; everything converted at 16 and 64 times the batch, beta2 down to a
floor of .9, beta1 at 0, .5 and .8. Told is the peak of the mean loss of 40 replicas over its mean before the switch.
results/PROTOCOL.md has the hypothesis.

Cost. Half a minute on a core of a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

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


def page() -> str:
    """Return the results in Markdown."""
    lines = [
        "# How far a run overshoots beyond the bound",
        "",
        "The peak of the mean loss after the switch over its mean before; a quadratic of 256 coordinates with",
        "`eta h` = 2.2, 40 replicas. Made by `python experiments/overshoot.py`.",
        "",
        "| kappa | beta1 after | kappa eta h over the bound | .999 (beta2 after) | .95 (beta2 after) | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for kappa in (16, 64):
        for beta1 in (0.0, 0.5, 0.8):
            (long, beta2_long), (short, beta2_short) = (peak(kappa, beta1, beta2) for beta2 in (0.999, 0.95))
            share = kappa * ETA_H * (1 - beta1) / (2 * (1 + beta1))
            lines.append(
                f"| {kappa} | {beta1:g} | {share:.1f} | {long:.3g} ({beta2_long:.3f}) "
                f"| {short:.3g} ({beta2_short:.3f}) | {short / long:.2f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/overshoot/README.md"))
    args = parser.parse_args()
    text = page()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(text)
