"""Executors: where the jobs of a study are run, how many at a time, and until when.

A job is a function of two arguments: one to report its progress to, and a `Stop` that it looks at after every step.
Jobs share nothing but the folder of the runs, so every executor gives the same result.

| executor | where |
|---|---|
| `Forked` | in processes of this machine, each forked from this one and under a guard (`rootscale.lab.processes`) |
| `Here` | in this process, one job after the other: where no process can be forked, or a GPU computes |
| `rootscale.integrations.executors.OnRay` | on a Ray cluster |
| `rootscale.integrations.executors.OnExecutor` | by whatever has ``submit``: submitit (SLURM), Dask, joblib |

A job has ended when it has said so. One whose process ends without a word, whatever its exit code, has failed. To add
an executor, write a class with the attributes and methods of `Execute` and pass an instance of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import math
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from rootscale.lab.failures import FINISHED
from rootscale.lab.processes import Child
from rootscale.lab.provenance import device_here
from rootscale.lab.stopping import Deadline, Job, OnProgress, Stop, held_interrupts

_log = logging.getLogger(__name__)

#: Most seeds that are trained in one program, if nothing else is asked for.
TOGETHER = 16
#: Seconds that jobs have to write their checkpoints when they are asked to stop; a loop that hangs is then ended.
PATIENCE = 30.0
#: Seconds between looks at whether jobs have to stop.
_LOOK = 0.2
#: What a job says when all that it makes is stored.
_DONE = "done"


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
                with _without_exit(name_of(job, number)):
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
            _Pool(jobs, self.workers(), self.threads, on_progress, Stop(event, self.deadline)).run()


def can_fork() -> bool:
    """Return whether processes can be forked: on Linux, while neither CUDA nor JAX is in use."""
    return sys.platform == "linux" and "jax" not in sys.modules and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def default_executor(device: str, processes: int | None = None, together: int = TOGETHER) -> Execute:
    """Return what runs jobs where nobody says: a process for each core, or this process where a GPU computes.

    Args:
        device: of torch.
        processes: how many at a time, where somebody says.
        together: most seeds that one job trains in one program.
    """
    on_cpu = device_here(device).type == "cpu"
    if can_fork() and (on_cpu or (processes or 1) > 1):
        return Forked(processes, together)
    return Here(together)


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


def name_of(job: Job, number: int) -> str:
    """Return what a job is called in messages."""
    return getattr(job, "name", f"job {number}")


# -- in this process -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_exit(name: str) -> Iterator[None]:
    """Let a job that would end this process fail instead; processes that it forks end as ever."""
    pid, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != pid:
            leave(status)
        raise RuntimeError(f"{name} called os._exit({status}), which would end the whole process without its results")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


# -- in other processes ----------------------------------------------------------------------------------------------


@dataclass
class _Running:
    """A job in a process of its own.

    Attributes:
        word: what it said of its end: that it has ended, or its error; None while it has said nothing.
    """

    name: str
    child: Child
    messages: Connection
    word: str | BaseException | None = None
    open: bool = True


@dataclass
class _Pool:
    """The processes of one call of `Forked.run`."""

    jobs: Sequence[Job]
    workers: int
    threads: int
    on_progress: OnProgress
    stop: Stop
    running: dict[int, _Running] = field(default_factory=dict)
    failed: BaseException | None = None
    asked_at: float | None = None
    complete: bool = True

    def run(self) -> None:
        """Run all jobs; a job that fails stops the others, and its error is raised here."""
        importlib.import_module("torch._dynamo")  # which every optimizer needs: a second, here and not in each process
        waiting = list(enumerate(self.jobs))
        try:
            while waiting or self.running:
                stopping = self.stop.asked or self.failed is not None
                if stopping and not self.running:
                    break
                if stopping:
                    self._ask()
                while waiting and not stopping and len(self.running) < self.workers:
                    self._start(*waiting.pop(0))
                self._listen()
        finally:
            for one in self.running.values():
                one.child.end()
            for one in self.running.values():
                one.child.wait()
        if self.failed is not None:
            raise self.failed
        if waiting or not self.complete or self.stop.interrupted.is_set():
            self.stop.end()

    def _start(self, number: int, job: Job) -> None:
        receives, sends = multiprocessing.connection.Pipe(duplex=False)
        inherited = [one.messages for one in self.running.values()] + [receives]

        def work() -> None:
            for connection in inherited:
                connection.close()
            _work(job, sends, self.threads, self.stop.deadline)

        child = Child.forked(work)
        sends.close()
        self.running[number] = _Running(name_of(job, number), child, receives)

    def _listen(self) -> None:
        """Wait for what jobs say, and for their ends."""
        readable = [one.messages for one in self.running.values() if one.open]
        ends = [one.child for one in self.running.values()]
        waited: list[Any] = [*readable, *ends]
        ready = set(map(id, multiprocessing.connection.wait(waited, _LOOK)))
        for number, one in list(self.running.items()):
            ended = id(one.child) in ready and one.child.poll() is not None
            while one.open and (ended or id(one.messages) in ready) and one.messages.poll():
                self._receive(number, one)
                if not ended:
                    break
            if ended:
                one.messages.close()
                del self.running[number]
                self._conclude(one)

    def _receive(self, number: int, one: _Running) -> None:
        try:
            message = one.messages.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # it ended in the middle of a word
            one.open = False
            return
        if isinstance(message, float):
            self.on_progress(number, message)
        else:
            one.word = message

    def _conclude(self, one: _Running) -> None:
        """Take note of how a job ended."""
        if one.word == _DONE:
            return
        self.complete = False
        if isinstance(one.word, KeyboardInterrupt):  # the process was told so itself, as all of a job's are at times
            if not self.stop.asked:
                self.failed = self.failed or one.word
        elif isinstance(one.word, BaseException):
            self.failed = self.failed or one.word
        elif self.asked_at is None:
            self.failed = self.failed or ValueError(f"{one.name} {ended_as(one.child.returncode)}\n{FINISHED}")

    def _ask(self) -> None:
        """Ask all jobs to stop, once; and end those that have not done so for too long."""
        now = time.monotonic()
        if self.asked_at is None:
            self.asked_at = now
            if self.failed is not None or self.stop.interrupted.is_set():  # a deadline they see themselves
                for one in self.running.values():
                    one.child.stop()
        elif now - self.asked_at > PATIENCE:
            for one in self.running.values():
                _log.warning("%s did not stop for %.0f s and was ended", one.name, now - self.asked_at)
                one.child.end()
            self.asked_at = math.inf


def ended_as(code: int | None) -> str:
    """Return how a process ended that did not say so, in words."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        more = " (so does the kernel where memory is short)" if name == "SIGKILL" else ""
        return f"was killed by {name}{more} before it was finished"
    return (
        f"ended its process with exit code {code} before it was finished: os._exit, or a library, ended it; a run ends "
        "when train returns"
    )


def _work(job: Job, messages: Connection, threads: int, deadline: Deadline) -> None:
    """Run a job in a process of its own, and say how it ended."""
    own, interrupted = os.getpid(), threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    torch.set_num_threads(threads)  # the thread pool of the parent does not survive a fork
    word: str | BaseException = _DONE
    try:
        job(lambda share: messages.send(float(share)), Stop(interrupted, deadline))
    except BaseException as error:
        word = portable(error)
    if os.getpid() == own:  # and not in a process that the job has forked
        messages.send(word)


def portable(error: BaseException) -> BaseException:
    """Return the error itself where it can be pickled, and else one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _need_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
