"""Executors: where the jobs of a sweep are run, how many at a time, and until when.

A job is a function of two arguments: one to report its progress to, and a `Stop` that it looks at after every step.
Jobs share nothing but the folder of the runs, so every executor gives the same result.

| executor | where |
|---|---|
| `Here` | in this process, one job after the other |
| `Forked` | in several processes of this machine, each forked from this one |
| `rootscale.integrations.executors.OnRay` | on a Ray cluster |
| `rootscale.integrations.executors.OnExecutor` | by whatever has ``submit``: submitit (SLURM), Dask, joblib |

To add another one, write a class with the attributes and methods of `Execute` and pass an instance of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from rootscale.lab.forking import Pool, can_fork
from rootscale.lab.stopping import Deadline, Job, OnProgress, Stop, held_interrupts

__all__ = ["TOGETHER", "Execute", "Forked", "Here", "default_executor", "limited"]

#: Most seeds that are trained in one program, if nothing else is asked for.
TOGETHER = 16


class Execute(Protocol):
    """What runs jobs.

    Attributes:
        together: most seeds that one job trains in one program.
        deadline: when jobs stop, at the end of a step and with a checkpoint.
    """

    @property
    def together(self) -> int: ...

    @property
    def deadline(self) -> Deadline: ...

    def workers(self) -> int:
        """Return how many jobs can run at a time: work is split to fill them."""
        ...

    def run(
        self, jobs: Sequence[Job], folder: Path, on_progress: OnProgress, interrupted: threading.Event | None = None
    ) -> None:
        """Run all jobs.

        Args:
            jobs: they do not depend on each other.
            folder: that all jobs read and write.
            on_progress: called in this process.
            interrupted: set when the user asks to stop; jobs then end with their checkpoints, and ``KeyboardInterrupt``
                is raised. None holds Ctrl-C back itself.

        Raises:
            UnfinishedError: the deadline passed.
        """
        ...


@dataclass(frozen=True)
class Here:
    """Runs jobs in this process, one after the other.

    Args:
        together: most seeds that one job trains in one program.
        deadline: when jobs stop.
    """

    together: int = TOGETHER
    deadline: Deadline = Deadline()

    def __post_init__(self) -> None:
        _need_one("together", self.together)

    def workers(self) -> int:
        """Return 1."""
        return 1

    def run(
        self, jobs: Sequence[Job], folder: Path, on_progress: OnProgress, interrupted: threading.Event | None = None
    ) -> None:
        """Run all jobs; see `Execute.run`."""
        with _given_or_held(interrupted) as event:
            stop = Stop(event, self.deadline)
            for number, job in enumerate(jobs):
                stop.end()
                job(lambda share, number=number: on_progress(number, share), stop)  # type: ignore[misc]


@dataclass(frozen=True)
class Forked:
    """Runs jobs in several processes of this machine, each forked from this one.

    A forked process has the task already, lambdas and data included: nothing is pickled. Jobs on a GPU need a parent
    that has not used CUDA itself. Where no process can be forked, jobs run in this one.

    Args:
        processes: how many at a time; None is one for each core.
        together: most seeds that one job trains in one program.
        deadline: when jobs stop.
        threads: of torch in each process.
    """

    processes: int | None = None
    together: int = TOGETHER
    deadline: Deadline = Deadline()
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("processes", "together", "threads"):
            if getattr(self, name) is not None:
                _need_one(name, getattr(self, name))

    def workers(self) -> int:
        """Return the number of processes; 1 where none can be forked."""
        if not can_fork():
            return 1
        return self.processes or len(os.sched_getaffinity(0))

    def run(
        self, jobs: Sequence[Job], folder: Path, on_progress: OnProgress, interrupted: threading.Event | None = None
    ) -> None:
        """Run all jobs; see `Execute.run`. A job that fails stops the others, and its error is raised here."""
        if not can_fork():
            Here(self.together, self.deadline).run(jobs, folder, on_progress, interrupted)
            return
        with _given_or_held(interrupted) as event:
            Pool(jobs, self.workers(), self.threads, on_progress, Stop(event, self.deadline)).run()


def default_executor(device: str) -> Execute:
    """Return what runs jobs where nobody says: a process for each core, or this process where a GPU computes."""
    return Forked() if torch.device(device).type == "cpu" and can_fork() else Here()


def limited(execute: Execute, deadline: Deadline) -> Execute:
    """Return the executor with an earlier deadline, where that is one."""
    if deadline.at >= execute.deadline.at:
        return execute
    if not dataclasses.is_dataclass(execute) or isinstance(execute, type):
        raise TypeError(f"a budget needs an executor that is a dataclass with a deadline, got {type(execute).__name__}")
    return dataclasses.replace(execute, deadline=deadline)


@contextlib.contextmanager
def _given_or_held(interrupted: threading.Event | None) -> Iterator[threading.Event]:
    if interrupted is not None:
        yield interrupted
        return
    with held_interrupts() as event:
        yield event


def _need_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
