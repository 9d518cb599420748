"""Draw the pictures of docs/idea.md, by day and by night: python docs/images/idea.py

Each is a small simulation, not a sketch: the numbers in it are drawn with the seed below.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
#: Colours of the small batch, the rule, something else, what is wrong, words and the grid.
GROUNDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "light": {
            "kept": "#30363d", "rule": "#0072b2", "other": "#a86c00", "wrong": "#c04a00", "soft": "#5a626c",
            "grid": "#d5d9de",
        },
        "dark": {
            "kept": "#d5dae0", "rule": "#56b4e9", "other": "#f0b040", "wrong": "#ff9d5c", "soft": "#a9b1bb",
            "grid": "#454b54",
        },
    }
)  # fmt: skip
Colours = Mapping[str, str]


def tidy(axes: Axes, colours: Colours) -> None:
    """Leave of the frame what is needed."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours["soft"])
    axes.tick_params(colors=colours["soft"])
    axes.xaxis.label.set_color(colours["soft"])
    axes.yaxis.label.set_color(colours["soft"])
    axes.grid(color=colours["grid"], linewidth=0.6)
    axes.set_axisbelow(True)


def draw_noise(colours: Colours) -> Figure:
    """Gradients of many batches around the full gradient, at two batch sizes."""
    random = np.random.default_rng(0)
    gradient = np.array([1.0, 0.6])
    noise = np.array([[4.0, 1.5], [1.5, 3.0]])
    titles = ("batches of 4", "batches of 16: half")
    figure, panels = plt.subplots(
        1, 2, figsize=(7.2, 3.3), sharex=True, sharey=True
    )
    shades = (colours["kept"], colours["rule"])
    for panel, size, colour, title in zip(
        panels, (4, 16), shades, titles, strict=True
    ):
        batches = random.multivariate_normal(gradient, noise / size, 300)
        panel.scatter(*batches.T, s=9, color=colour, alpha=0.4, linewidths=0)
        arrow = {"arrowstyle": "-|>", "color": colours["wrong"], "lw": 2.2}
        panel.annotate("", gradient, (0, 0), arrowprops=arrow)
        panel.set_title(title, loc="left", color=colour, weight="bold")
        panel.set_aspect("equal")
        tidy(panel, colours)
    panels[0].text(-2.1, -2.2, "dots: single batches", color=colours["soft"])
    panels[1].text(0.4, -2.2, "arrow: all data", color=colours["wrong"])
    panels[0].set(xlim=(-2.3, 4.2), ylim=(-2.4, 3.0))
    return figure


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


def draw_steps(colours: Colours) -> Figure:
    """Where the runs are at equal samples seen, for three learning rates at four times the batch."""
    samples, eta, drift = 4096, 0.01, 0.1
    figure, panels = plt.subplots(
        1, 3, figsize=(7.6, 3.3), sharex=True, sharey=True
    )
    cases = (
        (1, "kept", "other"),
        (2, "times 2", "rule"),
        (4, "times 4", "wrong"),
    )
    for panel, (factor, title, role) in zip(panels, cases, strict=True):
        colour = colours[role]
        lines = (
            (factor * eta, 16, colour, "-"),
            (eta, 4, colours["kept"], (0, (4, 2))),
        )
        for lr, size, shade, line in lines:
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
        panel.set_title(title, loc="left", color=colour, weight="bold")
        panel.set_xlabel("samples seen")
        panel.set_xticks([0, 2000, 4000], ["0", "2,000", "4,000"])
        tidy(panel, colours)
    panels[0].set_ylabel("a parameter")
    panels[0].text(120, 5.5, "dashed: batch of 4", color=colours["soft"])
    panels[0].set_ylim(-0.4, 6)
    return figure


def draw_memory(colours: Colours) -> Figure:
    """How far back the average of Adam's second moment reaches, in samples."""
    figure, panel = plt.subplots(figsize=(6.4, 3.2))
    back = np.linspace(0, 3_000_000, 200)
    lines = (
        ("batch 256, beta2 = .999", 256, 0.999, "kept", (0, (4, 2)), 2.6),
        ("batch 1,024, beta2 = .996: converted", 1024, 0.996, "rule", "-", 1.8),
        (
            "batch 1,024, beta2 = .999: left alone",
            1024,
            0.999,
            "wrong",
            "-",
            1.8,
        ),
    )
    for label, size, beta, role, line, width in lines:
        share = beta ** (back / size)
        panel.plot(
            back,
            share,
            color=colours[role],
            linestyle=line,
            linewidth=width,
            label=label,
        )
    panel.legend(frameon=False, labelcolor="linecolor")
    panel.set_xlabel("samples ago")
    panel.set_ylabel("what is remembered")
    panel.set_xticks(
        [0, 1e6, 2e6, 3e6], ["now", "1 million", "2 million", "3 million"]
    )
    panel.set_yticks([0, 0.5, 1], ["nothing", "half", "all"])
    panel.set_ylim(0, 1.02)
    panel.set_xlim(0, 3_000_000)
    tidy(panel, colours)
    return figure


if __name__ == "__main__":
    plt.rcParams.update(
        {
            "svg.hashsalt": "rootscale",
            "font.size": 12,
            "figure.constrained_layout.use": True,
        }
    )
    drawings = {"noise": draw_noise, "steps": draw_steps, "memory": draw_memory}
    for ground, colours in GROUNDS.items():
        for name, draw in drawings.items():
            draw(colours).savefig(
                HERE / f"idea-{name}-{ground}.svg",
                transparent=True,
                metadata={"Date": None, "Creator": None},
            )
            plt.close("all")
