"""What trains: R replicas of a task's model with their optimizer, in one program.

All replicas' parameters are stacked, ``[R, ...]``, and Adam, RMSprop and SGD work coordinate by coordinate: one torch
optimizer serves all of them. `rescale_` and `SVAG` act on it as they act on a user's. With one replica the model is
called as it is; more are called through layers that know a leading dimension of replicas, or through
``torch.func.vmap``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from rootscale import hparams
from rootscale.changes import Changes
from rootscale.lab.stacked import stacked
from rootscale.lab.task import Task
from rootscale.rules import Rule, rule_text
from rootscale.training import SVAG
from rootscale.training.rescale import prepare

__all__ = ["Learner"]

Named = dict[str, Tensor]
#: For each pass of a step: sample numbers, and uniforms for augmentation where there is any.
Batches = Sequence[tuple[Tensor, Tensor | None]]


class Learner:
    """R replicas under training.

    Args:
        task: what they learn.
        seeds: one for each; decides the initialisation.
        device: where.
        micro: most samples of a replica that are taken through the model at once; None takes any number. With
            BatchNorm it is part of the model: its statistics are those of the micro-batch.
        amp: whether the model is run in bfloat16 (autocast).
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        micro: int | None = None,
        amp: bool = False,
    ) -> None:
        if not seeds:
            raise ValueError("at least one seed is needed, got none")
        self.task, self.seeds, self.device, self.micro, self.amp = task, list(seeds), torch.device(device), micro, amp
        models = [_initialised(task, seed).to(device) for seed in self.seeds]
        self.model = models[0]
        if task.plan.batchnorm_momentum is not None:
            for layer in _norms(self.model).values():
                layer.momentum = task.plan.batchnorm_momentum
        if len(models) == 1:
            self.params: Named = dict(self.model.named_parameters())
            self.buffers: Named = dict(self.model.named_buffers())
        else:
            self.params = {
                name: nn.Parameter(_stack(models, name), requires_grad=p.requires_grad)
                for name, p in self.model.named_parameters()
            }
            self.buffers = {name: _stack(models, name) for name, _ in self.model.named_buffers()}
        self._forward = self._plain if len(models) == 1 else stacked(self.model, self._vmapped)
        self.trained = [p for p in self.params.values() if p.requires_grad]
        if not self.trained:
            raise ValueError(f"the model of task {task.name!r} has no parameter that requires a gradient")
        self.optimizer = (task.optimizer or make_optimizer)(self.trained, task.plan.optimizer)
        self.ratios = [float(group["lr"]) / task.plan.optimizer.eta for group in self.optimizer.param_groups]
        self.data = task.train.to(self.device)
        self.average = None if task.plan.ema is None else _Average(task.plan.ema, self.trained)
        self.svag: SVAG | None = None

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self.seeds)

    def rescale(self, kappa: float, ell: float, rule: Rule) -> Changes:
        """Convert to ``kappa`` times the batch size, and then to SVAG's steps; warnings are in what it returns."""
        live: dict[str, Any] = {"model": self.model, "ema": self.average}
        prepared = prepare(self.optimizer, kappa, rule=rule, **live)
        prepared.commit()
        if ell != 1:
            self.svag = SVAG(self.optimizer, ell, rule=rule_text(None, rule.averaging), **live)
        return prepared.changes

    def zero_state(self) -> None:
        """Forget the optimizer's state."""
        self.optimizer.state.clear()

    # -- training -----------------------------------------------------------------------------------------------

    @property
    def passes(self) -> int:
        """Batches in a step: two for SVAG."""
        return 1 if self.svag is None else 2

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """One step on a batch for each pass: sample numbers ``[R, B]`` and uniforms ``[R, B, draws]``."""
        for group, ratio in zip(self.optimizer.param_groups, self.ratios, strict=True):
            group["lr"] = eta * ratio
        self._update(batches, clip)

    def _update(self, batches: Batches, clip: float | None) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        weights = [1.0] if self.svag is None else self.svag.passes()
        for weight, (index, uniforms) in zip(weights, batches, strict=True):
            x, y = self.batch(index, uniforms)
            size = x.shape[1]
            for part in _slices(size, self.micro):
                share = weight * (part.stop - part.start) / size
                self.losses(x[:, part], y[:, part]).mean(1).sum().mul(share).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            self._clip(clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.trained)

    def batch(self, index: Tensor, uniforms: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, prepared and augmented."""
        x, y = self.data[index]
        if self.task.prepare is not None:
            x = _each(self.task.prepare, x)
        if self.task.augment is not None and uniforms is not None:
            x = _each(self.task.augment, x, uniforms)
        return x, y

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, ``[R, B]``."""
        with self._precision():
            outputs = self._forward(self.params, self.buffers, x)
            return self._per_sample(self.task.loss, outputs, y)

    def _clip(self, clip: float) -> None:
        """Scale the gradient of each replica so that its norm is at most ``clip``."""
        grads = [p.grad for p in self.trained if p.grad is not None]
        norm = self.squared_norm(grads).sqrt()
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor if self.replicas == 1 else factor.view(-1, *[1] * (grad.ndim - 1)))

    # -- measuring ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def means(
        self, x: Tensor, y: Tensor, functions: Mapping[str, Callable[[Any, Tensor], Tensor]], chunk: int = 4096
    ) -> dict[str, Tensor]:
        """Means over samples (the same for all replicas) of functions of outputs and targets, ``[R]`` each.

        In eval mode, and of the averaged parameters where the plan has an EMA. BatchNorm that has seen no batch takes
        the statistics of the samples: without any, the loss of a deep net is thousands of times what it will be.
        """
        self.model.eval()
        chunk = max(1, min(chunk, self.micro or chunk, 2**18 // self.replicas))
        sums: dict[str, Tensor] = {}
        params, buffers = self.params if self.average is None else self._averaged(), self.buffers
        unseen = self._unseen() if len(x) % chunk != 1 and chunk > 1 else []  # one sample has no statistics
        if unseen:
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        for layer in unseen:
            layer.train()
        for part in _slices(len(x), chunk):
            inputs, targets = self._shared(x[part]), self._shared(y[part])
            with self._precision():
                outputs = self._forward(params, buffers, inputs)
                for name, function in functions.items():
                    total = self._per_sample(function, outputs, targets).double().sum(1)
                    sums[name] = sums[name] + total if name in sums else total
        return {name: total / len(x) for name, total in sums.items()}

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """The gradient of the mean loss of these samples (the same for all), as a training step would have it."""
        self.model.train()
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        grads: list[Tensor] = []
        for part in _slices(len(x), self.micro):
            with self._precision():
                outputs = self._forward(self.params, buffers, self._shared(x[part]))
                total = self._per_sample(self.task.loss, outputs, self._shared(y[part])).sum() / len(x)
            found = torch.autograd.grad(total, self.trained, materialize_grads=True)
            grads = [a + b for a, b in zip(grads, found, strict=True)] if grads else list(found)
        return grads

    def squared_norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The squared norm over all coordinates of each replica, ``[R]``."""
        wide = [t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors]
        return torch.stack([t.square().reshape(self.replicas, -1).sum(1) for t in wide]).sum(0)

    def replica(self, r: int) -> nn.Module:
        """A copy of the model of one replica (of its average, where the plan has an EMA), in eval mode."""
        model = copy.deepcopy(self.model)
        named = {**(self.params if self.average is None else self._averaged()), **self.buffers}
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(named[name] if self.replicas == 1 else named[name][r])
        return model.eval()

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes; the tensors themselves, as in torch, not copies."""
        return {
            "params": {name: p.detach() for name, p in self.params.items()},
            "buffers": dict(self.buffers),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.values,
            "svag": None if self.svag is None else self.svag.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the state is copied."""
        for own, saved in ((self.params, state["params"]), (self.buffers, state["buffers"])):
            for name, tensor in own.items():
                tensor.copy_(saved[name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would share the tensors
        if self.average is not None:
            for tensor, saved in zip(self.average.values, state["average"], strict=True):
                tensor.copy_(saved)
        if self.svag is not None and state["svag"] is not None:
            self.svag.load_state_dict(state["svag"])

    # -- how ----------------------------------------------------------------------------------------------------

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.amp else nullcontext()

    def _shared(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.replicas, *tensor.shape)

    def _unseen(self) -> list[nn.Module]:
        """Layers of BatchNorm that have counted no batch, and whose averages are those they began with."""
        begin = {"num_batches_tracked": 0, "running_mean": 0, "running_var": 1}

        def as_it_began(name: str) -> bool:
            held = {key: self.buffers.get(f"{name}.{key}" if name else key) for key in begin}
            return all(buffer is not None and bool((buffer == begin[key]).all()) for key, buffer in held.items())

        return [layer for name, layer in _norms(self.model).items() if as_it_began(name)]

    def _averaged(self) -> Named:
        assert self.average is not None
        trained = iter(self.average.values)
        return {name: next(trained) if p.requires_grad else p for name, p in self.params.items()}

    def _per_sample(self, function: Callable[[Any, Tensor], Tensor], outputs: Any, y: Tensor) -> Tensor:
        """A function of one sample's output and target, of all replicas at once."""
        size = y.shape[:2]
        values = function(outputs.flatten(0, 1), y.flatten(0, 1))
        if values.shape[:1] != (size[0] * size[1],):
            raise ValueError(
                f"loss and metrics must give one value for each of {size[0] * size[1]} samples, "
                f"got the shape {list(values.shape)}; use reduction='none'"
            )
        return values.reshape(*size, -1).mean(-1)

    def _plain(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        if params is self.params and buffers is self.buffers:
            output: Tensor = self.model(x[0])
        else:
            output = functional_call(self.model, (params, buffers), (x[0],))
        return output[None]

    def _vmapped(self, params: Named, buffers: Named, x: Tensor) -> Tensor:
        def one(p: Named, b: Named, inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(self.model, (p, b), (inputs,))
            return output

        with sdpa_kernel(SDPBackend.MATH) if x.device.type == "cpu" else nullcontext():  # vmap knows no other there
            outputs: Tensor = vmap(one, randomness="different")(params, buffers, x)
        return outputs


class _Average:
    """An exponential average of the parameters; `rescale_` converts its ``decay``."""

    def __init__(self, decay: float, params: Sequence[Tensor]) -> None:
        self.decay = decay
        self.values = [p.detach().clone() for p in params]

    @torch.no_grad()
    def update(self, params: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(self.values, [p.detach() for p in params], 1 - self.decay)


def _initialised(task: Task, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model of task {task.name!r} must be a torch.nn.Module, got {type(model).__name__}")
    return model


def _norms(model: nn.Module) -> dict[str, _NormBase]:
    """The layers of BatchNorm by their names."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, _NormBase)}


def _stack(models: Sequence[nn.Module], name: str) -> Tensor:
    def find(model: nn.Module) -> Tensor:
        path, _, leaf = name.rpartition(".")
        found: Tensor = getattr(model.get_submodule(path), leaf)
        return found.detach()

    return torch.stack([find(model) for model in models])


def _each(function: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """A function of a batch, on ``[R, B, ...]``."""
    flat = function(x.flatten(0, 1), *(other.flatten(0, 1) for other in others))
    return flat.view(*x.shape[:2], *flat.shape[1:]) if x.shape[0] > 1 else flat[None]


def _slices(size: int, most: int | None) -> Iterator[slice]:
    for start in range(0, size, most or size):
        yield slice(start, min(start + (most or size), size))


def make_optimizer(params: Any, record: hparams.Optimizer, capturable: bool = False) -> torch.optim.Optimizer:
    """The optimizer of torch with the hyperparameters of a plan; ``capturable`` for CUDA graphs."""
    if getattr(record, "eps_root", 0):
        raise ValueError("torch's optimizers have no eps inside the root; give the task an optimizer of your own")
    options: dict[str, Any] = {"lr": record.eta, "weight_decay": record.weight_decay}
    match record:
        case hparams.AdamW() | hparams.Adam():
            adam = torch.optim.AdamW if isinstance(record, hparams.AdamW) else torch.optim.Adam
            options |= {"betas": (record.beta1, record.beta2), "eps": record.eps}
            return adam(params, **options, capturable=capturable, fused=capturable or None)
        case hparams.RMSprop():
            return torch.optim.RMSprop(
                params, alpha=record.beta, eps=record.eps, **options, capturable=capturable, foreach=capturable or None
            )
        case hparams.SGD():
            return torch.optim.SGD(params, momentum=record.momentum, **options, fused=capturable or None)
    raise TypeError(f"there is no torch optimizer for {type(record).__name__}")
