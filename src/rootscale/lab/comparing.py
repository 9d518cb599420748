"""Logs as trajectories that can be compared: aligned, without copies, and NaN from where a run has diverged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rootscale.format import show
from rootscale.lab.divergence import Divergence
from rootscale.logs import Aligned, Alignment, Log, align
from rootscale.logs.metrics import is_loss
from rootscale.logs.one_run import conclusions
from rootscale.logs.record import Array
from rootscale.tolerance import Absolute
from rootscale.trajectory import Trajectory
from rootscale.verdict import Comparison, Judge

__all__ = ["Logged", "logged"]


class Asked(Protocol):
    """What a study asks of logs."""

    @property
    def alignment(self) -> Alignment:
        """Clock, metrics, batch sizes, smoothing and grid."""

    @property
    def judge(self) -> Judge:
        """What makes runs the same."""

    @property
    def paired(self) -> bool:
        """Whether the runs of all sides share seeds in the order in which they are given."""


@dataclass(frozen=True)
class Logged:
    """Logs of all sides as trajectories on one grid, the base first.

    Args:
        trajectories: of each side.
        aligned: how they were aligned.
        notes: what a reader should know, each in a sentence.
    """

    trajectories: tuple[Trajectory, ...]
    aligned: Aligned
    notes: tuple[str, ...]

    def concluded(self, comparison: Comparison, side: int) -> Comparison:
        """Return a comparison with what can be concluded where there is no verdict, and where a run ends early."""
        aligned = self.aligned
        said = [*comparison.notes, *conclusions(comparison, aligned.scatter[0], aligned.scatter[side])]
        if aligned.part and comparison.verdict == "same":
            end = show(float(self.trajectories[0].times[-1])).replace(",", "")
            said.append(
                f"the same up to there: {aligned.part}. Leave that run out, or ask about this part with --stop {end}"
            )
        return replace(comparison, notes=tuple(said), partial=bool(aligned.part))


def logged(labels: Sequence[str], given: Sequence[Sequence[Log]], asked: Asked) -> Logged:
    """Return logs as trajectories; copies are left out, and runs that have diverged are NaN from there on."""
    sides = _paired(given, labels) if asked.paired else [_once(logs) for logs in given]
    aligned = align(sides, asked.alignment)
    _need_fractions(aligned, asked.judge)
    runs = tuple(_without_diverged(trajectory) for trajectory in aligned.trajectories)
    copies = [note for label, *some in zip(labels, given, sides, strict=True) for note in _copies(label, *some)]
    strange = [
        note for label, one in zip(labels, runs, strict=True) for note in (*_stuck(label, one), *_equal(label, one))
    ]
    return Logged(runs, aligned, (*aligned.notes, *copies, *strange))


def _once(logs: Sequence[Log]) -> list[Log]:
    """Return the runs without copies of others: a copy would count as another seed."""
    found: list[Log] = []
    for log in logs:
        if not any(_is_copy(log, one) for one in found):
            found.append(log)
    return found


def _is_copy(log: Log, other: Log) -> bool:
    """Return whether two logs hold the same values; runs of two seeds may be equal, where nothing is random."""
    return (
        log.seed == other.seed
        and log.columns.keys() == other.columns.keys()
        and all(
            np.array_equal(series.values, other.columns[name].values, equal_nan=True)
            for name, series in log.columns.items()
        )
    )


def _copies(label: str, given: Sequence[Log], kept: Sequence[Log]) -> list[str]:
    if len(given) == len(kept):
        return []
    return [f"{label}: {len(given) - len(kept)} of {len(given)} runs are copies of others, and are left out"]


def _need_fractions(aligned: Aligned, judge: Judge) -> None:
    """Refuse points of an accuracy that is logged in percent: a point is a hundredth of one that goes to 1."""
    if not isinstance(judge.tolerance, Absolute) or judge.tolerance.of != "accuracy":
        return
    for name, values in aligned.trajectories[0].values.items():
        if "accuracy" in name and np.nanmax(values) > 1.5:
            points = show(100 * judge.tolerance.value)
            raise ValueError(
                f"{name} goes up to {show(float(np.nanmax(values)))}, so it is logged in percent; points are of an "
                f"accuracy that goes to 1. Give --tolerance '{points} absolute' (in Python Absolute({points}))"
            )


def _paired(sides: Sequence[Sequence[Log]], labels: Sequence[str]) -> list[list[Log]]:
    """Return the logs with their numbers as seeds."""
    counts = {label: len(logs) for label, logs in zip(labels, sides, strict=True)}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"paired runs must be equally many on all sides, in the same order; got "
            f"{', '.join(f'{n} of {label}' for label, n in counts.items())}"
        )
    return [[replace(log, seed=i) for i, log in enumerate(logs)] for logs in sides]


def _without_diverged(trajectory: Trajectory) -> Trajectory:
    """Return the runs with NaN from where a loss is so far above its start that the run has diverged."""
    values = {name: array.copy() for name, array in trajectory.values.items()}
    for name, array in trajectory.values.items():
        if is_loss(name):
            lost = _diverged_from(trajectory.times, array)
            for one in values.values():
                one[lost] = np.nan
    return replace(trajectory, values=values)


def _diverged_from(times: Array, losses: Array) -> Any:
    """Return which runs have diverged when, ``[R, T]``, by the rule of all runs of the lab (`Divergence`)."""
    watch = Divergence(len(losses))
    numbers = range(len(times))
    for number in numbers:
        watch.watch(number, losses[:, number].tolist(), losses[:, number].tolist(), number == len(times) - 1)
    return np.array([[place is not None and number >= place for number in numbers] for place in watch.places])


def _stuck(label: str, runs: Trajectory) -> list[str]:
    """Return a note on runs of which a loss never came down: they end where they began, or above."""
    notes = []
    for name, values in runs.values.items():
        ended = values[:, -1] >= values[:, 0]
        if is_loss(name) and ended.any():
            notes.append(
                f"{label}: {name} of {int(ended.sum())} of {runs.replicas} runs never came down: it ends at or above "
                f"its first value, {show(float(f'{values[ended][0, 0]:.4g}'))}"
            )
    return notes


def _equal(label: str, runs: Trajectory) -> list[str]:
    """Return a note on runs that are one run several times: they say nothing about chance."""
    if runs.replicas > 1 and all(
        np.array_equal(one, one[:1].repeat(len(one), 0), equal_nan=True) for one in runs.values.values()
    ):
        return [
            f"{label}: all {runs.replicas} runs are equal to the last digit: does the seed reach them? As it is, the "
            "bands know nothing of chance"
        ]
    return []
