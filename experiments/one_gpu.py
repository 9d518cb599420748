"""Can a recipe for a large batch be run on one GPU without accumulation?

Claim. Not in the paper. A recipe for a batch of 512, converted to 8 sequences (kappa = 1/64), needs no accumulation and
ends at the same validation loss within .01 nats, or at a lower one. Fixed before it was run: seeds 0 to 3, paired;
contradicted if the loss is higher by more.

Protocol. Net, text and length of sooner.py. The learning rate for 512 is the best of four, each tried over a whole run
with seed 0 (`--tune`). Rivals: the same batch accumulated in 64 micro-batches of 8, one seed, for seconds and memory;
and the rule of Marek et al. (arXiv 2507.07101) for a small batch: beta2's half-life in tokens, beta1 kept, no weight
decay, with the learning rate kept or divided by 3.

Cost. 6 minutes on one H200.

Finding. Converted, it ends .33 nats lower (n = 4): it takes 64 times the steps, and those of 512 are too few. The rule
of Marek et al. with a third of the learning rate ends lower still. Seed 0, with which 512 was tuned, turned out to be
the best of its four seeds, so that the base is less sure than it looked.

    rootscale study experiments/one_gpu.py --tune --device cuda --data FOLDER
    rootscale study experiments/one_gpu.py --device cuda --data FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from drawing import Figure
from results import Claim, rows, stored
from sooner import KEEPS, LOSS_ONLY, TOTAL, TRIED_LONG, gpt, settings, timed, tuning, with_seconds

from rootscale import AdamW
from rootscale.lab import Arm, Study, Task, Variant

#: By how much Marek et al. lower the learning rate for the smallest batch (2e-4 to 6.7e-5, GPT-3 XL, 512 to 1).
MAREK = 3.0
CLAIMS = {
    "one-gpu": "GPT, 33.6 M tokens: a recipe for B = 512, converted to 8, ends at the same loss or lower",
    "one-gpu-lr": "The best learning rate at B = 512, over the whole run",
}


def marek(task: Task, size: int, lower: float) -> Task:
    """Return a task at a smaller batch size by the rule of Marek et al., with its learning rate divided by a number."""
    converted, kappa = task.plan.convert(size, "none").plan, Fraction(size, int(task.plan.batch_size.total))
    adam = converted.optimizer
    assert isinstance(adam, AdamW)
    optimizer = replace(adam, eta=adam.eta / lower, beta2=adam.beta2 ** float(kappa), weight_decay=0.0)
    return replace(task, name=f"{task.name}-marek-{lower:g}", plan=replace(converted, optimizer=optimizer))


def one_gpu(data: str = "", smoke: bool = False) -> Study:
    """Return the study: the large batch, and what becomes of its recipe on one GPU."""
    size, most = (4, 16) if smoke else (8, 512)
    task = gpt("one-gpu", most, data, smoke)
    common = settings(task, [size, most], 16, smoke)
    parts = replace(common, setup=replace(common.setup, micro=size))
    arms = [
        Arm(f"B = {most}, at once", task),
        Arm(f"B = {most}, accumulated", task, factors={"form": "accumulated"}, settings=parts),
        Arm(f"B = {size}, converted", task, Variant(Fraction(size, most))),
        Arm(
            f"B = {size}, Marek et al., learning rate / {MAREK:g}",
            marek(task, size, MAREK),
            factors={"form": "Marek / 3"},
        ),
        Arm(f"B = {size}, Marek et al., learning rate kept", marek(task, size, 1.0), factors={"form": "Marek"}),
    ]
    return Study("one-gpu", arms, CLAIMS["one-gpu"], 4, common, judge=LOSS_ONLY, keeps=KEEPS)


def studies(tune: bool = False, data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study, or that by which its learning rate was chosen."""
    if not tune:
        return [one_gpu(data, smoke)]
    return [tuning("one-gpu-lr", CLAIMS["one-gpu-lr"], {512: TRIED_LONG[512]}, TOTAL, data, smoke)]


def figures(results: Path) -> dict[str, Figure]:
    """Return the figure of the README."""
    table = stored(results, "one-gpu")
    return {} if table is None else {"one-gpu": timed(table, "A recipe for a batch of 512, on a GPU that holds 8")}


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims."""
    first, *others = rows("one_gpu", CLAIMS, results)
    return [with_seconds(first, results), *others]


STUDY = studies
