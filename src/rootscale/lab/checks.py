"""The check of a task: the judge, the variants, the settings, the runs, and the arms with their comparisons."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from rootscale.format import show
from rootscale.lab.causes import causes_of
from rootscale.lab.execute import Execute
from rootscale.lab.probes import STEP_LOSS
from rootscale.lab.provenance import environment
from rootscale.lab.result import Arm, Check
from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.store import Store
from rootscale.lab.sweeps import Observer, Sweep, sweep
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.tolerance import tolerance_to_json
from rootscale.trajectory import Trajectory
from rootscale.verdict import FEWEST, Judge

__all__ = [
    "arm_of",
    "as_variants",
    "check_task",
    "compared_arm",
    "judged_arm",
    "measured_on",
    "refuse",
    "settings_of",
]


def check_task(
    task: Task,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    *,
    settings: Settings,
    judge: Judge,
    execute: Execute,
    store: Store,
    observe: Observer,
) -> Check:
    """Run a task as it is and in other ways with some seeds, and compare the runs; see `rootscale.lab.check`."""
    runs = replace(store, folder=store.folder / "runs")
    swept = sweep(
        task, [Variant(), *variants], seeds=seeds, settings=settings, store=runs, execute=execute, observe=observe
    )
    made = {
        "command": store.made_by,
        **environment(settings.setup.device),
        "seeds": list(seeds),
        "date": time.strftime("%Y-%m-%d"),
        "tolerance": tolerance_to_json(judge.tolerance),
        "level": judge.level,
    }
    base = arm_of(task, Variant(), swept.trajectories[Variant()])
    arms = tuple(compared_arm(task, variant, swept, settings, judge) for variant in variants)
    return Check(task.name, base, arms, settings.switch_at, made, swept.warm)


def arm_of(task: Task, variant: Variant, trajectory: Trajectory) -> Arm:
    """Return the arm of a variant, not yet compared."""
    plan = variant.plan(task.plan)
    kind = "base" if variant == Variant() else "svag" if variant.ell != 1 else "batch size"
    changes = None
    if kind == "batch size":
        changes = task.plan.explain(plan.batch_size, variant.the_rule(task.plan)).to_dict()
    guards = dict.fromkeys([*variant.guards(task.plan), *trajectory.meta.get("guards", ())])
    return Arm(variant.label(task.plan), kind, plan, changes, trajectory, guards=tuple(guards))


def as_variants(given: Sequence[float | Fraction | Variant]) -> list[Variant]:
    """Return what differs from the plan itself, each once; numbers are kappas."""
    made = [one if isinstance(one, Variant) else Variant(Fraction(one)) for one in given]
    found = [variant for variant in dict.fromkeys(made) if variant != Variant()]
    if not found:
        raise ValueError(
            "nothing to compare: give a batch size that is not the plan's (a kappa, or a Variant), or an ell of SVAG"
        )
    return found


def refuse(task: Task, tried: Sequence[Variant], seeds: Sequence[int], judge: Judge) -> None:
    """Refuse what would be refused after all runs have been made."""
    if len(seeds) < FEWEST:
        raise ValueError(f"at least {FEWEST} seeds are needed for a verdict, got {len(seeds)}")
    splits = ("train",) if task.test is None else ("train", "test")
    known = [f"{split} {name}" for split in splits for name in ("loss", *task.metrics)]
    known += [STEP_LOSS, "gradient norm", "Tr Sigma", "parameter norm", *task.functions]
    for name in judge.decide_by or ():
        if name not in known:
            raise ValueError(f"the verdict cannot rest on {name!r}; there are {', '.join(map(repr, known))}")
    labels = [variant.label(task.plan) for variant in (Variant(), *tried)]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two runs are called {label!r}: give one of the variants a name, Variant(..., name=...)")
    for variant in tried:
        variant.plans(task.plan)


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


def compared_arm(task: Task, variant: Variant, swept: Sweep, settings: Settings, judge: Judge) -> Arm:
    """Return the arm of a variant with its comparison, and the causes where it is different."""
    return judged_arm(task, variant, (swept.trajectories[Variant()], swept.trajectories[variant]), settings, judge)


def judged_arm(
    task: Task,
    variant: Variant,
    sides: tuple[Trajectory, Trajectory],
    settings: Settings,
    judge: Judge,
    whole: Trajectory | None = None,
) -> Arm:
    """Return an arm with its comparison, and the causes where it is different.

    Args:
        task, variant: what was run.
        sides: the runs of the base and of the variant.
        settings: of all of them.
        judge: what makes them the same.
        whole: the base to its end, where ``sides`` are the first part of their runs.
    """
    base, trajectory = sides
    comparison = judge.compare(base, trajectory, whole=whole)
    arm = replace(arm_of(task, variant, trajectory), comparison=comparison)
    if comparison.verdict == "different":
        arm = replace(arm, causes=causes_of(task, variant, arm, base, settings))
    return arm
