"""Many runs: every variant of a task with every seed. A sweep that was stopped is resumed where it was."""

from __future__ import annotations

import logging
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rootscale.format import show
from rootscale.lab.execute import Execute, default_executor
from rootscale.lab.failures import FINISHED, blaming
from rootscale.lab.group import Spec, Wanted, write_checkpoint, write_result
from rootscale.lab.provenance import environment
from rootscale.lab.replicas import stacking_pays
from rootscale.lab.run import Run
from rootscale.lab.settings import Settings, grid
from rootscale.lab.stopping import Stop, held_interrupts
from rootscale.lab.store import Store, as_store
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.trajectory import Trajectory

__all__ = ["Observer", "Sweep", "finished", "kept", "sweep"]

#: Progress is reported this often, or when this much more is done: a run may take thousands of steps a second.
REPORT_SECONDS, REPORT_SHARE = 0.1, 0.01

_log = logging.getLogger(__name__)


def _silent(label: str, job: int, jobs: int, share: float) -> None:
    pass


@dataclass(frozen=True)
class Observer:
    """Callbacks that follow a sweep.

    Args:
        progress: called with the label of a run, its number, the number of all runs (every seed of every kind is one),
            and how far it is, from 0 to 1.
        note: called with a sentence for the user; the default is a warning of `logging`.
        measured: called with the folder of a run and the `rootscale.lab.Run` after each of its measurements, in the
            process that makes it. On Ray it has to be picklable.
        logged: called with the folder of a run of a user's loop after each row that it logs, and with whether it has
            ended, in the process that makes it.
    """

    progress: Callable[[str, int, int, float], object] = _silent
    note: Callable[[str], object] = _log.warning
    measured: Callable[[Path, Run], object] | None = None
    logged: Callable[[Path, bool], object] | None = None


@dataclass(frozen=True)
class Sweep:
    """What a sweep gave.

    Args:
        trajectories: of each variant, all seeds together.
        warm: the base variant up to the switch, where there is one.
        models: where models are kept: of variant and seed, the file and the place in its list; not of what diverged.
    """

    trajectories: dict[Variant, Trajectory]
    warm: Trajectory | None = None
    models: dict[tuple[Variant, int], tuple[Path, int]] = field(default_factory=dict)


def sweep(
    task: Task,
    variants: Sequence[Variant],
    *,
    seeds: Sequence[int],
    settings: Settings,
    store: Store | str | Path | None = None,
    execute: Execute | None = None,
    observe: Observer | None = None,
) -> Sweep:
    """Run every variant with every seed. Finished runs are read, and runs that were stopped are resumed.

    Args:
        task: what is learned.
        variants: how; the first is usually the base, ``Variant()``.
        seeds: of the replicas.
        settings: what is measured when; with ``switch_at``, all variants of a seed start from one warm start.
        store: the folder of the runs, or a `Store`; None keeps nothing.
        execute: what runs them; None is a process for each core, or this process where a GPU computes.
        observe: callbacks for progress and measurements.

    Raises:
        UnfinishedError: the deadline of the executor passed. The same call resumes the runs.
        BusyError: another process is making a run, and the store does not wait.
        KeyboardInterrupt: Ctrl-C, which is held back until a step is done and a checkpoint is written.
    """
    _refuse(task, variants, seeds, as_store(store))
    execute, observe = execute or default_executor(settings.setup.device), observe or Observer()
    with kept(as_store(store)) as place, held_interrupts() as interrupted:
        warm, arms = _specs(task, variants, settings)
        everything = _Work(place, execute, observe, tuple(seeds), warm, arms)
        first, second = everything.jobs()
        for phase, offset in ((first, 0), (second, _runs(first))):
            report = partial(_report, phase, offset, _runs(first) + _runs(second), observe)
            if phase:
                execute.run(phase, place.folder, report, interrupted)
            if phase is first and warm is not None:
                _refuse_diverged(everything.before(), warm)
        return everything.result()


