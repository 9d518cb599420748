"""The same model, sooner: what does a batch that grows during the run save, and what does it cost?

Claim. Not in the paper. A batch that grows with the measured noise, everything converted, ends at the same validation
loss as the small batch that it starts with, within .01 nats, in fewer steps and seconds. Fixed before it was run:
seeds 0 to 3, paired; contradicted if the loss is higher by more.

Protocol. A GPT of 6 layers and width 512 on the bytes of enwik8, sequences of 128, no dropout; AdamW with betas .9 and
.95 and weight decay .1, a warm-up of 5 % and a cosine to 0. All arms see the same 33.6 million tokens. The learning
rate of each batch size was tuned first: at 8 over an eighth of the tokens, at 128 over the whole run (`--tune`), one
seed. The stages of the batch that grows come from the noise along the base's own runs (`grown`). Rivals: the batch
raised instead of the learning rate's decay; Seesaw (arXiv 2510.14717), which divides the learning rate by sqrt(2) and
doubles the batch where the cosine has halved; the same stages with the learning rate alone; and B = 128 throughout.

Cost. 15 minutes on one H200. Seconds are those of a seed that had the GPU for itself, so that seed 0 is made first.

Finding. n = 4: all ways of growing end at the same loss; grown by the noise in 46 % of the seconds and 29 % of the
steps. The learning rate alone ends as low. The base is not the best small batch: one_gpu.py has a better one.

    rootscale study experiments/sooner.py --tune --device cuda --data FOLDER
    rootscale study experiments/sooner.py --seeds 1 --device cuda --data FOLDER
    rootscale study experiments/sooner.py --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from drawing import Bar, Figure, bars
from language_models import enwik8_gpt, spaced
from results import Claim, rows, stored

from rootscale import AdamW, BatchSize, Plan, Schedule
from rootscale.format import plus_minus
from rootscale.lab import Arm, Judge, Result, Settings, Study, Table, Task, Variant
from rootscale.noise import noise_of
from rootscale.training import BatchSchedule
from rootscale.trajectory import Trajectory
from rootscale.verdict import Absolute

__all__ = ["LOSS_ONLY", "RATES", "Way", "grown", "timed", "tuning", "ways", "with_seconds"]

#: Sequences of a run, and of the shorter runs by which the learning rate of small batches is tuned.
TOTAL, SHORT = 262_144, 49_152
#: Nats by which a final loss may differ from the base's; the number of seeds was fixed before.
LOSS_ONLY = Judge(Absolute(0.01), decide_by=("test loss",), looks="once", over="end")
#: Learning rates that are tried at each batch size over an eighth of the tokens, and over all of them, since an eighth
#: has too few steps of a large batch; and the best of them.
TRIED: Mapping[int, tuple[float, ...]] = {
    8: (2e-4, 4e-4, 8e-4, 1.6e-3), 128: (5e-4, 1e-3, 2e-3, 4e-3), 512: (1e-3, 2e-3, 4e-3, 8e-3),
}  # fmt: skip
TRIED_LONG: Mapping[int, tuple[float, ...]] = {128: (5e-4, 1e-3, 2e-3), 512: (5e-4, 1e-3, 2e-3, 4e-3)}
RATES: Mapping[int, float] = {8: 4e-4, 128: 1e-3, 512: 1e-3}
#: Samples from which on the batch has grown to a size, as the noise of the base's runs said.
GROWN: tuple[tuple[int, int], ...] = ((0, 8), (43_648, 16), (54_656, 32), (98_304, 64), (174_720, 128))
WARMUP = Fraction(1, 20)
#: Points of a run whose noise is taken together, as a window of steps is.
WINDOW = 3


def plan(windows: int, samples: int, size: int, eta: float | None = None) -> Plan:
    """Return a run of so many samples at a batch size, with the best learning rate or another."""
    optimizer = AdamW(RATES.get(size, 5e-3) if eta is None else eta, 0.9, 0.95, 1e-8, weight_decay=0.1)
    steps = Fraction(samples, size)
    return Plan(optimizer, BatchSize(size), steps=steps, schedule=Schedule("cosine", warmup=steps * WARMUP))


def gpt(name: str, size: int, data: str, smoke: bool, samples: int = TOTAL, eta: float | None = None) -> Task:
    """Return the GPT at a batch size; a smoke test's sees 512 sequences."""
    return enwik8_gpt(
        name, partial(plan, samples=512 if smoke else samples, size=size, eta=eta), data=data, smoke=smoke
    )


