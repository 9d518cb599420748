"""Training one operation at a time: replicas, one torch optimizer for all of them, and what is measured on them.

All replicas' parameters are stacked, and the optimizers work coordinate by coordinate: one optimizer serves all of
them. `rescale_` and `SVAG` act on it as they act on a user's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rootscale.changes import Changes, ScalingWarning
from rootscale.lab.replicas import copy_of, squared_norm
from rootscale.lab.several import parts_of, rules_of
from rootscale.lab.statistics import fresh_batchnorms, reestimated
from rootscale.rules import Rule, rule_text
from rootscale.training.adapters import make_optimizer
from rootscale.training.metric import Metric
from rootscale.training.norms import norm_layers
from rootscale.training.rescale import rescale_
from rootscale.training.svag import SVAG

if TYPE_CHECKING:
    from rootscale.hparams import Optimizer
    from rootscale.lab.objective import Batches, Objective, PerSample
    from rootscale.lab.stacked import Named

#: Most samples of a replica, and of all replicas together, that are measured at once.
CHUNK, CHUNK_OF_ALL = 4096, 2**18


class EagerLearner:
    """Replicas under training, one (`Single`) or several in one program (`Stack`).

    Args:
        objective: the replicas, their task and their loss.
        micro: most samples of a replica that go through the model at once; None takes any number. With BatchNorm it is
            part of the model: its statistics are those of the micro-batch.
        optimizer: makes the optimizer where the task has none of its own; that of a task may be `Several`.
    """

    def __init__(
        self,
        objective: Objective,
        micro: int | None = None,
        optimizer: Callable[[Any, Optimizer], torch.optim.Optimizer] | None = None,
    ) -> None:
        task, replicas = objective.task, objective.replicas
        self.objective, self.micro, self.nets = objective, micro, replicas
        self._parameters = [p for p in replicas.params.values() if p.requires_grad]
        if not self._parameters:
            raise ValueError(f"the model of task {task.name!r} has no parameter that requires a gradient")
        make: Callable[[Any, Optimizer], Any] = task.optimizer or optimizer or make_optimizer
        self.optimizer = make(self._parameters, task.plan.optimizer)
        self.ratios = [float(group["lr"]) / task.plan.optimizer.eta for group in self.optimizer.param_groups]
        self.average = None if task.plan.ema is None else _Average(task.plan.ema, self._parameters)
        self.svag: SVAG | None = None
        self._summed = torch.zeros(replicas.count, dtype=torch.float64, device=objective.device)
        self._counted = 0

    @property
    def replicas(self) -> int:
        """Return how many there are."""
        return self.nets.count

    @property
    def trained(self) -> Sequence[Tensor]:
        """Return the parameters that are trained, ``[R, ...]`` each where there are several replicas."""
        return self._parameters

    def rescale(self, kappa: float, rule: Rule, ell: float = 1.0, forward_kappa: float | None = None) -> Changes:
        """Convert to ``kappa`` times the batch size, and then to SVAG's steps; warnings are in what it returns."""
        live: dict[str, Any] = {"model": self.nets.model, "ema": self.average}
        optimizers, rules = parts_of(self.optimizer), rules_of(self.optimizer, rule)
        before = [float(group["lr"]) for group in self.optimizer.param_groups]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScalingWarning)  # they are in what it returns
            changes = rescale_(optimizers, kappa, **live, rule=rules, forward_kappa=forward_kappa)
        if len(optimizers) > 1:  # the plan has the learning rate of the first, and the others may follow other rules
            after = [float(group["lr"]) for group in self.optimizer.param_groups]
            own = after[0] / before[0]
            self.ratios = [r * b / (a * own) for r, a, b in zip(self.ratios, before, after, strict=True)]
        if ell != 1:
            self.svag = SVAG(self.optimizer, ell, rule=rule_text(None, rule.averaging), **live)
        return changes

    def zero_state(self) -> None:
        """Forget the optimizer's state."""
        for optimizer in parts_of(self.optimizer):
            optimizer.state.clear()

    # -- training -----------------------------------------------------------------------------------------------

    @property
    def passes(self) -> int:
        """Return how many batches a step takes: two for SVAG."""
        return 1 if self.svag is None else 2

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """Take one step on a batch for each pass."""
        for group, rate in zip(self.optimizer.param_groups, self.rates(eta), strict=True):
            group["lr"] = rate
        self.update(batches, clip)
        self.count_step()

    def rates(self, eta: float) -> list[float]:
        """Return the learning rate of each group; the plan has that of SVAG's steps, and its run takes the script's."""
        script = 1.0 if self.svag is None else self.svag.ell
        return [eta * ratio * script for ratio in self.ratios]

    def update(self, batches: Batches, clip: float | None) -> None:
        """Do what a step does on the device: everything but the learning rates and the count of steps."""
        self.nets.model.train()
        self.optimizer.zero_grad()
        weights = [1.0] if self.svag is None else self.svag.passes()
        for weight, (index, uniforms) in zip(weights, batches, strict=True):
            x, y = self.objective.batch(index, uniforms)
            size = x.shape[1]
            for part in _slices(size, self.micro):
                share = weight * (part.stop - part.start) / size
                losses = self.objective.losses(x[:, part], y[:, part]).mean(1)
                self._summed.add_(losses.detach(), alpha=(part.stop - part.start) / (size * len(batches)))
                losses.sum().mul(share).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            self._clip(clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self._parameters)

    def count_step(self) -> None:
        """Count a step whose losses `update` has summed."""
        self._counted += 1

    def _clip(self, clip: float) -> None:
        """Scale the gradient of each replica so that its norm is at most ``clip``."""
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = squared_norm(grads, self.replicas).sqrt()
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor if self.replicas == 1 else factor.view(-1, *[1] * (grad.ndim - 1)))

    # -- measuring ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step_loss(self) -> Tensor | None:
        """Return the mean loss of the steps since this was last called, ``[R]``; None where there were none.

        It is the loss that a training loop prints: in train mode, each batch before the step that it leads to.
        """
        if not self._counted:
            return None
        mean = self._summed / self._counted
        self._summed.zero_()
        self._counted = 0
        return mean

    @torch.no_grad()
    def means(
        self,
        x: Tensor,
        y: Tensor,
        functions: Mapping[str, PerSample],
        train: bool = False,
        statistics: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the means over samples (the same for all replicas) of functions of outputs and targets, ``[R]`` each.

        In eval mode they are those of the averaged parameters where the plan has an EMA. BatchNorm that has seen no
        batch takes the statistics of the samples: without any, the loss of a deep net is thousands of times what it
        will be. In train mode they are those of the parameters that are trained, and BatchNorm takes the statistics of
        the samples at any time. Running statistics stay as they are in both.

        Args:
            x, y: the samples.
            functions: of outputs and targets, one value for each sample.
            train: whether the model is in train mode.
            statistics: inputs over which BatchNorm's statistics are taken, in eval mode, instead of the running ones.
        """
        chunk = max(1, min(CHUNK, self.micro or CHUNK, CHUNK_OF_ALL // self.replicas))
        lonely = chunk == 1 or len(x) % chunk == 1  # one sample has no statistics
        params, buffers = self.nets.params if train else self._averaged(), self.nets.buffers
        if statistics is not None:
            buffers = self._reestimated(params, statistics)
        self.nets.model.train(train)
        fresh = [] if train or lonely or statistics is not None else fresh_batchnorms(self.nets)
        for layer in fresh:
            layer.train()
        for layer in norm_layers(self.nets.model).values() if train and lonely else ():
            layer.eval()
        if train or fresh:
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        sums: dict[str, Tensor] = {}
        for part in _slices(len(x), chunk):
            inputs, targets = self._shared(x[part]), self._shared(y[part])
            with self.objective.precision():
                outputs = self.nets.forward(params, buffers, inputs)
                for name, function in functions.items():
                    total = self.objective.per_sample(function, outputs, targets).double().sum(1)
                    sums[name] = sums[name] + total if name in sums else total
        return {name: total / len(x) for name, total in sums.items()}

    def _reestimated(self, params: Named, x: Tensor) -> Named:
        """Return the buffers with BatchNorm's statistics of these samples, whatever the size of a micro-batch."""
        chunk = max(2, min(CHUNK, CHUNK_OF_ALL // self.replicas))
        parts = [x[part] for part in _slices(len(x), chunk)]
        with self.objective.precision():  # one sample has no variance
            return reestimated(self.nets, params, (self._shared(part) for part in parts if len(part) > 1))

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss of these samples, the same for all replicas, as a step would have it."""
        self.nets.model.train()
        buffers = {name: buffer.clone() for name, buffer in self.nets.buffers.items()}
        grads: list[Tensor] = []
        for part in _slices(len(x), self.micro):
            with self.objective.precision():
                outputs = self.nets.forward(self.nets.params, buffers, self._shared(x[part]))
                losses = self.objective.per_sample(self.objective.task.loss, outputs, self._shared(y[part]))
                total = losses.sum() / len(x)
            found = torch.autograd.grad(total, self._parameters, materialize_grads=True)
            grads = [a + b for a, b in zip(grads, found, strict=True)] if grads else list(found)
        return grads

    def roots(self) -> list[Tensor] | None:
        """Return ``sqrt(v_hat) + eps`` for each trained parameter: empty before a step, None for optimizers without."""
        optimizers = parts_of(self.optimizer)
        try:
            found = Metric(optimizers[0]).roots(self._parameters) if len(optimizers) == 1 else None
        except TypeError:  # an optimizer without a second moment for each coordinate
            return None
        if found is None:
            return None
        roots = [root for root in found if root is not None]
        return roots if len(roots) == len(self._parameters) else []

    def replica(self, r: int) -> nn.Module:
        """Return a copy of the model of one replica (of its average, where the plan has an EMA), in eval mode."""
        return copy_of(self.nets, self._averaged(), r)

    def _shared(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.replicas, *tensor.shape)

    def _averaged(self) -> Named:
        """Return the averaged parameters, or those that are trained where the plan has no EMA."""
        if self.average is None:
            return self.nets.params
        trained = iter(self.average.values)
        return {name: next(trained) if p.requires_grad else p for name, p in self.nets.params.items()}

    # -- state --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes; the tensors themselves, as in torch, not copies."""
        return {
            "params": {name: p.detach() for name, p in self.nets.params.items()},
            "buffers": dict(self.nets.buffers),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.values,
            "svag": None if self.svag is None else self.svag.state_dict(),
            "step_loss": (self._summed, self._counted),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which is copied."""
        for own, saved in ((self.nets.params, state["params"]), (self.nets.buffers, state["buffers"])):
            for name, tensor in own.items():
                tensor.copy_(saved[name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would share the tensors
        if self.average is not None:
            for tensor, saved in zip(self.average.values, state["average"], strict=True):
                tensor.copy_(saved)
        if self.svag is not None and state["svag"] is not None:
            self.svag.load_state_dict(state["svag"])
        summed, self._counted = state.get("step_loss", (0.0, 0))  # checkpoints of older versions have none
        self._summed.copy_(torch.as_tensor(summed))


class _Average:
    """An exponential average of the parameters; `rescale_` converts its ``decay``."""

    def __init__(self, decay: float, params: Sequence[Tensor]) -> None:
        self.decay = decay
        self.values = [p.detach().clone() for p in params]

    @torch.no_grad()
    def update(self, params: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(self.values, [p.detach() for p in params], 1 - self.decay)


def _slices(size: int, most: int | None) -> Iterator[slice]:
    for start in range(0, size, most or size):
        yield slice(start, min(start + (most or size), size))
