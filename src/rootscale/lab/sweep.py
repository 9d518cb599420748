"""Many runs, each in a folder of its own; a sweep that was stopped goes on where it was.

    FOLDER/<what>-<id>/run.json          what it is: task, plan, variant, seeds, versions, hardware, command
    FOLDER/<what>-<id>/trajectory.npz    its test functions, when it is finished (`rootscale.trajectory.Trajectory`)
    FOLDER/<what>-<id>/trajectory.csv    the same, a row for each seed and time, for pandas
    FOLDER/<what>-<id>/checkpoint.pt     while it is not; a warm start keeps its last one for what starts from it
    FOLDER/<what>-<id>/model.pt          where models are kept: a list over its seeds of state dicts (None: diverged)

The id is a digest of what decides the result: change the data, the plan or the loss, and the run is another. Several
processes of a machine may work in one folder: a run is made by the one that holds the lock in its folder (``.lock``).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import pickle
import platform
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rootscale.files import command_line, locked, whole, write_json
from rootscale.lab import pool
from rootscale.lab.identity import describe
from rootscale.lab.provenance import environment
from rootscale.lab.run import Run
from rootscale.lab.settings import Settings, grid
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.trajectory import Trajectory

__all__ = ["BusyError", "Progress", "Sweep", "finished", "joined", "sweep"]

#: Where the runs of a sweep can be made.
ENGINES = ("processes", "ray")
#: Progress is told this often, or when this much more is done: a run may take thousands of steps a second.
TELL_SECONDS, TELL_SHARE = 0.1, 0.01
#: What is said of a file that cannot be read.
_AGAIN = "remove it, and the run is made again"
#: Called with what is being run, which of how many runs it is, and how far it is, from 0 to 1.
Progress = Callable[[str, int, int, float], object]


class BusyError(RuntimeError):
    """Another process is making a run that was asked for."""


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


@dataclass(frozen=True)
class _Job:
    task: Task
    variant: Variant
    seeds: tuple[int, ...]
    settings: Settings
    warm: _Job | None = None
    keep_model: bool = False

    def identity(self) -> dict[str, Any]:
        """Everything that decides the result; what is kept of it does not."""
        settings = {**asdict(self.settings.measure), **asdict(self.settings.setup), "grid": list(self.settings.grid)}
        settings["switch_at"] = self.settings.switch_at
        del settings["device"], settings["points"]  # a sweep may be moved, and its points are those of the grid
        return {
            "task": describe(self.task),
            "variant": self.variant.to_dict(),
            "seeds": list(self.seeds),
            "settings": settings,
        }

    @property
    def name(self) -> str:
        text = json.dumps(self.identity(), sort_keys=True)
        label = re.sub(r"[^a-z0-9.]+", "-", self.variant.label(self.task.plan).lower()).strip("-")
        seeds = f"{self.seeds[0]}" if len(self.seeds) == 1 else f"{self.seeds[0]}-{self.seeds[-1]}"
        return f"{label}-seeds-{seeds}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def sweep(
    task: Task,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    settings: Settings,
    folder: str | Path | None = None,
    *,
    together: int = 16,
    workers: int | None = None,
    engine: str = "processes",
    address: str | None = None,
    gpus: float = 0.0,
    checkpoint_every: float = 20.0,
    keep_models: bool = False,
    tensorboard: bool = False,
    wait: bool = True,
    on_progress: Progress | None = None,
) -> Sweep:
    """Run every variant with every seed; what is finished is read, what is begun is gone on with.

    Args:
        task: what is learned.
        variants: how; the first is usually the base, ``Variant()``.
        seeds: of the replicas.
        settings: what is measured when, and where; with ``switch_at``, all variants start from one warm start a seed.
        folder: where the runs are kept; None keeps nothing.
        together: how many seeds are trained in one program.
        workers: processes on this machine; None is one for each core where that is possible (Linux, not on a GPU), and
            1 runs everything in this process.
        engine: ``processes``, or ``ray`` for a Ray cluster (extra ``ray``), which needs a folder that its nodes share.
        address, gpus: of the Ray cluster, and how many GPUs a run takes there.
        checkpoint_every: seconds between checkpoints.
        keep_models: also store each replica's trained parameters (of its average where the plan has an EMA) in
            ``FOLDER/<run>/model.pt``, on the CPU (`Sweep.models`). It is no part of what a run is: one that was
            finished without it goes on from its last checkpoint where that is still there, and else is run again.
        tensorboard: also write event files (needs the extra ``tensorboard``).
        wait: for runs that another process is making in the same folder, and then read them; otherwise it is a
            `BusyError` to come to one of them. Warm starts are waited for in any case.
        on_progress: called as often as there is something to say.

    An interrupt (Ctrl-C) is held back until the step is done and a checkpoint written.
    """
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from each other, got {list(seeds)}")
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if len(set(variants)) < len(variants):
        raise ValueError("variants must differ from each other")
    if keep_models and folder is None:
        raise ValueError("models are kept in the folder of the runs: give one to keep_models, got folder=None")
    cpu = torch.device(settings.setup.device).type == "cpu"
    workers = (pool.default_workers() if cpu else 1) if workers is None else workers
    for variant in variants:
        variant.plans(task.plan)  # before anything is run: there may be no such plan
    groups, starts, jobs = _jobs(task, variants, seeds, settings, together, keep_models)
    todo = [*starts.values(), *jobs.values()]
    labels = [job.variant.label(task.plan) + ", warm start" * (i < len(starts)) for i, job in enumerate(todo)]
    tell = on_progress or _silent
    found: dict[int, Trajectory] = {}
    states: dict[int, Any] = {}
    with ExitStack() as stack:
        interrupted = stack.enter_context(_held_interrupts())
        if (workers > 1 or engine == "ray") and folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        keep = _Keeper(Path(folder) if folder is not None else None, checkpoint_every, tensorboard, wait)
        needed = {id(job.warm) for job in jobs.values() if not keep.finished(job)}
        local = workers > 1 and pool.available() and cpu
        if engine == "ray" or local:
            for some in (range(len(starts)), range(len(starts), len(todo))):
                missing = [i for i in some if not keep.finished(todo[i], id(todo[i]) in needed)]
                work = [partial(keep.work, todo[i], i < len(starts)) for i in missing]
                said = partial(_tell_of, missing, labels, tell)
                if engine == "ray":
                    from rootscale.integrations import ray

                    ray.run_all(work, Path(str(folder)), said, interrupted, address=address, gpus=gpus)
                else:
                    pool.run_all(work, workers, said, interrupted)
        for i, job in enumerate(todo):
            found[id(job)], states[id(job)] = keep.run(
                job,
                states.get(id(job.warm)),
                id(job) in needed or (i < len(starts) and not keep.finished(job)),
                partial(tell, labels[i], i, len(todo)),
                interrupted,
            )
    return Sweep(
        {variant: joined([found[id(jobs[variant, group])] for group in groups]) for variant in variants},
        joined([found[id(job)] for job in starts.values()]) if starts else None,
        {
            (variant, seed): (Path(str(folder)) / job.name / "model.pt", r)
            for (variant, group), job in jobs.items()
            for r, seed in enumerate(group)
            if keep_models and found[id(job)].meta["diverged_at"][r] is None
        },
    )


def _silent(label: str, run: int, runs: int, share: float) -> None:
    pass


def _tell_of(numbers: Sequence[int], labels: Sequence[str], tell: Progress, n: int, share: float) -> None:
    """Progress of the n-th of those runs."""
    tell(labels[numbers[n]], numbers[n], len(labels), share)


@dataclass(frozen=True)
class _Keeper:
    """Runs jobs, and keeps what they give."""

    folder: Path | None
    every: float = math.inf
    tensorboard: bool = False
    wait: bool = True

    def place(self, job: _Job) -> Path | None:
        return None if self.folder is None else self.folder / job.name

    def finished(self, job: _Job, with_state: bool = False) -> bool:
        """Whether its trajectory is there, its model, and the state that others start from, where they are wanted."""
        place = self.place(job)
        if place is None or not (place / "trajectory.npz").exists():
            return False
        if with_state and not (place / "checkpoint.pt").exists():
            return False
        return not job.keep_model or (place / "model.pt").exists() or _all_diverged(place)

    def work(self, job: _Job, keep_state: bool, tell: Callable[[float], object], interrupted: threading.Event) -> None:
        """A job in a process of its own: everything goes through the folder."""
        start = None if job.warm is None else self.place(job.warm)
        warm = None if start is None else _read(start / "checkpoint.pt")
        self.run(job, warm, keep_state, tell, interrupted)

    def run(
        self,
        job: _Job,
        warm: Any,
        keep_state: bool,
        tell: Callable[[float], object],
        interrupted: threading.Event,
    ) -> tuple[Trajectory, Any]:
        """The trajectory of a job, and its last state where it is to be kept."""
        if self.folder is None:
            return self._make(job, warm, keep_state, tell, interrupted)
        place = self.folder / job.name
        if self.finished(job, keep_state):
            return _stored(place, keep_state)

        def patient() -> bool:
            tell(0.0)
            return (self.wait or keep_state) and not interrupted.is_set()

        with locked(place / ".lock", patient) as mine:
            if not mine and interrupted.is_set():
                raise KeyboardInterrupt
            if not mine:
                raise BusyError(f"another process is making {job.name} in {self.folder}")
            if self.finished(job, keep_state):  # by who had the lock
                return _stored(place, keep_state)
            return self._make(job, warm, keep_state, tell, interrupted)

    def _make(
        self,
        job: _Job,
        warm: Any,
        keep_state: bool,
        tell: Callable[[float], object],
        interrupted: threading.Event,
    ) -> tuple[Trajectory, Any]:
        place = self.place(job)
        run = Run(job.task, job.variant, job.seeds, job.settings, warm)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            if (place / "checkpoint.pt").exists():
                run.load_state_dict(_read(place / "checkpoint.pt"))
            write_json(place / "run.json", {**_facts(job), "status": "running"})
        board = _board(place, run) if self.tensorboard and place is not None else None
        saved, told, share = time.monotonic(), -math.inf, -1.0
        with torch.random.fork_rng():
            while not run.done:
                run.advance()
                if board is not None:
                    board(run)
                now, progress = time.monotonic(), run.progress
                if now - told > TELL_SECONDS or progress - share >= TELL_SHARE or progress == 1:
                    told, share = now, progress
                    tell(progress)
                stopping = interrupted.is_set()
                if place is not None and (stopping or now - saved > self.every):
                    _checkpoint(place, run)
                    saved = time.monotonic()
                if stopping:
                    raise KeyboardInterrupt
        trajectory = run.trajectory()
        if place is not None:
            if keep_state:
                _checkpoint(place, run)
            if job.keep_model and None in run.diverged:
                _write_models(place, run)
            _write_csv(place / "trajectory.csv", trajectory)
            trajectory.save(place / "trajectory.npz")  # from here on it is finished
            status = "diverged" if None not in run.diverged else "finished"
            write_json(place / "run.json", {**_facts(job), "status": status, "seconds": round(run.seconds, 1)})
            if not keep_state:
                (place / "checkpoint.pt").unlink(missing_ok=True)
        return trajectory, run.state_dict() if keep_state else None


def _facts(job: _Job) -> dict[str, Any]:
    return {
        **job.identity(),
        "plan": job.variant.plan(job.task.plan).to_dict(),
        "command": command_line(Path(sys.argv[0]).name, sys.argv[1:]),
        "process": {"host": platform.node(), "pid": os.getpid()},
        **environment(job.settings.setup.device),
    }


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is damaged: {error}; {_AGAIN}") from None


def _stored(place: Path, with_state: bool) -> tuple[Trajectory, Any]:
    """What a finished run left: its trajectory, and its last state where it is wanted."""
    state = _read(place / "checkpoint.pt") if with_state else None
    try:
        return Trajectory.load(place / "trajectory.npz"), state
    except ValueError as error:
        raise ValueError(f"{error}; {_AGAIN}") from None


def _checkpoint(place: Path, run: Run) -> None:
    with whole(place / "checkpoint.pt") as temporary:
        torch.save(run.state_dict(), temporary)


def _write_models(place: Path, run: Run) -> None:
    models = [
        dict(run.learner.replica(r).cpu().state_dict()) if lost is None else None for r, lost in enumerate(run.diverged)
    ]
    with whole(place / "model.pt") as temporary:
        torch.save(models, temporary)


def _all_diverged(place: Path) -> bool:
    return None not in Trajectory.load(place / "trajectory.npz").meta["diverged_at"]


def _write_csv(path: Path, trajectory: Trajectory) -> None:
    """One row for each seed and time."""
    with whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "time", "samples", *trajectory.names])
        for r, seed in enumerate(trajectory.meta["seeds"]):
            for t, (moment, samples) in enumerate(zip(trajectory.times, trajectory.meta["samples"], strict=True)):
                writer.writerow([seed, moment, samples, *(values[r, t] for values in trajectory.values.values())])


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """The replicas of several trajectories on one grid."""
    first = parts[0]
    meta = {
        **first.meta,
        "seeds": [seed for part in parts for seed in part.meta["seeds"]],
        "diverged_at": [place for part in parts for place in part.meta["diverged_at"]],
        "seconds": sum(part.meta["seconds"] for part in parts),
    }
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in first.names}
    return Trajectory(first.times, values, meta=meta)


@contextmanager
def _held_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of interrupting; a second one interrupts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _board(place: Path, run: Run) -> Callable[[Run], None]:
    """Writes means over replicas to TensorBoard's event files as they are measured."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard's files need the extra 'tensorboard': pip install rootscale[tensorboard]"
        ) from None
    done = run.measured
    writer = SummaryWriter(str(place), purge_step=run.settings.grid[done] if done else None)

    def board(run: Run) -> None:
        nonlocal done
        while done < run.measured:
            for name, rows in run.values.items():
                kept = [value for value in rows[done] if np.isfinite(value)]
                if kept:
                    mean = sum(kept) / len(kept)
                    writer.add_scalar(name, mean, run.settings.grid[done])
            done += 1
            writer.flush()

    return board


