"""Which optimizers a conversion is for: their families, their rules and their schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.format import show
from rootscale.optimizers import Family
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import families_of, family_of_defaults
from rootscale.training.drivers import check_outermost
from rootscale.training.markers import same
from rootscale.training.scheduler_changes import check_scheduler

__all__ = [
    "Rules",
    "Target",
    "bare_optimizers",
    "check_forward",
    "common_rule",
    "find_targets",
    "match_schedulers",
    "prefixed_errors",
    "several",
]


@dataclass(frozen=True)
class Target:
    """An optimizer, or the groups of it that are of one family, and its rule.

    The prefix names it where there are several, and is empty for one. Of the families of one optimizer the first leads:
    what is one for all groups, such as schedulers, belongs to it.
    """

    optimizer: torch.optim.Optimizer
    family: Family
    rule: Rule
    prefix: str
    part: Any
    leads: bool = True


class Part:
    """Some groups of an optimizer, with what a conversion reads of an optimizer.

    The defaults, from which groups that are added later start, belong to one part.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Sequence[int], has_defaults: bool) -> None:
        self.param_groups = [optimizer.param_groups[i] for i in groups]
        own = {parameter for group in self.param_groups for parameter in group["params"]}
        self.state = {parameter: state for parameter, state in optimizer.state.items() if parameter in own}
        self.defaults: dict[str, Any] = optimizer.defaults if has_defaults else {}
        self.step = optimizer.step


def several(value: Any) -> list[Any]:
    """Return the items of a list or tuple, a single thing as a list of one, and nothing for None."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


#: One rule for all optimizers, or one for each by position or by the name of its family; None is each one's own.
Rules = str | Rule | None | Sequence[str | Rule | None] | Mapping[str, str | Rule | None]


def find_targets(optimizer: Any, rule: Rules) -> list[Target]:
    """Return the optimizers that were given, each with its family and its rule."""
    given = list(bare_optimizers(optimizer))
    if not given:
        raise ValueError(
            f"optimizer must be an optimizer or a sequence of them, got an empty {type(optimizer).__name__}"
        )
    targets: list[Target] = []
    for i, one in enumerate(given):
        for target in targets:
            if target.optimizer is one:
                raise ValueError(f"optimizer {i} is optimizer {given.index(one)} again; give each of them once")
        prefix = f"optimizer {i}: " if len(given) > 1 else ""
        with prefixed_errors(prefix):
            found = families_of(one)
            default = _with_defaults(one, [family.name for family, _ in found])
        for j, (family, groups) in enumerate(found):
            named = f"{prefix}{family.name}: " if len(found) > 1 else prefix
            chosen = get_rule(_rule_for(rule, i, family.name, len(given)), family.name)
            part = one if len(found) == 1 else Part(one, groups, has_defaults=j == default)
            targets.append(Target(one, family, chosen, named, part, leads=j == 0))
    _check_used(rule, targets)
    _check_shared(targets)
    return targets


def _with_defaults(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> int:
    """Return the number of the family that converts the defaults: the one they are of, or else the first."""
    name = family_of_defaults(optimizer) if len(names) > 1 else ""
    return names.index(name) if name in names else 0


def bare_optimizers(given: Any) -> Iterator[Any]:
    """Yield the optimizers of lists, dictionaries, containers with ``optimizers``, and other iterables, nested too."""
    inner = getattr(given, "optimizers", None)
    if isinstance(inner, list | tuple | Mapping):
        given = inner
    if isinstance(given, Mapping):
        given = given.values()
    elif isinstance(given, torch.optim.Optimizer | torch.Tensor | str) or not hasattr(given, "__iter__"):
        yield given
        return
    for one in given:
        yield from bare_optimizers(one)


def _rule_for(rule: Rules, index: int, name: str, count: int) -> str | Rule | None:
    if isinstance(rule, Mapping):
        return rule.get(name)
    if isinstance(rule, str) or not isinstance(rule, Sequence):
        return rule
    if len(rule) != count:
        raise ValueError(f"rule must be one for all {count} optimizers or one for each of them, got {len(rule)}")
    return rule[index]


def _check_used(rule: Rules, targets: Sequence[Target]) -> None:
    names = [target.family.name for target in targets]
    for name in rule if isinstance(rule, Mapping) else ():
        if name not in names:
            raise ValueError(f"rule names {name!r}, but the optimizers are {', '.join(names)}")


def _check_shared(targets: Sequence[Target]) -> None:
    """Refuse a tensor that several optimizers have as their learning rate, if their rules differ."""
    holders: dict[int, int] = {}
    for i, target in enumerate(targets):
        held = [(group, key) for group in target.part.param_groups for key in target.family.group_units(group)]
        for group, key in held:
            for value in group[key] if isinstance(group[key], list | tuple) else [group[key]]:
                first = holders.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i
                rules = targets[first].rule.name, target.rule.name
                if rules[0] != rules[1]:
                    raise ValueError(
                        f"optimizers {first} and {i} share a tensor as their {key}, but their rules are {rules[0]!r} "
                        f"and {rules[1]!r}; give each a tensor of its own"
                    )


@contextmanager
def prefixed_errors(prefix: str) -> Iterator[None]:
    """Add to an error which of several optimizers it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}{error}") from None


