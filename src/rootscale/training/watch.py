"""Notice a run that is half-converted, before it makes a step.

Three moments are watched, with hooks that torch has for it. Loading a state into an optimizer that `rescale_` has
converted is refused if the state is of other units. And an optimizer whose groups say that something beside it was
converted too (a scheduler, BatchNorm, a parameter average) makes no step before that has been brought to the same
units, by `rescale_` or `restore_` in this process. And a save by `torch.distributed.checkpoint`, which loads only keys
that a fresh state has, warns if the units would be lost.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rootscale.changes import ScalingWarning
from rootscale.format import show
from rootscale.training import schedulers
from rootscale.training.markers import KAPPA, PARTS, Carried, Part, is_tracked, same, units_of
from rootscale.training.scheduler_state import frames_kappa

__all__ = [
    "check_whole",
    "is_newly_loaded",
    "missing_parts",
    "restore_call",
    "save_watch",
    "settle",
    "was_given",
]


class _Watch:
    """What this process has done with an optimizer.

    Attributes:
        settled: how far the parts beside it have been converted here, by their argument; 1 where it is absent.
        whole: whether it was found whole since its last loading.
        arrived: whether its units came with a loading, and no step has been made since.
    """

    def __init__(self) -> None:
        self.settled: dict[str, float] = {}
        self.whole = self.arrived = False


_WATCHED: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Watch] = weakref.WeakKeyDictionary()


def _watch(optimizer: torch.optim.Optimizer) -> _Watch:
    """Compare the units of every state that is loaded into an optimizer from now on."""
    if optimizer not in _WATCHED:
        _WATCHED[optimizer] = _Watch()
        optimizer.register_load_state_dict_pre_hook(_before_load, prepend=True)
        optimizer.register_state_dict_pre_hook(_before_save)
    return _WATCHED[optimizer]


def settle(optimizer: torch.optim.Optimizer, parts: Mapping[str, float]) -> None:
    """Note that parts beside an optimizer have been converted or restored here, by these factors in all."""
    held = _watch(optimizer)
    held.settled |= parts
    held.arrived = held.whole = False


def was_given(optimizer: torch.optim.Optimizer, argument: str) -> bool:
    """Return whether a part beside an optimizer was given to `rescale_`, or restored, in this process."""
    held = _WATCHED.get(optimizer)
    return held is not None and argument in held.settled


def save_watch(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return a function that forgets what is noted of an optimizer from now on."""
    held = _WATCHED.get(optimizer)
    before = None if held is None else {**vars(held), "settled": dict(held.settled)}

    def restore() -> None:
        if optimizer in _WATCHED:
            vars(_WATCHED[optimizer]).update(vars(_Watch()) if before is None else before)

    return restore


def is_newly_loaded(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer's units, other than its script's, came with a state that it has loaded."""
    held = _WATCHED.get(optimizer)
    return units_of(optimizer.param_groups).converted and (held is None or held.arrived)


def missing_parts(optimizer: torch.optim.Optimizer) -> list[Part]:
    """Return the parts that are in other units than the optimizer says."""
    return [part for part in PARTS if not _is_settled(optimizer, part, units_of(optimizer.param_groups))]


def _is_settled(optimizer: torch.optim.Optimizer, part: Part, carried: Carried) -> bool:
    wanted, held = carried.parts.get(part.argument, 1.0), _WATCHED.get(optimizer)
    driving = schedulers.converted(optimizer) if part.argument == "scheduler" else []
    if driving:
        return any(same(frames_kappa(one._rootscale_frames), wanted) for one in driving)
    return same(wanted, 1.0 if held is None else held.settled.get(part.argument, 1.0))


def restore_call(parts: Iterable[Part]) -> str:
    """Return the line to type."""
    words = "".join(f", {part.argument}={part.argument}" for part in parts)
    return f"rootscale.training.restore_(optimizer{words})"


def check_whole(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that says it was converted together with something that is still in other units."""
    missing = missing_parts(optimizer)
    if missing:
        raise ValueError(
            f"this {type(optimizer).__name__} is of a run that was converted to another batch size "
            f"({units_of(optimizer.param_groups)}), and {' and '.join(part.what for part in missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not: after load_state_dict, call {restore_call(missing)} (after a "
            "copy too; an empty list says that there is none any more; under Lightning or transformers, give the "
            "Trainer its RescaleCallback)"
        )


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or not optimizer.param_groups or KAPPA not in optimizer.param_groups[0]:
        return
    held = _WATCHED.get(optimizer)
    if held is None or not held.whole:
        check_whole(optimizer)
        held = _watch(optimizer)
        held.whole, held.arrived = True, False


def _before_load(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    here, there = units_of(optimizer.param_groups), units_of(state_dict["param_groups"])
    held = _WATCHED[optimizer]
    if here.converted and not same(here.kappa, there.kappa):
        raise ValueError(
            f"this {type(optimizer).__name__} was converted by kappa = {show(here.kappa)}, and the state was saved at "
            f"kappa = {show(there.kappa)}: {schedulers.advice(here.kappa, there.kappa, 'optimizer')}"
        )
    held.whole, held.arrived = False, not same(here.kappa, there.kappa)


def _before_save(optimizer: torch.optim.Optimizer) -> None:
    groups = optimizer.param_groups
    factors = units_of(groups).parts
    lost = [part.what for part in PARTS if not same(factors.get(part.argument, 1.0), 1.0)]
    if not lost or is_tracked(groups) or not same(factors.get("scheduler", 1.0), 1.0):  # a scheduler's state is sealed
        return
    if _is_called_by("torch.distributed.checkpoint"):
        warnings.warn(
            f"this {type(optimizer).__name__} was converted together with {' and '.join(lost)}, and "
            "torch.distributed.checkpoint loads only keys that a fresh state_dict has: the checkpoint would go on with "
            "their old numbers, and nothing would tell. Call rootscale.training.track_(optimizer, batch_size=...) when "
            "the run starts, in every script that saves or loads it",
            ScalingWarning,
            stacklevel=2,
        )


def _is_called_by(package: str) -> bool:
    """Return whether a module of a package is among the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(package):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


register_optimizer_step_pre_hook(_before_step)
