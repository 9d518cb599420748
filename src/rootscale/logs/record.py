"""The log of one run as a table: columns of numbers, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Log", "Series", "number_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """A column: its values, and the numbers of the rows that have one. A row without a value has no entry here.

    A value that is not finite was logged as such: it says that the run diverged, not that nothing was logged.
    """

    rows: NDArray[np.int64]
    values: Array

    def __len__(self) -> int:
        """Return how many rows have a value."""
        return len(self.values)

    def at_rows(self, rows: NDArray[np.int64]) -> Array:
        """Return the value at each of these rows, or the last one before it; NaN where there is none before."""
        place = np.searchsorted(self.rows, rows, side="right") - 1
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
        places: dict[str, list[int]] = {}
        values: dict[str, list[float]] = {}
        texts: dict[str, list[str]] = {}
        for number, row in enumerate(rows):
            for key, value in _flat(row):
                found = number_of(value)
                if found is not None:
                    places.setdefault(key, []).append(number)
                    values.setdefault(key, []).append(found)
                elif isinstance(value, str):
                    texts.setdefault(key, []).append(value)
        columns = {key: Series(np.array(places[key], np.int64), np.array(values[key])) for key in values}
        notes = tuple(
            f"{len(texts[key])} of {len(texts[key]) + len(values[key])} values of {key} are no numbers and were left "
            f"out, such as {texts[key][0]!r}"
            for key in columns
            if key in texts
        )
        return cls(name, columns, **{**more, "notes": (*more.get("notes", ()), *notes)})

    @classmethod
    def of_columns(cls, name: str, columns: Mapping[str, Any], **more: Any) -> Log:
        """Return the log of columns of one length, in which NaN stands for "nothing was logged".

        A column that has all values up to some row and NaN from there to its end is a run that diverged.
        """
        found = {key: _column(np.asarray(values, np.float64)) for key, values in columns.items()}
        return cls(name, {key: series for key, series in found.items() if len(series)}, **more)


def _column(values: Array) -> Series:
    finite = np.flatnonzero(np.isfinite(values))
    last = int(finite[-1]) if finite.size else -1
    whole = last >= 0 and finite.size == last + 1
    keep = np.ones(len(values), bool) if whole else ~np.isnan(values)
    return Series(np.flatnonzero(keep).astype(np.int64), values[keep])


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
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
