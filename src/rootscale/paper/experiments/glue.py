"""GLUE: models pre-trained at several batch sizes under the square root rule, fine-tuned on the same tasks.

The claim. RoBERTa-large pre-trained at B = 1,024 to 8,192 under the rule does about as well on each task of GLUE at all
pre-training batch sizes, in the best of a grid of fine-tunings (appendix "Square Root Scaling Experiments", table of
downstream performance).

Setting. The pre-trained models are those of the experiment ``roberta-mlm`` (`roberta_mlm.py`) under the rule, with its
text, model, batch sizes and length: its runs are found again, and those that are missing are made. Fine-tuning by the
appendix's tables: betas .9 and .98, eps 1e-6, weight decay .1, dropout .1, warm-up over 6 % and linear decay to 0; the
grid of batch sizes, learning rates and epochs is the paper's (``--grid small``: batch size 32, two learning rates, 3
epochs). Tasks are those of GLUE whose files are there. Scores on the dev sets: Matthews correlation for CoLA, F1 for
MRPC and QQP, Spearman correlation for STS-B, accuracy for the rest. The paper's models saw 94 million sequences and
16 GB of text: its scores are next to ours for the spread over batch sizes, not for their height.

Cost. The small grid on five tasks, 30 fine-tunings: 8 minutes in five processes on one H200 that had other work too;
the paper's grid is 12 times that. It may be stopped at any time, or by ``--minutes``, and goes on from there.

    rootscale reproduce roberta-mlm --device cuda --data FOLDER
    rootscale reproduce glue --device cuda --data FOLDER --minutes 9
    python -m rootscale.paper.experiments.glue --device cuda --data FOLDER --tasks CoLA RTE MRPC --grid small
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.files import command_line, whole, write_json
from rootscale.lab import BusyError, Here, Measure, Settings, Setup, Store, Sweep, Task, Variant, finished, sweep
from rootscale.lab.provenance import environment
from rootscale.paper.data import VARIABLE
from rootscale.paper.experiment import Experiment, Line, Options, Stored
from rootscale.paper.experiments import roberta_mlm as mlm
from rootscale.paper.language import GLUE, Point, glue, read_glue
from rootscale.paper.language.glue_data import glue_file
from rootscale.paper.running import Clock, Runs
from rootscale.paper.text import Tokens

#: The experiment whose models are fine-tuned.
PRETRAINING: Experiment = next(one for one in mlm.EXPERIMENTS if one.name == "roberta-mlm")
#: The paper's scores by the batch size of the pre-training; it has no number for MNLI at 8,192.
PAPER: dict[int, dict[str, float]] = {
    1024: dict(zip(GLUE, (0.585, 0.92, 0.73, 0.866, 0.873, 0.836, 0.906, 0.682), strict=True)),
    2048: dict(zip(GLUE, (0.563, 0.928, 0.803, 0.869, 0.875, 0.826, 0.897, 0.653), strict=True)),
    4096: dict(zip(GLUE, (0.581, 0.921, 0.778, 0.869, 0.875, 0.839, 0.892, 0.675), strict=True)),
    8192: dict(zip(GLUE, (0.626, 0.929, 0.778, 0.884, 0.877, math.nan, 0.9, 0.675), strict=True)),
}
#: Fine-tunings of more steps than this are worth a CUDA graph and its compilation.
LONG = 5000
#: Most tokens of an input.
LENGTH = 128


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        options: of the pre-training, as in ``roberta-mlm``; seeds and device are also those of the fine-tunings.
        folder: of the GLUE data.
        tasks: of GLUE.
        points: of the grid, for each task.
        length: most tokens of an input.
        long: fine-tunings of more steps than this are run by a CUDA graph.
    """

    options: Options
    folder: Path
    tasks: tuple[str, ...]
    points: Callable[[str], list[Point]]
    length: int = LENGTH
    long: int = LONG

    @property
    def tokens(self) -> Tokens:
        """Of the pre-training."""
        tokens: Tokens = mlm.SMALL.tokens(self.options)
        return tokens

    def pretraining(self) -> tuple[list[Line], Settings]:
        """The runs of ``roberta-mlm`` that are under the rule: one for each batch size, the base first."""
        assert PRETRAINING.lines is not None
        lines, settings = PRETRAINING.lines(self.options)
        return [line for line in lines if line.variant.rule is None], settings

    def task(self, name: str, point: Point, pretrained: tuple[Path, int]) -> Task:
        """A fine-tuning."""
        positions = mlm.SMALL.positions(self.options)
        return glue(
            name,
            self.folder,
            self.tokens.vocabulary,
            point=point,
            model=mlm.SMALL.model(self.options),
            pretrained=pretrained,
            length=min(self.length, positions),
            positions=positions,
        )

    def settings(self, task: Task) -> Settings:
        """Of a fine-tuning: only its end is measured."""
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
                fast=cuda and steps > self.long,
                replacement=False,
                max_loss=1e3,
            ),
        )

    def fine_tunings(self) -> Iterator[tuple[str, Point]]:
        """Task and point of the grid; each is made of the models of all batch sizes before the next one."""
        for task in self.tasks:
            for point in self.points(task):
                yield task, point


