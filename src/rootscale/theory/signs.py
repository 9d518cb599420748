"""Optimizers that move by a sign: SignSGD, Signum and Lion; their memory of past gradients, and their SDEs.

They move by ``theta -= eta sign(c)``, where ``c`` sums the gradients ``g`` of the last steps with fixed weights:
``c_k = sum_j w_j g_{k-j}``, ``sum_j w_j = 1``. With Gaussian noise everything that the limit ``eta -> 0`` needs of the
weights is in three numbers (`Memory.response`, `Memory.diffusion`, `Memory.pull`). They are made of the noise that the
sum leaves, ``tau^2 = sum_j w_j^2``, and of the correlation of ``c`` with itself ``n`` steps later,
``rho_n = sum_j w_j w_{j+n} / tau^2``.

A sign has no size, so that a step moves by ``eta`` whatever the gradient. Its mean is about ``gradient / noise``, and
its variance about 1. Two limits ``eta -> 0`` keep both drift and noise:

- *momentum in steps* (`SignSDE`, clock ``k eta^2``): the weights of past gradients are kept, and ``sigma eta`` is.
  Momentum is over at once on the clock; what is left of it are the three constants of `Memory`. Its rule is ``a = 0``.
- *momentum in time* (`SignFlowSDE`, clock ``k eta``): ``(1 - mu) / eta`` and ``sigma sqrt(eta)`` are kept. Momentum
  becomes a process of its own, and ``theta`` follows its sign without noise. Its rule is ``a = 1``.

`SaturatedSignSDE` is the first without the assumption that noise dominates; it is no limit, since it contains ``eta``.
The interface is that of `rootscale.theory.equations`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from rootscale.hparams import average, number, positive
from rootscale.records import Lion, Signum
from rootscale.theory.equations import Kind, SGDState, SignumState, Time
from rootscale.theory.families import FAMILIES, AnyFamily, StudentT, Svag
from rootscale.theory.oracle import Oracle

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


#: From so many parameters on the correlations of their noise, ``d^2`` numbers a path, are too many.
_MOST = 64


def _family(oracle: Oracle) -> AnyFamily:
    family: AnyFamily = getattr(oracle, "family", FAMILIES["gaussian"])
    return family


def is_gaussian(oracle: Oracle) -> bool:
    """Return whether the noise is Gaussian; of an oracle that does not say its distribution this is assumed."""
    family = _family(oracle)
    while isinstance(family, Svag):
        family = family.base
    return family == FAMILIES["gaussian"]


def noise_density(oracle: Oracle, *, alone: bool) -> float:
    """Return the density at 0 of a coordinate's noise over its standard deviation: what a sign sees of the noise.

    Args:
        oracle: whose noise.
        alone: whether the sign is that of one gradient, not of a sum.

    Raises:
        ValueError: the noise gives a sign no limit, or none that is known.
    """
    if is_gaussian(oracle):
        return GAUSSIAN_DENSITY
    family = _family(oracle)
    if isinstance(family, StudentT) and alone and independent(oracle):
        nu = family.nu
        size = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2))
        return size / math.sqrt((nu - 2) * math.pi)
    raise ValueError(
        "the sign of a stochastic gradient depends on its noise by the density at 0, not by the covariance alone: an "
        f"SDE is given for Gaussian noise (and for SignSGD with Student-t noise of independent coordinates), got "
        f"{family}; use noise gaussian (in Python NGOS(problem, sigma))"
    )


def correlation(oracle: Oracle, theta: Tensor) -> Tensor:
    """Return the correlation matrix of the noise of the coordinates, ``[P, d, d]``."""
    units = torch.eye(oracle.rank, dtype=theta.dtype, device=theta.device)
    columns = torch.stack([oracle.noise(theta, unit.expand(len(theta), -1)) for unit in units], -1)
    rows = columns / oracle.variance(theta).sqrt().unsqueeze(-1)
    return rows @ rows.mT


def independent(oracle: Oracle) -> bool:
    """Return whether the noise of different coordinates is uncorrelated, at two points."""
    theta = torch.stack([torch.zeros(oracle.d), torch.ones(oracle.d)]).double()
    eye = torch.eye(oracle.d, dtype=torch.double)
    return oracle.d == 1 or torch.allclose(correlation(oracle, theta), eye.expand(2, -1, -1), atol=1e-9)


def _check_width(oracle: Oracle) -> None:
    if oracle.d > _MOST:
        raise ValueError(
            f"the SDE of a sign needs the correlations of the noise of all coordinates, d^2 numbers a path; it is for "
            f"d <= {_MOST}, got d={oracle.d}"
        )


@dataclass(frozen=True)
class SignSDE:
    """The SDE of SignSGD, Signum and Lion with momentum kept in steps (clock ``t = k eta^2``):

        d theta = -(response / sigma0) S^(-1/2) grad f(theta) dt - pull grad log s(theta) dt + C^(1/2) dW
                  - decay theta dt

    with ``S = diag Sigma``, ``s = S^(1/2)``. For SignSGD ``response = sqrt(2 / pi)``, ``pull = 0`` and ``C = (2 / pi)
    arcsin(R)``, ``R`` the correlation of the noise, so that ``C = 1`` where coordinates are independent. For the others
    see `Memory`; there ``pull grad log s`` is ``sum_l L(R_il) d_l log s_i``. The noise drives ``theta`` by as much in
    every coordinate, whatever its size.

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: ``sigma * eta``.
        memory: how gradients are summed before the sign is taken.
        decay: decoupled weight decay per unit of time, ``lambda / eta``.
        density: of the noise of a coordinate at 0, in units of its standard deviation; ``response`` is twice that.
    """

    oracle: Oracle
    sigma0: float
    memory: Memory = field(default_factory=Memory)
    decay: float = 0.0
    density: float = GAUSSIAN_DENSITY
    clock_power: ClassVar[int] = 2
    kind: ClassVar[Kind] = SGDState

    def __post_init__(self) -> None:
        _check_width(self.oracle)

    @property
    def response(self) -> float:
        """The mean of a sign over gradient / noise."""
        return self.memory.response * self.density / GAUSSIAN_DENSITY

    def drift(self, t: Time, x: SGDState) -> SGDState:
        """Return the factor of ``dt``."""
        theta = x.theta
        signal = self.oracle.gradient(theta) / self.oracle.variance(theta).sqrt()
        drift = signal * (-self.response / self.sigma0)
        if not self.memory.empty:
            drift = drift - self._pull(theta)
        return SGDState(drift - self.decay * theta if self.decay else drift)

    def _pull(self, theta: Tensor) -> Tensor:
        """Return the drift down the noise, by coordinate."""

        def log_noise(at: Tensor) -> Tensor:
            return self.oracle.variance(at).log() / 2

        back = torch.func.vjp(log_noise, theta)[1]
        units = torch.eye(theta.shape[1], dtype=theta.dtype, device=theta.device)
        slopes: list[Tensor] = [back(unit.expand_as(theta).contiguous())[0] for unit in units]  # a row for each noise
        if len(slopes) == 1:
            return slopes[0] * self.memory.pull
        weights = self.memory.attraction(correlation(self.oracle, theta))
        return (weights * torch.stack(slopes, 1)).sum(-1)

    def diffusion(self, t: Time, x: SGDState, dw: Tensor) -> SGDState:
        """Return the noise increment; as much like the noise of the gradient as its covariance allows."""
        noise = self.oracle.noise(x.theta, dw) / self.oracle.variance(x.theta).sqrt()
        if x.theta.shape[1] == 1:
            return SGDState(noise * -math.sqrt(self.memory.diffusion))
        found = correlation(self.oracle, x.theta)
        try:
            root, wanted = torch.linalg.cholesky(found), torch.linalg.cholesky(self.memory.covariance(found))
        except RuntimeError:  # torch's LinAlgError
            raise ValueError(
                "the SDE of a sign needs noise of full rank: here the noise of some coordinates is that of others"
            ) from None
        white = torch.linalg.solve_triangular(root, noise.unsqueeze(-1), upper=False)
        return SGDState(-(wanted @ white).squeeze(-1))


@dataclass(frozen=True)
class SaturatedSignSDE:
    """The SDE of SignSGD at a finite learning rate (clock ``t = k eta^2``), for independent Gaussian coordinates:

        d theta = -(1 / eta) E dt + sqrt(1 - E^2) dW - decay theta dt,   E = erf(eta grad f / (sqrt(2) sigma0 s))

    Mean and variance of a step are those of SignSGD exactly, also where the gradient exceeds the noise and its sign
    hardly varies. For ``eta -> 0`` at fixed ``sigma0`` it becomes `SignSDE`.

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: ``sigma * eta``.
        eta: the learning rate.
        decay: decoupled weight decay per unit of time, ``lambda / eta``.
    """

    oracle: Oracle
    sigma0: float
    eta: float
    decay: float = 0.0
    clock_power: ClassVar[int] = 2
    kind: ClassVar[Kind] = SGDState

    def __post_init__(self) -> None:
        positive("eta", self.eta)
        _check_width(self.oracle)
        if not (is_gaussian(self.oracle) and independent(self.oracle)):
            raise ValueError("the SDE at a finite learning rate is for independent Gaussian noise; use SignSDE")

    def _sign(self, theta: Tensor) -> Tensor:
        """Return the mean of a sign."""
        noise = self.oracle.variance(theta).sqrt() * (self.sigma0 / self.eta)
        return Memory().expected_sign(self.oracle.gradient(theta), noise)

    def drift(self, t: Time, x: SGDState) -> SGDState:
        """Return the factor of ``dt``."""
        return SGDState(-self._sign(x.theta) / self.eta - self.decay * x.theta)

    def diffusion(self, t: Time, x: SGDState, dw: Tensor) -> SGDState:
        """Return the noise increment."""
        noise = self.oracle.noise(x.theta, dw) / self.oracle.variance(x.theta).sqrt()
        return SGDState(-noise * (1 - self._sign(x.theta).square()).clamp(min=0).sqrt())


@dataclass(frozen=True)
class SignFlowSDE:
    """The SDE of Signum and Lion with momentum kept in time (clock ``t = k eta``):

        d theta = -sign(m) dt - decay theta dt                                          Signum, mix = 0
        d theta = -erf(m / (sqrt(2) mix sigma0 s(theta))) dt - decay theta dt           Lion
        d m     = c (grad f(theta) - m) dt + c sigma0 Sigma^(1/2)(theta) dW

    ``theta`` has no noise of its own. Lion adds a share of the last gradient to momentum, whose noise blurs the sign.
    The drift of Signum jumps where ``m`` passes zero. The noise in ``m`` makes the solution unique in law all the same
    (Girsanov, for a noise that does not depend on ``theta``).

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: ``sigma * sqrt(eta)``.
        c: ``(1 - mu) / eta``.
        mix: ``(1 - beta1) / sqrt(eta)`` of Lion.
        decay: decoupled weight decay per unit of time.
    """

    oracle: Oracle
    sigma0: float
    c: float
    mix: float = 0.0
    decay: float = 0.0
    clock_power: ClassVar[int] = 1
    kind: ClassVar[Kind] = SignumState

    def drift(self, t: Time, x: SignumState) -> SignumState:
        """Return the factor of ``dt``."""
        if self.mix:
            noise = self.oracle.variance(x.theta).sqrt() * (math.sqrt(2) * self.mix * self.sigma0)
            sign = torch.erf(x.m / noise)
        else:
            sign = torch.sign(x.m)
        return SignumState(-sign - self.decay * x.theta, self.c * (self.oracle.gradient(x.theta) - x.m))

    def diffusion(self, t: Time, x: SignumState, dw: Tensor) -> SignumState:
        """Return the noise increment: in ``m`` alone."""
        return SignumState(torch.zeros_like(x.theta), self.c * self.sigma0 * self.oracle.noise(x.theta, dw))
