"""Experiments of the paper that can be run again: what one is, how it is run in pieces, and what is kept of it.

An `Experiment` is a claim of the paper and the runs that test it; the files in ``experiments/`` declare them.
`reproduce` makes the runs that are missing, and writes to a folder what is small enough for a repository:

    OUT/experiment.json    claim, command, versions, hardware, seconds, and the table of final values
    OUT/check.json         every arm with its plan, and how it compares with the base (`rootscale.lab.Check`)
    OUT/arm-<i>.npz        its trajectory, all seeds together; warm.npz up to a switch in mid-run

The heavy part, a folder with a checkpoint for every run (`rootscale.lab.sweep`), lies elsewhere. An experiment may be
stopped at any time and goes on from there.
"""

from __future__ import annotations

import json
import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from rootscale import files
from rootscale.compare import FEWEST, compare
from rootscale.files import write_json
from rootscale.lab import data
from rootscale.lab.check import Arm, Check, arm_of
from rootscale.lab.engine import Settings, Variant, environment, grid
from rootscale.lab.models import convnet
from rootscale.lab.sweep import joined, sweep
from rootscale.lab.task import Task
from rootscale.lab.tasks import CIFAR10_STATISTICS, Normalise, image_task, paper_plan
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "BASE",
    "Experiment",
    "Final",
    "Line",
    "Options",
    "Stored",
    "accuracies",
    "cifar10_task",
    "experiments",
    "finals",
    "kappa",
    "kept",
    "label_of",
    "load_file",
    "percent",
    "points_of",
    "reproduce",
    "settings_for",
    "size_of",
]

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
        epochs: the length of the runs; the schedule keeps its shares.
        batch_sizes: of the runs, the base of 256 included or not.
        seeds: runs of each kind; the paper has 3, and a verdict needs at least 4.
        eps: of the optimizer; 1e-8 or 1e-30 in the paper.
        model: ``vgg16`` or ``resnet56``.
        ells: of SVAG.
        points: at which the runs are measured.
        paper_batchnorm: leave BatchNorm's momentum alone, as in the paper, instead of converting it.
        smoke: a small net on generated images: all of the path and none of the meaning.
        device: where.
        data: folder that holds CIFAR-10; None is ``ROOTSCALE_DATA``.
    """

    epochs: int = 60
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
        for name in ("epochs", "seeds", "points"):
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
            words.append(f"--{f.name.replace('_', '-')}")
            if isinstance(value, tuple):
                words += [f"{item:g}" for item in value]
            elif not isinstance(value, bool):
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
        return words


@dataclass(frozen=True)
class Line:
    """One curve of an experiment: a task under a variant, with a name for legends."""

    label: str
    task: Task
    variant: Variant = Variant()


@dataclass(frozen=True)
class Final:
    """What a line came to.

    Args:
        label: of the line.
        batch_size: at its end.
        seeds: how many runs.
        diverged: how many of them did.
        accuracy: on the test set at the end, the mean over seeds; None if all diverged.
        se: its standard error: over the seeds, or binomial for the images of the test set where there is one seed.
        gap: accuracy less the base's, over the seeds both have.
        gap_se: its standard error.
        curves: by test function, the largest gap of the mean curves as a share of the range of the base's curve, and
            its standard error over seeds (None for one seed).
        seconds: of the runs.
    """

    label: str
    batch_size: int
    seeds: int
    diverged: int
    accuracy: float | None
    se: float | None
    gap: float | None
    gap_se: float | None
    curves: Mapping[str, tuple[float, float | None]]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {**self.__dict__, "curves": {name: list(pair) for name, pair in self.curves.items()}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Final:
        """What `to_dict` gave."""
        return cls(**{**record, "curves": {name: (gap, se) for name, (gap, se) in record["curves"].items()}})


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
        script: a program that does all of it, for experiments that are not made of lines: ``script(options, out)``.
        stored: what such a program left in a folder; None if that is nothing.
        place: the folder of its results, where that is not its name.
        smoke: changes to the defaults for a smoke test.
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
    script: Callable[[Options, Path], None] | None = None
    stored: Callable[[Path], Stored | None] | None = None
    place: str = ""
    smoke: Mapping[str, Any] = field(default_factory=dict)

    def options(self, *, smoke: bool = False, **given: Any) -> Options:
        """The defaults, those of a smoke test where one is asked for, and on top what is given and not None."""
        given = {name: value for name, value in given.items() if value is not None}
        if self.script is not None:
            extra = [f"--{name.replace('_', '-')}" for name in given if name != "device"]
            if extra:
                raise ValueError(f"{self.name} has no options but --smoke and --device, got {', '.join(extra)}")
            return replace(self.defaults, smoke=smoke, **given)
        small: dict[str, Any] = {"epochs": 4, "batch_sizes": self.defaults.batch_sizes[:3], "points": 4, "seeds": 1}
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
        # A smoke test's defaults differ.
        defaults = self.options(smoke=options.smoke, device=self.defaults.device)
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


def percent(gap: tuple[float, float | None] | None) -> str:
    """A share and its standard error, in percent.

    >>> percent((0.0123, 0.004)), percent((0.5, None)), percent(None)
    ('1.2 ± 0.4 %', '50.0 %', 'diverged')
    """
    if gap is None:
        return "diverged"
    value, se = gap
    return f"{100 * value:.1f} %" if se is None else f"{100 * value:.1f} ± {100 * se:.1f} %"


def points_of(gap: float | None, se: float | None) -> str:
    """A difference of accuracies and its standard error, in percentage points.

    >>> points_of(-0.0123, 0.004), points_of(None, None)
    ('-1.2 ± 0.4 points', 'diverged')
    """
    if gap is None:
        return "diverged"
    return f"{100 * gap:+.1f}{'' if se is None else f' ± {100 * se:.1f}'} points"


def accuracies(finals: Sequence[Final]) -> str:
    """Of every line, with its standard error."""
    return ", ".join(
        f"{final.label}: "
        + ("diverged" if final.accuracy is None else f"{100 * final.accuracy:.2f} ± {100 * (final.se or 0):.2f} %")
        for final in finals
    )


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


def settings_for(options: Options, plan: Plan, sizes: Sequence[int], switch_at: int = 0) -> Settings:
    """What the runs of an experiment have in common.

    Args:
        options: of the experiment.
        plan: of its tasks.
        sizes: all batch sizes that occur, so that the points of the grid are whole numbers of steps.
        switch_at: samples before a switch in mid-run.
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
        eval_samples=EVAL,
        device=options.device,
        fast=options.device.startswith("cuda"),
    )


