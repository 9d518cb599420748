"""GLUE: models pre-trained at several batch sizes under the square root rule, fine-tuned on the same tasks.

The claim. RoBERTa-large pre-trained at B = 1,024 to 8,192 under the rule does about as well on each task of GLUE at all
pre-training batch sizes, in the best of a grid of fine-tunings (appendix "Square Root Scaling Experiments", table of
downstream performance).

Setting. Pre-training as in `roberta_mlm.py`, on the text that is there (cut by a BPE that is trained on it) and by
default with 6 layers, at three batch sizes. Fine-tuning by the appendix's tables: betas .9 and .98, eps 1e-6, weight
decay .1, dropout .1, warm-up over 6 % and linear decay to 0; the grid of batch sizes, learning rates and epochs is the
paper's (``--grid small``: batch size 32, two learning rates, 3 epochs). Scores on the dev sets: Matthews correlation
for CoLA, F1 for MRPC and QQP, Spearman correlation for STS-B, accuracy for the rest. The paper's models saw 94 million
sequences and 16 GB of text: its scores are next to ours for the spread over batch sizes, not for their height.

Cost. Not measured yet. It may be stopped at any time, or by ``--minutes``, and goes on from there.

    ROOTSCALE_DATA=FOLDER rootscale reproduce glue --device cuda
    python experiments/glue.py --device cuda --data FOLDER --out results/glue --tasks CoLA RTE MRPC --minutes 9
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.files import whole, write_json
from rootscale.lab import Settings, Task, Variant, sweep
from rootscale.lab.data import VARIABLE
from rootscale.lab.engine import environment
from rootscale.lab.language import GLUE, ROBERTAS, Point, glue, micro_batch, pretrain, roberta
from rootscale.lab.sweep import describe
from rootscale.lab.text import Tokens, chain, corpus, from_text, tokenise
from rootscale.reproduce import Experiment, Options, Stored

#: The paper's scores by the batch size of the pre-training; it has no number for MNLI at 8,192.
PAPER: dict[int, dict[str, float]] = {
    1024: dict(zip(GLUE, (0.585, 0.92, 0.73, 0.866, 0.873, 0.836, 0.906, 0.682), strict=True)),
    2048: dict(zip(GLUE, (0.563, 0.928, 0.803, 0.869, 0.875, 0.826, 0.897, 0.653), strict=True)),
    4096: dict(zip(GLUE, (0.581, 0.921, 0.778, 0.869, 0.875, 0.839, 0.892, 0.675), strict=True)),
    8192: dict(zip(GLUE, (0.626, 0.929, 0.778, 0.884, 0.877, math.nan, 0.9, 0.675), strict=True)),
}
#: Fine-tunings of more steps than this are worth a CUDA graph and its compilation.
LONG = 5000


@dataclass(frozen=True)
class Plan:
    """What is run.

    Args:
        tokens: of the pre-training text.
        folder: of the GLUE data.
        tasks: of GLUE.
        model: encoder.
        length: of the sequences.
        sizes: batch sizes of the pre-training; the smallest is the base of the rule.
        epochs: of the pre-training.
        seeds: of pre-training and fine-tuning.
        points: of the grid, for each task.
        device: where.
        small: whether this is a smoke test.
    """

    tokens: Tokens
    folder: Path
    tasks: tuple[str, ...]
    model: str
    length: int
    sizes: tuple[int, ...]
    epochs: float
    seeds: int
    points: Callable[[str], list[Point]]
    device: str
    small: bool = False

    def pretraining(self) -> Task:
        """At the base."""
        return roberta(
            self.tokens,
            model=self.model,
            length=self.length,
            epochs=self.epochs,
            batch_size=min(self.sizes),
            eta=1e-2 if self.small else None,
            reference=4 if self.small else None,
        )

    def runs(self) -> Iterator[tuple[int, int, str, Point]]:
        """Batch size of the pre-training, seed, task and point of the grid of every fine-tuning."""
        for seed in range(self.seeds):
            for size in sorted(self.sizes):
                for task in self.tasks:
                    for point in self.points(task):
                        yield size, seed, task, point


def run_all(plan: Plan, out: Path, runs: Path, command: str, minutes: float | None = None) -> bool:
    """Everything that is missing, or as much of it as there is time for; what there is, is written to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def late() -> bool:
        return minutes is not None and time.monotonic() - began > 60 * minutes

    base, found = plan.pretraining(), list[dict[str, Any]]()
    complete = True
    for size, seed, name, point in plan.runs():
        path = _pretrained(plan, base, size, seed, runs, late)
        if path is None or late():
            complete = False
            break
        task = glue(
            name, plan.folder, plan.tokens.vocabulary, point=point, model=plan.model, pretrained=path,
            length=plan.length,
        )  # fmt: skip
        score = _fine_tuned(plan, task, seed, runs, GLUE[name].metric)
        found.append({"pretrained_at": size, "seed": seed, "task": name, **asdict(point), "score": score})
        print(f"B = {size:,}, seed {seed}, {name}, {point.batch_size}, {point.eta:g}, {point.epochs}: {score:.4f}")
    record = {
        "name": "glue",
        "command": command,
        "smoke": plan.small,
        "seeds": plan.seeds,
        "model": plan.model,
        "text": plan.tokens.name,
        "pretraining": {"epochs": plan.epochs, "batch_sizes": list(plan.sizes), "plan": base.plan.to_dict()},
        "complete": complete,
        "runs": [{**one, "score": one["score"] if math.isfinite(one["score"]) else None} for one in found],
        "date": time.strftime("%Y-%m-%d"),
        **environment(plan.device),
    }
    write_json(out / "glue.json", record, indent=1, allow_nan=False)
    with whole(out / "README.md") as temporary:
        temporary.write_text(page(record), encoding="utf-8")
    return complete


