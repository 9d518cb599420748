"""Layers with a leading dimension of replicas: the same numbers as ``torch.func.vmap``, with less overhead.

For small nets at small batch sizes the overhead of an operation is most of its cost, and vmap's adds to it. Models with
a layer that is not in the table below go through vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Named = dict[str, Tensor]


def _linear(layer: nn.Linear, p: Named, x: Tensor) -> Tensor:
    """Apply linear layers ``[R, B, in] -> [R, B, out]`` by one batched product."""
    weight, flat = p["weight"].transpose(1, 2), x.flatten(1, -2)
    out = torch.baddbmm(p["bias"].unsqueeze(1), flat, weight) if "bias" in p else torch.bmm(flat, weight)
    return out.view(*x.shape[:-1], -1) if x.ndim > 3 else out


def _batchnorm(layer: nn.BatchNorm1d, p: Named, x: Tensor) -> Tensor:
    """Normalize each feature of each replica as a channel of its own."""
    replicas, size, features = x.shape
    mean, var = (p[key].view(-1) if key in p else None for key in ("running_mean", "running_var"))
    weight, bias = (p[key].view(-1) if key in p else None for key in ("weight", "bias"))
    if layer.training and "num_batches_tracked" in p:
        p["num_batches_tracked"].add_(1)
    use = layer.training or mean is None
    flat = x.transpose(0, 1).reshape(size, replicas * features)
    momentum = 0.0 if layer.momentum is None else layer.momentum
    out = F.batch_norm(flat, mean, var, weight, bias, use, momentum, layer.eps)
    return out.view(size, replicas, features).transpose(0, 1)


def _flatten(layer: nn.Flatten, p: Named, x: Tensor) -> Tensor:
    return x.flatten(2)


def _same(layer: nn.Module, p: Named, x: Tensor) -> Tensor:
    out: Tensor = layer(x)
    return out


#: By exact type: how a layer is applied, and whether this layer can be.
_TABLE: dict[type[nn.Module], tuple[Callable[[Any, Named, Tensor], Tensor], Callable[[Any], bool]]] = {
    nn.Linear: (_linear, lambda layer: True),
    nn.BatchNorm1d: (_batchnorm, lambda layer: layer.momentum is not None),
    nn.Flatten: (_flatten, lambda layer: (layer.start_dim, layer.end_dim) == (1, -1)),
    **{kind: (_same, lambda layer: True) for kind in (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Identity)},
}


Forward = Callable[[Named, Named, Tensor], Tensor]


def stacked_forward(model: nn.Module, fallback: Forward) -> Forward:
    """Return the function ``(params, buffers, x [R, B, ...]) -> [R, B, ...]`` of stacked replicas of a model.

    It is made for ``nn.Sequential`` (nested ones too) of layers of the table; other models get ``fallback``.
    """
    layers = []
    own_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    for name, layer in model.named_modules(remove_duplicate=False):  # one activation may stand at several places
        if type(layer) is nn.Sequential:
            continue
        row = _TABLE.get(type(layer))
        if row is None or not row[1](layer) or _hooked(layer):
            return fallback
        keys = [key for key, _ in (*layer.named_parameters(), *layer.named_buffers())]
        places = [(key, f"{name}.{key}" if name else key) for key in keys]
        if any(place not in own_names for _, place in places):  # a weight that is tied to another
            return fallback
        layers.append((layer, row[0], places))

    normalized = any(isinstance(layer, nn.BatchNorm1d) for layer, _, _ in layers)

    def forward(params: Named, buffers: Named, x: Tensor) -> Tensor:
        if x.ndim > 3 and normalized and not isinstance(layers[0][0], nn.Flatten):
            return fallback(params, buffers, x)  # BatchNorm1d over [B, features, length]
        for layer, function, keys in layers:
            own = {key: (params[name] if name in params else buffers[name]) for key, name in keys}
            x = function(layer, own, x)
        return x

    return forward


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
