"""The memory of an optimizer that moves by a sign, and the constants that it gives its SDE.

SignSGD, Signum and Lion move by ``theta -= eta sign(c)``, where ``c`` sums the gradients ``g`` of the last steps with
fixed weights: ``c_k = sum_j w_j g_{k-j}``, ``sum_j w_j = 1``. With Gaussian noise everything that the limit
``eta -> 0`` needs of the weights is in three numbers (`Memory.response`, `Memory.diffusion`, `Memory.pull`). They are
made of the noise that the sum leaves, ``tau^2 = sum_j w_j^2``, and of the correlation of ``c`` with itself ``n`` steps
later, ``rho_n = sum_j w_j w_{j+n} / tau^2``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rootscale.hparams import average, number
from rootscale.records import Lion, Signum

__all__ = ["GAUSSIAN_DENSITY", "Memory", "memory_of"]

#: The density of a standard normal at 0.
GAUSSIAN_DENSITY = 1 / math.sqrt(2 * math.pi)
#: Correlations below this are left out of sums over steps.
_SMALL = 1e-13
#: Lags whose sum over steps is taken at once.
_AT_ONCE = 64


@dataclass(frozen=True)
class Memory:
    """Weights ``w_0 = share`` and ``w_j = (1 - share) (1 - mu) mu^(j-1)`` of the gradients in ``c``.

    >>> Memory() == memory_of(Signum(0.1, mu=0.0))      # SignSGD: the last gradient alone
    True
    >>> memory_of(Lion(0.1, beta1=0.9, beta2=0.99))
    Memory(share=0.09999999999999998, mu=0.99)

    Args:
        share: the weight of the last gradient: Signum's ``1 - mu``, Lion's ``1 - beta1``.
        mu: how much of momentum a step keeps: Lion's ``beta2``.
    """

    share: float = 1.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        number("share", self.share, "in (0, 1]", lambda x: 0 < x <= 1)
        average("mu", self.mu)

    @property
    def empty(self) -> bool:
        """Whether only the last gradient counts, as in SignSGD."""
        return self.share == 1

    @property
    def size(self) -> float:
        """The noise of ``c`` over that of a gradient: ``tau``."""
        return math.sqrt(self.share**2 + self._past)

    @property
    def _past(self) -> float:
        """The sum of the squared weights from ``w_1`` on."""
        return (1 - self.share) ** 2 * (1 - self.mu) / (1 + self.mu)

    @functools.cached_property
    def lags(self) -> tuple[tuple[float, float], ...]:
        """For ``n = 1, 2, ...`` the correlation ``rho_n``, and the share of the last ``n`` steps in ``tau^2``."""
        tau2, n = self.size**2, 1
        found: list[tuple[float, float]] = []
        while True:
            kept = self.mu ** (n - 1)
            rho = (self.share * (1 - self.share) * (1 - self.mu) * kept + self._past * self.mu * kept) / tau2
            if rho < _SMALL:
                return tuple(found)
            found.append((rho, 1 - self._past * kept**2 / tau2))
            n += 1

    @property
    def response(self) -> float:
        """The mean of ``sign(c)`` over gradient / noise, where that is small: ``sqrt(2 / pi) / tau``.

        >>> round(Memory().response, 4), round(Memory(0.1, 0.9).response, 4)
        (0.7979, 3.4779)
        """
        return 2 * GAUSSIAN_DENSITY / self.size

    def covariance(self, correlation: Tensor) -> Tensor:
        """Return what the signs of two coordinates add to the covariance of ``theta`` per step, over ``eta^2``.

        Signs of normals with correlation ``r`` have covariance ``(2 / pi) arcsin(r)``; of every pair of steps,

            C(r) = (2 / pi) sum over all n of arcsin(rho_|n| r).
        """
        total = torch.asin(correlation.clamp(-1, 1))
        for part in self._parts(correlation):
            total = total + 2 * torch.asin((correlation.unsqueeze(-1) * part[0]).clamp(-1, 1)).sum(-1)
        return total * (2 / math.pi)

    def _parts(self, like: Tensor) -> list[Tensor]:
        """Return `lags` as tensors of two rows, some at a time."""
        lags = torch.tensor(self.lags, dtype=like.dtype, device=like.device).reshape(-1, 2).T
        return [lags[:, first : first + _AT_ONCE] for first in range(0, lags.shape[1], _AT_ONCE)]

    @functools.cached_property
    def diffusion(self) -> float:
        """The variance that ``theta`` gains per step over ``eta^2``: ``C(1)``, which is 1 without memory.

        >>> Memory().diffusion, round(Memory(0.1, 0.9).diffusion, 3)
        (1.0, 13.279)
        """
        return float(self.covariance(torch.ones((), dtype=torch.double)))

    def attraction(self, correlation: Tensor) -> Tensor:
        """Return how strongly the noise of a coordinate is pulled down by the motion of another one.

            L(r) = (2 / pi) sum_n lambda_n rho_n r / sqrt(1 - rho_n^2 r^2),   lambda_n = sum_{j<n} w_j^2 / tau^2

        Where the noise of a coordinate depends on ``theta``, a path that moves to smaller noise keeps its direction for
        longer: its momentum still has the larger noise of before, which outweighs the new gradients. This adds
        ``-L grad log s`` to the drift, with ``s`` the standard deviation of the noise. Without memory it is zero.
        """
        total = torch.zeros_like(correlation)
        for rho, recent in self._parts(correlation):
            r = correlation.unsqueeze(-1) * rho
            total = total + (recent * r / (1 - r * r).clamp(min=_SMALL).sqrt()).sum(-1)
        return total * (2 / math.pi)

    @functools.cached_property
    def pull(self) -> float:
        """The attraction of a coordinate by its own noise: ``L(1)``.

        >>> Memory().pull, round(Memory(0.1, 0.9).pull, 3)
        (0.0, 4.686)
        """
        return float(self.attraction(torch.ones((), dtype=torch.double)))

    def expected_sign(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Return the mean of ``sign(c)`` given the past, for Gaussian noise: an error function.

        Args:
            mean: of ``c``, given the past.
            noise: the standard deviation of the last gradient.
        """
        return torch.erf(mean / (math.sqrt(2) * self.share * noise))


def memory_of(optimizer: object) -> Memory | None:
    """Return the memory of an optimizer that moves by a sign; None for others."""
    if isinstance(optimizer, Signum):
        return Memory(1 - optimizer.mu, optimizer.mu)
    if isinstance(optimizer, Lion):
        return Memory(1 - optimizer.beta1, optimizer.beta2)
    return None
