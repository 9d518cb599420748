"""Making the runs of an experiment, in pieces and in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rootscale.cli.console import progress
from rootscale.files import locked
from rootscale.lab import BusyError, Deadline, Here, Observer, Settings, Store, Sweep, UnfinishedError, finished, sweep
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import MEASURES, End, format_end
from rootscale.paper.stored import refuse_others, store
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Clock", "Runs", "reproduce"]

Result = TypeVar("Result")


class Clock:
    """Stops sweeps after some time: after a step, with a checkpoint.

    Args:
        minutes: that there are; None is any number.
    """

    def __init__(self, minutes: float | None) -> None:
        self.deadline = Deadline.after(None if minutes is None else 60 * minutes)

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return self.deadline.passed

    def within(self, work: Callable[[], Result]) -> Result | None:
        """What a sweep with this deadline gives; None where the time was over before its end."""
        try:
            return work()
        except UnfinishedError:
            return None


@dataclass(frozen=True)
class Runs:
    """The runs of an experiment, in a folder that several processes may share: each is made by one of them.

    Args:
        experiment: which.
        settings: that `Experiment.lines` gave.
        folder: of the runs.
        together: seeds that are trained at once.
        clock: that stops them.
    """

    experiment: Experiment
    settings: Settings
    folder: Path
    together: int
    clock: Clock

    @cached_property
    def store(self) -> Store:
        """The folder; it computes the fingerprint of a task once."""
        return Store(self.folder, checkpoint_every=60.0, keep_models=self.experiment.keep_models)

    def finished(self, line: Line, seeds: range) -> bool:
        """Whether there is nothing left to run."""
        return finished(line.task, [line.variant], seeds=seeds, settings=self.settings, store=self.store)

    def sweep(
        self,
        line: Line,
        seeds: range,
        tell: Callable[[str, float], None] = lambda more, share: None,
        wait: bool = True,
    ) -> Sweep:
        """Read them, make them, or go on with them.

        Args:
            line, seeds: which.
            tell: called with what is to be said more, and how far it is.
            wait: for another process that is making them; otherwise that is a `rootscale.lab.BusyError`.
        """

        def on_progress(label: str, run: int, runs: int, share: float) -> None:
            tell(" (before the switch)" if run < runs - 1 else "", share)

        return sweep(
            line.task,
            [line.variant],
            seeds=seeds,
            settings=self.settings,
            store=replace(self.store, wait=wait),
            execute=Here(self.together, self.clock.deadline),
            observe=Observer(on_progress),
        )


def reproduce(
    experiment: Experiment,
    options: Options,
    out: str | Path,
    runs: str | Path,
    *,
    minutes: float | None = None,
    together: int = 1,
    only: Sequence[str] = (),
    shared: bool = False,
    console: Console | None = None,
) -> bool:
    """Make the runs of an experiment that are missing, and write what all that are finished gave to ``out``.

    Several processes may work on one experiment at once, with the same folders: a run that another one is making is
    left to it, and whoever has finished writes what all have. The last call, which finds everything finished, collects.

    Args:
        experiment: which.
        options: `Experiment.options`.
        out: folder of the results.
        runs: folder of the runs with their checkpoints.
        minutes: stop after that time, with checkpoints; 0 makes no run, and collects what is finished.
        together: seeds that are trained at once; on a GPU they share it, which small batches leave idle. Runs that were
            made with another number are not found again.
        only: make only the lines whose label contains one of these texts, or is one of them.
        shared: that other processes make some of the runs is expected, and not worth a word.
        console: where to say how it goes.

    Returns:
        Whether all runs that were asked for are finished.
    """
    out, runs = Path(out), Path(runs)
    if experiment.script is not None:
        if only:
            raise ValueError(f"{experiment.name} is not made of lines of which one could ask for some: drop --only")
        out.mkdir(parents=True, exist_ok=True)
        if experiment.shares:
            return experiment.script(options, out, runs, minutes)
        with locked(runs / "locks" / "script") as mine:
            return mine and experiment.script(options, out, runs, minutes)
    assert experiment.lines is not None
    refuse_others(out, options)
    lines, settings = experiment.lines(options)
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together}")
    asked = _asked(lines, only)
    clock = Clock(minutes)
    held = Runs(experiment, settings, runs, together, clock)
    groups = [range(first, min(first + together, options.seeds)) for first in range(0, options.seeds, together)]
    todo = [(seeds, line) for seeds in groups for line in lines]
    work = [(seeds, line) for seeds, line in todo if line.label in asked]
    made: dict[tuple[range, str], Sweep] = {}
    interrupted: KeyboardInterrupt | None = None
    with progress(console) as bar:
        for number, (seeds, line) in enumerate(work):
            if clock.expired:
                break
            what = _what(line, seeds)

            def tell(more: str, share: float, number: int = number, what: str = what) -> None:
                bar(what + more, (number + share) / len(work))

            begun, there = time.monotonic(), held.finished(line, seeds)
            try:
                swept = clock.within(partial(held.sweep, line, seeds, tell, wait=False))
            except BusyError:
                swept = None
            except KeyboardInterrupt as error:
                interrupted = error
                break
            if swept is not None:
                made[seeds, line.label] = swept
                ending = _outcome(experiment, swept.trajectories[line.variant], time.monotonic() - begun)
            else:
                ending = "left to another process, which is at it"
            told_elsewhere = shared and (there or swept is None)
            if console is not None and not told_elsewhere and not (swept is None and clock.expired):
                console.print(
                    f"{number + 1} of {len(work)}: {what}: {ending}", markup=False, highlight=False, soft_wrap=True
                )
    with locked(runs / "locks" / "results", lambda: True):  # who comes last sees what all others have finished
        found: dict[tuple[range, str], Sweep] = {}
        for seeds, line in todo:
            if (seeds, line.label) in made or held.finished(line, seeds):
                found[seeds, line.label] = made.get((seeds, line.label)) or held.sweep(line, seeds)
        missing = [_what(line, seeds) for seeds, line in todo if (seeds, line.label) not in found]
        if any((seeds, lines[0].label) in found for seeds in groups):
            store(experiment, options, out, lines, settings, found, missing)
    if interrupted is not None:
        raise interrupted
    return all((seeds, line.label) in found for seeds, line in work)


def _asked(lines: Sequence[Line], only: Sequence[str]) -> set[str]:
    """The labels that contain one of the texts; a text that is a label stands for that one alone."""
    labels = [line.label for line in lines]
    found = set() if only else set(labels)
    for text in only:
        some = {text} if text in labels else {label for label in labels if text in label}
        if not some:
            raise ValueError(f"--only takes parts of the names of runs, got {text!r}; there are {'; '.join(labels)}")
        found |= some
    return found


def _what(line: Line, seeds: range) -> str:
    return f"{line.label}, " + (f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}")


def _outcome(experiment: Experiment, trajectory: Trajectory, seconds: float) -> str:
    lost = int(trajectory.diverged[-1])
    shown = MEASURES[experiment.measure] if lost < trajectory.replicas else {}
    parts = [
        f"{title} {format_end(name, End(float(trajectory[name].mean[-1])))}"
        for name, title in shown.items()
        if name in trajectory.names
    ]
    made = float(trajectory.meta["seconds"])
    parts += [f"{lost} diverged"] if lost else []
    return ", ".join([*parts, f"{made:.0f} s"]) + (" (made before)" if seconds < 0.5 * made else "")
