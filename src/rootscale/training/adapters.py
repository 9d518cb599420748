"""Lead from live torch optimizers to their rows of `rootscale.optimizers`, and from records to live optimizers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from rootscale.optimizers import FAMILIES, Family
from rootscale.spellings.libraries import LIBRARIES, REFUSED, spelled

if TYPE_CHECKING:
    from rootscale.hparams import Optimizer
    from rootscale.spellings import Spelling

#: The classes of torch.
TORCH: tuple[Spelling, ...] = tuple(row.torch for row in FAMILIES.values() if row.torch.in_torch)
#: The classes that users have registered, with their rows.
REGISTERED: dict[type[Any], Spelling] = {}
#: The group of entry points under which packages offer rows for their optimizers.
ENTRY_POINTS = "rootscale.optimizers"
#: What torch puts around the ``step`` of every class when its first object is made.
_HOOK = "Optimizer.profile_hook_step.<locals>.wrapper"


def add_row(cls: type[Any], row: Spelling) -> None:
    """Add a class of a user's own, which is looked up before all others."""
    REGISTERED[cls] = row


def row_of(optimizer: Any) -> Spelling:
    """Return the row of an optimizer; a subclass counts as the class it inherits from if it has not changed ``step``.

    Raises:
        TypeError: there is none for its class.
        ValueError: there is one, but an option makes another update of it.
    """
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer that is known; got {name}")
    row = _find(optimizer)
    if row is None and load_entry_points():
        row = _find(optimizer)
    if row is None:
        raise TypeError(_unknown(optimizer))
    for i, group in enumerate(optimizer.param_groups):
        for key in row.needs:
            if key not in group:
                there = ", ".join(key for key in group if key != "params")
                raise ValueError(
                    f"{name} has no {key!r} in group {i}, which has {there}; register({name}, values=..., state=...) "
                    "gives it a row with the names that it has"
                )
        if row.check is not None:
            try:
                row.check(group)
            except ValueError as error:
                raise ValueError(f"group {i} of {name} with {error}") from None
    return row


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


def _find(optimizer: torch.optim.Optimizer) -> Spelling | None:
    """Return the row of the class whose ``step`` an optimizer has."""
    kind = type(optimizer)
    step = _own_step(kind)
    for cls in kind.__mro__:
        if cls is torch.optim.Optimizer:
            return None
        if not issubclass(cls, torch.optim.Optimizer) or _own_step(cls) is not step:
            continue
        if cls in REGISTERED:
            return REGISTERED[cls]
        for row in TORCH:
            if _is_named(row, cls):
                return row
        for row in LIBRARIES:  # other libraries may have a class of that name, with other groups
            if _is_named(row, cls) and all(key in group for group in optimizer.param_groups for key in row.needs):
                return row
    return None


def _is_named(row: Spelling, cls: type[Any]) -> bool:
    """Return whether a class has one of the names of a row, and comes from its package."""
    at_home = not row.package or f"{cls.__module__}.".startswith(f"{row.package}.")
    return at_home and cls.__name__ in row.names


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
    known = dict.fromkeys(row.name for row in (*REGISTERED.values(), *TORCH))
    known |= dict.fromkeys(f"{row.name} ({row.package})" if row.package else row.name for row in LIBRARIES)
    near, reason = _nearest(optimizer)
    likely = f"The nearest family is {near!r}, {reason}: if" if near else "No family is near by its name; if"
    return (
        f"optimizer must be one that is known; got {name}. If it wraps another optimizer, give that one. {likely} its "
        f"update is that {'one' if near else 'of a known one'}, rootscale.training.register({name}, "
        f"like={near or '...'!r}) takes it; if not, register({name}, values=..., state=...) gives it a row of its own. "
        f"Known are {', '.join(known)}"
    )


def _nearest(optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    """Return the family that an optimizer is likely to be of, and why; nothing is guessed from its numbers."""
    for cls in type(optimizer).__mro__:
        for row in TORCH:
            if _is_named(row, cls):
                family = family_of_group(row, optimizer, optimizer.param_groups[0])
                return family, f"as it is a subclass of {cls.__name__} with a step of its own"
    name = type(optimizer).__name__.lower()
    return max((row for row in FAMILIES if row in name), key=len, default=""), "by its name"


def families_of(optimizer: Any) -> list[tuple[Family, list[int]]]:
    """Return the families of an optimizer's groups, as the library spells them, with the numbers of their groups."""
    row = row_of(optimizer)
    numbers: dict[str, list[int]] = {}
    for i, group in enumerate(optimizer.param_groups):
        numbers.setdefault(family_of_group(row, optimizer, group), []).append(i)
    return [(spelled(row, name), held) for name, held in numbers.items()]


def family_of_group(row: Spelling, optimizer: Any, group: Any) -> str:
    """Return the name of the family of a group."""
    return row.family if row.family_of is None else row.family_of(optimizer, group)


def family_of_defaults(optimizer: Any) -> str:
    """Return the name of the family that a group has if it is added without values of its own; "" if it cannot be."""
    row, defaults = row_of(optimizer), optimizer.defaults
    return family_of_group(row, optimizer, defaults) if all(key in defaults for key in row.needs) else ""


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
