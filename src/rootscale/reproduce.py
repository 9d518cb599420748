"""Experiments of the paper that can be run again: what one is, how it is run in pieces, and what is kept of it.

An `Experiment` is a claim of the paper and the runs that test it; the files in ``experiments/`` declare them.
`reproduce` makes the runs that are missing, and writes to a folder what is small enough for a repository:

    OUT/experiment.json    claim, command, versions, hardware, seconds, and what is missing
    OUT/check.json         every arm with its plan, and how it compares with the base (`rootscale.lab.Check`)
    OUT/arm-<i>.npz        its trajectory, all seeds together; warm.npz up to a switch in mid-run

The table of final values is made of the trajectories (`finals_of`). The heavy part, a folder with a checkpoint for
every run (`rootscale.lab.sweep`), lies elsewhere. An experiment may be stopped at any time and goes on from there;
several processes may work on one at once, and make no run twice.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from rootscale import files
from rootscale.cli.console import progress
from rootscale.compare import FEWEST, compare
from rootscale.files import locked, write_json
from rootscale.finals import ACCURACY, MEASURES, End, Final, accuracies, finals, percent, told, told_gap
from rootscale.lab import data
from rootscale.lab.check import LOSSES, Arm, Check, arm_of
from rootscale.lab.engine import Settings, Variant, environment, grid
from rootscale.lab.models import convnet
from rootscale.lab.sweep import BusyError, Sweep, finished, joined, sweep
from rootscale.lab.task import Task
from rootscale.lab.tasks import CIFAR10_STATISTICS, Normalise, image_task, paper_plan
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ACCURACY",
    "BASE",
    "MEASURES",
    "Clock",
    "End",
    "Experiment",
    "Final",
    "Line",
    "Options",
    "Runs",
    "Stored",
    "accuracies",
    "cifar10_task",
    "experiments",
    "finals",
    "finals_of",
    "kappa",
    "kept",
    "label_of",
    "load_file",
    "outcome",
    "percent",
    "record_of",
    "reproduce",
    "settings_for",
    "size_of",
    "table",
    "told",
    "told_gap",
]

Result = TypeVar("Result")
#: The paper's batch size on CIFAR-10, from which all others are converted.
BASE = 256
#: Batch sizes of a smoke test are this many times smaller, as are its data.
SMOKE = 16
#: Images of the test set that measure the accuracy (all of CIFAR-10's), and as many of the training set.
EVAL = 10_000
#: The files of ``experiments/`` that declare some, the most important first.
FILES = (
    "cifar10_switch",
    "cifar10_scaling",
    "cifar10_svag",
    "cifar10_ablations",
    "cifar10_vk",
    "mlp_sde",
    "gpt_wikitext",
    "roberta_mlm",
    "glue",
    "imagenet_resnet50",
)


@dataclass(frozen=True)
class Options:
    """What can be changed about an experiment.

    Args:
        epochs: the length of the runs, also a part of one; the schedule keeps its shares.
        batch_sizes: of the runs, the base included or not.
        seeds: runs of each kind; the paper has 3, and a verdict needs at least 4.
        eps: of the optimizer; 1e-8 or 1e-30 in the paper.
        model: ``vgg16`` or ``resnet56``, or what the experiment takes.
        ells: of SVAG.
        points: at which the runs are measured.
        paper_batchnorm: leave BatchNorm's momentum alone, as in the paper, instead of converting it.
        smoke: a small net on generated data: all of the path and none of the meaning.
        device: where.
        data: folder that holds the data; None is ``ROOTSCALE_DATA``.
    """

    epochs: float = 60
    batch_sizes: tuple[int, ...] = (256, 1024, 4096, 16384)
    seeds: int = 1
    eps: float = 1e-8
    model: str = "vgg16"
    ells: tuple[float, ...] = ()
    points: int = 50
    paper_batchnorm: bool = False
    smoke: bool = False
    device: str = "cpu"
    data: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs must be a number above 0, got {self.epochs}")
        if self.epochs == int(self.epochs):
            object.__setattr__(self, "epochs", int(self.epochs))  # 60 and 60.0 are one, in files and words too
        for name in ("seeds", "points"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for size in self.batch_sizes:
            if size < 1 or (self.smoke and size % SMOKE):
                raise ValueError(f"batch sizes must be {f'multiples of {SMOKE}' if self.smoke else '>= 1'}, got {size}")
        if len(set(self.batch_sizes)) < len(self.batch_sizes):
            raise ValueError(f"batch sizes must differ from each other, got {list(self.batch_sizes)}")

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types, without where it was run."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("device", "data")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}

    def words(self, defaults: Options) -> list[str]:
        """The options of the command line that make these of the defaults."""
        words: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == getattr(defaults, f.name) or f.name == "data":
                continue
            words.append(_flag(f.name))
            if isinstance(value, tuple):
                words += [f"{item:g}" for item in value]
            elif not isinstance(value, bool):
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
        return words


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Line:
    """One curve of an experiment: a task under a variant, with a name for legends."""

    label: str
    task: Task
    variant: Variant = Variant()


@dataclass(frozen=True)
class Stored:
    """What a reader is told about stored results: the outcome in words, how many runs of each kind, where, a figure."""

    words: str
    seeds: int
    hardware: str
    figure: Path


@dataclass(frozen=True)
class Experiment:
    """A claim of the paper, and the runs that test it.

    Args:
        name: on the command line, and of its folder.
        title: in a few words.
        claim: what the paper says, or what is shown where the paper says nothing.
        source: where in the paper.
        minutes: what the default options take on one H200.
        defaults: the options.
        lines: makes the curves, the base first, and what they have in common.
        words: the outcome in a sentence, from the table of final values.
        models: the nets that may be asked for.
        also: further options under which it is worth running, each kept in a folder of its own.
        script: a program that does all of it, for experiments that are not made of lines. ``script(options, out, runs,
            minutes)`` writes results to one folder and keeps its runs in the other, goes on with what is there, stops
            after so many minutes (None: when it is done; 0: at once), and says whether it is done.
        takes: the options that such a program honours.
        shares: whether several processes may run it at once.
        stored: what such a program left in a folder; None if that is nothing.
        place: the folder of its results, where that is not its name.
        smoke: changes to the defaults for a smoke test.
        measure: what is shown of the end of a run, a key of `MEASURES`.
        keep_models: whether the trained models are kept with the runs.
    """

    name: str
    title: str
    claim: str
    source: str
    minutes: float
    defaults: Options
    lines: Callable[[Options], tuple[list[Line], Settings]] | None = None
    words: Callable[[Sequence[Final]], str] | None = None
    models: tuple[str, ...] = ()
    also: tuple[Mapping[str, Any], ...] = ()
    script: Callable[[Options, Path, Path, float | None], bool] | None = None
    takes: tuple[str, ...] = ("device",)
    shares: bool = False
    stored: Callable[[Path], Stored | None] | None = None
    place: str = ""
    smoke: Mapping[str, Any] = field(default_factory=dict)
    measure: str = ACCURACY
    keep_models: bool = False

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ValueError(f"the measure of {self.name} must be one of {', '.join(MEASURES)}, got {self.measure!r}")

    def options(self, *, smoke: bool = False, **given: Any) -> Options:
        """The defaults, those of a smoke test where one is asked for, and on top what is given and not None."""
        given = {name: value for name, value in given.items() if value is not None}
        if self.script is not None:
            extra = [_flag(name) for name in given if name not in self.takes]
            if extra:
                *most, last = ("--smoke", *map(_flag, self.takes))
                raise ValueError(f"{self.name} has no options but {', '.join(most)} and {last}, got {', '.join(extra)}")
        small: dict[str, Any] = {"epochs": 4, "batch_sizes": self.defaults.batch_sizes[:3], "points": 4, "seeds": 1}
        if self.script is not None:
            small = {}
        changes = {**(small if smoke else {}), **(self.smoke if smoke else {}), "smoke": smoke, **given}
        chosen = replace(self.defaults, **changes)
        allowed = (self.defaults.model, *self.models)
        if chosen.model not in allowed:
            raise ValueError(f"the model of {self.name} must be one of {', '.join(allowed)}, got {chosen.model!r}")
        return chosen

    def folder(self, options: Options) -> str:
        """The name of the folder of its results: other settings than the defaults make another one."""
        name = self.place or self.name
        if options.model != self.defaults.model:
            name += f"-{options.model}"
        if options.eps != self.defaults.eps:
            name += f"-eps-{options.eps:g}"
        return name + ("-paper-batchnorm" if options.paper_batchnorm else "")

    def command(self, options: Options, *more: str) -> str:
        """What makes it, on the command line."""
        defaults = self.options(smoke=options.smoke)  # a smoke test's differ
        words = options.words(replace(defaults, smoke=False))
        return shlex.join(["rootscale", "reproduce", self.name, *words, *more])


# -- finding them ----------------------------------------------------------------------------------------------------


def experiments_folder() -> Path:
    """The files that declare experiments: in the installed package, or beside ``src`` in the source tree."""
    here = Path(__file__).resolve().parent
    places = (here / "_experiments", here.parents[1] / "experiments")
    for place in places:
        if all((place / f"{name}.py").is_file() for name in FILES):
            return place
    raise ValueError(f"the experiments are in neither of {', '.join(map(str, places))}; install rootscale again")


@lru_cache(maxsize=1)
def experiments() -> Mapping[str, Experiment]:
    """All of them by name, the most important first."""
    found: dict[str, Experiment] = {}
    for name in FILES:
        module = load_file(experiments_folder() / f"{name}.py")
        found |= {experiment.name: experiment for experiment in module.EXPERIMENTS}
    return MappingProxyType(found)


def load_file(path: Path) -> Any:
    """A file of the experiments as a module."""
    return files.load_file(path, f"rootscale_experiments_{path.stem}")


# -- what experiments are made of ------------------------------------------------------------------------------------


def kappa(batch_size: int) -> Fraction:
    """Over the paper's 256."""
    return Fraction(batch_size, BASE)


