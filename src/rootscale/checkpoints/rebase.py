"""The numbers of a run in the units of another batch size: hyperparameters, the optimizer's state, its schedulers.

The file then is what a run with the new batch size, and numbers tuned for it, would have written. Nothing in it says
that it was converted. Optimizers are converted as live ones are (`rootscale.training.projected`). Their tensors are not
multiplied here: their factors are returned, and used when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, no_way_back
from rootscale.checkpoints.optimizers import SCHEDULED, SavedOptimizer
from rootscale.checkpoints.schedulers import SavedScheduler
from rootscale.documents import Quantity, Values, commit, convert, round_down
from rootscale.format import show
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import families_of
from rootscale.training.guards import doubts
from rootscale.training.projected import CLOCK, ProjectedOptimizer
from rootscale.training.projection import whole_number
from rootscale.training.state import StateScaling
from rootscale.units import Number


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
        counters: step counters of the user's program, by where they are; they are converted if the user names them.
        named: the counters that the user named, with the dictionary and the key of each.
    """

    optimizers: list[SavedOptimizer]
    schedulers: list[SavedScheduler] = field(default_factory=list)
    decays: dict[str, dict[str, Any]] = field(default_factory=dict)
    epoch: int | None = None
    batchnorm: bool = False
    averages: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    named: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def remaining(self, request: Request, rule: Rule) -> Iterator[str]:
        """Yield what a user still has to do: what no checkpoint holds."""
        kappa, forward = float(request.kappa), float(request.before.forward_kappa(request.after))
        yield f"batch size of the data loader (or accumulation, or workers): {request.before} -> {request.after}"
        yield f"steps of the loop, and every interval in steps: divide by {show(kappa)}"
        for name, value in self.counters.items():
            if name not in self.named:
                same = show(Fraction(value) / request.kappa)
                yield f"{name} = {value:,} is kept: if it counts steps, --counter {name} makes it {same}"
        for scheduler in self.schedulers:
            if scheduler.has_functions:
                yield (
                    f"{scheduler.name}: its function of the step is in your program; there divide every number of "
                    f"steps by {show(kappa)}"
                )
        yield f"gradient clip, if there is one: times {show(float(rule.convert('clip', 1.0, kappa)))}"
        if self.batchnorm:
            after = show(float(rule.convert("batchnorm", 0.1, forward, "BatchNorm momentum")))
            yield f"BatchNorm's momentum is in no checkpoint: change it in your program (.1 becomes {after})"
        if not self.decays:
            after = show(float(rule.convert("ema", 0.999, kappa, "EMA decay")))
            yield f"the decay of a parameter average, if there is one: change it in your program (.999 becomes {after})"


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
        ValueError: it cannot be converted as a whole, and nothing is written then.
        TypeError: the same.
    """
    _match(contents)
    kappa = float(request.kappa)
    intervals = [scheduler.clock(contents.epoch) for scheduler in contents.schedulers]
    optimizers = [_projected(saved, request, len(contents.optimizers) > 1) for saved in contents.optimizers]
    report: list[Change] = []
    warnings: list[str] = []
    factors: dict[int, float] = {}
    written: set[int] = set()
    with torch.no_grad():
        scalings = []
        for optimizer in optimizers:
            optimizer.check(kappa)
            scalings.append(optimizer.scaling(kappa))
            warnings += [
                f"{optimizer.prefix}{text}" for name, rule in optimizer.rules.items() for text in rule.check(name)
            ]
            warnings += doubts(optimizer, kappa, eps=False, batchnorm=contents.batchnorm)
        for saved, optimizer, scaling in zip(contents.optimizers, optimizers, scalings, strict=True):
            report += _rows(optimizer, scaling, kappa)
            factors |= scaling.stream(saved.streamed)
            scaling.finish()
            scheduled = [_scheduled(optimizer, group, kappa) for group in saved.live.param_groups]
            optimizer.write(kappa, written)
            report += _clock(saved.live.param_groups[0], optimizer, kappa)
            for group, values in zip(saved.live.param_groups, scheduled, strict=True):
                group |= values
            saved.put_back()
        common = next(iter(optimizers[0].rules.values()))
        for scheduler, interval in zip(contents.schedulers, intervals, strict=True):
            (owner,) = (i for i, saved in enumerate(contents.optimizers) if saved is scheduler.optimizer)
            report += scheduler.convert(next(iter(optimizers[owner].rules.values())), kappa, interval)
    for name, average in contents.decays.items():
        report += _committed(Values(average), Quantity("decay", "ema", f"decay of {name}"), common, kappa)
    for name, (holder, key) in contents.named.items():
        report += _committed(Values(holder), Quantity(key, "steps", name, round_down), common, request.kappa)
    warnings += no_way_back(report, kappa)
    title = f"batch size {request.before} -> {request.after}, kappa = {show(request.kappa)}"
    used = [pair for optimizer in optimizers for pair in optimizer.families]
    varies = "schedule" if contents.schedulers else ""
    changes = Changes.made(
        kappa, common, [*report, *rows], dict.fromkeys(warnings), optimizers=used, varies=varies,
        batchnorm=contents.batchnorm, title=title,
    )  # fmt: skip
    return Converted(changes, factors)


def _projected(saved: SavedOptimizer, request: Request, several: bool) -> ProjectedOptimizer:
    """Return the optimizer of a file as one whose numbers can be brought to another batch size."""
    rules = {family.name: get_rule(request.rule, family.name) for family, _ in families_of(saved.live)}
    return ProjectedOptimizer(saved.live, rules, f"{saved.name}: " if several else "")


def _rows(optimizer: ProjectedOptimizer, scaling: StateScaling, kappa: float) -> Iterator[Change]:
    """Yield the rows to report: hyperparameters, factors of tensors with their number, counters."""
    rows = optimizer.changes(kappa)
    counters = {(name, unit): (before, exact) for name, unit, before, exact in scaling.numbers()}
    for row in optimizer.state_changes(kappa):
        name = row.name.removeprefix("factor of ")
        count = scaling.counts.get(name, {}).get(float(row.after or 0))
        if count is not None:
            rows.append(replace(row, note=f"{count} tensor{'s' * (count != 1)}"))
    units = next(iter(optimizer.rules.values())).units
    for (name, unit), (before, exact) in counters.items():
        used = whole_number(before, exact)
        note = "" if used == exact else f"rounded from {show(exact)}"
        rows.append(Change(name, float(before), exact, units.get(unit), used if note else None, note))
    for row in rows:
        yield replace(row, name=f"{optimizer.prefix}{row.name}", field=f"{optimizer.prefix}{row.field}")


def _clock(group: dict[str, Any], optimizer: ProjectedOptimizer, kappa: float) -> Iterator[Change]:
    """Convert the clock that a `Run` keeps in the first group where the state counts no steps."""
    clock = Quantity(CLOCK, "steps", f"{optimizer.prefix}{CLOCK}")
    yield from _committed(Values(group), clock, next(iter(optimizer.rules.values())), kappa)


def _committed(document: Values, quantity: Quantity, rule: Rule, kappa: Number) -> list[Change]:
    """Convert a number of a checkpoint where it stands, and return the row to report."""
    rows = convert(document, [quantity], rule, kappa)
    commit([(document, row) for row in rows])
    return [replace(row, field=row.name) for row in rows]


def _scheduled(optimizer: ProjectedOptimizer, group: dict[str, Any], kappa: float) -> dict[str, Any]:
    """Return what schedulers keep in a group beside its hyperparameters, at the new batch size."""
    projection = optimizer.projection(group)
    keys = {key for keys in SCHEDULED if all(key in group for key in keys) for key in keys}
    cycled = projection.units.get("betas", projection.units.get("momentum", ("",)))[0]
    return {
        key: float(
            projection.rule.convert(cycled if key.endswith("momentum") else "eta", float(group[key]), kappa, key)
        )
        for key in keys
        if group[key] is not None
    }


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
        scheduler.optimizer = fitting[0]
