"""The check of a task or of a training loop: studies with a name for what most people ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rootscale.compare.alignment import Alignment
from rootscale.format import show
from rootscale.lab.loop import Loop
from rootscale.lab.loop_runs import LoopSpec
from rootscale.lab.rounds import Rounds
from rootscale.lab.settings import SHARE, Measure, Settings, Setup, grid
from rootscale.lab.study import Arm, Study, need_seeds
from rootscale.lab.variant import Variant
from rootscale.verdict import Judge

if TYPE_CHECKING:
    from rootscale.compare.result import Table
    from rootscale.lab.execute import Execute
    from rootscale.lab.observe import Observer
    from rootscale.lab.store import Store
    from rootscale.lab.task import Task

_MEASURE, _SETUP, _JUDGE, _ALIGNMENT = Measure(share=SHARE), Setup(), Judge(), Alignment()


def check(
    task: Task | Loop,
    variants: Sequence[float | Fraction | Variant],
    *,
    seeds: int | Sequence[int] | Literal["auto"] = "auto",
    budget: float | None = None,
    switch_at: int | str | Path = 0,
    stop: int | None = None,
    measure: Measure = _MEASURE,
    setup: Setup = _SETUP,
    judge: Judge = _JUDGE,
    alignment: Alignment = _ALIGNMENT,
    execute: Execute | None = None,
    store: Store | str | Path | None = None,
    observe: Observer | None = None,
) -> Table:
    """Run a task, or a loop of your own, as it is and in other ways, and decide whether the runs are the same.

    ``check(task, [4, 16])`` compares the batch size of the base with 4 and 16 times as much.

    Args:
        task: what is learned; or a `Loop`, whose runs are compared by what they log.
        variants: what it is compared with; a number is a batch size over the base's, kappa.
        seeds: how many replicas of each run, or their seeds; ``"auto"`` adds seeds until all verdicts are decided
            (`rootscale.lab.rounds`).
        budget: seconds after which no more seeds are added.
        switch_at: samples seen before the switch in mid-run; 0 compares runs from scratch. Of a loop: the path of the
            checkpoint from which its runs start, in which ``{seed}`` stands for the seed.
        stop: samples seen at the end; None is the whole plan (of a loop, all that its runs have in common).
        measure: what is measured along the runs, by default a fifth of the work (`Measure.share`); of a loop,
            ``points`` is the most points that are compared.
        setup: how a task is trained.
        judge: what makes runs the same; of a loop, ``decide_by`` names what it logs, and None is all losses.
        alignment: of the logs of a loop: clock and smoothing.
        execute: what runs them; None is a process for each core, or this process where a GPU computes.
        store: the folder of the result, or a `Store`; its runs are in ``runs`` below it, so that a check that was
            stopped is resumed. None keeps nothing.
        observe: callbacks for progress and measurements, as for `Study.run`.
    """
    need_seeds(Rounds.of(seeds, budget).first)
    study = study_of(
        task, as_variants(variants), switch_at, stop, measure=measure, setup=setup, judge=judge, alignment=alignment
    )
    return replace(study, seeds=seeds).run(store, execute, observe, budget)


def study_of(
    task: Task | Loop,
    variants: Sequence[Variant],
    switch_at: int | str | Path = 0,
    stop: int | None = None,
    *,
    measure: Measure = _MEASURE,
    setup: Setup = _SETUP,
    judge: Judge = _JUDGE,
    alignment: Alignment = _ALIGNMENT,
) -> Study:
    """Return the study that compares a task, or a loop, with variants of itself; `check` has the arguments."""
    ways = [Variant(), *variants]
    if isinstance(task, Loop):
        how = replace(alignment, metrics=tuple(judge.decide_by or alignment.metrics), points=measure.points)
        how = how if stop is None else replace(how, stop=float(stop))
        arms = [Arm(LoopSpec(task, way).label, task, way) for way in ways]
        return Study(task.name, arms, judge=judge, alignment=how, checkpoint=_checkpoint(switch_at))
    if not isinstance(switch_at, int):
        raise ValueError(f"switch_at of a Task is a number of samples, got {switch_at!r}; a path is for a Loop")
    arms = [Arm(way.label(task.plan), task, way) for way in ways]
    settings = settings_of(task, variants, switch_at, stop, measure, setup)
    return Study(task.name, arms, judge=judge, settings=settings)


def as_variants(given: Sequence[float | Fraction | Variant]) -> list[Variant]:
    """Return what differs from the plan itself, each once; numbers are kappas."""
    made = [one if isinstance(one, Variant) else Variant(Fraction(one)) for one in given]
    found = [variant for variant in dict.fromkeys(made) if variant != Variant()]
    if not found:
        raise ValueError(
            "nothing to compare: give a batch size that is not the plan's (a kappa, or a Variant), or an ell of SVAG"
        )
    return found


def settings_of(
    task: Task, tried: Sequence[Variant], switch_at: int, stop: int | None, measure: Measure, setup: Setup
) -> Settings:
    """Return the settings of all runs, on a grid that suits every batch size."""
    sizes = [int(Fraction(task.plan.batch_size.total) * kappa) for v in (Variant(), *tried) for kappa in v.kappas]
    total = task.plan.samples
    assert total is not None
    stop = int(total) if stop is None else stop
    if not 0 < stop <= total:
        raise ValueError(f"stop must lie in the run of {show(total)} samples, got {stop}")
    if not 0 <= switch_at < stop:
        raise ValueError(f"switch_at must lie in the run of {stop} samples, got {switch_at}")
    switch_at = switch_at // sizes[0] * sizes[0]
    measure = measured_on(task, measure, stop - switch_at)
    return Settings(grid(stop, measure.points, switch_at, sizes), switch_at, measure, setup)


def measured_on(task: Task, measure: Measure, trained: int) -> Measure:
    """Return what is measured along a run of so many samples."""
    return measure.fitted(trained, len(task.train), 0 if task.test is None else len(task.test))


def _checkpoint(switch_at: int | str | Path) -> str | None:
    if isinstance(switch_at, int):
        if switch_at:
            raise ValueError(
                f"a loop of your own switches where you saved it: give the path of a checkpoint (in which {{seed}} "
                f"stands for the seed) as switch_at, got {switch_at}"
            )
        return None
    return str(switch_at)
