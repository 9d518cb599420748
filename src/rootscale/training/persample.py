"""The noise of the gradient on given samples, exactly: from squared norms of per-sample gradients.

    Tr Sigma = mean_s |g_s|^2 - |g|^2,     g = mean_s g_s

with ``g_s`` the gradient of the loss of sample ``s``. The per-sample gradients themselves would take as much memory as
the model times the batch. Yet the gradient of a linear layer's weight is ``g_s = sum_t delta_st a_st^T`` over the
positions ``t`` of the sample, with ``a`` its input and ``delta`` the gradient of its output, and so

    |g_s|^2 = |a_s|^2 |delta_s|^2  (one position),     |g_s|^2 = sum_tt' (a_st . a_st') (delta_st . delta_st'),

which one forward and one backward of the whole batch give. A convolution is a linear layer on its patches; embeddings
and normalisations have small gradients of their own. What is none of these is done by ``torch.func.vmap``.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from rootscale.hparams import positive
from rootscale.noise import Interval, Noise
from rootscale.training.metric import Metric

__all__ = ["ExactNoise", "exact_noise"]

Loss = Callable[[Any, Any], Tensor]

#: How many numbers a temporary tensor may have: on a CPU it should fit into a cache.
_LIMIT = {"cpu": 2**18}
_ELSEWHERE = 2**24


class Squares(NamedTuple):
    """Of one parameter: ``|g_s|^2`` of each sample, ``sum_s g_s^2`` if asked for, and ``sum_s g_s`` if known."""

    norms: Tensor
    second: Tensor | None
    first: Tensor | None = None

    def shaped(self, shape: torch.Size) -> Squares:
        sums = (None if x is None else x.reshape(shape) for x in (self.second, self.first))
        return Squares(self.norms, *sums)


def _small(gradients: Tensor, second: bool) -> Squares:
    """From per-sample gradients, ``[samples, ...]``, which are overwritten."""
    first = gradients.sum(0)
    squares = gradients.square_()
    return Squares(squares.reshape(len(squares), -1).sum(1), squares.sum(0) if second else None, first)


def _join(pieces: list[Squares]) -> Squares:
    """Of one parameter, from several slices of the samples."""
    seconds = [piece.second for piece in pieces if piece.second is not None]
    firsts = [piece.first for piece in pieces if piece.first is not None]
    return Squares(
        torch.cat([piece.norms for piece in pieces]),
        sum(seconds[1:], seconds[0]) if seconds else None,
        sum(firsts[1:], firsts[0]) if firsts else None,
    )


def _slices(samples: int, each: int, device: torch.device) -> Iterator[slice]:
    """Slices of the samples, of which each needs temporary tensors of ``each`` numbers."""
    size = max(1, _LIMIT.get(device.type, _ELSEWHERE) // max(each, 1))
    return (slice(start, start + size) for start in range(0, samples, size))


def _gradients_are_cheaper(inputs: int, outputs: int, positions: int, second: bool) -> bool:
    """Whether to compute a layer's per-sample gradients, a few samples at a time, rather than products of positions."""
    return positions > 1 and (second or positions * (inputs + outputs) >= inputs * outputs)


def _product(a: Tensor, delta: Tensor, second: bool) -> Squares:
    """Of ``g_s = sum_t delta_st a_st^T``, from ``a [samples, groups, inputs, t]``, ``delta [.., outputs, t]``."""
    inputs, outputs, positions = a.shape[2], delta.shape[2], a.shape[3]
    if positions == 1:
        a2, delta2 = a[..., 0].square(), delta[..., 0].square()
        norms = (a2.sum(2) * delta2.sum(2)).sum(1)
        return Squares(norms, torch.einsum("sgo,sgi->goi", delta2, a2).flatten(0, 1) if second else None)
    if not _gradients_are_cheaper(inputs, outputs, positions, second):
        gram = a.transpose(2, 3) @ a
        return Squares(gram.mul_(delta.transpose(2, 3) @ delta).sum((1, 2, 3)), None)
    return _small((delta @ a.transpose(2, 3)).flatten(1, 2), second)


