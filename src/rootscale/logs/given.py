"""Logs from what Python programs hold: arrays, dicts, rows, frames of pandas and polars, trajectories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rootscale.logs.record import Log
from rootscale.trajectory import Trajectory

__all__ = ["as_logs"]

_FORMS = (
    "a dict of arrays {'samples': x, 'loss': y} (y of one run, or [runs, points]), a list of rows {'samples': 1000, "
    "'loss': 0.9}, a pair (samples, loss), a DataFrame, a rootscale Trajectory or Log, or a list of these"
)


def as_logs(name: str, given: Any) -> list[Log]:
    """Return the logs of the runs of one side.

    Args:
        name: of the side, for messages.
        given: one run or several: a dict of arrays (``{"samples": x, "loss": y}``; y may be ``[runs, points]``), a list
            of rows, a pair ``(samples, loss)``, a DataFrame of pandas or polars, a `Trajectory`, a `Log`, or a list of
            any of these.
    """
    if isinstance(given, str | os.PathLike):
        raise TypeError(
            f"{name} is the path {os.fspath(given)!r}; read it first: "
            f"rootscale.integrations.logs.read_logs([{os.fspath(given)!r}])"
        )
    if isinstance(given, Log):
        return [given]
    if isinstance(given, Trajectory):
        return _of_trajectory(name, given)
    if isinstance(given, Mapping):
        return _of_columns(name, given)
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        return _of_columns(name, _frame(given))
    if _is_pair(given):
        return _of_columns(name, {"samples": given[0], "loss": given[1]})
    if not isinstance(given, Sequence) or not len(given):
        raise TypeError(f"{name} must be {_FORMS}; got {type(given).__name__}")
    if all(isinstance(row, Mapping) and not any(np.ndim(value) for value in row.values()) for row in given):
        return [Log.of_rows(name, given)]
    return [log for i, one in enumerate(given) for log in as_logs(f"{name}[{i}]", one)]


def _is_pair(given: Any) -> bool:
    """Return whether it is places and values, and not a list of two runs."""
    if not isinstance(given, tuple) or len(given) != 2 or any(isinstance(part, Mapping) for part in given):
        return False
    return all(isinstance(part, np.ndarray | list | tuple) or hasattr(part, "__array__") for part in given)


def _frame(frame: Any) -> dict[str, Any]:
    """Return the columns of numbers of a frame."""
    found = {}
    for key in frame.columns:
        try:
            found[str(key)] = np.asarray(frame[key], np.float64)
        except (TypeError, ValueError):
            continue  # text, dates
    return found


def _of_columns(name: str, columns: Mapping[Any, Any]) -> list[Log]:
    """Return one log, or one for each row of the columns that are ``[runs, points]``."""
    arrays: dict[str, Any] = {}
    for key, values in columns.items():
        try:
            arrays[str(key)] = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"{name}[{key!r}] must be numbers, got {type(values).__name__}") from None
    sizes = {key: array.shape for key, array in arrays.items() if array.ndim}
    points = {shape[-1] for shape in sizes.values()}
    runs = {shape[0] for shape in sizes.values() if len(shape) == 2}
    if not sizes or len(points) != 1 or len(runs) > 1 or any(len(shape) > 2 for shape in sizes.values()):
        raise ValueError(
            f"the columns of {name} must have one length (or [runs, points]), got "
            f"{ {key: list(array.shape) for key, array in arrays.items()} }"
        )
    size = arrays.get("batch_size")
    more = {"batch_size": float(size)} if size is not None and not size.ndim else {}
    arrays = {key: array for key, array in arrays.items() if array.ndim}
    if not runs:
        return [Log.of_columns(name, arrays, **more)]
    return [
        Log.of_columns(f"{name}[{i}]", {key: a[i] if a.ndim == 2 else a for key, a in arrays.items()}, **more)
        for i in range(runs.pop())
    ]


def _of_trajectory(name: str, trajectory: Trajectory) -> list[Log]:
    """Return a log for each replica; its clock is the samples seen where those were recorded, else the time."""
    if not trajectory.values:
        raise ValueError(f"{name} has means and standard errors only; a comparison needs the values of every run")
    samples, seeds = trajectory.meta.get("samples"), trajectory.meta.get("seeds")
    clock = {"time": trajectory.times} if samples is None else {"samples": samples}
    return [
        Log.of_columns(
            f"{name}[{i}]",
            {**clock, **{key: values[i] for key, values in trajectory.values.items()}},
            seed=int(seeds[i]) if seeds else None,
        )
        for i in range(trajectory.replicas)
    ]
