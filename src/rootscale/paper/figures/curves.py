"""The figure of an experiment: the gap to its base with the band it has, and the two losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.gap import Gap
from rootscale.lab import Result, Table
from rootscale.paper.entries import Entry
from rootscale.paper.figures.canvas import Array, finished, mean_of, new_figure, save, short_labels, smoothed, unit_of
from rootscale.paper.finals import ACCURACY
from rootscale.report import words
from rootscale.report.plotting import LineEnd, few_ticks, label_ends
from rootscale.report.styles import STRIP, WARM, style_of
from rootscale.trajectory import Trajectory

__all__ = ["draw_curves", "starts_off_the_figure"]

#: Losses are running means over so many points, where there are enough.
WINDOW = 3
#: A loss that falls to less than this share of its start is drawn on a logarithmic axis.
LOGARITHMIC = 0.1
#: A gap is drawn on a linear axis up to so many times its limit; beyond, the axis is logarithmic outside the limit.
LINEAR = 4
#: Labels that are longer are written in the upper panel only, whose colours all panels have.
SHORT = 14
#: Seeds from which on the band of the verdict is drawn; of fewer, two standard errors.
BANDED = 4


@dataclass(frozen=True)
class _Line:
    """What is drawn of an arm in all panels."""

    arm: Result
    text: str
    colour: str
    places: Array


def draw_curves(entry: Entry, path: Path) -> None:
    """Draw the gap of an experiment's runs to its base, and below it the losses."""
    check = entry.check
    unit, time = unit_of(entry.record, check)
    texts = short_labels([arm.label for arm in check.others])
    lines = [
        _Line(arm, text, style_of(i).colour, np.array(arm.trajectory.meta["samples"]) / unit)
        for i, (arm, text) in enumerate(zip((check.base, *check.others), (_base_text(check), *texts), strict=True))
    ]
    losses = [name for name in ("train loss", "test loss") if name in check.base.trajectory.names]
    figure = new_figure(6.0, _title(entry), _note(entry, losses))
    upper, lower = figure.subfigures(2, 1, height_ratios=(6, 5))
    above, below = upper.subplots(), lower.subplots(1, len(losses), squeeze=False)[0]
    _draw_gaps(above, entry, lines)
    for axis, name in zip(below, losses, strict=True):
        _draw_loss(axis, entry, name, lines)
    for axis in (above, *below):
        axis.set_xlabel(time)
        few_ticks(axis)
        axis.minorticks_off()
    finished((above, *below))
    _label(above, lines[1:], _drawn_gap(entry))
    if max(len(line.text) for line in lines) <= SHORT:
        for axis, name in zip(below, losses, strict=True):
            _label(axis, lines, lambda line, name=name: _loss(line, name))
    save(figure, path)


def _title(entry: Entry) -> str:
    """Return the finding, with the eps and the length of the runs where they are not the experiment's own."""
    headline, defaults, made = entry.experiment.shown.headline, entry.experiment.defaults, entry.record["options"]
    if headline is None:
        return entry.title
    more = [f"ε = {made['eps']:g}"] if made["eps"] != defaults.eps else []
    more += [f"{made['epochs']:g} epochs"] if made["epochs"] != defaults.epochs else []
    what, colon, found = headline(entry.finals).partition(": ")
    return ", ".join([what, *more]) + colon + found


def _note(entry: Entry, losses: Sequence[str]) -> str:
    """Return what a reader has to know about lines and bands."""
    seeds, options = max(final.seeds for final in entry.finals), entry.record["options"]
    points = len(entry.check.base.trajectory.times)
    parts = [f"{entry.title}, {options['epochs']:.3g} epochs{' of the text' if _language(entry) else ''}."]
    band = "bands hold the true gap at all times, at 95 %" if seeds >= BANDED else "bands: ± two standard errors"
    parts.append(f"Mean of {seeds} seeds; {band}." if seeds > 1 else f"One seed: no band{_bars(entry)}.")
    smooth = f", running means over {WINDOW} of {points} points" if points > 8 * WINDOW else ""
    return " ".join(parts) + (f" Losses are of eval mode{smooth}." if losses else "")


