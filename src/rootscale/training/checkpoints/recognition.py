"""Which optimizer a file holds: a ``state_dict`` has no class, and is recognised by the keys of its groups."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from rootscale.optimizers import FAMILIES, Family, family
from rootscale.training import adapters
from rootscale.training.checkpoints.pickled import name_of
from rootscale.training.scheduler_units import KEPT_KEYS

__all__ = ["check_state", "check_values", "find_class", "group_keys"]

Groups = Sequence[Mapping[str, Any]]
#: Options of torch's optimizers that came with later versions, so that older files lack them.
_LATER = {"foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
#: What others put into groups: schedulers, torch's names, tools, and this library (``rootscale_...``).
_ADDED = {"params", "param_names", "name", "lr_scale", "lr_mult", "wd_mult", *KEPT_KEYS}


def group_keys(groups: Groups) -> set[str]:
    """Return the names of the hyperparameters in parameter groups."""
    every = {str(key) for group in groups for key in group}
    return {key for key in every - _ADDED if not key.startswith("rootscale_")}


def find_class(groups: Groups, state: set[str], kind: str | None, name: str) -> type[torch.optim.Optimizer]:
    """Return the class that parameter groups are of.

    Args:
        groups: of the file.
        state: the names in its state.
        kind: the family that the user gave; None is found.
        name: of the optimizer in the file, for messages.

    Raises:
        ValueError: it is not known, or it can be of several.
    """
    keys = group_keys(groups)
    fitting: list[type[torch.optim.Optimizer]] = [cls for cls in _torch_classes() if _fits(cls, keys)]
    if kind is not None:
        return _chosen(fitting, groups, family(kind), name)
    decoupled = {bool(group["decoupled_weight_decay"]) for group in groups if "decoupled_weight_decay" in group}
    if torch.optim.AdamW in fitting and (decoupled or not any(group.get("weight_decay") for group in groups)):
        fitting = [torch.optim.AdamW if True in decoupled else torch.optim.Adam]  # without decay they are the same
    if len(fitting) > 1:
        fitting = [cls for cls in fitting if _has_state(cls, state)] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = [cls.__name__ for cls in fitting]
        adam = ": files of torch before 2.6 do not say whether the weight decay is decoupled" * ("AdamW" in names)
        raise ValueError(
            f"{name} can be of {' or '.join(names)}{adam}; give "
            f"{' or '.join(f'--optimizer {one.lower()}' for one in names)}"
        )
    raise ValueError(
        f"{name} is of an optimizer that is not recognised: its groups have {', '.join(sorted(keys))}. "
        f"If its update is that of {', '.join(FAMILIES)}, give --optimizer with that name"
    )


def _torch_classes() -> Iterator[Any]:
    for adapter in adapters.ADAPTERS:
        cls: Any = adapter.cls
        if isinstance(cls, type) and cls.__module__.startswith("torch.optim"):
            yield cls


def _fits(cls: Any, keys: set[str]) -> bool:
    """Return whether groups with these keys are those of a class of torch, of this version or an older one."""
    known = set(inspect.signature(cls).parameters) - {"params"}
    known |= {"decoupled_weight_decay"} if cls is torch.optim.AdamW else set()  # AdamW sets it itself
    return keys <= known and known - keys <= _LATER


def _has_state(cls: Any, state: set[str]) -> bool:
    """Return whether a class of torch keeps a state of these names."""
    held = [dict.fromkeys(state, 0.0)]
    return any(not row.unknown_state(held) for row in FAMILIES.values() if row.torch.name == cls.__name__)


def _chosen(fitting: Sequence[Any], groups: Groups, row: Family, name: str) -> type[torch.optim.Optimizer]:
    keys = group_keys(groups)
    missing = sorted(set(row.torch.values) - keys)
    if missing:
        raise ValueError(
            f"--optimizer {row.name}: {name} is of another optimizer, as its groups have no {missing[0]}; they have "
            f"{', '.join(sorted(keys))}"
        )
    for group in groups:
        says = group.get("decoupled_weight_decay")
        if says is not None and row.name in ("adam", "adamw") and bool(says) != (row.name == "adamw"):
            raise ValueError(f"--optimizer {row.name}: {name} has decoupled_weight_decay={says}")
    known = [cls for cls in (*fitting, *_torch_classes()) if cls.__name__ == row.torch.name]
    return known[0] if known else _named(row.torch.name)


@cache
def _named(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of that name, for optimizers of libraries that need not be here."""
    return type(name, (torch.optim.Optimizer,), {})


def check_values(optimizer: Any, row: Family, name: str) -> None:
    """Refuse hyperparameters that are no numbers."""
    for group in optimizer.param_groups:
        for key in row.torch.values:
            held = group.get(key)
            for one in held if isinstance(held, list | tuple) else [held]:
                if not isinstance(one, int | float | torch.Tensor):
                    raise ValueError(f"{name} has {key} as {name_of(one)}, and not as a number: save float({key})")


def check_state(optimizer: Any, row: Family, name: str) -> None:
    """Refuse a state that the family does not know: it would stay as it is, in the old units."""
    unknown = row.unknown_state(optimizer.state.values())
    if unknown:
        raise ValueError(
            f"{name} has {', '.join(unknown)} in its state, which {row.torch.name} has not: it is of another "
            "optimizer, whose state is not known"
        )