def settings(task: Task, sizes: Sequence[int], points: int, smoke: bool) -> Settings:
    """Return what the runs have in common; the noise is measured along the base of runs that grow alone."""
    common = spaced(task, sizes, 4 if smoke else points, eval_samples=32 if smoke else 1024)
    return replace(common, measure=replace(common.measure, noise=False))


# -- batches that grow -------------------------------------------------------------------------------------------------


def grown(runs: Trajectory, start: int, most: int) -> BatchSchedule:
    """Return the schedule that doubles with the noise along runs of the base, as `rootscale.training.Grow` does online.

    At each point of the runs, the noise of all seeds at this point and those before it (`WINDOW` in all) decides.
    """
    schedule, samples = BatchSchedule([(0, start)]), runs.meta["samples"]
    trace, scale = runs.values["Tr Sigma"], runs.values["noise scale"]
    for last in range(1, len(samples) - 1):
        points = slice(max(1, last - WINDOW + 1), last + 1)
        pairs = np.stack([trace[:, points].ravel(), (trace / scale)[:, points].ravel()], 1)
        size = now = schedule.stages[-1][1]
        bound = min(noise_of(pairs).scale.low / 2, most) if len(pairs) > 1 else 0.0
        while 2 * size <= bound:
            size *= 2
        if size > now:
            schedule.extend(int(samples[last]), size)
    return schedule


