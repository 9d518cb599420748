"""Runs that are clearly different end in mid-run: what they have so far is compared with the base at fixed places.

At a quarter, a half and three quarters of the run a look may spend a twentieth of the chance of an error each, at
any numbers of seeds; the verdict at the end has the rest. The sum of all is what the judge allows, so that all looks
together err no more often. Early looks need stronger evidence, and the last one is hardly weakened, as in clinical
trials (Haybittle 1971, British Journal of Radiology 44; Peto et al. 1976, British Journal of Cancer 34). The unit of a
gap is the range of the whole base, which is run first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rootscale.format import show
from rootscale.lab.checks import judged_arm
from rootscale.lab.comparing import compare as compare_logs
from rootscale.lab.group import Spec, joined, rows_of
from rootscale.lab.loop import read_log
from rootscale.lab.loop_runs import LoopSpec
from rootscale.lab.result import Arm
from rootscale.lab.run import Run
from rootscale.lab.stopping import ClearlyDifferentError
from rootscale.lab.store import Store
from rootscale.logs import Alignment, Log, align, reached
from rootscale.trajectory import Trajectory
from rootscale.verdict import FEWEST, Judge

__all__ = ["LoopWatch", "TaskWatch", "at_the_end"]

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


def _stopped(arm: Arm, at: float, end: float, unit: str) -> Arm:
    """Return the arm with a note on where it was stopped."""
    assert arm.comparison is not None
    note = f"stopped at {show(round(at))} of {show(round(end))} {unit}, where it was clearly different"
    comparison = replace(arm.comparison, notes=(*arm.comparison.notes, note))
    trajectory = replace(arm.trajectory, meta={**arm.trajectory.meta, "stopped_at": float(at)})
    return replace(arm, comparison=comparison, trajectory=trajectory)


@dataclass(frozen=True)
class TaskWatch:
    """Follows the runs of one variant of a task; `rootscale.lab.Observer.measured` is to call it.

    Args:
        spec: of the variant.
        seeds: of its runs.
        base: the whole runs of the base.
        store: of the runs.
        judge: what makes runs the same.
        then: what else is called after each measurement.
    """

    spec: Spec
    seeds: Sequence[int]
    base: Trajectory
    store: Store
    judge: Judge
    then: Callable[[Path, Run], object] | None = None

    @property
    def places(self) -> list[int]:
        """The numbers of measured points at which is looked."""
        whole = len(self.spec.settings.grid)
        return sorted({count for share in PLACES if 2 < (count := round(share * whole)) < whole})

    def __call__(self, folder: Path, run: Run) -> None:
        """Keep what a run has so far, and look, where it is due; raises `ClearlyDifferentError`."""
        if self.then is not None:
            self.then(folder, run)
        if run.variant == self.spec.variant and run.measured in self.places:
            run.trajectory().save(folder / _PART)
            if self.found(run.measured) is not None:
                raise ClearlyDifferentError

    def stopped(self) -> Arm | None:
        """Return the arm as it was when it was clearly different, at the first such place; None where it is not."""
        return next((arm for count in self.places if (arm := self.found(count)) is not None), None)

    def found(self, count: int) -> Arm | None:
        """Return the arm of all runs that have so many points, if it is clearly different by then."""
        parts = []
        for group in self.store.matching(self.store.want(self.spec, self.seeds)):
            file = next((group.file(name) for name in ("trajectory.npz", _PART) if group.file(name).exists()), None)
            part = None if file is None else Trajectory.load(file)
            if part is not None and len(part.times) >= count:
                parts.append(
                    rows_of(_cut(part, count), [i for i, seed in enumerate(group.seeds) if seed in self.seeds])
                )
        if sum(part.replicas for part in parts) < FEWEST:
            return None
        task, variant, settings = self.spec.task, self.spec.variant, self.spec.settings
        sides = (_cut(self.base, count), joined(parts))
        arm = judged_arm(task, variant, sides, settings, _on_the_way(self.judge), whole=self.base)
        if arm.verdict != "different":
            return None
        return _stopped(arm, settings.grid[count - 1], settings.grid[-1], "samples")


def _cut(trajectory: Trajectory, count: int) -> Trajectory:
    """Return the first times of a trajectory."""
    values = {name: value[:, :count] for name, value in trajectory.values.items()}
    meta = {**trajectory.meta, "samples": trajectory.meta["samples"][:count]}
    return Trajectory(trajectory.times[:count], values, meta=meta)


@dataclass
class LoopWatch:
    """Follows the runs of one variant of a user's loop; `rootscale.lab.Observer.logged` is to call it.

    Args:
        spec: of the variant.
        base: the logs of the base's finished runs, by seed.
        label: of the base.
        store: of the runs.
        alignment: of the logs.
        judge: what makes runs the same.
    """

    spec: LoopSpec
    base: dict[int, Log]
    label: str
    store: Store
    alignment: Alignment
    judge: Judge
    due: float = field(default=0.0, init=False)
    alike: set[tuple[float, tuple[int, ...]]] = field(default_factory=set, init=False)
    whole: Trajectory = field(init=False)

    def __post_init__(self) -> None:
        (self.whole,) = align([list(self.base.values())], self.alignment).trajectories

    def __call__(self, folder: Path, ended: bool) -> None:
        """Look, at most once a second and a small part of the time, and when a run has ended.

        Raises:
            ClearlyDifferentError: that is what was seen.
        """
        began = time.monotonic()
        if folder.parent.name == self.spec.name and (ended or began > self.due):
            if self.stopped() is not None:
                raise ClearlyDifferentError
            now = time.monotonic()
            self.due = now + max(EVERY, (now - began) / SHARE)

    def stopped(self) -> Arm | None:
        """Return the arm as it was when it was clearly different, at the first such place; None where it is not."""
        logs = self._logs()
        if len(logs) < FEWEST:
            return None
        first, last = self.whole.times[0], self.whole.times[-1]
        try:
            own = reached([list(self.base.values()), list(logs.values())], self.alignment)
        except ValueError:  # nothing to compare has been logged yet
            return None
        for share in PLACES:
            place = float(first + share * (last - first))
            seeds = [seed for seed, end in zip(logs, own, strict=True) if end >= place and seed in self.base]
            if len(seeds) < FEWEST or (share, tuple(seeds)) in self.alike:
                continue
            arm = self._arm([logs[seed] for seed in seeds], seeds, place)
            if arm is not None and arm.verdict == "different":
                return _stopped(arm, place, last, str(self.whole.meta["clock"]))
            self.alike.add((share, tuple(seeds)))  # what there is up to this place will not change
        return None

    def _arm(self, logs: list[Log], seeds: list[int], place: float) -> Arm | None:
        how = replace(self.alignment, stop=place)
        try:
            found = compare_logs(
                [self.base[seed] for seed in seeds], logs, names=[self.label, self.spec.label], alignment=how,
                judge=_on_the_way(self.judge), whole=self.whole,
            )  # fmt: skip
        except ValueError:  # too little has been logged
            return None
        return found.others[0]

    def _logs(self) -> dict[int, Log]:
        """Return what the runs of this variant have logged so far, by seed."""
        found: dict[int, Log] = {}
        for group in self.store.matching(self.store.want(self.spec, list(self.base))):
            (seed,) = group.seeds
            log = read_log(group.place, f"{self.spec.label}, seed {seed}", seed, self.spec.batch_size)
            if log.columns:
                found[seed] = log
        return dict(sorted(found.items()))
