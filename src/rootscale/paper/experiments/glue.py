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
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rootscale.files import whole, write_json
from rootscale.lab import Deadline
from rootscale.paper.data.layouts import data_folder
from rootscale.paper.experiment import Experiment, Options, Stored
from rootscale.paper.experiments.glue_page import at_chance, best, page, spreads
from rootscale.paper.experiments.glue_runs import PRETRAINING, Plan, Progress, paper_points, small_points
from rootscale.paper.language.glue_data import GLUE, Point, generated_glue, glue_file
from rootscale.paper.shown import Shown

_log = logging.getLogger(__name__)


def smoke_points(task: str) -> list[Point]:
    """Return what a smoke test runs."""
    return [Point(16, eta, 1) for eta in (3e-3, 1e-2)]


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
    if chance := at_chance(table):
        words += f"; at chance, and so without a meaning: {', '.join(chance)}"
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
        shown=Shown(
            differs="RoBERTa of 6 layers, pre-trained on enwik8 over 2 epochs, which does not learn these tasks",
            paper_setting=False,
            stands_for="" if name == "glue-grid" else "glue-grid",
        ),
    )


EXPERIMENTS = [
    _experiment("glue", "GLUE after pre-training at several batch sizes", 40, small_points),
    _experiment("glue-grid", "GLUE after pre-training at several batch sizes, the paper's grid", 600, paper_points),
]
