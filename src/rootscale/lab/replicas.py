"""The models of a run: one that is called as it is, or several with stacked parameters in one program.

Both take inputs ``[R, B, ...]`` of R replicas and return outputs of that shape.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd

from rootscale.lab.stacked import Named, stacked_forward
from rootscale.lab.task import Task
from rootscale.training.norms import norm_layers


class Replicas(Protocol):
    """Models of one task that are trained together.

    Attributes:
        count: how many there are, R.
        model: the module whose layers are called; its mode (train or eval) is that of all replicas.
        params: parameters by name; ``[R, ...]`` where there are several replicas.
        buffers: buffers by name, likewise.
    """

    count: int
    model: nn.Module
    params: Named
    buffers: Named

    def forward(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        """Return the outputs ``[R, B, ...]`` of inputs ``[R, B, ...]``."""
        ...


class Single:
    """One replica: the model as the task makes it."""

    count = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.params: Named = dict(model.named_parameters())
        self.buffers: Named = dict(model.named_buffers())

    def forward(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        """Call the model; through ``functional_call`` where other parameters or buffers than its own are given."""
        if params is self.params and buffers is self.buffers:
            output: Tensor = self.model(x[0])
        else:
            output = functional_call(self.model, (params, buffers), (x[0],))
        return output[None]


class Stack:
    """Several replicas in one program.

    Parameters are stacked, ``[R, ...]``. Layers that know a leading dimension of replicas (`rootscale.lab.stacked`) are
    used where the model consists of them, and ``torch.func.vmap`` elsewhere.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.count, self.model = len(models), models[0]
        self.params: Named = {
            name: nn.Parameter(_stack(models, name), requires_grad=p.requires_grad)
            for name, p in self.model.named_parameters()
        }
        self.buffers: Named = {name: _stack(models, name) for name, _ in self.model.named_buffers()}
        self._forward = stacked_forward(self.model, self._vmapped)

    def forward(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        """Call all replicas at once."""
        return self._forward(params, buffers, x)

    def _vmapped(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        def one(p: Named, b: Named, inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(self.model, (p, b), (inputs,))
            return output

        with sdpa_kernel(SDPBackend.MATH) if x.device.type == "cpu" else nullcontext():  # vmap knows no other there
            outputs: Tensor = vmap(one, randomness="different")(params, buffers, x)
        return outputs


def make_replicas(task: Task, seeds: Sequence[int], device: torch.device) -> Replicas:
    """Return freshly initialized models, one for each seed, with the BatchNorm momentum of the task's plan."""
    if not seeds:
        raise ValueError("at least one seed is needed, got none")
    models = [initialized(task, seed).to(device) for seed in seeds]
    if task.plan.batchnorm_momentum is not None:
        for layer in norm_layers(models[0]).values():
            layer.momentum = task.plan.batchnorm_momentum
    return Single(models[0]) if len(models) == 1 else Stack(models)


def stacking_pays(task: Task, device: torch.device) -> bool:
    """Return whether several replicas in one program are faster than one after the other.

    Convolutions on a CPU are not: a step of eight stacked conv nets took 0.9 times as long as of eight single ones, and
    measuring them 1.6 times.
    """
    return device.type != "cpu" or not any(isinstance(layer, _ConvNd) for layer in task.model().modules())


def copy_of(replicas: Replicas, params: Named, r: int) -> nn.Module:
    """Return a copy of the model of replica ``r`` with these parameters, in eval mode."""
    model = copy.deepcopy(replicas.model)
    named = {**params, **replicas.buffers}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(named[name] if replicas.count == 1 else named[name][r])
    return model.eval()


def squared_norm(tensors: Sequence[Tensor], replicas: int) -> Tensor:
    """Return the squared norm over all coordinates of each replica, ``[R]``."""
    wide = [t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]
    return torch.stack([t.square().reshape(replicas, -1).sum(1) for t in wide]).sum(0)


def initialized(task: Task, seed: int) -> nn.Module:
    """Return the model of a task as it is at the start of the run of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model of task {task.name!r} must be a torch.nn.Module, got {type(model).__name__}")
    return model


def _stack(models: Sequence[nn.Module], name: str) -> Tensor:
    def find(model: nn.Module) -> Tensor:
        path, _, leaf = name.rpartition(".")
        found: Tensor = getattr(model.get_submodule(path), leaf)
        return found.detach()

    return torch.stack([find(model) for model in models])
