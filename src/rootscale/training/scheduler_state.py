"""The saved state of a converted scheduler, which no ordinary scheduler can take for its own.

A converted scheduler keeps three numbers more than its class does: the changes of units (frames), the ticks of its own
clock in one step, and the part of a tick that is owed. A stock scheduler loads them as attributes that it does not
look at, and would go on in the wrong units. So its place, ``last_epoch``, is kept under another name, and a text stands
where it was: a stock scheduler that was not restored fails at its first step, also in a program without rootscale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rootscale.rules import rule_text
from rootscale.training.markers import same

__all__ = [
    "FRAMES",
    "OWED",
    "PLACE",
    "SEAL",
    "TICKS",
    "Frame",
    "frames_kappa",
    "is_own",
    "is_sealed",
    "is_stepped_with",
    "read_frame",
    "seal",
    "unseal",
]

FRAMES, TICKS, OWED, PLACE = "_rootscale_frames", "_rootscale_ticks", "_rootscale_owed", "_rootscale_last_epoch"
SEAL = (
    "this scheduler is of a run that rootscale has converted to another batch size: "
    "call rootscale.training.restore_(optimizer, scheduler=scheduler, ...) after load_state_dict"
)
Frame = tuple[str, float]  # rule, kappa


def read_frame(stored: Any) -> Frame:
    """Return a change of units; checkpoints of version 0.0 have the form of averaging apart from the rule."""
    if len(stored) == 2:
        return str(stored[0]), float(stored[1])
    key, averaging, kappa = stored
    name, _, rows = key.partition(" without ")
    return rule_text(name, averaging, [rows] if rows else []), float(kappa)


def frames_kappa(frames: Iterable[Any]) -> float:
    """Return the product of all changes of units."""
    return math.prod((read_frame(one)[1] for one in frames), start=1.0)


def is_own(attributes: Mapping[str, Any]) -> bool:
    """Return whether a scheduler has the clock and the units that it was made with.

    The part of a tick that is owed does not count: a clock that ticks once a step never comes to owe a whole one.
    """
    return not attributes.get(FRAMES) and same(attributes.get(TICKS, 1.0), 1.0)


def is_sealed(attributes: Mapping[str, Any]) -> bool:
    """Return whether a state or a scheduler's attributes have the text where their place was."""
    return isinstance(attributes.get("last_epoch"), str)


def is_stepped_with(made: float, steps: float) -> bool:
    """Return whether a scheduler that has made so many steps can have been stepped with an optimizer's."""
    return made >= 0.8 * steps


def seal(state: Mapping[str, Any], sealed: bool | None = None) -> dict[str, Any]:
    """Return a scheduler's state as it is saved, with that of all schedulers it holds.

    The keys are the same for every converted scheduler, because loaders such as DCP load only keys that they know.
    """
    sealed = not is_own(state) if sealed is None else sealed
    new = dict(state)
    if "last_epoch" in new and not is_sealed(new):
        new[PLACE] = new["last_epoch"]
        new["last_epoch"] = SEAL if sealed else new["last_epoch"]
    if isinstance(new.get("_schedulers"), list):
        new["_schedulers"] = [seal(child, sealed) if isinstance(child, dict) else child for child in new["_schedulers"]]
    return new


def unseal(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state with its place where schedulers look for it.

    Raises:
        ValueError: the place is not there, as the loader knew only the keys of an ordinary scheduler.
    """
    new = dict(state)
    if is_sealed(new) and PLACE not in new:
        raise ValueError(
            "the scheduler's state was loaded in part: torch.distributed.checkpoint loads only keys that the fresh "
            "state_dict has; call rootscale.training.track_(optimizer, batch_size=..., scheduler=scheduler) on the "
            "fresh objects before their state_dict is taken, here and in the run that saves"
        )
    place = new.pop(PLACE, None)
    if is_sealed(new):  # elsewhere the clock may have gone on since
        new["last_epoch"] = place
    if isinstance(new.get("_schedulers"), list):
        new["_schedulers"] = [unseal(child) if isinstance(child, dict) else child for child in new["_schedulers"]]
    return new