def _bars(entry: Entry) -> str:
    known = any(final.accuracy.gap_se is not None for final in entry.finals[1:])
    return "; bars at the end: ± twice the seeds' standard deviation" if known and _points(entry) else ""


def _points(entry: Entry) -> bool:
    """Return whether the gap is drawn in points of test accuracy."""
    return entry.experiment.drawn == ACCURACY and entry.experiment.shown.limit is not None


def _base_text(check: Table) -> str:
    return check.base.label.partition(" (")[0].removesuffix(" kept")


# -- the gap ---------------------------------------------------------------------------------------------------------


def _drawn_gap(entry: Entry) -> Any:
    """Return a function that gives the gap of a line as it is drawn, with its places."""
    name, factor = entry.experiment.drawn, _factor(entry)

    def drawn(line: _Line) -> tuple[Array, Array]:
        gap = _gap(line.arm, name)
        if gap is None:  # the base's curve does not move
            return line.places, np.full(len(line.places), np.nan)
        return line.places[-len(gap.times) :], factor(gap) * gap.gap

    return drawn


def _factor(entry: Entry) -> Any:
    """Return what turns a gap, which is a share of the range, into what is drawn: points, nats or percent."""
    if entry.experiment.shown.limit is None:
        return lambda gap: 100.0
    return lambda gap: gap.range * (100.0 if entry.experiment.drawn == ACCURACY else 1.0)


def _gap(arm: Result, name: str) -> Gap | None:
    return None if arm.comparison is None else arm.comparison.gaps.get(name)


def _draw_gaps(axis: Any, entry: Entry, lines: list[_Line]) -> None:
    shown, factor, drawn = entry.experiment.shown, _factor(entry), _drawn_gap(entry)
    accuracy = entry.experiment.drawn == ACCURACY
    title = (
        entry.experiment.drawn.replace("test loss", "validation loss") if _language(entry) else entry.experiment.drawn
    )
    base = f"the {text} run" if (text := _base_text(entry.check)) == "discrete" else text
    unit = "% of its range" if shown.limit is None else "points" if accuracy else "nats"
    share = words.tolerance(entry.check, entry.experiment.drawn) or 0.0
    limit = 100 * share if shown.limit is None else shown.limit * (100 if accuracy else 1)
    claimed = "the tolerance" if shown.limit is None else shown.limited_by
    strip = f" (grey: {claimed}, ± {limit:g})" if limit else ""
    axis.set_title(f"{title} less that of {base}, {unit}{strip}", loc="left", fontsize=10)
    axis.axhspan(-limit, limit, color=STRIP, alpha=0.13, linewidth=0)
    axis.axhline(0, color=lines[0].colour, linewidth=1.6)
    levels = [np.array([-1.6 * limit, 1.6 * limit])]
    for line in lines[1:]:
        gap = _gap(line.arm, entry.experiment.drawn)
        if gap is None:
            continue
        x, y = drawn(line)
        wide = gap.band if line.arm.trajectory.replicas >= BANDED else (gap.gap - 2 * gap.se, gap.gap + 2 * gap.se)
        low, high = (factor(gap) * edge for edge in wide)
        axis.fill_between(x, low, high, color=line.colour, alpha=0.14, linewidth=0)
        axis.plot(x, y, color=line.colour, linewidth=1.8)
        levels.append(y)
        final = _final_error(entry, line)
        if final is not None and not np.isfinite(low).any():
            axis.errorbar(x[-1], y[-1], yerr=2 * final, color=line.colour, linewidth=1.4, capsize=3)
    _set_scale(axis, np.concatenate(levels), limit)
    axis.set_xlim(lines[0].places[0], lines[0].places[-1])


