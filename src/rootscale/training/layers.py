"""Sums over per-sample gradients of a layer, from the layer's input and the gradient of its output.

The gradient of a linear layer's weight for sample ``s`` is ``g_s = sum_t delta_st a_st^T`` over the positions ``t`` of
the sample, with ``a`` the layer's input and ``delta`` the gradient of its output. Its squared norm needs no ``g_s``:

    |g_s|^2 = |a_s|^2 |delta_s|^2  (one position),     |g_s|^2 = sum_tt' (a_st . a_st') (delta_st . delta_st').

A convolution is a linear layer on its patches. Embeddings and normalizations have small gradients of their own.
`LAYERS` has a row for each kind of layer. Rows are pure functions of tensors: `torch.func.vmap` and ``torch.compile``
can take them, as the network oracle of `rootscale.theory` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: How many numbers a temporary tensor may have: on a CPU it should fit into a cache.
ROOM = {"cpu": 2**18}
ROOM_ELSEWHERE = 2**26


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which sums over the samples to compute.

    Args:
        norms: ``|g_s|^2`` of each sample.
        second: ``sum_s g_s^2``, by coordinate.
        weights: each ``[samples]``: for each of them ``sum_s w_s g_s``.
        room: how many numbers a temporary tensor may have; by default what suits the device.
    """

    norms: bool = True
    second: bool = False
    weights: tuple[Tensor, ...] = ()
    room: int | None = None

    def of(self, rows: slice) -> Wanted:
        """Return the same for a slice of the samples."""
        return replace(self, weights=tuple(w[rows] for w in self.weights)) if self.weights else self

    def slices(self, samples: int, each: int, device: torch.device) -> Iterator[slice]:
        """Yield slices of the samples, where a sample takes temporary tensors of ``each`` numbers."""
        room = ROOM.get(device.type, ROOM_ELSEWHERE) if self.room is None else self.room
        size = max(1, room // max(each, 1))
        return (slice(start, start + size) for start in range(0, samples, size))


class Sums(NamedTuple):
    """Sums over the per-sample gradients of one parameter, as far as they were `Wanted`.

    Args:
        norms: ``|g_s|^2`` of each sample, ``[samples]``.
        second: ``sum_s g_s^2``, of the parameter's shape.
        first: ``sum_s g_s``, only where it came for free.
        weighted: ``sum_s w_s g_s`` for each of the weights.
    """

    norms: Tensor | None
    second: Tensor | None
    first: Tensor | None = None
    weighted: tuple[Tensor, ...] = ()

    def shaped(self, shape: torch.Size) -> Sums:
        """Return the sums with the parameter's shape."""
        second, first = (None if x is None else x.reshape(shape) for x in (self.second, self.first))
        return Sums(self.norms, second, first, tuple(w.reshape(shape) for w in self.weighted))


def add_sums(pieces: list[Sums]) -> Sums:
    """Return the sums over all samples from those over several slices of them."""
    if len(pieces) == 1:
        return pieces[0]
    norms, seconds, firsts, weighted = zip(*pieces, strict=True)
    return Sums(
        None if norms[0] is None else torch.cat(norms),
        None if seconds[0] is None else sum(seconds[1:], seconds[0]),
        None if firsts[0] is None else sum(firsts[1:], firsts[0]),
        tuple(sum(parts[1:], parts[0]) for parts in zip(*weighted, strict=True)),
    )


def dense_sums(gradients: Tensor, wanted: Wanted) -> Sums:
    """Return the sums of explicit per-sample gradients, ``[samples, ...]``, which are overwritten."""
    first = gradients.sum(0)
    weighted = tuple(torch.einsum("s,s...->...", w, gradients) for w in wanted.weights)
    if not wanted.second:  # one reduction, and no squares in memory
        norms = (
            torch.linalg.vector_norm(gradients.reshape(len(gradients), -1), dim=1).square() if wanted.norms else None
        )
        return Sums(norms, None, first, weighted)
    squares = gradients.mul_(gradients)  # square_ has no rule for vmap
    return Sums(
        squares.reshape(len(squares), -1).sum(1) if wanted.norms else None,
        squares.sum(0),
        first,
        weighted,
    )


def _gradients_are_cheaper(inputs: int, outputs: int, positions: int, second: bool) -> bool:
    """Whether to compute a layer's per-sample gradients, a few samples at a time, rather than products of positions."""
    return positions > 1 and (second or positions * (inputs + outputs) >= inputs * outputs)


def _product(a: Tensor, delta: Tensor, wanted: Wanted) -> Sums:
    """Return the sums of ``g_s = sum_t delta_st a_st^T``; ``a [samples, groups, inputs, t]``, ``delta`` likewise."""
    inputs, outputs, positions = a.shape[2], delta.shape[2], a.shape[3]
    if _gradients_are_cheaper(inputs, outputs, positions, wanted.second):
        return dense_sums((delta @ a.transpose(2, 3)).flatten(1, 2), wanted)
    weighted = tuple(
        torch.einsum("sgot,sgit->goi", delta * w[:, None, None, None], a).flatten(0, 1) for w in wanted.weights
    )
    norms = second = None
    if positions == 1:
        a2, delta2 = a[..., 0].square(), delta[..., 0].square()
        if wanted.norms:
            norms = (a2.sum(2) * delta2.sum(2)).sum(1)
        if wanted.second:
            second = torch.einsum("sgo,sgi->goi", delta2, a2).flatten(0, 1)
    elif wanted.norms:
        gram = a.transpose(2, 3) @ a
        norms = gram.mul_(delta.transpose(2, 3) @ delta).sum((1, 2, 3))
    return Sums(norms, second, None, weighted)


def _rows(a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    """Return the sums of a linear layer that sees each sample once: ``g_s = delta_s a_s^T``."""
    a2, delta2 = a.square(), delta.square()
    length = delta2.sum(1) if wanted.norms else None
    scaled = [delta * w.unsqueeze(1) for w in wanted.weights]
    weight = Sums(
        None if length is None else a2.sum(1) * length,
        delta2.T @ a2 if wanted.second else None,
        None,
        tuple(some.T @ a for some in scaled),
    )
    bias = Sums(length, delta2.sum(0) if wanted.second else None, None, tuple(some.sum(0) for some in scaled))
    return {"weight": weight, "bias": bias}


def _linear(layer: nn.Linear, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    if a.dim() == 2:
        return _rows(a, delta, wanted)
    samples = len(a)
    a, delta = a.reshape(samples, 1, -1, a.shape[-1]), delta.reshape(samples, 1, -1, delta.shape[-1])
    each = max(a.shape[2] ** 2, a.shape[3] * delta.shape[3]) if a.shape[2] > 1 else 0
    pieces = [
        _product(a[i].transpose(2, 3), delta[i].transpose(2, 3), wanted.of(i))
        for i in wanted.slices(samples, each, a.device)
    ]
    return {"weight": add_sums(pieces), "bias": dense_sums(delta.sum((1, 2)), wanted)}


def _patches(layer: Any, a: Tensor) -> Tensor:
    """Return the patches that a convolution sees, ``[samples, groups, inputs of a patch, positions]``."""
    dims = a.dim() - 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    a = F.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
    for i in range(dims):
        span = (layer.kernel_size[i] - 1) * layer.dilation[i] + 1
        a = a.unfold(2 + i, span, layer.stride[i])[..., :: layer.dilation[i]]
    order = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return a.permute(order).reshape(len(a), layer.groups, -1, math.prod(a.shape[2 : 2 + dims]))


def _conv(layer: Any, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    samples, positions = len(a), math.prod(delta.shape[2:])
    delta = delta.reshape(samples, layer.groups, -1, positions)
    inputs = layer.weight[0].numel()
    each = layer.groups * max(positions * inputs, min(positions**2, inputs * delta.shape[2]))
    pieces = [_product(_patches(layer, a[i]), delta[i], wanted.of(i)) for i in wanted.slices(samples, each, a.device)]
    bias = dense_sums(delta.sum(3).flatten(1), wanted)
    return {"weight": add_sums(pieces).shaped(layer.weight.shape), "bias": bias}


def _embedding(layer: nn.Embedding, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    """A row's gradient is the sum over the positions of its token; a sorted sample has equal tokens side by side."""
    samples, width = len(a), layer.embedding_dim
    tokens, delta = a.reshape(samples, -1), delta.reshape(samples, -1, width)
    if layer.padding_idx is not None:
        delta = delta * (tokens != layer.padding_idx).unsqueeze(-1)
    length, table = tokens.shape[1], delta.new_zeros(layer.weight.shape)
    weighted = tuple(
        table.index_add(0, tokens.flatten(), (delta * w[:, None, None]).flatten(0, 1)) for w in wanted.weights
    )
    ordered, order = tokens.sort(1)
    new = torch.cat((torch.zeros_like(ordered[:, :1]), (ordered.diff(dim=1) != 0).to(ordered.dtype)), 1)
    place = torch.zeros_like(tokens).scatter(1, order, new.cumsum(1))  # which of the sample's tokens, by position
    row = (place + length * torch.arange(samples, device=a.device).unsqueeze(1)).flatten()
    rows = delta.new_zeros(samples * length, width).index_add(0, row, delta.flatten(0, 1)).square()
    second = None
    if wanted.second:
        token = torch.zeros_like(tokens).scatter(1, place, tokens).flatten()
        second = table.index_add(0, token, rows)
    norms = rows.reshape(samples, -1).sum(1) if wanted.norms else None
    return {"weight": Sums(norms, second, None, weighted)}


def _normalized(normal: Tensor, delta: Tensor, channels: slice, wanted: Wanted) -> dict[str, Sums]:
    """Return the sums of a normalization, from its output without weight and bias; these have the given dimensions."""
    kept = range(delta.dim())[channels]
    others = tuple(i for i in range(1, delta.dim()) if i not in kept)
    weight = normal * delta
    bias = delta.sum(others) if others else delta.clone()
    return {
        "weight": dense_sums(weight.sum(others) if others else weight, wanted),
        "bias": dense_sums(bias, wanted),
    }


def _layer_norm(layer: nn.LayerNorm, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    normal = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    return _normalized(normal, delta, slice(-len(layer.normalized_shape), None), wanted)


def _rms_norm(layer: nn.RMSNorm, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    normal = F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps)
    return _normalized(normal, delta, slice(-len(layer.normalized_shape), None), wanted)


def _group_norm(layer: nn.GroupNorm, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    return _normalized(F.group_norm(a, layer.num_groups, eps=layer.eps), delta, slice(1, 2), wanted)


def _batch_norm(layer: Any, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
    normal = F.batch_norm(a, layer.running_mean.to(a.dtype), layer.running_var.to(a.dtype), eps=layer.eps)
    return _normalized(normal, delta, slice(1, 2), wanted)


LayerSums = Callable[[Any, Tensor, Tensor, Wanted], dict[str, Sums]]
#: The kinds of layers, and how each gives the sums over per-sample gradients of its parameters.
LAYERS: dict[type[nn.Module], LayerSums] = {
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


def layer_sums(layer: nn.Module) -> LayerSums | None:
    """Return the row of `LAYERS` for a layer; None for other kinds, and for a subclass that computes something else."""
    return next((f for kind, f in LAYERS.items() if getattr(type(layer), "forward", None) is kind.forward), None)


def sums_gradients(layer: Any, output: Tensor, second: bool) -> tuple[str, ...]:
    """Return the parameters whose ``sum_s g_s`` the row of a layer finds on the way, so that autograd need not."""
    if isinstance(layer, nn.Linear):
        positions = math.prod(output.shape[1:-1])
        cheaper = _gradients_are_cheaper(layer.in_features, layer.out_features, positions, second)
        return ("weight", "bias") if cheaper else () if output.dim() == 2 else ("bias",)
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        inputs, outputs = layer.weight[0].numel(), layer.out_channels // layer.groups
        cheaper = _gradients_are_cheaper(inputs, outputs, math.prod(output.shape[2:]), second)
        return ("weight", "bias") if cheaper else ("bias",)
    return () if isinstance(layer, nn.Embedding) else ("weight", "bias")


def own_dimensions(layer: Any) -> int:
    """Return how many dimensions the input of a layer has besides those that only repeat it."""
    if isinstance(layer, nn.Embedding):
        return 0
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return len(layer.normalized_shape)
    return 1 + len(getattr(layer, "kernel_size", ()))
