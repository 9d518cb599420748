"""The runs of GLUE: pre-trained models, and their fine-tunings on a grid."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rootscale.lab import (
    BusyError,
    Deadline,
    Here,
    Measure,
    Settings,
    Setup,
    Store,
    Task,
    UnfinishedError,
    Variant,
    sweep,
)
from rootscale.lab import finished as is_finished
from rootscale.lab.provenance import environment
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments import roberta_mlm as mlm
from rootscale.paper.language.glue_data import GLUE, Point, read_glue
from rootscale.paper.language.glue_task import glue
from rootscale.paper.text.tokens import Tokens
from rootscale.paper.work import Runs

__all__ = ["PRETRAINING", "Plan", "Progress", "paper_points", "size_of", "small_points"]

_log = logging.getLogger(__name__)


#: The experiment whose models are fine-tuned.
PRETRAINING: Experiment = next(one for one in mlm.EXPERIMENTS if one.name == "roberta-mlm")
#: Fine-tunings of more steps than this are worth a CUDA graph and its compilation.
LONG = 5000


def paper_points(task: str) -> list[Point]:
    """Return the paper's grid for a task."""
    return GLUE[task].grid()


def small_points(task: str) -> list[Point]:
    """Return a grid of two fine-tunings."""
    return [Point(32, eta, 3) for eta in (3e-5, 8e-5)]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        options: of the pre-training, as in ``roberta-mlm``; seeds and device are also those of the fine-tunings.
        folder: of the GLUE data.
        tasks: of GLUE.
        points: of the grid, for each task.
    """

    options: Options
    folder: Path
    tasks: tuple[str, ...]
    points: Callable[[str], list[Point]]

    @property
    def tokens(self) -> Tokens:
        """Of the pre-training."""
        tokens: Tokens = mlm.SMALL.tokens(self.options)
        return tokens

    def pretraining(self) -> tuple[list[Line], Settings]:
        """Return the runs of ``roberta-mlm`` that are under the rule: one for each batch size, the base first."""
        assert PRETRAINING.lines is not None
        lines, settings = PRETRAINING.lines(self.options)
        return [line for line in lines if line.variant.rule in (None, "with paper")], settings

    def task(self, name: str, point: Point, pretrained: tuple[Path, int]) -> Task:
        """Return a fine-tuning."""
        return glue(
            name,
            self.folder,
            self.tokens.vocabulary,
            point=point,
            model=mlm.SMALL.model(self.options),
            pretrained=pretrained,
            positions=mlm.SMALL.positions(self.options),
        )

    def settings(self, task: Task) -> Settings:
        """Return the settings of a fine-tuning: only its end is measured."""
        total, steps = task.plan.samples, task.plan.total_steps
        assert total is not None
        assert steps is not None
        cuda = self.options.device.startswith("cuda")
        return Settings(
            grid=(int(total),),
            measure=Measure(eval_samples=256, noise=False),
            setup=Setup(
                self.options.device,
                micro=None if self.options.smoke else 256,
                amp=cuda,
                fast=cuda and steps > LONG,
                replacement=False,
                max_loss=1e3,
            ),
        )

    def fine_tunings(self) -> Iterator[tuple[str, Point]]:
        """Yield task and point of the grid; each is made of the models of all batch sizes before the next one."""
        for task in self.tasks:
            for point in self.points(task):
                yield task, point


@dataclass
class Progress:
    """The runs of one call, which stop at a deadline.

    Args:
        plan: what is run.
        runs: folder of the fine-tunings.
        pretrained: folder of the runs of ``roberta-mlm`` under the same options.
        deadline: after which nothing is made, and what is finished is read.

    Attributes:
        pretrainings, found: what is finished.
        missing: how many runs are not.
    """

    plan: Plan
    runs: Path
    pretrained: Path
    deadline: Deadline
    pretrainings: list[dict[str, Any]] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    missing: int = 0

    def make(self) -> None:
        """Make everything that is missing, or as much of it as there is time for."""
        for seed in range(self.plan.options.seeds):
            models = self._pretrained(seed)
            for name, point in self.plan.fine_tunings():
                for size, model in models.items():
                    score = self._score(self.plan.task(name, point, model), seed, GLUE[name].metric)
                    if score is None:
                        self.missing += 1
                        continue
                    run = {"pretrained_at": size, "seed": seed, "task": name, **asdict(point), "score": score}
                    self.found.append(run)
                    words = f"{point.batch_size}, {point.eta:g}, {point.epochs}"
                    _log.info("B = %s, seed %s, %s, %s: %.4f", f"{size:,}", seed, name, words, score)

    def _pretrained(self, seed: int) -> dict[int, tuple[Path, int]]:
        """Return the models of a seed by batch size, which are read or made; those that diverged are none."""
        lines, settings = self.plan.pretraining()
        runs, seeds, models = Runs(PRETRAINING, settings, self.pretrained), range(seed, seed + 1), {}
        for line in lines:
            if self.deadline.passed and not runs.finished(line, seeds):
                self.missing += 1
                continue
            try:
                swept = runs.sweep(line, seeds, self.deadline)
            except UnfinishedError:
                self.missing += 1
                continue
            size, loss = size_of(line), float(swept.trajectories[line.variant].values["test loss"][0, -1])
            if (line.variant, seed) in swept.models:
                models[size] = swept.models[line.variant, seed]
            known = loss if math.isfinite(loss) else None
            self.pretrainings.append({"batch_size": size, "seed": seed, "log_perplexity": known})
        return models

    def _score(self, task: Task, seed: int, metric: str) -> float | None:
        """Return the score of a fine-tuning, NaN if it diverged; None if another process makes it, or time is up."""
        what: dict[str, Any] = {"seeds": [seed], "settings": self.plan.settings(task)}
        what["store"] = Store(self.runs, checkpoint_every=60.0, wait=False)
        if self.deadline.passed and not is_finished(task, [Variant()], **what):
            return None
        try:
            swept = sweep(task, [Variant()], **what, execute=Here(deadline=self.deadline))
        except (BusyError, UnfinishedError):
            return None
        trajectory = swept.trajectories[Variant()]
        return float(trajectory.values[metric][0, -1]) if metric in trajectory.names else math.nan

    def record(self, command: str, complete: bool) -> dict[str, Any]:
        """Return what is stored of it."""
        options, (lines, _) = self.plan.options, self.plan.pretraining()
        return {
            "name": "glue",
            "command": command,
            "smoke": options.smoke,
            "seeds": options.seeds,
            "model": mlm.SMALL.model(options),
            "text": self.plan.tokens.name,
            "dev": {name: len(read_glue(self.plan.folder, name, "dev")[1]) for name in self.plan.tasks},
            "pretraining": {
                "options": options.to_dict(),
                "batch_sizes": [size_of(line) for line in lines],
                "plan": lines[0].task.plan.to_dict(),
                "runs": self.pretrainings,
            },
            "complete": complete,
            "runs": [{**one, "score": one["score"] if math.isfinite(one["score"]) else None} for one in self.found],
            "date": time.strftime("%Y-%m-%d"),
            **environment(options.device),
        }


def size_of(line: Line) -> int:
    """Return the batch size of a line."""
    return int(line.variant.plan(line.task.plan).batch_size.total)
