"""How jobs are asked to stop: by Ctrl-C, SIGTERM or a deadline, at the end of a step and with a checkpoint."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class UnfinishedError(RuntimeError):
    """The deadline passed before all runs were finished; what they have so far is in their checkpoints."""


class ClearlyDifferentError(Exception):
    """Runs are clearly different from the base before their end; raised where they are made, to stop all of them."""


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
    """What asks a job to stop: an interrupt (Ctrl-C or SIGTERM) or a deadline."""

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


@contextlib.contextmanager
def held_interrupts() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM set an event, so that a step ends first; a second one interrupts at once.

    Schedulers send SIGTERM before they take a machine away. Python allows handlers in the main thread only; elsewhere
    the event is never set.
    """
    event = threading.Event()

    def handler(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)
