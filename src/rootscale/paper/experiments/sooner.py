"""The same model, sooner: what a batch size that changes saves of a run, and what it costs.

The question. A GPT is trained at a small batch size with a cosine. How much sooner is it there if the batch size grows
on the way, everything converted (`sooner`)? And can a recipe for a large batch be run on one GPU without accumulation
(`one-gpu`)? All arms of an experiment see the same number of tokens; a model is *as good* where its loss is at most
`MARGIN` above the base's, by the upper end of the interval of paired differences.

Setting. A GPT of 6 layers and width 512 on the bytes of enwik8, sequences of 128, without dropout; AdamW with betas .9
and .95 and weight decay .1, a warm-up of 5 % of the run and a cosine to 0. Learning rates at each batch size are tuned
first over an eighth of the tokens (`sooner-lr`), for the base and for its rivals alike. The stages of the batch that
grows come from the noise of the base's own runs (`grown`).

Cost. 15 minutes on one H200. Seconds are told of the seed that ran alone on the GPU, which is made first:

    rootscale reproduce sooner-lr --processes 4 --device cuda --data FOLDER
    rootscale reproduce sooner one-gpu --seeds 1 --device cuda --data FOLDER
    rootscale reproduce sooner one-gpu --together 4 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType

import numpy as np

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.format import show
from rootscale.lab import Settings, Task, Variant
from rootscale.noise import noise_of
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments.language_runs import sizes_of
from rootscale.paper.experiments.switch_lines import KEEPS, gpt_task
from rootscale.paper.finals import Final, format_end, format_gap
from rootscale.paper.parts import settings_for, setup_for
from rootscale.paper.shown import Point, Shown, Sweep
from rootscale.plan import Plan
from rootscale.schedule import Schedule
from rootscale.training import BatchSchedule
from rootscale.trajectory import Trajectory

__all__ = ["ARMS", "EXPERIMENTS", "GROWN", "MARGIN", "RATES", "RECIPES", "TRIED", "TRIED_LONG", "grown", "sooner_plan"]

#: Nats by which a final loss may exceed the base's.
MARGIN = 0.01
#: Learning rates that are tried at each batch size, and the best of them, which ``sooner-lr`` found.
TRIED: Mapping[int, tuple[float, ...]] = MappingProxyType(
    {8: (2e-4, 4e-4, 8e-4, 1.6e-3), 128: (5e-4, 1e-3, 2e-3, 4e-3), 512: (1e-3, 2e-3, 4e-3, 8e-3)}
)
#: Those that are tried over the whole length of a run, as an eighth has too few steps of a large batch.
TRIED_LONG: Mapping[int, tuple[float, ...]] = MappingProxyType({128: (5e-4, 1e-3, 2e-3), 512: (5e-4, 1e-3, 2e-3, 4e-3)})
RATES: Mapping[int, float] = MappingProxyType({8: 0.0004, 128: 0.001, 512: 0.001})
#: Samples from which on the batch has grown to a size, as the noise of the base's runs said.
GROWN: tuple[tuple[int, int], ...] = ((0, 8), (43648, 16), (54656, 32), (98304, 64), (174720, 128))
WARMUP = Fraction(1, 20)
#: Points of a run whose noise is taken together, as a window of steps is.
WINDOW = 3
#: By how much Marek et al. 2025 lower the learning rate for the smallest batch (2e-4 to 6.7e-5, GPT-3 XL, 512 to 1).
MAREK = 3.0


def sooner_plan(options: Options, samples: int, size: int, eta: float | None = None) -> Plan:
    """Return a run of so many samples at a batch size, with the best learning rate or another."""
    optimizer = hparams.AdamW(RATES.get(size, 5e-3) if eta is None else eta, 0.9, 0.95, options.eps, weight_decay=0.1)
    steps = Fraction(samples, size)
    return Plan(optimizer, BatchSize(size), steps=steps, schedule=Schedule("cosine", warmup=steps * WARMUP))


def _task(name: str, options: Options, size: int, eta: float | None = None) -> Task:
    """Return the GPT at a batch size; its length is that of the options, in whole steps of the largest batch."""
    largest = sizes_of(options)[-1]

    def plan(windows: int) -> Plan:
        return sooner_plan(options, round(options.epochs * windows / largest) * largest, size, eta)

    return gpt_task(name, options, plan)


# -- growing -----------------------------------------------------------------------------------------------------------


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


def _halvings(plan: Plan, number: int) -> list[int]:
    """Return the steps at which the learning rate of a plan has fallen to 1/2, 1/4, ... of its peak."""
    total, peak = int(plan.total_steps or 0), plan.optimizer.eta
    first, found = int(plan.schedule.warmup), []
    for k in range(1, number + 1):
        low, high = first, total
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if plan.learning_rate(middle) <= peak / 2**k else (middle + 1, high)
        if low >= total:
            break
        found.append(low)
        first = low
    return found


def _seesaw(plan: Plan, most: int) -> tuple[Plan, BatchSchedule]:
    """Return Seesaw (Meterez et al. 2025): where the cosine has halved, lr / sqrt(2) and twice the batch.

    It is written as a plan that halves its learning rate and a batch that doubles there, with the learning rate by the
    square root and nothing else. Beyond the largest batch the learning rate is halved alone.
    """
    size, steps = int(plan.batch_size.total), _halvings(plan, 8)
    places = list(dict.fromkeys(round(step * size / most) * most for step in steps))  # two may meet in a short run
    halved = Schedule("multistep", warmup=plan.schedule.warmup, milestones=[at // size for at in places], gamma=0.5)
    stages = [(at, size * 2 ** (i + 1)) for i, at in enumerate(places) if size * 2 ** (i + 1) <= most]
    return replace(plan, schedule=halved), BatchSchedule([(0, size), *stages])


def _ramp(schedule: BatchSchedule, rule: str | None = None) -> Variant:
    """Return a schedule of batch sizes as a variant of the plan of its first one."""
    (_, first), *others = schedule.stages
    return Variant(1, rule, ramp=tuple((at, Fraction(size, first)) for at, size in others))


def _whole(schedule: BatchSchedule, unit: int) -> BatchSchedule:
    """Return a schedule whose stages begin with whole steps of the largest batch."""
    return BatchSchedule([(round(at / unit) * unit, size) for at, size in schedule.stages])


# -- the arms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A way to train the model.

    Args:
        label: in legends.
        short: for the axis of a figure.
        make: makes task and variant, from the base's task, the options, and the smallest and largest batch.
        micro: whether a batch is accumulated in parts of the smallest one.
        timed_as: the label of an arm with the same steps, whose seconds it has where it never ran alone.
    """

    label: str
    short: str
    make: Callable[[Task, Options, int, int], tuple[Task, Variant]]
    micro: bool = False
    timed_as: str = ""


