"""What the figures of results/ have in common: their width, title and note, the axis of samples, and short labels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootscale.format import typeset
from rootscale.lab import Table
from rootscale.report.plotting import need_matplotlib, plain_axes, save_figure
from rootscale.report.styles import SOFT
from rootscale.trajectory import Trajectory

__all__ = ["WIDTH", "balanced", "finished", "mean_of", "new_figure", "save", "short_labels", "smoothed", "unit_of"]

Array = NDArray[np.float64]

#: In inches: 100 pixels each where a page shows a figure 900 pixels wide, so that 10 points are 14 pixels.
WIDTH = 9.0
DPI = 180
TITLE, NOTE, TICKS = 12.0, 8.5, 9.0
#: Signs of a title in one line.
LINE = 90


def new_figure(height: float, title: str, note: str = "") -> Any:
    """Return an empty figure of the common width, with the finding above it and a note below."""
    figure = need_matplotlib().figure.Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
    figure.suptitle(balanced(typeset(title), LINE), x=0.012, ha="left", fontsize=TITLE, fontweight="bold")
    if note:
        figure.supxlabel(
            textwrap.fill(typeset(note), 132), x=0.012, ha="left", fontsize=NOTE, color=SOFT, linespacing=1.35
        )
    return figure


def balanced(text: str, width: int) -> str:
    r"""Return a text in as few lines as it takes, of about equal lengths.

    >>> balanced("one two three four five six", 20)
    'one two three\nfour five six'
    """
    lines = math.ceil(len(text) / width)
    for narrow in range(math.ceil(len(text) / lines), width + 1):
        found = textwrap.wrap(text, narrow)
        if len(found) <= lines:
            return "\n".join(found)
    return textwrap.fill(text, width)


def finished(axes: Sequence[Any]) -> None:
    """Make axes plain, with letters that can be read."""
    plain_axes(axes)
    for axis in axes:
        axis.tick_params(which="both", labelsize=TICKS, color=SOFT, labelcolor=SOFT)
        axis.spines[["left", "bottom"]].set_color(SOFT)
        axis.xaxis.label.set(fontsize=TICKS, color=SOFT)


def save(figure: Any, path: Path) -> None:
    """Write a figure."""
    save_figure(figure, path, DPI)


def unit_of(record: Mapping[str, Any], check: Table) -> tuple[int, str]:
    """Return how many samples are one on the axis of a figure, and its name: epochs of CIFAR-10, or round numbers."""
    samples = check.base.trajectory.meta["samples"][-1]
    if record["name"].startswith("cifar10"):
        return (512 if record["options"]["smoke"] else 50_000), "epochs"
    return (1_000_000, "million samples") if samples > 2_000_000 else (1000, "thousand samples")


def mean_of(trajectory: Trajectory, name: str) -> Array:
    """Return the mean over the seeds that have not diverged; NaN where all have."""
    values = np.where(trajectory.lost, np.nan, trajectory.values[name])
    mean = np.full(values.shape[1], np.nan)
    alive = np.isfinite(values).any(0)
    mean[alive] = np.nanmean(values[:, alive], 0)
    return mean


def smoothed(curve: Array, window: int) -> Array:
    """Return the running mean over so many points, an odd number; over fewer at the ends, to stay in the middle.

    >>> smoothed(np.array([0.0, 3.0, 0.0, 3.0, 9.0]), 3)
    array([0., 1., 2., 4., 9.])
    """
    half = window // 2
    reach = [min(half, i, len(curve) - 1 - i) for i in range(len(curve))]
    return np.array([curve[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def short_labels(labels: Sequence[str]) -> list[str]:
    """Return labels without the beginning that all of them share.

    >>> short_labels(["8 → 128, everything converted", "8 → 128, learning rate only"])
    ['everything converted', 'learning rate only']
    >>> short_labels(["B = 32", "B = 128"])
    ['B = 32', 'B = 128']
    """
    first = {label.partition(", ")[0] for label in labels if ", " in label}
    if len(first) == 1 and len(labels) > 1:
        (prefix,) = first
        if prefix not in labels:
            return [label.removeprefix(f"{prefix}, ") for label in labels]
    return list(labels)