# -- running ---------------------------------------------------------------------------------------------------------


@dataclass
class _Clock:
    """Stops a sweep after some time as Ctrl-C would: after a step, with a checkpoint."""

    deadline: float
    expired: bool = False

    def check(self) -> bool:
        self.expired = self.expired or time.monotonic() > self.deadline
        return self.expired


def reproduce(
    experiment: Experiment,
    options: Options,
    out: str | Path,
    runs: str | Path,
    *,
    minutes: float | None = None,
    together: int = 1,
    console: Console | None = None,
) -> bool:
    """Make the runs of an experiment that are missing, and write what they gave to ``out``.

    Args:
        experiment: which.
        options: `Experiment.options`.
        out: folder of the results.
        runs: folder of the runs with their checkpoints.
        minutes: stop after that time, with checkpoints; what is finished is written.
        together: seeds that are trained at once; on a GPU they share it, which small batches leave idle. Runs that were
            made with another number are not found again.
        console: where to say how it goes.

    Returns:
        Whether all runs are finished.
    """
    out, runs = Path(out), Path(runs)
    if experiment.script is not None:
        out.mkdir(parents=True, exist_ok=True)
        experiment.script(options, out)
        return True
    assert experiment.lines is not None
    _same_experiment(out, options)
    lines, settings = experiment.lines(options)
    if together < 1:
        raise ValueError(f"together must be at least 1, got {together}")
    found: dict[str, dict[range, Trajectory]] = {line.label: {} for line in lines}
    warm: dict[range, Trajectory] = {}
    clock = _Clock(math.inf if minutes is None else time.monotonic() + 60 * minutes)
    groups = [range(first, min(first + together, options.seeds)) for first in range(0, options.seeds, together)]
    todo = [(seeds, line) for seeds in groups for line in lines]
    interrupted: KeyboardInterrupt | None = None
    with _Progress(console, len(todo)) as (tell, say):
        for number, (seeds, line) in enumerate(todo):
            if clock.check():
                break
            what = _what(line, seeds)

            def on_progress(label: str, i: int, n: int, share: float, number: int = number, what: str = what) -> None:
                tell(what + (" (before the switch)" if i + 1 < n else ""), number + (i + share) / n)
                if not clock.expired and clock.check():
                    signal.raise_signal(signal.SIGINT)

            begun = time.monotonic()
            try:
                swept = sweep(
                    line.task, [line.variant], seeds, settings, runs,
                    together=together, workers=1, checkpoint_every=60.0, on_progress=on_progress,
                )  # fmt: skip
            except KeyboardInterrupt as error:
                interrupted = error
                break
            found[line.label][seeds] = swept.trajectories[line.variant]
            if swept.warm is not None:
                warm[seeds] = swept.warm
            say(f"{number + 1} of {len(todo)}: {what}: {_outcome(found[line.label][seeds], time.monotonic() - begun)}")
    missing = [_what(line, seeds) for seeds, line in todo if seeds not in found[line.label]]
    if found[lines[0].label]:
        _store(experiment, options, out, lines, settings, found, warm, missing)
    if interrupted is not None and not clock.expired:
        raise interrupted
    return not missing


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


