"""A neural network on a finite data set as a noisy gradient oracle (NGOS), exactly, for R replicas at once.

With n samples, per-sample gradients g_i and mean g_bar, the mini-batch gradient of B samples drawn with replacement is
an NGOS with ``f`` the mean loss, ``sigma = 1/sqrt(B)`` and ``Sigma = (1/n) sum_i (g_i - g_bar)(g_i - g_bar)^T``. Then

    Sigma^(1/2) xi  =  n^(-1/2) sum_i (g_i - g_bar) xi_i  =  n^(-1/2) sum_i (xi_i - xi_bar) g_i,     xi ~ N(0, I_n),

is the gradient of *one* randomly weighted loss: the SDE of a real network costs a full-batch backward a step, and no
d x d matrix is ever formed. For a linear layer with input a_i and gradient delta_i at its output,
``g_i = delta_i a_i^T``: then ``diag Sigma = (1/n) sum_i (delta_i^2)(a_i^2)^T - g_bar^2`` needs no per-sample gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.utils.data import Dataset, default_collate

from rootscale.theory.oracle import Minibatch, Problem

__all__ = ["Moments", "NetworkOracle"]

#: Numbers that per-sample gradients may hold at once (where they are needed), if the caller sets no chunk.
PER_SAMPLE_ELEMENTS = 2**25
#: Samples used to find out, at construction, how the network treats its samples.
PROBES = 4


class Moments(NamedTuple):
    """What one Euler step needs of an oracle, each ``[R, d]``."""

    gradient: Tensor
    noise: Tensor
    variance: Tensor


class _Tape(NamedTuple):
    """By layer: what to add to its output, and what its input was."""

    shifts: dict[str, Tensor]
    inputs: dict[str, Tensor]


class _TapedLinear(nn.Linear):
    """A linear layer that notes its input and shifts its output while it has a tape.

    A hook would do the same, but ``torch.compile`` cannot trace the registering of hooks.
    """

    tape: _Tape | None = None
    key: str = ""

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        if self.tape is None:
            return output
        self.tape.inputs[self.key] = input
        return output + self.tape.shifts[self.key]


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
        chunk: how many samples to take at once; None takes all n, and as many as fit into `PER_SAMPLE_ELEMENTS`
            numbers where per-sample gradients are needed. It changes memory and speed, results only by rounding.

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
        self.loss = loss
        self.module = copy.deepcopy(module)
        self.chunk = chunk
        _refuse(self.module)
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}
        if not parameters:
            raise ValueError("the module has no parameter with requires_grad=True: there is nothing to train")
        self.shapes = {name: p.shape for name, p in parameters.items()}
        self.d = sum(p.numel() for p in parameters.values())
        self.rank = self.n
        self._theta0 = torch.cat([p.reshape(-1) for p in parameters.values()])
        with torch.no_grad():
            self._check_samples()
        #: Layers whose per-sample gradient is an outer product: module name -> its trainable parameters' names.
        self.linear = self._find_linear()
        closed = {name for names in self.linear.values() for name in names}
        #: Parameters whose diag Sigma needs per-sample gradients.
        self.others = [name for name in self.shapes if name not in closed]

    def __repr__(self) -> str:
        return (
            f"NetworkOracle(d={self.d}, n={self.n}, batch_size={self.batch_size}; diag Sigma in closed form for "
            f"{self.d - sum(self.shapes[name].numel() for name in self.others)} of {self.d} parameters)"
        )

    # -- parameters ---------------------------------------------------------------------------------------------

    def start(self, replicas: int) -> Tensor:
        """The module's parameters as they were given, once for each replica: ``[R, d]``."""
        return self._theta0.expand(replicas, -1).clone()

    def flatten(self, module: nn.Module) -> Tensor:
        """The trainable parameters of a module of the same build as one row ``[d]``."""
        parameters = dict(module.named_parameters())
        missing = [name for name, shape in self.shapes.items() if getattr(parameters.get(name), "shape", None) != shape]
        if missing:
            raise ValueError(f"expected a module built like the oracle's; {missing[0]} is missing or of another shape")
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.shapes])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Named parameters, as views of ``theta``: ``[..., d]`` -> ``{name: [..., *shape]}``."""
        if theta.shape[-1] != self.d:
            raise ValueError(f"theta must end in d={self.d} parameters, got shape {list(theta.shape)}")
        parts = torch.split(theta, [shape.numel() for shape in self.shapes.values()], dim=-1)
        return {
            name: part.reshape(theta.shape[:-1] + shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    # -- the oracle ---------------------------------------------------------------------------------------------

    def losses(self, theta: Tensor) -> Tensor:
        """The loss of every sample: ``[R, n]``; the mean over samples is ``f(theta)``."""
        every = [self._losses(theta, x, y) for x, y, _ in self._chunks()]
        return torch.cat(every, dim=1)

    def outputs(self, theta: Tensor) -> Tensor:
        """What the network answers to every sample: ``[R, n, ...]``."""
        forward = vmap(lambda p, x: functional_call(self.module, p, (x,)), in_dims=(0, None))
        return torch.cat([forward(self._named(theta), x) for x, _, _ in self._chunks()], dim=1)

    def gradient(self, theta: Tensor) -> Tensor:
        """The exact gradient of the mean loss, ``g_bar``: ``[R, d]``."""
        return self.weighted(theta, theta.new_full((len(theta), self.n), 1 / self.n))

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - g_bar) xi_i`` for ``xi [R, n]``, by one weighted backward."""
        return self.weighted(theta, self._noise_weights(theta, xi))

    def noisy_gradient(self, theta: Tensor, xi: Tensor, scale: float | None = None) -> Tensor:
        """``grad f(theta) + scale * Sigma^(1/2) xi`` by one weighted backward, the price of the gradient alone.

        With the default scale, ``sigma``, this is the NGOS with Gaussian noise in place of the mini-batches'.
        """
        scale = self.sigma if scale is None else scale
        return self.weighted(theta, 1 / self.n + scale * self._noise_weights(theta, xi))

    def variance(self, theta: Tensor) -> Tensor:
        """The exact diagonal of Sigma, ``(1/n) sum_i g_i^2 - g_bar^2``: ``[R, d]``."""
        ones = theta.new_full((len(theta), self.n), 1 / self.n)
        (mean,), square = self._sums(theta, [ones])
        return (square - mean**2).clamp_min(0)

    def moments(self, theta: Tensor, xi: Tensor) -> Moments:
        """`gradient`, `noise` and `variance` at once; for linear layers that takes a single forward and backward."""
        ones = theta.new_full((len(theta), self.n), 1 / self.n)
        (mean, noise), square = self._sums(theta, [ones, self._noise_weights(theta, xi)])
        return Moments(mean, noise, (square - mean**2).clamp_min(0))

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The gradient of a fresh mini-batch for each replica, B samples drawn with replacement: ``[R, d]``."""
        size = (len(theta), self.batch_size)
        return self.minibatch(theta, torch.randint(self.n, size, generator=generator, device=theta.device))

    @property
    def normals(self) -> int:
        """How many standard normals `drawn` takes from each replica: one for each sample of its mini-batch."""
        return self.batch_size

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """The gradient of the mini-batch that standard normals ``w [R, B]`` pick: ``i = floor(n Phi(w))``."""
        index = (torch.special.ndtr(w.double()) * self.n).long().clamp(0, self.n - 1)
        return self.minibatch(theta, index)

    def minibatch(self, theta: Tensor, index: Tensor) -> Tensor:
        """The gradient of the mean loss of the samples ``index [R, B]``, each replica its own: ``[R, d]``."""
        if index.ndim != 2 or len(index) != len(theta):
            raise ValueError(
                f"index must be [R, B] with R={len(theta)} rows, one for each replica, got {list(index.shape)}"
            )
        x, y = self.inputs[index], self.targets[index]
        total = grad(lambda t: vmap(self._one_replica)(self._named(t), x, y).sum())
        summed: Tensor = total(theta)
        return summed / index.shape[1]

    def weighted(self, theta: Tensor, weights: Tensor) -> Tensor:
        """``sum_i w_i g_i`` for weights ``[R, n]`` by one backward of the weighted loss: ``[R, d]``."""
        self._named(theta)
        parts = (
            grad(lambda t, x=x, y=y, at=at: (self._losses(t, x, y) * weights[:, at]).sum())(theta)
            for x, y, at in self._chunks()
        )
        return _add(parts)

    def problem(self) -> Problem:
        """The loss and its covariance alone, to be given any noise family: ``NGOS(problem, sigma, family)``."""
        return Problem(type(self.module).__name__, self.d, self.rank, self.gradient, self.noise, self.variance)

    def at(self, sigma: float) -> NetworkOracle:
        """The same network at another noise scale: mini-batches of ``1 / sigma^2`` samples, a whole number."""
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

    def _chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor, slice]]:
        size = size or self.chunk or self.n
        for first in range(0, self.n, size):
            at = slice(first, min(first + size, self.n))
            yield self.inputs[at], self.targets[at], at

    def _one_replica(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(functional_call(self.module, parameters, (x,)), y)

    def _losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return vmap(self._one_replica, in_dims=(0, None, None))(self._named(theta), x, y)

    def _sums(self, theta: Tensor, weights: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """``sum_i w_i g_i`` for each of the weights ``[R, n]``, and ``(1/n) sum_i g_i^2``."""
        named = self._named(theta)
        closed = {k: v for k, v in named.items() if k not in self.others}
        rest = {k: v for k, v in named.items() if k in self.others}
        sums: list[dict[str, Tensor]] = []
        squares: dict[str, Tensor] = {}
        if self.linear:
            sums, squares = _total(
                self._linear_sums(closed, rest, x, y, [w[:, at] for w in weights]) for x, y, at in self._chunks()
            )
        if self.others:
            width = len(theta) * sum(p[0].numel() for p in rest.values())
            size = self.chunk or max(1, min(self.n, PER_SAMPLE_ELEMENTS // width))
            more, more_squares = _total(
                self._sample_sums(closed, rest, x, y, [w[:, at] for w in weights]) for x, y, at in self._chunks(size)
            )
            sums = [a | b for a, b in zip(sums, more, strict=True)] if sums else more
            squares |= more_squares
        return [self._flat(s) for s in sums], self._flat(squares) / self.n

    def _flat(self, named: dict[str, Tensor]) -> Tensor:
        return torch.cat([named[name].reshape(len(named[name]), -1) for name in self.shapes], dim=1)

    def _linear_sums(
        self, closed: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, weights: list[Tensor]
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """The sums for linear layers from their inputs a and output gradients delta; one forward, one backward.

        delta is the gradient with respect to a zero that is added to the layer's output.
        """
        parameters = closed | rest
        replicas = len(next(iter(parameters.values())))
        # A layer's weight is [R, out, in]: the shift of its output has a row for each sample.
        zeros = {
            layer: parameters[weight].new_zeros(replicas, len(x), parameters[weight].shape[1])
            for layer, (weight, *_) in self.linear.items()
        }

        def losses(shifts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return vmap(self._shifted, in_dims=(0, 0, None, None))(parameters, shifts, x, y)

        value, pull, inputs = cast(Any, vjp(losses, zeros, has_aux=True))
        (deltas,) = pull(torch.ones_like(value))
        sums: list[dict[str, Tensor]] = [{} for _ in weights]
        squares: dict[str, Tensor] = {}
        for layer, (weight, *bias) in self.linear.items():
            a, delta = inputs[layer], deltas[layer]
            for total, w in zip(sums, weights, strict=True):
                scaled = delta * w.unsqueeze(-1)
                total[weight] = scaled.mT @ a
                total.update({name: scaled.sum(1) for name in bias})
            squares[weight] = (delta**2).mT @ _square(a)
            squares.update({name: (delta**2).sum(1) for name in bias})
        return sums, squares

    def _shifted(
        self, parameters: dict[str, Tensor], shifts: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses of one replica with a shift added to the output of each linear layer, and the layers' inputs."""
        tape = _Tape(shifts, {})
        layers = {name: cast(_TapedLinear, self.module.get_submodule(name)) for name in shifts}
        try:
            for name, layer in layers.items():
                layer.tape, layer.key = tape, name
            return self._one_replica(parameters, x, y), tape.inputs
        finally:
            for layer in layers.values():
                layer.tape = None

    def _sample_sums(
        self, closed: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, weights: list[Tensor]
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """The sums for parameters of any other layer, from their per-sample gradients."""
        each = self._sample_gradients(closed, rest, x, y)
        sums = [{name: torch.einsum("rn,rn...->r...", w, g) for name, g in each.items()} for w in weights]
        return sums, {name: (g**2).sum(1) for name, g in each.items()}

    def _sample_gradients(
        self, fixed: dict[str, Tensor], free: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        """Per-sample gradients with respect to the parameters ``free``: ``{name: [R, samples, *shape]}``."""

        def one(free: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._one_replica(fixed | free, x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)

        samples = vmap(grad(one), in_dims=(None, None, 0, 0))
        gradients: dict[str, Tensor] = vmap(samples, in_dims=(0, 0, None, None))(free, fixed, x, y)
        return gradients

    # -- what the network may do --------------------------------------------------------------------------------

    def _check_samples(self) -> None:
        """Refuse a loss without one value a sample, and a network that is random or whose samples see each other."""
        x, y = self.inputs[:PROBES], self.targets[:PROBES]
        together = self._one_replica({}, x, y)
        if together.shape != (len(x),):
            raise ValueError(
                f"loss must return one value for each sample (shape [{len(x)}] for {len(x)} samples), got shape "
                f"{list(together.shape)}; use reduction='none', and average over everything but the samples"
            )
        again = self._one_replica({}, x, y)
        if not torch.equal(together, again):
            raise ValueError(
                "the network answers the same samples differently each time; turn its randomness off, "
                "e.g. module.eval() or dropout with p=0"
            )
        alone = torch.cat([self._one_replica({}, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
        close = 100 * torch.finfo(alone.dtype).eps ** 0.5
        if not torch.allclose(alone, together, rtol=close, atol=close):
            raise ValueError(
                "a sample's loss depends on the other samples of its batch, so it has no gradient of its own; "
                "replace what mixes samples (e.g. BatchNorm by GroupNorm or LayerNorm, or module.eval())"
            )

    def _find_linear(self) -> dict[str, tuple[str, ...]]:
        """The linear layers whose per-sample gradient is delta a^T, found by comparing the two at a random point.

        A layer called twice or on sequences, a shared weight, a weight that the network also uses in other ways, or
        a subclass with a forward of its own fails the comparison, or is no candidate.
        """
        x, y = self.inputs[:PROBES], self.targets[:PROBES]
        generator = torch.Generator().manual_seed(0)
        shake = torch.randn(self.d, generator=generator).to(self._theta0)
        theta = (self._theta0 + 0.1 * shake).unsqueeze(0)
        named = self._named(theta)
        candidates: dict[str, tuple[str, ...]] = {}
        for name, layer in self.module.named_modules():
            weight, bias = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")
            if type(layer) is nn.Linear and weight in self.shapes:
                candidates[name] = (weight, bias) if bias in self.shapes else (weight,)
        once = self._called_once(candidates)
        candidates = {name: p for name, p in candidates.items() if name in once}
        for name in candidates:
            self.module.get_submodule(name).__class__ = _TapedLinear  # of the oracle's own copy; it behaves the same
        kept: dict[str, tuple[str, ...]] = {}
        for name, parameters in candidates.items():
            self.linear = {name: parameters}
            fixed = {k: v for k, v in named.items() if k not in parameters}
            free = {k: v for k, v in named.items() if k in parameters}
            exact = self._sample_gradients(fixed, free, x, y)
            ones = x.new_ones(1, len(x), dtype=theta.dtype)
            _, squares = self._linear_sums(free, fixed, x, y, [ones])
            expected = {k: (g**2).sum(1) for k, g in exact.items()}
            close = torch.finfo(theta.dtype).eps ** 0.5
            if all(torch.allclose(squares[k], e, rtol=close, atol=close * e.abs().max()) for k, e in expected.items()):
                kept[name] = parameters
        return kept

    def _called_once(self, layers: Iterable[str]) -> set[str]:
        """The layers that a forward calls exactly once, with one row for each sample."""
        x, y = self.inputs[:PROBES], self.targets[:PROBES]
        rows: dict[str, list[bool]] = {name: [] for name in layers}

        def hook(name: str) -> Callable[..., None]:
            def note(_module: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
                rows[name].append(bool(args) and args[0].ndim == 2 and len(args[0]) == len(x))

            return note

        with ExitStack() as stack, torch.no_grad():
            for name in rows:
                stack.enter_context(_hooked(self.module.get_submodule(name), hook(name)))
            self._one_replica({}, x, y)
        return {name for name, calls in rows.items() if calls == [True]}


def _tensors(data: tuple[Tensor, Tensor] | Dataset[Any]) -> tuple[Tensor, Tensor]:
    """Inputs and targets with one row for each sample."""
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


def _refuse(module: nn.Module) -> None:
    """Refuse layers that mix samples or are random, by name; `NetworkOracle._check_samples` finds what has no name."""
    for name, layer in module.named_modules():
        what = f"{type(layer).__name__} {name!r}"
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            mixes = isinstance(layer, nn.modules.batchnorm._BatchNorm)
            if (mixes and layer.running_mean is None) or (layer.training and layer.track_running_stats):
                raise ValueError(
                    f"{what} normalises by its batch, so a sample has no gradient of its own; call module.eval() to "
                    "use the running statistics as constants, or replace it by GroupNorm or LayerNorm"
                )
        p = getattr(layer, "p", None) if isinstance(layer, nn.modules.dropout._DropoutNd) else None
        p = getattr(layer, "dropout", None) if p is None else p
        if layer.training and isinstance(p, int | float) and p > 0:
            raise ValueError(
                f"{what} drops at random (p={p:g}), so the loss of a sample is no function of theta; "
                "call module.eval() or set p=0"
            )


@contextmanager
def _hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _square(a: Tensor) -> Tensor:
    """``a^2``; the data, which all replicas share (stride 0), are squared once."""
    return (a[:1] ** 2).expand_as(a) if a.stride(0) == 0 else a**2


def _add(parts: Iterable[Tensor]) -> Tensor:
    iterator = iter(parts)
    total = next(iterator)
    for part in iterator:
        total = total + part
    return total


def _total(
    parts: Iterable[tuple[list[dict[str, Tensor]], dict[str, Tensor]]],
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Add up the sums of all chunks, name by name."""
    iterator = iter(parts)
    sums, squares = next(iterator)
    for more, more_squares in iterator:
        sums = [{name: a[name] + b[name] for name in a} for a, b in zip(sums, more, strict=True)]
        squares = {name: squares[name] + more_squares[name] for name in squares}
    return sums, squares
