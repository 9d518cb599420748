"""The SDEs of optimizers that move by a sign: SignSGD, Signum and Lion.

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

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory.families import FAMILIES, AnyFamily, StudentT, Svag
from rootscale.theory.memory import GAUSSIAN_DENSITY, Memory
from rootscale.theory.oracle import Oracle
from rootscale.theory.states import Kind, SGDState, SignumState, Time

__all__ = ["SaturatedSignSDE", "SignFlowSDE", "SignSDE", "is_gaussian", "noise_density"]

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
