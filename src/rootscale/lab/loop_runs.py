"""The runs of a user's own loop: what decides one, how it is made, and what it logged."""

from __future__ import annotations

import inspect
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rootscale.changes import ScalingWarning
from rootscale.format import listed, show
from rootscale.lab.failures import FINISHED, blaming, in_one_process
from rootscale.lab.fingerprint import differences
from rootscale.lab.group import Spec, Wanted, write_facts
from rootscale.lab.loop import Convert, Loop, RunLog, read_log
from rootscale.lab.provenance import environment

if TYPE_CHECKING:
    from rootscale.compare.log import Log
    from rootscale.lab.observe import Observer
    from rootscale.lab.stopping import Stop
    from rootscale.lab.store import Store
    from rootscale.lab.variant import Variant


@dataclass(frozen=True)
class LoopSpec(Spec):
    """What decides a run of a loop, but for its seed and its source.

    Args:
        checkpoint: from which it starts, as a text in which ``{seed}`` stands for the seed; None from scratch.
    """

    task: Loop
    variant: Variant
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

    @cached_property
    def label(self) -> str:  # computed once
        """In words, for legends."""
        rule = self.variant.rule
        named = f" {rule}" if str(rule).startswith("with") else f", {rule}"
        return self.variant.name or f"B = {show(self.batch_size)}" + (named if rule and self.variant.kappa != 1 else "")

    def refuse(self, seeds: Sequence[int], deciding: Sequence[str]) -> None:
        """Refuse a checkpoint that is not there; what a loop logs is known when it has run."""
        need_checkpoint(self.checkpoint, seeds)

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

    def make(
        self, store: Store, wanted: Wanted, observe: Observer, tell: Callable[[float], object], stop: Stop
    ) -> None:
        """Make the run of one seed."""
        (seed,) = wanted.seeds
        facts = {
            "command": store.made_by,
            "process": {"host": platform.node(), "pid": os.getpid()},
            **environment("cpu"),
        }
        tell(0.0)
        with blaming(f"{self.label}, seed {seed}", FINISHED), store.claim(wanted, facts, tell, stop) as place:
            if place is not None:
                convert = Convert(self.batch_size, self.task.batch_size, self.variant.text, self.start(seed))
                with closing(RunLog(place, stop, tell, observe.logged)) as log:
                    with noted(convert.warnings):
                        _train(self.task, seed, log, convert)
                    _need_same(self.task, wanted)
                    write_facts(place, wanted, {**facts, "status": "finished", "guards": convert.warnings})
                    log.finish()  # from here on it is finished, and nobody looks after its folder again
        tell(1.0)

    def logs(self, store: Store, seeds: Sequence[int]) -> dict[int, Log]:
        """Return what the runs of these seeds have logged so far, by seed; those that have not begun are left out."""
        found: dict[int, Log] = {}
        for group in store.matching(store.want(self, seeds)):
            (seed,) = group.seeds
            log = read_log(group.place, f"{self.label}, seed {seed}", seed, self.batch_size)
            if log.columns:
                found[seed] = log
        return {seed: found[seed] for seed in seeds if seed in found}

    def warnings(self, store: Store, seeds: Sequence[int]) -> list[str]:
        """Return what rootscale warned of in these runs."""
        found: dict[str, None] = {}
        for group, _ in store.locate(store.want(self, seeds)).values():
            record: Any = json.loads(group.file("run.json").read_text(encoding="utf-8"))
            found |= dict.fromkeys(record.get("guards", ()))
        return list(found)


@contextmanager
def noted(messages: list[str]) -> Iterator[None]:
    """Note what rootscale warns of, a `Run` of the loop's own among it; warnings are shown as ever."""
    show = warnings.showwarning

    def note(message: Any, category: Any, *place: Any, **where: Any) -> None:
        if issubclass(category, ScalingWarning) and str(message) not in messages:
            messages.append(str(message))
        show(message, category, *place, **where)

    warnings.showwarning = note
    try:
        yield
    finally:
        warnings.showwarning = show


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


def _need_same(loop: Loop, wanted: Wanted) -> None:
    """Refuse a run of a command whose program was changed while it ran: nobody knows which one it was."""
    if hasattr(loop.train, "source") and wanted.fingerprint:
        now = loop.fingerprint()
        if changed := differences({**wanted.fingerprint, **now, "seeds": {}}, wanted.fingerprint):
            raise ValueError(f"{listed(changed)} of the command changed while it ran: start the check again")


def _train(loop: Loop, seed: int, log: RunLog, convert: Convert) -> None:
    """Train; the random numbers do not depend on what ran before in this process."""
    with torch.random.fork_rng(), in_one_process():
        torch.manual_seed(seed)
        options = {"convert": convert} if "convert" in inspect.signature(loop.train).parameters else {}
        loop.train(batch_size=convert.batch_size, seed=seed, log=log, **options)