def finished(
    task: Task, variants: Sequence[Variant], *, seeds: Sequence[int], settings: Settings, store: Store | str | Path
) -> bool:
    """Return whether `sweep` with the same arguments would only read: all runs are finished, warm starts included."""
    place = as_store(store)
    assert place is not None
    warm, arms = _specs(task, variants, settings)
    starts = [] if warm is None else [replace(place, keep_models=False).missing(place.want(warm, seeds))]
    return not any([*starts, *(place.missing(place.want(spec, seeds)) for spec in arms.values())])


def _runs(jobs: Sequence[_Job]) -> int:
    return sum(len(job.wanted.seeds) for job in jobs)


def _report(jobs: Sequence[_Job], offset: int, total: int, observe: Observer, number: int, share: float) -> None:
    """Report the progress of a job as that of each of its seeds."""
    first = offset + _runs(jobs[:number])
    for run in range(first, first + _runs(jobs[number : number + 1])):
        observe.progress(jobs[number].label, run, total, share)


def _refuse(task: Task, variants: Sequence[Variant], seeds: Sequence[int], store: Store | None) -> None:
    if not len(seeds):
        raise ValueError("at least one seed is needed, got none")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from each other, got {list(seeds)}")
    if len(set(variants)) < len(variants):
        raise ValueError("variants must differ from each other")
    for variant in variants:
        variant.plans(task.plan)  # before anything is run: there may be no such plan


def _refuse_diverged(warm: Trajectory, spec: Spec) -> None:
    lost = warm.meta["diverged_at"]
    if None not in lost:
        raise ValueError(
            f"all {len(lost)} runs diverged before the switch at {show(spec.settings.grid[-1])} samples, the first "
            f"after {show(min(lost))}: switch before, or take a smaller learning rate"
        )


@contextmanager
def kept(store: Store | None) -> Iterator[Store]:
    """Give the store, or one that is removed at the end."""
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Store(Path(folder), checkpoint_every=math.inf, temporary=True)


def _specs(task: Task, variants: Sequence[Variant], settings: Settings) -> tuple[Spec | None, dict[Variant, Spec]]:
    """Return what is run: the warm start where there is a switch, and every variant."""
    warm, size = None, int(task.plan.batch_size.total)
    switch_at = settings.switch_at // size * size
    if switch_at:
        points = max(2, round(len(settings.grid) * switch_at / (settings.grid[-1] - switch_at)))
        before = replace(settings, switch_at=0, grid=grid(switch_at, points, batch_sizes=[size]))
        warm = Spec(task, Variant(), before)
    return warm, {variant: Spec(task, variant, settings) for variant in variants}


# -- jobs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """The runs of one call of `sweep`."""

    store: Store
    execute: Execute
    observe: Observer
    seeds: tuple[int, ...]
    warm: Spec | None
    arms: dict[Variant, Spec]

    @property
    def starts(self) -> Store:
        """The store as warm starts use it: nobody wants their models."""
        return replace(self.store, keep_models=False)

    def jobs(self) -> tuple[list[_Job], list[_Job]]:
        """Return the jobs of the warm starts, and those of the variants, which begin when the first are done."""
        missing = {spec: self.store.missing(self.store.want(spec, self.seeds)) for spec in self.arms.values()}
        first: list[_Job] = []
        if self.warm is not None:
            wanted = {seed for seeds in missing.values() for seed in seeds} if self.arms else set(self.seeds)
            needed, others = ([seed for seed in self.seeds if (seed in wanted) is want] for want in (True, False))
            first = self._jobs(self.starts, [(self.warm, needed, True), (self.warm, others, False)], None)
        return first, self._jobs(self.store, [(spec, seeds, False) for spec, seeds in missing.items()], self.warm)

    def _jobs(self, store: Store, wanted: Sequence[tuple[Spec, Sequence[int], bool]], warm: Spec | None) -> list[_Job]:
        """Split what is missing into as many jobs as there are workers, if it is enough for that."""
        some = [store.want(spec, seeds, with_state) for spec, seeds, with_state in wanted if len(seeds)]
        left = [(want, store.missing(want)) for want in some]
        most = min(self.execute.together, math.ceil(sum(len(seeds) for _, seeds in left) / self.execute.workers()))
        if most > 1 and left and not _stacked(left[0][0].spec):
            most = 1
        found = []
        for want, seeds in left:
            outdated = store.outdated(want) if seeds else []
            if outdated:
                self.observe.note(
                    f"{want.spec.label}: the stored runs were made with another {', '.join(outdated)}; "
                    "they are kept, and new ones are made"
                )
            for group in store.split(want, max(1, most)):
                start = None if warm is None else store.want(warm, group, True)
                target = store.want(want.spec, group, want.with_state)
                found.append(_Job(store, target, start, self.observe.measured))
        return found

    def result(self) -> Sweep:
        """Read what all jobs left."""
        wanted = {variant: self.store.want(spec, self.seeds) for variant, spec in self.arms.items()}
        models: dict[tuple[Variant, int], tuple[Path, int]] = {}
        if self.store.keep_models:
            for variant, want in wanted.items():
                models |= {(variant, seed): place for seed, place in self.store.models(want).items()}
        return Sweep(
            {variant: self.store.trajectory(want) for variant, want in wanted.items()},
            self.before() if self.warm is not None else None,
            models,
        )

    def before(self) -> Trajectory:
        """Read the warm starts."""
        assert self.warm is not None
        return self.starts.trajectory(self.starts.want(self.warm, self.seeds))