def size_of(options: Options, batch_size: int) -> int:
    """What a batch size of the paper is in this experiment: a smoke test makes everything smaller."""
    return batch_size // SMOKE if options.smoke else batch_size


def label_of(options: Options, batch_size: int) -> str:
    """For legends.

    >>> label_of(Options(), 16384)
    'B = 16,384'
    """
    return f"B = {size_of(options, batch_size):,}"


def kept(options: Options) -> tuple[str, ...]:
    """Rows of the rule that are left alone."""
    return ("batchnorm",) if options.paper_batchnorm else ()


_cifar10 = lru_cache(maxsize=1)(data.cifar10)
_patterns = lru_cache(maxsize=1)(partial(data.patterns, 512, 128))


def cifar10_task(optimizer: str, options: Options, *, previous_moment: bool = False) -> Task:
    """The paper's run on CIFAR-10 (`rootscale.lab.tasks.paper_plan`); for a smoke test, a small one like it.

    Args:
        optimizer: ``adam`` or ``rmsprop``.
        options: of the experiment.
        previous_moment: whether to divide by ``v_k``, as in the paper's theory, instead of torch's ``v_{k+1}``.
    """
    images = _patterns() if options.smoke else _cifar10(options.data)
    plan = paper_plan(
        optimizer,
        samples=len(images.train),
        epochs=options.epochs,
        batch_size=size_of(options, BASE),
        eps=options.eps,
    )
    name = f"{'smoke' if options.smoke else 'cifar10'}-{options.model}-{optimizer}"
    return image_task(
        name + ("-previous-moment" if previous_moment else ""),
        images,
        plan,
        partial(convnet, width=8, momentum=0.1, freeze_last=True) if options.smoke else options.model,
        freeze_last=True,
        normalise=None if options.smoke else Normalise(*CIFAR10_STATISTICS),
        previous_moment=previous_moment,
    )


