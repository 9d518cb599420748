"""Schedulers as files have them, made into objects that `prepare` can convert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rootscale.training.checkpoints.saved import SavedOptimizer
from rootscale.training.scheduler_state import FRAMES, PLACE, TICKS, is_stepped_with, seal, unseal
from rootscale.training.schedulers import RescaledScheduler, wrap

__all__ = ["SavedScheduler", "is_chained", "is_scheduler"]


def is_scheduler(thing: Any) -> bool:
    """Return whether something that was read is the ``state_dict`` of a scheduler of torch's kind."""
    if not isinstance(thing, dict) or not {"_last_lr", "_step_count"} & thing.keys():
        return False
    return "last_epoch" in thing or is_chained(thing)


def is_chained(thing: dict[Any, Any]) -> bool:
    """Return whether the ``state_dict`` of a scheduler is that of a `ChainedScheduler`, which has no counter itself."""
    inner = thing.get("_schedulers")
    return isinstance(inner, list) and bool(inner) and all(map(is_scheduler, inner))


@dataclass
class SavedScheduler:
    """A scheduler in a file.

    Args:
        name: where it is in the file, for messages.
        attributes: its ``state_dict``, which `put_back` changes.
        tensor: returns a tensor of the file, mapped, or None for what is none.
        interval: whether it is stepped with the optimizer's steps or with epochs; None is found.
    """

    name: str
    attributes: dict[str, Any]
    tensor: Callable[[Any], Tensor | None]
    interval: str | None = None
    live: Any = field(init=False, repr=False, default=None)

    def belong(self, optimizer: SavedOptimizer) -> None:
        """Make the object that can be converted, of an optimizer."""
        self.live = _stand_in(self.name.rpartition(".")[2], unseal(self.attributes), optimizer.live)
        if {FRAMES, PLACE} & self.attributes.keys():
            wrap(self.live)

    def fits(self, optimizer: SavedOptimizer) -> bool:
        """Return whether it has set the learning rates of an optimizer."""
        rates = [float(group["lr"]) for group in optimizer.live.param_groups]
        last = self.attributes.get("_last_lr")
        return last is None or (len(last) == len(rates) and all(map(_equal, last, rates)))

    def clock(self, steps: float | None, epoch: int | None) -> str:
        """Return the interval: the given one, or that which the counters show.

        Args:
            steps: that the optimizer has made.
            epoch: that the file is of.
        """
        if self.interval is not None:
            return self.interval
        made = float(_made(unseal(self.attributes)))
        if self.attributes.get(FRAMES):
            return "epoch" if self.attributes.get(TICKS) == 1 else "step"
        if isinstance(self.live, ReduceLROnPlateau) or (steps is not None and is_stepped_with(made, steps)):
            return "step"
        if epoch is not None and 0 <= made - epoch <= 1:
            return "epoch"
        if steps is None:
            raise ValueError(
                f"{self.name} has made {made:,.0f} steps, and the file does not say whether they are those of the "
                "optimizer: give --interval step or --interval epoch"
            )
        raise ValueError(
            f"{self.name} has made {made:,.0f} steps and the optimizer {steps:,.0f}: give --interval epoch if it is "
            "stepped once an epoch, --interval step if with every step of the optimizer"
        )

    def put_back(self) -> None:
        """Bring what was converted into the file's dictionary."""
        old, new = dict(self.attributes), _unwound(self.live)
        new = seal(new) if isinstance(self.live, RescaledScheduler) else new
        self.attributes.clear()
        self.attributes.update(_filled(old, new, self.tensor))


def _made(attributes: dict[str, Any]) -> int:
    """Return the steps that a scheduler has made."""
    if "last_epoch" in attributes:
        return int(attributes["last_epoch"])
    return max(_made(inner) for inner in attributes["_schedulers"])


def _equal(one: Any, other: float) -> bool:
    return isinstance(one, int | float) and abs(float(one) - other) <= 1e-6 * max(abs(other), 1e-12)


@cache
def _kind(name: str) -> type[LRScheduler]:
    return type(name, (LRScheduler,), {})


def _stand_in(name: str, attributes: dict[str, Any], optimizer: Any) -> Any:
    made = object.__new__(ReduceLROnPlateau if "num_bad_epochs" in attributes else _kind(name))
    held = dict(attributes)
    children = held.get("_schedulers")
    if isinstance(children, list) and all(isinstance(child, dict) for child in children):
        held["_schedulers"] = [_stand_in(name, child, optimizer) for child in children]
    vars(made).update(held, optimizer=optimizer)
    return made


def _unwound(live: Any) -> dict[str, Any]:
    """Return the state of a scheduler and of all that it holds."""
    held = {key: value for key, value in vars(live).items() if key != "optimizer"}
    if isinstance(held.get("_schedulers"), list):
        held["_schedulers"] = [_unwound(one) for one in held["_schedulers"]]
    return held


def _filled(old: dict[str, Any], new: dict[str, Any], tensor: Callable[[Any], Tensor | None]) -> dict[str, Any]:
    """Return a new state in which learning rates that are tensors are the old ones, filled."""
    made = dict(new)
    for key, value in new.items():
        if key == "_schedulers" and isinstance(value, list):
            made[key] = [_filled(*pair, tensor) for pair in zip(old[key], value, strict=True)]
        elif isinstance(value, list) and any(isinstance(one, Tensor) for one in value):
            for before, one in zip(old[key], value, strict=True):
                if (held := tensor(before)) is not None:
                    held.fill_(one)
            made[key] = old[key]
    return made
