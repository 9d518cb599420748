"""How a batch size is tried in the search for the largest: its runs beside those of the base, from one start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from rootscale.format import show
from rootscale.lab.checks import arm_of, compared_arm
from rootscale.lab.early import LoopWatch, TaskWatch, at_the_end
from rootscale.lab.execute import Execute, default_executor, limited
from rootscale.lab.group import Spec
from rootscale.lab.loop import Loop
from rootscale.lab.loop_check import check_loop, with_noise, with_plan
from rootscale.lab.loop_runs import LoopSpec, run_loop
from rootscale.lab.result import Arm
from rootscale.lab.rounds import Rounds
from rootscale.lab.settings import Settings
from rootscale.lab.stopping import ClearlyDifferentError, Deadline
from rootscale.lab.store import Store
from rootscale.lab.sweeps import Observer, Sweep, sweep
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.logs import Alignment
from rootscale.verdict import Judge

__all__ = ["KAPPAS", "Look", "Search", "loop_look", "task_look"]

#: The batch sizes that are tried, over that of the base.
KAPPAS = (2, 4, 8, 16, 32, 64)
#: Compares variants with the base at some seeds, until a deadline: the arm of the base, and theirs.
Look = Callable[[Sequence[Variant], Sequence[int], Deadline], tuple[Arm, list[Arm]]]


@dataclass(frozen=True)
class Search:
    """How the largest batch is looked for.

    Args:
        kappas: the batch sizes that are tried, over that of the base.
        rule: by which they are converted, as text; None is the optimizer's own.
        rounds: the seeds of an arm, first and most.
        judge: what makes runs the same.
    """

    kappas: Sequence[float | Fraction] = KAPPAS
    rule: str | None = None
    rounds: Rounds = field(default_factory=lambda: Rounds.of("auto"))
    judge: Judge = field(default_factory=Judge)

    @property
    def variants(self) -> list[Variant]:
        """The batch sizes, the smallest first."""
        return [Variant(kappa, self.rule) for kappa in sorted(Fraction(kappa) for kappa in self.kappas)]

    def __post_init__(self) -> None:
        if not self.kappas or min(self.kappas) <= 1:
            given = ", ".join(show(kappa) for kappa in self.kappas) or "none"
            raise ValueError(f"the batch sizes must be larger than that of the base; got {given} times as large")


def task_look(
    task: Task, search: Search, settings: Settings, execute: Execute | None, place: Store, observe: Observer
) -> Look:
    """Return how a task is looked at; all arms are measured on one grid, so that they share the runs of the base."""
    runs = replace(place, folder=place.folder / "runs")

    def look(some: Sequence[Variant], seeds: Sequence[int], within: Deadline) -> tuple[Arm, list[Arm]]:
        workers = limited(execute or default_executor(settings.setup.device), within)

        def made(which: Sequence[Variant], following: Observer) -> Sweep:
            return sweep(task, which, seeds=seeds, settings=settings, store=runs, execute=workers, observe=following)

        base, (variant,) = made([Variant()], observe).trajectories[Variant()], some
        watch = TaskWatch(Spec(task, variant, settings), seeds, base, runs, search.judge, observe.measured)
        arm = watch.stopped()  # by an earlier start of this search
        if arm is None:
            try:
                swept = made([Variant(), variant], replace(observe, measured=watch))
                arm = compared_arm(task, variant, swept, settings, at_the_end(search.judge))
            except ClearlyDifferentError:
                arm = watch.stopped()
                assert arm is not None
        return arm_of(task, Variant(), base), [arm]

    return look


def loop_look(
    loop: Loop, search: Search, start: str | None, alignment: Alignment, execute: Execute | None, place: Store,
    observe: Observer,
) -> Look:  # fmt: skip
    """Return how a loop of the user's is looked at, from a checkpoint or from scratch."""
    how = replace(alignment, metrics=tuple(search.judge.decide_by or alignment.metrics))
    runs = replace(place, folder=place.folder / "runs")

    def look(some: Sequence[Variant], seeds: Sequence[int], within: Deadline) -> tuple[Arm, list[Arm]]:
        workers = limited(execute or default_executor("cpu"), within)
        own, spec = (LoopSpec(loop, variant, checkpoint=start) for variant in (Variant(), *some))
        (logs,) = run_loop([own], seeds, runs, workers, observe)
        base = dict(zip(seeds, logs, strict=True))
        watch = LoopWatch(spec, base, own.label, runs, how, search.judge)
        arm = watch.stopped()  # by an earlier start of this search
        if arm is None:
            try:
                found = check_loop(
                    loop, some, seeds, checkpoint=start, alignment=how, judge=at_the_end(search.judge),
                    execute=workers, store=place, observe=replace(observe, logged=watch),
                )  # fmt: skip
                return with_noise(found.base, logs), list(found.others)
            except ClearlyDifferentError:
                arm = watch.stopped()
                assert arm is not None
        whole = Arm(own.label, "base", loop.plan, None, watch.whole)
        return with_noise(whole, logs), [with_plan(arm, spec, ())]

    return look
