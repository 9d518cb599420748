"""What a study found: the arms that were compared, saved as one file and read again."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.files import remove_temporary, whole
from rootscale.format import few_digits, frame_of, html_table, listed, percent, typeset
from rootscale.gap import Verdict
from rootscale.pairing import Array
from rootscale.pairing import window as pairing_window
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory
from rootscale.verdict import Comparison, Judge

#: The part of the file that holds all but numbers, as JSON.
_RECORD = "table"


@dataclass(frozen=True)
class Result:
    """One way of running the task, and how it compares with the base.

    Args:
        label: such as ``B = 16``, ``B = 16, linear`` or ``SVAG ell = 2``; unique within a check.
        kind: ``base``, ``batch size``, ``svag`` or, for runs that were read from logs, ``log``.
        plan: the plan of this run; None where it was read from a log.
        changes: from the base's plan, as `rootscale.changes.Changes.to_dict` gives them; None for the base.
        trajectory: of its replicas; ``meta`` has ``samples`` (the samples seen at each time) and ``seeds``.
        comparison: with the base; its verdict is None where there were too few seeds. None for the base itself.
        guards: warnings that the conversion gave.
        causes: why it is different, likeliest first.
        factors: by which it differs from the base: rule, kappa, ell, and what else a study varies.
    """

    label: str
    kind: str
    plan: Plan | None
    changes: Mapping[str, Any] | None
    trajectory: Trajectory
    comparison: Comparison | None = None
    guards: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    factors: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """None for the base, and where there were too few seeds for one."""
        return None if self.comparison is None else self.comparison.verdict

    @property
    def the_plan(self) -> Plan:
        """The plan of a run that has one; `ValueError` for a run that was read from a log."""
        if self.plan is None:
            raise ValueError(f"{self.label!r} was read from a log and has no plan")
        return self.plan

    def to_dict(self, comparisons: bool) -> dict[str, Any]:
        """Return it in JSON's types, but for the values of its trajectory; with its comparison or without."""
        kept = self.comparison is not None and comparisons
        return {
            "label": self.label,
            "kind": self.kind,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "changes": self.changes,
            "comparison": self.comparison.to_dict() if self.comparison is not None and kept else None,
            "guards": list(self.guards),
            "causes": list(self.causes),
            "factors": dict(self.factors),
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, record: Any, trajectory: Trajectory) -> Result:
        """Read what `to_dict` gave."""
        return cls(
            label=_need(record, "label", str),
            kind=_need(record, "kind", str),
            plan=_made("plan", _plan, _need(record, "plan", dict, type(None))),
            changes=_need(record, "changes", dict, type(None)),
            trajectory=trajectory,
            comparison=_made("comparison", _comparison, _need(record, "comparison", dict, type(None))),
            guards=tuple(_need(record, "guards", list)),
            causes=tuple(_need(record, "causes", list)),
            factors=_need(record, "factors", dict),
        )


