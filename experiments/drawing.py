"""The figures of studies, in three kinds: curves over the samples, dots for each row, and a sweep of a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.format import typeset
from rootscale.lab import Result, Table
from rootscale.report.plotting import LineEnd, few_ticks, label_ends, need_matplotlib, plain_axes, save_figure, symbols
from rootscale.report.styles import style_of

__all__ = ["Figure", "curves", "dots", "save", "sweep"]

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
