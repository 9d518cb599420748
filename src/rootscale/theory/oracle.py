"""Noisy gradient oracles with a scale parameter (the paper's NGOS), batched over paths.

An oracle returns, for parameters ``theta``, a stochastic gradient

    g = grad f(theta) + sigma * z,     E z = 0,     Cov z = Sigma(theta).

Its noise is written ``z = Sigma^(1/2)(theta) xi`` with a driving noise ``xi`` of ``rank`` coordinates that has mean
zero and unit covariance (`rootscale.theory.families`); with ``xi`` standard normal this is also the noise of the SDE.

All functions take ``theta`` of shape ``[P, d]`` (``P`` paths) and are pure, so that ``torch.compile`` can take them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rootscale.hparams import nonnegative
from rootscale.rules import svag_weights
from rootscale.theory.families import FAMILIES, AnyFamily, Draw, Minibatch, Svag
from rootscale.theory.problems import Problem

__all__ = ["NGOS", "Oracle", "Penalised", "need_oracle", "penalised", "svag"]


@runtime_checkable
class Oracle(Protocol):
    """What every oracle offers; ``theta`` is ``[P, d]``, ``xi`` is ``[P, rank]``, every result is ``[P, d]``."""

    @property
    def sigma(self) -> float:
        """The noise scale; ``1 / sqrt(B)`` for mini-batches of ``B`` samples."""

    @property
    def d(self) -> int:
        """How many parameters a path has."""

    @property
    def rank(self) -> int:
        """How many coordinates ``xi`` has: standard normals per path and step of an SDE solver."""

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ``grad f(theta)``."""

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """Return ``Sigma^(1/2)(theta) xi``: linear in ``xi``, with covariance ``Sigma`` for standard normal ``xi``."""

    def variance(self, theta: Tensor) -> Tensor:
        """Return ``diag Sigma(theta)``."""

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a stochastic gradient for each path, fresh and independent."""


def need_oracle(oracle: object) -> None:
    """Refuse what is no oracle, such as a problem without a noise scale."""
    if not hasattr(oracle, "sigma"):
        raise TypeError(f"expected an oracle, such as NGOS(cosine(), sigma=4.0), got {type(oracle).__name__}")


@dataclass(frozen=True)
class NGOS:
    """The oracle of a problem: ``g = grad f(theta) + sigma Sigma^(1/2)(theta) xi`` with ``xi`` of ``family``.

    Args:
        problem: the loss and the covariance.
        sigma: the noise scale; for mini-batches it must be ``1 / sqrt(B)``.
        family: the distribution of ``xi``.
    """

    problem: Problem
    sigma: float
    family: AnyFamily = field(default_factory=lambda: FAMILIES["gaussian"])

    def __post_init__(self) -> None:
        nonnegative("sigma", self.sigma)
        if not hasattr(self.family, "couple"):
            raise ValueError(f"family must be a noise family, such as FAMILIES['skewed'], got {self.family!r}")
        if isinstance(self.family, Minibatch) and not self.problem.data:
            raise ValueError(
                f"mini-batches need a problem with data, got {self.problem.name!r}; use another noise family, the "
                "problem logistic or that of a NetworkOracle, or data=True if the noise of yours is that of data points"
            )
        if isinstance(self.family, Minibatch) and self.sigma and self.family.at(self.sigma) != self.family:
            expected = 1 / math.sqrt(self.family.batch_size)
            raise ValueError(
                f"mini-batches of {self.family.batch_size} samples have sigma={expected:.6g}, got {self.sigma:.6g}"
            )

    @property
    def d(self) -> int:
        """How many parameters a path has."""
        return self.problem.d

    @property
    def rank(self) -> int:
        """How many coordinates ``xi`` has."""
        return self.problem.rank

    @property
    def normals(self) -> int:
        """How many standard normals a draw takes from each path."""
        return self.family.normals(self.rank)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ``grad f(theta)``."""
        return self.problem.gradient(theta)

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """Return ``Sigma^(1/2)(theta) xi``."""
        return self.problem.noise(theta, xi)

    def variance(self, theta: Tensor) -> Tensor:
        """Return ``diag Sigma(theta)``."""
        return self.problem.variance(theta)

    def couple(self, w: Tensor) -> Draw:
        """Return the driving noise of standard normals ``w [P, normals]``, and a Brownian increment coupled to it."""
        return self.family.couple(w, self.rank)

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return the stochastic gradient of standard normals ``w`` ``[P, normals]``."""
        return self.gradient(theta) + self.sigma * self.noise(theta, self.couple(w).xi)

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a fresh stochastic gradient for each path."""
        if theta.ndim != 2 or theta.shape[1] != self.d:
            raise ValueError(f"theta must be [P, {self.d}], a row for each path, got {list(theta.shape)}")
        w = torch.randn(theta.shape[0], self.normals, generator=generator, dtype=theta.dtype, device=theta.device)
        return self.drawn(theta, w)

    def at(self, sigma: float) -> NGOS:
        """Return the same problem at another noise scale: another batch size, ``sigma -> sigma / sqrt(kappa)``."""
        return replace(self, sigma=sigma, family=self.family.at(sigma))


