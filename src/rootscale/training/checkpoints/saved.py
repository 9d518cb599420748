"""Optimizers as files have them: recognised, and made into objects that `prepare` can convert.

A ``state_dict`` holds the hyperparameters, the state and the counters of a run, but no class. What is made of it is an
object of the class that was recognised, whose constructor was never called: its groups are the file's, and its tensors
are mapped from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rootscale.training.adapters import family_of
from rootscale.training.checkpoints.pickled import number_of
from rootscale.training.checkpoints.recognition import check_state, check_values, find_class
from rootscale.training.targets import prefixed_errors

__all__ = ["SavedOptimizer", "is_optimizer"]


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
    counts: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = {str(key) for held in self.state.values() for key in held}
        cls = find_class(self.groups, names, self.kind, self.name)
        self.counts = cls.__module__.startswith("torch.optim")  # torch makes tensors of counters when it loads them
        self.live = object.__new__(cls)
        torch.optim.Optimizer.__init__(self.live, [torch.empty(0)], {})  # for its hooks
        self.live.param_groups = []
        for group in self.groups:
            stands = [torch.nn.Parameter(torch.empty(0), requires_grad=False) for _ in group["params"]]
            self.live.param_groups.append({**{key: self._value(group[key]) for key in group}, "params": stands})
            for identity, stand in zip(group["params"], stands, strict=True):
                if self.state.get(identity):
                    self.live.state[stand] = {k: self._held(k, v) for k, v in self.state[identity].items()}
        self.live.defaults = {k: v for k, v in self.live.param_groups[0].items() if k != "params"}
        with prefixed_errors(f"{self.name}: "):
            row = family_of(self.live)
        check_values(self.live, row, self.name)
        check_state(self.live, row, self.name)

    def _value(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._value(one) for one in value)
        if (number := number_of(value)) is not None:
            return number
        tensor = self.tensor(value)
        return value if tensor is None else tensor

    def _held(self, key: str, value: Any) -> Any:
        """Return a piece of state; a counter that torch kept as a number before 1.12 becomes what torch makes of it."""
        if self.counts and key == "step" and isinstance(value, int | float):
            return torch.tensor(float(value), dtype=torch.float32)
        return self._value(value)

    def streamed(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a whole one of the file, so that it can be multiplied when it is written."""
        return id(tensor) in self._whole

    @cached_property
    def _whole(self) -> set[int]:
        mapped = {id(value) for state in self.live.state.values() for value in state.values() if _is_tensor(value)}
        return mapped - {id(value) for _, _, value in self._numbers()}

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
                if key != "params" and not _has_tensors(value) and value != group.get(key, _NOTHING):
                    group[key] = list(value) if isinstance(group.get(key), list) else value
            for identity, stand in zip(group["params"], live["params"], strict=True):
                for key, value in self.live.state.get(stand, {}).items():
                    if not _has_tensors(value):  # a number that was converted as one
                        self.state[identity][key] = value
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


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _has_tensors(value: Any) -> bool:
    return _is_tensor(value) or (isinstance(value, list) and any(map(_has_tensors, value)))


_NOTHING = object()
