"""Lead from live torch optimizers to their rows of `rootscale.optimizers`, and from records to live optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rootscale.hparams import Optimizer
from rootscale.optimizers import FAMILIES, Family
from rootscale.training import optim
from rootscale.training.sample_clock import SampleClock

__all__ = ["ADAPTERS", "Adapter", "adapter_of", "family_of", "make_optimizer"]


@dataclass(frozen=True)
class Adapter:
    """A class of torch optimizers, and the family whose update it makes.

    Args:
        cls: whose ``step`` it has; or the name of a class of any library, whose groups then must have the family's
            hyperparameters.
        family: the name of the row.
        requires: options that must have these values; with others the update is another one.
        refused: why there is nothing to convert, where that is so.
    """

    cls: type[torch.optim.Optimizer] | str
    family: str
    requires: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""

    def fits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer makes this update."""
        if isinstance(self.cls, str):
            keys = FAMILIES[self.family].torch.values
            named = any(cls.__name__ == self.cls for cls in type(optimizer).__mro__)
            return named and all(key in group for group in optimizer.param_groups for key in keys)
        return isinstance(optimizer, self.cls) and _own_step(type(optimizer)) is _own_step(self.cls)


#: The classes that are known. A class that inherits from another one stands before it.
ADAPTERS = (
    Adapter(torch.optim.AdamW, "adamw"),
    Adapter(torch.optim.Adam, "adam"),
    Adapter(torch.optim.RMSprop, "rmsprop", {"momentum": 0, "centered": False}),
    Adapter(torch.optim.SGD, "sgd"),
    Adapter(optim.MicroBatchAdam, "microbatchadam"),
    Adapter(optim.Adam, "adam"),
    Adapter(optim.RMSprop, "rmsprop"),
    Adapter(SampleClock, "adam", refused="it is on the sample clock: give the new batch size to step(samples=...)"),
    *([Adapter(torch.optim.Muon, "muon")] if hasattr(torch.optim, "Muon") else []),
    Adapter("Lion", "lion"),
    Adapter("Signum", "signum"),
)
SUPPORTED = (
    "torch.optim.Adam, AdamW, RMSprop (without momentum, not centered), SGD and Muon, rootscale.training.optim, and "
    "classes named Lion or Signum"
)
#: What torch puts around the ``step`` of every class when its first object is made.
_HOOK = "Optimizer.profile_hook_step.<locals>.wrapper"


def adapter_of(optimizer: Any) -> Adapter:
    """Return the adapter of an optimizer; a subclass counts as its torch class only if it has not changed ``step``.

    Raises:
        TypeError: there is none for its class.
        ValueError: there is one, but an option makes another update of it.
    """
    for adapter in ADAPTERS if isinstance(optimizer, torch.optim.Optimizer) else ():
        if adapter.fits(optimizer):
            break
    else:
        inner = getattr(optimizer, "optimizer", None)
        hint = f"; give the {type(inner).__name__} it wraps" if isinstance(inner, torch.optim.Optimizer) else ""
        raise TypeError(f"optimizer must be one of {SUPPORTED}; got {type(optimizer).__name__}{hint}")
    if adapter.refused:
        raise TypeError(f"there is nothing to convert in {type(optimizer).__name__}, as {adapter.refused}")
    for i, group in enumerate(optimizer.param_groups):
        for key, value in adapter.requires.items():
            if group.get(key, value) != value:
                raise ValueError(
                    f"{type(optimizer).__name__} with {key}={group[key]!r} (group {i}) follows no known SDE, so no "
                    f"rule keeps its dynamics; supported are {SUPPORTED}"
                )
    return adapter


def family_of(optimizer: Any) -> Family:
    """Return the family of an optimizer; Adam with decoupled weight decay is AdamW."""
    family = FAMILIES[adapter_of(optimizer).family]
    if family.name == "adam" and any(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        return FAMILIES["adamw"]
    return family


def _own_step(cls: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return the ``step`` that a class was written with, without torch's hook; other wrappers count as steps."""
    step: Any = cls.step
    while getattr(getattr(step, "__code__", None), "co_qualname", "") == _HOOK:
        step = step.__wrapped__
    found: Callable[..., Any] = step
    return found


def make_optimizer(params: Any, record: Optimizer, capturable: bool = False) -> torch.optim.Optimizer:
    """Return the optimizer of torch with the hyperparameters of a record.

    Args:
        params: parameters, or groups of them.
        record: such as `rootscale.Adam`.
        capturable: whether a CUDA graph has to hold its step.
    """
    if getattr(record, "eps_root", 0):
        raise ValueError("torch's optimizers have no eps inside the root; give the task an optimizer of your own")
    family = FAMILIES[record.name]
    cls: Any = next((one.cls for one in ADAPTERS if one.family == family.name and not isinstance(one.cls, str)), None)
    if cls is None:
        raise ValueError(f"torch has no {family.torch.name}; give the task an optimizer of your own")
    known = inspect.signature(cls).parameters
    if capturable and not {"capturable", "fused"} & set(known):
        raise ValueError(f"a CUDA graph cannot hold the step of torch.optim.{family.torch.name}; run without fast=True")
    # torch has no fused RMSprop, and only one way to take a step of Muon
    wanted = {"capturable": capturable, ("fused" if "fused" in known else "foreach"): capturable or None}
    options = {name: value for name, value in wanted.items() if name in known}
    made: torch.optim.Optimizer = cls(params, **family.torch.arguments(record), **options)
    return made
