"""The check, of a task or of a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from rootscale.lab.checks import Judge, as_variants, check_task
from rootscale.lab.execute import Execute
from rootscale.lab.loop import Loop
from rootscale.lab.loop_check import check_loop
from rootscale.lab.result import Check
from rootscale.lab.settings import Measure, Setup
from rootscale.lab.store import Store, as_store
from rootscale.lab.sweeps import Observer
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.logs import Alignment
from rootscale.verdict import FEWEST

__all__ = ["check"]

_MEASURE, _SETUP, _JUDGE, _ALIGNMENT = Measure(), Setup(), Judge(), Alignment()


def check(
    task: Task | Loop,
    variants: Sequence[float | Fraction | Variant],
    *,
    seeds: int | Sequence[int] = 16,
    switch_at: int | str | Path = 0,
    stop: int | None = None,
    measure: Measure = _MEASURE,
    setup: Setup = _SETUP,
    judge: Judge = _JUDGE,
    alignment: Alignment = _ALIGNMENT,
    execute: Execute | None = None,
    store: Store | str | Path | None = None,
    observe: Observer | None = None,
) -> Check:
    """Run a task, or a loop of your own, as it is and in other ways, and decide whether the runs are the same.

    ``check(task, [4, 16])`` compares the batch size of the base with 4 and 16 times as much.

    Args:
        task: what is learned; or a `Loop`, whose runs are compared by what they log.
        variants: what it is compared with; a number is a batch size over the base's, kappa.
        seeds: how many replicas of each run, or their seeds.
        switch_at: samples seen before the switch in mid-run; 0 compares runs from scratch. Of a loop: the path of the
            checkpoint from which its runs start, in which ``{seed}`` stands for the seed.
        stop: samples seen at the end; None is the whole plan (of a loop, all that its runs have in common).
        measure: what is measured along the runs; of a loop, ``points`` is the most points that are compared.
        setup: how a task is trained.
        judge: what makes runs the same; of a loop, ``decide_by`` names what it logs, and None is all losses.
        alignment: of the logs of a loop: clock and smoothing.
        execute: what runs them, as for `rootscale.lab.sweep`.
        store: the folder of the result, or a `Store`; its runs are in ``runs`` below it, so that a check that was
            stopped is resumed. None keeps nothing.
        observe: callbacks for progress and measurements, as for `rootscale.lab.sweep`.
    """
    if isinstance(task, Loop):
        numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
        if len(numbers) < FEWEST or len(set(numbers)) < len(numbers):
            raise ValueError(f"at least {FEWEST} different seeds are needed for a verdict, got {numbers}")
        how = replace(alignment, metrics=tuple(judge.decide_by or alignment.metrics), points=measure.points)
        how = how if stop is None else replace(how, stop=float(stop))
        return check_loop(
            task, as_variants(variants), numbers, checkpoint=_checkpoint(switch_at), alignment=how, judge=judge,
            execute=execute, store=as_store(store), observe=observe or Observer(),
        )  # fmt: skip
    if not isinstance(switch_at, int):
        raise ValueError(f"switch_at of a Task is a number of samples, got {switch_at!r}; a path is for a Loop")
    return check_task(
        task, variants, seeds=seeds, switch_at=switch_at, stop=stop, measure=measure, setup=setup, judge=judge,
        execute=execute, store=store, observe=observe,
    )  # fmt: skip


def _checkpoint(switch_at: int | str | Path) -> str | None:
    if isinstance(switch_at, int):
        if switch_at:
            raise ValueError(
                f"a loop of your own switches where you saved it: give the path of a checkpoint (in which {{seed}} "
                f"stands for the seed) as switch_at, got {switch_at}"
            )
        return None
    return str(switch_at)
