"""A task: everything that a run needs, except for its batch size, its rule and its seed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rootscale.files import load_file
from rootscale.plan import Plan


@runtime_checkable
class Data(Protocol):
    """Samples that are read by number, many at once, such as windows of a text. `Tensors` is the usual one."""

    def __len__(self) -> int:
        """Return how many samples there are."""
        ...

    def __getitem__(self, index: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the samples ``index`` (of any shape), stacked in that shape."""
        ...

    def to(self, device: torch.device) -> Data:
        """Return the same data on another device."""
        ...


@dataclass(frozen=True, eq=False)
class Tensors:
    """Inputs and targets in memory, with n rows each."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"inputs and targets must have the same number of rows, got {len(self.inputs)} and {len(self.targets)}"
            )
        if not len(self.inputs):
            raise ValueError("data must have at least one sample, got none")

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.inputs)

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples."""
        return self.inputs[index], self.targets[index]

    def to(self, device: torch.device) -> Tensors:
        """Return the same data on another device."""
        return Tensors(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class OnDisk:
    """Data of a known length that are read when a sample is needed first, so that a task can be made without them.

    Args:
        length: how many samples there are; another number is an error.
        read: reads them.
    """

    length: int
    read: Callable[[], Data]

    @cached_property
    def data(self) -> Data:
        """What was read."""
        data = self.read()
        if len(data) != self.length:
            raise ValueError(f"the data must have {self.length:,} samples, got {len(data):,}")
        return data

    def __len__(self) -> int:
        """Return how many samples there are."""
        return self.length

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples."""
        return self.data[index]

    def to(self, device: torch.device) -> Data:
        """Return the data on another device."""
        return self.data.to(device)


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its data and a plan.

    >>> from functools import partial
    >>> from rootscale import Adam, Plan
    >>> x, y = torch.randn(100, 5), torch.randint(3, (100,))
    >>> task = Task(
    ...     "mine",
    ...     plan=Plan(Adam(eta=1e-3, beta1=0.98), batch_size=4, steps=1000),
    ...     model=lambda: nn.Linear(5, 3),
    ...     loss=partial(nn.functional.cross_entropy, reduction="none"),
    ...     train=(x[:80], y[:80]),
    ...     test=(x[80:], y[80:]),
    ...     metrics={"accuracy": lambda outputs, y: (outputs.argmax(-1) == y).float()},
    ... )
    >>> len(task.train)
    80

    Args:
        name: of the task, which is also part of the names of files and folders.
        plan: the run as it is; its length is needed.
        model: makes a fresh model; its random numbers are those of the run's seed.
        loss: ``loss(outputs, targets)``, one value for each sample.
        train, test: inputs and targets, or any `Data`, or a `torch.utils.data.Dataset` of pairs (read into memory).
        metrics: further values for each sample, ``metric(outputs, targets)``; means over both data sets are measured.
        functions: numbers that are measured on the model, ``function(model)``.
        prepare: is applied to inputs in training and in evaluation, such as bytes to floats.
        augment: ``augment(inputs, uniforms)``, in training only, after ``prepare``; ``uniforms`` are ``draws`` numbers
            in [0, 1) for each sample, the only source of randomness it may use.
        draws: how many.
        optimizer: makes the optimizer, ``optimizer(parameters, plan.optimizer)``; None is torch's of that name. It may
            be `rootscale.lab.several.Several`, of which the first is the plan's.
    """

    name: str
    plan: Plan
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Tensor], Tensor]
    train: Any
    test: Any = None
    metrics: Mapping[str, Callable[[Any, Tensor], Tensor]] = field(default_factory=dict)
    functions: Mapping[str, Callable[[nn.Module], Any]] = field(default_factory=dict)
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    draws: int = 0
    optimizer: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        need_file_name(self.name)
        if not isinstance(self.plan, Plan):
            raise TypeError(f"plan must be a rootscale.Plan, got {type(self.plan).__name__}")
        if self.plan.total_steps is None:
            raise ValueError("the plan of a task needs a length: give it steps, or epochs and dataset_size")
        for name in ("model", "loss"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be callable, got {type(getattr(self, name)).__name__}")
        object.__setattr__(self, "train", as_data("train", self.train))
        if self.test is not None:
            object.__setattr__(self, "test", as_data("test", self.test))


def as_data(name: str, data: Any) -> Data:
    """Return data from a pair of tensors, a Dataset of pairs, or `Data` itself; ``name`` is for messages."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return Tensors(*data)
    if isinstance(data, Tensors) or (isinstance(data, Data) and not isinstance(data, torch.utils.data.Dataset)):
        return data
    if isinstance(data, torch.utils.data.Dataset):
        pairs = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        inputs, targets = torch.utils.data.default_collate(pairs)
        return Tensors(inputs, targets)
    raise TypeError(
        f"{name} must be a pair of tensors (inputs, targets), a torch Dataset of pairs, or have __len__, "
        f"__getitem__(index tensor) and to(device); got {type(data).__name__}"
    )


def need_file_name(name: Any) -> None:
    """Raise where a name cannot be part of a file name, or would lead out of its folder."""
    if not isinstance(name, str) or name.strip() in ("", ".", "..") or not name.isprintable() or set(name) & set("/\\"):
        raise ValueError(
            f"the name of a task must be a plain name without / or \\, such as 'digits': it names files; got {name!r}"
        )


def load_task(where: str) -> Task:
    """Return the task that ``module:name`` or ``file.py:name`` leads to; a function of that name is called."""
    return as_task(where, load_named(where))


def as_task(where: str, found: Any) -> Task:
    """Return a task, or what a function makes that takes no arguments."""
    makes = callable(found) and not isinstance(found, Task)
    if makes and not _needs_nothing(found):
        raise ValueError(
            f"{where} must be a rootscale.lab.Task, a function without arguments that makes one, or a training "
            f"function train(batch_size, seed, log); it takes {inspect.signature(found)}"
        )
    task = found() if makes else found
    if not isinstance(task, Task):
        raise ValueError(
            f"{where} must be a rootscale.lab.Task or a function that makes one, got {type(task).__name__}"
        )
    return task


def load_named(where: str) -> Any:
    """Return what ``module:name`` or ``file.py:name`` leads to."""
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise ValueError(f"a task is given as module:name or file.py:name, such as mine.py:task, got {where!r}")
    module = _load_module(source, name)
    if not hasattr(module, name):
        there = _task_names(module)
        if not there:
            raise ValueError(
                f"{source} has no {name!r}, and no task at all: make one there, as task = rootscale.lab.Task(...), and "
                f"give {source}:task"
            )
        names = ", ".join(there)
        raise ValueError(
            f"{source} has no {name!r}; its tasks are {names}: give one of these, or your own as FILE.py:NAME"
        )
    return getattr(module, name)


def _load_module(source: str, name: str) -> ModuleType:
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"there is no file {source}")
        sys.path.insert(0, str(path.parent.resolve()))
        module: ModuleType = load_file(path, path.stem)
        return module
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {source!r}: {error}; a file is given as {source}.py:{name}") from None


def _task_names(module: ModuleType) -> list[str]:
    """Return the names of a module's tasks, and of its functions that make one without arguments."""

    def makes_task(value: Any) -> bool:
        if not inspect.isfunction(value) or value.__annotations__.get("return") not in (Task, "Task"):
            return False
        return _needs_nothing(value)

    return [
        key for key, value in vars(module).items() if key[:1] != "_" and (isinstance(value, Task) or makes_task(value))
    ]


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments."""
    more = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in more for p in inspect.signature(function).parameters.values())