def _kept(task: Task, options: Options, size: int, most: int) -> tuple[Task, Variant]:
    return task, Variant()


def _by_noise(task: Task, options: Options, size: int, most: int, rule: str | None = None) -> tuple[Task, Variant]:
    stages = BatchSchedule(GROWN) if not options.smoke else BatchSchedule([(0, size), (8 * most, most)])
    return task, _ramp(stages, rule)


def _raised(task: Task, options: Options, size: int, most: int) -> tuple[Task, Variant]:
    return task, _ramp(_whole(BatchSchedule.instead_of_decay(task.plan, most=most), most))


def _as_seesaw(task: Task, options: Options, size: int, most: int) -> tuple[Task, Variant]:
    plan, schedule = _seesaw(task.plan, most)
    return replace(task, name=f"{task.name}-seesaw", plan=plan), _ramp(schedule, "sqrt-eta")


def _large(task: Task, options: Options, size: int, most: int) -> tuple[Task, Variant]:
    return _task(f"{task.name}-large", options, most), Variant()


#: The ways to the same model; the first is the base.
ARMS = (
    Result("B = 8 kept", "small batch", _kept),
    Result("grown by the noise, converted", "grown by the noise,\nconverted", _by_noise),
    Result("raised instead of the decay, converted", "raised instead of decay,\nconverted", _raised),
    Result("Seesaw", "Seesaw", _as_seesaw),
    Result(
        "grown by the noise, learning rate only",
        "grown by the noise,\nlearning rate only",
        partial(_by_noise, rule="sqrt-eta"),
        timed_as="grown by the noise, converted",
    ),
    Result("B = 128 from the start, tuned", "large batch,\nlearning rate tuned", _large),
)


