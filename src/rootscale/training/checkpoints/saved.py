"""Optimizers as files have them: recognised, and made into objects that `prepare` can convert.

A ``state_dict`` holds the hyperparameters, the state and the counters of a run, but no class. The class is recognised
by the keys, through the table of classes in `rootscale.training.adapters`. What is made of it is an object of that
class whose constructor was never called: its groups are the file's, its tensors are mapped from the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rootscale.optimizers import FAMILIES, family
from rootscale.training.adapters import ADAPTERS
from rootscale.training.libraries import LIBRARIES, Adapter
from rootscale.training.schedulers import UNITS

__all__ = ["SavedOptimizer", "is_optimizer"]

#: Options of torch's optimizers that came with later versions, so that older files lack them.
_LATER = {"foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
#: What others put into groups: schedulers, torch's names, tools, and this library (``rootscale_...``).
_ADDED = {"params", "param_names", "name", "lr_scale", "lr_mult", "wd_mult", *UNITS} - {"lr", "betas"}


def is_optimizer(thing: Any) -> bool:
    """Return whether something that was read is the ``state_dict`` of an optimizer."""
    if not (isinstance(thing, dict) and isinstance(thing.get("param_groups"), list) and "state" in thing):
        return False
    groups = thing["param_groups"]
    return bool(groups) and all(isinstance(group, dict) and "params" in group and "lr" in group for group in groups)


@dataclass
class SavedOptimizer:
    """An optimizer in a file.

    Args:
        name: where it is in the file, for messages.
        groups: its parameter groups, which `put_back` changes.
        state: of each parameter, by what the groups' ``params`` have.
        tensor: returns a tensor of the file, mapped, or None for what is none.
        kind: the family that the user gave; None is found.
        whole_counters: whether counters that are whole numbers in the file have to stay whole.
    """

    name: str
    groups: list[dict[str, Any]]
    state: Mapping[Any, dict[str, Any]]
    tensor: Callable[[Any], Tensor | None]
    kind: str | None = None
    whole_counters: bool = False
    live: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        adapter = self._recognise()
        cls: Any = adapter.cls
        cls = _named(cls[0]) if isinstance(cls, tuple) else cls
        self.live = object.__new__(cls)
        torch.optim.Optimizer.__init__(self.live, [torch.empty(0)], {})  # for its hooks
        self.live.param_groups = []
        for group in self.groups:
            stands = [torch.nn.Parameter(torch.empty(0), requires_grad=False) for _ in group["params"]]
            self.live.param_groups.append({**{key: self._value(group[key]) for key in group}, "params": stands})
            for identity, stand in zip(group["params"], stands, strict=True):
                if self.state.get(identity):
                    self.live.state[stand] = {k: self._held(v) for k, v in self.state[identity].items()}
        self.live.defaults = {k: v for k, v in self.live.param_groups[0].items() if k != "params"}

    def _value(self, value: Any) -> Any:
        tensor = self.tensor(value)
        return value if tensor is None else tensor

    def _held(self, value: Any) -> Any:
        """Return a piece of state; numbers, as torch kept counters in before 1.12, become tensors, as torch makes."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return torch.tensor(float(value), dtype=torch.float32)
        return self._value(value)

    @property
    def keys(self) -> set[str]:
        """The names of the hyperparameters."""
        every = {str(key) for group in self.groups for key in group}
        return {key for key in every - _ADDED if not key.startswith("rootscale_")}

    @property
    def steps(self) -> float | None:
        """The number of steps that it has made, as its state counts them; None where it does not."""
        counts = [float(state["step"]) for state in self.live.state.values() if "step" in state]
        return max(counts, default=None)

    def put_back(self) -> None:
        """Bring what was converted into the file's groups and state; tensors are left to whoever writes them."""
        for group, live in zip(self.groups, self.live.param_groups, strict=True):
            for key in [key for key in group if key not in live]:
                del group[key]
            for key, value in live.items():
                if key != "params" and not isinstance(value, Tensor) and value != group.get(key, _NOTHING):
                    group[key] = list(value) if isinstance(group.get(key), list) else value
        for held, key, value in self._numbers():
            whole = self.whole_counters and isinstance(held[key], int)
            held[key] = max(1, round(float(value))) if whole else float(value)

    def _numbers(self) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """Yield the counters that are numbers in the file and tensors here, with their places in the file."""
        for group, live in zip(self.groups, self.live.param_groups, strict=True):
            for identity, stand in zip(group["params"], live["params"], strict=True):
                for key, value in self.live.state.get(stand, {}).items():
                    if isinstance(value, Tensor) and isinstance(self.state[identity][key], int | float):
                        yield self.state[identity], key, value

    def multiply_numbers(self, factors: dict[int, float]) -> None:
        """Multiply the counters that are numbers in the file; their factors are taken out."""
        for _, _, value in self._numbers():
            value.mul_(factors.pop(id(value), 1.0))

    def _recognise(self) -> Adapter:
        """Return the row of the table of classes that this optimizer is of."""
        fitting = [one for one in ADAPTERS if _fits(one, self.keys)]
        if self.kind is not None:
            return self._chosen(fitting)
        decoupled = {
            bool(group["decoupled_weight_decay"]) for group in self.groups if "decoupled_weight_decay" in group
        }
        if len(fitting) > 1 and decoupled:
            fitting = [one for one in fitting if one.family == ("adamw" if True in decoupled else "adam")]
        if len(fitting) > 1 and not any(group.get("weight_decay") for group in self.groups):
            fitting = fitting[-1:]  # without decay they are the same
        if len(fitting) == 1:
            return self._usable(fitting[0])
        if fitting:
            names = " or ".join(f"--optimizer {one.family}" for one in fitting)
            raise ValueError(
                f"{self.name} can be of {' or '.join(FAMILIES[one.family].torch.name for one in fitting)}: files of "
                f"torch before 2.6 do not say whether the weight decay is decoupled; give {names}"
            )
        raise ValueError(
            f"{self.name} is of an optimizer that is not recognised: its groups have {', '.join(sorted(self.keys))}. "
            f"If its update is that of {', '.join(FAMILIES)}, give --optimizer with that name"
        )

    def _chosen(self, fitting: Sequence[Adapter]) -> Adapter:
        row = family(str(self.kind))
        missing = sorted(set(row.torch.values) - self.keys)
        if missing:
            raise ValueError(
                f"--optimizer {row.name}: {self.name} is of another optimizer, as its groups have no {missing[0]}; "
                f"they have {', '.join(sorted(self.keys))}"
            )
        for group in self.groups:
            says = group.get("decoupled_weight_decay")
            if says is not None and row.name in ("adam", "adamw") and bool(says) != (row.name == "adamw"):
                raise ValueError(f"--optimizer {row.name}: {self.name} has decoupled_weight_decay={says}")
        known = [one for one in (*fitting, *ADAPTERS, *LIBRARIES) if one.family == row.name]
        return self._usable(known[0])

    def _usable(self, adapter: Adapter) -> Adapter:
        for group in self.groups:
            for key, value in adapter.requires.items():
                if group.get(key, value) != value:
                    raise ValueError(
                        f"{self.name}: {FAMILIES[adapter.family].torch.name} with {key}={group[key]!r}: {adapter.why}"
                    )
        return adapter


_NOTHING = object()


@cache
def _named(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of that name, for optimizers of libraries that need not be here."""
    return type(name, (torch.optim.Optimizer,), {})


def _fits(adapter: Adapter, keys: set[str]) -> bool:
    """Return whether groups with these keys are those of a class of torch, of this version or an older one."""
    cls: Any = adapter.cls
    if isinstance(cls, tuple) or not cls.__module__.startswith("torch.optim"):
        return False
    known = set(inspect.signature(cls).parameters) - {"params"}
    known |= {"decoupled_weight_decay"} if adapter.family == "adamw" else set()  # AdamW sets it itself
    return keys <= known and known - keys <= _LATER