@dataclass(frozen=True)
class _Wrapped:
    """An oracle made of another: everything is the base's unless redefined."""

    base: Oracle

    @property
    def sigma(self) -> float:
        """The noise scale."""
        return self.base.sigma

    @property
    def d(self) -> int:
        """How many parameters a path has."""
        return self.base.d

    @property
    def rank(self) -> int:
        """How many coordinates ``xi`` has."""
        return self.base.rank

    @property
    def family(self) -> AnyFamily:
        """The distribution of ``xi``, where the base says it."""
        family: AnyFamily = self.base.family  # type: ignore[attr-defined]
        return family

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ``grad f(theta)``."""
        return self.base.gradient(theta)

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """Return ``Sigma^(1/2)(theta) xi``."""
        return self.base.noise(theta, xi)

    def variance(self, theta: Tensor) -> Tensor:
        """Return ``diag Sigma(theta)``."""
        return self.base.variance(theta)


@dataclass(frozen=True)
class _SvagOracle(_Wrapped):
    """SVAG over any oracle, through its samples alone."""

    ell: float

    @property
    def sigma(self) -> float:
        """The noise scale, ``ell`` times that of the base."""
        return self.ell * self.base.sigma

    @property
    def normals(self) -> int:
        """How many standard normals the two draws take from each path, where the base says how many one takes."""
        return 2 * int(self.base.normals)  # type: ignore[attr-defined]

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return ``r1 g1 + r2 g2`` of the stochastic gradients of standard normals ``w`` ``[P, normals]``."""
        r1, r2 = svag_weights(self.ell)
        one, two = w.chunk(2, 1)
        g: Tensor = r1 * self.base.drawn(theta, one) + r2 * self.base.drawn(theta, two)  # type: ignore[attr-defined]
        return g

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return ``r1 g1 + r2 g2`` of two fresh stochastic gradients."""
        r1, r2 = svag_weights(self.ell)
        return r1 * self.base.sample(theta, generator) + r2 * self.base.sample(theta, generator)


def svag(oracle: Oracle, ell: float) -> Oracle:
    """Return SVAG's oracle: its gradient is ``r1(ell) g1 + r2(ell) g2`` of two stochastic gradients of ``oracle``.

    It has the same ``f`` and ``Sigma`` and the noise scale ``ell * sigma``; the third moment of its noise is
    ``(3 ell^2 - 1) / (2 ell^3)`` times that of the base, so it obeys the low skewness condition. ``ell = 1`` gives
    the oracle itself.
    """
    svag_weights(ell)
    if ell == 1:
        return oracle
    if isinstance(oracle, NGOS):
        return replace(oracle, sigma=ell * oracle.sigma, family=Svag(oracle.family, ell))
    return _SvagOracle(oracle, ell)


@dataclass(frozen=True)
class Penalised(_Wrapped):
    """An oracle whose loss has ``l2 / 2 |theta|^2`` added: weight decay in the gradient."""

    l2: float

    def gradient(self, theta: Tensor) -> Tensor:
        """Return ``grad f(theta) + l2 theta``."""
        return self.base.gradient(theta) + self.l2 * theta

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a stochastic gradient of the penalised loss."""
        return self.base.sample(theta, generator) + self.l2 * theta


def penalised(oracle: Oracle, l2: float) -> Oracle:
    """Return ``oracle`` with ``l2 / 2 |theta|^2`` added to its loss (the oracle itself for ``l2 = 0``)."""
    if not nonnegative("l2", l2):
        return oracle
    if isinstance(oracle, NGOS):
        problem = oracle.problem
        return replace(oracle, problem=replace(problem, gradient=lambda theta: problem.gradient(theta) + l2 * theta))
    return Penalised(oracle, l2)
