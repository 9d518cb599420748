"""The curves of a check as figures for papers: one for each test function, as PNG and PDF.

matplotlib is an extra (``pip install 'rootscale[plot]'``) and is imported when a figure is drawn.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.compare.result import Result, Table, clock, clock_unit
from rootscale.gap import Gap
from rootscale.noise import NOISE_SCALE, scale_curve
from rootscale.report import words
from rootscale.report.plotting import need_matplotlib, plain_axes, save_figure
from rootscale.report.styles import SOFT, STRIP, WARM, line_styles
from rootscale.trajectory import Trajectory

FORMATS = ("png", "pdf")


def draw_curves(axes: Any, runs: Mapping[str, Trajectory], name: str) -> None:
    """Draw one test function of several sets of runs on axes of yours: the means, and two standard errors around them.

    Args:
        axes: of matplotlib.
        runs: by the labels of the legend; the first is the base, in black.
        name: of the test function.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> draw_curves(axes, {"kept": Trajectory([1, 2], {"loss": [[0.9, 0.7], [0.8, 0.6]]})}, "loss")
    >>> axes.get_ylabel(), [text.get_text() for text in axes.get_legend().get_texts()]
    ('loss', ['kept'])
    """
    if not runs:
        raise ValueError("runs must hold at least one set of runs to draw, got none")
    plain_axes([axes])
    for (label, trajectory), (colour, dash) in zip(runs.items(), line_styles(len(runs)), strict=True):
        _curve(axes, trajectory, name, colour, dash, _text(label))
    first = next(iter(runs.values()))
    axes.set_ylabel(_text(name))
    axes.set_xlabel(words.clock_name(first))
    if clock_unit(first) in ("samples", "tokens"):
        _count_samples(axes, 4)
    axes.legend(frameon=False, fontsize=8, handlelength=2.8)


def draw_figures(check: Table, folder: str | os.PathLike[str], formats: Iterable[str] = FORMATS) -> list[Path]:
    """Draw each test function of a check: the mean curves with bands, and below the gaps against the tolerance.

    After a switch in mid-run only what follows it is drawn (of the noise scale, all).

    Args:
        check: what was found.
        folder: where to write, made if it is missing; a file is called after its test function.
        formats: ``png`` (300 dots per inch) and ``pdf`` (text stays text).

    Returns:
        The files.
    """
    formats = list(dict.fromkeys(formats))
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"figures are made as {' and '.join(FORMATS)}, got {name!r}")
    matplotlib = need_matplotlib()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context({"pdf.fonttype": 42, "font.size": 8, "axes.titlesize": 9, "legend.fontsize": 8}):
        for name, stem in _stems(check.base.trajectory.names).items():
            figure = _figure(matplotlib, check, name)
            written += [save_figure(figure, folder / f"{stem}.{kind}", 300) for kind in formats]
    return written


def _stems(names: Iterable[str]) -> dict[str, str]:
    """Return file names: letters, digits and dashes, each once."""
    stems: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "function"
        stem, count = plain, 1
        while stem in stems.values():
            count += 1
            stem = f"{plain}-{count}"
        stems[name] = stem
    return stems


def _text(text: str) -> str:
    """Return users' text as it is; matplotlib would read mathematics between dollars, and hide what begins with _."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _figure(matplotlib: Any, check: Table, name: str) -> Any:
    noise = name == NOISE_SCALE
    everyone = (check.base, *check.others)
    arms = list(zip(everyone, line_styles(len(everyone)), strict=True))
    compared = [] if noise else [(arm, style) for arm, style in arms if arm.comparison and name in arm.comparison.gaps]
    gaps = [(style, arm, arm.comparison.gaps[name]) for arm, style in compared if arm.comparison]
    labels = [arm.label for arm, _ in arms]
    columns = min(3, max(1, 78 // (8 + max(map(len, labels)))))
    rows, lines = 2 if gaps else 1, 1 if noise else -(-len(labels) // columns)
    size = (4.8, 2.5 + 1.8 * (rows - 1) + 0.17 * lines)
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, sharex=True, height_ratios=(3, 2)[:rows])[:, 0]
    plain_axes(axes)
    for axis in axes:
        for at, _ in words.switches(check):
            axis.axvline(at, color=SOFT, linewidth=0.9, linestyle=":")
    if noise:
        _draw_noise(axes[0], check, [style for _, style in arms])
    for arm, (colour, dash) in arms:
        if name in arm.trajectory.names and not noise:
            _curve(axes[0], arm.trajectory, name, colour, dash, _text(arm.label))
    axes[0].set_ylabel(_text(name))
    if gaps:
        _draw_gaps(axes[1], gaps, words.tolerance(check, name))
    axes[-1].set_xlabel(words.clock_name(check.base.trajectory))
    if clock_unit(check.base.trajectory) in ("samples", "tokens"):
        _count_samples(axes[-1], 6)
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside upper center", ncols=columns, frameon=False, handlelength=2.8)
    return figure


def _count_samples(axis: Any, ticks: int) -> None:
    """Write samples or tokens as whole numbers, at so many ticks that these have room."""
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axis.xaxis.set_major_locator(importlib.import_module("matplotlib.ticker").MaxNLocator(ticks))


def _draw_gaps(axis: Any, gaps: list[tuple[tuple[str, Any], Result, Gap]], tolerance: float | None) -> None:
    """Draw the gaps with their bands, if they have any, against the tolerance of the verdicts."""
    for (colour, dash), arm, gap in gaps:
        x = words.clock_of_gap(gap, arm.trajectory)
        for low, high in ((gap.low, gap.high), (gap.local - gap.margin, gap.local + gap.margin)):
            axis.fill_between(x, 100 * low, 100 * high, color=colour, alpha=0.13, linewidth=0)
        axis.plot(x, 100 * gap.gap, color=colour, linestyle=dash, linewidth=1.4)
    axis.axhline(0, color=SOFT, linewidth=0.7)
    axis.set_ylabel("gap (% of range)")
    if tolerance is not None:
        axis.axhspan(-100 * tolerance, 100 * tolerance, color=STRIP, alpha=0.13, linewidth=0)
        for y in (-100 * tolerance, 100 * tolerance):
            axis.axhline(y, color=STRIP, linewidth=0.8)


def _draw_noise(axis: Any, check: Table, styles: list[tuple[str, Any]]) -> None:
    """Draw the noise scale of the base, as on the page, and the batch sizes."""
    axis.set_yscale("log")
    for trajectory, colour, label in (
        (check.warm, WARM, "before the switch"),
        (check.base.trajectory, styles[0][0], _text(check.base.label)),
    ):
        noise = scale_curve(trajectory)
        if noise is not None:
            axis.fill_between(noise.clock, noise.low, noise.high, color=colour, alpha=0.17, linewidth=0)
            axis.plot(noise.clock, noise.middle, color=colour, linewidth=1.5, label=label)
    for i, size in words.batch_sizes(check):
        colour, dash = styles[i]
        axis.axhline(size, color=colour, linestyle=dash, linewidth=1)
        axis.annotate(
            f"B = {words.number(size, 6)}", (1, size), xycoords=("axes fraction", "data"), xytext=(0, 1.5),
            textcoords="offset points", ha="right", va="bottom", color=colour, fontsize=7,
        )  # fmt: skip
    low, high = words.noise_levels(check)
    axis.set_ylim(low / 1.5, high * 2)


def _curve(axis: Any, trajectory: Trajectory, name: str, colour: str, dash: Any, label: str) -> None:
    """Draw the mean and two standard errors."""
    mean, se = trajectory[name]
    x = clock(trajectory)
    known = np.isfinite(se)
    axis.fill_between(x, mean - 2 * se, mean + 2 * se, where=known, color=colour, alpha=0.17, linewidth=0)
    axis.plot(x, mean, color=colour, linestyle=dash, linewidth=1.5, label=label)