def settings_for(
    options: Options,
    plan: Plan,
    sizes: Sequence[int],
    switch_at: int = 0,
    *,
    eval_samples: int = EVAL,
    micro: int | None = None,
) -> Settings:
    """What the runs of an experiment have in common.

    Args:
        options: of the experiment.
        plan: of its tasks.
        sizes: all batch sizes that occur, so that the points of the grid are whole numbers of steps.
        switch_at: samples before a switch in mid-run.
        eval_samples: of each part of the data that are measured.
        micro: samples that go through the model at once; None is all of a batch.
    """
    samples = plan.samples
    assert samples is not None
    stop, largest = int(samples), max(sizes)
    if stop - switch_at < 4 * largest:
        raise ValueError(
            f"{stop - switch_at:,} samples are fewer than four steps at batch size {largest:,}: "
            "ask for more epochs or smaller batches"
        )
    points = min(options.points, (stop - switch_at) // (2 * largest))
    return Settings(
        grid=grid(stop, points, switch_at, sizes),
        switch_at=switch_at,
        eval_samples=eval_samples,
        device=options.device,
        micro=micro,
        fast=options.device.startswith("cuda"),
    )


# -- running ---------------------------------------------------------------------------------------------------------


class Clock:
    """Stops a sweep after some time as Ctrl-C would: after a step, with a checkpoint.

    Args:
        minutes: that there are; None is any number.
    """

    def __init__(self, minutes: float | None) -> None:
        self.deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.expired = False

    def late(self) -> bool:
        """Whether the time is over."""
        self.expired = self.expired or time.monotonic() >= self.deadline
        return self.expired

    def tell(self, *progress: object) -> None:
        """To be called as a sweep goes on."""
        if not self.expired and self.late():
            signal.raise_signal(signal.SIGINT)

    def within(self, work: Callable[[], Result]) -> Result | None:
        """What a sweep gives that tells this clock how it goes on; None where the time was over before its end."""
        try:
            return work()
        except KeyboardInterrupt:
            if not self.expired:
                raise
            return None


@dataclass(frozen=True)
class Runs:
    """The runs of an experiment, in a folder that several processes may share: each is made by one of them.

    Args:
        experiment, options: which.
        settings: that `Experiment.lines` gave.
        folder: of the runs.
        together: seeds that are trained at once.
        clock: that stops them.
    """

    experiment: Experiment
    options: Options
    settings: Settings
    folder: Path
    together: int
    clock: Clock

    @property
    def keep(self) -> dict[str, Any]:
        return {"keep_models": True} if self.experiment.keep_models else {}

    def finished(self, line: Line, seeds: range) -> bool:
        """Whether there is nothing left to run."""
        return finished(
            line.task, [line.variant], seeds, self.settings, self.folder, together=self.together, **self.keep
        )

    def read(self, line: Line, seeds: range) -> Sweep:
        """Of runs that are finished."""
        return self._sweep(line, seeds)

    def make(
        self,
        line: Line,
        seeds: range,
        tell: Callable[[str, float], None] = lambda more, share: None,
        wait: bool = False,
    ) -> Sweep | None:
        """Make them, or go on with them.

        Args:
            line, seeds: which.
            tell: called with what is to be said more, and how far it is.
            wait: for another process that is making them; otherwise they are left to it.

        Returns:
            None where another process is making them.
        """
        try:
            return self._sweep(line, seeds, tell, wait)
        except BusyError:
            return None

    def _sweep(
        self,
        line: Line,
        seeds: range,
        tell: Callable[[str, float], None] = lambda more, share: None,
        wait: bool = True,
    ) -> Sweep:
        def on_progress(label: str, run: int, runs: int, share: float) -> None:
            tell(" (before the switch)" if run < runs - 1 else "", share)
            self.clock.tell()

        return sweep(
            line.task, [line.variant], seeds, self.settings, self.folder,
            together=self.together, workers=1, checkpoint_every=60.0, wait=wait, on_progress=on_progress, **self.keep,
        )  # fmt: skip

    def lock(self, name: str, wait: Callable[[], bool] = lambda: False) -> AbstractContextManager[bool]:
        """`rootscale.files.locked`, for something about them."""
        return locked(self.folder / "locks" / name, wait)


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
    _same_experiment(out, options)
    lines, settings = experiment.lines(options)
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together}")
    asked = _asked(lines, only)
    clock = Clock(minutes)
    held = Runs(experiment, options, settings, runs, together, clock)
    groups = [range(first, min(first + together, options.seeds)) for first in range(0, options.seeds, together)]
    todo = [(seeds, line) for seeds in groups for line in lines]
    work = [(seeds, line) for seeds, line in todo if line.label in asked]
    made: dict[tuple[range, str], Sweep] = {}
    interrupted: KeyboardInterrupt | None = None
    with progress(console) as bar:
        for number, (seeds, line) in enumerate(work):
            if clock.late():
                break
            what = _what(line, seeds)

            def tell(more: str, share: float, number: int = number, what: str = what) -> None:
                bar(what + more, (number + share) / len(work))

            begun, there = time.monotonic(), held.finished(line, seeds)
            try:
                swept = clock.within(partial(held.make, line, seeds, tell))
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
    with held.lock("results", lambda: True):  # who comes last sees what all others have finished
        found: dict[tuple[range, str], Sweep] = {}
        for seeds, line in todo:
            if (seeds, line.label) in made or held.finished(line, seeds):
                found[seeds, line.label] = made.get((seeds, line.label)) or held.read(line, seeds)
        missing = [_what(line, seeds) for seeds, line in todo if (seeds, line.label) not in found]
        if any((seeds, lines[0].label) in found for seeds in groups):
            _store(experiment, options, out, lines, settings, found, missing)
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


