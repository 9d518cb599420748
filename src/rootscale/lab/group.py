"""A stored group of seeds that were trained in one program: what it is, its files, and single seeds out of it."""

from __future__ import annotations

import csv
import hashlib
import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rootscale.files import lock_holder, locked, whole, write_json
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rootscale.compare.result import Result
    from rootscale.lab.observe import Observer
    from rootscale.lab.stopping import Stop
    from rootscale.lab.store import Store
    from rootscale.lab.trial import Trial
    from rootscale.lab.variant import Variant

#: What a run spent, which is shared by its seeds; runs of older versions know only the first.
_TIMES = ("seconds", "measuring")
#: Said of a file that cannot be read.
_AGAIN = "remove it, and the run is made again"


class Spec(ABC):
    """What decides a run, but for its seed and the code and data of what is run.

    Tasks and loops of users have one each (`rootscale.lab.task_runs`, `rootscale.lab.loop_runs`); what stores, makes
    and resumes runs knows nothing else of them.
    """

    task: Any
    variant: Variant

    @property
    @abstractmethod
    def label(self) -> str:
        """In words, for legends and messages."""

    @property
    def warm(self) -> Spec | None:
        """The run of which this one is the continuation, made first; None where it starts by itself."""
        return None

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""

    def start(self, seed: int) -> Path | None:
        """Return the file or folder from which a run of this seed starts; None where there is none."""
        return None

    def together(self, most: int) -> int:
        """Return how many seeds are trained in one program, of at most so many."""
        return 1

    @abstractmethod
    def refuse(self, seeds: Sequence[int], deciding: Sequence[str]) -> None:
        """Refuse, before anything is run, what would be refused after all runs have been made.

        Args:
            seeds: of the runs.
            deciding: the test functions on which the verdict is to rest; empty is the default.
        """

    def warnings(self, store: Store, seeds: Sequence[int]) -> list[str]:
        """Return what was warned of in these runs, beyond what their trajectory says."""
        return []

    def causes(self, result: Result, base: Trajectory) -> tuple[str, ...]:
        """Return why its runs are different from those of the base: what was warned of, where no more is known."""
        return result.guards

    @abstractmethod
    def make(
        self, store: Store, wanted: Wanted, observe: Observer, tell: Callable[[float], object], stop: Stop
    ) -> None:
        """Make a group of runs, or what is left of it, and store it."""

    @cached_property
    def name(self) -> str:
        """The name of its folder."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        label = re.sub(r"[^a-z0-9.]+", "-", self.label.lower()).strip("-.")
        return f"{label[:80] or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Wanted:
    """Some seeds of a spec, as the present task computes them.

    Args:
        spec: what is run.
        seeds: which of it.
        fingerprint: of the task, for these seeds.
        with_state: whether the last state is wanted too, for runs that start from it.
    """

    spec: Spec
    seeds: tuple[int, ...]
    fingerprint: Mapping[str, Any]
    with_state: bool = False


@dataclass(frozen=True)
class Group:
    """A stored group of seeds that were trained in one program."""

    place: Path
    seeds: tuple[int, ...]
    fingerprint: Mapping[str, Any]

    def file(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.place / name

    def complete(self, with_state: bool, with_model: bool) -> bool:
        """Return whether its trajectory is there, and its last state and its models where they are wanted.

        A loop of the user's leaves its log instead.
        """
        if self.file("log.jsonl").exists():
            return True
        if not self.file("trajectory.npz").exists() or (with_state and not self.file("checkpoint.pt").exists()):
            return False
        return not with_model or self.file("model.pt").exists() or None not in self.trajectory().meta["diverged_at"]

    def trajectory(self) -> Trajectory:
        """Read its test functions."""
        try:
            return Trajectory.load(self.file("trajectory.npz"))
        except ValueError as error:
            raise ValueError(f"{error}; {_AGAIN}") from None

    def state(self) -> Any:
        """Read its last checkpoint."""
        path = self.file("checkpoint.pt")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{path} is damaged: {error}; {_AGAIN}") from None

    def in_work(self) -> bool:
        """Return whether a process is making it."""
        with locked(self.file(".lock")) as free:
            return not free

    def maker(self) -> str:
        """Return which process makes it, or made it last, in words."""
        return lock_holder(self.file(".lock")) or "a process that is not known"

    def finished(self) -> float:
        """Return when it was finished, as `time.time` counts; for one that is complete."""
        name = next(name for name in ("log.jsonl", "trajectory.npz") if self.file(name).exists())
        return self.file(name).stat().st_mtime


# -- files ------------------------------------------------------------------------------------------------------------


def write_facts(place: Path, wanted: Wanted, facts: Mapping[str, Any]) -> None:
    """Write what a group is and what makes it."""
    numbers = {"seeds": dict(wanted.fingerprint["seeds"])} if wanted.fingerprint else {}
    fingerprint = {**wanted.fingerprint, **numbers}
    record = {**wanted.spec.to_dict(), "seeds": list(wanted.seeds), **facts, "fingerprint": fingerprint}
    write_json(place / "run.json", record)


def write_checkpoint(place: Path, run: Trial) -> None:
    """Write everything that is needed to resume a run."""
    _save(run.state_dict(), place / "checkpoint.pt")


def write_result(place: Path, wanted: Wanted, run: Trial, facts: Mapping[str, Any], keep_models: bool) -> None:
    """Write what a finished run leaves."""
    trajectory = run.trajectory()
    if wanted.with_state:
        write_checkpoint(place, run)
    if keep_models and None in run.diverged:
        _write_models(place, run)
    _write_csv(place / "trajectory.csv", trajectory)
    status = "diverged" if None not in run.diverged else "finished"
    write_facts(place, wanted, {**facts, "status": status, "seconds": round(run.spent.seconds, 1)})
    trajectory.save(place / "trajectory.npz")  # from here on it is finished, and nobody looks after its folder again
    if not wanted.with_state:
        (place / "checkpoint.pt").unlink(missing_ok=True)


def _write_models(place: Path, run: Trial) -> None:
    models = [
        dict(run.learner.replica(r).cpu().state_dict()) if lost is None else None for r, lost in enumerate(run.diverged)
    ]
    _save(models, place / "model.pt")


def _save(value: Any, path: Path) -> None:
    """Write a file of torch whole; of a full disk torch says the place in the file where it got stuck, and not why."""
    with whole(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _write_csv(path: Path, trajectory: Trajectory) -> None:
    """Write one row for each seed and time."""
    with whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "time", "samples", *trajectory.names])
        for r, seed in enumerate(trajectory.meta["seeds"]):
            for t, (moment, samples) in enumerate(zip(trajectory.times, trajectory.meta["samples"], strict=True)):
                writer.writerow([seed, moment, samples, *(values[r, t] for values in trajectory.values.values())])


# -- replicas of trajectories ----------------------------------------------------------------------------------------


def rows_of(trajectory: Trajectory, places: Sequence[int]) -> Trajectory:
    """Return some of the replicas, with their share of the time it took."""
    meta = trajectory.meta
    if list(places) == list(range(trajectory.replicas)):
        return trajectory
    return Trajectory(
        trajectory.times,
        {name: values[list(places)] for name, values in trajectory.values.items()},
        meta={
            **meta,
            "seeds": [meta["seeds"][place] for place in places],
            "diverged_at": [meta["diverged_at"][place] for place in places],
            **{key: round(meta[key] * len(places) / trajectory.replicas, 3) for key in _TIMES if key in meta},
        },
    )


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """Return the replicas of several trajectories on one grid, with the test functions that all of them have."""
    first = parts[0]
    meta = {
        **first.meta,
        "seeds": [seed for part in parts for seed in part.meta["seeds"]],
        "diverged_at": [place for part in parts for place in part.meta["diverged_at"]],
        "steps": max(part.meta["steps"] for part in parts),  # where all diverged there are fewer
        "runs": _programs(parts),
        **{key: sum(part.meta[key] for part in parts) for key in _TIMES if all(key in part.meta for part in parts)},
    }
    values = {
        name: np.concatenate([part.values[name] for part in parts])
        for name in first.names
        if all(name in part.values for part in parts)
    }
    return Trajectory(first.times, values, meta=meta)


def _programs(parts: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return what each program took that trained some of the seeds, once; older versions recorded none."""
    every = [run for part in parts for run in part.meta.get("runs", [])]
    return [run for i, run in enumerate(every) if run not in every[:i]]
