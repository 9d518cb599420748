"""What a run comes to against a number that was tried in several sizes: learning rates, a parameter of a rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rootscale.format import show
from rootscale.paper.entries import Entry
from rootscale.paper.figures.canvas import finished, new_figure, save
from rootscale.paper.shown import Sweep
from rootscale.report.plotting import LineEnd, few_ticks, label_ends
from rootscale.report.styles import SOFT, STRIP, style_of

__all__ = ["draw_sweep"]

#: How far to the right of the largest number infinity is drawn, as a factor.
BEYOND = 3.0
#: The least distance of two numbers that are written below the axis, as a share of it.
NARROW = 0.08


def draw_sweep(entry: Entry, path: Path) -> None:
    """Draw a line for each series over the numbers that were tried, with error bars where there are some."""
    shown, finals = entry.experiment.shown, entry.finals
    assert shown.sweep is not None
    assert shown.headline is not None
    sweep = shown.sweep(finals)
    seeds = max(final.seeds for final in finals)
    note = f"{entry.title}. " + (
        f"{seeds} seeds; bars: ± two standard errors."
        if seeds > 1
        else "One seed: what a rerun would change is not known."
    )
    figure = new_figure(3.9, shown.headline(finals), note)
    axis = figure.subplots()
    axis.set_title(sweep.value, loc="left", fontsize=10)
    axis.set_xlabel(sweep.axis)
    axis.set_xscale("log")
    if sweep.null is not None:
        axis.axhspan(*sweep.null, color=STRIP, alpha=0.2, linewidth=0)
        axis.axhline(0, color=style_of(0).colour, linewidth=1.4)
    numbers = sorted({point.number for point in sweep.points})
    largest = max(number for number in numbers if math.isfinite(number))
    at = {number: number if math.isfinite(number) else BEYOND * largest for number in numbers}
    ends = [_draw_series(axis, i + 1, name, sweep, at) for i, name in enumerate(sweep.series)]
    for number, text in sweep.marks.items():
        _mark(axis, number, text)
    few_ticks(axis)
    named = _apart(at)
    axis.set_xticks(list(named.values()), [show(number) if math.isfinite(number) else "∞" for number in named])
    axis.minorticks_off()
    finished((axis,))
    label_ends(axis, ends)
    save(figure, path)


def _draw_series(axis: Any, number: int, name: str, sweep: Sweep, at: dict[float, float]) -> LineEnd:
    """Draw a series, with a ring around its best point, and return where its name belongs."""
    points = sorted((point for point in sweep.points if point.series == name), key=lambda point: point.number)
    colour, x = style_of(number).colour, [at[point.number] for point in points]
    errors = [2 * p.error for p in points if p.error is not None]
    errors = errors if len(errors) == len(points) else []
    axis.errorbar(
        x, [p.value for p in points], yerr=errors or None, color=colour, marker="o", markersize=5, linewidth=1.8
    )
    best = sweep.best(name)
    axis.plot(at[best.number], best.value, "o", markersize=12, markerfacecolor="none", markeredgecolor=colour)
    return LineEnd(x[-1], points[-1].value, name, colour)


def _apart(at: dict[float, float]) -> dict[float, float]:
    """Return the numbers that can be written below the axis, each as far from the one before as its text is wide."""
    reach, found = math.log(max(at.values()) / min(at.values())), dict[float, float]()
    for number, place in at.items():
        last = next(reversed(found.values()), 0.0)
        if not last or math.log(place / last) > NARROW * reach:
            found[number] = place
    return found


def _mark(axis: Any, number: float, text: str) -> None:
    axis.axvline(number, color=SOFT, linestyle=":", linewidth=1.4)
    axis.annotate(
        text, (number, 1), xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points",
        fontsize=9, color=SOFT, va="top",
    )  # fmt: skip
