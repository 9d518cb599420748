"""What a checkpoint holds of a run, and its conversion by the same code that converts a live run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.training.checkpoints.saved import SavedOptimizer, SavedScheduler
from rootscale.training.rescale import prepare

__all__ = ["Contents", "Switch", "convert_contents"]


@dataclass(frozen=True)
class Switch:
    """A change of batch size.

    Args:
        before: samples per optimizer step that the checkpoint was written at.
        after: those that it shall be resumed at.
        rule: the text of a rule; None is each optimizer's own.
        dataset_size: samples in the training data, where a tool counts epochs in steps.
    """

    before: BatchSize
    after: BatchSize
    rule: str | Rule | None = None
    dataset_size: int | None = None

    @property
    def kappa(self) -> Fraction:
        """New batch size over old one."""
        return Fraction(self.after.total) / Fraction(self.before.total)


@dataclass
class Contents:
    """What was found in a checkpoint.

    Args:
        optimizers: all of them.
        schedulers: all of them.
        averages: dictionaries of parameter averages that have a ``decay``, by where they are.
        epoch: that the checkpoint is of, where it says so.
        batchnorm: whether the model has layers with running statistics; None is not known.
        counters: step counters of the user's program, which are kept, by where they are.
    """

    optimizers: list[SavedOptimizer]
    schedulers: list[SavedScheduler] = field(default_factory=list)
    averages: dict[str, dict[str, Any]] = field(default_factory=dict)
    epoch: int | None = None
    batchnorm: bool | None = None
    counters: dict[str, int] = field(default_factory=dict)

    def remaining(self, switch: Switch, rule: Rule) -> list[str]:
        """Return what a user still has to change: what no checkpoint holds."""
        kappa, forward = float(switch.kappa), float(switch.before.forward_kappa(switch.after))
        lines = [f"the data loader: {switch.after} samples per step; the number of steps left and intervals in steps: "
                 f"/ {show(kappa)}"]  # fmt: skip
        for name, value in self.counters.items():
            lines.append(
                f"{name} = {value:,} is kept: your program counts steps in it, and as many samples are "
                f"{show(Fraction(value) / switch.kappa)} steps now"
            )
        lines.append(f"a gradient clip: * {show(float(rule.convert('clip', 1.0, kappa)))}")
        if self.batchnorm is not False:
            after = float(rule.convert("batchnorm", 0.1, forward, "BatchNorm momentum"))
            lines.append(f"the momentum of BatchNorm layers, in the model's code: .1 becomes {show(after)}")
        after = float(rule.convert("ema", 0.999, kappa, "EMA decay"))
        lines.append(f"the decay of a parameter average, in your program: .999 becomes {show(after)}")
        return lines


@dataclass(frozen=True)
class Converted:
    """A conversion that has been made of what was read, and is to be written.

    Args:
        changes: every change.
        factors: of the tensors that are to be multiplied when they are written, by ``id``.
    """

    changes: Changes
    factors: Mapping[int, float]


def convert_contents(contents: Contents, switch: Switch, rows: Sequence[Change] = ()) -> Converted:
    """Convert what was found: dictionaries at once, tensors by the factors that are returned.

    Args:
        contents: what was found; its dictionaries are changed.
        switch: the change.
        rows: further ones to report, of what a tool counts.

    Raises:
        ValueError: it cannot be converted as a whole, and nothing has changed.
        TypeError: the same.
    """
    _check_units(contents, switch)
    _match(contents)
    intervals: Any = [one.clock(_owner(contents, one).steps, contents.epoch) for one in contents.schedulers]
    averages = [SimpleNamespace(decay=one["decay"]) for one in contents.averages.values()]
    prepared = prepare(
        [one.live for one in contents.optimizers], float(switch.kappa), rule=switch.rule, ema=averages,
        scheduler=[one.live for one in contents.schedulers], interval=intervals,
    )  # fmt: skip
    with torch.no_grad():
        for edit in prepared.edits:
            edit.apply()
    factors = {id(tensor): factor for tensor, factor in prepared.state.pairs()}
    for optimizer in contents.optimizers:
        optimizer.multiply_numbers(factors)
        optimizer.put_back()
    for scheduler in contents.schedulers:
        scheduler.put_back()
    for held, average in zip(contents.averages.values(), averages, strict=True):
        held["decay"] = average.decay
    title = f"batch size {switch.before} -> {switch.after}, kappa = {show(switch.kappa)}"
    changes = replace(prepared.changes, title=title, rows=(*prepared.changes.rows, *rows))
    return Converted(changes, factors)


def _check_units(contents: Contents, switch: Switch) -> None:
    """Refuse a batch size that the checkpoint contradicts: converted runs carry theirs in their groups."""
    for optimizer in contents.optimizers:
        for group in optimizer.groups:
            size = group.get("rootscale_batch_size")
            if size is not None and float(size) != float(switch.before.total):
                raise ValueError(
                    f"{optimizer.name} says that it is in units of batch size {show(float(size))}, to which it was "
                    f"converted before, but --from is {show(switch.before.total)}: give --from {show(float(size))}"
                )


def _match(contents: Contents) -> None:
    """Give each scheduler its optimizer: the only one, that whose learning rates it has set, or that in its place."""
    optimizers, schedulers = contents.optimizers, contents.schedulers
    for i, scheduler in enumerate(schedulers):
        fitting = [one for one in optimizers if scheduler.fits(one)]
        if len(optimizers) == 1:
            fitting = optimizers[:1]
        elif len(optimizers) == len(schedulers) and optimizers[i] in fitting:
            fitting = [optimizers[i]]
        if len(fitting) != 1:
            raise ValueError(
                f"{scheduler.name} belongs to one of the optimizers {', '.join(one.name for one in optimizers)}, but "
                "the file does not say to which; give the optimizer and its scheduler with --optimizer-key and "
                "--scheduler-key"
            )
        scheduler.belong(fitting[0])


def _owner(contents: Contents, scheduler: SavedScheduler) -> SavedOptimizer:
    return next(one for one in contents.optimizers if one.live is scheduler.live.optimizer)
