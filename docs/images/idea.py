"""Draw the pictures of docs/idea.md: python docs/images/idea.py

Each is a small simulation, not a sketch: the numbers in it are drawn with the seed below.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from rootscale.report.styles import GRID, SOFT, STYLES

HERE = Path(__file__).parent
KEPT, RULE, OTHER, WRONG = (
    STYLES[0].colour,
    STYLES[1].colour,
    STYLES[2].colour,
    STYLES[6].colour,
)


def tidy(axes: Axes) -> None:
    """Leave of the frame what is needed."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelsize=9)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_noise() -> None:
    """Gradients of many batches around the full gradient, at two batch sizes."""
    random = np.random.default_rng(0)
    gradient, noise = np.array([1.0, 0.6]), np.array([[4.0, 1.5], [1.5, 3.0]])
    titles = ("batches of 4", "batches of 16: half the spread")
    figure, panels = plt.subplots(
        1, 2, figsize=(8.4, 3.5), sharex=True, sharey=True, layout="constrained"
    )
    for panel, size, colour, title in zip(
        panels, (4, 16), (KEPT, RULE), titles, strict=True
    ):
        batches = random.multivariate_normal(gradient, noise / size, 300)
        panel.scatter(*batches.T, s=9, color=colour, alpha=0.35, linewidths=0)
        panel.annotate(
            "",
            gradient,
            (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": WRONG, "lw": 2.2},
        )
        panel.set_title(
            title, fontsize=11, loc="left", color=colour, fontweight="bold"
        )
        panel.set_aspect("equal")
        tidy(panel)
    panels[0].text(
        -2.1, -2.2, "dots: gradients of single batches", color=SOFT, fontsize=9
    )
    panels[1].text(
        1.0, -2.2, "arrow: that of all data", color=WRONG, fontsize=9
    )
    panels[0].set(xlim=(-2.3, 4.2), ylim=(-2.4, 3.0))
    figure.savefig(HERE / "idea-noise.png", dpi=150)


def walk(
    eta: float, size: int, samples: int, drift: float, runs: int
) -> np.ndarray:
    """Walk as Adam does where noise dominates: eta times the gradient of a batch over the size of its noise."""
    random = np.random.default_rng(1)
    spread = size**-0.5
    steps = (
        eta
        * (drift + spread * random.standard_normal((runs, samples // size)))
        / spread
    )
    return np.cumsum(steps, axis=1)


def draw_steps() -> None:
    """Where the runs are at equal samples seen, for three learning rates at four times the batch."""
    samples, eta, drift = 4096, 0.01, 0.1
    figure, panels = plt.subplots(
        1,
        3,
        figsize=(10.2, 3.4),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    cases = (
        (1, "learning rate kept", OTHER),
        (2, "times the square root of 4", RULE),
        (4, "times 4", WRONG),
    )
    for panel, (factor, title, colour) in zip(panels, cases, strict=True):
        for lr, size, shade, line in (
            (factor * eta, 16, colour, "-"),
            (eta, 4, KEPT, (0, (4, 2))),
        ):
            path = walk(lr, size, samples, drift, 4000)
            x = np.arange(1, path.shape[1] + 1) * size
            low, middle, high = np.quantile(path, (0.05, 0.5, 0.95), axis=0)
            if size == 16:
                panel.fill_between(
                    x, low, high, color=shade, alpha=0.22, linewidth=0
                )
            for line_of, width in ((low, 1.0), (middle, 2.0), (high, 1.0)):
                panel.plot(
                    x, line_of, color=shade, linewidth=width, linestyle=line
                )
        panel.set_title(
            title, fontsize=11, loc="left", color=colour, fontweight="bold"
        )
        panel.set_xlabel("samples seen", fontsize=9, color=SOFT)
        panel.set_xticks([0, 2000, 4000], ["0", "2,000", "4,000"])
        tidy(panel)
    panels[0].set_ylabel("a parameter", fontsize=9, color=SOFT)
    panels[0].text(
        120,
        5.0,
        "dashed: the small batch\nlines: middle, and where 90 % of runs are",
        fontsize=8.5,
        color=SOFT,
    )
    panels[0].set_ylim(-0.4, 6)
    figure.savefig(HERE / "idea-steps.png", dpi=150)


def draw_memory() -> None:
    """How far back the average of Adam's second moment reaches, in samples."""
    figure, panel = plt.subplots(figsize=(7.6, 3.0), layout="constrained")
    back = np.linspace(0, 3_000_000, 400)
    lines = (
        ("batch 256, beta2 = .999", 256, 0.999, KEPT, (0, (4, 2)), 2.6),
        ("batch 1,024, beta2 = .996: converted", 1024, 0.996, RULE, "-", 1.8),
        ("batch 1,024, beta2 = .999: left alone", 1024, 0.999, WRONG, "-", 1.8),
    )
    for label, size, beta, colour, line, width in lines:
        panel.plot(
            back,
            beta ** (back / size),
            color=colour,
            linestyle=line,
            linewidth=width,
            label=label,
        )
    panel.legend(frameon=False, fontsize=9.5, labelcolor="linecolor")
    panel.set_xlabel("samples ago", fontsize=9, color=SOFT)
    panel.set_ylabel("what is remembered", fontsize=9, color=SOFT)
    panel.set_xticks(
        [0, 1e6, 2e6, 3e6], ["now", "1 million", "2 million", "3 million"]
    )
    panel.set_yticks([0, 0.5, 1], ["nothing", "half", "all"])
    panel.set_ylim(0, 1.02)
    panel.set_xlim(0, 3_000_000)
    tidy(panel)
    figure.savefig(HERE / "idea-memory.png", dpi=150)


if __name__ == "__main__":
    draw_noise()
    draw_steps()
    draw_memory()