@dataclass(frozen=True)
class _Job:
    """A group of seeds that is trained in one program; everything it needs and gives is in the store."""

    store: Store
    wanted: Wanted
    warm: Wanted | None
    measured: Callable[[Path, Run], object] | None

    @property
    def label(self) -> str:
        return self.wanted.spec.label + (", warm start" if self.wanted.with_state else "")

    def __call__(self, tell: Callable[[float], object], stop: Stop) -> None:
        facts = _facts(self.store, self.wanted.spec)
        with self.store.claim(self.wanted, facts, tell, stop) as place:
            if place is not None:
                with blaming(self.label, FINISHED):
                    run = self._resumed(place)
                    self._advance(run, place, tell, stop)
                write_result(place, self.wanted, run, facts, self.store.keep_models)
        tell(1.0)

    def _resumed(self, place: Path) -> Run:
        spec = self.wanted.spec
        state = None if self.warm is None else replace(self.store, keep_models=False).state(self.warm)
        run = Run(spec.task, spec.variant, self.wanted.seeds, spec.settings, state)
        group = next(group for group in self.store.groups(spec) if group.place == place)
        if group.file("checkpoint.pt").exists():
            run.load_state_dict(group.state())
        return run

    def _advance(self, run: Run, place: Path, tell: Callable[[float], object], stop: Stop) -> None:
        """Take the run to its end, or to where it is asked to stop."""
        saved, reported, share, measured = time.monotonic(), -math.inf, -1.0, run.measured
        with torch.random.fork_rng():
            while not run.done:
                run.advance()
                if self.measured is not None and run.measured > measured:
                    measured = run.measured
                    self.measured(place, run)
                now, progress = time.monotonic(), run.progress
                if now - reported > REPORT_SECONDS or progress - share >= REPORT_SHARE:
                    reported, share = now, progress
                    tell(min(progress, 1 - REPORT_SHARE))  # 1 when its result is stored
                stopping = stop.asked
                if stopping or now - saved > self.store.checkpoint_every:
                    write_checkpoint(place, run)
                    saved = time.monotonic()
                if stopping:
                    stop.end()


def _stacked(spec: Spec) -> bool:
    """Return whether the seeds of a run are trained in one program; building the model must not move random numbers."""
    with torch.random.fork_rng(devices=[]):
        return stacking_pays(spec.task, torch.device(spec.settings.setup.device))


def _facts(store: Store, spec: Spec) -> dict[str, Any]:
    return {
        "plan": spec.variant.plan(spec.task.plan).to_dict(),
        "command": store.made_by,
        "process": {"host": platform.node(), "pid": os.getpid()},
        **environment(spec.settings.setup.device),
    }
