"""Which optimizers a run has: one or several, in lists and containers, with the families of their groups and rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from rootscale.format import show
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import families_of
from rootscale.training.projected import ProjectedOptimizer

#: One rule for all optimizers, or one for each by position or by the name of its family; None is each one's own.
Rules = str | Rule | None | Sequence[str | Rule | None] | Mapping[str, str | Rule | None]


@dataclass(frozen=True)
class RuledOptimizer:
    """An optimizer with the rule of each of its families; the prefix names it where there are several."""

    optimizer: torch.optim.Optimizer
    rules: Mapping[str, Rule]
    prefix: str


def several(value: Any) -> list[Any]:
    """Return the items of a list or tuple, a single thing as a list of one, and nothing for None."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


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


def ruled_optimizers(optimizer: Any, rule: Rules, *, summed: bool = False) -> list[RuledOptimizer]:
    """Return the optimizers that were given, with the rules of their families.

    Args:
        optimizer: one, or several in whatever holds them.
        rule: as for `rootscale.training.Run`.
        summed: whether the loss is a sum over the batch.
    """
    optimizers = list(bare_optimizers(optimizer))
    if not optimizers:
        raise ValueError(
            f"optimizer must be an optimizer or a sequence of them, got an empty {type(optimizer).__name__}"
        )
    found: list[RuledOptimizer] = []
    for i, bare in enumerate(optimizers):
        if any(bare is other for other in optimizers[:i]):
            first = next(j for j, other in enumerate(optimizers) if other is bare)
            raise ValueError(f"optimizer {i} is optimizer {first} again; give each of them once")
        prefix = f"optimizer {i}: " if len(optimizers) > 1 else ""
        with prefixed_errors(prefix):
            families = [family for family, _ in families_of(bare)]
            rules = {}
            for family in families:
                chosen = get_rule(_rule_for(rule, i, family.name, len(optimizers)), family.name)
                rules[family.name] = chosen.summed(family.degree) if summed else chosen
        found.append(RuledOptimizer(bare, rules, prefix))
    names = [name for held in found for name in held.rules]
    for name in rule if isinstance(rule, Mapping) else ():
        if name not in names:
            raise ValueError(f"rule names {name!r}, but the optimizers are {', '.join(names)}")
    return found


def _rule_for(rule: Rules, index: int, name: str, count: int) -> str | Rule | None:
    if isinstance(rule, Mapping):
        return rule.get(name)
    if isinstance(rule, str) or not isinstance(rule, Sequence):
        return rule
    if len(rule) != count:
        raise ValueError(f"rule must be one for all {count} optimizers or one for each of them, got {len(rule)}")
    return rule[index]


@contextmanager
def prefixed_errors(prefix: str) -> Iterator[None]:
    """Add to an error which of several optimizers it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not prefix:
            raise
        raise type(error)(f"{prefix}{error}") from None


def common_rule(found: Sequence[RuledOptimizer]) -> Rule:
    """Return the rule for what belongs to no single optimizer: their common one, or the rows in which theirs agree.

    Rules differ only where each optimizer follows its own, and those agree on parameter averages, BatchNorm and clips.
    """
    followers: dict[str, list[str]] = {}
    rules: dict[str, Rule] = {}
    for held in found:
        for name, rule in held.rules.items():
            rules[rule.name] = rule
            followers.setdefault(rule.name, []).append(held.prefix.removesuffix(": ") or name)
    first, *others = rules.values()
    if not others:
        return first
    units = {key: unit for key, unit in first.units.items() if all(rule.units.get(key) == unit for rule in others)}
    return replace(
        first,
        key=", ".join(f"{name} ({', '.join(dict.fromkeys(names))})" for name, names in followers.items()),
        summary="each optimizer by its own rule; the rows are those in which the rules agree",
        units=MappingProxyType(units),
        averaging="floor",  # the key has the names in full
        left_out=(),
        holds_for=tuple(dict.fromkeys(name for held in found for name in held.rules)),
    )


def check_forward(optimizer: ProjectedOptimizer, kappa: float, forward_kappa: float) -> None:
    """Refuse forwards of another size where the second moment is that of forwards and the rule takes it to be fixed."""
    rule = optimizer.rules.get("microbatchadam")
    if rule is None or abs(rule.factor("v", kappa, {}, {}) * forward_kappa - 1) < 1e-9:
        return
    raise ValueError(
        f"the second moment of {type(optimizer.optimizer).__name__} is that of micro-batches, and {rule.name} "
        f"takes their size to be fixed, but they grow by {show(forward_kappa)}: change the accumulation alone, as in "
        "batch_size='16x16x1' of a run with tuned_at='16x4x1'"
    )
