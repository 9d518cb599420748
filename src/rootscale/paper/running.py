"""Makes the runs of experiments, in pieces and in several processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from rootscale.files import locked
from rootscale.lab import BusyError, Deadline, Settings, UnfinishedError
from rootscale.lab.execute import Execute
from rootscale.lab.stopping import Job, Stop
from rootscale.lab.sweeps import Sweep
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import MEASURES, End, format_end
from rootscale.paper.stored import Kept, refuse_others, store
from rootscale.paper.work import How, Runs, Watch, Work
from rootscale.trajectory import Trajectory

__all__ = ["reproduce", "reproduce_all"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """Some seeds of a line, which one job makes."""

    runs: Runs
    line: Line
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.line.label}, {_seeds(self.seeds)}"

    @property
    def there(self) -> bool:
        return self.runs.finished(self.line, self.seeds)

    def read(self) -> Sweep:
        return self.runs.sweep(self.line, self.seeds)

    def __call__(self, tell: Callable[[float], object], stop: Stop) -> None:
        with suppress(BusyError):  # another process makes it
            self.runs.sweep(self.line, self.seeds, stop.deadline, tell, wait=False)
        tell(1.0)


@dataclass(frozen=True)
class _Lines:
    """The parts of an experiment that is made of lines."""

    work: Work
    lines: list[Line]
    settings: Settings
    parts: list[_Part]
    asked: list[_Part] = field(default_factory=list)
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def of(cls, work: Work, how: How) -> _Lines:
        """Return them, those that are asked for among them."""
        assert work.experiment.lines is not None
        refuse_others(work.out, work.options)
        lines, settings = work.experiment.lines(work.options)
        labels = _asked(lines, how.only)
        kept = Kept.of(work.out, lines, settings) if how.complete else Kept()
        runs = Runs(work.experiment, settings, work.runs, how.together)
        left = [[seed for seed in range(work.options.seeds) if seed not in kept.seeds(line)] for line in lines]
        groups = [[tuple(some[i : i + how.together]) for i in range(0, len(some), how.together)] for some in left]
        rounds = zip_longest(*groups)  # all lines of the first seeds, then those of the next
        parts = [_Part(runs, line, seeds) for turn in rounds for line, seeds in zip(lines, turn, strict=True) if seeds]
        return cls(work, lines, settings, parts, [part for part in parts if part.line.label in labels], kept)

    def collect(self) -> bool:
        """Write what all finished runs gave, and return whether all that were asked for are finished."""
        with locked(self.work.runs / "locks" / "results", lambda: True):  # who comes last sees what others have made
            found = {(part.seeds, part.line.label): part.read() for part in self.parts if part.there}
            missing = [part.name for part in self.parts if (part.seeds, part.line.label) not in found]
            lost = self._lost([(label, seed) for seeds, label in found for seed in seeds])
            if lost:
                _LOGGER.info(
                    f"{self.work.out} stays as it is: it holds {lost} {'runs' if lost > 1 else 'run'} that would be "
                    "lost. It is written when all are made; with --complete they are kept, and only the others are made"
                )
            elif found and self.lines[0].label in {*self.kept.arms, *(label for _, label in found)}:
                work = self.work
                store(work.experiment, work.options, work.out, self.lines, self.settings, found, missing, self.kept)
        return all((part.seeds, part.line.label) in found for part in self.asked)

    def _lost(self, found: Sequence[tuple[str, int]]) -> int:
        """Return how many runs of the present lines the folder of results holds that are neither found nor kept."""
        held = Kept.read(self.work.out)
        there = {*found, *((line.label, seed) for line in self.lines for seed in self.kept.seeds(line))}
        return sum((line.label, seed) not in there for line in self.lines for seed in held.seeds(line))


def reproduce(
    experiment: Experiment,
    options: Options,
    out: str | Path,
    runs: str | Path,
    how: How = How(),  # noqa: B008 (frozen)
    watch: Watch = Watch(),  # noqa: B008 (frozen)
) -> bool:
    """Make the runs of one experiment; see `reproduce_all`."""
    (complete,) = reproduce_all([Work(experiment, options, Path(out), Path(runs))], how, watch)
    return complete


def reproduce_all(
    works: Sequence[Work],
    how: How = How(),  # noqa: B008 (frozen)
    watch: Watch = Watch(),  # noqa: B008 (frozen)
) -> list[bool]:
    """Make the runs of experiments that are missing, and write what all finished runs gave to their folders.

    Other processes may work on the same experiments at once, with the same folders: a run that another one makes is
    left to it. The last call, which finds everything finished, collects.

    Args:
        works: the experiments; the processes take their runs in this order.
        how: what is made of them, and with what.
        watch: callbacks that follow it.

    Returns:
        For each experiment, whether all runs that were asked for are finished.
    """
    deadline = Deadline.after(None if how.minutes is None else 60 * how.minutes)
    lined = {number: _Lines.of(work, how) for number, work in enumerate(works) if work.experiment.lines is not None}
    interrupted: KeyboardInterrupt | None = None
    try:
        if not deadline.passed:
            _make([part for lines in lined.values() for part in lines.asked], how.executor(deadline), watch)
    except UnfinishedError:
        pass
    except KeyboardInterrupt as error:
        interrupted = error
    complete = {number: lines.collect() for number, lines in lined.items()}
    if interrupted is not None:
        raise interrupted
    for number, work in enumerate(works):
        if number not in lined:
            complete[number] = _script(work, how, deadline)
    return [complete[number] for number in range(len(works))]


def _make(parts: Sequence[_Part], executor: Execute, watch: Watch) -> None:
    """Make what is not finished, and report every part once."""
    shares, reported = [0.0] * len(parts), set[int]()

    def end(number: int, before: bool = False) -> None:
        reported.add(number)
        shares[number], part = 1.0, parts[number]
        outcome = _outcome(part, before) if part.there else "left to another process, which is making it"
        watch.ended(number + 1, len(parts), part.name, outcome)

    for number, part in enumerate(parts):
        if part.there:
            end(number, before=True)
    left = [number for number in range(len(parts)) if number not in reported]

    def progress(job: int, share: float) -> None:
        number = left[job]
        if number in reported:
            return
        shares[number] = share
        watch.progress(parts[number].name, sum(shares) / len(shares))
        if share == 1:
            end(number)

    if left:
        executor.run([parts[number] for number in left], parts[0].runs.folder, progress)


def _script(work: Work, how: How, deadline: Deadline) -> bool:
    """Run a program that is not made of lines; where it shares its runs, in several processes."""
    experiment = work.experiment
    assert experiment.script is not None
    if how.only:
        raise ValueError(f"{experiment.name} is not made of lines of which one could ask for some: drop --only")
    work.out.mkdir(parents=True, exist_ok=True)
    left = None if how.minutes is None else deadline.left / 60
    run = partial(experiment.script, work.options, work.out, work.runs)
    if experiment.shares and how.processes > 1 and left != 0:
        job: Job = lambda tell, stop: run(left)  # noqa: E731
        how.executor(Deadline()).run([job] * how.processes, work.runs, lambda number, share: None)
        left = 0.0  # what they have made is collected here
    if experiment.shares:
        return run(left)
    with locked(work.runs / "locks" / "script") as mine:
        return mine and run(left)


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds in words."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) == seeds[-1] - seeds[0] + 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return "seeds " + ", ".join(map(str, seeds))


def _asked(lines: Sequence[Line], only: Sequence[str]) -> set[str]:
    """Return the labels that contain one of the texts; a text that is a label stands for that one alone."""
    labels = [line.label for line in lines]
    found = set() if only else set(labels)
    for text in only:
        some = {text} if text in labels else {label for label in labels if text in label}
        if not some:
            raise ValueError(f"--only takes parts of the names of runs, got {text!r}; there are {'; '.join(labels)}")
        found |= some
    return found


def _outcome(part: _Part, before: bool) -> str:
    """Return what a part ended with."""
    trajectory = part.read().trajectories[part.line.variant]
    return ", ".join(_ends(part.runs.experiment, trajectory)) + (" (made before)" if before else "")


def _ends(experiment: Experiment, trajectory: Trajectory) -> Iterator[str]:
    lost = int(trajectory.diverged[-1])
    if lost < trajectory.replicas:
        for name, title in MEASURES[experiment.measure].items():
            if name in trajectory.names:
                yield f"{title} {format_end(name, End(float(trajectory[name].mean[-1])))}"
    if lost:
        yield f"{lost} diverged"
    yield f"{float(trajectory.meta['seconds']):.0f} s"
