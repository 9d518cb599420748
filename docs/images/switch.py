"""Draw the picture of README from the stored runs: python docs/images/switch.py

A conv net with BatchNorm on digits, Adam with betas .9 and .999, weights averaged (experiments/floors.py). Two runs go
to four times the batch at the same sample: one with everything converted, one with the learning rate alone.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from rootscale.lab import Table

HERE = Path(__file__).parent
STUDY = "floors-convnet-ema-999"
TITLE = "Four times the batch, in the middle of training"
BASE, CONVERTED, ALONE = (
    "B = 16 kept",
    "16 → 64, floors .9, .9",
    "16 → 64, learning rate only",
)
#: The words at the lines, and where they stand.
LINES = {
    CONVERTED: ("everything converted", 5_200, 0.125),
    ALONE: ("learning rate alone", 11_200, 0.275),
}
COLOURS = {
    "light": {
        BASE: "#30363d",
        CONVERTED: "#0072b2",
        ALONE: "#c04a00",
        "grid": "#d5d9de",
    },
    "dark": {
        BASE: "#d5dae0",
        CONVERTED: "#56b4e9",
        ALONE: "#ff9d5c",
        "grid": "#454b54",
    },
}


def draw(table: Table, ground: str) -> None:
    """Draw the loss of both runs, with that of the run which keeps its batch size, on a light or a dark ground."""
    colours = COLOURS[ground]
    plt.rcParams.update(
        {
            "svg.hashsalt": "rootscale",
            "text.color": colours[BASE],
            "font.size": 14,
        }
    )
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    samples = np.asarray(table.base.trajectory.meta["samples"], np.float64)
    for label, (words, x, y) in LINES.items():
        loss = table[label].trajectory.values["test loss"]
        mean, error = loss.mean(0), 2 * loss.std(0, ddof=1) / len(loss) ** 0.5
        axes.fill_between(
            samples,
            mean - error,
            mean + error,
            color=colours[label],
            alpha=0.3,
            linewidth=0,
        )
        axes.plot(samples, mean, color=colours[label], linewidth=2.6)
        axes.text(x, y, words, color=colours[label], weight="bold")
    kept = table.base.trajectory.values["test loss"].mean(0)
    axes.plot(
        samples, kept, color=colours[BASE], linewidth=1.4, linestyle=(0, (4, 3))
    )
    axes.text(
        samples[-1],
        kept[-1] * 0.8,
        "dashed: batch size kept",
        ha="right",
        va="center",
    )
    axes.set_title(TITLE, loc="left", weight="bold")
    axes.set_xlabel("samples seen", color=colours[BASE])
    axes.set_ylabel("test loss", color=colours[BASE])
    axes.set_yscale("log")
    axes.set_ylim(0.055, 0.6)
    axes.set_yticks([0.1, 0.2, 0.4], ["0.1", "0.2", "0.4"])
    axes.minorticks_off()
    axes.set_xticks([6_000, 10_000, 14_000], ["6,000", "10,000", "14,000"])
    axes.tick_params(colors=colours[BASE], length=0)
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    figure.savefig(
        HERE / f"switch-{ground}.svg",
        transparent=True,
        metadata={"Date": None, "Creator": None},
    )
    plt.close(figure)


if __name__ == "__main__":
    stored = Table.load(HERE.parents[1] / "results" / f"{STUDY}.npz")
    for ground in COLOURS:
        draw(stored, ground)
