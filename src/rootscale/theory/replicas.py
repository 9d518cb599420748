"""Sums over the per-sample gradients of a network, for many replicas at once.

`ReplicaSums` gives ``sum_i w_i g_i`` and ``sum_i g_i^2`` over samples ``i``. Parameters that `Collector` has a formula
for take one forward and one backward; the others take explicit per-sample gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from rootscale.training.collector import Collector, Seen, mixing_layers, random_layers, sample_gradients
from rootscale.training.layers import Wanted

#: Numbers that per-sample gradients may hold at once (where they are needed).
PER_SAMPLE_ELEMENTS = 2**25
#: Samples used to find out, at construction, how the network treats its samples.
PROBES = 4

Named = dict[str, Tensor]
Loss = Callable[[Any, Tensor], Tensor]


class Totals(NamedTuple):
    """By parameter, ``[R, *shape]``: ``sum_i w_i g_i`` for each of the weights, and ``sum_i g_i^2``."""

    weighted: tuple[Named, ...]
    second: Named

    def __or__(self, other: Totals) -> Totals:
        """Return the totals of both sets of parameters."""
        weighted = tuple(a | b for a, b in zip(self.weighted, other.weighted, strict=True))
        return Totals(weighted, self.second | other.second)

    def plus(self, other: Totals) -> Totals:
        """Return the totals over both sets of samples."""
        weighted = tuple(_added(a, b) for a, b in zip(self.weighted, other.weighted, strict=True))
        return Totals(weighted, _added(self.second, other.second))


def _added(a: Named, b: Named) -> Named:
    return {name: a[name] + b[name] for name in a}


class ReplicaSums:
    """Computes `Totals` of a network's trainable parameters.

    A parameter is ``closed`` where the forward uses it once, in a layer that has a formula, and where that formula
    agrees with explicit per-sample gradients at a random point. Everything else is ``explicit``.

    Args:
        module: the network; hooks stay on it, so it should be a copy of the user's.
        loss: of ``(outputs, targets)``, one value for each sample.
        inputs, targets: some samples, to find out how the network treats them.
    """

    def __init__(self, module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        self.module, self.loss = module, loss
        self.collector = Collector(module)
        x, y = inputs[:PROBES], targets[:PROBES]
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        #: By name of a layer: the layer, and the full names of its closed parameters by their own names.
        self.layers = self._candidates(trainable, x, y)
        self.explicit: list[str] = []
        point = {name: p.detach() + 0.1 * _shake(i, p) for i, (name, p) in enumerate(trainable.items())}
        right = self._agree({name: value.unsqueeze(0) for name, value in point.items()}, x, y)
        self.layers = {
            name: (seen, some)
            for name, (seen, own) in self.layers.items()
            if (some := {key: full for key, full in own.items() if full in right})
        }
        closed = {full for _, own in self.layers.values() for full in own.values()}
        self.explicit = [name for name in trainable if name not in closed]

    def losses(self, parameters: Named, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of every sample of *one* replica: ``[samples]``."""
        return self.loss(functional_call(self.module, parameters, (x,)), y)

    def __call__(self, parameters: Named, x: Tensor, y: Tensor, weights: tuple[Tensor, ...]) -> Totals:
        """Return the totals over these samples, for parameters ``[R, *shape]`` and weights ``[R, samples]``."""
        totals = Totals(tuple({} for _ in weights), {})
        if self.layers:
            totals |= self._closed(parameters, x, y, weights)
        if self.explicit:
            width = sum(parameters[name].numel() for name in self.explicit)
            size = max(1, PER_SAMPLE_ELEMENTS // width)
            parts = [
                self._explicit(parameters, x[i : i + size], y[i : i + size], tuple(w[:, i : i + size] for w in weights))
                for i in range(0, len(x), size)
            ]
            some = parts[0]
            for part in parts[1:]:
                some = some.plus(part)
            totals |= some
        return totals

    def _closed(self, parameters: Named, x: Tensor, y: Tensor, weights: tuple[Tensor, ...]) -> Totals:
        """Return the totals of the closed parameters: ``delta`` is the gradient of a zero added to a layer's output."""
        some = next(iter(parameters.values()))
        zeros = {name: some.new_zeros(len(some), len(x), *seen.shape) for name, (seen, _) in self.layers.items()}

        def losses(shifts: Named) -> tuple[Tensor, Named]:
            return vmap(self._shifted, in_dims=(0, 0, None, None))(parameters, shifts, x, y)

        value, pull, inputs = cast(Any, vjp(losses, zeros, has_aux=True))
        (deltas,) = pull(torch.ones_like(value))
        totals = Totals(tuple({} for _ in weights), {})
        for name, (seen, own) in self.layers.items():
            totals |= _replicated(seen, own, inputs[name], deltas[name], weights)
        return totals

    def _shifted(self, parameters: Named, shifts: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        """Return the losses of one replica with shifted layers, and the layers' inputs."""
        with self.collector.shifted(shifts) as inputs:
            return self.losses(parameters, x, y), inputs

    def _explicit(self, parameters: Named, x: Tensor, y: Tensor, weights: tuple[Tensor, ...]) -> Totals:
        """Return the totals of the explicit parameters, from their per-sample gradients."""
        each = self.sample_gradients(parameters, self.explicit, x, y)
        weighted = tuple({name: torch.einsum("rn,rn...->r...", w, g) for name, g in each.items()} for w in weights)
        return Totals(weighted, {name: (g**2).sum(1) for name, g in each.items()})

    def sample_gradients(self, parameters: Named, names: list[str], x: Tensor, y: Tensor) -> Named:
        """Return per-sample gradients with respect to some parameters: ``{name: [R, samples, *shape]}``."""

        def replica(free: Named, fixed: Named) -> Named:
            def one(free: Named, x: Tensor, y: Tensor) -> Tensor:
                return self.losses(fixed | free, x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)

            return sample_gradients(one, free, x, y)

        free = {name: parameters[name] for name in names}
        fixed = {name: value for name, value in parameters.items() if name not in free}
        gradients: Named = vmap(replica, in_dims=(0, 0 if fixed else None))(free, fixed)
        return gradients

    def _candidates(
        self, trainable: dict[str, nn.Parameter], x: Tensor, y: Tensor
    ) -> dict[str, tuple[Seen, dict[str, str]]]:
        """Return the layers, and their parameters, that a forward uses once, with the samples first."""
        with torch.enable_grad(), self.collector.forward(len(x)):
            total = self.loss(self.module(x), y).sum()
        once = self.collector.once(total)
        full = {p: name for name, p in trainable.items()}
        found = {
            name: (seen, {key: full[p] for key, p in seen.layer._parameters.items() if p in once and p in full})
            for name, seen in self.collector.seen.items()
        }
        self.collector.clear()
        return {name: (seen, own) for name, (seen, own) in found.items() if own}

    def _agree(self, point: Named, x: Tensor, y: Tensor) -> set[str]:
        """Return the closed parameters whose sums are those of explicit per-sample gradients at this point."""
        names = [full for _, own in self.layers.values() for full in own.values()]
        if not names:
            return set()
        exact = self.sample_gradients(point, names, x, y)
        second = self._closed(point, x, y, ()).second
        right = set()
        for name, gradients in exact.items():
            expected = (gradients**2).sum(1)
            close = torch.finfo(expected.dtype).eps ** 0.5
            if torch.allclose(second[name], expected, rtol=close, atol=close * float(expected.abs().max())):
                right.add(name)
        return right


def _replicated(seen: Seen, own: dict[str, str], a: Tensor, delta: Tensor, weights: tuple[Tensor, ...]) -> Totals:
    """Return the totals of a layer's parameters, from its inputs and output gradients ``[R, samples, ...]``."""
    room = max(1, PER_SAMPLE_ELEMENTS // len(delta))

    def one(a: Tensor, delta: Tensor, weights: tuple[Tensor, ...]) -> tuple[tuple[Named, ...], Named]:
        sums = seen(a, delta, Wanted(norms=False, second=True, weights=weights, room=room))
        weighted = tuple({full: sums[key].weighted[i] for key, full in own.items()} for i in range(len(weights)))
        return weighted, {full: cast(Tensor, sums[key].second) for key, full in own.items()}

    shared = a.stride(0) == 0  # the data, which all replicas see: squared once
    return Totals(*vmap(one, in_dims=(None if shared else 0, 0, 0))(a[0] if shared else a, delta, weights))


def _shake(seed: int, like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)


def refuse(module: nn.Module) -> None:
    """Refuse layers that mix samples or are random, by name; `check_samples` finds what has no name."""
    instances = (
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.training and layer.track_running_stats
    )
    for name, layer in (*mixing_layers(module), *instances):
        raise ValueError(
            f"{type(layer).__name__} {name!r} normalizes by its batch, so a sample has no gradient of its own; call "
            "module.eval() to use the running statistics as constants, or replace it by GroupNorm or LayerNorm"
        )
    for name, layer, p in random_layers(module):
        raise ValueError(
            f"{type(layer).__name__} {name!r} drops at random (p={p:g}), so the loss of a sample is no function of "
            "theta; call module.eval() or set p=0"
        )


@torch.no_grad()
def check_samples(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss without one value for each sample, and a network that is random or whose samples see each other."""
    x, y = inputs[:PROBES], targets[:PROBES]
    together = loss(module(x), y)
    if together.shape != (len(x),):
        raise ValueError(
            f"loss must return one value for each sample (shape [{len(x)}] for {len(x)} samples), got shape "
            f"{list(together.shape)}; use reduction='none', and average over everything but the samples"
        )
    if not torch.equal(together, loss(module(x), y)):
        raise ValueError(
            "the network answers the same samples differently each time; turn its randomness off, "
            "e.g. module.eval() or dropout with p=0"
        )
    alone = torch.cat([loss(module(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))])
    close = 100 * torch.finfo(alone.dtype).eps ** 0.5
    if not torch.allclose(alone, together, rtol=close, atol=close):
        raise ValueError(
            "a sample's loss depends on the other samples of its batch, so it has no gradient of its own; "
            "replace what mixes samples (e.g. BatchNorm by GroupNorm or LayerNorm, or module.eval())"
        )
