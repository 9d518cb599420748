"""Lead from live torch optimizers to their rows of `rootscale.optimizers`, and from records to live optimizers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

import torch

from rootscale.hparams import Optimizer
from rootscale.optimizers import FAMILIES, Family
from rootscale.training import optim
from rootscale.training.libraries import LIBRARIES, REFUSED, Adapter, kind_of_adam, kind_of_rmsprop

__all__ = [
    "ADAPTERS",
    "adapter_of",
    "add_adapter",
    "families_of",
    "family_of",
    "family_of_defaults",
    "load_entry_points",
    "make_optimizer",
]


def _torch_classes() -> Iterator[Adapter]:
    """Yield torch's classes; one that inherits from another one stands before it."""
    yield Adapter(torch.optim.AdamW, "adamw")
    yield Adapter(torch.optim.Adam, "adam", kind=kind_of_adam)
    yield Adapter(torch.optim.RMSprop, "rmsprop", kind=kind_of_rmsprop)
    yield Adapter(torch.optim.SGD, "sgd")
    yield Adapter(optim.MicroBatchAdam, "microbatchadam")
    yield Adapter(optim.Adam, "adam", kind=kind_of_adam)
    yield Adapter(optim.RMSprop, "rmsprop")
    yield Adapter(torch.optim.NAdam, "nadam")
    yield Adapter(torch.optim.RAdam, "radam")
    yield Adapter(torch.optim.Adamax, "adamax")
    yield Adapter(torch.optim.Adagrad, "adagrad")
    yield Adapter(torch.optim.Adafactor, "adafactor")
    if hasattr(torch.optim, "Muon"):
        yield Adapter(torch.optim.Muon, "muon")


#: torch's classes, those of this package and those that users have registered.
ADAPTERS: list[Adapter] = list(_torch_classes())
#: The group of entry points under which packages offer rows for their optimizers.
ENTRY_POINTS = "rootscale.optimizers"
#: What torch puts around the ``step`` of every class when its first object is made.
_HOOK = "Optimizer.profile_hook_step.<locals>.wrapper"


def add_adapter(adapter: Adapter) -> None:
    """Add a class of a user's own, before all others."""
    ADAPTERS.insert(0, adapter)