def run_all(plan: Plan, out: Path, runs: Path, pretrained: Path, command: str, minutes: float | None = None) -> bool:
    """Everything that is missing, or as much of it as there is time for; all that is finished is written to ``out``.

    Args:
        plan: what is run.
        out: folder of the results.
        runs: folder of the fine-tunings.
        pretrained: folder of the runs of ``roberta-mlm`` under the same options.
        command: that is said to have made it.
        minutes: stop after that time; 0 makes no run.

    Returns:
        Whether all is there.
    """
    out.mkdir(parents=True, exist_ok=True)
    clock = Clock(minutes)
    lines, settings = plan.pretraining()
    before = Runs(PRETRAINING, settings, pretrained, 1, clock)
    pretrainings, found, missing = list[dict[str, Any]](), list[dict[str, Any]](), 0
    interrupted: KeyboardInterrupt | None = None
    try:
        for seed in range(plan.options.seeds):
            models: dict[int, tuple[Path, int] | None] = {}
            for line in lines:
                swept = _pretrained(before, line, range(seed, seed + 1))
                if swept is None:
                    missing += 1
                    continue
                size, loss = _size(line), float(swept.trajectories[line.variant].values["test loss"][0, -1])
                models[size] = swept.models.get((line.variant, seed))  # none if it diverged
                log_perplexity = loss if math.isfinite(loss) else None
                pretrainings.append({"batch_size": size, "seed": seed, "log_perplexity": log_perplexity})
            for name, point in plan.fine_tunings():
                for size, model in models.items():
                    if model is None:
                        continue
                    score = _score(plan, plan.task(name, point, model), seed, runs, GLUE[name].metric, clock)
                    if score is None:
                        missing += 1
                        continue
                    found.append({"pretrained_at": size, "seed": seed, "task": name, **asdict(point), "score": score})
                    words = f"{point.batch_size}, {point.eta:g}, {point.epochs}"
                    print(f"B = {size:,}, seed {seed}, {name}, {words}: {score:.4f}", flush=True)
    except KeyboardInterrupt as error:
        interrupted = error
    complete = not missing and interrupted is None
    record = {
        "name": "glue",
        "command": command,
        "smoke": plan.options.smoke,
        "seeds": plan.options.seeds,
        "model": mlm.SMALL.model(plan.options),
        "text": plan.tokens.name,
        "dev": {name: _dev_samples(plan.folder, name) for name in plan.tasks},
        "pretraining": {
            "options": plan.options.to_dict(),
            "batch_sizes": [_size(line) for line in lines],
            "plan": lines[0].task.plan.to_dict(),
            "runs": pretrainings,
        },
        "complete": complete,
        "runs": [{**one, "score": one["score"] if math.isfinite(one["score"]) else None} for one in found],
        "date": time.strftime("%Y-%m-%d"),
        **environment(plan.options.device),
    }
    write_json(out / "glue.json", record, indent=1, allow_nan=False)
    with whole(out / "README.md") as temporary:
        temporary.write_text(page(record), encoding="utf-8")
    if interrupted is not None:
        raise interrupted
    return complete


def _size(line: Line) -> int:
    return int(line.variant.plan(line.task.plan).batch_size.total)


def _dev_samples(folder: Path, name: str) -> int:
    return len(read_glue(folder, name, "dev")[1])


