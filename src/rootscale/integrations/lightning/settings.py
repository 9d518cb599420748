"""What of the Trainer itself changes with the batch size: the gradient clip, and the steps that are left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from fractions import Fraction
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging

from rootscale.changes import Change, key_of
from rootscale.format import show
from rootscale.integrations.lightning.frame import Frame
from rootscale.rules import Rule
from rootscale.units import UNITS

__all__ = ["convert_settings", "still_left"]


def convert_settings(trainer: Trainer, rule: Rule, frame: Frame, note: Callable[[Any, str], None]) -> Iterator[Change]:
    """Convert the gradient clip and the steps that are still to come, and yield each change.

    Args:
        trainer: of the fit.
        rule: for the clip.
        frame: the change of batch size.
        note: keeps the value of an attribute, before it is changed.
    """
    later = [one for one in trainer.callbacks if isinstance(one, EMAWeightAveraging)]  # type: ignore[attr-defined]
    settings: list[tuple[Any, str]] = [(trainer.fit_loop.epoch_loop, "max_steps")]
    settings += [(callback, "update_starting_at_step") for callback in later]
    for thing, name in settings:
        before = getattr(thing, name) or 0
        if before > frame.step:
            left = Fraction(before - frame.step) / Fraction(frame.kappa).limit_denominator(10**6)
            after = frame.step + left
            note(thing, name)
            setattr(thing, name, math.ceil(after))
            yield Change(name, before, after, UNITS["steps"], math.ceil(after), f"counted from step {frame.step:,}")
    if trainer.gradient_clip_val:
        clip = float(trainer.gradient_clip_val)
        note(trainer, "gradient_clip_val")
        trainer.gradient_clip_val = float(rule.convert("clip", clip, frame.kappa, "gradient_clip_val"))
        yield Change("gradient_clip_val", clip, trainer.gradient_clip_val, rule.units.get("clip"))


def still_left(reminders: Collection[str], rows: Collection[Change], kappa: float) -> tuple[str, ...]:
    """Return what is left to the user after `convert_settings`: the batch size has been changed, and so have its rows.

    Args:
        reminders: what `rescale_` leaves to its caller.
        rows: what `convert_settings` has changed.
        kappa: the factor of the batch size.
    """
    done = {"batch size", "steps"} | {"clip" for row in rows if row.name == "gradient_clip_val"}
    intervals = f"intervals in steps (log_every_n_steps, every_n_train_steps of a callback): divide by {show(kappa)}"
    return (*([intervals] if kappa != 1 else []), *(text for text in reminders if key_of(text) not in done))
