"""The figures of results/: the curves of an experiment, the switch in mid-run, and the noise scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.lab import Arm, Check
from rootscale.noise import NO_GRADIENT, NOISE_SCALE
from rootscale.paper.entries import Entry
from rootscale.paper.finals import ACCURACY
from rootscale.paper.parts import TITLES
from rootscale.report.plotting import need_matplotlib, plain_axes, save_figure
from rootscale.report.styles import STRIP, WARM, line_styles
from rootscale.trajectory import Trajectory

__all__ = ["PANELS", "batch_size", "draw_curves", "draw_noise", "draw_switch", "starts_off_the_figure"]

#: Test functions in the order of the panels; the noise scale has a figure of its own.
PANELS = ("train loss", "train accuracy", "test loss", "test accuracy", "gradient norm", "Tr Sigma", "noise scale")
PERCENT = ("train accuracy", "test accuracy")
LOGARITHMIC = ("gradient norm", "Tr Sigma", "noise scale")


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    figure = need_matplotlib().figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    plain_axes(axes.flat)
    for axis in axes.flat:
        axis.tick_params(which="both", labelsize=7)
    return figure, axes


def _draw(axis: Any, trajectory: Trajectory, name: str, epoch: int, label: str, style: tuple[str, Any]) -> None:
    """Draw the mean over the seeds that have not diverged, and their range."""
    factor = 100.0 if name in PERCENT else 1.0
    x = np.array(trajectory.meta["samples"]) / epoch
    values = np.where(trajectory.lost, np.nan, trajectory.values[name]) * factor
    alive = np.isfinite(values).any(0)
    x, values = x[alive], values[:, alive]
    if not len(x):
        return
    colour, dash = style
    axis.fill_between(x, np.nanmin(values, 0), np.nanmax(values, 0), color=colour, alpha=0.15, linewidth=0)
    axis.plot(x, np.nanmean(values, 0), color=colour, linestyle=dash, linewidth=1.4, label=label)


def _unit(record: Mapping[str, Any], check: Check) -> tuple[int, str]:
    """Return how many samples are one on the axis of a figure, and its name: epochs of CIFAR-10, or round numbers."""
    samples = check.base.trajectory.meta["samples"][-1]
    if record["name"].startswith("cifar10"):
        return (512 if record["options"]["smoke"] else 50_000), "epochs"
    return (1_000_000, "million samples") if samples > 2_000_000 else (1000, "thousand samples")


def draw_curves(entry: Entry, path: Path) -> None:
    """Draw all test functions of an experiment over samples seen."""
    check, record = entry.check, entry.record
    names = [name for name in PANELS if name in check.base.trajectory.names]
    columns = min(4, -(-len(names) // 2))
    rows = -(-len(names) // columns)
    unit, time = _unit(record, check)
    blocks = _blocks(check)
    labels = dict.fromkeys(label for lines in blocks.values() for label in lines)
    styles = dict(zip(labels, line_styles(len(labels)), strict=False))
    figure, axes = _figure(rows * len(blocks), columns, 4.2, 3.0)
    for number, (block, lines) in enumerate(blocks.items()):
        panels = list(axes[rows * number : rows * (number + 1)].flat)
        for axis, name in zip(panels, names, strict=False):
            if check.warm is not None:
                _draw(axis, check.warm, name, unit, "before the switch", (WARM, "-"))
            for label, arm in lines.items():
                lost = ", diverged" if arm.trajectory.lost[:, -1].all() else ""
                _draw(axis, arm.trajectory, name, unit, label + lost, styles[label])
            title = f"{name} (%)" if name in PERCENT else name.replace("Sigma", "Σ")
            axis.set_title(f"{block}: {title}" if block else title, fontsize=9, loc="left")
            axis.set_yscale("log" if name in LOGARITHMIC else "linear")
            if name not in PERCENT:
                top = _top(axis, check.base.trajectory, name)
                low = axis.dataLim.y0  # a linear axis keeps its margin below when it is cut above
                axis.set_ylim(None if name in LOGARITHMIC else low - 0.05 * (top - low), top)
            if name == NOISE_SCALE:  # in the style of the first that has the size
                _lines_of_sizes(axis, {batch_size(arm): styles[label] for label, arm in reversed(lines.items())})
            axis.set_xlabel(time, fontsize=8)
        for axis in panels[len(names) :]:
            axis.set_visible(False)
    _legend(figure, axes[::rows, 0], columns)
    length = f"{record['options']['epochs']:g} epochs" + (
        "" if entry.experiment.measure == ACCURACY else " of the text"
    )
    n = max(arm.trajectory.replicas for arm in (check.base, *check.others))
    figure.suptitle(f"{entry.title} ({length}, n = {n})", fontsize=11)
    save_figure(figure, path, 120)


def _blocks(check: Check) -> dict[str, dict[str, Arm]]:
    """Return the lines of each block of panels by their labels, the base first in all of them.

    One block, unless the labels are "this; that", as those of the ablations: then one for every "this".
    """
    base = {check.base.label: check.base}
    blocks: dict[str, dict[str, Arm]] = {}
    for arm in check.others:
        block, _, label = arm.label.rpartition("; ")
        blocks.setdefault(block, dict(base))[label] = arm
    return blocks or {"": base}


def _top(axis: Any, base: Trajectory, name: str) -> float:
    """Return the upper end of an axis: runs that leave the base far behind, and the start, do not flatten the others.

    Where no gradient was seen, the noise scale is beyond all measure, and its line leaves the figure.
    """
    if name in LOGARITHMIC:
        values = base.values[name]
        return float(min(axis.get_ylim()[1], 30 * np.nanmax(values[values < NO_GRADIENT], initial=1.0)))
    curve = base[name].mean
    first = 0.0 if starts_off_the_figure(base, name) else 1.1 * curve[0]
    usual = np.nanquantile(curve[1:], 0.9)  # nor does a spike of the base
    return float(min(axis.get_ylim()[1], max(first, 3 * usual)))


def starts_off_the_figure(base: Trajectory, name: str) -> bool:
    """Return whether a curve from scratch begins at more than three times all that follows: it is cut off."""
    curve = base[name].mean
    return base.meta["samples"][0] == 0 and len(curve) > 2 and bool(curve[0] > 3 * np.nanmax(curve[1:]))


def _legend(figure: Any, axes: Any, columns: int) -> None:
    """Add a legend of all lines that are in one of the panels."""
    lines: dict[str, Any] = {}
    for axis in np.ravel(axes):
        handles, labels = axis.get_legend_handles_labels()
        lines = dict(zip(labels, handles, strict=True)) | lines
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)


def batch_size(arm: Arm) -> int:
    """Return the batch size of an arm at its end."""
    return int(arm.the_plan.batch_size.total)


def _lines_of_sizes(axis: Any, styles: Mapping[int, tuple[str, Any]]) -> None:
    for size, (colour, _) in styles.items():
        axis.axhline(size, color=colour, linewidth=0.8, alpha=0.6)


def draw_switch(entry: Entry, path: Path) -> None:
    """Draw the figure of the README's first screen: test loss and accuracy around and after the switch."""
    check, record = entry.check, entry.record
    epoch, _ = _unit(record, check)
    figure, axes = _figure(1, 2, 5.2, 3.6)
    arms = [check.base, *check.others]
    for axis, name in zip(axes.flat, ("test loss", "test accuracy"), strict=True):
        if check.warm is not None:
            _draw(axis, check.warm, name, epoch, "", (WARM, "-"))
        for arm, style in zip(arms, line_styles(len(arms)), strict=False):
            _draw(axis, arm.trajectory, name, epoch, arm.label, style)
        at = check.switch_at / epoch
        axis.axvline(at, color=STRIP, linewidth=0.8)
        axis.set_xlabel("epochs", fontsize=9)
        axis.set_title("test accuracy (%)" if name in PERCENT else name, fontsize=10, loc="left")
        start = max(0.0, at - 0.35 * (check.base.trajectory.meta["samples"][-1] / epoch - at))
        axis.set_xlim(left=start)
        axis.set_ylim(*_limits([*_trajectories(check)], name, start * epoch))
    _legend(figure, axes[0, 0], 2)
    n = max(final.seeds for final in entry.finals)
    what = "generated images" if record["options"]["smoke"] else "CIFAR-10"
    net = TITLES[record["options"]["model"]]
    title = f"{net}, Adam, {what}: the batch size changes in mid-run (mean of {n} seeds, bands: their range)"
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path, 120)