def _same_experiment(out: Path, options: Options) -> None:
    """Refuse to write over results of other settings; more seeds are the same experiment."""
    place = out / "experiment.json"
    if not place.exists():
        return
    try:
        before = json.loads(place.read_text(encoding="utf-8"))["options"]
    except (ValueError, KeyError):
        raise ValueError(f"{place} is not the record of an experiment; give another --out") from None
    now = options.to_dict()
    differ = [f"{name} {before.get(name)}" for name in now if name != "seeds" and before.get(name) != now[name]]
    if differ:
        raise ValueError(
            f"{out} holds results of other settings ({', '.join(differ)}): give another --out, or remove that folder"
        )
    if before["seeds"] > now["seeds"]:
        raise ValueError(f"{out} holds results of {before['seeds']} seeds: ask for as many, or give another --out")


def _outcome(experiment: Experiment, trajectory: Trajectory, seconds: float) -> str:
    lost = int(trajectory.diverged[-1])
    shown = MEASURES[experiment.measure] if lost < trajectory.replicas else {}
    parts = [
        f"{title} {told(name, End(float(trajectory[name].mean[-1])))}"
        for name, title in shown.items()
        if name in trajectory.names
    ]
    made = float(trajectory.meta["seconds"])
    parts += [f"{lost} diverged"] if lost else []
    return ", ".join([*parts, f"{made:.0f} s"]) + (" (made before)" if seconds < 0.5 * made else "")


