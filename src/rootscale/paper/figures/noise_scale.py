"""The noise scale along training, drawn as censored above what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.lab import Measure, Result
from rootscale.noise import Dominance, scale_curve
from rootscale.paper.entries import Entry
from rootscale.paper.figures.canvas import Array, finished, new_figure, save, unit_of
from rootscale.report.plotting import LineEnd, few_ticks, label_ends
from rootscale.report.styles import STRIP, style_of

__all__ = ["batch_size", "dominance_of", "draw_noise"]

#: Points in the running median.
WINDOW = 7
#: The noise scale is told up to so many times the samples it was measured on.
BEYOND = 4
LOW = 60.0


def batch_size(arm: Result) -> int:
    """Return the batch size of an arm at its end."""
    return int(arm.the_plan.batch_size.total)


def dominance_of(arm: Result) -> Dominance | None:
    """Return where the noise of an arm's batch size dominates along its own run; None where it was not measured."""
    curve = scale_curve(arm.trajectory)
    return None if curve is None else Dominance(curve, batch_size(arm), Measure.noise_samples)


def _headline(stored: Sequence[Entry]) -> str:
    """Return in which share of the runs the noise dominates, at the first batch size above the base and the largest."""
    shares: dict[int, list[float]] = {}
    for arm in (arm for entry in stored for arm in entry.check.others):
        found = dominance_of(arm)
        if found is not None and found.share is not None:
            shares.setdefault(batch_size(arm), []).extend(100 * share for share in found.share)
    if not shares:
        return "The noise scale along training"
    first, last = min(shares), max(shares)
    small = f"{min(shares[first]):.0f} to {max(shares[first]):.0f} % of a run at B = {first:,}"
    return f"The noise dominates the gradient in {small}, in at most {max(shares[last]):.0f} % at B = {last:,}"


def draw_noise(stored: Sequence[Entry], path: Path) -> None:
    """Draw the noise scale at each batch size, for each net and optimizer."""
    sizes = sorted({batch_size(arm) for entry in stored for arm in (entry.check.base, *entry.check.others)})
    colours = {size: style_of(i).colour for i, size in enumerate(sizes)}  # a size looks the same in all panels
    columns = min(2, len(stored))
    rows, ceiling = -(-len(stored) // columns), BEYOND * Measure.noise_samples
    note = (
        f"Noise scale Tr Σ / |∇f|² in samples, running median over {WINDOW} points. A colour is a batch size: the line "
        "is its run, the dotted level the size itself; noise dominates where the line is above its level. Measured on "
        f"{Measure.noise_samples:,} samples, hence censored in the grey strip: above {ceiling:,}, or no gradient seen."
    )
    figure = new_figure(1.3 + 2.2 * rows, _headline(stored), note)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, entry in zip(axes.flat, stored, strict=False):
        _draw_panel(axis, entry, colours, ceiling)
    for axis in list(axes.flat)[len(stored) :]:
        axis.set_visible(False)
    finished(list(axes.flat))
    for axis in list(axes.flat)[: len(stored)]:
        axis.set_yticks([100, 1000, ceiling], ["100", "1,000", f"> {ceiling:,}"])
        axis.grid(visible=False, axis="x")
        label_ends(axis, [LineEnd(0, size, f"B = {size:,}", colours[size]) for size in sizes], 8.5)
    save(figure, path)


def censored(curve: Array, ceiling: float) -> Array:
    """Return the running median of a noise scale, at the ceiling where it is larger.

    >>> censored(np.array([1.0, 5.0, 2.0, 6.0, 1e12, 1e12, 1e12]), 100.0).round(1)
    array([  3.2,   5. ,   5.5,   6. , 100. , 100. , 100. ])
    """
    half, logs = WINDOW // 2, np.log(curve)
    middle = [float(np.median(logs[max(0, i - half) : i + half + 1])) for i in range(len(logs))]
    return np.array([min(ceiling, math.exp(value)) for value in middle])


def _draw_panel(axis: Any, entry: Entry, colours: dict[int, str], ceiling: float) -> None:
    check, (unit, time) = entry.check, unit_of(entry.record, entry.check)
    top = ceiling * 1.5
    axis.axhspan(ceiling / 1.12, top, color=STRIP, alpha=0.16, linewidth=0)
    for arm in (check.base, *check.others):
        curve = scale_curve(arm.trajectory)
        if curve is None:
            continue
        known = np.isfinite(curve.middle)
        x, y = curve.clock[known] / unit, censored(curve.middle[known], ceiling)
        axis.plot(x, y, color=colours[batch_size(arm)], linewidth=1.8)
    for size, colour in colours.items():
        if size < ceiling:
            axis.axhline(size, color=colour, linewidth=0.9, linestyle=(0, (1, 3)))
    axis.set_yscale("log")
    axis.set_ylim(LOW, top)
    axis.set_xlim(0, check.base.trajectory.meta["samples"][-1] / unit)
    axis.set_title(entry.title.partition(": ")[2].replace(", recipe house", ""), fontsize=10, loc="left")
    axis.set_xlabel(time)
    few_ticks(axis, 5)
