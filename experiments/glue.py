"""Do models that were pre-trained at several batch sizes under the rule do equally well on GLUE?

Claim. "Fine-tuned models do about as well on every task, whatever the batch size of the pre-training": RoBERTa-large
pre-trained at B = 1,024 to 8,192, in the best of a grid of fine-tunings (appendix, "Square Root Scaling Experiments",
table of downstream performance). Fixed before it was run again: scores do not depend on the batch size of the
pre-training; contradicted if one differs by more than the range over seeds; only if the pre-trained models beat one
answer for all.

Protocol. The models of the setting `roberta` of language_scaling.py under the rule. Fine-tuning follows the appendix's
tables: betas .9 and .98, eps 1e-6, weight decay .1, dropout .1, warm-up over 6 % and linear decay to 0; inputs of at
most 128 tokens. The small grid has batch size 32, two learning rates and 3 epochs; `--grid paper` is the appendix's.
Scores are those of the dev sets. The paper's models saw 94 million sequences and 16 GB of text: compare the spread over
batch sizes, not the height.

Cost. The small grid on five tasks, 30 fine-tunings: 8 minutes in five processes on one H200. The paper's grid is 12
times that.

Finding. One seed. On three tasks of five the models are at chance, where nothing could differ; on SST-2 and STS-B the
best scores differ by .017 and .041 (the dev set of RTE alone makes a standard error of .030).

    rootscale study experiments/language_scaling.py --setting roberta --device cuda --data FOLDER
    rootscale study experiments/glue.py --device cuda --data FOLDER
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from glue_data import GLUE, Models, Point, available, fine_tuning, generate
from language_models import Setting
from language_scaling import SETTINGS
from language_scaling import study as pretraining
from results import Claim

from rootscale.lab import Arm, Judge, Measure, Settings, Setup, Store, Study, Table, Task
from rootscale.lab.data import data_folder
from rootscale.verdict import Absolute

GROUP = "paper"
CLAIM = "After pre-training at several batch sizes under the rule, the best fine-tuned models do equally well"
SMALL = [Point(32, eta, 3) for eta in (3e-5, 8e-5)]
#: Fine-tunings of more steps than this are worth a CUDA graph and its compilation.
LONG = 5000
#: A difference of scores that says nothing: the standard error that the smallest dev set alone makes.
LIMIT = 0.03
#: A model has learned something where it is so much above the score of one answer for all.
LEARNED = 0.1


def pretrained(setting: Setting, data: str, folder: Path, seeds: int) -> dict[int, Models]:
    """Return the stored models of a pre-training under the rule, by batch size and seed."""
    study, store = pretraining(setting, data), Store(folder / "runs", keep_models=True)
    models: dict[int, Models] = {}
    for size, arm in zip(setting.sizes, study.arms, strict=False):
        models[size] = store.models(store.want(study.specs[arm.label], range(seeds)))
        missing = [seed for seed in range(seeds) if seed not in models[size]]
        if missing:
            raise ValueError(
                f"{folder} has no model that was pre-trained at {arm.label}, seed {missing[0]}: first run `rootscale "
                "study experiments/language_scaling.py --setting roberta` with the same seeds and data"
            )
    return models


def settings(task: Task, device: str, smoke: bool) -> Settings:
    """Return the settings of a fine-tuning: only its end is measured."""
    cuda, steps = device.startswith("cuda"), task.plan.total_steps or 0
    setup = Setup(device, None if smoke else 256, cuda, cuda and steps > LONG, replacement=False, max_loss=1e3)
    return Settings((int(task.plan.samples or 0),), 0, Measure(1, eval_samples=256, noise=False), setup)


def studies(
    grid: str = "small", seeds: int = 1, pretraining: str = "", data: str = "", device: str = "cpu", smoke: bool = False
) -> list[Study]:
    """Return a study of every task whose files are there, at every point of its grid, ``small`` or ``paper``."""
    if grid not in ("small", "paper"):
        raise ValueError(f"--grid must be small or paper, got {grid!r}")
    setting = SETTINGS["roberta"].small() if smoke else SETTINGS["roberta"]
    runs = Path(pretraining or ("build/smoke" if smoke else "runs")) / setting.name
    models, vocabulary, found = pretrained(setting, data, runs, seeds), setting.tokens(data).vocabulary, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if smoke else data_folder(data or None, "GLUE")
        if smoke:
            generate(folder)
        for name in available(folder):
            for point in [Point(16, 1e-2, 1)] if smoke else SMALL if grid == "small" else GLUE[name].grid():
                arms = []
                for size, stored in models.items():
                    task = fine_tuning(
                        name, folder, vocabulary, point, model=setting.model, models=stored, positions=setting.length
                    )
                    fields = {"task": name, "pretrained_at": size, **vars(point)}
                    arms.append(Arm(f"pre-trained at B = {size}", task, factors=fields))
                judge = Judge(Absolute(LIMIT), decide_by=(GLUE[name].metric,), over="end")
                title = f"{name}, batch {point.batch_size}, learning rate {point.eta:g}, {point.epochs} epochs: {CLAIM}"
                study = f"glue-{name}-{point.batch_size}-{point.eta:g}-{point.epochs}"
                own = settings(task, device, smoke)
                found.append(Study(study, arms, title, seeds, own, judge=judge, keeps=(GLUE[name].metric,)))
    return found


def best(results: Path) -> dict[str, dict[int, float]]:
    """Return the best score of the grid, in the mean over seeds, by task and batch size of the pre-training."""
    scores: dict[tuple[str, int, int], float] = {}
    for path in sorted(results.glob("glue-*.npz")):
        table = Table.load(path)
        for arm in (table.base, *table.others):
            name, size = arm.factors["task"], arm.factors["pretrained_at"]
            ends = arm.trajectory.values[GLUE[name].metric][:, -1]
            for seed, score in zip(arm.trajectory.meta["seeds"], ends, strict=True):
                if math.isfinite(score):
                    scores[name, size, seed] = max(float(score), scores.get((name, size, seed), -math.inf))
    found: dict[str, dict[int, list[float]]] = {}
    for (name, size, _), score in sorted(scores.items()):
        found.setdefault(name, {}).setdefault(size, []).append(score)
    return {name: {size: fmean(found[name][size]) for size in found[name]} for name in GLUE if name in found}


def at_chance(scores: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the tasks on which no model is clearly above one answer for all."""
    floors = {name: GLUE[name].majority for name in scores}
    return [
        name for name, floor in floors.items() if floor is not None and max(scores[name].values()) < floor + LEARNED
    ]


def claims(results: Path) -> list[Claim]:
    """Return the row of the table of claims: how far the best scores of the batch sizes lie apart."""
    command, scores = "`rootscale study experiments/glue.py`", best(results)
    if not scores:
        return [Claim(CLAIM, "**not run**", "", "", command)]
    apart = ", ".join(f"{name} {max(row.values()) - min(row.values()):.3f}" for name, row in scores.items())
    sizes = ", ".join(str(size) for size in next(iter(scores.values())))
    chance = f"; at chance, and so without a meaning: {', '.join(at_chance(scores))}" if at_chance(scores) else ""
    text = f"**not judged**: the best scores after pre-training at B = {sizes} lie apart by {apart}{chance}"
    first = next(iter(sorted(results.glob("glue-*.npz"))))
    return [Claim(CLAIM, text, str(Table.load(first).base.trajectory.replicas), first.name, command)]


STUDY = studies