def _pretrained(before: Runs, line: Line, seeds: range) -> Sweep | None:
    """What a run of the pre-training gave, which is read or made; None if there is no time to make it."""
    if before.clock.expired and not before.finished(line, seeds):
        return None
    return before.clock.within(partial(before.sweep, line, seeds))


def _score(plan: Plan, task: Task, seed: int, runs: Path, metric: str, clock: Clock) -> float | None:
    """At the end of a fine-tuning (NaN if it diverged); None if another process is at it, or there is no time."""
    settings = plan.settings(task)
    store = Store(runs, checkpoint_every=60.0, wait=False)
    if clock.expired and not finished(task, [Variant()], seeds=[seed], settings=settings, store=store):
        return None
    execute = Here(deadline=clock.deadline)
    make = partial(sweep, task, [Variant()], seeds=[seed], settings=settings, store=store, execute=execute)
    try:
        swept = clock.within(make)
    except BusyError:
        return None
    if swept is None:
        return None
    trajectory = swept.trajectories[Variant()]
    return float(trajectory.values[metric][0, -1]) if metric in trajectory.names else math.nan


# -- what is said ----------------------------------------------------------------------------------------------------


def best(record: dict[str, Any]) -> dict[int, dict[str, tuple[float, float | None]]]:
    """By batch size of the pre-training and task: the best of the grid, mean and standard error over seeds."""
    scores: dict[tuple[int, str, int], float] = {}
    for run in record["runs"]:
        if run["score"] is not None:
            key = (run["pretrained_at"], run["task"], run["seed"])
            scores[key] = max(run["score"], scores.get(key, -math.inf))
    table: dict[int, dict[str, tuple[float, float | None]]] = {}
    for size in sorted({size for size, _, _ in scores}):
        for task in dict.fromkeys(task for at, task, _ in scores if at == size):
            values = np.array([value for (at, name, _), value in scores.items() if (at, name) == (size, task)])
            se = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
            table.setdefault(size, {})[task] = (float(values.mean()), se)
    return table


