"""Which schedulers drive an optimizer: whether all of them are given, and how often they are stepped."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rootscale.format import show
from rootscale.training.markers import units_of
from rootscale.training.scheduler_state import FRAMES
from rootscale.training.schedulers import is_loaded, nested, own_name

__all__ = ["check_outermost", "check_restored", "clock_warnings", "is_driven", "missing_drivers", "other_schedulers"]

#: A scheduler that has made less than this share of the optimizer's steps is likely to be stepped once an epoch.
FEW = 0.1


def is_driven(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a scheduler of torch was made for an optimizer."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def held(scheduler: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a scheduler and all that it holds: in torch's way, or in attributes of its own, as many warm-ups do."""
    seen = set() if seen is None else seen
    if id(scheduler) in seen:
        return
    seen.add(id(scheduler))
    yield scheduler
    for value in getattr(scheduler, "__dict__", {}).values():
        some = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for one in some:
            if isinstance(one, LRScheduler):
                yield from held(one, seen)


def other_schedulers(optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> list[Any]:
    """Return the schedulers that drive an optimizer beside those given, without those that others hold.

    torch keeps no list of them, so that the garbage collector is asked, which takes some hundredths of a second.
    """
    if not is_driven(optimizer):
        return []
    if not _alive_beside(optimizer, given):
        return []
    gc.collect()  # one that was dropped may still wait for it
    return _alive_beside(optimizer, given)


def _alive_beside(optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> list[Any]:
    known = [one for scheduler in given for one in held(scheduler)]
    dictionaries = {id(vars(one)) for one in known}
    holders = gc.get_referrers(optimizer)  # schedulers, or their dictionaries
    unknown = [one for one in holders if _are_attributes(one) and id(one) not in dictionaries]
    holders += gc.get_referrers(*unknown) if unknown else []
    found = {id(one): one for one in holders if issubclass(type(one), LRScheduler)}
    mine = [one for one in found.values() if vars(one).get("optimizer") is optimizer]
    inner = {id(child) for one in mine for child in held(one) if child is not one}
    return [one for one in mine if id(one) not in inner | {id(one) for one in known}]


def _are_attributes(held: Any) -> bool:
    """Return whether something that holds an optimizer is the dictionary of a scheduler."""
    return type(held) is dict and "optimizer" in held and bool({"last_epoch", "_schedulers"} & held.keys())


def check_outermost(given: Sequence[Any], others: Sequence[Any]) -> None:
    """Refuse a given scheduler that another one holds and steps: both would convert what it sets."""
    for parent in others:
        inner = {id(child) for child in held(parent) if child is not parent}
        for one in given:
            if id(one) in inner:
                raise ValueError(
                    f"{own_name(one)} is a part of a {own_name(parent)}, which steps it: give the {own_name(parent)} "
                    "alone, and all that it holds is converted"
                )


def missing_drivers(optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> list[str]:
    """Return a warning, if a scheduler drives an optimizer and is not given.

    Raises:
        ValueError: a part of it is given in its place.
    """
    others = other_schedulers(optimizer, given) if given else []
    check_outermost(given, others)
    if others:
        drives = f"{' and '.join(map(own_name, others))} also drive{'s' * (len(others) == 1)}"
        text = "give scheduler=[...] with all schedulers, or del what is not stepped any more"
    elif not given and is_driven(optimizer):
        drives, text = "a scheduler drives", "give scheduler=scheduler"
    else:
        return []
    clock = "its clock stays that of the old batch size, and it may set the old learning rates again"
    return [f"{drives} this optimizer but was not given: {clock}; {text}"]


def check_restored(optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> None:
    """Refuse to restore some of the schedulers that have loaded the state of a converted run, and not the others."""
    left = [one for one in other_schedulers(optimizer, given) if is_loaded(one)]
    if left:
        raise ValueError(
            f"{' and '.join(map(own_name, left))} of this {type(optimizer).__name__} also was loaded from a run that "
            "was converted to another batch size, and has to be restored with the others: call "
            "rootscale.training.restore_(optimizer, scheduler=[...]) with all of its schedulers"
        )


def clock_warnings(optimizer: Any, driven: Sequence[tuple[Any, str]]) -> Iterator[str]:
    """Yield a warning for each scheduler that is taken to be stepped with its optimizer, and has made far fewer steps.

    A scheduler that was made after the optimizer's first steps has made fewer too, so that nothing is refused.
    """
    steps = _steps(optimizer)
    if steps is None or units_of(optimizer.param_groups).converted:
        return
    for scheduler, interval in driven:
        if interval == "epoch" or isinstance(scheduler, ReduceLROnPlateau) or vars(scheduler).get(FRAMES):
            continue
        made = max(float(getattr(one, "last_epoch", 0)) for one in nested(scheduler))
        if 0 < made < FEW * steps:  # one that has made none is likely to be new
            yield (
                f"{own_name(scheduler)} has made {show(made)} steps and the optimizer {show(steps)}, and it is taken "
                "to be stepped with the optimizer: give interval='epoch' if it is stepped once an epoch, and "
                "interval=['step'], one for each scheduler, if it was only made later"
            )


def _steps(optimizer: Any) -> float | None:
    """Return the number of steps that an optimizer has made, as its state counts them; None where it does not."""
    counts = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    return max(map(float, counts), default=None)
