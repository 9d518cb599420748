"""The edits of averages: BatchNorm's momentum, and the decay of an average of parameters.

No ``state_dict`` of torch holds these numbers. So each converted object says in an attribute by how much it is.
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
from rootscale.format import show
from rootscale.hparams import DOMAINS
from rootscale.rules import Rule
from rootscale.training.edits import Action, Edit, plural
from rootscale.training.markers import TAG
from rootscale.training.norms import norm_layers

__all__ = ["averaging_layers", "decay_of", "ema_edits", "norm_edits", "tag_of"]


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


def norm_edits(layers: Sequence[Any], rule: Rule, due: Callable[[float], tuple[float, str]]) -> Iterator[Edit]:
    """Yield the edits of BatchNorm's momentum, one for each value that the layers have.

    Args:
        layers: of `averaging_layers`.
        rule: for their momentum.
        due: returns by which factor to convert what has been converted so far by the one that it gets, and a note.
    """
    equals: dict[tuple[float, float], list[Any]] = {}
    for layer in layers:
        equals.setdefault((float(layer.momentum), tag_of(layer)), []).append(layer)
    for (momentum, tag), equal in equals.items():
        DOMAINS["batchnorm"]("BatchNorm momentum", momentum)
        (kappa, note), unit = due(tag), rule.units.get("batchnorm")
        after = float(rule.convert("batchnorm", momentum, kappa, "BatchNorm momentum"))
        words = ", ".join(filter(None, (plural(equal, "layer"), note)))
        change = Change("BatchNorm momentum", momentum, after, unit, note=words)
        yield _attribute_edit(change, equal, "momentum", after)
        yield _tag_edit(equal, tag * kappa if unit else tag)


#: torch's makers of exponential averages, by the attribute of AveragedModel that holds what they make.
_EMA_MAKERS: dict[str, Callable[[float], Any]] = {"multi_avg_fn": get_ema_multi_avg_fn, "avg_fn": get_ema_avg_fn}


def ema_edits(ema: Any, rule: Rule, kappa: float, reached: float, note: str = "") -> Iterator[Edit]:
    """Yield the edits of an average of parameters: its decay, and how far that has been converted.

    Args:
        ema: the average.
        rule: for its decay.
        kappa: by which to convert it.
        reached: how far it is converted then.
        note: for the report.
    """
    yield _decay_edit(ema, rule, kappa, note)
    if "ema" in rule.units:
        yield _tag_edit([ema], reached)


def decay_of(ema: Any) -> float:
    """Return the decay of an average of parameters.

    Raises:
        TypeError: it has none that can be read.
    """
    if isinstance(ema, AveragedModel):
        # torch keeps the decay only in the closure of the function that its maker returned.
        return float(inspect.getclosurevars(inspect.unwrap(getattr(ema, _holder(ema)))).nonlocals["decay"])
    decay = getattr(ema, "decay", None)
    if not isinstance(decay, float | int):
        raise TypeError(
            f"ema must be an AveragedModel or have a number as its attribute decay, got {type(ema).__name__}"
        )
    return float(decay)


def _holder(ema: AveragedModel) -> str:
    """Return the attribute that holds what one of torch's makers of exponential averages made."""
    for attribute, maker in _EMA_MAKERS.items():
        if getattr(getattr(ema, attribute, None), "__qualname__", "").startswith(f"{maker.__name__}.<locals>."):
            return attribute
    raise TypeError(
        "ema must be an AveragedModel with an exponential average of torch's (torch.optim.swa_utils."
        "get_ema_multi_avg_fn or get_ema_avg_fn): an average of equal weights needs no conversion; convert your "
        "own function yourself"
    )


def _decay_edit(ema: Any, rule: Rule, kappa: float, note: str) -> Edit:
    before = DOMAINS["ema"]("EMA decay", decay_of(ema))
    after = float(rule.convert("ema", before, kappa, "EMA decay"))
    change = Change("EMA decay", before, after, rule.units.get("ema"), note=note)
    if isinstance(ema, AveragedModel):
        attribute = _holder(ema)
        return _attribute_edit(change, [ema], attribute, _EMA_MAKERS[attribute](after))
    _check_settable(ema, before)
    return _attribute_edit(change, [ema], "decay", after)


def _check_settable(ema: Any, decay: float) -> None:
    """Refuse a decay that cannot be set, as far as that can be seen without setting it."""
    name, held = type(ema).__name__, inspect.getattr_static(type(ema), "decay", None)
    frozen = getattr(getattr(ema, "__dataclass_params__", None), "frozen", False)
    if frozen or isinstance(ema, tuple) or (isinstance(held, property) and held.fset is None):
        raise TypeError(f"the decay of {name} cannot be set; convert it yourself")
    if isinstance(held, property) and not _holds(ema, decay):
        raise TypeError(
            f"the decay of {name} is a property that computes {show(decay)}, which is none of the numbers that it "
            "holds (a warm-up?); convert the number that it computes it from yourself"
        )


def _holds(ema: Any, value: float) -> bool:
    """Return whether a number is among the attributes and buffers of an object."""
    held = [*getattr(ema, "__dict__", {}).values(), *getattr(ema, "_buffers", {}).values()]
    single = [one for one in held if isinstance(one, torch.Tensor) and one.numel() == 1]
    return value in [*(one for one in held if isinstance(one, float | int)), *(one.item() for one in single)]
