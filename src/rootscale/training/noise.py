"""How noisy the gradient is, from what training computes anyway.

The gradient of a batch of ``b`` samples has mean ``grad f`` and covariance ``Sigma / b``. A step that adds up several
parts (micro-batches of accumulation, or SVAG's two batches) shows both: with ``G_i`` the gradients of the parts,
``b_i`` their sizes, ``w_i`` their weights, and ``T = sum_i w_i G_i`` their sum,

    E |G_i|^2 = |grad f|^2 + Tr Sigma / b_i,     E |T|^2 = (sum_i w_i)^2 |grad f|^2 + Tr Sigma sum_i w_i^2 / b_i,

two linear equations for ``Tr Sigma`` and ``|grad f|^2``: unbiased estimates from every step. The noise scale
``Tr Sigma / |grad f|^2`` is the batch size up to which the noise dominates the gradient.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootscale.hparams import number, positive
from rootscale.plan import Plan
from rootscale.rules import shortest_average
from rootscale.units import show

__all__ = ["Advice", "Interval", "Noise", "NoiseMeter", "advise"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{show(self.value)} [{show(self.low)}, {show(self.high)}]"


@dataclass(frozen=True)
class Noise:
    """What a `NoiseMeter` found; 95 % intervals.

    Args:
        trace: ``Tr Sigma``, of one sample.
        gradient: ``|grad f|^2``; its estimate may be negative where the noise hides it.
        scale: ``Tr Sigma / |grad f|^2``, in samples; without an upper end where the gradient cannot be told from 0.
        steps: how many steps it is from.
    """

    trace: Interval
    gradient: Interval
    scale: Interval
    steps: int

    def __str__(self) -> str:
        return (
            f"noise scale {self.scale} samples, Tr Sigma {self.trace}, |grad f|^2 {self.gradient} ({self.steps} steps)"
        )


class NoiseMeter:
    """Measures the noise of the gradient during training.

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> meter = NoiseMeter(optimizer)
    >>> for step in range(20):
    ...     optimizer.zero_grad()
    ...     for x in torch.randn(4, 8, 3):  # four micro-batches of eight samples
    ...         with meter.part(samples=8, weight=1 / 4):
    ...             (model(x).square().mean() / 4).backward()
    ...     meter.update()  # before optimizer.step() and zero_grad()
    ...     optimizer.step()
    >>> meter.estimate().steps
    20

    Hooks on the parameters see the gradient of each part while it is computed; nothing is stored but a norm. Estimates
    are means over a window of steps; their intervals take the noise of different steps as independent, which it is, and
    the gradient as steady over the window, which it nearly is if the window is short against the training.

    Args:
        parameters: an optimizer, for estimates by parameter group too; or parameters.
        window: how many of the latest steps to average over.
    """

    def __init__(self, parameters: torch.optim.Optimizer | Iterable[Tensor], window: int = 100) -> None:
        if isinstance(parameters, torch.optim.Optimizer):
            groups: list[list[Tensor]] = [list(group["params"]) for group in parameters.param_groups]
        else:
            groups = [list(parameters)]
        self._groups = [[p for p in group if p.requires_grad] for group in groups]
        if not any(self._groups):
            raise ValueError("parameters must hold at least one that requires a gradient, got none")
        self._steps: deque[Tensor] = deque(maxlen=int(positive("window", window)))
        self._parts: list[tuple[float, float, Tensor]] = []
        self._norms: list[list[Tensor]] | None = None
        self._hooks = [p.register_hook(self._hook(i)) for i, group in enumerate(self._groups) for p in group]  # type: ignore[no-untyped-call]

    def _hook(self, group: int) -> Any:
        def see(gradient: Tensor) -> None:
            if self._norms is not None:
                self._norms[group].append(_norm(gradient))

        return see

    def _squares(self, norms: list[list[Tensor]]) -> Tensor:
        """The squared norm of each group, ``[groups]``."""
        device = self._groups[0][0].device if self._groups[0] else None
        each = [torch.stack(some).square().sum() if some else torch.zeros((), device=device) for some in norms]
        return torch.stack(each)

    @contextmanager
    def part(self, samples: int, weight: float = 1.0) -> Iterator[None]:
        """Around the backward of one part of a step.

        Args:
            samples: how many samples it is the mean of.
            weight: by what its mean gradient is multiplied in ``.grad``: ``1 / n`` for ``n`` micro-batches, ``r`` of
                SVAG, times the scale of a ``GradScaler``.
        """
        positive("samples", samples)
        number("weight", weight, "a finite number other than 0", lambda x: x != 0)
        if self._norms is not None:
            raise RuntimeError("a part is open already: each part is one backward")
        self._norms = [[] for _ in self._groups]
        try:
            yield
            self._parts.append((float(samples), float(weight), self._squares(self._norms)))
        finally:
            self._norms = None

    def update(self) -> None:
        """The parts of a step are complete: take its estimates. Call it before ``.grad`` is changed or cleared."""
        parts, self._parts = self._parts, []
        if len(parts) < 2:
            raise ValueError(f"a step needs at least two parts to tell noise from gradient, got {len(parts)}")
        total = self._squares([[_norm(p.grad) for p in g if p.grad is not None] for g in self._groups])
        mean = torch.stack([squares / weight**2 for _, weight, squares in parts]).mean(0)
        inverse = sum(1 / samples for samples, _, _ in parts) / len(parts)
        weights = sum(weight for _, weight, _ in parts) ** 2
        spread = sum(weight**2 / samples for samples, weight, _ in parts)
        if math.isclose(spread, weights * inverse, rel_tol=1e-9):
            raise ValueError("parts of these weights do not tell noise from gradient (SVAG with ell = 1, say)")
        trace = (total - weights * mean) / (spread - weights * inverse)
        self._steps.append(torch.stack((trace, mean - trace * inverse)))  # no copy to the CPU here: that would wait

    def estimate(self, group: int | None = None) -> Noise:
        """The estimates over the window, of all parameters or of one parameter group."""
        if len(self._steps) < 8:
            raise ValueError(f"at least 8 steps are needed for an interval, got {len(self._steps)}")
        values = torch.stack(tuple(self._steps)).double().cpu().numpy()  # [steps, 2, groups]
        pairs = values.sum(2) if group is None else values[:, :, group]
        return _noise(pairs)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


def _norm(gradient: Tensor) -> Tensor:
    """The norm; of half-precision gradients in float32, where it does not overflow."""
    wide = gradient.dtype if gradient.dtype == torch.float64 else torch.float32
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=wide)
    return norm


def _noise(pairs: np.ndarray[Any, np.dtype[np.float64]]) -> Noise:
    """Means of ``(trace, gradient)`` over steps, with Student's intervals, and Fieller's for their ratio."""
    n = len(pairs)
    a, b = (float(x) for x in pairs.mean(0))
    (aa, ab), (_, bb) = (np.cov(pairs.T) / n).tolist()
    t = _student(n - 1)

    def interval(value: float, variance: float) -> Interval:
        half = t * math.sqrt(max(variance, 0.0))
        return Interval(value, value - half, value + half)

    # Fieller: all ratios r with |a - r b| <= t * s.e.(a - r b), which is a quadratic inequality in r.
    q2, q1, q0 = b * b - t * t * bb, a * b - t * t * ab, a * a - t * t * aa
    root = math.sqrt(max(q1 * q1 - q2 * q0, 0.0))
    if b > 0 and q2 > 0:
        scale = Interval(a / b, max(0.0, (q1 - root) / q2), (q1 + root) / q2)
    else:  # the gradient cannot be told from 0
        low = (q1 - root) / q2 if q2 else (q0 / (2 * q1) if q1 else 0.0)
        scale = Interval(a / b if b > 0 else math.inf, max(0.0, low) if q0 > 0 else 0.0, math.inf)
    return Noise(interval(a, aa), interval(b, bb), scale, n)


def _student(freedom: int, level: float = 0.975) -> float:
    """The quantile of Student's t, by its expansion about the normal one; to 1e-3 from 7 degrees on."""
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True)
class Advice:
    """How far the batch size of a plan may be raised now.

    Args:
        kappa: the largest factor that is safe.
        batch_size: of that factor.
        limit: which limit binds.
    """

    kappa: float
    batch_size: float
    limit: str

    def __str__(self) -> str:
        return f"up to kappa = {show(self.kappa)} (batch size {show(self.batch_size)}): {self.limit}"


def advise(plan: Plan, noise: Noise) -> Advice:
    """The largest kappa that is safe for this plan at this noise, and the limit that binds.

    The limits: the batch size stays below the noise scale (the lower end of its interval); the first moment averages
    over two steps or more, ``kappa (1 - beta1) < 1/2``; the theorem's range, ``kappa (1 - beta2) < 1/2``.
    """
    size, optimizer = float(plan.batch_size.total), plan.optimizer
    limits = {f"the noise scale, at least {show(noise.scale.low)} samples": noise.scale.low / size}
    for name in ("beta1", "beta2", "beta"):
        beta = getattr(optimizer, name, 0.0)
        if beta:
            limits[f"kappa (1 - {name}) < 1/2, with {name} = {show(beta)}"] = shortest_average(beta)
    limit = min(limits, key=lambda key: limits[key])
    return Advice(limits[limit], limits[limit] * size, limit)
