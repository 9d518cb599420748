"""How large may the batch be? Branches from checkpoints over a grid of batch sizes, as far as is needed.

From each start (a place in the run of a task, or a checkpoint of a user's loop) batch sizes are tried from the smallest
up. An arm begins with few seeds and gets more as long as it is undecided (`rootscale.lab.rounds`). Its runs are stopped
on the way when they are clearly different (`rootscale.lab.early`). An arm that is different ends the search: larger
batches, which are further away, are not run.

Branches of a checkpoint measured the critical batch size of language models in the same way in arXiv 2505.23971.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.compare.alignment import Alignment
from rootscale.compare.result import Result, Table
from rootscale.format import show
from rootscale.lab.checking import measured_on, study_of
from rootscale.lab.early import at_the_end, watch_of
from rootscale.lab.loop import Loop
from rootscale.lab.loop_runs import need_checkpoint
from rootscale.lab.observe import Observer
from rootscale.lab.probes import NORMS
from rootscale.lab.rounds import Rounds
from rootscale.lab.settings import Measure, Setup
from rootscale.lab.stopping import ClearlyDifferentError, Deadline, UnfinishedError
from rootscale.lab.study import Arm, Study
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.noise import NOISE_SCALE, Advice, Interval, advice_of_scale, advise, noise_at_start
from rootscale.verdict import Judge

if TYPE_CHECKING:
    from rootscale.lab.execute import Execute
    from rootscale.lab.store import Store
    from rootscale.trajectory import Trajectory

#: The batch sizes that are tried, over that of the base.
KAPPAS = (2, 4, 8, 16, 32, 64)
#: Compares an arm with the base at some seeds, until a deadline: the result of the base, and that of the arm.
Look = Callable[[Sequence[Arm], Sequence[int], Deadline], tuple[Result, list[Result]]]


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


def look_of(study: Study, execute: Execute | None, place: Store, observe: Observer) -> Look:
    """Return how an arm of a study is looked at: the base is run first, and the arm until it is clearly different."""
    ended = replace(study, judge=at_the_end(study.judge))

    def look(arms: Sequence[Arm], seeds: Sequence[int], within: Deadline) -> tuple[Result, list[Result]]:
        (arm,) = arms
        base = study.look([], seeds, place, execute, observe, within).base
        watch = watch_of(study, arm, seeds, base.trajectory, place, observe)
        result = watch.stopped()  # by an earlier start of this search
        if result is None:
            try:
                following = replace(observe, measured=watch.measured, logged=watch.logged)
                table = ended.look([arm], seeds, place, execute, following, within)
                return table.base, list(table.others)
            except ClearlyDifferentError:
                result = watch.stopped()
                assert result is not None
        return base, [result]

    return look


@dataclass(frozen=True)
class Branch:
    """What was found from one start.

    Args:
        samples: seen at the start.
        base: the batch size of the base.
        check: the base and the arms that were run, each with the seeds that it needed; None where the budget ended
            before the first of them was judged, so that nothing can be said.
        sizes: the batch size of each arm.
        advice: what the noise scale at the start allows; None where it is not known.
        unknown: why it is not known.
        noise: the noise scale at the start by the norm it was measured in, with its interval.
        stopped: how the budget ended the search; empty where it did not.
    """

    samples: float
    base: int
    check: Table | None
    sizes: tuple[int, ...]
    advice: Advice | None
    unknown: str = ""
    noise: Mapping[str, Interval] = field(default_factory=dict)
    stopped: str = ""

    @property
    def _arms(self) -> list[tuple[int, Result]]:
        """Each batch size with what it gave."""
        return [] if self.check is None else list(zip(self.sizes, self.check.others, strict=True))

    @property
    def same(self) -> int:
        """The largest batch size up to which all arms are the same; that of the base where none is."""
        found = self.base
        for size, arm in self._arms:
            if arm.verdict != "same":
                break
            found = size
        return found

    @property
    def different(self) -> int | None:
        """The smallest batch size that is different; None where none was seen to be.

        The largest batch that is the same lies in the interval from `same` up to this one, at the level of the judge.
        """
        return next((size for size, arm in self._arms if arm.verdict == "different"), None)

    @property
    def runs(self) -> int:
        """How many runs the arms needed, without those of the base."""
        return sum(arm.trajectory.replicas for _, arm in self._arms)

    def __str__(self) -> str:
        """Return the answer in words."""
        if self.check is None:
            return f"after {show(self.samples)} samples nothing can be said: {self.stopped}"
        upper = f"{show(self.different)} is different" if self.different else "no larger one was seen to be different"
        most = f"B = {show(self.same)} is the same" if self.same > self.base else "no larger batch is the same"
        return f"after {show(self.samples)} samples {most}; {upper}"

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "samples": self.samples,
            "same": None if self.check is None else self.same,
            "different": self.different,
            "noise_scale_allows": None if self.advice is None else self.advice.batch_size,
            **({"noise_scale_unknown": self.unknown} if self.unknown else {}),
            "noise_scales": {name: [_finite(x) for x in (s.value, s.low, s.high)] for name, s in self.noise.items()},
            **({"stopped": self.stopped} if self.stopped else {}),
            "runs": self.runs,
            "arms": [
                {
                    "batch_size": size,
                    "verdict": arm.verdict,
                    "seeds": arm.trajectory.replicas,
                    "stopped_at": arm.trajectory.meta.get("stopped_at"),
                }
                for size, arm in self._arms
            ],
        }


@dataclass(frozen=True)
class Largest:
    """The largest batch from each start."""

    branches: tuple[Branch, ...]

    @property
    def ramp(self) -> tuple[tuple[float, int], ...]:
        """The samples seen, and the batch size from there on: it grows where a later start allows more."""
        found: list[tuple[float, int]] = []
        for branch in sorted(self.branches, key=lambda branch: branch.samples):
            if branch.same > (found[-1][1] if found else branch.base):
                found.append((branch.samples, branch.same))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "branches": [branch.to_dict() for branch in self.branches],
            "ramp": [list(stage) for stage in self.ramp],
        }


def find_largest(
    task: Task | Loop,
    search: Search | None = None,
    *,
    starts: Sequence[int | str | Path] = (0,),
    stop: int | None = None,
    measure: Measure | None = None,
    setup: Setup | None = None,
    alignment: Alignment | None = None,
    execute: Execute | None = None,
    store: Store,
    observe: Observer | None = None,
    budget: float | None = None,
) -> Largest:
    """Find the largest batch size with which a run stays the same, from each of some starts.

    It is assumed that a larger batch is no closer to the base than a smaller one.

    Args:
        task: what is learned, or a loop of the user's own.
        search: the batch sizes, the seeds and the judge.
        starts: samples seen at the switches; of a loop, the paths of its checkpoints.
        store: of the runs and results: ``start-0``, ``start-1`` and so on hold a check each.
        stop, measure, setup, alignment, execute, observe: as for `rootscale.lab.check`.
        budget: seconds for all of it, after which nothing more is run; each start gets an equal part of what is left.
    """
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"budget must be a number of seconds above 0, got {budget}")
    deadline = Deadline.after(budget)
    observe, branches = observe or Observer(), list[Branch]()
    if isinstance(task, Loop):
        for start in starts:  # before any run is made
            need_checkpoint(str(start) if start else None, (search or Search()).rounds.first)
    for number, start in enumerate(starts):
        how = search or Search()
        place = replace(store, folder=store.folder / f"start-{number}")
        if isinstance(task, Task):
            if not isinstance(start, int):
                raise ValueError(f"a start of a Task is a number of samples, got {start!r}; a path is for a Loop")
            how = _fitting(task, how, start, stop, measure or Measure(), observe)
        switch_at = str(start) if isinstance(task, Loop) and start else start
        study = study_of(
            task, how.variants, switch_at, stop, measure=measure or Measure(), setup=setup or Setup(), judge=how.judge,
            alignment=alignment or Alignment(),
        )  # fmt: skip
        within = None if budget is None else deadline.left / (len(starts) - number)
        look = look_of(study, execute, place, observe)
        branches.append(_branch(task, how, study, look, place, observe, Deadline.after(within)))
    return Largest(tuple(branches))


def _fitting(task: Task, search: Search, start: int, stop: int | None, measure: Measure, observe: Observer) -> Search:
    """Return the search without batches of which a step is longer than the distance of two points."""
    total = task.plan.samples
    assert total is not None
    trained = int(total if stop is None else stop) - start
    longest = trained / measured_on(task, measure, trained).points
    size = Fraction(task.plan.batch_size.total)
    kept = [kappa for kappa in search.kappas if kappa * size <= longest]
    if not kept:
        raise ValueError(
            f"no batch size is left: a step must not be longer than the distance of two points, {show(int(longest))} "
            "samples; ask for fewer points (--points), or smaller batches (--to)"
        )
    if len(kept) < len(search.kappas):
        observe.note(f"batches above {show(int(longest))} samples are left out: they have less than a step a point")
    return replace(search, kappas=kept)


def _branch(
    task: Task | Loop, search: Search, study: Study, look: Look, place: Store, observe: Observer, deadline: Deadline
) -> Branch:
    """Try batch sizes from the smallest up until one is different."""
    size = task.batch_size if isinstance(task, Loop) else int(task.plan.batch_size.total)
    bases, arms, sizes, stopped = list[Result](), list[Result](), list[int](), ""
    for way in study.arms[1:]:
        rounds = search.rounds
        if deadline.at < math.inf:
            rounds = replace(rounds, budget=max(deadline.left, 1e-3))
        try:
            base, (arm,) = rounds.run([way], look, observe.note)
        except UnfinishedError:
            if not deadline.passed:  # it was not the budget that ended it
                raise
            stopped = f"the budget ended before B = {show(int(way.variant.kappa * size))} was judged"
            observe.note(f"{stopped}; the same command goes on with it")
            break
        halted = arm.trajectory.meta.get("stopped_at")
        where = "" if halted is None else f", stopped at {show(round(halted))}"
        observe.note(f"{arm.label}: {arm.verdict or 'not judged'} with {arm.trajectory.replicas} seeds{where}")
        bases.append(base)
        arms.append(arm)
        sizes.append(int(way.variant.kappa * size))
        if arm.verdict == "different":
            break
    started = study.checkpoint or study.settings.switch_at
    if not arms:
        seen = study.settings.switch_at if isinstance(task, Task) else math.nan
        return Branch(float(seen), size, None, (), None, "not measured", {}, stopped)
    base = max(bases, key=lambda one: one.trajectory.replicas)
    made = {"date": time.strftime("%Y-%m-%d")}
    made["seeds"] = base.trajectory.meta.get("seeds", [])
    if place.command:
        made["command"] = place.command
    samples = round(base.trajectory.meta["samples"][0]) if started else 0  # a loop's first point is that of a window
    switch = int(base.trajectory.meta.get("switch_at", 0))
    check = Table(task.name, base, tuple(arms), switch, made, judge=search.judge)
    check.save(place.folder)
    advice, unknown = _advice(task, base.trajectory, size)
    noise = _noise(base.trajectory)
    return Branch(float(samples), size, check, tuple(sizes), advice, unknown, noise, stopped)


def _noise(base: Trajectory) -> dict[str, Interval]:
    """Return the noise scale at the start of the base's runs, by norm."""
    found = {norm.removeprefix(", ") or "Euclidean": noise_at_start(base, norm) for norm in ("", *NORMS)}
    scales = {name: noise.scale for name, noise in found.items() if noise is not None}
    logged = base.meta.get(NOISE_SCALE)
    return scales or ({} if logged is None else {"logged": Interval(*logged)})


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _advice(task: Task | Loop, base: Trajectory, size: int) -> tuple[Advice | None, str]:
    """Return what the noise scale at the start of the base's runs allows; or None and why it is not known."""
    noise = noise_at_start(base)
    if noise is not None and task.plan is not None:
        return advise(task.plan, noise), ""
    scale = base.meta.get(NOISE_SCALE)
    if scale is not None:
        return advice_of_scale(Interval(*scale), size), ""
    if isinstance(task, Loop):
        return None, "not logged: log(noise_scale=...), as a NoiseMeter gives it"
    return None, "not measured"
