"""A neural network on a finite data set as a noisy gradient oracle (NGOS), exactly, for R replicas at once.

With n samples, per-sample gradients g_i and mean g_bar, the mini-batch gradient of B samples drawn with replacement is
an NGOS with ``f`` the mean loss, ``sigma = 1/sqrt(B)`` and ``Sigma = (1/n) sum_i (g_i - g_bar)(g_i - g_bar)^T``. Then

    Sigma^(1/2) xi  =  n^(-1/2) sum_i (g_i - g_bar) xi_i  =  n^(-1/2) sum_i (xi_i - xi_bar) g_i,     xi ~ N(0, I_n),

is the gradient of *one* randomly weighted loss: the SDE of a real network costs a full-batch backward a step, and no
d x d matrix is ever formed. For a linear layer with input a_i and gradient delta_i at its output,
``g_i = delta_i a_i^T``: then ``diag Sigma = (1/n) sum_i (delta_i^2)(a_i^2)^T - g_bar^2`` needs no per-sample gradients.
`rootscale.training.layers` has such a formula for every common layer.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import Dataset, default_collate

from rootscale.theory.families import Minibatch
from rootscale.theory.oracle import Problem
from rootscale.theory.replicas import ReplicaSums, Totals, check_samples, refuse


class Moments(NamedTuple):
    """What one Euler step needs of an oracle, each ``[R, d]``."""

    gradient: Tensor
    noise: Tensor
    variance: Tensor


class NetworkOracle:
    """The NGOS of training ``module`` on ``data`` with mini-batches of ``batch_size`` drawn with replacement.

    A path is a replica: a row of ``theta [R, d]``, all trainable parameters flattened in the order of
    ``module.named_parameters()``. Replicas are evaluated together, and frozen parameters and buffers are constants.

    Args:
        module: any network whose samples do not see each other; it is copied.
        loss: ``loss(outputs, targets)`` gives one value for each sample, e.g.
            ``functools.partial(F.cross_entropy, reduction="none")``.
        data: ``(inputs, targets)`` with n rows each, or a `torch.utils.data.Dataset` of such pairs (read into memory).
        batch_size: B; the noise scale is ``sigma = 1/sqrt(B)``.
        chunk: how many samples to take at once; None takes all n, and fewer where per-sample gradients are needed. It
            changes memory and speed, results only by rounding.

    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> x, y = torch.randn(50, 3), torch.randn(50, 1)
    >>> oracle = NetworkOracle(net, lambda out, y: ((out - y) ** 2).mean(1), (x, y), batch_size=4)
    >>> oracle.d, oracle.rank, oracle.sigma
    (21, 50, 0.5)
    >>> theta = oracle.start(replicas=8)
    >>> oracle.noise(theta, torch.randn(8, oracle.rank)).shape
    torch.Size([8, 21])
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        data: tuple[Tensor, Tensor] | Dataset[Any],
        batch_size: int = 1,
        *,
        chunk: int | None = None,
    ) -> None:
        if isinstance(batch_size, bool) or batch_size < 1 or batch_size != int(batch_size):
            raise ValueError(f"batch_size must be a whole number >= 1, got {batch_size!r}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be None or a number of samples >= 1, got {chunk!r}")
        self.inputs, self.targets = _tensors(data)
        self.n = len(self.inputs)
        self.batch_size = batch_size
        self.sigma = 1 / math.sqrt(batch_size)
        self.module = copy.deepcopy(module)
        for layer in self.module.modules():
            if isinstance(layer, nn.Embedding):
                layer.sparse = False  # torch.func has no sparse gradients
        self.chunk = chunk
        refuse(self.module)
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}
        if not parameters:
            raise ValueError("the module has no parameter with requires_grad=True: there is nothing to train")
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.d = sum(p.numel() for p in parameters.values())
        self.rank = self.n
        self._theta0 = torch.cat([p.reshape(-1) for p in parameters.values()])
        check_samples(self.module, loss, self.inputs, self.targets)
        self._sums = ReplicaSums(self.module, loss, self.inputs, self.targets)

    def __repr__(self) -> str:
        return (
            f"NetworkOracle(d={self.d}, n={self.n}, batch_size={self.batch_size}; diag Sigma in closed form for "
            f"{self.d - sum(self.shapes[name].numel() for name in self.explicit)} of {self.d} parameters)"
        )

    @property
    def explicit(self) -> tuple[str, ...]:
        """The parameters whose ``diag Sigma`` takes explicit per-sample gradients."""
        return tuple(self._sums.explicit)

    # -- parameters ---------------------------------------------------------------------------------------------

    def start(self, replicas: int) -> Tensor:
        """Return the module's parameters as they were given, once for each replica: ``[R, d]``."""
        return self._theta0.expand(replicas, -1).clone()

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the trainable parameters of a module of the same build as one row ``[d]``."""
        parameters = dict(module.named_parameters())
        missing = [name for name, shape in self.shapes.items() if getattr(parameters.get(name), "shape", None) != shape]
        if missing:
            raise ValueError(f"expected a module built like the oracle's; {missing[0]} is missing or of another shape")
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.shapes])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Return named parameters, as views of ``theta``: ``[..., d]`` -> ``{name: [..., *shape]}``."""
        if theta.shape[-1] != self.d:
            raise ValueError(f"theta must end in d={self.d} parameters, got shape {list(theta.shape)}")
        parts = torch.split(theta, [shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: part.reshape(theta.shape[:-1] + shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    # -- the oracle ---------------------------------------------------------------------------------------------

    def losses(self, theta: Tensor) -> Tensor:
        """Return the loss of every sample: ``[R, n]``; the mean over samples is ``f(theta)``."""
        every = [self._losses(theta, x, y) for x, y, _ in self._chunks()]
        return torch.cat(every, dim=1)

    def outputs(self, theta: Tensor) -> Tensor:
        """Return what the network answers to every sample: ``[R, n, ...]``."""
        forward = vmap(lambda p, x: functional_call(self.module, p, (x,)), in_dims=(0, None))
        return torch.cat([forward(self._named(theta), x) for x, _, _ in self._chunks()], dim=1)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the exact gradient of the mean loss, ``g_bar``: ``[R, d]``."""
        return self.weighted(theta, theta.new_full((len(theta), self.n), 1 / self.n))

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """Return ``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - g_bar) xi_i`` for ``xi [R, n]``, by one weighted backward."""
        return self.weighted(theta, self._noise_weights(theta, xi))

    def noisy_gradient(self, theta: Tensor, xi: Tensor, scale: float | None = None) -> Tensor:
        """Return ``grad f(theta) + scale * Sigma^(1/2) xi`` by one weighted backward, the price of the gradient alone.

        With the default scale, ``sigma``, this is the NGOS with Gaussian noise in place of the mini-batches'.
        """
        scale = self.sigma if scale is None else scale
        return self.weighted(theta, 1 / self.n + scale * self._noise_weights(theta, xi))

    def variance(self, theta: Tensor) -> Tensor:
        """Return the exact diagonal of Sigma, ``(1/n) sum_i g_i^2 - g_bar^2``: ``[R, d]``."""
        ones = theta.new_full((len(theta), self.n), 1 / self.n)
        (mean,), square = self._means(theta, (ones,))
        return (square - mean**2).clamp_min(0)

    def moments(self, theta: Tensor, xi: Tensor) -> Moments:
        """Return `gradient`, `noise` and `variance` at once, by one forward and backward where layers have formulas."""
        ones = theta.new_full((len(theta), self.n), 1 / self.n)
        (mean, noise), square = self._means(theta, (ones, self._noise_weights(theta, xi)))
        return Moments(mean, noise, (square - mean**2).clamp_min(0))

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the gradient of a fresh mini-batch for each replica, B samples drawn with replacement: ``[R, d]``."""
        size = (len(theta), self.batch_size)
        return self.minibatch(theta, torch.randint(self.n, size, generator=generator, device=theta.device))

    @property
    def family(self) -> Minibatch:
        """The distribution of the noise."""
        return Minibatch(self.batch_size)

    @property
    def normals(self) -> int:
        """How many standard normals `drawn` takes from each replica: one for each sample of its mini-batch."""
        return self.batch_size

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return the gradient of the mini-batch that standard normals ``w [R, B]`` pick: ``i = floor(n Phi(w))``."""
        index = (torch.special.ndtr(w.double()) * self.n).long().clamp(0, self.n - 1)
        return self.minibatch(theta, index)

    def minibatch(self, theta: Tensor, index: Tensor) -> Tensor:
        """Return the gradient of the mean loss of the samples ``index [R, B]``, each replica its own: ``[R, d]``."""
        if index.ndim != 2 or len(index) != len(theta):
            raise ValueError(
                f"index must be [R, B] with R={len(theta)} rows, one for each replica, got {list(index.shape)}"
            )
        x, y = self.inputs[index], self.targets[index]
        total = grad(lambda t: vmap(self._sums.losses)(self._named(t), x, y).sum())
        summed: Tensor = total(theta)
        return summed / index.shape[1]

    def weighted(self, theta: Tensor, weights: Tensor) -> Tensor:
        """Return ``sum_i w_i g_i`` for weights ``[R, n]`` by one backward of the weighted loss: ``[R, d]``."""
        self._named(theta)
        parts: list[Tensor] = [
            grad(lambda t, x=x, y=y, at=at: (self._losses(t, x, y) * weights[:, at]).sum())(theta)
            for x, y, at in self._chunks()
        ]
        return sum(parts[1:], parts[0])

    def problem(self) -> Problem:
        """Return the loss and its covariance alone, to be given any noise family: ``NGOS(problem, sigma, family)``."""
        return Problem(
            type(self.module).__name__, self.d, self.rank, self.gradient, self.noise, self.variance, data=True
        )

    def at(self, sigma: float) -> NetworkOracle:
        """Return the same network at another noise scale: mini-batches of ``1 / sigma^2`` samples, a whole number."""
        other = copy.copy(self)
        other.batch_size = Minibatch(self.batch_size).at(sigma).batch_size
        other.sigma = 1 / math.sqrt(other.batch_size)
        return other

    # -- how ----------------------------------------------------------------------------------------------------

    def _named(self, theta: Tensor) -> dict[str, Tensor]:
        if theta.ndim != 2:
            raise ValueError(f"theta must be [R, d={self.d}], one row for each replica, got {list(theta.shape)}")
        own = self._theta0
        if theta.dtype != own.dtype or theta.device.type != own.device.type:
            raise ValueError(
                f"theta must be {own.dtype} on {own.device.type}, as the module is, got {theta.dtype} on "
                f"{theta.device.type}; convert theta, or module and data before the oracle is made"
            )
        return self.unflatten(theta)

    def _noise_weights(self, theta: Tensor, xi: Tensor) -> Tensor:
        if xi.shape != (len(theta), self.n):
            raise ValueError(
                f"xi must be [R, n] = [{len(theta)}, {self.n}], one standard normal for each replica and sample, "
                f"got {list(xi.shape)}"
            )
        return (xi - xi.mean(1, keepdim=True)) / math.sqrt(self.n)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor, slice]]:
        size = self.chunk or self.n
        for first in range(0, self.n, size):
            at = slice(first, min(first + size, self.n))
            yield self.inputs[at], self.targets[at], at

    def _losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return vmap(self._sums.losses, in_dims=(0, None, None))(self._named(theta), x, y)

    def _means(self, theta: Tensor, weights: tuple[Tensor, ...]) -> tuple[list[Tensor], Tensor]:
        """Return ``sum_i w_i g_i`` for each of the weights ``[R, n]``, and ``(1/n) sum_i g_i^2``."""
        named = self._named(theta)
        parts = (self._sums(named, x, y, tuple(w[:, at] for w in weights)) for x, y, at in self._chunks())
        totals = functools.reduce(Totals.plus, parts)
        return [self._flat(s) for s in totals.weighted], self._flat(totals.second) / self.n

    def _flat(self, named: dict[str, Tensor]) -> Tensor:
        return torch.cat([named[name].reshape(len(named[name]), -1) for name in self.shapes], dim=1)


def _tensors(data: tuple[Tensor, Tensor] | Dataset[Any]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets with one row for each sample."""
    if isinstance(data, Dataset):
        data = default_collate([data[i] for i in range(len(data))])  # type: ignore[arg-type]  # map-style: it has a length
    pair = list(data) if isinstance(data, tuple | list) else []
    if len(pair) != 2 or not all(isinstance(x, Tensor) for x in pair):
        raise TypeError(
            f"data must be (inputs, targets), two tensors with one row for each sample, or a Dataset of such pairs; "
            f"got {type(data).__name__}"
        )
    inputs, targets = pair
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(
            f"inputs and targets must have the same number of samples, at least 1; got {len(inputs)} and {len(targets)}"
        )
    return inputs, targets
