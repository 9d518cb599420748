"""Runs that were made anywhere, compared by their logs: the verdict of a check, without its runs.

The spread between seeds cannot be seen in a single run: no verdict. What can be seen is the scatter of the logged
values around their own smooth curve. It bounds the spread from below: two runs of one setting differ by at least that
much. So a gap within the scatter shows nothing, and a gap beyond it is a difference of these two runs, whose cause may
be the setting or the seed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rootscale._version import __version__
from rootscale.compare.alignment import Aligned, Alignment, align
from rootscale.compare.columns import is_loss
from rootscale.compare.divergence import Divergence
from rootscale.compare.log import Array, Log, as_logs
from rootscale.compare.result import Result, Table
from rootscale.format import percent, show
from rootscale.gap import Gap
from rootscale.stats import student_quantile
from rootscale.tolerance import Absolute
from rootscale.trajectory import Trajectory
from rootscale.verdict import FEWEST, Comparison, Judge, diverged_counts

#: Runs a side from which on a verdict is of use.
USEFUL = 4
#: Values of a column that are looked at first.
_GLANCE = 100
_ASSUMED = "assuming that values scatter independently around the smooth curve, beyond what neighbours share"
_CAUSE = "Whether the setting or the seed made the difference cannot be told"


_JUDGE = Judge()


def compare(
    base: Any,
    *others: Any,
    names: Sequence[str] = (),
    alignment: Alignment | None = None,
    judge: Judge = _JUDGE,
    paired: bool = False,
    task: str = "",
    command: str = "",
    whole: Trajectory | None = None,
) -> Table:
    """Compare runs by what they logged: are the others the same as the base, within a tolerance?

    >>> import numpy as np
    >>> rng, x = np.random.default_rng(0), np.linspace(1_000, 50_000, 50)
    >>> loss = 0.5 + np.exp(-x / 10_000)
    >>> base = {"samples": x, "loss": loss + 0.004 * rng.normal(size=(4, 50))}
    >>> other = {"samples": x, "loss": loss + 0.15 + 0.004 * rng.normal(size=(4, 50))}
    >>> compare(base, other).verdict
    'different'

    Args:
        base: the runs of the base, one or many: dicts of arrays, lists of rows, DataFrames, trajectories, or logs that
            `read_logs` read; `rootscale.compare.as_logs` has the whole list.
        others: those they are compared with, each side like the base.
        names: of the base and of the others, for legends.
        alignment: clock, metrics, batch sizes, smoothing and grid.
        judge: what makes runs the same; ``decide_by`` names metrics, and None is all that are compared.
        paired: whether the runs of all sides share seeds in the order in which they are given: the first of each with
            the first, and so on.
        task: what the whole is called.
        command: what is recorded as the command that made it.
        whole: the base to its end, on the same clock, where the first part of the runs is compared: its range is the
            unit of the gap.

    Returns:
        A `Table`, as `rootscale.lab.check` makes one: it can be saved, and `rootscale.report` makes a page of it.
        Its results have no plans, and ``made["notes"]`` says how the logs were read.
    """
    if not others:
        raise ValueError("nothing to compare with: give at least one other side, compare(base, other)")
    labels = list(names) or [
        "base",
        *(("other",) if len(others) == 1 else [f"other {i + 1}" for i in range(len(others))]),
    ]
    if len(labels) != 1 + len(others) or len(set(labels)) != len(labels):
        raise ValueError(f"names must be {1 + len(others)} different ones, the base first; got {labels}")
    given = [as_logs(label, some) for label, some in zip(labels, (base, *others), strict=True)]
    read = logged(labels, given, _Logs(alignment or Alignment(), judge, paired))
    first, *rest = read.trajectories
    deciding = replace(judge, decide_by=judge.decide_by or first.names)
    results = [
        Result(label, "log", None, None, runs, read.concluded(deciding.compare(first, runs, whole=whole), side))
        for side, (label, runs) in enumerate(zip(labels[1:], rest, strict=True), 1)
    ]
    made = {
        **({"command": command} if command else {}),
        "versions": {"rootscale": __version__, "numpy": np.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "notes": list(read.notes),
    }
    base_result = Result(labels[0], "base", None, None, first)
    return Table(task or " and ".join(labels), base_result, tuple(results), 0, made, None, judge)


@dataclass(frozen=True)
class _Logs:
    """What is asked of logs, by `compare`."""

    alignment: Alignment
    judge: Judge
    paired: bool


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
        said = [*comparison.notes, *_conclusions(comparison, aligned.scatter[0], aligned.scatter[side])]
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
    beginnings: dict[Any, list[Log]] = {}  # which tell nearly all runs apart, without reading all of them
    for log in logs:
        start = frozenset((name, series.values[:_GLANCE].tobytes()) for name, series in log.columns.items())
        alike = beginnings.setdefault((log.seed, start), [])
        if not any(_is_copy(log, one) for one in alike):
            alike.append(log)
            found.append(log)
    return found


def _is_copy(log: Log, other: Log) -> bool:
    """Return whether two logs of one seed and the same columns hold the same values.

    Runs of two seeds may be equal, where nothing is random.
    """
    pairs = [(series.values, other.columns[name].values) for name, series in log.columns.items()]
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


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


# -- what one run a side shows -----------------------------------------------------------------------------------------


def _conclusions(comparison: Comparison, base: Mapping[str, Array], other: Mapping[str, Array]) -> tuple[str, ...]:
    """Return a sentence on each deciding metric of a comparison without a verdict.

    Args:
        comparison: of too few runs for a verdict.
        base, other: the standard errors that the scatter of logged values gives the mean curves, ``[T]`` each; they may
            begin before the window of the comparison.
    """
    n = min(comparison.seeds)
    if comparison.verdict is not None or n >= FEWEST:
        return ()
    runs = "one run" if n == 1 else f"{n} runs"
    found = [f"{runs} on a side cannot show how far seeds differ: no verdict; run at least {USEFUL} of each"]
    if comparison.divergence != "same":
        return *found, f"{diverged_counts(comparison)}: these runs differ. {_CAUSE}"
    for gap in comparison.decisive:
        length = len(gap.times)
        scatter = np.sqrt(base[gap.name][-length:] ** 2 + other[gap.name][-length:] ** 2) / gap.range
        found.append(_conclusion(gap, scatter, comparison.limit(gap), comparison.level))
    return tuple(found)


def _conclusion(gap: Gap, scatter: Array, tolerance: float, level: float) -> str:
    known = np.isfinite(gap.gap) & np.isfinite(scatter)
    if not known.any():
        return f"{gap.name}: no gap could be measured"
    size, c = np.abs(gap.gap[known]), student_quantile(1000.0, 1 - (1 - level) / (2 * int(known.sum())))
    half = c * scatter[known]
    noise = f"the scatter of the logged values alone is ± {percent(float(np.median(half)))} ({_ASSUMED})"
    if np.any(size - half > tolerance):
        return f"{gap.name}: these runs differ by more than {percent(tolerance)}; {noise}. {_CAUSE}"
    if np.all(size + half <= tolerance):
        return (
            f"{gap.name}: no difference beyond {percent(tolerance)} is seen between these runs; {noise}. That is not "
            '"same": another seed may differ by more'
        )
    return (
        f"{gap.name}: nothing can be told at {percent(tolerance)}; {noise}. A wider --window, more runs or a larger "
        "--tolerance would help"
    )