def _trajectories(check: Check) -> Iterator[Trajectory]:
    """Yield all trajectories, the one before the switch included."""
    yield from (arm.trajectory for arm in (check.base, *check.others))
    if check.warm is not None:
        yield check.warm


def _limits(trajectories: Sequence[Trajectory], name: str, start: float) -> tuple[float, float]:
    """Return the limits of the mean curves from ``start`` samples on; a spike does not flatten the rest."""
    parts = [t[name].mean[np.array(t.meta["samples"]) >= start] for t in trajectories]
    accuracy = name in PERCENT
    low, high = np.nanquantile(np.concatenate(parts), (0.02, 1.0) if accuracy else (0.0, 0.98))
    room = 0.06 * (high - low)
    factor = 100.0 if accuracy else 1.0
    return factor * float(low - room), factor * float(high + room)


def draw_noise(stored: Sequence[Entry], path: Path) -> None:
    """Draw the noise scale along training at each batch size, for each net and optimizer."""
    sizes = sorted({batch_size(arm) for entry in stored for arm in (entry.check.base, *entry.check.others)})
    styles = dict(zip(sizes, line_styles(len(sizes)), strict=False))  # a batch size looks the same in all panels
    columns = 2 if len(stored) > 3 else len(stored)
    figure, axes = _figure(-(-len(stored) // columns), columns, 5.4 if columns == 2 else 3.8, 3.0)
    for axis, entry in zip(axes.flat, stored, strict=False):
        check = entry.check
        arms = [check.base, *check.others]
        unit, time = _unit(entry.record, check)
        for arm in arms:
            _draw(axis, arm.trajectory, NOISE_SCALE, unit, arm.label, styles[batch_size(arm)])
        _lines_of_sizes(axis, {batch_size(arm): styles[batch_size(arm)] for arm in arms})
        axis.set_yscale("log")
        axis.set_ylim(top=_top(axis, check.base.trajectory, NOISE_SCALE))
        axis.set_xlabel(time, fontsize=8)
        axis.set_title(entry.title.partition(": ")[2], fontsize=9)
    for axis in list(axes.flat)[len(stored) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("noise scale Tr Σ / |∇f|² (samples)", fontsize=8)
    _legend(figure, axes, 4)
    figure.suptitle("Noise scale along training; straight lines: the batch sizes", fontsize=9)
    save_figure(figure, path, 120)