def seesaw(base: Plan, most: int) -> tuple[Plan, BatchSchedule]:
    """Return Seesaw: a plan that halves its learning rate where the cosine has, and a batch that doubles there.

    The learning rate follows the batch by the square root, so that each stage divides it by sqrt(2); nothing else is
    converted. Beyond the largest batch the learning rate is halved alone.
    """
    size, steps, first = int(base.batch_size.total), [], int(base.schedule.warmup)
    total, peak = int(base.total_steps or 0), base.optimizer.eta
    for k in range(1, 9):
        low, high = first, total
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if base.learning_rate(middle) <= peak / 2**k else (middle + 1, high)
        if low >= total:
            break
        steps.append(first := low)
    places = list(dict.fromkeys(round(step * size / most) * most for step in steps))  # two may meet in a short run
    halved = Schedule("multistep", warmup=base.schedule.warmup, milestones=[at // size for at in places], gamma=0.5)
    stages = [(at, size * 2**i) for i, at in enumerate(places, 1) if size * 2**i <= most]
    return replace(base, schedule=halved), BatchSchedule([(0, size), *stages])


def ramp(schedule: BatchSchedule, rule: str | None = None) -> Variant:
    """Return a schedule of batch sizes as a variant of the plan of its first one."""
    (_, first), *later = schedule.stages
    return Variant(1, rule, ramp=tuple((at, Fraction(size, first)) for at, size in later))


def sooner(data: str = "", smoke: bool = False) -> Study:
    """Return the study: the small batch, and every way to grow it."""
    size, most = (4, 16) if smoke else (8, 128)
    task = gpt("sooner", size, data, smoke)
    common = settings(task, [size, most], 24, smoke)
    noise = BatchSchedule([(0, size), (8 * most, most)] if smoke else GROWN)
    raised = BatchSchedule.instead_of_decay(task.plan, most=most)
    raised = BatchSchedule([(round(at / most) * most, batch) for at, batch in raised.stages])
    halved, stages = seesaw(task.plan, most)
    arms = [
        Arm(f"B = {size} kept", task, settings=replace(common, measure=replace(common.measure, noise=True))),
        Arm("grown by the noise, converted", task, ramp(noise)),
        Arm("raised instead of the decay, converted", task, ramp(raised)),
        Arm("Seesaw", replace(task, name="sooner-seesaw", plan=halved), ramp(stages, "sqrt-eta")),
        Arm("grown by the noise, learning rate only", task, ramp(noise, "sqrt-eta")),
        Arm(f"B = {most} from the start, tuned", gpt("sooner-large", most, data, smoke), factors={"form": "tuned"}),
    ]
    return Study(
        "sooner", arms, CLAIMS["sooner"], 4, common, judge=LOSS_ONLY, keeps=(*KEEPS, "noise scale", "Tr Sigma")
    )


def tuning(
    name: str, claim: str, tried: Mapping[int, tuple[float, ...]], samples: int, data: str = "", smoke: bool = False
) -> Study:
    """Return every learning rate at every batch size; the best of the smallest first."""
    tried = {4: (5e-3, 1e-2)} if smoke else tried
    rates = [(size, rate) for size, some in tried.items() for rate in some]
    best = (min(tried), RATES.get(min(tried)))
    rates.sort(key=lambda pair: pair != best)
    arms = [
        Arm(f"B = {size}, learning rate {rate:g}", gpt(f"sooner-{size}-lr-{rate:g}", size, data, smoke, samples, rate),
            factors={"batch_size": size, "eta": rate})
        for size, rate in rates
    ]  # fmt: skip
    common = settings(arms[0].run, [min(tried), max(tried)], 2, smoke)  # type: ignore[arg-type]
    return Study(name, arms, claim, 1, common, judge=LOSS_ONLY, keeps=KEEPS)


#: The test functions that the tables hold.
KEEPS = ("train loss", "test loss", "test accuracy")
CLAIMS = {
    "sooner": "GPT, 33.6 M tokens: a batch that grows with the measured noise ends at the same loss, sooner",
    "sooner-lr": "The best learning rate at each batch size, over an eighth of the tokens",
    "sooner-large-lr": "The best learning rate at B = 128, over the whole run",
}


def studies(tune: bool = False, data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study, or those by which its learning rates were chosen."""
    if not tune:
        return [sooner(data, smoke)]
    runs = {"sooner-lr": (TRIED, SHORT), "sooner-large-lr": ({128: TRIED_LONG[128]}, TOTAL)}
    return [tuning(name, CLAIMS[name], tried, samples, data, smoke) for name, (tried, samples) in runs.items()]


# -- seconds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """What an arm took.

    Args:
        arm: with its runs.
        steps: of one run.
        seconds: of training, of the seed that was alone on the GPU, without measuring and compiling; where no seed of
            the arm was, those of an arm with the same steps; None where there is none.
    """

    arm: Result
    steps: int
    seconds: float | None


def ways(table: Table) -> list[Way]:
    """Return what each arm took, the base first."""
    found = []
    for arm in (table.base, *table.others):
        runs = arm.trajectory.meta["runs"]
        alone = (run["seconds"] - run["measuring"] - run["settling"] for run in runs if len(run["seeds"]) == 1)
        found.append(Way(arm, max(run["steps"] for run in runs), next(alone, None)))
    timed = {way.steps: way.seconds for way in found if way.seconds is not None}
    return [way if way.seconds is not None else replace(way, seconds=timed.get(way.steps)) for way in found]


def with_seconds(row: Claim, results: Path) -> Claim:
    """Return a row of the table of claims with the share of the base's steps and seconds."""
    if not row.data:
        return row
    base, *others = ways(Table.load(results / row.data))
    parts = [f"{way.arm.label} {way.steps / base.steps:.3g}" + _share(way, base) for way in others]
    return row._replace(outcome=f"{row.outcome}<br>Share of the base's steps (and seconds): {'; '.join(parts)}")


def _share(way: Way, base: Way) -> str:
    return f" ({way.seconds / base.seconds:.2f})" if way.seconds and base.seconds else ""


def timed(table: Table, title: str) -> Figure:
    """Return the seconds of all arms, with the difference of the loss at the end and the steps."""
    rows = []
    for way in ways(table):
        comparison, steps = way.arm.comparison, f"{way.steps:,} steps"
        last = way.arm.trajectory.values["test loss"][:, -1]
        if comparison is None:
            error = float(last.std(ddof=1)) / len(last) ** 0.5 if len(last) > 1 else None
            note, kind = f"loss {plus_minus(float(last.mean()), error, 3)}, {steps}", "base"
        else:
            gap = comparison.gaps["test loss"]
            end, se = float(gap.gap[-1]) * gap.range, float(gap.se[-1]) * gap.range
            note = f"loss {plus_minus(end, se if np.isfinite(se) else None, 3, '+')}, {steps}"
            kind = way.arm.verdict or "not judged"
        if way.seconds is not None:
            rows.append(Bar(way.arm.label, way.seconds, note, kind))
    return bars(rows, "seconds of training, alone on one H200", title)


def figures(results: Path) -> dict[str, Figure]:
    """Return the figure of the README."""
    table = stored(results, "sooner")
    return {} if table is None else {"sooner": timed(table, "The same model, sooner (GPT, 33.6 M tokens)")}


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims."""
    first, *others = rows("sooner", CLAIMS, results)
    return [with_seconds(first, results), *others]


STUDY = studies
