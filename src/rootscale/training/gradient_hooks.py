"""See the gradient of every parameter while a backward computes it, whole or of FSDP2, and where each backward ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.graph import register_multi_grad_hook


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """Return whether a process holds parts of these parameters only, as under FSDP2."""
    return any(hasattr(p, "to_local") for p in parameters)


class GradientHooks:
    """Hooks on parameters that hand each gradient to a function, before any average over ranks.

    Args:
        parameters: the order gives their numbers.
        see: called with the number of a parameter and its gradient.
        model: for sharded parameters, the FSDP2 model that gathers them.
    """

    def __init__(
        self, parameters: Sequence[Tensor], see: Callable[[int, Tensor], None], model: torch.nn.Module | None = None
    ) -> None:
        self._parameters, self._see, self._model = parameters, see, model
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Put the hooks on, if they are not."""
        if self._handles:
            return
        if self._model is not None:
            self._hook_modules(self._parameters, self._model)
            return
        for i, p in enumerate(self._parameters):
            self._handles.append(p.register_hook(partial(self._see, i)))  # type: ignore[no-untyped-call]

    def _hook_modules(self, parameters: Sequence[Tensor], model: torch.nn.Module) -> None:
        """Hook the parameters that FSDP2 has gathered: the modules have them while they compute. Once each."""
        numbers = {id(p): i for i, p in enumerate(parameters)}
        hooked: dict[int, weakref.ref[Tensor]] = {}

        def look(names: dict[str, int], module: torch.nn.Module, inputs: Any) -> None:
            for name, i in names.items():
                gathered = getattr(module, name)
                if not hasattr(gathered, "to_local") and (i not in hooked or hooked[i]() is not gathered):
                    hooked[i] = weakref.ref(gathered)
                    self._handles.append(gathered.register_hook(partial(self._see, i)))

        found = set()
        for module in model.modules():
            names = {n: numbers[id(p)] for n, p in module.named_parameters(recurse=False) if id(p) in numbers}
            if names:
                self._handles.append(module.register_forward_pre_hook(partial(look, names)))
                found |= set(names.values())
        if len(found) < len(numbers):
            raise ValueError(
                f"model must hold all {len(numbers)} parameters of the meter, got one that holds {len(found)}"
            )

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Backwards:
    """Say where each backward begins and ends, whoever calls it.

    Args:
        parameters: at whose first gradient a backward begins.
        begun, ended: called then, and when all gradients are in ``.grad``.
    """

    def __init__(self, parameters: Sequence[Tensor], begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self._parameters, self._begun, self._ended = parameters, begun, ended
        self._handle: Any = None

    def attach(self) -> None:
        """Put the hook on, if it is not."""
        if self._handle is None:
            self._handle = register_multi_grad_hook(list(self._parameters), self._first, mode="any")

    def detach(self) -> None:
        """Take the hook off."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _first(self, gradient: Tensor) -> None:
        """Wait, at the first gradient of a backward, until all are there and DistributedDataParallel is done too."""
        self._begun()
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._ended))


def check_sharded(
    parameters: Sequence[Tensor], process_group: dist.ProcessGroup | None, model: torch.nn.Module | None
) -> None:
    """Refuse sharded parameters whose gradients of a single rank cannot be seen."""
    if process_group is None or model is None:
        raise TypeError(
            "these parameters are sharded (FSDP2): their gradients are averages over the ranks; "
            "give process_group= and model= for those of each rank"
        )
    ranks = dist.get_world_size(process_group)
    for p in parameters:
        mesh: Any = getattr(p, "device_mesh", None)
        if mesh is None or mesh.ndim != 1 or mesh.size() != ranks:
            raise ValueError(
                f"every parameter must be sharded over the {ranks} ranks of the process group, by fully_shard with "
                f"a mesh of one dimension; got {mesh or 'a parameter that is not sharded'}"
            )
