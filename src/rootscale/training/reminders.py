"""What a conversion leaves to the user, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from rootscale.changes import Reminder
from rootscale.format import few_digits, show
from rootscale.rules import Rule, averaged_batches
from rootscale.training.edits import group_values
from rootscale.training.live import Live, Switch
from rootscale.training.targets import Target

__all__ = ["remaining", "visible_averages"]


def remaining(
    live: Live, switch: Switch, rule: Rule, clip: float | None, targets: Sequence[Target] = ()
) -> tuple[str, ...]:
    """Return what is left to do for the caller of `rescale_`; nothing where nothing changes.

    Args:
        live: what is converted.
        switch: the change of batch size.
        rule: for the gradient clip.
        clip: as for `rescale_`.
        targets: the optimizers with their rules, for what these cannot see.
    """
    if switch.kappa == 1 and switch.forward_kappa == 1:
        return ()
    noise = [line for target in targets for line in _noise_of_momentum(target, switch)]
    return (*_reminders(live, switch, rule, clip), *noise)


def _reminders(live: Live, switch: Switch, rule: Rule, clip: float | None) -> Iterator[str]:
    kappa, (before, after) = switch.kappa, switch.sizes
    if kappa != 1:
        sizes = f"times {show(kappa)}" if before is None or after is None else f"{show(before)} -> {show(after)}"
        yield Reminder(f"batch size of the data loader (or accumulation, or workers): {sizes}", "batch size")
        if "steps" in rule.units:
            left = "steps left, and every interval in steps (logging, evaluation, checkpoints)"
            yield Reminder(f"{left}: divide by {show(kappa)}", "steps")
        if live.scheduler is not None and "step" in (live.interval, *live.interval) and "steps" in rule.units:
            yield (
                "a short last batch of an epoch, if there is one: the scheduler counts it as a whole step; give the "
                "data loader drop_last=True"
            )
        factor = float(rule.convert("clip", 1.0, kappa))
        if clip is not None:
            yield Reminder(f"gradient clip: {show(clip)} -> {show(clip * factor)}", "clip")
        elif factor != 1:
            yield Reminder(f"gradient clip, if there is one: times {show(factor)}", "clip")
    if live.model is None and "batchnorm" in rule.units:
        yield "BatchNorm, if there is any: model was not given, and its momentum is in no optimizer; give model=model"
    if live.ema is None and kappa != 1 and "ema" in rule.units:
        seen = list(visible_averages(live.given("model")))
        for name, kind in seen:
            yield f"parameter average {name} ({kind}): it was not given; give ema=model.{name}"
        if not seen:
            yield "average of the parameters (EMA), if there is one: ema was not given; give ema=ema"


def _noise_of_momentum(target: Target, switch: Switch) -> Iterator[str]:
    """Yield what a rule of normalised momentum rests on, once for an optimizer: no one sees it in the optimizer."""
    weights = [group_values(group, target.family).get("mu", 0.0) for group in target.part.param_groups]
    mu, size = max(weights, default=0.0), switch.sizes[switch.kappa > 1]
    if switch.kappa == 1 or math.isinf(target.rule.longest_momentum(mu, 1.0)):
        return
    batches = averaged_batches(float(target.rule.convert("mu", mu, max(1.0, switch.kappa))))
    samples = "" if size is None else f", {few_digits(batches * size)} samples"
    nearer = "normalized-half" if target.rule.key == "normalized-sqrt" else "normalized-linear"
    yield (
        f"{target.prefix}a look at the noise scale (NoiseMeter measures it): momentum averages {few_digits(batches)} "
        f"batches, and {target.rule.name} holds while the noise scale is far above that{samples}; elsewhere {nearer} "
        "is nearer"
    )


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
