"""A tiny GPT from scratch at up to 64 times the batch: the rule, the learning rate alone, or nothing?

Claim. The paper trains a GPT from scratch at many batch sizes with close trajectories and ends within .1 nats. Fixed
before the runs were made: from scratch with the paper's warm-up and a linear decay, (1) at 4 and 16 times the batch the
end of the whole rule is within .1 nats of the base; (2) at 64 times, where 128 steps are left, neither the rule nor the
learning rate alone is; (3) the whole rule ends nearer than the learning rate alone at 16 and 64 times for betas .9 and
.999, and within two errors of it for .9 and .95.

Protocol. A GPT of two layers on the bytes of enwik8, B = 8 to 512, default floors, warm-up over 6 % of the run, then
linear decay to zero. Everything is converted, or the learning rate alone, or nothing. Seeds 0 to 7.

Cost. About twenty minutes on a core of a CPU for each pair of betas.

    rootscale study experiments/far_from_scratch.py --beta2 0.95
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from small_nets import KEEPS, NETS, base_and_null

from rootscale import Schedule
from rootscale.lab import Arm, Study, Variant
from rootscale.verdict import Absolute, Judge

RULES = {"sqrt": "the rule", "sqrt-eta": "learning rate only", "none": "nothing"}
#: The share of the run that is warm-up, as in the paper's recipe for language models.
SHARE = Fraction(6, 100)


def study(beta2: float) -> Study:
    """Return the base, its null, and three rules at each larger batch."""
    net = NETS["gpt"]
    task = net.task(
        f"gpt-scratch-{beta2:g}", (0.9, beta2), schedule=lambda steps: Schedule("linear", warmup=steps * SHARE)
    )
    arms = list(base_and_null(task))
    for size in net.sizes[1:]:
        for rule, name in RULES.items():
            variant = Variant(Fraction(size, net.sizes[0]), rule)
            arms.append(Arm(f"B = {size}, {name}", task, variant, {"form": name}))
    settings = net.settings(task, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=False))
    claim = f"{net.title}, betas .9 and {beta2:g}, from scratch at up to 64 times the batch"
    judge = Judge(tolerance=Absolute(0.1), over="end", decide_by=("test loss",))
    return Study(f"far-gpt-{beta2:g}", arms, claim, net.seeds, settings, judge=judge, keeps=KEEPS)


def studies(beta2: float = 0.0) -> list[Study]:
    """Return the study of one beta2, or of both."""
    return [study(one) for one in ([beta2] if beta2 else (0.999, 0.95))]


STUDY = studies
