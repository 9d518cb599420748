"""The check, of a task or of a training loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rootscale.lab.checks import as_variants, check_task, refuse, settings_of
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
from rootscale.verdict import Judge

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
    tried, rounds, watcher = as_variants(variants), Rounds.of(seeds, budget), observe or Observer()
    look: Callable[..., Check]
    if isinstance(task, Loop):
        how = replace(alignment, metrics=tuple(judge.decide_by or alignment.metrics), points=measure.points)
        how = how if stop is None else replace(how, stop=float(stop))
        look = partial(check_loop, task, checkpoint=_checkpoint(switch_at), alignment=how)
    elif isinstance(switch_at, int):
        refuse(task, tried, rounds.first, judge)
        look = partial(check_task, task, settings=settings_of(task, tried, switch_at, stop, measure, setup))
    else:
        raise ValueError(f"switch_at of a Task is a number of samples, got {switch_at!r}; a path is for a Loop")
    with kept(as_store(store)) as place:

        def compared(some: Sequence[Variant], numbers: Sequence[int], within: Deadline) -> tuple[Check, list[Arm]]:
            workers = limited(execute or default_executor(setup.device), within)
            found = look(some, numbers, judge=judge, execute=workers, store=place, observe=watcher)
            return found, list(found.others)

        found, arms = rounds.run(tried, compared, watcher.note)
        found = replace(found, others=tuple(arms))
        found = replace(found, made={**found.made, **_spent(found)})
        found.save(place.folder)
    return found


def _spent(found: Check) -> dict[str, Any]:
    """Return the seconds of all runs, and the share of them that was measuring, as far as the runs say.

    Loops of the user's do not, and runs of older versions know no share.
    """
    arms = (found.base, *found.others)
    known = [one.meta for one in (*(arm.trajectory for arm in arms), found.warm) if one is not None]
    if not all("seconds" in meta for meta in known):
        return {}
    seconds = sum(float(meta["seconds"]) for meta in known)
    measuring = [float(meta["measuring"]) for meta in known if "measuring" in meta]
    share = round(sum(measuring) / seconds, 3) if seconds and len(measuring) == len(known) else None
    return {"seconds": round(seconds, 1), "measuring": share}


def _checkpoint(switch_at: int | str | Path) -> str | None:
    if isinstance(switch_at, int):
        if switch_at:
            raise ValueError(
                f"a loop of your own switches where you saved it: give the path of a checkpoint (in which {{seed}} "
                f"stands for the seed) as switch_at, got {switch_at}"
            )
        return None
    return str(switch_at)
