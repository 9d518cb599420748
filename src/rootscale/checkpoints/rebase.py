"""The numbers of a run in the units of another batch size: hyperparameters, the optimizer's state, its schedulers.

The file then is what a run with the new batch size, and numbers tuned for it, would have written. Nothing in it says
that it was converted. Tensors are not multiplied here: their factors are returned, and used when they are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes
from rootscale.checkpoints.optimizers import MARKER, SCHEDULED, SavedOptimizer
from rootscale.checkpoints.schedulers import SavedScheduler, frames_of
from rootscale.format import show
from rootscale.optimizers import Family
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import families_of
from rootscale.units import stops

__all__ = ["Contents", "Converted", "Request", "convert_contents", "is_marked", "marked_kappa"]


@dataclass(frozen=True)
class Request:
    """A change of batch size that a user asks for.

    Args:
        before: samples per optimizer step that the checkpoint was written at.
        after: those that it shall be resumed at.
        rule: the text of a rule; None is each optimizer's own.
        dataset_size: samples in the training data, where a tool counts epochs in steps.
        script_units: whether a file of version 0.1 is taken back to the units of its script; see `marked_kappa`.
    """

    before: BatchSize
    after: BatchSize
    rule: str | Rule | None = None
    dataset_size: int | None = None
    script_units: bool = False

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


def marked_kappa(contents: Contents) -> tuple[Fraction, float | None]:
    """Return how far version 0.1 has converted a run beyond its script, and the batch size that it noted.

    It kept the run's numbers in the units of the batch, and noted in the optimizer's groups how to get back.
    """
    group = contents.optimizers[0].groups[0]
    kappa = Fraction(float(group.get(f"{MARKER}kappa") or 1.0)).limit_denominator(10**6)
    size = group.get(f"{MARKER}batch_size")
    return kappa, None if size is None else float(size)


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
    intervals = [] if request.script_units else [one.clock(contents.epoch) for one in contents.schedulers]
    parts = [part for one in contents.optimizers for part in _parts(one, request, len(contents.optimizers) > 1)]
    report: list[Change] = []
    factors: dict[int, float] = {}
    noted = contents.optimizers[0].groups[0].get(f"{MARKER}ema_kappa")
    with torch.no_grad():
        for part in parts:
            report += part.convert_groups()
        for part in parts:
            report += part.convert_state(factors)
        for optimizer in contents.optimizers:
            for group in optimizer.live.param_groups:
                for key in [key for key in group if str(key).startswith(MARKER)]:
                    del group[key]
            optimizer.put_back()
        common = parts[0].rule
        for i, scheduler in enumerate(contents.schedulers):
            own = next(part.rule for part in parts if part.saved is scheduler.optimizer)
            if request.script_units:
                rates = [float(group["lr"]) for group in scheduler.optimizer.live.param_groups]
                scheduler.restore(rates)
            else:
                report += scheduler.convert(own, kappa, intervals[i])
    ema_kappa = 1 / float(noted) if request.script_units and noted else kappa
    for name, average in contents.decays.items():
        before = average["decay"]
        average["decay"] = float(common.convert("ema", before, ema_kappa, "EMA decay"))
        report.append(Change(f"decay of {name}", before, average["decay"], common.units.get("ema")))
    for name, (place, key) in contents.named.items():
        exact = Fraction(place[key]) / request.kappa
        used = exact.numerator // exact.denominator
        note = "" if used == exact else f"rounded down from {show(exact)}"
        report.append(Change(name, place[key], exact, common.units.get("steps"), used, note))
        place[key] = used
    warnings = dict.fromkeys(text for part in parts for text in part.warnings)
    title = f"batch size {request.before} -> {request.after}, kappa = {show(request.kappa)}"
    return Converted(Changes(kappa, common, (*report, *rows), (*warnings,), title), factors)


class _Part:
    """The groups of an optimizer that are of one family."""

    def __init__(self, saved: SavedOptimizer, family: Family, groups: list[int], request: Request, prefix: str) -> None:
        self.saved, self.family, self.request, self.prefix = saved, family, request, prefix
        self.kappa = float(request.kappa)
        self.rule = get_rule(request.rule, family.name)
        self.groups = {i: saved.live.param_groups[i] for i in groups}
        self.weights: dict[int, tuple[dict[str, float], dict[str, float]]] = {}
        self.warnings = [f"{prefix}{text}" for text in self.rule.check(family.name)]

    def convert_groups(self) -> Iterator[Change]:
        """Convert the hyperparameters, and what schedulers keep beside them."""
        stopped = []
        many = len(self.saved.live.param_groups) > 1
        for i, group in self.groups.items():
            suffix = f" (group {i})" if many else ""
            before, after = self.weights.setdefault(i, ({}, {}))
            new: dict[str, Any] = {}
            for key, units in self.family.group_units(group).items():
                old = group[key]
                numbers, each = _tuple(old), _tuple(units)
                if len(numbers) != len(each):
                    raise ValueError(f"{self.prefix}{key} must be {len(each)} numbers, got {len(numbers)}")
                values = [self._value(group, unit, float(one), key) for unit, one in zip(each, numbers, strict=True)]
                used = [_whole(one, value) for one, value in zip(numbers, values, strict=True)]
                new[key] = used if isinstance(units, tuple) or isinstance(old, list | tuple) else used[0]
                names = _tuple(self.family.torch.values.get(key, key)) if isinstance(units, tuple) else (key,)
                for name, unit, one, value, whole in zip(names, each, numbers, values, used, strict=True):
                    before[unit], after[unit] = float(one), float(value)
                    row = self.rule.row(unit, float(one), value, self.kappa)
                    rounded = None if whole == value or isinstance(whole, float) else whole
                    note = "" if rounded is None else f"rounded from {show(value)}"
                    label = f"{self.prefix}{name or key}{suffix}"
                    if unit in self.rule.units and stops(self.rule.units[unit].form, float(one), value, self.kappa):
                        stopped.append(label)
                    yield Change(label, float(one), value, row, rounded, note)
            new |= self._scheduled(group)
            for key, value in new.items():
                _put(group, key, value)
            self.warnings += self.rule.check_averages(self.kappa, before.get("beta1", 0.0), before.get("beta2"))
        if stopped and not self.request.script_units:
            self.warnings.append(
                f"{', '.join(stopped)}: stopped at a floor, so converting the new file back does not return it; keep "
                "the old one"
            )

    def _value(self, group: Mapping[str, Any], unit: str, value: float, name: str) -> float:
        """Return a hyperparameter at the new batch size; a weight that a floor stopped returns to where it was."""
        if self.request.script_units and self.rule.form(unit).floor is not None:
            noted, floor = group.get(f"{MARKER}{unit}"), self.rule.form(unit).floor or 0.0
            free = value if noted is None or value > floor else float(noted)  # without floors
            first = value if self.kappa <= 1 else 1 - (1 - free) * self.kappa
            return value and max(1 - self.kappa * (1 - free), min(floor, first))
        return float(self.rule.convert(unit, value, self.kappa, name))

    def _scheduled(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return what schedulers keep in a group, at the new batch size."""
        keys = {key for keys in SCHEDULED if all(key in group for key in keys) for key in keys}
        own = self.family.torch_units()
        cycled = _tuple(own["betas"])[0] if "betas" in own else own.get("momentum", "")
        new: dict[str, Any] = {}
        for key in keys:
            if group[key] is not None:
                unit = str(cycled) if key.endswith("momentum") else "eta"
                new[key] = float(self.rule.convert(unit, float(group[key]), self.kappa, key))
        return new

    def convert_state(self, factors: dict[int, float]) -> Iterator[Change]:
        """Convert the numbers of the state, and note the factors of its tensors."""
        states = [
            (i, state)
            for i, group in self.groups.items()
            for parameter in group["params"]
            if (state := self.saved.live.state.get(parameter))
        ]
        self._check_state([state for _, state in states])
        memory: set[tuple[Any, ...]] = set()
        for name, unit in self.family.torch_state_units().items():
            pieces: dict[float, list[Tensor]] = {}
            owners: dict[float, list[int]] = {}
            numbers: dict[float, Change] = {}
            for i, state in states:
                piece = _piece(state, name)
                if isinstance(piece, int | float) and not isinstance(piece, bool):
                    state[name], numbers[piece] = self._counter(name, unit, piece)
                    continue
                for tensor in _tensors(piece, name, state, self.family):
                    if not tensor.is_floating_point() and not tensor.is_complex():
                        if tensor.dim() or unit != "step_counter":
                            raise TypeError(f"{self.prefix}{name} must be numbers with a fraction, got {tensor.dtype}")
                        value, numbers[float(tensor)] = self._counter(name, unit, int(tensor))
                        tensor.fill_(value)
                        continue
                    if tensor.numel() and _memory(tensor) in memory:
                        continue
                    memory.add(_memory(tensor))
                    factor = self.rule.factor(unit, self.kappa, *self.weights[i])
                    pieces.setdefault(factor, []).append(tensor)
                    owners.setdefault(factor, []).append(i)
            yield from numbers.values()
            for factor, tensors in pieces.items():
                which = f" (groups {', '.join(map(str, dict.fromkeys(owners[factor])))})" if len(pieces) > 1 else ""
                yield self._multiplied(f"{name}{which}", unit, factor, tensors, states, factors)

    def _multiplied(
        self,
        name: str,
        unit: str,
        factor: float,
        tensors: list[Tensor],
        states: list[tuple[int, dict[str, Any]]],
        factors: dict[int, float],
    ) -> Change:
        """Note the factor of some tensors, and return the row to report."""
        row = self.rule.units.get(unit)
        note = f"{len(tensors)} tensor{'s' * (len(tensors) != 1)}"
        if row is not None and row.form.follows and factor != 1:
            row = replace(row, status="measured", source="results/floors")
        if self.family.name == "rmsprop-centered" and unit == "v":
            # v holds the square of the mean too, and only what exceeds that is noise.
            mean = self.family.torch.state_name("a")
            pairs = {id(state[name]): state[mean] for _, state in states if name in state and mean in state}
            for tensor in tensors:
                tensor.mul_(factor).addcmul_(pairs[id(tensor)], pairs[id(tensor)], value=1 - factor)
            return Change(
                f"{self.prefix}factor of {name}", 1.0, factor, row, note=f"of what exceeds the squared mean; {note}"
            )
        for tensor in tensors if factor != 1 else ():
            if self.saved.streamed(tensor):
                factors[id(tensor)] = factor
            else:  # a counter that is a number in the file, or a part of a tensor
                tensor.mul_(factor)
        self.warnings += _leaves_format(f"{self.prefix}{name}", tensors, factor)
        return Change(f"{self.prefix}factor of {name}", 1.0, factor, row, note=note)

    def _counter(self, name: str, unit: str, before: float) -> tuple[int | float, Change]:
        after = float(self.rule.convert(unit, float(before), self.kappa, name)) if before else float(before)
        used = _whole(before, after)
        note = "" if used == after else f"rounded from {show(after)}"
        row = self.rule.units.get(unit)
        return used, Change(f"{self.prefix}{name}", before, after, row, int(used) if note else None, note)

    def _check_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuse state of which something is not known."""
        unknown = self.family.unknown_state(states)
        if unknown:
            raise ValueError(
                f"{self.saved.name} has {', '.join(unknown)} in its state, which {self.family.torch.name} has not: it "
                "is of another optimizer, whose state is not known"
            )
        if any(name in state for name in self.family.torch.foreign for state in states):
            raise ValueError(f"{self.saved.name} has state of another optimizer in a group of {self.family.name}")
        changes = any(before.get("mu") != after.get("mu") for before, after in self.weights.values())
        if self.family.torch.unsure and changes and states:
            raise ValueError(self.family.torch.unsure)


def _parts(saved: SavedOptimizer, request: Request, several: bool) -> list[_Part]:
    families = families_of(saved.live)
    prefix = f"{saved.name}: " if several else ""
    return [
        _Part(saved, family, groups, request, f"{prefix}{family.name}: " if len(families) > 1 else prefix)
        for family, groups in families
    ]


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _whole(old: Any, value: float) -> int | float:
    """Return a whole number where there was one: a warm-up of 10 steps does not become one of 2.5."""
    integer = isinstance(old, int) and not isinstance(old, bool)
    return value if not integer else max(1, round(value)) if old else 0


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    """Write a value into a group; tensors are filled."""
    old = group[key]
    if isinstance(old, Tensor):
        old.fill_(value)
    elif isinstance(old, list | tuple):
        group[key] = type(old)(
            one.fill_(new) if isinstance(one, Tensor) else new for one, new in zip(old, value, strict=True)
        )
    else:
        group[key] = value


_INDEXED = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")


def _piece(state: Mapping[str, Any], name: str) -> Any:
    """Return a piece of a parameter's state; ``state1[0]`` is the first part of a tensor."""
    match = _INDEXED.fullmatch(name)
    if match is None:
        return state.get(name)
    whole = state.get(match["name"])
    return None if whole is None or int(match["index"]) >= len(whole) else whole[int(match["index"])]