class _Progress:
    """A bar on a terminal, and a line for every run that is finished."""

    def __init__(self, console: Console | None, total: int) -> None:
        self.console, self.total = console, total

    def __enter__(self) -> tuple[Callable[[str, float], None], Callable[[str], None]]:
        if self.console is None:
            return (lambda what, done: None), (lambda text: None)
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.row = self.bar.add_task("", total=self.total)
        self.bar.start()
        return self._tell, partial(self.console.print, markup=False, highlight=False)

    def _tell(self, what: str, done: float) -> None:
        self.bar.update(self.row, description=what, completed=done)

    def __exit__(self, *error: object) -> None:
        if self.console is not None:
            self.bar.stop()


def _outcome(trajectory: Trajectory, seconds: float) -> str:
    lost = int(trajectory.diverged[-1])
    end = f"test accuracy {100 * trajectory['test accuracy'].mean[-1]:.2f} %" if lost < trajectory.replicas else ""
    end = ", ".join(text for text in (end, f"{lost} diverged" if lost else "") if text)
    made = float(trajectory.meta["seconds"])
    return f"{end}, {made:.0f} s" + (" (made before)" if seconds < 0.5 * made else "")


# -- what is kept ----------------------------------------------------------------------------------------------------


def _store(
    experiment: Experiment,
    options: Options,
    out: Path,
    lines: Sequence[Line],
    settings: Settings,
    found: Mapping[str, Mapping[range, Trajectory]],
    warm: Mapping[range, Trajectory],
    missing: Sequence[str],
) -> None:
    command = experiment.command(options)
    arms = [
        replace(arm_of(line.task, line.variant, joined(list(found[line.label].values()))), label=line.label)
        for line in lines
        if found[line.label]
    ]
    arms = [arms[0], *(_compared(arms[0], arm) for arm in arms[1:])]
    test_samples = min(EVAL, len(lines[0].task.test))
    table = finals(arms, test_samples)
    seconds = sum(final.seconds for final in table) + sum(float(part.meta["seconds"]) for part in warm.values())
    made = {
        "command": command,
        **environment(settings.device),
        "seeds": list(range(options.seeds)),
        "seconds": round(seconds, 1),
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
        "test_samples": test_samples,
        "final": [final.to_dict() for final in table],
        "missing": list(missing),
        **made,
    }
    write_json(out / "experiment.json", record, indent=1, allow_nan=False)


def _compared(base: Arm, arm: Arm) -> Arm:
    """With a verdict, where there are seeds enough for one."""
    common = set(base.trajectory.meta["seeds"]) & set(arm.trajectory.meta["seeds"])
    if len(common) < FEWEST:
        return arm
    names = [name for name in base.trajectory.names if name != "noise scale"]
    return replace(arm, comparison=compare(base.trajectory, arm.trajectory, names))