def adapter_of(optimizer: Any) -> Adapter:
    """Return the adapter of an optimizer; a subclass counts as its torch class only if it has not changed ``step``.

    Raises:
        TypeError: there is none for its class.
        ValueError: there is one, but an option makes another update of it.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer that is known; got {type(optimizer).__name__}"
            f"{_wrapped(optimizer)}"
        )
    adapter = _find(optimizer)
    if adapter is None and load_entry_points():
        adapter = _find(optimizer)
    if adapter is None:
        raise TypeError(_unknown(optimizer))
    if adapter.refused:
        raise TypeError(f"there is nothing to convert in {type(optimizer).__name__}, as {adapter.refused}")
    for i, group in enumerate(optimizer.param_groups):
        for key in adapter.needs:
            if key not in group:
                held = ", ".join(one for one in group if one != "params")
                name = type(optimizer).__name__
                raise ValueError(
                    f"{name} has no {key!r} in group {i}, which has {held}; register({name}, values=..., state=...) "
                    "gives it a row with the names that it has"
                )
        for key, value in adapter.requires.items():
            if group.get(key, value) != value:
                raise ValueError(f"{type(optimizer).__name__} with {key}={group[key]!r} (group {i}): {adapter.why}")
    return adapter


@cache
def load_entry_points() -> tuple[str, ...]:
    """Call the functions that installed packages offer for their optimizers, once, and return their names.

    A package names a function without arguments, which calls `rootscale.training.register`, in its ``pyproject.toml``:
    ``[project.entry-points."rootscale.optimizers"]``. One that fails is warned of, and the others are called.
    """
    names = []
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()()
        except Exception as error:
            warnings.warn(f"{point.value} of {ENTRY_POINTS} failed: {error}", RuntimeWarning, stacklevel=3)
        else:
            names.append(point.name)
    return tuple(names)


def _find(optimizer: torch.optim.Optimizer) -> Adapter | None:
    return next((adapter for adapter in (*ADAPTERS, *LIBRARIES) if _fits(adapter, optimizer)), None)


def _fits(adapter: Adapter, optimizer: torch.optim.Optimizer) -> bool:
    if isinstance(adapter.cls, tuple):
        return adapter.named_like(optimizer)
    return isinstance(optimizer, adapter.cls) and _own_step(type(optimizer)) is _own_step(adapter.cls)


def _unknown(optimizer: torch.optim.Optimizer) -> str:
    """Return what there is to say about an optimizer that is not known."""
    name = type(optimizer).__name__
    if name in REFUSED:
        return f"{name} has no rule that keeps its dynamics: {REFUSED[name]}"
    if type(optimizer).__module__.partition(".")[0] == "accelerate":
        return (
            f"optimizer must be torch's own, got an {name} of accelerator.prepare: what was prepared is taken by "
            "rootscale.integrations.accelerate.run, in the place of Run"
        )
    known = sorted({one.cls.__name__ for one in ADAPTERS if isinstance(one.cls, type) and not one.refused})
    known += [
        f"{one.cls[0]} ({one.package})" if one.package else one.cls[0]
        for one in LIBRARIES
        if not isinstance(one.cls, type)
    ]
    expected = f"optimizer must be one that is known; got {name}"
    if _wrapped(optimizer):
        return f"{expected}{_wrapped(optimizer)}; what {name} itself counts in steps is yours to divide by kappa"
    near, reason = _nearest(optimizer)
    likely = f"The nearest family is {near!r}, {reason}: if" if near else "No family is near by its name; if"
    return (
        f"{expected}. {likely} its update is that {'one' if near else 'of a known one'}, rootscale.training.register("
        f"{name}, like={near or '...'!r}) takes it; if not, register({name}, values=..., state=...) gives it a row of "
        f"its own. Known are {', '.join(dict.fromkeys(known))}"
    )


def _wrapped(optimizer: Any) -> str:
    """Return a hint to the optimizer that an object holds; empty where it holds none."""
    for name, held in getattr(optimizer, "__dict__", {}).items():
        if isinstance(held, torch.optim.Optimizer):
            return f"; give the {type(held).__name__} it wraps, its attribute {name}"
    return ""


def _nearest(optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """Return the family that an optimizer is likely to be of, and why; nothing is guessed from its numbers."""
    for adapter in ADAPTERS:
        if isinstance(adapter.cls, type) and isinstance(optimizer, adapter.cls):
            family = adapter.family_of_group(optimizer, optimizer.param_groups[0])
            return family, f"as it is a subclass of {adapter.cls.__name__} with a step of its own"
    name = type(optimizer).__name__.lower()
    return max((row for row in FAMILIES if row in name), key=len, default=""), "by its name"


def families_of(optimizer: Any) -> list[tuple[Family, list[int]]]:
    """Return the families of an optimizer's groups, as the library spells them, with the numbers of their groups."""
    adapter = adapter_of(optimizer)
    numbers: dict[str, list[int]] = {}
    for i, group in enumerate(optimizer.param_groups):
        numbers.setdefault(adapter.family_of_group(optimizer, group), []).append(i)
    return [(adapter.spelled(name), held) for name, held in numbers.items()]


def family_of_defaults(optimizer: Any) -> str:
    """Return the name of the family that a group has if it is added without values of its own; "" if it cannot be."""
    adapter, defaults = adapter_of(optimizer), optimizer.defaults
    complete = all(key in defaults for key in adapter.needs)
    return adapter.family_of_group(optimizer, defaults) if complete else ""


def family_of(optimizer: Any) -> Family:
    """Return the family of an optimizer all of whose groups are of one."""
    found = families_of(optimizer)
    if len(found) > 1:
        names = " and ".join(row.name for row, _ in found)
        raise TypeError(f"{type(optimizer).__name__} has groups of several families ({names}); this needs one of one")
    return found[0][0]


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
    cls: Any = getattr(torch.optim, family.torch.name, None)
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
