"""The decay that a parameter average had after a change, remembered beside the units of its optimizer.

Some averages save their decay in a state of their own, so that it is loaded as it was after the change; others get that
of the script again, and only `restore_` converts it. An average does not say which of the two it has now, so its decay
is compared with the one that is remembered. `AveragedModel` keeps its decay in no state, and needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim.swa_utils import AveragedModel

from rootscale.format import show
from rootscale.rules import Rule
from rootscale.training.averages import decay_of, tag_of
from rootscale.training.edits import Edit
from rootscale.training.markers import Carried, same

__all__ = ["converted_so_far", "decays_after", "restoring_factor"]


def _alike(one: float, other: float, kappa: float = 1.0) -> bool:
    """Return whether two decays are equal, up to the rounding of float32 that a conversion by ``kappa`` enlarges."""
    if not (one > 0 and other > 0):
        return one == other
    return abs(math.log(one / other)) <= 2e-7 * max(1.0, kappa) + 1e-6 * abs(math.log(other))


def decays_after(averages: Sequence[Any], edits: Sequence[Sequence[Edit]]) -> dict[int, float]:
    """Return the decays to remember, by the numbers of the averages.

    Args:
        averages: all that are converted.
        edits: those of each of them.
    """
    rows = [next(row for edit in some for row in edit.changes) for some in edits]
    return {
        i: float(row.after or 0.0)
        for i, (ema, row) in enumerate(zip(averages, rows, strict=True))
        if not isinstance(ema, AveragedModel)
    }


def converted_so_far(ema: Any, index: int, carried: Sequence[Carried]) -> float:
    """Return how far an average has been converted: not every object takes an attribute that says so.

    Args:
        ema: the average.
        index: its number among those given.
        carried: the units of the optimizers.
    """
    for one in carried:
        if index in one.decays and _alike(decay_of(ema), one.decays[index]):
            return one.parts.get("ema", 1.0)
    return tag_of(ema)


def restoring_factor(ema: Any, index: int, carried: Carried, rule: Rule) -> tuple[float, str]:
    """Return by which factor an average is still to be converted after a load, and a warning where that is not sure.

    Args:
        ema, index: as for `converted_so_far`.
        carried: the units of the run.
        rule: for the decay.

    Raises:
        ValueError: the decay is neither that of the checkpoint nor that from before its conversion.
    """
    wanted = carried.parts.get("ema", 1.0)
    factor = wanted / tag_of(ema)
    if not carried.decays or isinstance(ema, AveragedModel):
        unsure = not (same(factor, 1.0) or isinstance(ema, AveragedModel)) and _saves_decay(ema)
        return (1.0, _unsure(ema, rule, factor)) if unsure else (factor, "")
    now = decay_of(ema)
    candidates = [carried.decays[i] for i in sorted(carried.decays, key=lambda i: (i != index, i))]  # its own first
    for saved in candidates:
        for by in (1.0, factor, wanted):
            if _alike(float(rule.convert("ema", now, by, "EMA decay")), saved, wanted):
                return by, ""
    raise ValueError(_neither(ema, candidates[0], wanted, rule))


def _saves_decay(ema: Any) -> bool:
    state_dict = getattr(ema, "state_dict", None)
    state = state_dict() if callable(state_dict) else None
    return isinstance(state, Mapping) and "decay" in state


def _unsure(ema: Any, rule: Rule, factor: float) -> str:
    now = decay_of(ema)
    after = float(rule.convert("ema", now, factor, "EMA decay"))
    return (
        f"{type(ema).__name__} saves its decay in a state of its own, and this checkpoint does not say which decay it "
        f"had (it is of an older version, or DCP did not load that): {show(now)} was left as it is, right if that "
        f"state has been loaded or will be; if not, it is the script's, and you set ema.decay = {after!r}"
    )


def _neither(ema: Any, saved: float, wanted: float, rule: Rule) -> str:
    script = float(rule.convert("ema", saved, 1 / wanted, "EMA decay"))
    return (
        f"the decay of {type(ema).__name__} is {show(decay_of(ema))}, but the run was saved with {show(saved)}, which "
        f"was {show(script)} before it was converted (kappa = {show(wanted)}): load the average's own state, or set "
        f"ema.decay = {saved!r}, and call restore_ again; if a program of yours sets its decay, give ema=[] instead"
    )