def _converted(task: Task, options: Options, size: int, most: int) -> tuple[Task, Variant]:
    return task, Variant(Fraction(size, most))


def _marek(task: Task, options: Options, size: int, most: int, lower: float = 1.0) -> tuple[Task, Variant]:
    """Return the rule of Marek et al. 2025 for a smaller batch: beta2's half-life in tokens, beta1 kept.

    Weight decay is off, as in their runs at the smallest batch.
    """
    plan = task.plan.convert(size, "none").plan
    own = plan.optimizer
    assert isinstance(own, hparams.AdamW)
    new = replace(own, eta=own.eta / lower, beta2=own.beta2 ** (size / most), weight_decay=0.0)
    return replace(task, name=f"{task.name}-marek-{show(lower)}", plan=replace(plan, optimizer=new)), Variant()


#: A recipe for a large batch, and what becomes of it on one GPU; the first is the base.
RECIPES = (
    Result("B = 512, at once", "B = 512\nat once", _kept),
    Result("B = 512, accumulated", "B = 512,\n64 micro-batches of 8", _kept, micro=True),
    Result("B = 8, converted", "B = 8,\nconverted", _converted),
    Result(
        "B = 8, Marek et al., learning rate / 3",
        "B = 8, Marek et al.,\nlr / 3",
        partial(_marek, lower=MAREK),
        timed_as="B = 8, converted",
    ),
    Result(
        "B = 8, Marek et al., learning rate kept", "B = 8, Marek et al.,\nlr kept", _marek, timed_as="B = 8, converted"
    ),
)


def _lines(arms: Sequence[Result], down: bool, options: Options) -> tuple[list[Line], Settings]:
    """Return a line for every arm; the noise is measured along the base of the runs that grow."""
    sizes = sizes_of(options)
    size, most = sizes[0], sizes[-1]
    task = _task("one-gpu" if down else "sooner", options, most if down else size)
    settings = settings_for(options, task.plan, [size, most], eval_samples=1024)
    plain = replace(settings, measure=replace(settings.measure, noise=False))
    made: list[Line] = []
    for arm in arms:
        setup = setup_for(options, size) if arm.micro else None
        measure = settings.measure if not (down or made) else None
        made.append(Line(arm.label, *arm.make(task, options, size, most), setup=setup, measure=measure))
    return made, plain


def _tries(table: Mapping[int, tuple[float, ...]], options: Options) -> tuple[list[Line], Settings]:
    """Return every learning rate at every batch size of the options; the best of the smallest first."""
    sizes = sizes_of(options)
    tried = {sizes[0]: (5e-3, 1e-2)} if options.smoke else {size: table[size] for size in sizes}
    rates = [(size, rate) for size, some in tried.items() for rate in some]
    first = (sizes[0], RATES.get(sizes[0]))
    rates.sort(key=lambda row: row != first)
    made = [
        Line(f"B = {size}, learning rate {show(rate)}", _task(f"sooner-{size}-lr-{show(rate)}", options, size, rate))
        for size, rate in rates
    ]
    settings = settings_for(options, made[0].task.plan, [sizes[0], sizes[-1]], eval_samples=1024)
    return made, replace(settings, measure=replace(settings.measure, noise=False))


# -- words -------------------------------------------------------------------------------------------------------------


def _told(finals: Sequence[Final]) -> str:
    """Return where each arm ends, and its difference to the base."""
    base, *others = finals
    text = f"validation loss at the end: {base.label} {format_end('test loss', base.end('test loss'))}; less that: "
    return text + ", ".join(f"{final.label} {format_gap('test loss', final.end('test loss'))}" for final in others)


