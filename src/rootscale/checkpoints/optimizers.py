"""Optimizers as files have them: recognised, and made into objects that can be converted.

A ``state_dict`` holds the hyperparameters, the state and the counters of a run, but no class. It is recognised by the
keys of its groups. What is made of it is an object of that class whose constructor was never called: its groups are the
file's, and its tensors are mapped from the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from rootscale.checkpoints.pickled import name_of, number_of
from rootscale.optimizers import FAMILIES, Family, family
from rootscale.training import adapters

#: What this library writes into groups begins with this, such as the clock of a `Run`.
_OWN = "rootscale_"
#: What each of torch's schedulers keeps in groups, all of it at once: a user's own ``min_lr`` alone is not theirs.
SCHEDULED = (
    ("initial_lr",),
    ("initial_lr", "swa_lr"),
    ("initial_lr", "max_lr", "min_lr"),
    ("initial_lr", "base_momentum", "max_momentum"),
)
#: Options of torch's optimizers that came with later versions, so that older files lack them.
_LATER = {"foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
#: What others put into groups: schedulers, torch's names, tools, and this library (``rootscale_...``).
_ADDED = {
    "params",
    "param_names",
    "name",
    "lr_scale",
    "lr_mult",
    "wd_mult",
    *(key for keys in SCHEDULED for key in keys),
}
_Groups = Sequence[Mapping[str, Any]]


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
    state: Mapping[Any, Any]
    tensor: Callable[[Any], Tensor | None]
    kind: str | None = None
    whole_counters: bool = False
    live: Any = field(init=False, repr=False)
    counts: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for owner, held in self.state.items():
            if not isinstance(held, dict) or not all(isinstance(key, str) for key in held):
                raise ValueError(f"{self.name} has a state of parameter {owner} that is no dictionary of named pieces")
        names = {key for held in self.state.values() for key in held}
        cls = _find_class(self.groups, names, self.kind, self.name)
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
        try:
            rows = adapters.families_of(self.live)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from None
        for row, numbers in rows:
            groups = [self.live.param_groups[i] for i in numbers]
            _check_values(groups, row, self.name)
            _check_state([self.live.state.get(one, {}) for group in groups for one in group["params"]], row, self.name)

    def _value(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, list | tuple):
            # A pickle of a few hundred bytes can hold lists that double forty times: no optimizer has such a value.
            if depth > 2:
                raise ValueError(f"{self.name} has a value of lists in lists in lists, which is no hyperparameter")
            return type(value)(self._value(one, depth + 1) for one in value)
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


# ---- which optimizer it is


def _group_keys(groups: _Groups) -> set[str]:
    """Return the names of the hyperparameters in parameter groups."""
    every = {str(key) for group in groups for key in group}
    return {key for key in every - _ADDED if not key.startswith(_OWN)}


def _find_class(groups: _Groups, state: set[str], kind: str | None, name: str) -> type[torch.optim.Optimizer]:
    """Return the class that parameter groups are of.

    Args:
        groups: of the file.
        state: the names in its state.
        kind: the family that the user gave; None is found.
        name: of the optimizer in the file, for messages.

    Raises:
        ValueError: it is not known, or it can be of several.
    """
    keys = _group_keys(groups)
    fitting: list[type[torch.optim.Optimizer]] = [cls for cls in _torch_classes() if _fits(cls, keys)]
    if kind is not None:
        if kind not in FAMILIES:
            adapters.load_entry_points()
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
    for name in dict.fromkeys(row.name for row in adapters.TORCH):
        if hasattr(torch.optim, name):
            yield getattr(torch.optim, name)


def _fits(cls: Any, keys: set[str]) -> bool:
    """Return whether groups with these keys are those of a class of torch, of this version or an older one."""
    known = set(inspect.signature(cls).parameters) - {"params"}
    known |= {"decoupled_weight_decay"} if cls is torch.optim.AdamW else set()  # AdamW sets it itself
    return keys <= known and known - keys <= _LATER


def _has_state(cls: Any, state: set[str]) -> bool:
    """Return whether a class of torch keeps a state of these names."""
    held = [dict.fromkeys(state, 0.0)]
    return any(not row.unknown_state(held) for row in FAMILIES.values() if row.torch.name == cls.__name__)


def _chosen(fitting: Sequence[Any], groups: _Groups, row: Family, name: str) -> type[torch.optim.Optimizer]:
    keys = _group_keys(groups)
    missing = sorted(set(row.torch_units()) - keys)
    if missing:
        raise ValueError(
            f"--optimizer {row.name}: {name} is of another optimizer, as its groups have no {missing[0]}; they have "
            f"{', '.join(sorted(keys))}"
        )
    for group in groups:
        says = group.get("decoupled_weight_decay")
        if says is not None and row.name in ("adam", "adamw") and bool(says) != (row.name == "adamw"):
            raise ValueError(f"--optimizer {row.name}: {name} has decoupled_weight_decay={says}")
    known = [cls for cls in (*fitting, *_torch_classes(), *adapters.REGISTERED) if cls.__name__ == row.torch.name]
    return known[0] if known else _stand_in(row.torch.name, row.torch.package)


@cache
def _stand_in(name: str, package: str) -> type[torch.optim.Optimizer]:
    """Return a class of that name, for optimizers of libraries that need not be here."""
    return type(name, (torch.optim.Optimizer,), {"__module__": package or "saved"})


def _check_values(groups: _Groups, row: Family, name: str) -> None:
    """Refuse hyperparameters that are no numbers."""
    for group in groups:
        for key in row.torch.values:
            held = group.get(key)
            for one in held if isinstance(held, list | tuple) else [held]:
                if not isinstance(one, int | float | torch.Tensor):
                    raise ValueError(f"{name} has {key} as {name_of(one)}, and not as a number: save float({key})")


def _check_state(states: _Groups, row: Family, name: str) -> None:
    """Refuse a state that the family does not know: it would stay as it is, in the old units."""
    unknown = row.unknown_state(states)
    if unknown:
        raise ValueError(
            f"{name} has {', '.join(unknown)} in its state, which {row.torch.name} has not: it is of another "
            "optimizer, whose state is not known"
        )