def _set_scale(axis: Any, levels: Array, limit: float) -> None:
    """Set the vertical axis: linear, or logarithmic beyond the limit where gaps are many times larger."""
    low, high = float(np.nanmin(levels)), float(np.nanmax(levels))
    if not limit or max(-low, high) <= LINEAR * limit:
        room = 0.06 * (high - low) or 1.0  # one gap at all times has a level, and no range
        axis.set_ylim(low - room, high + room)
        return
    axis.set_yscale("symlog", linthresh=limit, linscale=0.7)
    axis.set_ylim(1.25 * low, 1.25 * high)
    sizes = [a * 10.0**k for k in range(-3, 5) for a in (1, 3)]
    beyond = [sign * size for size in sizes for sign in (-1, 1) if size > 1.9 * limit and low < sign * size < high]
    ticks = sorted([*beyond, -limit, 0.0, limit])
    axis.set_yticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])


def _final_error(entry: Entry, line: _Line) -> float | None:
    """Return the error of a single run's final test accuracy, in points; None where there is none to draw."""
    if not _points(entry):
        return None
    (final,) = [final for final in entry.finals if final.label == line.arm.label]
    return None if final.accuracy.gap_se is None else 100 * final.accuracy.gap_se


# -- the losses ------------------------------------------------------------------------------------------------------


def _loss(line: _Line, name: str) -> tuple[Array, Array]:
    curve = mean_of(line.arm.trajectory, name)
    return line.places, smoothed(curve, WINDOW) if len(curve) > 8 * WINDOW else curve


def _draw_loss(axis: Any, entry: Entry, name: str, lines: list[_Line]) -> None:
    check, (unit, _) = entry.check, unit_of(entry.record, entry.check)
    base = mean_of(check.base.trajectory, name)
    if check.warm is not None:
        before = mean_of(check.warm, name)
        axis.plot(np.array(check.warm.meta["samples"]) / unit, before, color=WARM, linewidth=1.6)
    for i, line in enumerate(lines):
        x, y = _loss(line, name)
        axis.plot(x, y, color=line.colour, linewidth=3.0 if not i else 1.6, alpha=0.55 if not i else 1.0)
    title = "train loss" if name == "train loss" else "validation loss" if _language(entry) else name
    logarithmic = np.nanmin(base[1:]) < LOGARITHMIC * base[1]
    axis.set_title(title + (", logarithmic" if logarithmic else ""), loc="left", fontsize=10)
    after = np.concatenate([_loss(line, name)[1][1:] for line in lines])
    usual = np.nanmax(base[1:]) * (1.6 if logarithmic else 1.25)
    low, high = np.nanmin(after), min(np.nanmax(after), usual)
    if logarithmic:
        axis.set_yscale("log")
        axis.set_ylim(low / 1.3, high * 1.15)
    else:
        axis.set_ylim(low - 0.08 * (high - low), high + 0.05 * (high - low))
    first, last = lines[0].places[0], lines[0].places[-1]
    axis.set_xlim(max(0.0, first - 0.3 * (last - first)), last)


def _language(entry: Entry) -> bool:
    return entry.experiment.measure != ACCURACY


def _label(axis: Any, lines: list[_Line], drawn: Any) -> None:
    """Write the labels of the lines; in the upper panel one that diverged is named at the lower edge."""
    ends = []
    for line in lines:
        x, y = drawn(line)
        if np.isfinite(y[-1]):
            ends.append(LineEnd(float(x[-1]), float(y[-1]), line.text, line.colour))
        elif len(lines) < len(axis.lines):
            ends.append(LineEnd(float(x[-1]), axis.get_ylim()[0], f"{line.text}: diverged", line.colour))
    label_ends(axis, ends)


def starts_off_the_figure(base: Trajectory, name: str) -> bool:
    """Return whether a curve from scratch begins at more than three times all that follows: it is cut off."""
    curve = base[name].mean
    return base.meta["samples"][0] == 0 and len(curve) > 2 and bool(curve[0] > 3 * np.nanmax(curve[1:]))
