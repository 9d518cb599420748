"""The running statistics of BatchNorm, where they are not what the training has left: fresh, or estimated anew."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rootscale.lab.replicas import Replicas
from rootscale.lab.stacked import Named
from rootscale.training.norms import norm_layers

#: What the running statistics of BatchNorm are before the first batch.
_FRESH = {"num_batches_tracked": 0, "running_mean": 0, "running_var": 1}


def fresh_batchnorms(replicas: Replicas) -> list[nn.Module]:
    """Return the layers of BatchNorm that have seen no batch: their running statistics are the initial ones."""

    def is_fresh(name: str) -> bool:
        held = {key: replicas.buffers.get(_place(name, key)) for key in _FRESH}
        return all(buffer is not None and bool((buffer == _FRESH[key]).all()) for key, buffer in held.items())

    return [layer for name, layer in norm_layers(replicas.model).items() if is_fresh(name)]


def reestimated(replicas: Replicas, params: Named, batches: Iterable[Tensor]) -> Named:
    """Return the buffers of replicas, with the running statistics of BatchNorm replaced by means over batches.

    Statistics of zero that are updated by a batch are those of the batch times the momentum, so that no layer has to be
    changed. A layer whose momentum is 0 keeps its own.

    Args:
        replicas: the models; they are left in eval mode, but for BatchNorm.
        params: their parameters, or other ones.
        batches: inputs ``[R, B, ...]``; a batch counts by its samples.
    """
    replicas.model.eval()
    momenta: dict[str, float] = {}
    zeroed: set[str] = set()
    for name, layer in norm_layers(replicas.model).items():
        if layer.momentum != 0:
            layer.train()
            zeroed |= {_place(name, key) for key in _FRESH}
            of_one = 1.0 if layer.momentum is None else layer.momentum  # None: the mean over all batches, here one
            momenta |= {_place(name, key): of_one for key in ("running_mean", "running_var")}
    sums: Named = {}
    samples = 0
    for x in batches:
        own = {
            name: torch.zeros_like(buffer) if name in zeroed else buffer.clone()
            for name, buffer in replicas.buffers.items()
        }
        replicas.forward(params, own, x)
        samples += x.shape[1]
        for name, momentum in momenta.items():
            sums[name] = sums.get(name, 0) + own[name] * (x.shape[1] / momentum)
    return replicas.buffers | {name: total / samples for name, total in sums.items()}


def _place(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