def finals(arms: Sequence[Arm], test_samples: int = EVAL) -> list[Final]:
    """The table of final values: the first arm is the base."""
    base = arms[0]
    return [_final(base, arm, test_samples) for arm in arms]


def _final(base: Arm, arm: Arm, test_samples: int) -> Final:
    here, there = arm.trajectory, base.trajectory
    accuracy, se = _end(here, test_samples)
    pairs = list(_pairs(there, here))
    gap = gap_se = None
    if accuracy is not None and arm is not base:
        differences = [here.values["test accuracy"][j, -1] - there.values["test accuracy"][i, -1] for i, j in pairs]
        differences = [d for d in differences if math.isfinite(d)]
        if differences:
            gap = float(np.mean(differences))
            spread = float(np.std(differences, ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else None
            gap_se = spread if spread is not None else math.hypot(se or 0.0, _end(there, test_samples)[1] or 0.0)
    return Final(
        arm.label,
        int(arm.plan.batch_size.total),
        here.replicas,
        int(here.diverged[-1]),
        accuracy,
        se,
        gap,
        gap_se,
        {} if arm is base else dict(_curve_gaps(there, here, pairs)),
        float(here.meta["seconds"]),
    )


def _end(trajectory: Trajectory, test_samples: int) -> tuple[float | None, float | None]:
    """Test accuracy at the end, and its standard error."""
    values = trajectory.values["test accuracy"][:, -1]
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    mean = float(values.mean())
    if len(values) == 1:
        return mean, math.sqrt(mean * (1 - mean) / test_samples)
    return mean, float(values.std(ddof=1) / math.sqrt(len(values)))


def _pairs(base: Trajectory, other: Trajectory) -> Iterator[tuple[int, int]]:
    """Rows of both of the seeds that both have."""
    rows = {seed: i for i, seed in enumerate(base.meta["seeds"])}
    return ((rows[seed], j) for j, seed in enumerate(other.meta["seeds"]) if seed in rows)


def _curve_gaps(
    base: Trajectory, other: Trajectory, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, tuple[float, float | None]]]:
    """The largest gap of the mean curves over the range of the base's; runs that diverged are left out."""
    kept = [(i, j) for i, j in pairs if np.isfinite(other.values["train loss"][j]).all()]
    if not kept:
        return
    for name in base.names:
        if name == "noise scale":
            continue
        ours = np.stack([other.values[name][j] for _, j in kept])
        theirs = np.stack([base.values[name][i] for i, _ in kept])
        span = float(np.ptp(theirs.mean(0)))
        if not span > 0:
            continue
        difference = (ours - theirs) / span
        gap = np.abs(difference.mean(0))
        at = int(gap.argmax())
        se = float(difference[:, at].std(ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else None
        yield name, (float(gap[at]), se)


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


def finals_of(record: Mapping[str, Any]) -> list[Final]:
    """The table of final values in a record."""
    return [Final.from_dict(entry) for entry in record["final"]]


def outcome(experiment: Experiment, out: str | Path) -> str:
    """What came out, in a sentence."""
    assert experiment.words is not None
    record = record_of(out)
    text = experiment.words(finals_of(record))
    return text + (f" (unfinished: {len(record['missing'])} runs are missing)" if record["missing"] else "")


def table(out: str | Path) -> Any:
    """The final values in a folder of results, as a table for the terminal."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("run")
    for column in ("seeds", "test accuracy", "less the base's", "gap of train loss", "seconds"):
        made.add_column(column, justify="right")
    for i, final in enumerate(finals_of(record_of(out))):
        accuracy = (
            "diverged" if final.accuracy is None else f"{100 * final.accuracy:.2f} ± {100 * (final.se or 0):.2f} %"
        )
        gap = points_of(final.gap, final.gap_se) if i else ""
        curve = percent(final.curves.get("train loss")) if i else ""
        made.add_row(final.label, str(final.seeds), accuracy, gap, curve, f"{final.seconds:.0f}")
    return made