# -- what there is to run --------------------------------------------------------------------------------------------


def _jobs(
    task: Task,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    settings: Settings,
    together: int,
    keep_models: bool,
) -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], _Job], dict[tuple[Variant, tuple[int, ...]], _Job]]:
    """The groups of seeds that are trained together, the warm start of each, and the runs of each variant."""
    groups = [tuple(seeds[i : i + together]) for i in range(0, len(seeds), together)]
    starts: dict[tuple[int, ...], _Job] = {}
    size = int(task.plan.batch_size.total)
    switch_at = settings.switch_at // size * size
    if switch_at:
        points = max(2, round(len(settings.grid) * switch_at / (settings.grid[-1] - switch_at)))
        before = replace(settings, switch_at=0, grid=grid(switch_at, points, batch_sizes=[size]))
        starts = {group: _Job(task, Variant(), group, before) for group in groups}
    jobs = {
        (variant, group): _Job(task, variant, group, settings, starts.get(group), keep_models)
        for variant in variants
        for group in groups
    }
    return groups, starts, jobs


def finished(
    task: Task,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    settings: Settings,
    folder: str | Path,
    *,
    together: int = 16,
    keep_models: bool = False,
) -> bool:
    """Whether `sweep` with the same arguments would only read: all runs are finished, warm starts included."""
    _, starts, jobs = _jobs(task, variants, seeds, settings, together, keep_models)
    keep = _Keeper(Path(folder))
    return all(keep.finished(job) for job in (*starts.values(), *jobs.values()))
