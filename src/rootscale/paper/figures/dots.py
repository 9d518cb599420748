"""Final values as dots with intervals: ablations, and factors changed one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.paper.entries import Entry
from rootscale.paper.figures.canvas import finished, new_figure, save
from rootscale.paper.shown import Dot
from rootscale.report.plotting import few_ticks
from rootscale.report.styles import SOFT, STRIP, style_of

__all__ = ["draw_dots"]

#: Letters of rows and series.
TEXT = 10.0


@dataclass(frozen=True)
class _Rows:
    """The dots of a figure, with their rows from above and the series of each row."""

    dots: Sequence[Dot]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(dot.row for dot in self.dots))

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(dot.series for dot in self.dots))

    def place(self, dot: Dot) -> tuple[float, str]:
        """Return the height of a dot, and its colour."""
        number = self.series.index(dot.series)
        return self.rows.index(dot.row) + 0.24 * (number - (len(self.series) - 1) / 2), style_of(number + 1).colour


def draw_dots(entry: Entry, path: Path) -> None:
    """Draw final test accuracies less their bases', a row for each kind of run; and largest gaps, where told."""
    shown, finals = entry.experiment.shown, entry.finals
    assert shown.dots is not None
    assert shown.headline is not None
    table = _Rows(list(shown.dots(finals)))
    error = "twice the seeds' standard deviation" if finals[0].seeds == 1 else "two standard errors over seeds"
    seeds = "One seed" if finals[0].seeds == 1 else f"{finals[0].seeds} seeds"
    title = entry.title.replace("v_k", "$v_k$").replace("v_{k+1}", "$v_{k+1}$")
    note = f"{title}, {entry.record['options']['epochs']:g} epochs. {seeds}; bars: ± {error}."
    figure = new_figure(1.9 + 0.38 * len(table.rows), shown.headline(finals), note)
    tracked = any(dot.curve is not None for dot in table.dots)
    axes = figure.subplots(1, 1 + tracked, squeeze=False, sharey=True, width_ratios=(3, 2)[: 1 + tracked])[0]
    _draw_ends(axes[0], table, shown.limit)
    if tracked:
        _draw_tracked(axes[1], table)
    finished(axes)
    for axis in axes:
        axis.tick_params(axis="y", length=0, labelsize=TEXT, labelcolor=style_of(0).colour)
        axis.grid(visible=False, axis="x")
        axis.spines["left"].set_visible(False)
    _name_series(axes[0], table)
    save(figure, path)


def _draw_ends(axis: Any, table: _Rows, limit: float | None) -> None:
    if limit is not None:
        axis.axvspan(-100 * limit, 100 * limit, color=STRIP, alpha=0.13, linewidth=0)
        axis.annotate(
            f"the paper's ± {100 * limit:g}", (0, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
            textcoords="offset points", ha="center", fontsize=9, color=SOFT,
        )  # fmt: skip
    axis.axvline(0, color=style_of(0).colour, linewidth=1.4)
    for dot in table.dots:
        y, colour = table.place(dot)
        if dot.end.gap is None:
            axis.annotate("diverged", (0, y), xycoords=("axes fraction", "data"), color=colour, fontsize=9, va="center")
            continue
        error = None if dot.end.gap_se is None else 200 * dot.end.gap_se
        axis.errorbar(100 * dot.end.gap, y, xerr=error, fmt="o", color=colour, markersize=6, elinewidth=1.6)
    few_ticks(axis, 7)
    axis.set_yticks(range(len(table.rows)), table.rows)
    axis.set_ylim(len(table.rows) - 0.4, -0.6)
    low, high = axis.get_xlim()
    axis.set_xlim(low - 0.03 * (high - low), max(high, 0.06 * (high - low)))
    axis.set_xlabel("final test accuracy less that of B = 256, points")


def _draw_tracked(axis: Any, table: _Rows) -> None:
    """Draw the largest gaps of the train loss, closest to the base at the left."""
    for dot in table.dots:
        y, colour = table.place(dot)
        if dot.curve is not None:
            axis.plot(100 * abs(dot.curve.gap), y, "o", color=colour, markersize=6)
    axis.set_xscale("log")
    axis.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    axis.minorticks_off()
    axis.tick_params(labelleft=False)
    axis.set_xlabel("largest gap of the train loss, % of its range")


def _name_series(axis: Any, table: _Rows) -> None:
    """Write the names of the series above the panel, each in its colour."""
    at = 0.0
    for number, name in enumerate(table.series):
        axis.annotate(
            f"● {name}", (0, 1), xycoords="axes fraction", xytext=(at, 4), textcoords="offset points",
            color=style_of(number + 1).colour, fontsize=TEXT, fontweight="bold", va="bottom",
        )  # fmt: skip
        at += 0.75 * TEXT * (len(name) + 3)