def _tensors(piece: Any, name: str, state: Mapping[str, Any], family: Family) -> Iterator[Tensor]:
    """Yield the tensors to convert: of codes in few bits the scales, of lists every one."""
    codes = family.torch.codes
    for one in piece if isinstance(piece, list | tuple) else [piece]:
        if one is None or isinstance(one, int | float) or (isinstance(one, list) and not one):
            continue
        if not isinstance(one, Tensor):
            raise TypeError(f"{name} in the optimizer's state must be a tensor, got {type(one).__name__}")
        if not (name in codes and not one.is_floating_point() and codes[name] in state):
            yield one


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return which entries of which memory a tensor has; two names of one tensor are multiplied once."""
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _leaves_format(name: str, tensors: Sequence[Tensor], factor: float) -> Iterator[str]:
    """Yield a warning where values of a half-precision state become 0 or infinite."""
    short = [tensor for tensor in tensors if tensor.element_size() < 4 and tensor.numel() and factor != 1]
    lost = total = 0
    for tensor in short[:: max(1, len(short) // 16)]:
        sample = tensor.reshape(-1)[:: max(1, tensor.numel() // 256)]
        after = sample * factor
        lost += int(((after == 0) & (sample != 0)).sum() + (after.isinf() & ~sample.isinf()).sum())
        total += len(sample)
    if lost:
        share = math.ceil(100 * lost / total)
        yield f"{share} % of sampled values of {name} become 0 or infinite in {short[0].dtype}; keep it in float32"


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


def is_marked(contents: Contents) -> bool:
    """Return whether version 0.1 left the file in other units than those of its script."""
    return marked_kappa(contents)[0] != 1 or any(frames_of(one.attributes) for one in contents.schedulers)