@dataclass(frozen=True)
class Table:
    """What a study found: values of test functions by arm, seed and time, with the fields of the arms.

    Args:
        task: its name.
        base: the run as it is.
        others: what it was compared with.
        switch_at: samples seen before the switch; 0 for runs from scratch.
        made: how: command, versions, hardware, seconds (of all runs, however often they were stopped).
        warm: the trajectory up to the switch, where there is one.
        judge: of its comparisons.
    """

    task: str
    base: Result
    others: tuple[Result, ...]
    switch_at: int
    made: Mapping[str, Any]
    warm: Trajectory | None = None
    judge: Judge = field(default_factory=Judge)

    @property
    def verdict(self) -> Verdict:
        """Different if any of `changed` is, same if all are."""
        verdicts = {arm.verdict for arm in self.changed}
        return "different" if "different" in verdicts else "same" if verdicts == {"same"} else "undecided"

    @property
    def changed(self) -> tuple[Result, ...]:
        """The arms that answer what was asked: those of SVAG test the theory, and count where there are no others."""
        return tuple(arm for arm in self.others if arm.kind != "svag") or self.others

    def __getitem__(self, label: str) -> Result:
        """Return the arm of that label."""
        for arm in (self.base, *self.others):
            if arm.label == label:
                return arm
        labels = ", ".join(repr(arm.label) for arm in (self.base, *self.others))
        raise KeyError(f"no arm {label!r}; there are {labels}")

    def judged(self) -> Table:
        """Return the table with all comparisons made anew by its judge."""
        trajectories = {result.label: result.trajectory for result in (self.base, *self.others)}
        base = trajectories.get(self.judge.against, self.base.trajectory)
        others = (replace(result, comparison=self.judge.compare(base, result.trajectory)) for result in self.others)
        return replace(self, others=tuple(others))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each arm, seed, time and test function, with the fields of the arm: what pandas reads."""
        for result in (self.base, *self.others):
            runs = result.trajectory
            seeds, samples = runs.meta.get("seeds", range(runs.replicas)), runs.meta.get("samples", runs.times.tolist())
            for name, values in runs.values.items():
                for seed, row in zip(seeds, values.tolist(), strict=True):
                    for time, at, value in zip(runs.times.tolist(), samples, row, strict=True):
                        yield {
                            "arm": result.label, **result.factors, "seed": seed, "time": time, "samples": at,
                            "function": name, "value": value,
                        }  # fmt: skip

    def to_frame(self) -> Any:
        """Return a row for each arm and test function as a DataFrame of pandas, or of polars where only that is there.

        Gaps are shares of the range of the base's mean curve, where they are largest, with their bands.
        """
        pairs = [(arm, gap) for arm in self.others if arm.comparison for gap in arm.comparison.gaps.values()]
        largest = [(arm, gap, gap.largest) for arm, gap in pairs]
        return frame_of({
            "arm": [arm.label for arm, _, _ in largest],
            "function": [gap.name for _, gap, _ in largest],
            "verdict": [gap.verdict for _, gap, _ in largest],
            "verdict of the arm": [arm.verdict for arm, _, _ in largest],
            **{key: [getattr(far, key) for _, _, far in largest] for key in ("gap", "se", "low", "high")},
            "at": [place_of(far.time, arm.trajectory) for arm, _, far in largest],
        })  # fmt: skip

    def _repr_html_(self) -> str:
        rows = []
        for arm in self.others:
            for gap in arm.comparison.gaps.values() if arm.comparison else ():
                far = gap.largest
                band = f"{percent(far.low, sign='+')} to {percent(far.high, sign='+')}"
                rows.append([arm.label, gap.name, gap.verdict or "not judged", percent(far.gap, sign="+"), band,
                             place(far.time, arm.trajectory)])  # fmt: skip
        columns = ("", "function", "verdict", "largest gap, of the base's range", "its band", "at")
        return html_table(f"{self.task}: {self.verdict}, compared with {self.base.label}", columns, rows)

    def save(self, where: str | Path, comparisons: bool = True) -> Path:
        """Write it as one compressed file, all of it or nothing; numpy reads it without this package.

        Args:
            where: a file that ends in ``.npz``, or a folder, in which it is ``table.npz``.
            comparisons: whether comparisons are kept, bands and all; otherwise `load` makes them anew.
        """
        path = _file(Path(where))
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary(path.parent)
        arrays: dict[str, Any] = {}
        results = (self.base, *self.others)
        record = {
            "task": self.task,
            "verdict": self.verdict,
            "switch_at": self.switch_at,
            "judge": self.judge.to_dict(),
            "compared": comparisons,
            "warm": None if self.warm is None else _packed("warm", self.warm, arrays),
            "arms": [
                {**result.to_dict(comparisons), "runs": _packed(f"arm-{i}", result.trajectory, arrays)}
                for i, result in enumerate(results)
            ],
            "made": dict(self.made),
        }
        arrays[_RECORD] = np.array(json.dumps(record, allow_nan=False))
        with whole(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        return path

    @classmethod
    def load(cls, where: str | Path) -> Table:
        """Read what `save` wrote."""
        path = _file(Path(where))
        try:
            with path.open("rb") as raw:
                if not zipfile.is_zipfile(raw):  # numpy would advise to unpickle it
                    raise ValueError("no whole .npz file")
                raw.seek(0)
                with np.load(raw, allow_pickle=False) as file:
                    if _RECORD not in file.files:
                        raise ValueError("it has no table")
                    return cls._read(json.loads(str(file[_RECORD])), file)
        except FileNotFoundError:
            raise ValueError(
                f"{path.parent} holds no {path.name}; give the folder that `rootscale check --out FOLDER` wrote"
            ) from None
        except OSError:
            raise
        except Exception as error:  # a broken .npz raises almost anything
            raise ValueError(f"{path} is not a saved table, or is damaged: {error}") from None

    @classmethod
    def _read(cls, record: Any, arrays: Mapping[str, Any]) -> Table:
        rows = _need(record, "arms", list)
        if not rows:
            raise ValueError("'arms' must have at least the base, got none")
        results = [Result.from_dict(row, _unpacked(f"arm-{i}", row, arrays)) for i, row in enumerate(rows)]
        warm = _need(record, "warm", dict, type(None))
        table = cls(
            _need(record, "task", str),
            results[0],
            tuple(results[1:]),
            _need(record, "switch_at", int),
            _need(record, "made", dict),
            None if warm is None else _unpacked("warm", {"runs": warm}, arrays),
            _made("judge", Judge.from_dict, _need(record, "judge", dict)),
        )
        return table if _need(record, "compared", bool) else table.judged()


def _file(where: Path) -> Path:
    return where if where.suffix == ".npz" else where / "table.npz"


def _packed(name: str, runs: Trajectory, arrays: dict[str, Any]) -> dict[str, Any]:
    """Put the values of a trajectory under its name, those of single precision as such; return the rest of it."""
    arrays[f"{name}/times"] = runs.times
    for function, values in runs.values.items():
        single = values.astype(np.float32)
        arrays[f"{name}/{function}"] = single if np.array_equal(single, values, equal_nan=True) else values
    return {"functions": list(runs.values), "meta": dict(runs.meta)}


def _unpacked(name: str, row: Any, arrays: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory that `_packed` put under a name."""
    rest = _need(row, "runs", dict)
    values = {function: arrays[f"{name}/{function}"] for function in _need(rest, "functions", list)}
    return Trajectory(arrays[f"{name}/times"], values, meta=_need(rest, "meta", dict))


