"""The edits of averages: BatchNorm's momentum, and the decay of an average of parameters.

No ``state_dict`` holds these numbers. So each object that has been converted says by how much, in an attribute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from rootscale.changes import Change
from rootscale.hparams import DOMAINS
from rootscale.rules import Rule
from rootscale.training.edits import Action, Edit, plural
from rootscale.training.markers import TAG
from rootscale.training.norms import norm_layers

__all__ = ["averaging_layers", "ema_edits", "norm_edits", "tag_of"]


def _set(objects: Sequence[Any], name: str, value: Any) -> None:
    for one in objects:
        setattr(one, name, value)


def _save_attribute(objects: Sequence[Any], name: str) -> Action:
    held = [(one, getattr(one, name)) for one in objects]

    def restore() -> None:
        for one, value in held:
            if getattr(one, name) != value:  # a setter that has just refused may refuse the old value too
                setattr(one, name, value)

    return restore


def _attribute_edit(change: Change, objects: Sequence[Any], name: str, value: Any) -> Edit:
    return Edit((change,), partial(_set, objects, name, value), partial(_save_attribute, objects, name))


def tag_of(thing: Any) -> float:
    """Return how far the number of a BatchNorm layer or a parameter average has been converted."""
    return float(getattr(thing, TAG, 1.0))


def _tag_edit(things: Sequence[Any], value: float) -> Edit:
    """Return the edit of what `tag_of` says; nothing is noted on an object that takes no further attribute."""

    def save() -> Action:
        held = [(one, tag_of(one)) for one in things]

        def restore() -> None:
            for one, tag in held:
                _tag([one], tag)

        return restore

    return Edit((), partial(_tag, things, value), save)


def _tag(things: Sequence[Any], value: float) -> None:
    for one in things:
        with suppress(AttributeError):
            setattr(one, TAG, value)


def averaging_layers(models: Sequence[Any], *, refuse_scripted: bool = False) -> list[Any]:
    """Return the layers of these models that average statistics with a momentum, each of them once."""
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    together = models[0] if len(models) == 1 else torch.nn.ModuleList(models)  # finds each layer once
    found = norm_layers(together, refuse_scripted=refuse_scripted) if models else {}
    return [layer for layer in found.values() if layer.momentum is not None]  # None is a plain average


def norm_edits(layers: Sequence[Any], rule: Rule, factor: Callable[[float], float]) -> Iterator[Edit]:
    """Yield the edits of BatchNorm's momentum, one for each value that the layers have.

    Args:
        layers: of `averaging_layers`.
        rule: for their momentum.
        factor: by which to convert what has been converted so far by the factor that it gets.
    """
    equals: dict[tuple[float, float], list[Any]] = {}
    for layer in layers:
        equals.setdefault((float(layer.momentum), tag_of(layer)), []).append(layer)
    for (momentum, tag), equal in equals.items():
        DOMAINS["batchnorm"]("BatchNorm momentum", momentum)
        kappa, unit = factor(tag), rule.units.get("batchnorm")
        after = float(rule.convert("batchnorm", momentum, kappa, "BatchNorm momentum"))
        change = Change("BatchNorm momentum", momentum, after, unit, note=plural(equal, "layer"))
        yield _attribute_edit(change, equal, "momentum", after)
        yield _tag_edit(equal, tag * kappa if unit else tag)


#: torch's makers of exponential averages, by the attribute of AveragedModel that holds what they make.
_EMA_MAKERS: dict[str, Callable[[float], Any]] = {"multi_avg_fn": get_ema_multi_avg_fn, "avg_fn": get_ema_avg_fn}


def ema_edits(ema: Any, rule: Rule, factor: Callable[[float], float]) -> Iterator[Edit]:
    """Yield the edits of an average of parameters: its decay, and how far that has been converted; see `norm_edits`."""
    tag = tag_of(ema)
    yield _decay_edit(ema, rule, factor(tag))
    yield _tag_edit([ema], tag * factor(tag) if "ema" in rule.units else tag)


def _decay_edit(ema: Any, rule: Rule, kappa: float) -> Edit:
    if isinstance(ema, AveragedModel):
        for attribute, maker in _EMA_MAKERS.items():
            function: Any = getattr(ema, attribute, None)
            # torch keeps the decay only in the closure of the function that its maker returned.
            if getattr(function, "__qualname__", "").startswith(f"{maker.__name__}.<locals>."):
                change = _decay(inspect.getclosurevars(inspect.unwrap(function)).nonlocals["decay"], rule, kappa)
                return _attribute_edit(change, [ema], attribute, maker(float(change.after or 0.0)))
        raise TypeError(
            "ema must be an AveragedModel with an exponential average of torch's (torch.optim.swa_utils."
            "get_ema_multi_avg_fn or get_ema_avg_fn): an average of equal weights needs no conversion; convert your "
            "own function yourself"
        )
    if not isinstance(getattr(ema, "decay", None), float | int):
        raise TypeError(
            f"ema must be an AveragedModel or have a number as its attribute decay, got {type(ema).__name__}"
        )
    try:
        ema.decay = ema.decay
    except AttributeError as error:
        raise TypeError(f"the decay of {type(ema).__name__} cannot be set ({error}); convert it yourself") from None
    change = _decay(ema.decay, rule, kappa)
    return _attribute_edit(change, [ema], "decay", change.after)


def _decay(value: Any, rule: Rule, kappa: float) -> Change:
    before = DOMAINS["ema"]("EMA decay", float(value))
    after = float(rule.convert("ema", before, kappa, "EMA decay"))
    return Change("EMA decay", before, after, rule.units.get("ema"))