# -- what is kept ----------------------------------------------------------------------------------------------------


def _store(
    experiment: Experiment,
    options: Options,
    out: Path,
    lines: Sequence[Line],
    settings: Settings,
    found: Mapping[tuple[range, str], Sweep],
    missing: Sequence[str],
) -> None:
    command = experiment.command(options)
    arms = []
    for line in lines:
        parts = [swept.trajectories[line.variant] for (_, label), swept in found.items() if label == line.label]
        if parts:
            arms.append(replace(arm_of(line.task, line.variant, joined(parts)), label=line.label))
    arms = [arms[0], *(_compared(arms[0], arm) for arm in arms[1:])]
    warm = {seeds: swept.warm for (seeds, _), swept in found.items() if swept.warm is not None}
    trajectories = [*(arm.trajectory for arm in arms), *warm.values()]
    made = {
        "command": command,
        **environment(settings.device),
        "seeds": list(range(options.seeds)),
        "seconds": round(sum(float(trajectory.meta["seconds"]) for trajectory in trajectories), 1),
        "date": time.strftime("%Y-%m-%d"),
    }
    before = joined(list(warm.values())) if warm else None
    Check(lines[0].task.name, arms[0], tuple(arms[1:]), settings.switch_at, made, before).save(out)
    record = {
        "name": experiment.name,
        "title": experiment.title,
        "claim": experiment.claim,
        "source": experiment.source,
        "options": options.to_dict(),
        "test_samples": min(settings.eval_samples, len(lines[0].task.test)),
        "missing": list(missing),
        **made,
    }
    write_json(out / "experiment.json", record, indent=1, allow_nan=False)


def _compared(base: Arm, arm: Arm) -> Arm:
    """With a verdict, where there are seeds enough for one; it rests on the losses, as that of `rootscale check`."""
    common = set(base.trajectory.meta["seeds"]) & set(arm.trajectory.meta["seeds"])
    if len(common) < FEWEST:
        return arm
    names = [name for name in base.trajectory.names if name != "noise scale"]
    deciding = [name for name in names if name in LOSSES]
    return replace(arm, comparison=compare(base.trajectory, arm.trajectory, names, deciding=deciding))


# -- what is said ----------------------------------------------------------------------------------------------------


def record_of(out: str | Path) -> dict[str, Any]:
    """What ``experiment.json`` in a folder of results says."""
    place = Path(out) / "experiment.json"
    try:
        record: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{out} holds no experiment.json; give a folder that `rootscale reproduce` wrote") from None
    except ValueError as error:
        raise ValueError(f"{place} is not the record of an experiment: {error}") from None
    return record


def finals_of(out: str | Path) -> list[Final]:
    """The table of final values of a folder of results, from the trajectories in it."""
    check = Check.load(out)
    return finals([check.base, *check.others], record_of(out)["test_samples"])


def outcome(experiment: Experiment, out: str | Path) -> str:
    """What came out, in a sentence."""
    assert experiment.words is not None
    missing = record_of(out)["missing"]
    return experiment.words(finals_of(out)) + (f" (unfinished: {len(missing)} runs are missing)" if missing else "")


def table(experiment: Experiment, out: str | Path) -> Any:
    """The final values in a folder of results, as a table for the terminal."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("run")
    shown = MEASURES[experiment.measure]
    for column in ("seeds", *shown.values(), "less the base's", "gap of train loss", "seconds"):
        made.add_column(column, justify="right")
    for i, final in enumerate(finals_of(out)):
        ends = [told(name, final.end(name)) for name in shown]
        gap = told_gap(experiment.measure, final.end(experiment.measure)) if i else ""
        curve = percent(final.curves.get("train loss")) if i else ""
        made.add_row(final.label, str(final.seeds), *ends, gap, curve, f"{final.seconds:.0f}")
    return made
