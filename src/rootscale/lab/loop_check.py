"""The check of a user's own loop: its runs, compared by what they log."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rootscale.lab.comparing import compare
from rootscale.lab.execute import Execute
from rootscale.lab.loop import Loop
from rootscale.lab.loop_runs import LoopSpec, run_loop
from rootscale.lab.provenance import environment
from rootscale.lab.result import Arm, Check
from rootscale.lab.store import Store
from rootscale.lab.sweeps import Observer
from rootscale.lab.variant import Variant
from rootscale.logs import Alignment, Log
from rootscale.noise import NOISE_SCALE
from rootscale.stats import student_quantile
from rootscale.verdict import FEWEST, Judge

__all__ = ["check_loop", "with_noise", "with_plan"]

#: The column of a log that holds the noise scale, and that of the lower end of its interval (`rootscale.tracking`).
_SCALE, _LOW = "noise_scale", "noise_scale_low"


def check_loop(
    loop: Loop,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    *,
    checkpoint: str | None,
    alignment: Alignment,
    judge: Judge,
    execute: Execute,
    store: Store,
    observe: Observer,
) -> Check:
    """Run a loop as it is and at other batch sizes, and compare what the runs logged.

    Args:
        loop: the loop.
        variants: of which batch size and rule count; SVAG and ramps are for tasks.
        seeds: of the runs; those of equal seeds are compared with each other.
        checkpoint: from which all of them start, as for `LoopSpec`.
        alignment: of the logs.
        judge: what makes runs the same.
        execute, store, observe: as for `rootscale.lab.check`.
    """
    if len(seeds) < FEWEST or len(set(seeds)) < len(seeds):
        raise ValueError(f"at least {FEWEST} different seeds are needed for a verdict, got {list(seeds)}")
    for variant in variants:
        if variant.ell != 1 or variant.ramp or variant.zero_state:
            raise ValueError(
                "a variant with SVAG, a ramp or a zeroed state is for a Task: a loop of your own is run at other "
                "batch sizes and by other rules"
            )
    specs = [LoopSpec(loop, variant, checkpoint=checkpoint) for variant in (Variant(), *variants)]
    labels = [spec.label for spec in specs]
    runs = replace(store, folder=store.folder / "runs")
    sides = run_loop(specs, seeds, runs, execute, observe)
    guards = [_guards(runs, spec, seeds) for spec in specs]
    found = compare(
        *sides,
        names=labels,
        alignment=alignment,
        judge=judge,
        task=loop.name,
        command=store.made_by,
    )
    arms = zip((found.base, *found.others), specs, guards, strict=True)
    base, *others = [with_plan(arm, spec, warned) for arm, spec, warned in arms]
    base = with_noise(base, sides[0])
    made = {**found.made, **environment("cpu"), "seeds": list(seeds)}
    if checkpoint is not None:
        made["checkpoint"] = checkpoint
    return replace(found, base=base, others=tuple(others), made=made)


def _guards(store: Store, spec: LoopSpec, seeds: Sequence[int]) -> list[str]:
    """Return what the conversions of these runs warned of."""
    found: dict[str, None] = {}
    for group, _ in store.locate(store.want(spec, seeds)).values():
        record: Any = json.loads(group.file("run.json").read_text(encoding="utf-8"))
        found |= dict.fromkeys(record.get("guards", ()))
    return list(found)


def with_plan(arm: Arm, spec: LoopSpec, guards: Sequence[str]) -> Arm:
    """Return the arm with its plan and what changed in it, where the loop has a plan."""
    plan = spec.task.plan
    if plan is None:
        return replace(arm, guards=tuple(guards))
    if arm.kind == "base":
        return replace(arm, plan=plan)
    made = plan.convert(spec.batch_size, spec.variant.rule)
    warned = tuple(dict.fromkeys([*made.warnings, *guards]))
    return replace(arm, kind="batch size", plan=made.plan, changes=made.changes.to_dict(), guards=warned)


def with_noise(base: Arm, logs: Sequence[Log]) -> Arm:
    """Return the arm of the base with the noise scale that its runs logged first, with its interval, if they did.

    The lower end is the least of those that were logged; without any, Student's over the runs.
    """
    columns = [log.columns for log in logs]
    first = [float(one[_SCALE].values[0]) for one in columns if _SCALE in one and len(one[_SCALE])]
    first = [value for value in first if 0 < value < math.inf]
    if not first:
        return base
    lows = [float(one[_LOW].values[0]) for one in columns if _LOW in one and len(one[_LOW])]
    middle = float(np.median(first))
    spread = (
        math.exp(student_quantile(len(first) - 1) * float(np.std(np.log(first), ddof=1)) / math.sqrt(len(first)))
        if len(first) > 1
        else 1.0
    )
    low = min(lows) if lows else middle / spread
    meta = {**base.trajectory.meta, NOISE_SCALE: [middle, max(0.0, low), middle * spread]}
    return replace(base, trajectory=replace(base.trajectory, meta=meta))
