"""What a checkpoint holds of a run, and its conversion by the same code that converts a live run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, Reminder
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.training.checkpoints.saved import SavedOptimizer
from rootscale.training.checkpoints.saved_scheduler import SavedScheduler
from rootscale.training.live import Live, Switch
from rootscale.training.markers import TAG, units_of
from rootscale.training.prepared import prepare
from rootscale.training.watch import settle

__all__ = ["Contents", "Converted", "Request", "convert_contents"]


@dataclass(frozen=True)
class Request:
    """A change of batch size that a user asks for.

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
        decays: dictionaries of parameter averages that have a ``decay``, by where they are.
        epoch: that the checkpoint is of, where it says so.
        batchnorm: whether the model has layers with running statistics.
        averages: whether there are averaged parameters whose decay is in the user's program.
        counters: step counters of the user's program, which are kept, by where they are.
    """

    optimizers: list[SavedOptimizer]
    schedulers: list[SavedScheduler] = field(default_factory=list)
    decays: dict[str, dict[str, Any]] = field(default_factory=dict)
    epoch: int | None = None
    batchnorm: bool = False
    averages: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    def live(self) -> Live:
        """Return the run as the objects that are converted together.

        A layer and averages stand in for those of the user's program. So the checkpoint says, as that of a live run
        does, that they have to be brought to the same units when it is loaded, and which decay those in it have.
        """
        carried = units_of(self.optimizers[0].live.param_groups)
        norm: Any = torch.nn.BatchNorm1d(1)
        setattr(norm, TAG, carried.parts.get("model", 1.0))
        averages: list[Any] = [SimpleNamespace(decay=one["decay"]) for one in self.decays.values()]
        if self.averages and not averages:
            function = get_ema_multi_avg_fn(0.5)  # type: ignore[no-untyped-call]
            averages.append(AveragedModel(norm, multi_avg_fn=function))
        for one in averages:
            setattr(one, TAG, carried.parts.get("ema", 1.0))
        for optimizer in self.optimizers:  # whether the momentum was in an earlier change is not known
            settle(optimizer.live, {"model": carried.parts.get("model", 1.0)})
        intervals: Any = [one.clock(self._owner(one).steps, self.epoch) for one in self.schedulers]
        return Live(
            [one.live for one in self.optimizers],
            [one.live for one in self.schedulers],
            [norm] if self.batchnorm else [],
            averages,
            intervals,
        )

    def _owner(self, scheduler: SavedScheduler) -> SavedOptimizer:
        return next(one for one in self.optimizers if one.live is scheduler.live.optimizer)

    def remaining(self, request: Request, rule: Rule) -> Iterator[str]:
        """Yield what a user still has to do: what no checkpoint holds."""
        kappa, forward = float(request.kappa), float(request.before.forward_kappa(request.after))
        parts = {"scheduler": self.schedulers, "model": self.batchnorm, "ema": self.averages or self.decays}
        words = "".join(f", {name}={name}" for name, there in parts.items() if there)
        if words:
            yield Reminder(f"after loading: rootscale.training.restore_(optimizer{words})", "restore")
        yield f"batch size of the data loader (or accumulation, or workers): {request.before} -> {request.after}"
        yield f"steps left, and every interval in steps: divide by {show(kappa)}"
        for name, value in self.counters.items():
            same = show(Fraction(value) / request.kappa)
            yield f"{name} = {value:,} is kept: if it counts steps, as many samples are {same} of them now"
        yield f"gradient clip, if there is one: times {show(float(rule.convert('clip', 1.0, kappa)))}"
        after = show(float(rule.convert("batchnorm", 0.1, forward, "BatchNorm momentum")))
        if self.batchnorm:
            yield Reminder(
                f"BatchNorm's momentum is in no checkpoint: restore_ converts it (.1 becomes {after})", "restore"
            )
        after = show(float(rule.convert("ema", 0.999, kappa, "EMA decay")))
        known = "restore_ converts it" if self.averages else "give ema= to restore_, or change it"
        if not self.decays:
            yield Reminder(
                f"the decay of a parameter average, if there is one: {known} (.999 becomes {after})", "restore"
            )


@dataclass(frozen=True)
class Converted:
    """A conversion that has been made of what was read, and is to be written.

    Args:
        changes: every change.
        factors: of the tensors that are to be multiplied when they are written, by ``id``.
    """

    changes: Changes
    factors: Mapping[int, float]


def convert_contents(contents: Contents, request: Request, rows: Sequence[Change] = ()) -> Converted:
    """Convert what was found: dictionaries at once, tensors by the factors that are returned.

    Args:
        contents: what was found; its dictionaries are changed.
        request: the change.
        rows: further ones to report, of what a tool counts.

    Raises:
        ValueError: it cannot be converted as a whole, and nothing has changed.
        TypeError: the same.
    """
    _check_units(contents, request)
    _match(contents)
    live = contents.live()
    switch = Switch.of(None, (request.before, request.after), carried=live.carried)
    prepared = prepare(live, switch, rule=request.rule)
    with torch.no_grad():
        for edit in prepared.edits:
            edit.apply()
    factors = {}
    for tensor, factor in prepared.state.pairs():
        if any(one.streamed(tensor) for one in contents.optimizers):
            factors[id(tensor)] = factor
        else:  # a counter that is a number in the file, or a part of a tensor
            torch._foreach_mul_([tensor], [factor])
    for optimizer in contents.optimizers:
        optimizer.put_back()
    for scheduler in contents.schedulers:
        scheduler.put_back()
    changes = prepared.changes
    own = [row for row in changes if row.name not in ("BatchNorm momentum", "EMA decay")]  # of what stands in
    own += [_convert_decay(name, held, changes.rule, switch.kappa) for name, held in contents.decays.items()]
    title = f"batch size {request.before} -> {request.after}, kappa = {show(request.kappa)}"
    return Converted(replace(changes, title=title, rows=(*own, *rows), remaining=()), factors)


def _convert_decay(name: str, held: dict[str, Any], rule: Rule, kappa: float) -> Change:
    before = held["decay"]
    held["decay"] = float(rule.convert("ema", before, kappa, "EMA decay"))
    return Change(f"decay of {name}", before, held["decay"], rule.units.get("ema"))


def _check_units(contents: Contents, request: Request) -> None:
    """Refuse a batch size that the checkpoint contradicts: converted runs carry theirs in their groups."""
    for optimizer in contents.optimizers:
        size = units_of(optimizer.live.param_groups).batch_size
        if size is not None and size != float(request.before.total):
            raise ValueError(
                f"{optimizer.name} says that it is at batch size {show(size)}, but --from is "
                f"{show(request.before.total)}: give --from {show(size)}"
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
