"""Which numbers for more tokens? Published rules against a sweep, on a tiny GPT at 1, 2 and 4 times the tokens.

Claim. Fixed before it was run: at 2 and at 4 times the tokens, no published rule (`rootscale.horizon.HORIZONS`) ends
more than 0.01 nats (test loss) above the best learning rate of the sweep with the decay kept, and the rules that lower the
learning rate (marin, completed-p) are nearer to the best of the sweep than those that keep it (timescale, power-lines,
nanochat).

Protocol. A GPT of 2 layers and width 32 on the bytes of enwik8, sequences of 32; AdamW with betas .9 and .95 and weight
decay .1, B = 16, warm-up over 5 % of the run and a cosine to 0. The horizons are 65,536, 131,072 and 262,144 sequences
(2.1, 4.2 and 8.4 million tokens). At each: the learning rates of `RATES` with the decay kept, from which the best one at
the first horizon is what every rule starts from; then, at the second and third, each rule's numbers from that best one.
Seeds 0 to 3; the same seed draws the same start and the same samples. Judged by the test loss at the end, on 2,048
sequences. The batch size is not changed, so that only the tokens are.

Cost. About 40 minutes of one core for all three.

    rootscale study experiments/horizon.py --results results --data FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from language_models import enwik8_gpt

from rootscale import AdamW, Plan, Schedule
from rootscale.compare import Table
from rootscale.horizon import horizons
from rootscale.lab import Arm, Measure, Settings, Study, Task, grid

#: Sequences of a run at each horizon.
LENGTHS: Mapping[int, int] = {1: 65_536, 2: 131_072, 4: 262_144}
#: Learning rates that are tried at every horizon.
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
#: The best of them at the first horizon, as a short try said before any run was stored (`best_rate` has it from the runs).
BEST = 4e-3
SIZE, SEQUENCE = 16, 32
SEEDS = 4


def plan_of(samples: int, rate: float = BEST) -> Plan:
    """Return the run of so many sequences at a learning rate."""
    steps = Fraction(samples, SIZE)
    schedule = Schedule("cosine", warmup=steps / 20)
    optimizer = AdamW(rate, 0.9, 0.95, weight_decay=0.1)
    return Plan(optimizer, SIZE, steps=steps, schedule=schedule, sequence_length=SEQUENCE)


def plans(times: int) -> dict[str, Plan]:
    """Return the plan of every arm at a horizon, by label; the first is the base's."""
    found = {f"lr {rate:g}, decay kept": plan_of(LENGTHS[times], rate) for rate in (BEST, *RATES)}
    if times == 1:
        return found
    start = plan_of(LENGTHS[1])
    rules = horizons(start, None, f"{LENGTHS[times]} samples")
    return found | {row.name: row.plan for row in rules.rows}


def study(times: int, data: str = "", smoke: bool = False) -> Study:
    """Return the arms at one horizon."""
    made = enwik8_gpt("horizon", lambda windows: plan_of(LENGTHS[times]), "gpt-tiny", SEQUENCE, data, smoke)
    total = LENGTHS[times]
    settings = Settings(grid(total, 8, 0, [SIZE]), 0, Measure(8, eval_samples=2048, noise=False))
    arms = [Arm(label, _task(made, plan, label), factors={"horizon": times}) for label, plan in plans(times).items()]
    claim = f"A tiny GPT at {times} times the tokens: a sweep of learning rates, and published rules"
    if smoke:
        settings = replace(settings, grid=settings.grid[:2])
    return Study(f"horizon-{times}", arms, claim, SEEDS, settings, keeps=("test loss", "train loss"))


def _task(task: Task, plan: Plan, label: str) -> Task:
    return replace(task, name=f"horizon-{label.replace(' ', '-').replace(',', '')}", plan=plan)


def studies(times: int = 0, data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one horizon, or of all."""
    return [study(one, data, smoke) for one in ([times] if times else LENGTHS)]


STUDY = studies
