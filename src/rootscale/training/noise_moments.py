"""Moments of a parameter's gradients from sums over samples, read from their device all at once.

On a GPU a number that is read waits for all work before it. So whatever is read of several parameters is read together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rootscale.noise import Interval
from rootscale.training.layers import Sums


class Moments(NamedTuple):
    """Of some coordinates: ``Tr Sigma``, ``|grad f|^2``, how many have a gradient, in how many noise dominates."""

    trace: float
    gradient: float
    alive: int
    dominated: int

    def noise(self, size: float | None) -> dict[str, Any]:
        """Return the fields of a `rootscale.noise.Noise`, with the share that noise dominates at this batch size."""
        scale = self.trace / self.gradient if self.gradient > 0 else math.inf
        values = {"trace": self.trace, "gradient": self.gradient, "scale": scale}
        found: dict[str, Any] = {name: Interval(x, x, x) for name, x in values.items()}
        if size is not None and self.alive:
            part = self.dominated / self.alive
            found.update(share=Interval(part, part, part), batch_size=size)
        return {"steps": 0, **found}


def add_moments(parts: list[Moments]) -> Moments:
    """Return the moments of all of some coordinates."""
    return Moments(*(sum(column) for column in zip(*parts, strict=True))) if parts else Moments(0.0, 0.0, 0, 0)


def moments_of(found: list[Sums], samples: int, size: float | None, roots: list[Tensor] | None = None) -> list[Moments]:
    """Return the moments of each parameter, in the metric of ``roots`` if given; their numbers are read all at once."""
    if not found:
        return []
    if found[0].second is None:
        sums = torch.stack([one.norms for one in found if one.norms is not None]).sum(1)
        firsts = [one.first for one in found if one.first is not None]
        numbers = read_numbers([*sums, *squared_norms(firsts)])
        norms, gradients = numbers[: len(found)], numbers[len(found) :]
        pairs = [(norm / samples, gradient / samples**2) for norm, gradient in zip(norms, gradients, strict=True)]
        return [Moments(norm - gradient, gradient, 0, 0) for norm, gradient in pairs]
    metric: Sequence[Tensor | None] = roots or [None] * len(found)
    parts = [_coordinates(one, samples, size, root) for one, root in zip(found, metric, strict=True)]
    numbers = read_numbers([number for floats, _ in parts for number in floats])
    counts = torch.stack([count for _, integers in parts for count in integers]).tolist()
    return [Moments(numbers[i], numbers[i + 1], counts[i], counts[i + 1]) for i in range(0, 2 * len(parts), 2)]


def read_numbers(numbers: list[Tensor]) -> list[float]:
    """Return numbers of a device in one transfer."""
    kinds = {number.dtype for number in numbers}
    read: list[float] = torch.stack(numbers if len(kinds) == 1 else [x.double() for x in numbers]).tolist()
    return read


def _coordinates(
    found: Sums, samples: int, size: float | None, root: Tensor | None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return ``Tr Sigma`` and ``|grad f|^2`` of a parameter, and how many coordinates have a gradient or dominate."""
    assert found.first is not None
    assert found.second is not None
    square = (found.first / samples).square()
    variance = (found.second / samples - square).clamp_(min=0)  # below 0 by rounding only
    alive = found.second > 0
    dominated = alive.new_zeros((), dtype=torch.int64) if size is None else (alive & (variance > size * square)).sum()
    if root is not None:
        square, variance = square / root.square(), variance / root.square()
    return (variance.sum(), square.sum()), (alive.sum(), dominated)


def squared_norms(tensors: list[Tensor]) -> list[Tensor]:
    """Return the squared norm of each tensor, in few kernels where the device has such."""
    return list(torch._foreach_pow(torch._foreach_norm(tensors), 2)) if tensors else []
