"""What a check found: the arms that were compared, saved to a folder as a whole and read again."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.files import remove_temporary, write_json
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory
from rootscale.verdict import Comparison, Verdict

__all__ = ["Arm", "Check"]

#: Trajectories that no check.json names are removed when they are this old, in seconds: a save may be under way.
ABANDONED = 3600.0
_RECORD = "check.json"


@dataclass(frozen=True)
class Arm:
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
    """

    label: str
    kind: str
    plan: Plan | None
    changes: Mapping[str, Any] | None
    trajectory: Trajectory
    comparison: Comparison | None = None
    guards: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

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

    def to_dict(self, trajectory: str) -> dict[str, Any]:
        """Return it in JSON's types, with the name of the file of its trajectory."""
        return {
            "label": self.label,
            "kind": self.kind,
            "plan": None if self.plan is None else self.plan.to_dict(),
            "changes": self.changes,
            "trajectory": trajectory,
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "guards": list(self.guards),
            "causes": list(self.causes),
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, record: Any, folder: Path) -> Arm:
        """Read what `to_dict` gave, and the trajectory from the folder."""
        return cls(
            label=_need(record, "label", str),
            kind=_need(record, "kind", str),
            plan=_made("plan", _plan, _need(record, "plan", dict, type(None))),
            changes=_need(record, "changes", dict, type(None)),
            trajectory=Trajectory.load(folder / _need(record, "trajectory", str)),
            comparison=_made("comparison", _comparison, _need(record, "comparison", dict, type(None))),
            guards=tuple(_need(record, "guards", list)),
            causes=tuple(_need(record, "causes", list)),
        )


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        task: its name.
        base: the run as it is.
        others: what it was compared with.
        switch_at: samples seen before the switch; 0 for runs from scratch.
        made: how: command, versions, hardware, seconds (of all runs, however often they were stopped).
        warm: the trajectory up to the switch, where there is one.
    """

    task: str
    base: Arm
    others: tuple[Arm, ...]
    switch_at: int
    made: Mapping[str, Any]
    warm: Trajectory | None = None

    @property
    def verdict(self) -> Verdict:
        """Different if any arm is, same if all are."""
        verdicts = {arm.verdict for arm in self.others}
        return "different" if "different" in verdicts else "same" if verdicts == {"same"} else "undecided"

    def __getitem__(self, label: str) -> Arm:
        """Return the arm of that label."""
        for arm in (self.base, *self.others):
            if arm.label == label:
                return arm
        labels = ", ".join(repr(arm.label) for arm in (self.base, *self.others))
        raise KeyError(f"no arm {label!r}; there are {labels}")

    def save(self, folder: str | Path) -> Path:
        """Write it to a folder: ``check.json`` and one ``.npz`` for each arm.

        The names of the trajectories are new ones, and ``check.json`` with these names takes its place at the end: who
        reads meanwhile reads the old check or the new one, and of two that are saved at once one remains.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporary(folder)
        before, token, arms = _named(folder), uuid.uuid4().hex[:8], []
        for i, arm in enumerate((self.base, *self.others)):
            arms.append(arm.to_dict(arm.trajectory.save(folder / f"arm-{i}-{token}.npz").name))
        record = {
            "task": self.task,
            "verdict": self.verdict,
            "switch_at": self.switch_at,
            "warm": None if self.warm is None else self.warm.save(folder / f"warm-{token}.npz").name,
            "arms": arms,
            "made": dict(self.made),
        }
        write_json(
            folder / _RECORD, record, allow_nan=False, indent=None
        )  # curves of numbers: a line for each is most of a file
        _remove_old(folder, before)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Check:
        """Read what `save` wrote."""
        folder = Path(folder)
        while True:
            text = _text(folder)
            try:
                return cls._read(json.loads(text), folder)
            except FileNotFoundError as error:  # removed by who has saved another check meanwhile
                if _text(folder) == text:
                    raise ValueError(f"{folder / _RECORD} names {error.filename}, which is not there") from None
            except ValueError as error:
                if str(folder) in str(error):  # a trajectory, which is named
                    raise
                raise ValueError(f"{folder / _RECORD} is not a saved check: {error}") from None

    @classmethod
    def _read(cls, record: Any, folder: Path) -> Check:
        arms = [Arm.from_dict(arm, folder) for arm in _need(record, "arms", list)]
        if not arms:
            raise ValueError("'arms' must have at least the base, got none")
        warm = _need(record, "warm", str, type(None))
        return cls(
            _need(record, "task", str),
            arms[0],
            tuple(arms[1:]),
            _need(record, "switch_at", int),
            _need(record, "made", dict),
            None if warm is None else Trajectory.load(folder / warm),
        )


def _text(folder: Path) -> str:
    try:
        return (folder / _RECORD).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"{folder} holds no {_RECORD}; give the folder that `rootscale check --out FOLDER` wrote"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{folder / _RECORD} is not a saved check: {error}") from None


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


_JSON = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


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


def _named(folder: Path) -> set[str]:
    """Return the names of the trajectories of the check in a folder; of none where it cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return {str(arm["trajectory"]) for arm in record["arms"]} | {str(record["warm"])}
    return set()


def _remove_old(folder: Path, before: set[str]) -> None:
    """Remove the trajectories of the check that was replaced, and those that a killed process left long ago."""
    now = _named(folder)
    for path in [*folder.glob("arm-*.npz"), *folder.glob("warm*.npz")]:
        with suppress(OSError):
            if path.name not in now and (path.name in before or time.time() - path.stat().st_mtime > ABANDONED):
                path.unlink()
