"""The log of one run: columns of numbers, made of rows, arrays, frames of pandas and polars, or trajectories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootscale.trajectory import Trajectory

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

_FORMS = (
    "a dict of arrays {'samples': x, 'loss': y} (y of one run, or [runs, points]), a list of rows {'samples': 1000, "
    "'loss': 0.9}, a pair (samples, loss), a DataFrame, a rootscale Trajectory or Log, or a list of these"
)


@dataclass(frozen=True, eq=False)
class Series:
    """A column of a log.

    A value that is not finite was logged as such: it says that the run diverged, not that nothing was logged.

    Args:
        values: of the rows that have one, in order.
        index: the numbers of these rows; None where every row has a value.
    """

    values: Array
    index: Rows | None = None

    def __len__(self) -> int:
        """Return how many rows have a value."""
        return len(self.values)

    @property
    def rows(self) -> Rows:
        """Return the numbers of the rows that have a value."""
        return np.arange(len(self.values)) if self.index is None else self.index

    def at(self, other: Series) -> Array:
        """Return the value at each row of another column, or the last one before it; NaN where there is none before."""
        if self.index is None and other.index is None and len(self) >= len(other):
            return self.values[: len(other)]
        place = np.searchsorted(self.rows, other.rows, side="right") - 1
        return np.where(place >= 0, self.values[np.maximum(place, 0)], np.nan)


@dataclass(frozen=True, eq=False)
class Log:
    """What one run logged.

    Args:
        name: where it comes from, for messages.
        columns: by name.
        batch_size: samples in a step, where the tool wrote it down.
        averaged: columns of which a value is the mean since the value before, not that of one step.
        seed: of the run, where it is known; runs of equal seeds on both sides are compared with each other.
        notes: what a reader should know of how it was read.
    """

    name: str
    columns: Mapping[str, Series]
    batch_size: float | None = None
    averaged: frozenset[str] = frozenset()
    seed: int | None = None
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of_rows(cls, name: str, rows: Iterable[Mapping[str, Any]], **more: Any) -> Log:
        """Return the log of rows such as ``{"samples": 1000, "loss": 0.9}``; what is no number is left out.

        A row within a row is named by its path: ``{"train": {"loss": 1.0}}`` is ``train/loss``.
        """
        columns = Columns()
        columns.add_rows(list(rows))
        return columns.to_log(name, **more)

    @classmethod
    def of_columns(cls, name: str, columns: Mapping[str, Any], **more: Any) -> Log:
        """Return the log of columns of one length, in which NaN stands for "nothing was logged".

        A column that has all values up to some row and NaN from there to its end is a run that diverged.
        """
        series = {key: _column(np.asarray(values, np.float64)) for key, values in columns.items()}
        return cls(name, {key: column for key, column in series.items() if len(column)}, **more)


def _column(values: Array) -> Series:
    finite = np.isfinite(values)
    if not finite.any():
        return _at_rows(values, ~np.isnan(values))
    last = len(values) - int(np.argmax(finite[::-1]))
    return Series(values) if finite[:last].all() else _at_rows(values, ~np.isnan(values))


def _at_rows(values: Array, keep: NDArray[np.bool_]) -> Series:
    return Series(values) if keep.all() else Series(values[keep], np.flatnonzero(keep))


class Columns:
    """The columns of a log that is read in blocks of rows."""

    def __init__(self) -> None:
        self._rows = 0
        self._blocks: dict[str, list[tuple[int, Series]]] = {}
        self._texts: dict[str, list[str]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns that have a number so far."""
        return tuple(self._blocks)

    @property
    def rows(self) -> int:
        """Return how many rows there are so far."""
        return self._rows

    def add(self, block: Mapping[str, Series], rows: int) -> None:
        """Add the columns of a block of so many rows."""
        for key, series in block.items():
            if len(series):
                self._blocks.setdefault(key, []).append((self._rows, series))
        self._rows += rows

    def add_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows; what is neither a number nor the text of one is left out."""
        keys = dict.fromkeys(chain.from_iterable(rows))
        values = {key: [row.get(key) for row in rows] for key in keys}
        if any(issubclass(kind, Mapping) for column in values.values() for kind in set(map(type, column))):
            self.add_rows([dict(_flat(row)) for row in rows])
        else:
            self.add_values(values, len(rows))

    def add_values(self, values: Mapping[str, Sequence[Any]], rows: int) -> None:
        """Add columns of a block of so many rows, with None where there is no value."""
        block: dict[str, Series] = {}
        for key, column in values.items():
            block[key], texts = _numbers(column)
            if texts:
                self._texts.setdefault(key, []).extend(texts)
        self.add(dict(sorted(block.items(), key=_first_row)), rows)

    def to_log(self, name: str, **more: Any) -> Log:
        """Return the log of all blocks."""
        columns = {key: self._joined(key) for key in list(self._blocks)}
        notes = tuple(
            f"{len(texts)} of {len(texts) + len(columns[key])} values of {key} are no numbers and were left out, such "
            f"as {texts[0]!r}"
            for key, texts in self._texts.items()
            if key in columns
        )
        return Log(name, columns, **{**more, "notes": (*more.get("notes", ()), *notes)})

    def _joined(self, key: str) -> Series:
        """Return a column, whose blocks are not needed any more."""
        blocks = self._blocks.pop(key)
        values = np.concatenate([series.values for _, series in blocks])
        if len(values) == self._rows:
            return Series(values)
        return Series(values, np.concatenate([start + series.rows for start, series in blocks]))


def _first_row(column: tuple[str, Series]) -> int:
    index = column[1].index
    return 0 if index is None or not len(index) else int(index[0])


def _numbers(values: Sequence[Any]) -> tuple[Series, list[str]]:
    """Return the numbers among values, and the texts that are none."""
    kinds = set(map(type, values))
    if kinds <= {int, float} or kinds == {str}:
        with suppress(OverflowError, ValueError):  # an int of 400 digits, a text that is no number: one by one, then
            return Series(np.fromiter(map(float, values), np.float64, len(values))), []
    numbers = [number_of(value) for value in values]
    index = [i for i, number in enumerate(numbers) if number is not None]
    texts = [value for value, number in zip(values, numbers, strict=True) if number is None and isinstance(value, str)]
    found = np.array([numbers[i] for i in index], np.float64)
    return Series(found, None if len(found) == len(values) else np.array(index, np.int64)), texts


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}/")
        else:
            yield f"{before}{key}", value


_NUMBERS = (int, float, str, np.integer, np.floating)


def number_of(value: Any) -> float | None:
    """Return a number that was logged, as such or as text; None for what is none.

    >>> number_of("1e-3"), number_of("NaN"), number_of("")
    (0.001, nan, None)
    """
    if value is None or isinstance(value, bool) or not isinstance(value, _NUMBERS):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


# -- what Python programs hold ---------------------------------------------------------------------------------------


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
            f"rootscale.compare.read_logs([{os.fspath(given)!r}])"
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