def _need(record: Any, key: str, *kinds: type) -> Any:
    """Return the value of a key, which must be there and of one of these types."""
    if not isinstance(record, dict):
        raise ValueError(f"expected an object with {key!r}, got {type(record).__name__}")
    names = " or ".join("null" if kind is type(None) else _JSON[kind] for kind in kinds)
    if key not in record:
        raise ValueError(f"{key!r} is missing; expected {names}")
    if not isinstance(record[key], kinds):
        raise ValueError(f"{key!r} must be {names}, got {json.dumps(record[key])[:60]}")
    return record[key]


_JSON = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def _made(key: str, make: Any, value: Any) -> Any:
    """Return what a function makes of a value, and name the key where it cannot."""
    try:
        return make(value)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"{key!r} is not one that was saved: {error!r}") from None


def _plan(record: Any) -> Plan | None:
    return None if record is None else Plan.from_dict(record)


def _comparison(record: Any) -> Comparison | None:
    return None if record is None else Comparison.from_dict(record)


# -- where on the clock the curves separate --------------------------------------------------------------------------


def clock(trajectory: Trajectory) -> Array:
    """Return the samples seen at each time, where they were recorded; else the time itself."""
    samples = trajectory.meta.get("samples")
    return trajectory.times if samples is None else np.asarray(samples, np.float64)


def clock_unit(trajectory: Trajectory) -> str | None:
    """Return what `clock` counts: samples, or what runs that were read from logs were aligned on; None for time."""
    return None if trajectory.meta.get("samples") is None else str(trajectory.meta.get("clock", "samples"))


def place_of(time: float, trajectory: Trajectory) -> float:
    """Return what the clock says at a time."""
    return float(np.interp(time, trajectory.times, clock(trajectory)))


def place(time: float, trajectory: Trajectory) -> str:
    """Return where on the clock a time is."""
    at = place_of(time, trajectory)
    unit, number = clock_unit(trajectory), typeset(few_digits(at))
    return f"time {number}" if unit is None else f"{number} {unit}"


def parts(arm: Result) -> str:
    """Return from where on a run is seen to differ from the base; nothing where it is not."""
    if arm.comparison is None or arm.verdict != "different":
        return ""
    places = {gap.name: gap.parts_at(arm.comparison.limit(gap)) for gap in arm.comparison.decisive}
    known = [(at, name) for name, at in places.items() if at is not None]
    if not known:  # the runs that diverged made the difference
        return ""
    at, name = min(known)
    return f"the curves of {name} separate after {place(at, arm.trajectory)}"


def settles(arm: Result) -> str:
    """Return from when on the gap stays within the tolerance, for a run that left it and came back; else nothing."""
    comparison = arm.comparison
    if comparison is None or comparison.verdict in (None, "same") or comparison.settled_after is None:
        return ""
    time = comparison.settled_after
    if all(time <= gap.times[0] for gap in comparison.decisive):
        return ""
    return f"from {place(time, arm.trajectory)} on the gap stays within the tolerance"


def window(base: Result) -> str:
    """Return over which part of the run the base's range is taken."""
    trajectory = base.trajectory
    at, unit = clock(trajectory)[pairing_window(trajectory)], clock_unit(trajectory)
    first, last = (typeset(few_digits(float(one))) for one in (at[0], at[-1]))
    return f"from {first} to {last} {unit}" if unit else f"from time {first} to {last}"


def range_sentence(table: Table, comparison: Comparison) -> str:
    """Return which range the gaps are shares of: its values, and where the base has them."""
    ranges = [
        f"{gap.name} {few_digits(gap.range)} ({few_digits(gap.span[1])} to {few_digits(gap.span[0])})"
        for gap in comparison.decisive
        if math.isfinite(gap.span[0])
    ]
    return f"Range of {table.base.label}, {window(table.base)}: {listed(ranges)}." if ranges else ""
