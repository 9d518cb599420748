"""GLUE: models pre-trained at several batch sizes under the square root rule, fine-tuned on the same tasks.

The claim. RoBERTa-large pre-trained at B = 1,024 to 8,192 under the rule does about as well on each task of GLUE at all
pre-training batch sizes, in the best of a grid of fine-tunings (appendix "Square Root Scaling Experiments", table of
downstream performance).

Setting. The pre-trained models are those of the experiment ``roberta-mlm`` (`roberta_mlm.py`) under the rule, with its
text, model, batch sizes and length: its runs are found again, and those that are missing are made. Fine-tuning follows
the appendix's tables: betas .9 and .98, eps 1e-6, weight decay .1, dropout .1, warm-up over 6 % and linear decay to 0.
The grid of ``glue-grid`` is the paper's; ``glue`` has a small one: batch size 32, two learning rates, 3 epochs. Tasks
are those of GLUE whose files are there. Scores are taken on the dev sets: Matthews correlation for CoLA, F1 for MRPC
and QQP, Spearman correlation for STS-B, accuracy for the rest. The paper's models saw 94 million sequences and 16 GB of
text: compare the spread over batch sizes, not the height.

Cost. The small grid on five tasks, 30 fine-tunings: 8 minutes in five processes on one H200 that had other work too.
The paper's grid is 12 times that.

    rootscale reproduce roberta-mlm --device cuda --data FOLDER
    rootscale reproduce glue --processes 4 --device cuda --data FOLDER --minutes 9
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rootscale.files import whole, write_json
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
from rootscale.paper.data import data_folder
from rootscale.paper.experiment import Experiment, Line, Options, Stored
from rootscale.paper.experiments import roberta_mlm as mlm
from rootscale.paper.experiments.glue_page import best, page, spreads
from rootscale.paper.language import GLUE, Point, glue
from rootscale.paper.language.glue_data import generated_glue, glue_file, read_glue
from rootscale.paper.running import Runs
from rootscale.paper.text import Tokens

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


def smoke_points(task: str) -> list[Point]:
    """Return what a smoke test runs."""
    return [Point(16, eta, 5) for eta in (3e-3, 1e-2)]


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
        return [line for line in lines if line.variant.rule is None], settings

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


def run_all(progress: Progress, out: Path, command: str) -> bool:
    """Make the runs and write what is finished to ``out``; return whether all is there."""
    out.mkdir(parents=True, exist_ok=True)
    complete = False
    try:
        progress.make()
        complete = not progress.missing
    finally:  # an interrupt keeps what is finished
        record = progress.record(command, complete)
        write_json(out / "glue.json", record, indent=1, allow_nan=False)
        with whole(out / "README.md") as temporary:
            temporary.write_text(page(record), encoding="utf-8")
    return complete


def size_of(line: Line) -> int:
    """Return the batch size of a line."""
    return int(line.variant.plan(line.task.plan).batch_size.total)


def available(folder: Path) -> tuple[str, ...]:
    """Return the tasks of GLUE whose files are in a folder."""
    found = tuple(name for name in GLUE if _there(folder, name))
    if not found:
        raise ValueError(f"there is no task of GLUE in {folder}: it must hold glue/NAME/train.tsv and dev.tsv")
    missing = [name for name in GLUE if name not in found]
    note = f"; not {', '.join(missing)}" if missing else ""
    _log.info("tasks of GLUE in %s: %s%s", folder, ", ".join(found), note)
    return found


def _there(folder: Path, name: str) -> bool:
    try:
        return all(glue_file(folder, name, split) for split in ("train", "dev"))
    except ValueError:
        return False


@contextmanager
def planned(options: Options, points: Callable[[str], list[Point]]) -> Iterator[Plan]:
    """Give what is run: on the data of the options, or on generated ones for a smoke test."""
    if not options.smoke:
        place = data_folder(options.data)
        yield Plan(options, place, available(place), points)
        return
    with tempfile.TemporaryDirectory() as temporary:
        generated_glue(Path(temporary))
        yield Plan(options, Path(temporary), available(Path(temporary)), smoke_points)


def script(
    name: str,
    points: Callable[[str], list[Point]],
    options: Options,
    out: Path,
    runs: Path,
    minutes: float | None,
) -> bool:
    """Run one of the experiments, as `rootscale reproduce` asks for it."""
    deadline = Deadline.after(None if minutes is None else 60 * minutes)
    command = next(one for one in EXPERIMENTS if one.name == name).command(options)
    with planned(options, points) as plan:
        return run_all(Progress(plan, runs, runs.parent / PRETRAINING.folder(options), deadline), out, command)


def stored(folder: Path) -> Stored | None:
    """Return the differences between pre-training batch sizes in ``glue.json``; None where there is none."""
    if not (folder / "glue.json").exists():
        return None
    record = json.loads((folder / "glue.json").read_text(encoding="utf-8"))
    table = best(record)
    parts = [f"{task} {gap:.3f}" for task, gap in spreads(table).items()]
    sizes = ", ".join(f"{size:,}" for size in table)
    words = f"largest difference of the best scores between pre-training at B = {sizes}: {', '.join(parts)}"
    if not parts:
        words = "no two batch sizes can be compared yet"
    if record["smoke"]:
        words = f"a smoke test on generated data, which says nothing about the claim: {words}"
    words += "" if record["complete"] else " (unfinished)"
    return Stored(words, record["seeds"], record["hardware"], folder / "README.md")


def _experiment(name: str, title: str, minutes: float, points: Callable[[str], list[Point]]) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        claim="Fine-tuned models do about as well on every task, whatever the batch size of the pre-training",
        source="Appendix, Square Root Scaling Experiments, table of downstream performance",
        minutes=minutes,
        defaults=PRETRAINING.defaults,
        models=PRETRAINING.models,
        script=partial(script, name, points),
        takes=("device", "data", "batch_sizes", "epochs", "seeds", "eps", "model", "points"),
        shares=True,
        stored=stored,
        smoke={"points": 4, **PRETRAINING.smoke},
    )


EXPERIMENTS = [
    _experiment("glue", "GLUE after pre-training at several batch sizes", 40, small_points),
    _experiment("glue-grid", "GLUE after pre-training at several batch sizes, the paper's grid", 600, paper_points),
]
