"""The figures of studies: curves over the samples, dots for each row, a sweep of a number, a table in colours, bars."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rootscale.format import typeset
from rootscale.lab import Result, Table
from rootscale.report.plotting import LineEnd, few_ticks, label_ends, need_matplotlib, plain_axes, save_figure, symbols
from rootscale.report.styles import style_of

__all__ = ["Bar", "Cell", "Figure", "bars", "curves", "dots", "heat", "save", "sweep"]

#: Of matplotlib, which is an extra.
Figure = Any
#: In inches: 100 pixels each where a page shows a figure 900 pixels wide.
WIDTH = 9.0
DPI = 120
#: Most curves in a figure: the base, and those that are the nearest to it and the farthest from it.
MOST = 7


def curves(table: Table, function: str = "", labels: Sequence[str] = (), title: str = "") -> Figure:
    """Return the mean curves of arms with two standard errors.

    Args:
        table: the stored runs.
        function: the test function; empty is the first on which the verdict rests.
        labels: of the arms; all, or as many as can be told apart, where empty.
        title: of the figure; empty is the claim.
    """
    if not function:
        names = table.base.trajectory.names
        known = [*(table.judge.decide_by or ()), "test loss", "train loss", *names]
        function = next(name for name in known if name in names)
    arms = [table.base, *(table.others if labels else _ends(table.others))]
    arms = [arm for arm in arms if not labels or arm.label in labels]
    figure, axis = _new(4.2, title or str(table.made.get("claim", table.task)))
    lines = []
    for i, arm in enumerate(arms):
        runs, colour = arm.trajectory, style_of(i).colour
        values = runs.values.get(function)
        if values is None:
            continue
        x = np.asarray(runs.meta.get("samples", runs.times), np.float64)
        alive = np.isfinite(values).sum(0)
        x, values = x[alive > 0], values[:, alive > 0]
        mean = np.nanmean(values, 0)
        if values.shape[0] > 1:
            error = 2 * np.nanstd(values, 0, ddof=1) / np.sqrt(np.maximum(alive[alive > 0], 1))
            axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
        axis.plot(x, mean, color=colour, linewidth=1.6)
        lines.append(LineEnd(float(x[-1]), float(mean[-1]), symbols(arm.label), colour))
    axis.set(xlabel="samples seen", ylabel=function)
    few_ticks(axis)
    label_ends(axis, lines)
    return figure


def _ends(arms: Sequence[Result]) -> list[Result]:
    """Return the arms, or the nearest and the farthest of many."""
    if len(arms) < MOST:
        return list(arms)

    def gap(arm: Result) -> float:
        worst = None if arm.comparison is None else arm.comparison.worst
        return float("inf") if worst is None else abs(float(np.nan_to_num(worst.judged.gap, nan=np.inf)))

    ordered = sorted(arms, key=gap)
    half = (MOST - 1) // 2
    return [*ordered[:half], *ordered[-half:]]


def dots(rows: Mapping[str, Mapping[str, tuple[float, float]]], xlabel: str, title: str) -> Figure:
    """Return a dot with two standard errors for each row and series.

    Args:
        rows: by the name of a row and that of a series: the number and its standard error, 0 where it is not known.
        xlabel: what the number is.
        title: of the figure.
    """
    figure, axis = _new(1.2 + 0.38 * len(rows), title)
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    for i, name in enumerate(series):
        found = [(y, *row[name]) for y, row in enumerate(rows.values()) if name in row]
        y, x, error = np.array(found, np.float64).T
        shift = 0.16 * (i - (len(series) - 1) / 2)
        axis.errorbar(x, y + shift, xerr=2 * error, fmt="o", color=style_of(i + 1).colour, label=symbols(name))
    axis.axvline(0, color="0.6", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [symbols(name) for name in rows])
    axis.invert_yaxis()
    axis.set_xlabel(xlabel)
    if len(series) > 1:
        axis.legend(frameon=False)
    return figure


def sweep(points: Iterable[tuple[str, float, float, float]], xlabel: str, ylabel: str, title: str) -> Figure:
    """Return a line for each series over a number that was tried, on a logarithmic axis.

    Args:
        points: series, number, value and its standard error.
        xlabel, ylabel, title: of the figure.
    """
    figure, axis = _new(4.0, title)
    every = list(points)
    for i, name in enumerate(dict.fromkeys(point[0] for point in every)):
        found = sorted(point[1:] for point in every if point[0] == name)
        x, y, error = np.array(found, np.float64).T
        axis.errorbar(x, y, yerr=2 * error, marker="o", color=style_of(i + 1).colour, label=symbols(name))
    axis.set_xscale("log")
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.legend(frameon=False)
    return figure


class Cell(NamedTuple):
    """A gap as a share of a range, infinite where the runs diverged, and whether the verdict is that it is the same."""

    gap: float
    same: bool


#: The colour of what is the same, and those of gaps from a share of the range on.
SAME, GAPS = "#a9ddcf", ((0.0, "#fdf3d7"), (0.1, "#f6d58a"), (0.2, "#eda65d"), (0.5, "#d96a35"), (1.0, "#a93a14"))


def heat(rows: Mapping[str, Mapping[str, Cell]], columns: Sequence[str], title: str, note: str) -> Figure:
    """Return a table whose colours say how far off each cell is.

    Args:
        rows: by the name of a row and that of a column.
        columns: in their order.
        title, note: above and below.
    """
    height = 1.6 + 0.26 * len(rows)
    figure, axis = _new(height, title)
    for y, (label, row) in enumerate(rows.items()):
        axis.text(-0.1, y, symbols(label), ha="right", va="center", fontsize=8.5)
        for x, column in enumerate(columns):
            if column in row:
                _colour(axis, x, y, row[column])
    for x, column in enumerate(columns):
        axis.text(x + 0.5, -0.75, textwrap.fill(symbols(column), 10), ha="center", va="bottom", fontsize=8.5)
    axis.text(-4, len(rows) - 0.2, note, ha="left", va="top", fontsize=8, color="0.4")
    axis.set(xlim=(-0.1, len(columns)), ylim=(len(rows), -1))
    axis.axis("off")
    return figure


def _colour(axis: Any, x: int, y: int, cell: Cell) -> None:
    """Draw a cell of the table."""
    size = abs(cell.gap)
    colour = SAME if cell.same else [colour for least, colour in GAPS if size >= least][-1]
    axis.barh(y, 0.94, left=x + 0.03, height=0.9, color=colour)
    text = "> 1,000" if size > 10 else f"{100 * cell.gap:.{1 if size < 0.095 else 0}f}".replace("-", "\N{MINUS SIGN}")
    dark = not cell.same and size >= 0.5
    weight = "bold" if cell.same else "normal"
    axis.text(x + 0.5, y, text, ha="center", va="center", fontsize=8.5, color="w" if dark else "k", fontweight=weight)


class Bar(NamedTuple):
    """A bar: its label, its length, what stands beside it, and its colour, by what it stands for."""

    label: str
    length: float
    note: str
    kind: str


#: Colours of verdicts, of a base, and of what was not judged.
KINDS = {"base": "#8a9099", "same": "#009e73", "undecided": "#d98e00", "different": "#d55e00", "not judged": "#7d9cc0"}


def bars(rows: Sequence[Bar], xlabel: str, title: str) -> Figure:
    """Return horizontal bars with their lengths, notes beside them, and a legend of their kinds."""
    figure, axis = _new(1.4 + 0.5 * len(rows), title)
    longest = max(row.length for row in rows)
    for y, row in enumerate(rows):
        axis.barh(y, row.length, height=0.68, color=KINDS[row.kind])
        axis.text(row.length - 0.01 * longest, y, f"{row.length:.0f} s", ha="right", va="center", color="w")
        axis.text(row.length + 0.012 * longest, y, symbols(row.note), ha="left", va="center", fontsize=8.5)
    axis.set_yticks(range(len(rows)), [symbols(row.label) for row in rows], fontsize=9)
    axis.set(xlim=(0, 1.7 * longest), xlabel=xlabel)
    axis.invert_yaxis()
    axis.grid(visible=False)
    used = [kind for kind in KINDS if any(row.kind == kind for row in rows)]
    handles = [need_matplotlib().patches.Patch(color=KINDS[kind]) for kind in used]
    figure.legend(handles, used, loc="outside lower right", ncols=len(used), fontsize=8, frameon=False)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, without a date, so that the same figure gives the same file."""
    return save_figure(figure, path, DPI)


def _new(height: float, title: str) -> tuple[Figure, Any]:
    """Return an empty figure of the common width, and its axes."""
    figure = need_matplotlib().figure.Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    figure.suptitle(typeset(title), x=0.012, ha="left", fontsize=11, fontweight="bold", wrap=True)
    axis = figure.subplots()
    plain_axes([axis])
    return figure, axis