def _pretrained(plan: Plan, base: Task, size: int, seed: int, runs: Path, late: Callable[[], bool]) -> Path | None:
    """The file of a pre-trained model, which is made where it is missing; None if there is no time."""
    total = base.plan.samples
    assert total is not None
    settings = Settings(
        grid=(0, int(total)),
        eval_samples=32 if plan.small else 1024,
        device=plan.device,
        micro=None if plan.small else micro_batch(plan.length, plan.tokens.vocabulary.total),
        fast=plan.device.startswith("cuda"),
    )
    what = json.dumps([describe(base), size, seed, settings.micro, plan.device.startswith("cuda")], sort_keys=True)
    digest = hashlib.sha256(what.encode()).hexdigest()[:10]
    path = runs / "pretrained" / f"{plan.model}-B-{size}-seed-{seed}-{digest}.pt"
    variant = Variant(Fraction(size, min(plan.sizes)))
    return path if pretrain(base, variant, seed, settings, path, stop=late) else None


def _fine_tuned(plan: Plan, task: Task, seed: int, runs: Path, metric: str) -> float:
    """The score at the end of a fine-tuning, which is run or read."""
    total, steps = task.plan.samples, task.plan.total_steps
    assert total is not None
    assert steps is not None
    cuda = plan.device.startswith("cuda")
    settings = Settings(
        grid=(int(total),),
        replacement=False,
        eval_samples=256,
        noise=False,
        device=plan.device,
        micro=None if plan.small else 256,
        amp=cuda,
        fast=cuda and steps > LONG,
        max_loss=1e3,
    )
    trajectory = sweep(task, [Variant()], [seed], settings, runs / "fine-tuned").trajectories[Variant()]
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
    tasks = [task for task in GLUE if any(task in row for row in table.values())]
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
        f"Largest difference between pre-training batch sizes: {spread or 'not known yet'}.",
        f"{record['model']}, pre-trained on {record['text']} over {record['pretraining']['epochs']:g} epochs; the "
        "paper's RoBERTa-large saw far more text: compare the spread over batch sizes, not the height.",
        "",
        f"Made by `{record['command']}` on {record['date']}: {record['hardware']}"
        + ("." if record["complete"] else "; not finished."),
    ]
    return "\n".join(lines) + "\n"


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


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 3 while runs are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/glue"), help="folder of the results")
    parser.add_argument("--runs", type=Path, help="folder of runs and checkpoints; default: runs/NAME of --out")
    parser.add_argument("--data", help=f"folder of the text and of glue; default: {VARIABLE}")
    parser.add_argument("--text", help="folder of the text, where it is another")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", choices=list(GLUE), default=["CoLA", "SST-2", "MRPC", "STS-B", "RTE"])
    parser.add_argument("--model", choices=list(ROBERTAS), default="roberta-small")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1024, 4096], help="of the pre-training")
    parser.add_argument("--epochs", type=float, default=40, help="of the pre-training")
    parser.add_argument("--vocabulary", type=int, default=16_384, help="tokens of the BPE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--grid", choices=["paper", "small"], default="paper", help="of the fine-tunings")
    parser.add_argument("--minutes", type=float, help="stop after that time")
    parser.add_argument("--smoke", action="store_true", help="tiny nets on generated data")
    args = parser.parse_args(argv)
    runs = args.runs or Path("build/smoke" if args.smoke else ".") / "runs" / args.out.name
    command = " ".join(["python", "experiments/glue.py", *(sys.argv[1:] if argv is None else argv)])
    with tempfile.TemporaryDirectory() as temporary:
        if args.smoke:
            generated(Path(temporary))
            plan = Plan(
                from_text(chain(10, 1500, 0.95), name="chain"), Path(temporary), ("CoLA", "MRPC", "STS-B"),
                "roberta-tiny", 18, (4, 8), 2, 1, _smoke_points, args.device, True,
            )  # fmt: skip
        else:
            folder = args.data or os.environ.get(VARIABLE)
            if not folder:
                raise ValueError(
                    f"the folder of the data is needed: give --data, or the environment variable {VARIABLE}"
                )
            tokens = tokenise(corpus(args.text or folder), "bpe", args.vocabulary)
            plan = Plan(
                tokens, Path(folder), tuple(args.tasks), args.model, 128, tuple(args.batch_sizes), args.epochs,
                args.seeds, _small_points if args.grid == "small" else _paper_points, args.device,
            )  # fmt: skip
        return 0 if run_all(plan, args.out, runs, command, args.minutes) else 3


def _paper_points(task: str) -> list[Point]:
    return GLUE[task].grid()


def _small_points(task: str) -> list[Point]:
    return [Point(32, eta, 3) for eta in (3e-5, 8e-5)]


def _smoke_points(task: str) -> list[Point]:
    return [Point(16, eta, 5) for eta in (3e-3, 1e-2)]


def script(options: Options, out: Path, runs: Path, minutes: float | None) -> bool:
    """The program, as `rootscale reproduce` calls it."""
    return main(["--out", str(out), "--device", options.device, *(["--smoke"] if options.smoke else [])]) == 0


EXPERIMENTS = [
    Experiment(
        name="glue",
        title="GLUE after pre-training at several batch sizes",
        claim="Fine-tuned models do about as well on every task, whatever the batch size of the pre-training",
        source="Appendix, Square Root Scaling Experiments, table of downstream performance",
        minutes=600,
        defaults=Options(batch_sizes=(), seeds=1),
        script=script,
        stored=stored,
    )
]


if __name__ == "__main__":
    sys.exit(main())