def common_rule(targets: Sequence[Target]) -> Rule:
    """Return the rule for what belongs to no single optimizer: their common one, or the rows in which theirs agree.

    Rules differ only where each optimizer follows its own, and those agree on parameter averages, BatchNorm and clips.
    """
    followers: dict[str, list[Target]] = {}
    for target in targets:
        followers.setdefault(target.rule.name, []).append(target)
    rules = {target.rule.name: target.rule for target in targets}
    first, *others = rules.values()
    if not others:
        return first
    units = {key: unit for key, unit in first.units.items() if all(rule.units.get(key) == unit for rule in others)}
    return replace(
        first,
        key=", ".join(f"{name} ({_some_of(numbers)})" for name, numbers in followers.items()),
        summary="each optimizer by its own rule; the rows are those in which the rules agree",
        units=MappingProxyType(units),
        averaging="floor",  # the key has the names in full
        left_out=(),
        holds_for=tuple(dict.fromkeys(target.family.name for target in targets)),
    )


def _some_of(targets: Sequence[Target]) -> str:
    """Return how the targets of one rule are called: ``optimizer 1``, ``optimizers 0, 2``, ``muon``."""
    names = [target.prefix.removesuffix(": ") for target in targets]
    numbers = [name.removeprefix("optimizer ") for name in names]
    if all(number.isdigit() for number in numbers):
        return f"optimizer{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    return ", ".join(names)


def check_forward(target: Target, kappa: float, forward_kappa: float) -> None:
    """Refuse forwards of another size where the second moment is that of forwards and the rule takes it to be fixed."""
    if target.family.name != "microbatchadam" or same(target.rule.factor("v", kappa, {}, {}) * forward_kappa, 1.0):
        return
    raise ValueError(
        f"the second moment of {type(target.optimizer).__name__} is that of micro-batches, and {target.rule.name} "
        f"takes their size to be fixed, but they grow by {show(forward_kappa)}: change the accumulation alone, as in "
        "batch_size=('16x4x1', '16x16x1')"
    )


def match_schedulers(targets: Sequence[Target], given: list[Any], interval: Any) -> list[list[tuple[Any, str]]]:
    """Return the schedulers of each optimizer, with their intervals."""
    each = isinstance(interval, list | tuple)
    for one in interval if each else [interval]:
        if one not in ("step", "epoch"):
            raise ValueError(f"interval must be 'step' or 'epoch', got {one!r}")
    intervals = interval if each else [interval] * len(given)
    if len(intervals) != len(given):
        raise ValueError(
            f"interval must be one for all {len(given)} schedulers or one for each of them, got {len(intervals)}"
        )
    check_outermost(given, given)
    driving: list[list[tuple[Any, str]]] = [[] for _ in targets]
    seen: set[int] = set()
    for scheduler, one in zip(given, intervals, strict=True):
        if id(scheduler) in seen:
            raise ValueError(f"{type(scheduler).__name__} was given twice; give each scheduler once")
        seen.add(id(scheduler))
        drives = getattr(scheduler, "optimizer", None)
        owners = [i for i, target in enumerate(targets) if target.optimizer is drives]
        owner = owners[0] if owners else None
        if owner is None:
            if len(targets) == 1 or not isinstance(scheduler, LRScheduler):
                check_scheduler(scheduler, targets[0].optimizer, targets[0].rule, 1)  # says what is wrong with it
            raise ValueError(f"{type(scheduler).__name__} belongs to none of the {len(targets)} optimizers given")
        _check_one_rate(scheduler, [targets[i] for i in owners])
        driving[owner].append((scheduler, one))
    return driving


def _check_one_rate(scheduler: Any, targets: Sequence[Target]) -> None:
    """Refuse a scheduler of groups whose learning rates scale differently: it keeps the units of one rule."""
    powers = {target.family.name: float(target.rule.convert("eta", 1.0, 4.0)) for target in targets}
    if len(set(powers.values())) > 1:
        raise ValueError(
            f"{type(scheduler).__name__} drives groups of {' and '.join(powers)}, whose learning rates scale "
            f"differently under {' and '.join(target.rule.name for target in targets)}; take rules that agree on them, "
            "such as each one's own, or an optimizer and a scheduler for each"
        )
