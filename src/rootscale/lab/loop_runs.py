"""The runs of a user's own loop: every variant with every seed, in the store and by the executors of the lab."""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from rootscale.compare import Log
from rootscale.format import show
from rootscale.lab.execute import Execute
from rootscale.lab.failures import FINISHED, blaming
from rootscale.lab.group import Spec, Wanted, write_facts
from rootscale.lab.loop import Convert, Loop, RunLog, read_log
from rootscale.lab.provenance import environment
from rootscale.lab.stopping import Stop, held_interrupts
from rootscale.lab.store import Store
from rootscale.lab.sweeps import Observer
from rootscale.lab.variant import Variant

__all__ = ["LoopSpec", "need_checkpoint", "run_loop"]


@dataclass(frozen=True)
class LoopSpec(Spec):
    """What decides a run of a loop, but for its seed and its source.

    Args:
        checkpoint: from which it starts, as a text in which ``{seed}`` stands for the seed; None from scratch.
    """

    task: Loop  # type: ignore[assignment]
    variant: Variant
    settings: Any = None
    checkpoint: str | None = None

    @property
    def batch_size(self) -> int:
        """Of the run."""
        size = self.task.batch_size * Fraction(self.variant.kappa)
        if size.denominator != 1:
            raise ValueError(
                f"kappa={show(self.variant.kappa)} makes a batch of {show(size)} samples; it must be whole"
            )
        return int(size)

    @property
    def label(self) -> str:
        """In words, for legends."""
        rule = self.variant.rule
        named = f" {rule}" if str(rule).startswith("with") else f", {rule}"
        return self.variant.name or f"B = {show(self.batch_size)}" + (named if rule and self.variant.kappa != 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        plan = self.task.plan
        return {
            "loop": self.task.name,
            "batch_size": self.task.batch_size,
            "variant": self.variant.to_dict(),
            "plan": None if plan is None else plan.to_dict(),
            "checkpoint": self.checkpoint,
        }

    def start(self, seed: int) -> Path | None:
        """Return the checkpoint from which a run of this seed starts."""
        return None if self.checkpoint is None else _place(self.checkpoint, seed)


def _place(checkpoint: str, seed: int) -> Path:
    return Path(checkpoint.replace("{seed}", str(seed)))


def need_checkpoint(checkpoint: str | None, seeds: Sequence[int]) -> None:
    """Refuse a path, in which ``{seed}`` stands for the seed, that is not there for all seeds."""
    for seed in () if checkpoint is None else seeds:
        if not (place := _place(str(checkpoint), seed)).exists():
            raise ValueError(
                f"there is no checkpoint {place}, from which the run of seed {seed} is to start: a loop of your own "
                "switches where you saved it, and is given the path"
            )


def run_loop(
    specs: Sequence[LoopSpec], seeds: Sequence[int], store: Store, execute: Execute, observe: Observer
) -> list[list[Log]]:
    """Run every spec with every seed, and return their logs. Runs that are finished are only read."""
    for spec in specs:
        need_checkpoint(spec.checkpoint, seeds)
    with held_interrupts() as interrupted:
        jobs = [job for spec in specs for job in _jobs(store, spec, seeds, observe)]

        def report(number: int, share: float) -> None:
            observe.progress(jobs[number].label, number, len(jobs), share)

        if jobs:
            execute.run(jobs, store.folder, report, interrupted)
    return [_logs(store, spec, seeds) for spec in specs]


def _jobs(store: Store, spec: LoopSpec, seeds: Sequence[int], observe: Observer) -> list[_LoopJob]:
    want = store.want(spec, seeds)
    missing = store.missing(want)
    outdated = store.outdated(want) if missing else []
    if outdated:
        observe.note(
            f"{spec.label}: the stored runs were made with another {', '.join(outdated)}; they are kept, and new ones "
            "are made"
        )
    return [_LoopJob(store, store.want(spec, [seed]), observe.logged) for seed in missing]


def _logs(store: Store, spec: LoopSpec, seeds: Sequence[int]) -> list[Log]:
    found = store.locate(store.want(spec, seeds))
    return [read_log(found[seed][0].place, f"{spec.label}, seed {seed}", seed, spec.batch_size) for seed in seeds]


@dataclass(frozen=True)
class _LoopJob:
    """One run."""

    store: Store
    wanted: Wanted
    logged: Callable[[Path, bool], object] | None = None

    @property
    def label(self) -> str:
        return f"{self.wanted.spec.label}, seed {self.wanted.seeds[0]}"

    def __call__(self, tell: Callable[[float], object], stop: Stop) -> None:
        spec, (seed,) = self.wanted.spec, self.wanted.seeds
        assert isinstance(spec, LoopSpec)
        facts = {
            "command": self.store.made_by,
            "process": {"host": platform.node(), "pid": os.getpid()},
            **environment("cpu"),
        }
        tell(0.0)
        with self.store.claim(self.wanted, facts, tell, stop) as place:
            if place is not None:
                convert = Convert(spec.batch_size, spec.task.batch_size, spec.variant.text, spec.start(seed))
                with blaming(self.label, FINISHED), closing(RunLog(place, stop, tell, self.logged)) as log:
                    _train(spec.task, seed, log, convert)
                    write_facts(place, self.wanted, {**facts, "status": "finished", "guards": convert.warnings})
                    log.finish()  # from here on it is finished, and nobody looks after its folder again
        tell(1.0)


def _train(loop: Loop, seed: int, log: RunLog, convert: Convert) -> None:
    """Train; the random numbers do not depend on what ran before in this process."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"convert": convert} if "convert" in inspect.signature(loop.train).parameters else {}
        loop.train(batch_size=convert.batch_size, seed=seed, log=log, **options)