def page(record: dict[str, Any]) -> str:
    """The table of the best of the grid, ours and the paper's, in Markdown."""
    table = best(record)
    tasks = [task for task in GLUE if task in record["dev"]]
    lines = ["# GLUE after pre-training at several batch sizes", ""]
    if record["smoke"]:
        lines += ["A smoke test on generated data, which says nothing about the claim.", ""]
    lines += [f"| pre-trained at B | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for size, row in table.items():
        lines.append(f"| {size:,} | {' | '.join(_cell(row.get(task)) for task in tasks)} |")
    for size, values in PAPER.items():
        cells = ["-" if math.isnan(values[task]) else f"{values[task]:.3f}" for task in tasks]
        lines.append(f"| the paper, {size:,} | {' | '.join(cells)} |")
    spread = ", ".join(f"{task} {value:.3f}" for task, value in spreads(table).items())
    lines += [
        "",
        f"Best of the grid on the dev sets ({', '.join(f'{task}: {GLUE[task].metric}' for task in tasks)}).",
        *uncertainty(record, table),
        f"Largest difference between pre-training batch sizes: {spread or 'not known yet'}.",
        f"Validation log-perplexity after pre-training: {', '.join(_pretraining_words(record)) or 'not known yet'}.",
        f"{record['model']}, pre-trained on {record['text']} over {record['pretraining']['options']['epochs']:g} "
        "epochs; the paper's RoBERTa-large saw far more text: compare the spread over batch sizes, not the height.",
        "",
        f"Made by `{record['command']}` on {record['date']}: {record['hardware']}"
        + ("." if record["complete"] else "; not finished."),
    ]
    return "\n".join(lines) + "\n"


def uncertainty(record: dict[str, Any], table: dict[int, dict[str, tuple[float, float | None]]]) -> list[str]:
    """Where there is one seed: that there is no standard error, and what the dev sets alone make of one.

    An accuracy p on n samples has the standard error ``sqrt(p (1 - p) / n)``; the other scores have no such formula.
    """
    if record["seeds"] > 1:
        return []
    parts = []
    for task, samples in record["dev"].items():
        values = [row[task][0] for row in table.values() if task in row]
        if GLUE[task].metric == "accuracy" and values:
            p = float(np.mean(values))
            parts.append(f"± {math.sqrt(p * (1 - p) / samples):.3f} ({task}, {samples:,} samples)")
    alone = f"; of an accuracy, the dev set alone makes about {', '.join(parts)}" if parts else ""
    return [f"One seed: no standard error{alone}."]


def _pretraining_words(record: dict[str, Any]) -> Iterator[str]:
    """By batch size, the mean over seeds; and which diverged."""
    for size in record["pretraining"]["batch_sizes"]:
        made = [run["log_perplexity"] for run in record["pretraining"]["runs"] if run["batch_size"] == size]
        kept = [loss for loss in made if loss is not None]
        if made:
            lost = f" ({len(made) - len(kept)} of {len(made)} diverged)" if len(kept) < len(made) else ""
            yield f"B = {size:,}: " + (f"{np.mean(kept):.3f}" if kept else "none") + lost


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return ""
    return f"{value[0]:.3f}" if value[1] is None else f"{value[0]:.3f} ± {value[1]:.3f}"


def spreads(table: dict[int, dict[str, tuple[float, float | None]]]) -> dict[str, float]:
    """For each task, the largest score less the smallest, over the batch sizes of the pre-training."""
    out = {}
    for task in GLUE:
        values = [row[task][0] for row in table.values() if task in row]
        if len(values) > 1:
            out[task] = max(values) - min(values)
    return out


def stored(folder: Path) -> Stored | None:
    """The differences between pre-training batch sizes in ``glue.json``."""
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
    return Stored(
        words + ("" if record["complete"] else " (unfinished)"),
        record["seeds"],
        record["hardware"],
        folder / "README.md",
    )


# -- running ---------------------------------------------------------------------------------------------------------


def generated(folder: Path) -> None:
    """Three tasks in the form of GLUE: is there a certain word, are two sentences alike, how much so."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 128), ("dev", 64)):
        for name in ("CoLA", "MRPC", "STS-B"):
            lines = [] if name == "CoLA" else ["\t".join(f"column {i}" for i in range(10))]
            for _ in range(count):
                first = generator.integers(10, size=6)
                second = np.where(generator.random(6) < 0.5, first, generator.integers(10, size=6))
                alike = float((first == second).mean())
                one, two = (" ".join(f"w{i}" for i in numbers) for numbers in (first, second))
                lines.append(
                    {
                        "CoLA": f"here\t{int(1 in first)}\t\t{one}",
                        "MRPC": f"{int(alike > 0.5)}\t1\t2\t{one}\t{two}",
                        "STS-B": "\t".join(["x"] * 7 + [one, two, f"{5 * alike:.3f}"]),
                    }[name]
                )
            (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
            (folder / "glue" / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def available(folder: Path) -> tuple[str, ...]:
    """The tasks of GLUE whose files are in a folder; which are not is said."""
    found = tuple(name for name in GLUE if _there(folder, name))
    if not found:
        raise ValueError(f"there is no task of GLUE in {folder}: it must hold glue/NAME/train.tsv and dev.tsv")
    missing = [name for name in GLUE if name not in found]
    print(f"tasks of GLUE in {folder}: {', '.join(found)}" + (f"; not {', '.join(missing)}" if missing else ""))
    return found


def _there(folder: Path, name: str) -> bool:
    try:
        return all(glue_file(folder, name, split) for split in ("train", "dev"))
    except ValueError:
        return False


def run_in(
    options: Options,
    folder: str | None,
    out: Path,
    runs: Path,
    command: str,
    *,
    pretrained: Path | None = None,
    tasks: Sequence[str] = (),
    points: Callable[[str], list[Point]] | None = None,
    length: int = LENGTH,
    long: int = LONG,
    minutes: float | None = None,
) -> bool:
    """`run_all` on the data of a folder, or on generated ones for a smoke test; the rest has defaults."""
    pretrained = pretrained or runs.parent / PRETRAINING.folder(options)
    with tempfile.TemporaryDirectory() as temporary:
        if options.smoke:
            generated(Path(temporary))
            folder, points = temporary, _smoke_points
        folder = folder or os.environ.get(VARIABLE)
        if not folder:
            raise ValueError(f"the folder of the data is needed: give --data, or the environment variable {VARIABLE}")
        place = Path(folder).expanduser()
        plan = Plan(options, place, tuple(tasks) or available(place), points or _paper_points, length, long)
        return run_all(plan, out, runs, pretrained, command, minutes)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 3 while runs are missing."""
    defaults = PRETRAINING.defaults
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_argument_group("where and how long")
    where.add_argument("--out", type=Path, default=Path("results/glue"), help="folder of the results")
    where.add_argument("--runs", type=Path, help="folder of the fine-tunings; default: runs/NAME of --out")
    where.add_argument(
        "--pretrained", type=Path, help="folder of the runs of roberta-mlm; default: runs/roberta-mlm, beside --runs"
    )
    where.add_argument("--data", help=f"folder of the text and of glue; default: {VARIABLE}")
    where.add_argument("--text", help="folder of the text, where it is another")
    where.add_argument("--device", default="cpu")
    where.add_argument("--minutes", type=float, help="stop after that time")
    before = parser.add_argument_group("the pre-training (default: as in roberta-mlm)")
    before.add_argument("--model", choices=[defaults.model, *PRETRAINING.models])
    before.add_argument("--batch-sizes", type=int, nargs="+")
    before.add_argument("--epochs", type=float)
    before.add_argument("--eps", type=float)
    before.add_argument("--points", type=int, help="at which it is measured")
    before.add_argument("--seeds", type=int, help="of pre-training and fine-tuning")
    after = parser.add_argument_group("the fine-tunings")
    after.add_argument("--tasks", nargs="+", choices=list(GLUE), help="default: those whose files are there")
    after.add_argument("--grid", choices=list(GRIDS), default="paper")
    after.add_argument(
        "--length", type=int, default=LENGTH, help="most tokens; a task of shorter texts takes fewer (default: 128)"
    )
    after.add_argument(
        "--long", type=int, default=LONG,
        help="steps from which a fine-tuning is run by a CUDA graph; part of what a run is (default: 5000)",
    )  # fmt: skip
    parser.add_argument("--smoke", action="store_true", help="tiny nets on generated data")
    args = parser.parse_args(argv)
    options = PRETRAINING.options(
        smoke=args.smoke,
        device=args.device,
        data=args.text or args.data,
        batch_sizes=None if args.batch_sizes is None else tuple(args.batch_sizes),
        **{name: getattr(args, name) for name in ("model", "epochs", "eps", "points", "seeds")},
    )
    complete = run_in(
        options,
        args.data,
        args.out,
        args.runs or Path("build/smoke" if args.smoke else ".") / "runs" / args.out.name,
        command_line("python -m rootscale.paper.experiments.glue", sys.argv[1:] if argv is None else argv),
        pretrained=args.pretrained,
        tasks=args.tasks or (),
        points=GRIDS[args.grid],
        length=args.length,
        long=args.long,
        minutes=args.minutes,
    )
    return 0 if complete else 3


def _paper_points(task: str) -> list[Point]:
    return GLUE[task].grid()


def _small_points(task: str) -> list[Point]:
    return [Point(32, eta, 3) for eta in (3e-5, 8e-5)]


def _smoke_points(task: str) -> list[Point]:
    return [Point(16, eta, 5) for eta in (3e-3, 1e-2)]


GRIDS = {"paper": _paper_points, "small": _small_points}


def script(options: Options, out: Path, runs: Path, minutes: float | None) -> bool:
    """The program, as `rootscale reproduce` calls it."""
    return run_in(options, options.data, out, runs, EXPERIMENTS[0].command(options), minutes=minutes)


EXPERIMENTS = [
    Experiment(
        name="glue",
        title="GLUE after pre-training at several batch sizes",
        claim="Fine-tuned models do about as well on every task, whatever the batch size of the pre-training",
        source="Appendix, Square Root Scaling Experiments, table of downstream performance",
        minutes=600,
        defaults=PRETRAINING.defaults,
        models=PRETRAINING.models,
        script=script,
        takes=("device", "data", "batch_sizes", "epochs", "seeds", "eps", "model", "points"),
        shares=True,
        stored=stored,
        smoke={"points": 4, **PRETRAINING.smoke},
    )
]


if __name__ == "__main__":
    sys.exit(main())
