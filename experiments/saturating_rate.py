"""Which learning rate beyond the noise scale: the square root, one that saturates, linear, or the one that was kept?

Claim. With ``b = B / B_noise`` the literature suggests ``lr * sqrt(kappa (1 + b) / (1 + kappa b))`` (arXiv 1812.06162,
in the form for Adam): the square root far below the noise scale, and constant far beyond it. Where the base rate is far
below its edge it loses to the square root. Fixed before the runs were made, where the base rate was tuned: (1) up to a
noise scale (kappa b of about 1) the ends of the square root and of the saturating rate differ by less than two errors;
(2) beyond five noise scales the saturating rate ends lower than the square root, the linear and the kept rate, each by
more than two errors, on both nets. It is offered as a choice only if (2) holds.

Protocol. A tiny GPT on enwik8 with betas .9, .95 from B = 8, and a conv net with BatchNorm on CIFAR-10 in 8 x 8 pixels
with betas .9, .999 from B = 16, both from scratch, the learning rate falling to zero after a warm-up of 2 %. The base
rate is the best of a row of factors 2 (``--tune``, with other seeds); the noise scale is the median over the middle
half of its runs, on 2,048 training samples. At larger batches everything but the learning rate follows the square root
rule with its default floors. Compared is the test loss at the end, after equal samples. Seeds 0 to 7.

Cost. About twenty minutes on a core of a CPU for the conv net, forty for the GPT.

    rootscale study experiments/saturating_rate.py --tune --results results
    rootscale study experiments/saturating_rate.py --net gpt --results results
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial

from small_nets import NETS, Net, at_rate, base_and_null, tuned, tuning

from rootscale import Adam, Schedule
from rootscale.lab import Arm, Study, Task, Variant
from rootscale.training.adapters import make_optimizer
from rootscale.verdict import Judge

RATES = ("square root", "saturating", "linear", "kept")


#: The optimizer and the batch sizes of each net; other learning rates are tried around this one.
CASES: Mapping[str, tuple[Adam, tuple[int, ...]]] = {
    "gpt": (Adam(4e-3, 0.9, 0.95), (8, 32, 128, 512, 1536)),
    "pictures": (Adam(8e-3, 0.9, 0.999), (16, 128, 512, 2048, 4096)),
}
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)


def factor(rate: str, kappa: float, b: float) -> float:
    """Return what a learning rate is multiplied by at kappa times a batch of b noise scales."""
    factors = {"square root": kappa, "saturating": kappa * (1 + b) / (1 + kappa * b), "linear": kappa**2, "kept": 1.0}
    return math.sqrt(factors[rate])


def task_of(net: str, rate: float | None = None) -> tuple[Net, Task]:
    """Return a net and its task, at a learning rate of its own or at that of `CASES`."""
    optimizer, sizes = CASES[net]
    chosen = replace(NETS[net], sizes=sizes)
    record = optimizer if rate is None else replace(optimizer, eta=rate)
    return chosen, chosen.task(
        f"rates-{net}", optimizer=record, schedule=lambda steps: Schedule("linear", warmup=Fraction(steps, 50))
    )


def study(net: str) -> Study:
    """Return the base, its null, and each rate at each larger batch."""
    rate, noise_scale = tuned(f"rates-{net}", "test loss")
    chosen, task = task_of(net, rate)
    arms, base = list(base_and_null(task)), chosen.sizes[0]
    for size in chosen.sizes[1:]:
        kappa = Fraction(size, base)
        for name in RATES:
            more = factor(name, float(kappa), base / noise_scale) / math.sqrt(kappa)
            own = replace(task, name=f"{task.name}-{more:.6g}", optimizer=partial(at_rate, make_optimizer, more))
            fields = {"rate": name, "noise scales": round(size / noise_scale, 2)}
            arms.append(Arm(f"B = {size}, {name}", own, Variant(kappa, "sqrt"), fields))
    settings = chosen.settings(task, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=False, reestimate=False))
    claim = f"{chosen.title}, tuned base rate, from scratch: which rate up to many noise scales"
    judge = Judge(over="end", decide_by=("test loss",))
    return Study(f"rates-{net}", arms, claim, 8, settings, judge=judge, keeps=("train loss", "test loss"))


def studies(net: str = "", tune: bool = False) -> list[Study]:
    """Return the study of one net, or of both; with ``tune`` those that find the base rates."""
    nets = [net] if net else list(CASES)
    return [tuning(f"rates-{one}", *task_of(one), FACTORS, noise=True) if tune else study(one) for one in nets]


STUDY = studies
