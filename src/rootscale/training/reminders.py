"""What a conversion leaves to the user, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel

from rootscale.changes import Reminder
from rootscale.format import few_digits, show
from rootscale.rules import Rule, averaged_batches
from rootscale.training.edits import group_values
from rootscale.training.live import Live, Switch
from rootscale.training.norms import foreign_norms
from rootscale.training.targets import Target

__all__ = ["remaining", "visible_averages"]

#: Names of what parameter averages count in updates, or warm up with them; and of the counters that start at 0.
_COUNTS = re.compile(r"updates?|steps?|every|interval|warm_?up|inv_gamma|power|min_decay")
_DONE = re.compile(r"num_updates|n_updates|updates|optimization_step|step")


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
    yield from _norm_reminders(live, switch, rule)
    if kappa != 1 and "ema" in rule.units:
        yield from _average_reminders(live, kappa)


def _norm_reminders(live: Live, switch: Switch, rule: Rule) -> Iterator[str]:
    if "batchnorm" not in rule.units:
        return
    if live.model is None:
        yield "BatchNorm, if there is any: model was not given, and its momentum is in no optimizer; give model=model"
    kinds: dict[tuple[str, Any], list[str]] = {}
    for model in live.given("model") if switch.forward_kappa != 1 else ():
        for name, layer in foreign_norms(model).items():
            kinds.setdefault((type(layer).__name__, layer.momentum), []).append(name or "the model itself")
    for (kind, momentum), names in kinds.items():
        yield f"momentum of {kind} ({_some(names)}): {_foreign_momentum(momentum, rule, switch.forward_kappa)}"


def _some(names: Sequence[str]) -> str:
    """Return the first names of many.

    >>> _some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _foreign_momentum(momentum: Any, rule: Rule, kappa: float) -> str:
    """Return what becomes of the momentum of a layer that is not torch's."""
    unknown = "the layer is none of torch's, so it is not known what its momentum is the weight of, and it was kept"
    if not isinstance(momentum, float | int) or not 0 <= momentum < 1:
        return f"{unknown}; convert it yourself"
    new, old = (rule.convert(unit, float(momentum), kappa) for unit in ("batchnorm", "ema"))
    return (
        f"{unknown}; set it to {show(float(new))} if it weighs the new batch, as torch's does, and to "
        f"{show(float(old))} if it weighs the old statistics"
    )


def _average_reminders(live: Live, kappa: float) -> Iterator[str]:
    given = live.given("ema")
    seen = list(visible_averages(live.given("model"), given))
    for name, kind in seen:
        yield f"parameter average {name} ({kind}): it was not given; give ema=model.{name}"
    if live.ema is None and not seen:
        yield "average of the parameters (EMA), if there is one: ema was not given; give ema=ema"
    for ema in given:
        counted = _counted(ema)
        if counted:
            yield (
                f"what {type(ema).__name__} counts in its own updates, a warm-up of its decay or an interval "
                f"({', '.join(counted)}): one update now has the samples of {show(kappa)} before"
            )


def _counted(ema: Any) -> list[str]:
    """Return the numbers of a parameter average that count its updates, by their names, as ``name = value``."""
    return [
        f"{name} = {value if isinstance(value, bool) else show(value)}"
        for name, value in getattr(ema, "__dict__", {}).items()
        if isinstance(value, float | int) and _COUNTS.search(name) and (value or _DONE.fullmatch(name))
    ]


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


def visible_averages(models: list[Any], given: Sequence[Any] = ()) -> Iterator[tuple[str, str]]:
    """Yield the parameter averages that models hold, other than those given, as attributes' names and classes.

    Those are torch's `AveragedModel`, unless its weights are equal, and what has a number as its attribute ``decay``
    and EMA in its name or class.
    """
    known = {id(one) for one in given}
    for model in models:
        for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
            average = isinstance(module, AveragedModel) and (module.avg_fn or module.multi_avg_fn)
            if average and path and id(module) not in known:
                yield path, type(module).__name__
            for name, value in vars(module).items():
                words = f"{name} {type(value).__name__}".lower()
                if id(value) in known:
                    continue
                if isinstance(getattr(value, "decay", None), float | int) and ("ema" in words or "average" in words):
                    yield f"{path}.{name}" if path else name, type(value).__name__
