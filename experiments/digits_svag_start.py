"""Where SVAG starts: at the beginning, or in mid-run. On scikit-learn's digits, with RMSprop and Adam.

Claim. SVAG follows the discrete run from a state in mid-run, but not from the very start of a short run, where the
second moment is filling up and the gradient exceeds the noise. The theorems fix a second moment above zero to start
from, and are for runs in which the noise dominates.

Protocol. An MLP at B = 16, 400 steps with a warm-up of 8, nearly as many as those of cifar10_svag.py; lr 1e-3, betas
.999; ell = 2 and 4, from the first step or from step 200 on. 16 seeds. The verdict rests on the train loss.

Cost. A minute on a core of a CPU.

Finding. As claimed, but for Adam with ell = 4 in mid-run, which lies on the tolerance (results/README.md, n = 16).

    rootscale study experiments/digits_svag_start.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from switches import KEEPS

from rootscale import Adam, BatchSize, Plan, RMSprop, Schedule
from rootscale.format import show
from rootscale.lab import Arm, Judge, Measure, Settings, Study, Variant, grid
from rootscale.lab.tasks import digits

OPTIMIZERS: Mapping[str, Adam | RMSprop] = {"rmsprop": RMSprop(1e-3, 0.999), "adam": Adam(1e-3, 0.999, 0.999)}
BATCH, STEPS, WARMUP, POINTS, ELLS = 16, 400, 8, 20, (2.0, 4.0)
STARTS = {"the beginning": 0, "mid-run": STEPS // 2 * BATCH}


def study(optimizer: str, start: str) -> Study:
    """Return the discrete run and SVAG."""
    plan = Plan(OPTIMIZERS[optimizer], BatchSize(BATCH), steps=STEPS, schedule=Schedule("constant", warmup=WARMUP))
    task, at = replace(digits(), plan=plan), STARTS[start]
    measure = Measure(POINTS, eval_samples=2048, noise=False)
    settings = Settings(grid(STEPS * BATCH, POINTS, at, [BATCH]), at, measure)
    arms = [Arm("discrete (ℓ = 1)", task), *(Arm(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in ELLS)]
    claim = f"digits, {optimizer}: SVAG has the train loss of the discrete run, from {start} on"
    name = f"digits-svag-{optimizer}-{start.removeprefix('the ')}"
    return Study(name, arms, claim, 16, settings, judge=Judge(decide_by=("train loss",)), keeps=KEEPS)


def studies(optimizer: str = "") -> list[Study]:
    """Return the studies of one optimizer, or of both, from both starts."""
    return [study(name, start) for name in ([optimizer] if optimizer else OPTIMIZERS) for start in STARTS]


STUDY = studies
