"""Figures of trajectories and of weak errors, as PNG; nothing is computed here but means and quantiles.

matplotlib is an extra (``pip install 'rootscale[plot]'``) and is imported when a figure is drawn.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.report.plotting import LineEnd, label_ends, need_matplotlib, plain_axes, save_figure, symbols
from rootscale.report.styles import SOFT, line_styles
from rootscale.trajectory import Trajectory

#: Test functions beside each other, and the inches of a panel: a page of 900 pixels shows them in full.
COLUMNS, PANEL = 3, (3.0, 2.2)


def _figure(functions: int) -> tuple[Any, Any]:
    """Return a figure with two panels above each other for every test function, and all its axes."""
    columns = min(COLUMNS, functions)
    rows = 2 * math.ceil(functions / columns)
    width, height = PANEL
    figure = need_matplotlib().figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    plain_axes(axes.flat)
    for axis in axes.flat:
        axis.tick_params(labelsize=8)
    for above, below in list(_pairs(axes))[functions:]:
        above.set_axis_off()
        below.set_axis_off()
    return figure, axes


def _pairs(axes: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the two panels of each test function."""
    for row in range(0, len(axes), 2):
        yield from zip(axes[row], axes[row + 1], strict=True)


def _save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write the figure, whole or not at all."""
    path = Path(path)
    if path.suffix != ".png":
        raise ValueError(f"figures are saved as .png, got {path.name!r}; use {path.stem + '.png'!r}")
    return save_figure(figure, path, dpi=150)


#: How words are written that the program prints as users type them.
NAMES = {"sgd": "SGD", "rmsprop": "RMSprop", "adam": "Adam", "signsgd": "SignSGD", "gaussian": "Gaussian"}


def _named(title: str) -> str:
    """Return the title of a study as a figure has it."""
    return symbols(re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), title))


def _spread(trajectory: Trajectory, name: str) -> tuple[Any, Any, Any, Any, Any]:
    """Return the mean, its 95 % band, and the 10 % and 90 % quantiles over replicas (NaN where none were kept)."""
    mean, se = trajectory[name]
    if name not in trajectory.values:
        return mean, mean - 1.96 * se, mean + 1.96 * se, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    # Only replicas that every test function is finite for, as in the mean.
    lost = trajectory.lost
    kept = np.where(lost, np.nan, trajectory.values[name])
    gone = lost.all(0)
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    low[~gone], high[~gone] = np.nanquantile(kept[:, ~gone], (0.1, 0.9), axis=0)
    return mean, mean - 1.96 * se, mean + 1.96 * se, low, high


def draw_trajectories(
    trajectories: Mapping[str, Trajectory],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    time: str = "continuous time $t$",
    scale: float = 1.0,
    steps: tuple[str, float] | None = None,
) -> Path:
    """Draw two panels for each test function: above, mean and spread of every process; below, differences to the first.

    Args:
        trajectories: by label; all at the same times and with the same test functions. Differences are to the first.
        path: the PNG to write.
        title: above everything.
        labels: of the test functions, where their names will not do.
        time: the label of the time axis.
        scale: times are divided by it.
        steps: ``(label, time of a step)`` for a second time axis on top, in steps.
    """
    base_label, base = next(iter(trajectories.items()))
    figure, axes = _figure(len(base.names))
    for (above, below), name in zip(_pairs(axes), base.names, strict=False):
        for (label, trajectory), style in zip(trajectories.items(), line_styles(len(trajectories)), strict=True):
            _draw_process((above, below), trajectory, base, name, (label, trajectory.times / scale, style))
        above.set_title((labels or {}).get(name, symbols(name)), fontsize=10)
        below.set_xlabel(time, fontsize=9)
        if steps is not None:
            label, length = steps
            top = above.secondary_xaxis(
                "top", functions=(lambda t, s=scale / length: t * s, lambda k, s=scale / length: k / s)
            )
            top.tick_params(labelsize=7, colors=SOFT)
            top.set_xlabel(label, fontsize=7, color=SOFT)
    replicas = min(trajectory.replicas for trajectory in trajectories.values())
    spread = "10–90 % of replicas" if base.values else "95 % of the mean"
    for above, below in axes[:, 0].reshape(-1, 2):
        above.set_ylabel(f"mean, band:\n{spread}", fontsize=9)
        below.set_ylabel(_named(f"minus {base_label}\nband: 95 %, {replicas:,} replicas"), fontsize=9)
    lines, texts = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, map(_named, texts), loc="outside lower center", ncols=len(texts), frameon=False, fontsize=9)
    if title:
        figure.suptitle(_named(title), fontsize=12, fontweight="bold", x=0.012, ha="left")
    return _save(figure, path)


def _draw_process(axes: Any, trajectory: Trajectory, base: Trajectory, name: str, look: tuple[str, Any, Any]) -> None:
    """Draw mean and spread of a process above, and below its difference to the base."""
    (above, below), (label, t, (colour, dash)) = axes, look
    mean, low95, high95, low, high = _spread(trajectory, name)
    lost = int(trajectory.diverged[-1])
    label = f"{label} ({lost} of {trajectory.replicas} diverged)" if lost else label
    lower, upper = (low, high) if bool(np.isfinite(low).any()) else (low95, high95)
    above.fill_between(t, lower, upper, color=colour, alpha=0.12, linewidth=0)
    above.plot(t, mean, color=colour, linestyle=dash, linewidth=1.6, label=label)
    reference = base[name]
    if trajectory is base:
        below.axhline(0, color=colour, linewidth=1.2)
        below.fill_between(t, -1.96 * reference.se, 1.96 * reference.se, color=colour, alpha=0.12, linewidth=0)
        return
    gap, half = mean - reference.mean, 1.96 * np.hypot((high95 - mean) / 1.96, reference.se)
    below.fill_between(t, gap - half, gap + half, color=colour, alpha=0.12, linewidth=0)
    below.plot(t, gap, color=colour, linestyle=dash, linewidth=1.4)


def draw_orders(
    errors: Mapping[str, Sequence[tuple[float, float, float]]],
    path: str | os.PathLike[str],
    *,
    fits: Mapping[str, str],
    title: str = "",
    step: str = "$\\eta^2$",
    largest: float = 0.1,
    resolved: float = 5.0,
) -> Path:
    """Draw the size of every weak error over the step, both logarithmic, with bars of 1.96 standard errors.

    Args:
        errors: by test function, rows of ``(h, error, standard error)``.
        path: the PNG to write.
        fits: by test function, the fitted order as text.
        title: above everything.
        step: the label of ``h``.
        largest: points from this ``h`` on were left out of the fits, and are drawn hollow.
        resolved: points below so many standard errors were left out, and are drawn hollow.
    """
    figure = need_matplotlib().figure.Figure(figsize=(9.0, 4.6), layout="constrained", facecolor="white")
    axis = figure.subplots()
    every = sorted({h for rows in errors.values() for h, _, _ in rows})
    levels: list[float] = []
    ends = []
    for (name, rows), (colour, _) in zip(errors.items(), line_styles(len(errors)), strict=True):
        used = [(h, abs(error)) for h, error, se in sorted(rows) if h < largest and abs(error) >= resolved * se]
        axis.plot([h for h, _ in used], [e for _, e in used], color=colour, linewidth=1.6)
        for h, error, se in rows:
            size, bar = abs(error), 1.96 * se
            axis.errorbar(
                [h], [size], yerr=[[min(bar, 0.999 * size)], [bar]], fmt="o", color=colour, markersize=6,
                markerfacecolor=colour if (h, size) in used else "white", elinewidth=1, capsize=2,
            )  # fmt: skip
        h, error, _ = max(rows)
        ends.append(LineEnd(h, abs(error), f"{symbols(name)}: {fits[name]}", colour))
        levels.extend(e / h for h, e in used)
    if levels:
        # A line of slope 1 below everything that was resolved, to compare with; what is far below it is cut off.
        line = [0.5 * min(levels) * h for h in every]
        axis.plot(every, line, color=SOFT, linestyle=":", linewidth=1.4)
        axis.set_ylim(0.6 * line[0], 1.8 * max(abs(error) for rows in errors.values() for _, error, _ in rows))
        ends.append(LineEnd(every[-1], line[-1], "order 1", SOFT))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(every, [f"1/{round(1 / h)}" if math.isclose(1 / h, round(1 / h)) else f"{h:.3g}" for h in every])
    axis.minorticks_off()
    axis.tick_params(labelsize=10)
    plain_axes([axis])
    axis.set_xlabel(step, fontsize=11)
    axis.set_title(
        "size of the weak error, with the order of its fall; bars: 95 %; hollow: not in the fit",
        fontsize=10,
        loc="left",
    )
    if title:
        figure.suptitle(_named(title), fontsize=12, fontweight="bold", x=0.012, ha="left")
    label_ends(axis, ends, 10.0, 12.0)
    return _save(figure, path)
