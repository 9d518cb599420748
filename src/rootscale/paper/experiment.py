"""What an experiment is: its options, its lines and its claim."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rootscale.lab import Settings, Variant
from rootscale.lab.settings import Measure, Setup
from rootscale.lab.task import Task
from rootscale.paper.finals import ACCURACY, MEASURES, Final
from rootscale.paper.recipes import recipe
from rootscale.paper.shown import Shown

__all__ = [
    "SMOKE",
    "Experiment",
    "Line",
    "Lines",
    "Options",
    "Stored",
    "question_of",
]

#: How the claim of an experiment begins that the paper does not have.
BEYOND = "Not in the paper"
#: Batch sizes of a smoke test are this many times smaller, as are its data.
SMOKE = 16


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
        recipe: of a run on CIFAR-10, a text of `rootscale.paper.recipes.recipe`.
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
    recipe: str = "house"
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
        recipe(self.recipe)
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
    """One curve of an experiment.

    Args:
        label: for legends.
        task, variant: what is trained, and how it differs from the task's plan.
        setup: how it is trained; None is as the other lines of the experiment.
        measure: what is measured along it; None is as the other lines.
    """

    label: str
    task: Task
    variant: Variant = Variant()
    setup: Setup | None = None
    measure: Measure | None = None

    def settings(self, common: Settings) -> Settings:
        """Return the settings of its runs, given those that all lines have in common."""
        return replace(common, setup=self.setup or common.setup, measure=self.measure or common.measure)


#: Makes the lines of an experiment, the base first, and what they have in common.
Lines = Callable[[Options], tuple[list[Line], Settings]]


@dataclass(frozen=True)
class Stored:
    """What a reader learns about stored results.

    Args:
        words: what was measured.
        seeds: how many runs of each kind.
        hardware: where.
        figure: a figure, or a page.
    """

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
        keeps: the test functions that its results hold; all of them, where empty.
        told: the test function whose gap is told, where several experiments make one table (`group`).
        shown: how it is drawn and judged.
    """

    name: str
    title: str
    claim: str
    source: str
    minutes: float
    defaults: Options
    lines: Lines | None = None
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
    keeps: tuple[str, ...] = ()
    told: str = ""
    shown: Shown = Shown()

    @property
    def group(self) -> str:
        """The folder that it shares with other experiments, with which it makes one table; empty where there is none.

        Such an experiment has no page of its own.
        """
        return self.place.partition("/")[0] if "/" in self.place else ""

    @property
    def beyond(self) -> bool:
        """Whether the paper does not have it."""
        return self.claim.startswith(BEYOND)

    @property
    def drawn(self) -> str:
        """The test function whose gap is drawn."""
        return self.shown.function or self.measure

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
        if options.recipe != Options.recipe:
            name += f"-{options.recipe.replace('+', '-')}"
        return name + ("-paper-batchnorm" if options.paper_batchnorm else "")

    def command(self, options: Options, *more: str) -> str:
        """What makes it, on the command line."""
        defaults = self.options(smoke=options.smoke)  # a smoke test's differ
        words = options.words(replace(defaults, smoke=False))
        return shlex.join(["rootscale", "reproduce", self.name, *words, *more])


def question_of(claim: str) -> str:
    """Return a claim that is not in the paper, without saying so.

    >>> question_of("Not in the paper: a run goes on"), question_of("Not in the paper. Which is the best")
    ('A run goes on', 'Which is the best')
    """
    text = claim.removeprefix(BEYOND).lstrip(".: ")
    return text[:1].upper() + text[1:]
