"""What is done with a scheduler when the batch size changes: check it, convert its clock and units, put it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rootscale.rules import Rule, get_rule
from rootscale.training.markers import is_tracked, same
from rootscale.training.scheduler_state import FRAMES, TICKS, is_own, read_frame
from rootscale.training.scheduler_units import cycled_unit, families_by_group, from_own
from rootscale.training.schedulers import (
    RescaledScheduler,
    frames_of,
    is_loaded,
    learning_rates,
    nested,
    own_name,
    rescaled_class,
    unwrap,
    wrap,
)
from rootscale.units import Form

__all__ = ["check_scheduler", "rescale_scheduler", "save_scheduler", "ticks"]


def check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer, rule: Rule, kappa: float) -> None:
    """Refuse what `rescale_scheduler` could not do, before anything is changed."""
    if not isinstance(scheduler, LRScheduler):
        raise TypeError(
            f"scheduler must be a torch.optim.lr_scheduler.LRScheduler, got {type(scheduler).__name__}; for another "
            "kind, make it anew for the new batch size (rootscale.Plan.at gives its steps and learning rates)"
        )
    if scheduler.optimizer is not optimizer:
        raise ValueError(f"{type(scheduler).__name__} belongs to another optimizer than the one given")
    if is_loaded(scheduler):
        raise ValueError(
            f"this {type(scheduler).__name__} was loaded from a run that had been rescaled: call restore_(optimizer, "
            "scheduler=scheduler, ...) after load_state_dict; it needs another rescale_ only for another change"
        )
    _check_name(rule)
    if not isinstance(scheduler, RescaledScheduler):
        try:
            rescaled_class(type(scheduler))  # type: ignore[arg-type]
        except Exception as error:
            raise TypeError(
                f"{type(scheduler).__name__} cannot be converted, as its class cannot be extended ({error}); make it "
                "anew for the new batch size (rootscale.Plan.at gives its steps and learning rates)"
            ) from error
    for one in nested(scheduler):
        _check_cycle(one, optimizer, frames_of(scheduler), rule, kappa)


def _check_cycle(
    scheduler: Any, optimizer: torch.optim.Optimizer, frames: Sequence[tuple[Rule, float]], rule: Rule, kappa: float
) -> None:
    """Refuse a cycle of momentum whose lowest value, which the group need not show now, would have none."""
    if not getattr(scheduler, "cycle_momentum", False):
        return
    lowest = getattr(scheduler, "base_momentums", ())  # in the units of the run that it was made for
    for i, (group, family) in enumerate(families_by_group(optimizer)):
        unit, name = cycled_unit(group, family), "beta1" if "betas" in group else "momentum"
        values = [from_own(frames, unit, float(lowest[i]), name)[0]] if lowest else []
        for value in (*values, *([float(group["base_momentum"])] if "base_momentum" in group else ())):
            if rule.form(unit).floor is None:
                rule.convert(unit, value, kappa, f"{own_name(scheduler)}'s lowest {name}")


def _check_name(rule: Rule) -> None:
    """Refuse a rule that its name does not give: a scheduler keeps its rule by name, in checkpoints too."""
    try:
        named = _forms(get_rule(rule.name, "adam"))
    except ValueError:
        named = {}
    if named != _forms(rule):
        raise ValueError(
            f"a scheduler keeps its rule by name, and {rule.name!r} is not the name of this one: take one of "
            "rootscale.RULES, or what its .without(...) gives, or convert the scheduler yourself"
        )


def _forms(rule: Rule) -> dict[str, Form]:
    return {key: unit.form for key, unit in rule.units.items()}


def ticks(scheduler: LRScheduler, kappa: float, interval: str) -> float:
    """Return the ticks of the scheduler's own clock per step: times ``kappa``, if it is stepped with the optimizer."""
    before: float = getattr(scheduler, TICKS, 1.0)
    after = before * kappa if interval == "step" and not isinstance(scheduler, ReduceLROnPlateau) else before
    return 1.0 if same(after, 1.0) else after


def save_scheduler(scheduler: LRScheduler) -> Callable[[], None]:
    """Return a function that puts a scheduler, and all that it holds, back to what it is now."""
    held = [(one, type(one), dict(vars(one))) for one in nested(scheduler)]

    def restore() -> None:
        for one, cls, attributes in held:
            if type(one) is not cls:
                one.__class__ = cls
            vars(one).clear()
            vars(one).update(attributes)

    return restore


def rescale_scheduler(scheduler: LRScheduler, rule: Rule, kappa: float, interval: str) -> Callable[[], None]:
    """Return a function that changes the clock and the units of a scheduler."""

    def commit() -> None:
        frames = [read_frame(one) for one in getattr(scheduler, FRAMES, ())]
        if frames and frames[-1][0] == rule.name:
            frames[-1] = (rule.name, frames[-1][1] * kappa)
        else:
            frames.append((rule.name, kappa))
        new_ticks = ticks(scheduler, kappa, interval)
        wrap(scheduler)
        vars(scheduler).update({FRAMES: [frame for frame in frames if not same(frame[1], 1.0)], TICKS: new_ticks})
        if is_own(vars(scheduler)) and not is_tracked(scheduler.optimizer.param_groups):
            unwrap(scheduler)  # back in its own units: an ordinary scheduler again
        for one in nested(scheduler):
            one._last_lr = learning_rates(one)

    return commit