def _rates(finals: Sequence[Final]) -> Sweep:
    """Return the final loss over the learning rates that were tried, a line for each batch size."""
    ends = [(final.label.partition(", learning rate "), final.end("test loss")) for final in finals]
    points = [Point(size, float(rate), end.value, end.se) for (size, _, rate), end in ends if end.value is not None]
    return Sweep(points, "learning rate", "validation loss at the end, nats (ringed: the lowest)")


def _best(finals: Sequence[Final]) -> str:
    """Return the best learning rate at each batch size."""
    sweep = _rates(finals)
    best = [sweep.best(size) for size in sweep.series]
    told = [f"{one.series}: learning rate {show(one.number)} ({one.value:.4f})" for one in best]
    return f"the lowest validation loss at {'; '.join(told)}"


def _best_headline(finals: Sequence[Final]) -> str:
    """Return the same as a title."""
    sweep = _rates(finals)
    told = [f"{show(sweep.best(size).number)} at {size}" for size in sweep.series]
    return f"The best learning rate of those tried: {', '.join(told)}"


_TRIES = Shown(_best_headline, sweep=_rates, compares=False, brief=_best)
_MORE = {"measure": "test loss", "keeps": (*KEEPS, "Tr Sigma"), "models": ("gpt-4", "gpt")}
EXPERIMENTS = [
    Experiment(
        name="sooner",
        title="The same model, sooner",
        claim="Not in the paper. A batch that grows with the measured noise, everything converted, ends at the same "
        f"loss (within {MARGIN:g}) in fewer steps and seconds",
        source="section 5, with a batch size that changes",
        minutes=8,
        defaults=Options(epochs=262144 / 703124, batch_sizes=(8, 128), seeds=4, model="gpt-6", points=24),
        lines=partial(_lines, ARMS, False),
        words=_told,
        smoke={"epochs": 4, "batch_sizes": (1024, 4096)},
        **_MORE,  # type: ignore[arg-type]
    ),
    Experiment(
        name="one-gpu",
        title="A large-batch recipe on one GPU",
        claim="Not in the paper. A recipe for a batch of 512, converted to 8 sequences, needs no accumulation and ends "
        f"at the same loss (within {MARGIN:g}) or a lower one",
        source="section 5, with kappa = 1/64",
        minutes=6,
        defaults=Options(epochs=262144 / 703124, batch_sizes=(8, 512), seeds=4, model="gpt-6", points=16),
        lines=partial(_lines, RECIPES, True),
        words=_told,
        smoke={"epochs": 4, "batch_sizes": (1024, 4096)},
        **_MORE,  # type: ignore[arg-type]
    ),
    Experiment(
        name="sooner-lr",
        title="The same model, sooner: learning rates at each batch size",
        claim="Not in the paper. Which of some learning rates is the best over an eighth of the tokens",
        source="a choice that is made first",
        minutes=1,
        defaults=Options(epochs=49152 / 703124, batch_sizes=(8, 128, 512), model="gpt-6", points=2),
        lines=partial(_tries, TRIED),
        words=_best,
        shown=_TRIES,
        smoke={"epochs": 2, "batch_sizes": (1024, 4096)},
        **_MORE,  # type: ignore[arg-type]
    ),
    *(
        Experiment(
            name=f"{name}-lr",
            title=f"The same model, sooner: learning rates at B = {size}, over the whole run",
            claim="Not in the paper. Which of some learning rates is the best for a large batch",
            source="a choice that is made first",
            minutes=1,
            defaults=Options(epochs=samples / 703124, batch_sizes=(size,), model="gpt-6", points=2),
            lines=partial(_tries, TRIED_LONG),
            words=_best,
            shown=_TRIES,
            smoke={"epochs": 2, "batch_sizes": (1024,)},
            **_MORE,  # type: ignore[arg-type]
        )
        for name, size, samples in (("sooner-large", 128, 262144), ("one-gpu", 512, 262144))
    ),
]
