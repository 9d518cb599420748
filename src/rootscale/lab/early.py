"""Runs that are clearly different end in mid-run: what they have so far is compared with the base at fixed places.

At a quarter, a half and three quarters of the run a look may spend a twentieth of the chance of an error each, at
any numbers of seeds; the verdict at the end has the rest. The sum of all is what the judge allows, so that all looks
together err no more often. Early looks need stronger evidence, and the last one is hardly weakened, as in clinical
trials (Haybittle 1971, British Journal of Radiology 44; Peto et al. 1976, British Journal of Cancer 34). The unit of a
gap is the range of the whole base, which is run first.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rootscale.compare.alignment import reached
from rootscale.compare.comparison import logged
from rootscale.format import show
from rootscale.lab.group import joined, rows_of
from rootscale.lab.loop import Loop
from rootscale.lab.loop_runs import LoopSpec
from rootscale.lab.stopping import ClearlyDifferentError
from rootscale.lab.task_runs import TaskSpec
from rootscale.trajectory import Trajectory
from rootscale.verdict import FEWEST, Judge

if TYPE_CHECKING:
    from rootscale.compare.log import Log
    from rootscale.compare.result import Result
    from rootscale.lab.observe import Observer
    from rootscale.lab.store import Store
    from rootscale.lab.study import Arm, Study
    from rootscale.lab.trial import Trial

#: Shares of a run at which is looked, and what each of them may spend of the chance of an error.
PLACES, SPENT = (0.25, 0.5, 0.75), 0.05
#: Seconds between two looks at the logs of a loop, and the share of its time that they may take.
EVERY, SHARE = 1.0, 0.05
#: What a run of a task has so far.
_PART = "part.npz"


def at_the_end(judge: Judge) -> Judge:
    """Return the judge with what is left for the verdict at the end."""
    return replace(judge, level=1 - (1 - judge.level) * (1 - SPENT * len(PLACES)))


def _on_the_way(judge: Judge) -> Judge:
    return replace(judge, level=1 - (1 - judge.level) * SPENT)


@dataclass
class Watch(ABC):
    """Follows the runs of one arm; `rootscale.lab.Observer` calls it.

    Args:
        study: of the arm, with the judge of looks on the way.
        arm: that is followed.
        seeds: of its runs.
        whole: the runs of the base, to their end.
        runs: the store of the runs.
    """

    study: Study
    arm: Arm
    seeds: Sequence[int]
    whole: Trajectory
    runs: Store
    measured: Callable[[Path, Trial], object] | None = None
    logged: Callable[[Path, bool], object] | None = None

    def stopped(self) -> Result | None:
        """Return the result as it was when the arm was clearly different, at the first such place; else None."""
        return next((found for share in PLACES if (found := self.at(share)) is not None), None)

    @abstractmethod
    def at(self, share: float) -> Result | None:
        """Return the result of all runs that are so far, if they are clearly different by then."""

    def _different(self, result: Result, at: float, end: float, unit: str) -> Result | None:
        """Return a result with a note on where it was stopped, if it is different."""
        if result.verdict != "different":
            return None
        assert result.comparison is not None
        note = f"stopped at {show(round(at))} of {show(round(end))} {unit}, where it was clearly different"
        comparison = replace(result.comparison, notes=(*result.comparison.notes, note))
        trajectory = replace(result.trajectory, meta={**result.trajectory.meta, "stopped_at": float(at)})
        return replace(result, comparison=comparison, trajectory=trajectory)


@dataclass
class TaskWatch(Watch):
    """Follows the runs of a task, at points of their grid."""

    then: Callable[[Path, Trial], object] | None = None

    def __post_init__(self) -> None:
        self.measured = self._look

    @property
    def spec(self) -> TaskSpec:
        """Of the arm."""
        spec = self.study.specs[self.arm.label]
        assert isinstance(spec, TaskSpec)
        return spec

    def _count(self, share: float) -> int:
        """Return the number of measured points after a share of the run; 0 where that is none of its own."""
        points = len(self.spec.settings.grid)
        count = round(share * points)
        return count if 2 < count < points else 0

    def _look(self, folder: Path, trial: Trial) -> None:
        """Keep what a run has so far, and look, where it is due; raises `ClearlyDifferentError`."""
        if self.then is not None:
            self.then(folder, trial)
        due = [share for share in PLACES if self._count(share) == trial.measured]
        if trial.variant == self.spec.variant and due:
            trial.trajectory().save(folder / _PART)
            if self.at(due[0]) is not None:
                raise ClearlyDifferentError

    def at(self, share: float) -> Result | None:
        """Return the result of all runs that have so many points, if they are clearly different by then."""
        count, parts = self._count(share), []
        if not count:
            return None
        for group in self.runs.matching(self.runs.want(self.spec, self.seeds)):
            file = next((group.file(name) for name in ("trajectory.npz", _PART) if group.file(name).exists()), None)
            part = None if file is None else Trajectory.load(file)
            if part is not None and len(part.times) >= count:
                places = [i for i, seed in enumerate(group.seeds) if seed in self.seeds]
                parts.append(rows_of(_cut(part, count), places))
        if sum(part.replicas for part in parts) < FEWEST:
            return None
        result = self.study.result(self.arm, joined(parts), self.runs, self.seeds)
        found = self.study.judged(self.arm, result, _cut(self.whole, count), whole=self.whole)
        grid = self.spec.settings.grid
        return self._different(found, grid[count - 1], grid[-1], "samples")


def _cut(trajectory: Trajectory, count: int) -> Trajectory:
    """Return the first times of a trajectory."""
    values = {name: value[:, :count] for name, value in trajectory.values.items()}
    meta = {**trajectory.meta, "samples": trajectory.meta["samples"][:count]}
    return Trajectory(trajectory.times[:count], values, meta=meta)


@dataclass
class LoopWatch(Watch):
    """Follows the runs of a user's loop, by what they have logged."""

    due: float = field(default=0.0, init=False)
    alike: set[tuple[float, tuple[int, ...]]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.logged = self._look
        self.base = self._spec(self.study.base).logs(self.runs, self.seeds)

    def _spec(self, arm: Arm) -> LoopSpec:
        spec = self.study.specs[arm.label]
        assert isinstance(spec, LoopSpec)
        return spec

    def _look(self, folder: Path, ended: bool) -> None:
        """Look, at most once a second and a small part of the time, and when a run has ended.

        Raises:
            ClearlyDifferentError: that is what was seen.
        """
        began = time.monotonic()
        if folder.parent.name == self._spec(self.arm).name and (ended or began > self.due):
            if self.stopped() is not None:
                raise ClearlyDifferentError
            now = time.monotonic()
            self.due = now + max(EVERY, (now - began) / SHARE)

    def at(self, share: float) -> Result | None:
        """Return the result of all runs that have logged so much, if they are clearly different by then."""
        logs = self._spec(self.arm).logs(self.runs, list(self.base))
        if len(logs) < FEWEST:
            return None
        first, last = self.whole.times[0], self.whole.times[-1]
        try:
            own = reached([list(self.base.values()), list(logs.values())], self.study.alignment)
        except ValueError:  # nothing to compare has been logged yet
            return None
        place = float(first + share * (last - first))
        seeds = [seed for seed, end in zip(logs, own, strict=True) if end >= place]
        if len(seeds) < FEWEST or (share, tuple(seeds)) in self.alike:
            return None
        found = self._compared([self.base[seed] for seed in seeds], [logs[seed] for seed in seeds], seeds, place)
        stopped = None if found is None else self._different(found, place, last, str(self.whole.meta["clock"]))
        if stopped is None:
            self.alike.add((share, tuple(seeds)))  # what there is up to this place will not change
        return stopped

    def _compared(self, base: list[Log], other: list[Log], seeds: list[int], place: float) -> Result | None:
        part = replace(self.study, alignment=replace(self.study.alignment, stop=place))
        try:
            read = logged([self.study.base.label, self.arm.label], [base, other], part)
        except ValueError:  # too little has been logged
            return None
        result = part.result(self.arm, read.trajectories[1], self.runs, seeds)
        return part.judged(self.arm, result, read.trajectories[0], read, whole=self.whole)


def watch_of(study: Study, arm: Arm, seeds: Sequence[int], whole: Trajectory, place: Store, observe: Observer) -> Watch:
    """Return what follows the runs of an arm, given those of the base to their end."""
    runs = replace(place, folder=place.folder / "runs")
    on_the_way = replace(study, judge=_on_the_way(study.judge))
    if isinstance(arm.run, Loop):
        return LoopWatch(on_the_way, arm, seeds, whole, runs)
    return TaskWatch(on_the_way, arm, seeds, whole, runs, then=observe.measured)
