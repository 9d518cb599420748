"""Executors: where the jobs of a sweep are run, how many at a time, and until when.

A job is a function of two arguments: one to report its progress to, and a `Stop` that it looks at after every step.
Jobs share nothing but the folder of the runs, so every executor gives the same result.

| executor | where |
|---|---|
| `Here` | in this process, one job after the other |
| `Forked` | in several processes of this machine, each forked from this one |
| `rootscale.integrations.ray.OnRay` | on a Ray cluster |

To add another one, write a class with the attributes and methods of `Execute` and pass an instance of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = [
    "Deadline",
    "Execute",
    "Forked",
    "Here",
    "Job",
    "Stop",
    "UnfinishedError",
    "can_fork",
    "default_executor",
    "held_interrupts",
]

#: Most seeds that are trained in one program, if nothing else is asked for.
TOGETHER = 16


class UnfinishedError(RuntimeError):
    """The deadline passed before all runs were finished; what they have so far is in their checkpoints."""


@dataclass(frozen=True)
class Deadline:
    """A moment at which jobs stop.

    Args:
        at: the moment, as ``time.monotonic()`` counts; infinity is never.
    """

    at: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline so many seconds from now; None is never."""
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The seconds until then, at least 0."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return time.monotonic() >= self.at


@dataclass(frozen=True)
class Stop:
    """What asks a job to stop: an interrupt (Ctrl-C) or a deadline."""

    interrupted: threading.Event
    deadline: Deadline = Deadline()

    @property
    def asked(self) -> bool:
        """Whether the job has to stop now."""
        return self.interrupted.is_set() or self.deadline.passed

    def end(self) -> None:
        """Raise what a job ends with when it was asked to stop, and nothing if it was not."""
        if self.interrupted.is_set():
            raise KeyboardInterrupt
        if self.deadline.passed:
            raise UnfinishedError("the deadline passed before all runs were finished; the same call resumes them")


#: A job is given a function to call with its progress, from 0 to 1, and a `Stop`.
Job = Callable[[Callable[[float], object], Stop], object]
#: Called with the number of a job and its progress.
OnProgress = Callable[[int, float], object]


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
            _Pool(self, jobs, on_progress, Stop(event, self.deadline)).run()


def can_fork() -> bool:
    """Return whether processes can be forked: on Linux, while neither CUDA nor JAX is in use."""
    return sys.platform == "linux" and "jax" not in sys.modules and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def default_executor(device: str) -> Execute:
    """Return what runs jobs where nobody says: a process for each core, or this process where a GPU computes."""
    return Forked() if torch.device(device).type == "cpu" and can_fork() else Here()


@contextlib.contextmanager
def held_interrupts() -> Iterator[threading.Event]:
    """Let Ctrl-C set an event instead of interrupting, so that a step ends first; a second one interrupts at once.

    Python allows that in the main thread only; elsewhere the event is never set.
    """
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


# -- forked processes ------------------------------------------------------------------------------------------------

#: Exit codes of a worker whose error is on its way to the parent, and of one that was interrupted.
_FAILED, _INTERRUPTED = 1, 130


class _Pool:
    """The processes of one call of `Forked.run`."""

    def __init__(self, executor: Forked, jobs: Sequence[Job], on_progress: OnProgress, stop: Stop) -> None:
        self.executor, self.on_progress, self.stop = executor, on_progress, stop
        self.context = multiprocessing.get_context("fork")
        self.messages: Any = self.context.Queue()
        self.waiting = list(enumerate(jobs))
        self.running: dict[int, Any] = {}
        self.asked: set[int] = set()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while self.waiting or self.running:
                stopping = self.stop.asked or self.failed is not None
                if stopping and not self.running:
                    break
                if not stopping:
                    self._start()
                elif self.failed is not None or self.stop.interrupted.is_set():  # a deadline they see themselves
                    self._interrupt()
                with contextlib.suppress(queue.Empty):
                    self._receive(self.messages.get(timeout=0.2))
                self._reap()
            while not self.messages.empty():
                self._receive(self.messages.get())
        finally:
            self._interrupt()
            for process in self.running.values():
                process.join()
        if self.failed is not None:
            raise self.failed
        if self.waiting or self.stop.interrupted.is_set():
            self.stop.end()

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.executor.workers():
            number, job = self.waiting.pop(0)
            arguments = (number, job, self.messages, os.getpid(), self.executor)
            process = self.running[number] = self.context.Process(target=_work, args=arguments)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can handle it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _receive(self, message: tuple[int, float | BaseException]) -> None:
        number, what = message
        if isinstance(what, BaseException):
            self.failed = self.failed or what
        else:
            self.on_progress(number, what)

    def _reap(self) -> None:
        for number in [number for number, process in self.running.items() if not process.is_alive()]:
            process = self.running.pop(number)
            process.join()
            if process.exitcode not in (0, _FAILED, _INTERRUPTED):
                self.failed = self.failed or RuntimeError(f"a worker process died with exit code {process.exitcode}")

    def _interrupt(self) -> None:
        for process in self.running.values():
            if process.pid not in self.asked:  # once: a second interrupt would not wait for a checkpoint
                self.asked.add(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)


def _work(number: int, job: Job, messages: Any, parent: int, executor: Forked) -> None:
    """Run a job in a child."""
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing goes on when the parent was killed
    if os.getppid() != parent:
        os._exit(_FAILED)
    torch.set_num_threads(executor.threads)  # the thread pool of the parent does not survive a fork
    code = 0
    try:
        job(lambda share: messages.put((number, share)), Stop(interrupted, executor.deadline))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:
        messages.put((number, portable(error)))
        code = _FAILED
    messages.close()
    messages.join_thread()
    os._exit(code)


def portable(error: BaseException) -> BaseException:
    """Return the error itself where it can be pickled, and else one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
