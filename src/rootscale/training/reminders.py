"""What a conversion leaves to the user, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from rootscale.format import show
from rootscale.rules import Rule
from rootscale.training.live import Live, Switch

__all__ = ["remaining", "visible_averages"]


def remaining(live: Live, switch: Switch, rule: Rule, clip: float | None) -> tuple[str, ...]:
    """Return what is left to do for the caller of `rescale_`; nothing where nothing changes.

    Args:
        live: what is converted.
        switch: the change of batch size.
        rule: for the gradient clip.
        clip: as for `rescale_`.
    """
    if switch.kappa == 1 and switch.forward_kappa == 1:
        return ()
    return tuple(_reminders(live, switch, rule, clip))


def _reminders(live: Live, switch: Switch, rule: Rule, clip: float | None) -> Iterator[str]:
    kappa, (before, after) = switch.kappa, switch.sizes
    if kappa != 1:
        sizes = f"times {show(kappa)}" if before is None or after is None else f"{show(before)} -> {show(after)}"
        yield f"batch size of the data loader (or accumulation, or workers): {sizes}"
        if "steps" in rule.units:
            yield f"steps left, and every interval in steps (logging, evaluation, checkpoints): divide by {show(kappa)}"
        if live.scheduler is not None and "step" in (live.interval, *live.interval) and "steps" in rule.units:
            yield (
                "a short last batch of an epoch, if there is one: the scheduler counts it as a whole step; give the "
                "data loader drop_last=True"
            )
        factor = float(rule.convert("clip", 1.0, kappa))
        if clip is not None:
            yield f"gradient clip: {show(clip)} -> {show(clip * factor)}"
        elif factor != 1:
            yield f"gradient clip, if there is one: times {show(factor)}"
    if live.model is None and "batchnorm" in rule.units:
        yield "BatchNorm, if there is any: model was not given, and its momentum is in no optimizer; give model=model"
    if live.ema is None and kappa != 1 and "ema" in rule.units:
        seen = list(visible_averages(live.given("model")))
        for name, kind in seen:
            yield f"parameter average {name} ({kind}): it was not given; give ema=model.{name}"
        if not seen:
            yield "average of the parameters (EMA), if there is one: ema was not given; give ema=ema"


def visible_averages(models: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield the parameter averages that models hold, as attributes' names and classes.

    Those are torch's `AveragedModel`, and what has a number as its attribute ``decay`` and EMA in its name or class.
    """
    for model in models:
        for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
            if isinstance(module, AveragedModel) and path:
                yield path, type(module).__name__
            for name, value in vars(module).items():
                words = f"{name} {type(value).__name__}".lower()
                if isinstance(getattr(value, "decay", None), float | int) and ("ema" in words or "average" in words):
                    yield f"{path}.{name}" if path else name, type(value).__name__
