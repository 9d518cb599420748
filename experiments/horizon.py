"""Which numbers for more tokens? Published rules against a sweep, on a tiny GPT at 1, 2 and 4 times the tokens.

Claim. Fixed before it was run: at 2 and at 4 times the tokens, no published rule (`rootscale.horizon.HORIZONS`) ends
more than 0.01 nats (test loss) above the best learning rate of the sweep with the decay kept, and the rules that lower
the learning rate (marin, completed-p) are nearer to the best of the sweep than those that keep it (timescale,
power-lines, nanochat).

Protocol. A GPT of 2 layers and width 32 on the bytes of enwik8, sequences of 32; AdamW with betas .9 and .95 and weight
decay .1, B = 16, warm-up over 5 % of the run and a cosine to 0. The horizons are 65,536, 131,072 and 262,144 sequences
(2.1, 4.2 and 8.4 million tokens). At each: the learning rates of `RATES` with the decay kept. At the second and third
also each rule's numbers, from the learning rate that was best at the first (`best_rate`, read from its stored table, so
that the first is run first). Seeds 0 to 3; a seed draws the same start and the same samples in every arm of a horizon.
Judged by the test loss at the end, on 2,048 sequences. The batch size is not changed, so that only the tokens are.

Cost. About 40 minutes of one core for all three, in this order:

    rootscale study experiments/horizon.py --times 1 --results results --data FOLDER
    rootscale study experiments/horizon.py --times 2 --results results --data FOLDER
    rootscale study experiments/horizon.py --times 4 --results results --data FOLDER
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from results import Claim

from rootscale import AdamW, BatchSize, Plan, Schedule
from rootscale.compare import Table
from rootscale.horizon import horizons
from rootscale.lab import Arm, Measure, Settings, Study, Task, grid
from rootscale.stats import student_quantile

RESULTS = Path(__file__).parents[1] / "results"
#: Sequences of a run at each horizon.
LENGTHS: Mapping[int, int] = {1: 65_536, 2: 131_072, 4: 262_144}
#: Learning rates that are tried at every horizon.
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
SIZE, SEQUENCE = 16, 32
SEEDS = 4


def plan_of(samples: int, rate: float) -> Plan:
    """Return the run of so many sequences at a learning rate."""
    steps = Fraction(samples, SIZE)
    optimizer, schedule = AdamW(rate, 0.9, 0.95, weight_decay=0.1), Schedule("cosine", warmup=steps / 20)
    return Plan(optimizer, BatchSize(SIZE), steps=steps, schedule=schedule, sequence_length=SEQUENCE)


def finals(table: Table) -> dict[str, tuple[float, float]]:
    """Return the test loss at the end of each arm, with the half width of its 95 % interval over seeds."""
    found = {}
    for arm in (table.base, *table.others):
        values = arm.trajectory.values["test loss"][:, -1]
        half = student_quantile(len(values) - 1) * float(values.std(ddof=1)) / len(values) ** 0.5
        found[arm.label] = float(values.mean()), half
    return found


def best_rate(results: Path = RESULTS) -> float | None:
    """Return the learning rate that was best at the first horizon; None before that was run."""
    file = results / "horizon-1.npz"
    if not file.exists():
        return None
    ends = finals(Table.load(file))
    return min(RATES, key=lambda rate: ends[f"lr {rate:g}"][0])


def plans(times: int, best: float | None) -> dict[str, Plan]:
    """Return the plan of every arm at a horizon, by label; the first is the base's."""
    found = {f"lr {rate:g}": plan_of(LENGTHS[times], rate) for rate in RATES}
    if times == 1:
        return found
    if best is None:
        raise ValueError("the rules start from the best learning rate at the first horizon: run --times 1 first")
    rules = horizons(plan_of(LENGTHS[1], best), None, f"{LENGTHS[times]} samples")
    kept = f"lr {best:g}"
    return {kept: found[kept]} | found | {row.name: row.plan for row in rules.rows}


def study(times: int, data: str = "", smoke: bool = False, best: float | None = None) -> Study:
    """Return the arms at one horizon; the base keeps the numbers of the first."""
    from language_models import enwik8_gpt

    total, chosen = LENGTHS[times], plans(times, RATES[2] if smoke else best)
    first = next(iter(chosen.values()))
    task = enwik8_gpt("horizon", lambda windows: first, "gpt-tiny", SEQUENCE, data, smoke)
    settings = Settings(grid(total, 8, 0, [SIZE]), 0, Measure(8, eval_samples=2048, noise=False))
    if smoke:
        settings = replace(settings, grid=(0, 16 * SIZE))
    arms = [Arm(label, _task(task, label, plan), factors={"times": times}) for label, plan in chosen.items()]
    claim = f"A tiny GPT at {times} times the tokens: a sweep of learning rates, and published rules"
    return Study(f"horizon-{times}", arms, claim, SEEDS, settings, keeps=("test loss", "train loss"))


def _task(task: Task, label: str, plan: Plan) -> Task:
    return replace(task, name=f"horizon-{label.replace(' ', '-')}", plan=plan)


def studies(times: int = 0, data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one horizon, or of all that can be run."""
    best = best_rate()
    asked = [times] if times else [one for one in LENGTHS if one == 1 or best is not None or smoke]
    return [study(one, data, smoke, best) for one in asked]


STUDY = studies


def outcome(table: Table) -> str:
    """Return how far each rule ends above the best of the sweep, in nats."""
    ends = finals(table)
    sweep = {label: end for label, end in ends.items() if label.startswith("lr ")}
    best = min(sweep, key=lambda label: sweep[label][0])
    rules = [
        f"{label} {end - sweep[best][0]:+.4f} ± {half:.4f}" for label, (end, half) in ends.items() if label not in sweep
    ]
    others = [f"{label} {end - sweep[best][0]:+.4f}" for label, (end, _) in sweep.items() if label != best]
    return f"best of the sweep: {best}, test loss {sweep[best][0]:.4f}; {', '.join([*rules, *others])}"


def claims(results: Path) -> list[Claim]:
    """Return a row of the table of claims for each horizon."""
    found = []
    for times in LENGTHS:
        title = f"Tiny GPT at {times} times the tokens: published rules end at most 0.01 nats above the best of a sweep"
        title = "Tiny GPT: the best learning rate at the first number of tokens" if times == 1 else title
        command, file = f"`rootscale study experiments/horizon.py --times {times}`", f"horizon-{times}.npz"
        if (results / file).exists():
            table = Table.load(results / file)
            found.append(Claim(title, outcome(table), str(table.base.trajectory.replicas), file, command))
        else:
            found.append(Claim(title, "not run", "", "", command))
    return found