def _linear(layer: nn.Linear, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    samples = len(a)
    a, delta = a.reshape(samples, 1, -1, a.shape[-1]), delta.reshape(samples, 1, -1, delta.shape[-1])
    each = max(a.shape[2] ** 2, a.shape[3] * delta.shape[3]) if a.shape[2] > 1 else 0
    pieces = [
        _product(a[i].transpose(2, 3), delta[i].transpose(2, 3), second) for i in _slices(samples, each, a.device)
    ]
    return {"weight": _join(pieces), "bias": _small(delta.sum((1, 2)), second)}


def _patches(layer: Any, a: Tensor) -> Tensor:
    """The patches that a convolution sees, ``[samples, groups, inputs of a patch, positions]``."""
    dims = a.dim() - 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    a = F.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
    for i in range(dims):
        span = (layer.kernel_size[i] - 1) * layer.dilation[i] + 1
        a = a.unfold(2 + i, span, layer.stride[i])[..., :: layer.dilation[i]]
    order = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return a.permute(order).reshape(len(a), layer.groups, -1, math.prod(a.shape[2 : 2 + dims]))


def _conv(layer: Any, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    samples, positions = len(a), math.prod(delta.shape[2:])
    delta = delta.reshape(samples, layer.groups, -1, positions)
    inputs = layer.weight[0].numel()
    each = layer.groups * max(positions * inputs, min(positions**2, inputs * delta.shape[2]))
    pieces = [_product(_patches(layer, a[i]), delta[i], second) for i in _slices(samples, each, a.device)]
    return {"weight": _join(pieces).shaped(layer.weight.shape), "bias": _small(delta.sum(3).flatten(1), second)}


def _embedding(layer: nn.Embedding, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    samples, width = len(a), layer.embedding_dim
    tokens, delta = a.reshape(samples, -1), delta.reshape(samples, -1, width)
    if layer.padding_idx is not None:
        delta = delta * (tokens != layer.padding_idx).unsqueeze(-1)
    owner = torch.arange(samples, device=a.device).unsqueeze(1)
    keys, place = torch.unique(owner * layer.num_embeddings + tokens, return_inverse=True)  # a token counts once
    rows = delta.new_zeros(len(keys), width).index_add_(0, place.flatten(), delta.flatten(0, 1)).square_()
    norms = delta.new_zeros(samples).index_add_(0, keys // layer.num_embeddings, rows.sum(1))
    table = delta.new_zeros(layer.weight.shape) if second else None
    return {"weight": Squares(norms, None if table is None else table.index_add_(0, keys % layer.num_embeddings, rows))}


def _normalised(normal: Tensor, delta: Tensor, channels: slice, second: bool) -> dict[str, Squares]:
    """Of the weight and bias of a normalisation, from its output without them; ``channels`` are their dimensions."""
    kept = range(delta.dim())[channels]
    others = tuple(i for i in range(1, delta.dim()) if i not in kept)
    weight, bias = normal.mul_(delta), delta.clone()
    if others:
        weight, bias = weight.sum(others), bias.sum(others)
    return {"weight": _small(weight, second), "bias": _small(bias, second)}


def _layer_norm(layer: nn.LayerNorm, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    return _normalised(normal, delta, slice(-len(layer.normalized_shape), None), second)


def _rms_norm(layer: nn.RMSNorm, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    normal = F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps)
    return _normalised(normal, delta, slice(-len(layer.normalized_shape), None), second)


def _group_norm(layer: nn.GroupNorm, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    return _normalised(F.group_norm(a, layer.num_groups, eps=layer.eps), delta, slice(1, 2), second)


def _batch_norm(layer: Any, a: Tensor, delta: Tensor, second: bool) -> dict[str, Squares]:
    normal = F.batch_norm(a, layer.running_mean.to(a.dtype), layer.running_var.to(a.dtype), eps=layer.eps)
    return _normalised(normal, delta, slice(1, 2), second)


#: The layers that need no per-sample gradients, or small ones; whether their samples come first is seen by the shape.
_LAYERS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, bool], dict[str, Squares]]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Conv3d: _conv,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
}


def _handler(layer: nn.Module) -> Callable[[Any, Tensor, Tensor, bool], dict[str, Squares]] | None:
    """How to treat a layer: as one of the table, unless a subclass computes something else."""
    return next((f for kind, f in _LAYERS.items() if getattr(type(layer), "forward", None) is kind.forward), None)


def _sums_gradients(layer: Any, output: Tensor, second: bool) -> bool:
    """Whether the handler of a layer finds ``sum_s g_s`` of its weight on the way: autograd need not then."""
    if isinstance(layer, nn.Linear):
        positions = math.prod(output.shape[1:-1])
        return _gradients_are_cheaper(layer.in_features, layer.out_features, positions, second)
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        inputs, outputs = layer.weight[0].numel(), layer.out_channels // layer.groups
        return _gradients_are_cheaper(inputs, outputs, math.prod(output.shape[2:]), second)
    return False


def _own_dimensions(layer: Any) -> int:
    """How many dimensions the input of a layer has besides those that only repeat it."""
    if isinstance(layer, nn.Embedding):
        return 0
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return len(layer.normalized_shape)
    return 1 + len(getattr(layer, "kernel_size", ()))


class _Watch:
    """Sees the layers' inputs in a forward, and the gradients of their outputs in the backward."""

    def __init__(self, model: nn.Module, second: bool) -> None:
        self.second = second
        self.calls: Counter[nn.Module] = Counter()
        self.found: dict[Tensor, Squares] = {}
        self.edges: dict[Tensor, GradientEdge] = {}
        self._samples = 0
        self._forward = False
        self._layers = {layer: handler for layer in model.modules() if (handler := _handler(layer)) is not None}
        self._hooks = [layer.register_forward_hook(self._see, with_kwargs=True) for layer in self._layers]

    @contextmanager
    def forward(self, samples: int) -> Iterator[None]:
        """Around a forward; a layer that is run again in the backward (checkpointing) is not counted twice."""
        self.calls.clear()
        self.found.clear()
        self.edges.clear()
        self._samples, self._forward = samples, True
        try:
            yield
        finally:
            self._forward = False

    def _see(self, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        if not self._forward or not output.requires_grad:
            return
        self.calls[layer] += 1
        a = args[0] if args else kwargs["input"]
        if a.dim() <= _own_dimensions(layer) or len(a) != self._samples:
            return  # another layout: the first dimension is not that of the samples
        a = a.detach()

        def back(delta: Tensor) -> None:
            delta = _wide(delta)
            with torch.no_grad(), torch.autocast(delta.device.type, enabled=False):
                one = self._layers[layer](layer, a.to(delta.dtype) if a.is_floating_point() else a, delta, self.second)
            for name, squares in one.items():
                parameter = layer._parameters.get(name)
                if parameter is not None and parameter.requires_grad:
                    self.found[parameter] = squares

        output.register_hook(back)  # type: ignore[no-untyped-call]
        weight = layer._parameters.get("weight")
        if weight is not None and weight.requires_grad and _sums_gradients(layer, output, self.second):
            self.edges[weight] = get_gradient_edge(output)

    def once(self, total: Tensor) -> set[Tensor]:
        """The parameters that the forward used once, in one call of a layer."""
        uses = _uses(total)
        own = (p for layer, n in self.calls.items() if n == 1 for p in layer._parameters.values())
        return {p for p in own if p is not None and uses[p] == 1}

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _uses(total: Tensor) -> Counter[Any]:
    """How often each parameter enters the graph of a loss."""
    uses: Counter[Any] = Counter()
    root: Any = total.grad_fn
    seen, stack = {root}, [] if root is None else [root]
    while stack:
        for child, _ in stack.pop().next_functions:
            if type(child).__name__ == "AccumulateGrad":
                uses[child.variable] += 1
            elif child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return uses


def _total(loss: Loss, outputs: Any, targets: Any, samples: int) -> Tensor:
    """The sum of the samples' losses."""
    value = loss(outputs, targets)
    if value.dim() == 0:
        return value * samples
    if value.shape != (samples,):
        raise ValueError(
            f"loss must return the mean over the samples or one value a sample, of shape ({samples},); "
            f"got shape {tuple(value.shape)}"
        )
    return value.sum()


def _fallback(
    model: nn.Module, loss: Loss, names: list[str], x: tuple[Tensor, ...], y: Tensor, second: bool
) -> dict[str, Squares]:
    """Per-sample gradients by ``vmap``, a few samples at a time; one by one where a layer does not know ``vmap``."""
    every = {name: p.detach() for name, p in model.named_parameters()}
    some = {name: every[name] for name in names}

    def one(parameters: dict[str, Tensor], x: tuple[Tensor, ...], y: Tensor) -> Tensor:
        outputs = functional_call(model, {**every, **parameters}, tuple(part.unsqueeze(0) for part in x))
        return _total(loss, outputs, y.unsqueeze(0), 1)

    pieces: dict[str, list[Squares]] = {name: [] for name in some}
    for rows in _slices(len(y), sum(p.numel() for p in some.values()) // 16, y.device):  # fewer calls, larger slices
        xs = tuple(part[rows] for part in x)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # still faster than one by one
                gradients = vmap(grad(one), in_dims=(None, 0, 0))(some, xs, y[rows])
        except (RuntimeError, ValueError, NotImplementedError):
            each = [grad(one)(some, tuple(part[i] for part in xs), y[rows][i]) for i in range(len(y[rows]))]
            gradients = {name: torch.stack([g[name] for g in each]) for name in some}
        for name, gradient in gradients.items():
            pieces[name].append(_small(_wide(gradient).contiguous(), second))
    return {name: _join(piece) for name, piece in pieces.items()}


def _refuse(model: nn.Module) -> None:
    """Models whose samples see each other, or whose gradients are random."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise ValueError(
                f"{name or 'the model'} is a {type(layer).__name__} that normalises with the batch's own statistics: "
                "the samples see each other and have no gradients of their own; call model.eval(), or use NoiseMeter"
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise ValueError(f"{name or 'the model'} is an active {type(layer).__name__}; call model.eval() first")
        if isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
            raise ValueError(f"{name or 'the model'} scales its gradient by how often a token occurs in the batch")


_DEPENDENT = (
    " in the batch: the samples see each other, or are not along the first dimension, or the model is random; "
    "exact_noise needs samples with gradients of their own"
)


def _verify(model: nn.Module, loss: Loss, named: dict[str, Tensor], x: Any, y: Any, norms: Tensor) -> None:
    """The sample with the largest gradient, alone, must have the norm it has in the batch."""
    i = int(norms.argmax())
    total = _total(loss, model(*(part[i : i + 1] for part in x)), y[i : i + 1], 1)
    gradients: list[Tensor | None] = list(torch.autograd.grad(total, list(named.values()), allow_unused=True))
    square = math.fsum(float(_wide(_dense(g)).square().sum()) for g in gradients if g is not None)
    if not math.isclose(square, float(norms[i]), rel_tol=_tolerance(named.values())):
        raise ValueError(f"sample {i} has |gradient|^2 = {square:.6g} alone and {float(norms[i]):.6g}{_DEPENDENT}")


def _tolerance(parameters: Iterable[Tensor]) -> float:
    """How far rounding may carry two ways to the same gradient apart."""
    return 0.01 if all(p.dtype in (torch.float32, torch.float64) for p in parameters) else 0.1


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _wide(x: Tensor) -> Tensor:
    """In float32 at least: squares of half precision overflow."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class ExactNoise(Noise):
    """What `exact_noise` found. The intervals are points: there is no error but rounding.

    Args:
        trace, gradient, scale, share, batch_size: as in `Noise`, of the given samples taken as the whole data set.
        samples: how many there are.
        norms: ``|g_s|^2`` of each sample, ``[samples]``.
        parameters: the same of each parameter, by its name.
        groups: the same of each parameter group of the optimizer.
        preconditioned: in the optimizer's metric.
    """

    samples: int = 0
    norms: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)
    parameters: Mapping[str, Noise] = field(default_factory=dict, repr=False)
    groups: tuple[Noise, ...] = field(default=(), repr=False)
    preconditioned: Noise | None = None

    def _source(self) -> str:
        return f"exact on {self.samples} samples"


class _Sums(NamedTuple):
    """Of some coordinates: ``Tr Sigma``, ``|grad f|^2``, how many have a gradient, in how many noise dominates."""

    trace: float
    gradient: float
    alive: int
    dominated: int

    def noise(self, size: float | None) -> dict[str, Any]:
        scale = self.trace / self.gradient if self.gradient > 0 else math.inf
        values = {"trace": self.trace, "gradient": self.gradient, "scale": scale}
        found: dict[str, Any] = {name: Interval(x, x, x) for name, x in values.items()}
        if size is not None and self.alive:
            part = self.dominated / self.alive
            found.update(share=Interval(part, part, part), batch_size=size)
        return {"steps": 0, **found}


def _add(sums: list[_Sums]) -> _Sums:
    return _Sums(*(sum(column) for column in zip(*sums, strict=True))) if sums else _Sums(0.0, 0.0, 0, 0)


@torch.enable_grad()
def exact_noise(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor | tuple[Tensor, ...],
    targets: Tensor,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    preconditioned: bool = False,
    batch_size: float | None = None,
    chunk: int = 256,
) -> ExactNoise:
    """``Tr Sigma``, ``|grad f|^2`` and the noise scale on given samples, exactly: for audits, not for every step.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> images, labels = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
    >>> noise = exact_noise(model, F.cross_entropy, images, labels, batch_size=16)
    >>> noise.samples, sorted(noise.parameters)
    (64, ['0.bias', '0.weight', '3.bias', '3.weight'])

    It takes one forward and one backward of each chunk of samples, and nothing of the size of per-sample gradients, for
    Linear, Conv1d to Conv3d, Embedding, LayerNorm, GroupNorm, RMSNorm and BatchNorm in ``eval`` mode. Parameters of
    other layers, and those used more than once, are done by ``torch.func.vmap`` of their gradients, or sample by sample
    where that fails. ``batch_size`` and ``preconditioned`` need every coordinate's variance: in convolutions and on
    sequences that takes per-sample gradients after all, a few samples at a time.

    The samples are taken as the whole data set. For a few of a larger one, ``|grad f|^2`` comes out larger by about
    ``Tr Sigma / samples``, and the scale smaller; never above about ``samples``.

    Args:
        model: in ``eval`` mode if it has BatchNorm or dropout; the samples along the first dimension of its inputs.
        loss: of ``(model(inputs), targets)``: the mean over the samples, or a value for each.
        inputs: a tensor, or a tuple of them for ``model(*inputs)``; moved to the model's device chunk by chunk.
        targets: what the loss wants, the samples along the first dimension.
        optimizer: for results by parameter group.
        preconditioned: also in the optimizer's metric, ``|g / (sqrt(v_hat) + eps)|^2``; needs the optimizer.
        batch_size: ``B`` for the share of the coordinates where noise dominates, ``Sigma_ii / B > (d_i f)^2``.
        chunk: how many samples to take at a time.
    """
    _refuse(model)
    named: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("the model must have a parameter that requires a gradient, got none")
    if batch_size is not None:
        positive("batch_size", batch_size)
    if preconditioned and optimizer is None:
        raise ValueError("preconditioned=True needs the optimizer, for its second moment")
    roots = _roots(named, optimizer) if optimizer is not None and preconditioned else {}
    chunk, second = int(positive("chunk", chunk)), preconditioned or batch_size is not None
    xs = inputs if isinstance(inputs, tuple) else (inputs,)
    samples = len(targets)
    if not samples or any(len(x) != samples for x in xs):
        raise ValueError(f"inputs and targets must have as many samples, got {[len(x) for x in xs]} and {samples}")
    device = next(iter(named.values())).device
    sums = {name: torch.zeros_like(_wide(p.detach())) for name, p in named.items()}
    found: dict[str, Squares] = {}
    watch = _Watch(model, second)
    try:
        for start in range(0, samples, chunk):
            x = tuple(part[start : start + chunk].to(device) for part in xs)
            y = targets[start : start + chunk].to(device)
            gradients, squares = _pass(model, loss, named, x, y, watch)
            for name in named:
                sums[name] += gradients[name]
                found[name] = squares[name] if start == 0 else _join([found[name], squares[name]])
            if start == 0 or len(y) < chunk:  # a layout may be mistaken for another at one number of samples only
                norms = torch.stack([one.norms for one in squares.values()]).sum(0)
                _verify(model, loss, named, x, y, norms)
    finally:
        watch.remove()
    parts = {name: _sums(found[name], sums[name] / samples, samples, batch_size) for name in named}
    groups = [] if optimizer is None else [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    scaled = None
    if preconditioned:
        scaled = _add([_sums(found[n], sums[n] / samples, samples, batch_size, roots[n]) for n in named])
    return ExactNoise(
        **_add(list(parts.values())).noise(batch_size),
        samples=samples,
        norms=torch.stack([one.norms for one in found.values()]).sum(0),
        parameters={name: Noise(**part.noise(batch_size)) for name, part in parts.items()},
        groups=tuple(
            Noise(**_add([parts[name] for name, p in named.items() if id(p) in group]).noise(batch_size))
            for group in groups
        ),
        preconditioned=None if scaled is None else Noise(**scaled.noise(batch_size)),
    )


def _roots(named: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    roots: dict[str, Tensor] = {}
    for name, root in zip(named, Metric(optimizer).roots(named.values()), strict=True):
        if root is None:
            raise ValueError(f"the optimizer has no second moment of {name} yet: take a step first")
        roots[name] = root
    return roots


def _pass(
    model: nn.Module, loss: Loss, named: dict[str, Tensor], x: tuple[Tensor, ...], y: Tensor, watch: _Watch
) -> tuple[dict[str, Tensor], dict[str, Squares]]:
    """Of one chunk of samples: the sum of their gradients, and the squares."""
    with watch.forward(len(y)):
        total = _total(loss, model(*x), y, len(y))
    once = watch.once(total)
    edges = {p: edge for p, edge in watch.edges.items() if p in once}  # only to have the backward come by
    wanted = [p for p in named.values() if p not in edges]
    inputs: list[Any] = [*wanted, *edges.values()]
    gradients: list[Tensor | None] = list(torch.autograd.grad(total, inputs, allow_unused=True))
    given = dict(zip(wanted, gradients, strict=False))
    sums: dict[str, Tensor] = {}
    squares: dict[str, Squares] = {}
    rest = []
    for name, p in named.items():
        zero = torch.zeros_like(_wide(p.detach()))
        gradient = watch.found[p].first if p in edges and p in watch.found else given.get(p)
        sums[name] = zero if gradient is None else _dense(gradient)
        if gradient is None:
            squares[name] = Squares(zero.new_zeros(len(y)), zero if watch.second else None)
        elif p in once and p in watch.found:
            squares[name] = watch.found[p]
        else:
            rest.append(name)
    if rest:
        more = _fallback(model, loss, rest, x, y, watch.second)
        for name, (norms, _, first) in more.items():
            error = 0.0 if first is None else float((first - sums[name]).square().sum() / norms.sum())
            if error > _tolerance(named.values()) ** 2:
                raise ValueError(f"the gradients of {name}, sample by sample, do not add up to the one{_DEPENDENT}")
        squares.update(more)
    return sums, squares


def _sums(found: Squares, mean: Tensor, samples: int, size: float | None, root: Tensor | None = None) -> _Sums:
    """Of one parameter; in the metric of ``root`` if given."""
    square = mean.square()
    if found.second is None:
        gradient = float(square.sum())
        return _Sums(float(found.norms.sum()) / samples - gradient, gradient, 0, 0)
    variance = (found.second / samples - square).clamp_(min=0)  # below 0 by rounding only
    alive = found.second > 0
    dominated = 0 if size is None else int((alive & (variance > size * square)).sum())
    if root is not None:
        square, variance = square / root.square(), variance / root.square()
    return _Sums(float(variance.sum()), float(square.sum()), int(alive.sum()), dominated)
