"""How commands follow runs: a bar on a terminal, else a line a minute; and what they say when they are stopped."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rootscale.cli.console import progress
from rootscale.lab.observe import Observer
from rootscale.lab.stopping import UnfinishedError

if TYPE_CHECKING:
    from rootscale.lab.trial import Trial

#: The exit code of a command whose time was over before there was a verdict (EX_TEMPFAIL: it may be tried again).
UNFINISHED = 75
#: Seconds between two lines where there is no terminal.
EVERY = 60.0


@contextmanager
def observing(console: Console, measured: Callable[[Path, Trial], object] | None = None) -> Iterator[Observer]:
    """Show a bar for all runs together; without a terminal, a line a minute and when a kind of run is finished."""
    watch = _Watch(console)
    with progress(console) as bar:
        yield Observer(partial(watch, bar), lambda text: _say(f"note: {text}"), measured)


def speaking(console: Console, bar: Callable[[str, float], None]) -> Callable[[str, float], None]:
    """Return what moves a bar, and without a terminal prints a line a minute instead: what is run, and the share."""
    begun = last = time.monotonic()
    first: float | None = None  # what was made before

    def show(label: str, share: float) -> None:
        nonlocal first, last
        bar(label, share)
        first = share if first is None else first
        now = time.monotonic()
        if not (console.is_terminal or console.quiet) and now - last > EVERY:
            last = now
            _say(f"running {label} ({_so_far(share, now - begun, first)})")

    return show


class _Watch:
    """How far the runs of a command are; each seed of each kind is a run."""

    def __init__(self, console: Console) -> None:
        self.quiet = console.is_terminal
        self.shares: dict[int, tuple[str, float]] = {}
        self.runs, self.begun = 0, time.monotonic()
        self.last = self.seen = self.begun

    def __call__(self, bar: Callable[[str, float], None], label: str, run: int, runs: int, share: float) -> None:
        """Take note of the progress of a run, and show it."""
        if runs != self.runs:  # a new round, which began when the one before ended
            self.shares, self.runs, self.begun = {}, runs, self.seen
        self.seen = time.monotonic()
        before = self.shares.get(run, (label, 0.0))[1]
        self.shares[run] = (label, share)
        bar(f"{self.done} of {runs} runs done, now {label}", self.share)
        ended = share == 1 > before and all(one == 1 for name, one in self.shares.values() if name == label)
        if not self.quiet and (ended or time.monotonic() - self.last > EVERY):
            self.last = time.monotonic()
            _say(f"{'finished' if ended else 'running'} {label} ({self})")

    @property
    def done(self) -> int:
        return sum(share == 1 for _, share in self.shares.values())

    @property
    def share(self) -> float:
        return sum(share for _, share in self.shares.values()) / self.runs

    def __str__(self) -> str:
        return f"{self.done} of {self.runs} runs done, {_so_far(self.share, time.monotonic() - self.begun)}"


def _so_far(share: float, seconds: float, first: float = 0.0) -> str:
    """Return the share of the work that is done, and about how long the rest takes, from what so many seconds made."""
    made = share - first
    left = f", about {duration(seconds * (1 - share) / made)} left" if made > 0.02 and share < 1 else ""
    return f"{100 * share:.0f} %{left}"


def tracker(name: str | None) -> Callable[[Path, Trial], object] | None:
    """Return what logs runs to the tracker of that name; None for no name."""
    if name is None:
        return None
    from rootscale.integrations.trackers import Track

    return Track(name)


@contextmanager
def stoppable(runs: Path) -> Iterator[None]:
    """Say that the runs are in this folder, and what resumes them, when Ctrl-C or a budget stops them."""
    try:
        yield
    except (KeyboardInterrupt, UnfinishedError) as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else "the budget is spent"
        words = ["rootscale", *(word for word in sys.argv[1:] if word != "--fresh")]  # what is new stays
        command = " ".join(shlex.quote(word) if set(word) & set(" \t'\"*;&|<>()$") else word for word in words)
        _say(f"{why}: the runs so far are in {runs}; this resumes them:\n  {command}")
        if isinstance(error, KeyboardInterrupt):
            raise
        raise SystemExit(UNFINISHED) from None  # 3 is a verdict


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(45), duration(600), duration(9000)
    ('45 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
