"""Logs of several sides on one clock and one grid, as trajectories that can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rootscale.compare.columns import Clock, choose_metrics, find_clock
from rootscale.compare.curve import Curve, common_window, logged_like, read_curve, smooth
from rootscale.compare.log import Array, Log
from rootscale.format import show
from rootscale.trajectory import Trajectory

#: A curve is smoothed where its values scatter by more than this share of its range.
NOISY = 0.01
#: A window has at least so many values of every run.
FEWEST_VALUES = 5
#: A run that ends before this share of the longest one is said to end early.
EARLY = 0.9
#: A run that logged nothing over this share of what is compared is said to have a hole.
HOLE = 0.1


@dataclass(frozen=True)
class Alignment:
    """How logs are put on one grid.

    Args:
        metrics: which are compared; empty is the losses that all runs have.
        clock: the column that counts samples or tokens; None looks for one.
        batch_sizes: of each side, the base first, for logs that count steps.
        window: width of the smoothing, on the clock; None smooths what is noisy, and 0 nothing.
        points: most points of the grid.
        start, stop: the part of the clock that is compared; None is all that the runs have in common.
    """

    metrics: Sequence[str] = ()
    clock: str | None = None
    batch_sizes: Sequence[float] = ()
    window: float | None = None
    points: int = 40
    start: float | None = None
    stop: float | None = None

    def __post_init__(self) -> None:
        if self.points < 2:
            raise ValueError(f"points must be at least 2, got {self.points}")
        if self.window is not None and not 0 <= self.window < math.inf:
            raise ValueError(f"window must be a width on the clock, or 0 for none, got {self.window}")


@dataclass(frozen=True)
class Aligned:
    """Runs on one grid.

    Args:
        trajectories: of each side, the base first.
        scatter: of each side, the standard error that the scatter of logged values alone gives the mean curve, by
            metric, ``[T]``.
        unit: of the clock.
        notes: what was done, each in a sentence.
        part: where a run ends early, so that the others are compared up to there only: a sentence on it; empty where
            all is compared, or the part that was asked for.
    """

    trajectories: tuple[Trajectory, ...]
    scatter: tuple[Mapping[str, Array], ...]
    unit: str
    notes: tuple[str, ...]
    part: str = ""


def align(sides: Sequence[Sequence[Log]], alignment: Alignment | None = None) -> Aligned:
    """Return the runs of all sides on one grid: the part of the clock that all of them have."""
    settings = alignment or Alignment()
    for number, logs in enumerate(sides):
        if not logs:
            raise ValueError(f"side {number} has no runs" if number else "the base has no runs")
    clocks = find_clock(sides, settings.clock, settings.batch_sizes)
    unit = clocks[0][0].unit
    metrics = choose_metrics(sides, settings.metrics)
    logged = {
        metric: [
            [read_curve(log, metric, clock) for log, clock in zip(logs, side, strict=True)]
            for logs, side in zip(sides, clocks, strict=True)
        ]
        for metric in metrics
    }
    every = [curve for of_metric in logged.values() for side in of_metric for curve in side]
    low, high = _window(every, settings, unit)
    rarest = {metric: _rarest([c for side in logged[metric] for c in side], low, high) for metric in metrics}
    curves = {metric: _alike(logged[metric], rarest[metric], settings, low, high) for metric in metrics}
    windows = {
        metric: _smoothing([c for side in curves[metric] for c in side], settings, low, high) for metric in metrics
    }
    grid = _grid([c for some in curves.values() for side in some for c in side], windows, settings, low, high)
    notes = [*_clock_notes(clocks, unit), *_run_notes(every), *_range_notes(every, grid, unit)]
    notes += [note for metric in metrics for note in _smoothing_notes(metric, curves[metric], windows[metric], unit)]
    notes += [_place_note(metric, rarest[metric], unit) for metric in metrics if curves[metric] != logged[metric]]
    made = [
        _trajectory({metric: curves[metric][i] for metric in metrics}, windows, grid, unit, logs)
        for i, logs in enumerate(sides)
    ]
    part = "" if settings.stop is not None else _part(every, unit)
    return Aligned(tuple(one for one, _ in made), tuple(se for _, se in made), unit, tuple(dict.fromkeys(notes)), part)


def reached(sides: Sequence[Sequence[Log]], alignment: Alignment | None = None) -> list[float]:
    """Return how far the runs of the last side are, on the clock of all: where each was logged last."""
    settings = alignment or Alignment()
    clocks, metrics = find_clock(sides, settings.clock, settings.batch_sizes), choose_metrics(sides, settings.metrics)
    pairs = zip(sides[-1], clocks[-1], strict=True)
    return [min(float(read_curve(log, metric, clock).places[-1]) for metric in metrics) for log, clock in pairs]


def _trajectory(
    curves: Mapping[str, Sequence[Curve]], windows: Mapping[str, float], grid: Array, unit: str, logs: Sequence[Log]
) -> tuple[Trajectory, dict[str, Array]]:
    """Return the runs of one side, and the error of their mean by the scatter of what was logged."""
    found = {metric: [smooth(curve, grid, windows[metric]) for curve in some] for metric, some in curves.items()}
    values = {metric: np.stack([one.values for one in some]) for metric, some in found.items()}
    scatter = {
        metric: np.sqrt(np.sum([one.se**2 for one in some], axis=0)) / len(some) for metric, some in found.items()
    }
    meta: dict[str, object] = {"samples": grid.tolist(), "clock": unit, "runs": [log.name for log in logs]}
    seeds = [log.seed for log in logs]
    if None not in seeds and len(set(seeds)) == len(seeds):
        meta["seeds"] = seeds
    return Trajectory(grid, values, meta=meta), scatter


# -- the grid --------------------------------------------------------------------------------------------------------


def _window(curves: Sequence[Curve], settings: Alignment, unit: str) -> tuple[float, float]:
    low, high = common_window(curves, unit)
    first, last = max(low, settings.start or low), high if settings.stop is None else min(high, settings.stop)
    if not first < last:
        raise ValueError(
            f"nothing is left between --start and --stop: the runs have {show(low)} to {show(high)} {unit}"
        )
    return first, last


def _smoothing(curves: Sequence[Curve], settings: Alignment, low: float, high: float) -> float:
    """Return the width of the smoothing of one metric, in all runs alike; 0 where it is interpolated.

    It is smoothed where the values of a run scatter by more than `NOISY` of the range of its curve. The window is then
    a cell of the grid, or wider where a run would have fewer than `FEWEST_VALUES` values in it.
    """
    if settings.window is not None:
        return settings.window
    whole = [curve for curve in curves if curve.diverged_at is None]
    if not any(_noisy(curve, low, high) for curve in whole):
        return 0.0
    return max((high - low) / settings.points, FEWEST_VALUES * max(curve.interval for curve in whole))


def _noisy(curve: Curve, low: float, high: float) -> bool:
    """Return whether the values scatter by more than a small share of the range of their running median."""
    inside = curve.values[curve.between(low, high)]
    if len(inside) < 3 * FEWEST_VALUES:
        return False
    parts = np.array_split(inside, max(3, min(20, len(inside) // FEWEST_VALUES)))
    span = float(np.ptp([np.median(part) for part in parts]))
    return curve.noise > NOISY * span


def _grid(curves: Sequence[Curve], windows: Mapping[str, float], settings: Alignment, low: float, high: float) -> Array:
    """Return the places that are compared: those of all runs where they agree, or else evenly spaced ones.

    Windows lie wholly inside of what all runs have.
    """
    widest = max(windows.values())
    if not widest:
        first = curves[0].places[curves[0].between(low, high)]
        whole = [curve for curve in curves if curve.diverged_at is None]
        if len(first) <= 5 * settings.points and all(_has(curve, first, low, high) for curve in whole):
            return first
    if widest >= (high - low) / 2:
        raise ValueError(
            f"a window of {show(float(f'{widest:.3g}'))} leaves nothing of the {show(float(f'{high - low:.3g}'))} that "
            "the runs have in common: give a smaller --window, or 0 for none"
        )
    points = max(2, min(settings.points, max(len(curve.places[curve.between(low, high)]) for curve in curves)))
    if widest:
        return np.linspace(low + widest / 2, high - widest / 2, points)
    return np.linspace(low, high, points)


def _rarest(curves: Sequence[Curve], low: float, high: float) -> Curve:
    """Return the run with the fewest values between two places, of those that did not diverge."""
    whole = [curve for curve in curves if curve.diverged_at is None]
    return min(whole, key=lambda curve: len(curve.places[curve.between(low, high)]))


def _alike(
    sides: Sequence[Sequence[Curve]], rarest: Curve, settings: Alignment, low: float, high: float
) -> list[list[Curve]]:
    """Return curves at the places of the one that was logged most rarely, so that all are bent alike.

    They stay as they are where they have these places, or where every window of the smoothing has many of its values.
    """
    width = _smoothing([curve for side in sides for curve in side], settings, low, high)
    if width > (1 + 1e-9) * FEWEST_VALUES * rarest.interval:
        return [list(side) for side in sides]
    return [[_at(curve, rarest, low, high) for curve in side] for side in sides]


def _at(curve: Curve, rarest: Curve, low: float, high: float) -> Curve:
    inside = rarest.places[rarest.between(low, high)]
    end = np.inf if curve.diverged_at is None else curve.diverged_at
    if _has(curve, inside[inside < end], low, high) or len(inside) < 2 or not len(curve.places):
        return curve
    return logged_like(curve, rarest, low, high)


def _has(curve: Curve, places: Array, low: float, high: float) -> bool:
    own = curve.places[curve.between(low, high)]
    return len(own) == len(places) >= 2 and bool(np.allclose(own, places, rtol=1e-9, atol=0))


# -- what is said ----------------------------------------------------------------------------------------------------


def _clock_notes(clocks: Sequence[Sequence[Clock]], unit: str) -> list[str]:
    sources = list(dict.fromkeys(clock.source for side in clocks for clock in side))
    notes = [f"aligned on {unit} ({'; '.join(sources)})"]
    if unit == "epochs":
        notes.append("epochs are the same clock only where all runs have the same training data")
    if unit == "steps":
        notes.append("steps are the same clock only where all runs have the same batch size")
    return notes


def _run_notes(curves: Sequence[Curve]) -> list[str]:
    return [f"{curve.name}: {note}" for curve in curves for note in curve.notes]


def _range_notes(curves: Sequence[Curve], grid: Array, unit: str) -> list[str]:
    notes = [f"compared from {_few(grid[0])} to {_few(grid[-1])} {unit}, at {len(grid)} points"]
    notes += [part] if (part := _part(curves, unit)) else []
    for curve in (one for one in curves if one.diverged_at is None):
        inside = curve.places[curve.between(grid[0], grid[-1])]
        jumps = np.diff(np.concatenate([[grid[0]], inside, [grid[-1]]]))
        at = int(np.argmax(jumps))
        if jumps[at] > HOLE * (grid[-1] - grid[0]) and jumps[at] > 3 * curve.interval:
            begin = inside[at - 1] if at else grid[0]
            notes.append(
                f"{curve.name} has no values between {_few(begin)} and {_few(begin + jumps[at])} {unit}: what is "
                "compared there is interpolated"
            )
    return notes


def _part(curves: Sequence[Curve], unit: str) -> str:
    """Return a sentence on the run that ends first, where it ends early; empty where none does."""
    whole = [curve for curve in curves if curve.diverged_at is None]
    longest, first = max(whole, key=lambda curve: curve.places[-1]), min(whole, key=lambda curve: curve.places[-1])
    if first.places[-1] >= EARLY * longest.places[-1]:
        return ""
    return (
        f"{first.name} ends at {_few(first.places[-1])} {unit}; what {longest.name} has after that, up to "
        f"{_few(longest.places[-1])}, is not compared"
    )


def _smoothing_notes(metric: str, sides: Sequence[Sequence[Curve]], window: float, unit: str) -> list[str]:
    if not window:
        return []
    counts = [[window / curve.interval for curve in side if curve.interval] for side in sides]
    values = " and ".join(show(round(float(np.median(some)))) for some in counts if some)
    return [f"{metric} is smoothed: a line fitted in windows of {_few(window)} {unit} (about {values} logged values)"]


def _place_note(metric: str, rarest: Curve, unit: str) -> str:
    """Return a note on runs that were logged at different places."""
    return (
        f"{metric} is compared where {rarest.name} was logged, which was logged most rarely (every "
        f"{_few(rarest.interval)} {unit}); runs that were not logged there are interpolated"
    )


def _few(value: float) -> str:
    return show(float(f"{value:.4g}"))
