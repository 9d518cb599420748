"""Runs that were made elsewhere, compared by their logs: the verdict of the check, without its runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rootscale._version import __version__
from rootscale.format import show
from rootscale.lab.divergence import Divergence
from rootscale.lab.result import Arm, Check
from rootscale.logs import Aligned, Alignment, Log, align, as_logs
from rootscale.logs.metrics import is_loss
from rootscale.logs.one_run import conclusions
from rootscale.logs.record import Array
from rootscale.tolerance import Absolute, tolerance_to_json
from rootscale.trajectory import Trajectory
from rootscale.verdict import Judge

__all__ = ["compare"]

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
) -> Check:
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
            `rootscale.integrations.logs.read_logs` read; `rootscale.logs.as_logs` has the whole list.
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
        A `Check`, as `rootscale.lab.check` makes one: it can be saved, and `rootscale.report` makes a page of it.
        Its arms have no plans, and ``made["notes"]`` says how the logs were read.
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
    sides = _paired(given, labels) if paired else [_once(logs) for logs in given]
    aligned = align(sides, alignment)
    _need_fractions(aligned, judge)
    runs = [_without_diverged(trajectory) for trajectory in aligned.trajectories]
    arms = tuple(_arm(label, runs[0], one, i + 1, aligned, judge, whole) for i, (label, one) in enumerate(
        zip(labels[1:], runs[1:], strict=True)))  # fmt: skip
    made = {
        **({"command": command} if command else {}),
        "versions": {"rootscale": __version__, "numpy": np.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "tolerance": tolerance_to_json(judge.tolerance),
        "level": judge.level,
        "notes": [
            *aligned.notes,
            *(note for label, *some in zip(labels, given, sides, strict=True) for note in _copies(label, *some)),
            *(
                note
                for label, one in zip(labels, runs, strict=True)
                for note in (*_stuck(label, one), *_equal(label, one))
            ),
        ],
    }
    return Check(task or " and ".join(labels), Arm(labels[0], "base", None, None, runs[0]), arms, 0, made)


def _arm(
    label: str, base: Trajectory, other: Trajectory, side: int, aligned: Aligned, judge: Judge, whole: Trajectory | None
) -> Arm:
    """Return a side with its comparison, and with what can be concluded where there is no verdict."""
    comparison = replace(judge, decide_by=judge.decide_by or base.names).compare(base, other, whole=whole)
    said = [*comparison.notes, *conclusions(comparison, aligned.scatter[0], aligned.scatter[side])]
    if aligned.part and comparison.verdict == "same":
        end = show(float(base.times[-1])).replace(",", "")
        said.append(
            f"the same up to there: {aligned.part}. Leave that run out, or ask about this part with --stop {end}"
        )
    return Arm(label, "log", None, None, other, replace(comparison, notes=tuple(said), partial=bool(aligned.part)))


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
