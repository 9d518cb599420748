"""The check, of a task or of a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from rootscale.lab.checks import Judge, as_variants, check_task, refuse, settings_of
from rootscale.lab.execute import Execute, default_executor, limited
from rootscale.lab.loop import Loop
from rootscale.lab.loop_check import check_loop
from rootscale.lab.result import Arm, Check
from rootscale.lab.rounds import Rounds
from rootscale.lab.settings import SHARE, Measure, Setup
from rootscale.lab.stopping import Deadline
from rootscale.lab.store import Store, as_store
from rootscale.lab.sweeps import Observer, kept
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.logs import Alignment
from rootscale.verdict import FEWEST

__all__ = ["check"]

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
) -> Check:
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
        execute: what runs them, as for `rootscale.lab.sweep`.
        store: the folder of the result, or a `Store`; its runs are in ``runs`` below it, so that a check that was
            stopped is resumed. None keeps nothing.
        observe: callbacks for progress and measurements, as for `rootscale.lab.sweep`.
    """
    if isinstance(task, Loop):
        how = replace(alignment, metrics=tuple(judge.decide_by or alignment.metrics), points=measure.points)
        how = how if stop is None else replace(how, stop=float(stop))
        options = {"checkpoint": _checkpoint(switch_at), "alignment": how, "judge": judge}
        return _check_loop(task, as_variants(variants), Rounds.of(seeds, budget), execute, store, observe, options)
    if not isinstance(switch_at, int):
        raise ValueError(f"switch_at of a Task is a number of samples, got {switch_at!r}; a path is for a Loop")
    tried, rounds = as_variants(variants), Rounds.of(seeds, budget)
    refuse(task, tried, rounds.first, judge)
    settings = settings_of(task, tried, switch_at, stop, measure, setup)
    return check_task(task, tried, rounds, settings, judge, execute=execute, store=store, observe=observe or Observer())


def _check_loop(
    loop: Loop,
    variants: Sequence[Variant],
    rounds: Rounds,
    execute: Execute | None,
    store: Store | str | Path | None,
    observe: Observer | None,
    options: dict[str, Any],
) -> Check:
    """Check a loop, with more and more seeds where they are to be added until all verdicts are decided."""
    numbers = rounds.first
    if len(numbers) < FEWEST or len(set(numbers)) < len(numbers):
        raise ValueError(f"at least {FEWEST} different seeds are needed for a verdict, got {list(numbers)}")
    watcher = observe or Observer()
    with kept(as_store(store)) as place:

        def compared(some: Sequence[Variant], seeds: Sequence[int], within: Deadline) -> tuple[Check, list[Arm]]:
            workers = limited(execute or default_executor("cpu"), within)
            found = check_loop(loop, some, seeds, execute=workers, store=place, observe=watcher, **options)
            return found, list(found.others)

        found, arms = rounds.run(variants, compared, watcher.note)
        result = replace(found, others=tuple(arms))
        result.save(place.folder)
    return result


def _checkpoint(switch_at: int | str | Path) -> str | None:
    if isinstance(switch_at, int):
        if switch_at:
            raise ValueError(
                f"a loop of your own switches where you saved it: give the path of a checkpoint (in which {{seed}} "
                f"stands for the seed) as switch_at, got {switch_at}"
            )
        return None
    return str(switch_at)
