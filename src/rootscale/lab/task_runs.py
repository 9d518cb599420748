"""The runs of a task: what decides one, and how a group of seeds is trained in one program."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rootscale.lab.causes import causes_of
from rootscale.lab.failures import FINISHED, blaming, in_one_process
from rootscale.lab.group import Spec, Wanted, write_checkpoint, write_result
from rootscale.lab.probes import STEP_LOSS
from rootscale.lab.provenance import environment
from rootscale.lab.replicas import stacking_pays
from rootscale.lab.settings import Settings, grid
from rootscale.lab.trial import Trial
from rootscale.lab.variant import Variant

if TYPE_CHECKING:
    from rootscale.compare.result import Result
    from rootscale.lab.observe import Observer
    from rootscale.lab.stopping import Stop
    from rootscale.lab.store import Store
    from rootscale.lab.task import Task
    from rootscale.trajectory import Trajectory

#: Changes when runs of the same settings come out differently, so that older ones are not found.
ENGINE = 2
#: Progress is reported this often, or when this much more is done: a run may take thousands of steps a second.
REPORT_SECONDS, REPORT_SHARE = 0.1, 0.01


@dataclass(frozen=True)
class TaskSpec(Spec):
    """What decides a run of a task, but for its seed and the code and data of the task."""

    task: Task
    variant: Variant
    settings: Settings

    @cached_property
    def label(self) -> str:  # computed once
        """In words, for legends."""
        return self.variant.label(self.task.plan)

    @cached_property
    def warm(self) -> TaskSpec | None:
        """The base up to the switch, from whose end this run goes on; None for a run from scratch."""
        size = int(self.task.plan.batch_size.total)
        switch_at = self.settings.switch_at // size * size
        if not switch_at:
            return None
        points = max(2, round(len(self.settings.grid) * switch_at / (self.settings.grid[-1] - switch_at)))
        before = replace(self.settings, switch_at=0, grid=grid(switch_at, points, batch_sizes=[size]))
        return TaskSpec(self.task, Variant(), before)

    def together(self, most: int) -> int:
        """Return how many seeds are trained in one program: one, where more would not be faster."""
        if most == 1:
            return 1
        with torch.random.fork_rng(devices=[]):  # building the model must not move random numbers
            return most if stacking_pays(self.task, torch.device(self.settings.setup.device)) else 1

    def refuse(self, seeds: Sequence[int], deciding: Sequence[str]) -> None:
        """Refuse seeds, plans and test functions that cannot be."""
        if len(seeds) < 1 or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds must differ from each other, and there must be one, got {list(seeds)}")
        splits = ("train",) if self.task.test is None else ("train", "test")
        known = [f"{split} {name}" for split in splits for name in ("loss", *self.task.metrics)]
        known += [STEP_LOSS, "gradient norm", "Tr Sigma", "parameter norm", *self.task.functions]
        for name in deciding:
            if name not in known:
                raise ValueError(f"the verdict cannot rest on {name!r}; there are {', '.join(map(repr, known))}")
        self.variant.plans(self.task.plan)

    def causes(self, result: Result, base: Trajectory) -> tuple[str, ...]:
        """Return why its runs are different from those of the base, likeliest first."""
        return causes_of(self.task, self.variant, result, base, self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types; the device is left out, since runs may be moved."""
        settings = {**asdict(self.settings.measure), **asdict(self.settings.setup)}
        for name in ("device", "points", "share", "reestimate"):  # the points are those of the grid
            del settings[name]
        if not settings["norms"]:  # older runs have not measured them either
            del settings["norms"]
        return {
            "engine": ENGINE,
            "task": self.task.name,
            "base_plan": self.task.plan.to_dict(),
            "variant": self.variant.to_dict(),
            "plans": [plan.to_dict() for plan in self.variant.plans(self.task.plan)],
            "settings": {**settings, "grid": list(self.settings.grid), "switch_at": self.settings.switch_at},
        }

    def make(
        self, store: Store, wanted: Wanted, observe: Observer, tell: Callable[[float], object], stop: Stop
    ) -> None:
        """Train a group of seeds, or what is left of it, from their warm start where there is one."""
        facts = {
            "plan": self.variant.plan(self.task.plan).to_dict(),
            "command": store.made_by,
            "process": {"host": platform.node(), "pid": os.getpid()},
            **environment(self.settings.setup.device),
        }
        with blaming(self.label, FINISHED), store.claim(wanted, facts, tell, stop) as place:
            if place is not None:
                trial = self._resumed(store, wanted, place)
                _advance(trial, place, store, None if wanted.with_state else observe.measured, tell, stop)
                write_result(place, wanted, trial, facts, store.keep_models)
        tell(1.0)

    def _resumed(self, store: Store, wanted: Wanted, place: Path) -> Trial:
        state = None
        if self.warm is not None:
            starts = replace(store, keep_models=False)
            state = starts.state(starts.want(self.warm, wanted.seeds, True))
        trial = Trial(self.task, self.variant, wanted.seeds, self.settings, state)
        group = next(group for group in store.groups(self, wanted.seeds) if group.place == place)
        if group.file("checkpoint.pt").exists():
            trial.load_state_dict(group.state())
        return trial


def _advance(
    trial: Trial, place: Path, store: Store, measured: Callable[[Path, Trial], object] | None,
    tell: Callable[[float], object], stop: Stop,
) -> None:  # fmt: skip
    """Take a run to its end, or to where it is asked to stop."""
    saved, reported, share, seen = time.monotonic(), -math.inf, -1.0, trial.measured
    with torch.random.fork_rng(), in_one_process():
        while not trial.done:
            trial.advance()
            if measured is not None and trial.measured > seen:
                seen = trial.measured
                measured(place, trial)
            now, progress = time.monotonic(), trial.progress
            if now - reported > REPORT_SECONDS or progress - share >= REPORT_SHARE:
                reported, share = now, progress
                tell(min(progress, 1 - REPORT_SHARE))  # 1 when its result is stored
            stopping = stop.asked
            if stopping or now - saved > store.checkpoint_every:
                write_checkpoint(place, trial)
                saved = time.monotonic()
            if stopping:
                stop.end()
