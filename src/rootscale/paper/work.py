"""What is asked of experiments, what follows them, and the folder of their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rootscale.lab import Deadline, Forked, Here, Observer, Settings, Store, finished, sweep
from rootscale.lab.execute import Execute
from rootscale.lab.sweeps import Sweep
from rootscale.paper.experiment import Experiment, Line, Options

__all__ = ["How", "Runs", "Watch", "Work"]


@dataclass(frozen=True)
class How:
    """What is made of an experiment, and with what.

    Args:
        minutes: after which everything stops, with checkpoints; None is never, and 0 only collects what is finished.
        together: seeds that are trained in one program. On a GPU they share it, which small batches leave idle.
        processes: that make runs at once; small batches leave room for several on a GPU.
        only: texts; the lines whose label contains one of them, or is one of them, are made. Nothing means all lines.
        complete: whether seeds that the folder of results holds already are kept, and only the others are made.
    """

    minutes: float | None = None
    together: int = 1
    processes: int = 1
    only: tuple[str, ...] = ()
    complete: bool = False

    def __post_init__(self) -> None:
        for name in ("together", "processes"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")

    def executor(self, deadline: Deadline) -> Execute:
        """Return what runs the jobs until a deadline."""
        if self.processes == 1:
            return Here(self.together, deadline)
        return Forked(self.processes, self.together, deadline)


def _ignore(*what: object) -> None:
    pass


@dataclass(frozen=True)
class Watch:
    """Callbacks that follow the runs.

    Args:
        progress: called with the name of a run, and how far all runs are, from 0 to 1.
        ended: called with the number of a run, the number of all, its name, and what came of it.
    """

    progress: Callable[[str, float], object] = _ignore
    ended: Callable[[int, int, str, str], object] = _ignore


@dataclass(frozen=True)
class Work:
    """An experiment that is to be run.

    Args:
        experiment: which.
        options: `Experiment.options`.
        out: folder of the results.
        runs: folder of the runs with their checkpoints.
    """

    experiment: Experiment
    options: Options
    out: Path
    runs: Path


@dataclass(frozen=True)
class Runs:
    """The runs of an experiment, in a folder that several processes may share: each is made by one of them.

    Args:
        experiment: which.
        settings: that `Experiment.lines` gave.
        folder: of the runs.
        together: seeds that are trained in one program.
    """

    experiment: Experiment
    settings: Settings
    folder: Path
    together: int = 1

    @cached_property
    def store(self) -> Store:
        """The folder; it computes the fingerprint of a task once."""
        return Store(self.folder, checkpoint_every=60.0, keep_models=self.experiment.keep_models)

    def finished(self, line: Line, seeds: Sequence[int]) -> bool:
        """Return whether there is nothing left to run."""
        settings = line.settings(self.settings)
        return finished(line.task, [line.variant], seeds=seeds, settings=settings, store=self.store)

    def sweep(
        self,
        line: Line,
        seeds: Sequence[int],
        deadline: Deadline = Deadline(),  # noqa: B008 (frozen)
        tell: Callable[[float], object] = _ignore,
        wait: bool = True,
    ) -> Sweep:
        """Read some runs, resume them, or make them.

        Args:
            line, seeds: which.
            deadline: when they stop, with `rootscale.lab.UnfinishedError`.
            tell: called with how far they are, from 0 to 1.
            wait: whether to wait for another process that makes them; otherwise `rootscale.lab.BusyError` is raised.
        """

        def progress(label: str, run: int, runs: int, share: float) -> None:
            tell((run + share) / runs)

        return sweep(
            line.task,
            [line.variant],
            seeds=seeds,
            settings=line.settings(self.settings),
            store=replace(self.store, wait=wait),
            execute=Here(self.together, deadline),
            observe=Observer(progress),
        )
