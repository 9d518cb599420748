"""The figure of the README's first screen: what a change of batch size in mid-run does to the test accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.lab import Result
from rootscale.paper.entries import Entry
from rootscale.paper.figures.canvas import Array, finished, mean_of, new_figure, save, unit_of
from rootscale.paper.finals import ACCURACY
from rootscale.paper.parts import TITLES
from rootscale.report.plotting import LineEnd, few_ticks, label_ends
from rootscale.report.styles import SOFT, WARM, style_of

__all__ = ["draw_switch"]

#: Lines that are drawn, by how their labels end, with what the figure calls them; the others are on the page.
DRAWN = {
    "kept": "kept",
    "everything converted": "everything converted",
    "state zeroed": "optimizer state zeroed",
    "learning rate only": "learning rate only",
}


def draw_switch(entry: Entry, path: Path) -> None:
    """Draw the test accuracy around and after the switch."""
    check, options, headline = entry.check, entry.record["options"], entry.experiment.shown.headline
    epoch, time = unit_of(entry.record, check)
    sizes = next((arm.label.rpartition(", ")[0] for arm in check.others if "→" in arm.label), "")
    seeds = max(final.seeds for final in entry.finals)
    what = "generated images" if options["smoke"] else "CIFAR-10"
    note = f"{TITLES[options['model']]} with Adam on {what}, {sizes}: mean of {seeds} seeds, bands their range."
    figure = new_figure(4.1, entry.title if headline is None else headline(entry.finals), note)
    axis = figure.subplots()
    if check.warm is not None:
        axis.plot(np.array(check.warm.meta["samples"]) / epoch, 100 * mean_of(check.warm, ACCURACY), color=WARM, lw=2)
    ends, levels = [], []
    for i, arm, text in _drawn(entry):
        x, y, colour = np.array(arm.trajectory.meta["samples"]) / epoch, _percent(arm), style_of(i).colour
        axis.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
        mean = 100 * mean_of(arm.trajectory, ACCURACY)
        axis.plot(x, mean, color=colour, linewidth=2.0 if i else 3.2, alpha=1.0 if i else 0.6)
        levels.append(mean)
        if np.isfinite(mean[-1]):
            ends.append(LineEnd(x[-1], mean[-1], f"{mean[-1]:.1f} %  {text}", colour))
    every, at = np.concatenate(levels), check.switch_at / epoch
    low, high = np.nanquantile(every, 0.04), np.nanmax(every)
    axis.set_ylim(low - 0.25 * (high - low), high + 0.08 * (high - low))
    last = check.base.trajectory.meta["samples"][-1] / epoch
    axis.set_xlim(max(0.0, at - 0.3 * (last - at)), last)
    _mark(axis, at, sizes)
    axis.set_title("test accuracy, %", loc="left", fontsize=10)
    axis.set_xlabel(time)
    few_ticks(axis, up=6)
    finished([axis])
    label_ends(axis, ends, 10.0)
    save(figure, path)


def _drawn(entry: Entry) -> Iterator[tuple[int, Result, str]]:
    """Yield the lines that are drawn: their number among all, which has the colour, and what they are called."""
    for i, arm in enumerate((entry.check.base, *entry.check.others)):
        text = next((text for end, text in DRAWN.items() if arm.label.endswith(end)), None)
        if text is not None:
            yield i, arm, text


def _percent(arm: Result) -> Array:
    return 100 * np.where(arm.trajectory.lost, np.nan, arm.trajectory.values[ACCURACY])


def _mark(axis: Any, at: float, sizes: str) -> None:
    """Mark where the batch size changes, with the sizes before and after."""
    axis.axvline(at, color=SOFT, linewidth=1, linestyle=":")
    for text, side in zip(sizes.split(" → "), (-1, 1), strict=False):
        axis.annotate(
            f"B = {text}", (at, 0.94), xycoords=("data", "axes fraction"), xytext=(6 * side, 0), fontsize=10,
            color=SOFT, textcoords="offset points", ha="left" if side > 0 else "right",
        )  # fmt: skip
