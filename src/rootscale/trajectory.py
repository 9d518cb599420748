"""Values of test functions over continuous time, for many replicas, with what made them.

The meeting point of practice and theory: training runs and SDE solvers both end in a `Trajectory`, and comparisons and
reports start from one. On disk it is one ``.npz`` file that numpy reads without this package.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rootscale.files import whole
from rootscale.format import frame_of, html_table, plus_minus

__all__ = ["Trajectory"]

Array = NDArray[np.float64]
_SECTIONS = ("values", "mean", "se")


@dataclass(frozen=True)
class Estimate:
    """A mean over replicas at each time, and its standard error; both ``[T]``."""

    mean: Array
    se: Array

    def __iter__(self) -> Iterator[Array]:
        """Unpack as ``mean, se = trajectory["loss"]``."""
        return iter((self.mean, self.se))


@dataclass(frozen=True)
class Trajectory:
    """Test functions at times ``times``: the value for each replica, or mean and standard error of very many.

    Replicas that diverged have NaN in ``values``. They are counted in ``diverged`` and left out of means and standard
    errors, which therefore are conditional on not having diverged: look at ``diverged`` before you trust them.

    Args:
        times: ``[T]``, increasing, in continuous time.
        values: by name, ``[R, T]``; or empty, where ``estimates`` is given.
        estimates: by name, where replicas were too many to keep.
        replicas: how many there were; taken from ``values`` if those are given.
        diverged: ``[T]``, how many of them had diverged at each time; counted in ``values`` if those are given.
        meta: what made it: anything that JSON can hold.
    """

    times: Array
    values: Mapping[str, Array] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    replicas: int = 0
    diverged: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = _array("times", self.times, 1)
        if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
            raise ValueError(f"times must be finite and increasing, got {times.tolist()}")
        if bool(self.values) == bool(self.estimates):
            given = "both" if self.values else "neither"
            raise ValueError(f"a trajectory has either values [R, T] or estimates (mean and se, [T]), got {given}")
        values = {name: _array(f"values[{name!r}]", value, 2) for name, value in self.values.items()}
        replicas, diverged = self.replicas, np.asarray(self.diverged, np.int64)
        if values:
            shapes = {value.shape for value in values.values()}
            if len(shapes) > 1 or next(iter(shapes))[1] != len(times):
                raise ValueError(f"values must all be [R, T] with T={len(times)} times, got {sorted(shapes)}")
            replicas = next(iter(shapes))[0]
            diverged = _lost(values).sum(0)
        elif not diverged.size:
            diverged = np.zeros(len(times), np.int64)
        estimates = {
            name: Estimate(_array(f"mean[{name!r}]", e.mean, 1), _array(f"se[{name!r}]", e.se, 1))
            for name, e in self.estimates.items()
        }
        for name, array in [(n, a) for n, e in estimates.items() for a in e] + [("diverged", diverged)]:
            if array.shape != times.shape:
                raise ValueError(f"{name} must be [T] with T={len(times)} times, got the shape {list(array.shape)}")
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        for name, value in (("times", times), ("values", MappingProxyType(values)), ("replicas", int(replicas)),
                            ("estimates", MappingProxyType(estimates)), ("diverged", diverged),
                            ("meta", MappingProxyType(dict(self.meta)))):  # fmt: skip
            object.__setattr__(self, name, value)

    @classmethod
    def of_runs(
        cls, samples: ArrayLike, values: Mapping[str, ArrayLike], seeds: Iterable[int] | None = None
    ) -> Trajectory:
        """Return the trajectory of training runs that you made yourself, over the samples that they had seen.

        Args:
            samples: ``[T]``, samples seen when the values were taken, increasing.
            values: by name, ``[R, T]``, with a row for each run.
            seeds: of the runs, by which they are paired with those of another set; None is 0, 1, 2, ...

        >>> runs = Trajectory.of_runs([100, 200], {"loss": [[0.9, 0.7], [0.8, 0.6]]})
        >>> runs.replicas, runs["loss"].mean.round(2).tolist(), runs.meta["seeds"]
        (2, [0.85, 0.65], [0, 1])
        """
        arrays = {name: _array(f"values[{name!r}]", value, 2) for name, value in values.items()}
        numbers = list(range(max((len(array) for array in arrays.values()), default=0)) if seeds is None else seeds)
        times = _array("samples", samples, 1)
        made = cls(times, arrays, meta={"samples": [round(at) for at in times.tolist()], "seeds": numbers})
        if len(numbers) != made.replicas:
            raise ValueError(f"there must be one seed for each of the {made.replicas} runs, got {len(numbers)}")
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the test functions."""
        return tuple(self.values or self.estimates)

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which replicas had diverged at which time, ``[R, T]``: a test function was not finite."""
        return _lost(self.values)

    def __getitem__(self, name: str) -> Estimate:
        """Return mean and standard error over the replicas that had not diverged; an error of fewer than two is NaN."""
        if name not in self.names:
            raise KeyError(f"no test function {name!r}; there are {', '.join(map(repr, self.names))}")
        if self.estimates:
            return self.estimates[name]
        lost = self.lost
        kept = np.where(lost, 0.0, self.values[name])
        count = (~lost).sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(count > 0, kept.sum(0) / count, np.nan)
            squares = np.where(lost, 0.0, (kept - mean) ** 2).sum(0)
            return Estimate(mean, np.where(count > 1, np.sqrt(squares / (count - 1) / count), np.nan))

    def to_frame(self) -> Any:
        """Return a row for each replica and time (or each time, for estimates) as a DataFrame.

        It is one of pandas, or of polars where only that is installed. ``run`` is the seed, where seeds are known.
        """
        samples = {"samples": self.meta["samples"]} if "samples" in self.meta else {}
        if self.estimates:
            errors = {f"{name} se": one.se for name, one in self.estimates.items()}
            means = {name: one.mean for name, one in self.estimates.items()}
            return frame_of({"time": self.times, **samples, **means, **errors})
        runs = np.asarray(self.meta.get("seeds") or range(self.replicas))
        clocks = {"time": self.times, **samples}
        return frame_of({
            "run": np.repeat(runs, len(self.times)),
            **{name: np.tile(np.asarray(clock), self.replicas) for name, clock in clocks.items()},
            **{name: values.ravel() for name, values in self.values.items()},
        })  # fmt: skip

    def _repr_html_(self) -> str:
        columns = ("function", "at the start", "at the end", "smallest", "largest")
        rows = []
        for name in self.names:
            mean, se = self[name]
            low, high = np.nan_to_num(mean, nan=np.inf).argmin(), np.nan_to_num(mean, nan=-np.inf).argmax()
            places = (0, -1, int(low), int(high))
            rows.append([name, *(plus_minus(float(mean[i]), float(se[i])) for i in places)])
        lost = int(self.diverged[-1])
        title = f"{self.replicas} runs at {len(self.times)} times, means and standard errors"
        return html_table(title, columns, rows, [f"{lost} of {self.replicas} runs diverged"] if lost else [])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trajectory to ``path`` (ending in ``.npz``): all of it or, on any failure, nothing.

        The arrays are ``times``, ``replicas``, ``diverged``, ``meta`` (JSON), and ``values/<name>`` or ``mean/<name>``
        and ``se/<name>``.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"a trajectory is saved as .npz, got {path.name!r}; use {path.name + '.npz'!r}")
        try:
            meta = json.dumps(dict(self.meta))
        except TypeError as error:
            raise TypeError(f"meta must hold what JSON can hold (numbers, text, lists, dicts): {error}") from error
        arrays: dict[str, Any] = {"times": self.times, "replicas": self.replicas, "diverged": self.diverged}
        arrays["meta"] = np.array(meta)
        arrays |= {f"values/{name}": value for name, value in self.values.items()}
        for name, estimate in self.estimates.items():
            arrays |= {f"mean/{name}": estimate.mean, f"se/{name}": estimate.se}
        with whole(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectory:
        """Read what `save` wrote."""
        with Path(path).open("rb") as file:
            try:
                return cls._read(file)
            except Exception as error:  # a broken .npz raises almost anything
                raise ValueError(f"{os.fspath(path)} is not a saved trajectory, or is damaged: {error}") from None

    @classmethod
    def _read(cls, raw: BinaryIO) -> Trajectory:
        if not zipfile.is_zipfile(raw):  # numpy would advise to unpickle it
            raise ValueError("no whole .npz file")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            missing = {"times", "replicas", "diverged", "meta"} - set(file.files)
            if missing:
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            parts: dict[str, dict[str, Array]] = {section: {} for section in _SECTIONS}
            for key in file.files:
                section, slash, name = key.partition("/")
                if slash:
                    parts[section][name] = file[key]
            estimates = {name: Estimate(mean, parts["se"][name]) for name, mean in parts["mean"].items()}
            return cls(
                file["times"], parts["values"], estimates, int(file["replicas"]), file["diverged"],
                json.loads(str(file["meta"])),
            )  # fmt: skip


def need_keys(what: str, record: Any, keys: Iterable[str]) -> None:
    """Refuse a record read from JSON that is no object, or lacks one of these keys, with the names of the keys."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{what} must be a JSON object, got {type(record).__name__}")
    missing = [key for key in keys if key not in record]
    if missing:
        raise ValueError(f"{what} must have {', '.join(map(repr, keys))}; missing: {', '.join(map(repr, missing))}")


def _lost(values: Mapping[str, Array]) -> NDArray[np.bool_]:
    lost: NDArray[np.bool_] = np.any([~np.isfinite(value) for value in values.values()], axis=0)
    return lost


def _array(name: str, value: ArrayLike, ndim: int) -> Array:
    array = np.array(value, np.float64)
    if array.ndim != ndim:
        raise ValueError(
            f"{name} must have {ndim} dimension{'s' if ndim > 1 else ''}, got the shape {list(array.shape)}"
        )
    array.flags.writeable = False
    return array
