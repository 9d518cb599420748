"""Noisy gradient oracles with a scale parameter (the paper's NGOS), batched over paths.

An oracle returns, for parameters ``theta``, a stochastic gradient

    g = grad f(theta) + sigma * z,     E z = 0,     Cov z = Sigma(theta).

Its noise is written ``z = Sigma^(1/2)(theta) xi`` with a driving noise ``xi`` of ``rank`` coordinates that has mean
zero and unit covariance; with ``xi`` standard normal this is also the noise of the SDE. **A noise family is therefore a
distribution of xi and nothing else**: Gaussian, Rademacher, centred exponential, Student-t, the counts of a
mini-batch, and SVAG's combination of two draws of any of them.

All functions take ``theta`` of shape ``[P, d]`` (``P`` paths) and are pure, so that ``torch.compile`` can take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from rootscale.hparams import nonnegative, positive
from rootscale.rules import svag_weights

__all__ = [
    "FAMILIES", "NGOS", "Draw", "Family", "Minibatch", "Oracle", "Penalised", "Problem", "StudentT", "Svag",
    "cosine", "linear", "logistic", "penalised", "quadratic", "svag", "svag_weights",
]  # fmt: skip


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
        """``grad f(theta)``."""

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """``Sigma^(1/2)(theta) xi``: linear in ``xi``, of covariance ``Sigma(theta)`` for standard normal ``xi``."""

    def variance(self, theta: Tensor) -> Tensor:
        """``diag Sigma(theta)``."""

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A stochastic gradient for each path, fresh and independent."""


class Draw(NamedTuple):
    """A driving noise and a Brownian increment on the same probability space.

    Args:
        xi: ``[P, rank]``, of the family's distribution: mean zero, unit covariance.
        brownian: ``[P, rank]``, exactly standard normal, as near to ``xi`` as the family can make it.
    """

    xi: Tensor
    brownian: Tensor


# --------------------------------------------------------------------------------------------------- noise families


@dataclass(frozen=True)
class Family:
    """A distribution of ``xi`` whose coordinates are independent: a function of as many standard normals.

    Args:
        name: as in `FAMILIES`.
        transform: maps a standard normal to one coordinate of ``xi``. An increasing map is the quantile coupling,
            which of all couplings has the greatest correlation of ``xi`` and ``brownian``.
        third: ``E xi^3`` of a coordinate.
        fourth: ``E xi^4`` of a coordinate.
    """

    name: str
    transform: Callable[[Tensor], Tensor]
    third: float
    fourth: float

    def normals(self, rank: int) -> int:
        """How many standard normals a draw takes from each path."""
        return rank

    def couple(self, w: Tensor, rank: int) -> Draw:
        """The draw that these standard normals ``w`` (``[P, normals(rank)]``) give."""
        return Draw(self.transform(w), w)

    def at(self, sigma: float) -> Family | StudentT | Minibatch | Svag:
        """The family at another noise scale: the same, so its third moment does not shrink with ``sigma``."""
        return self


@dataclass(frozen=True)
class StudentT:
    """Student's t with ``nu`` degrees of freedom, scaled to unit variance: ``xi = w sqrt((nu - 2) / chi^2_nu)``.

    Moments of order ``nu`` and above do not exist, against the bounded moments condition.
    """

    nu: int = 5

    def __post_init__(self) -> None:
        if self.nu < 3:
            raise ValueError(f"nu must be an integer >= 3, for a finite variance, got {self.nu!r}")

    def normals(self, rank: int) -> int:
        """One for the numerator and ``nu`` for the chi-squared denominator of each coordinate."""
        return rank * (1 + self.nu)

    def couple(self, w: Tensor, rank: int) -> Draw:
        """``xi`` and its numerator ``w``, which is the Brownian increment."""
        w = w.reshape(w.shape[0], rank, 1 + self.nu)
        numerator = w[:, :, 0]
        return Draw(numerator * torch.sqrt((self.nu - 2) / w[:, :, 1:].square().sum(-1)), numerator)

    def at(self, sigma: float) -> StudentT:
        """The same at every noise scale."""
        return self


@dataclass(frozen=True)
class Minibatch:
    """The noise of a mini-batch of ``batch_size`` samples drawn with replacement from ``rank`` data points.

    With ``N_i`` the number of times that point ``i`` was drawn, ``xi_i = sqrt(n / B) (N_i - B / n)``; it makes
    ``grad f + B^(-1/2) Sigma^(1/2) xi`` the mean of the ``B`` gradients, exactly. The Brownian increment is independent
    of the batch: any coupling is valid, and none that is near is known for all ``theta`` at once.

    ``sigma = 1 / sqrt(B)`` ends at 1, and the third moment of ``z`` goes as ``sigma``: on skewed data, ``eta -> 0`` at
    fixed ``sigma0`` has no limit by batch size alone. `svag` takes it further, with a third moment that shrinks.
    """

    batch_size: int

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or int(self.batch_size) != self.batch_size or self.batch_size < 1:
            raise ValueError(f"batch_size must be an integer >= 1, got {self.batch_size!r}")

    def normals(self, rank: int) -> int:
        """One for each sample of the batch, and ``rank`` for the Brownian increment."""
        return self.batch_size + rank

    def couple(self, w: Tensor, rank: int) -> Draw:
        """The counts of the batch, centred and scaled, and an independent Brownian increment."""
        picks, brownian = w[:, : self.batch_size], w[:, self.batch_size :]
        index = (torch.special.ndtr(picks) * rank).long().clamp_(0, rank - 1)
        counts = torch.zeros_like(brownian).scatter_add_(1, index, torch.ones_like(picks))
        return Draw(math.sqrt(rank / self.batch_size) * (counts - self.batch_size / rank), brownian)

    def at(self, sigma: float) -> Minibatch:
        """Mini-batches of ``1 / sigma^2`` samples, which must be a whole number."""
        size = 1 / positive("sigma", sigma) ** 2
        if round(size) < 1 or abs(size - round(size)) > 1e-9 * size:
            raise ValueError(
                f"mini-batches have sigma = 1/sqrt(B) with an integer B >= 1, got sigma={sigma:.6g} (B={size:.6g}); "
                f"use sigma={1 / math.sqrt(max(1, round(size))):.6g}, or svag() for a larger noise scale"
            )
        return Minibatch(round(size))


@dataclass(frozen=True)
class Svag:
    """The driving noise of SVAG: ``(r1 xi1 + r2 xi2) / ell`` for two independent draws of ``base``.

    Its third moment is ``(3 ell^2 - 1) / (2 ell^3)`` times that of the base, which falls as ``1 / ell``.
    """

    base: Family | StudentT | Minibatch | Svag
    ell: float

    def normals(self, rank: int) -> int:
        """Those of two draws of the base."""
        return 2 * self.base.normals(rank)

    def couple(self, w: Tensor, rank: int) -> Draw:
        """The same combination of the two driving noises and of the two Brownian increments."""
        r1, r2 = svag_weights(self.ell)
        half = self.base.normals(rank)
        one, two = self.base.couple(w[:, :half], rank), self.base.couple(w[:, half:], rank)
        return Draw((r1 * one.xi + r2 * two.xi) / self.ell, (r1 * one.brownian + r2 * two.brownian) / self.ell)

    def at(self, sigma: float) -> Svag:
        """The base at ``sigma / ell``."""
        return Svag(self.base.at(sigma / self.ell), self.ell)


AnyFamily = Family | StudentT | Minibatch | Svag
#: The noise families by name. "skewed" is the centred exponential; mini-batches need a size, hence `Minibatch`.
FAMILIES: Mapping[str, AnyFamily] = MappingProxyType({
    "gaussian": Family("gaussian", lambda w: w, third=0.0, fourth=3.0),
    "rademacher": Family("rademacher", lambda w: torch.where(w < 0, -1.0, 1.0).to(w), third=0.0, fourth=1.0),
    "skewed": Family("skewed", lambda w: -torch.special.log_ndtr(-w) - 1, third=2.0, fourth=9.0),
    "student-t": StudentT(5),
})  # fmt: skip


# --------------------------------------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """A loss ``f`` and a covariance ``Sigma`` as functions of ``theta``: an oracle without its noise family and scale.

    Args:
        name: for tables and messages.
        d: the number of parameters.
        rank: the number of coordinates of ``xi``.
        gradient, noise, variance: as in `Oracle`.
    """

    name: str
    d: int
    rank: int
    gradient: Callable[[Tensor], Tensor]
    noise: Callable[[Tensor, Tensor], Tensor]
    variance: Callable[[Tensor], Tensor]


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
        """``grad f(theta)``."""
        return self.problem.gradient(theta)

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """``Sigma^(1/2)(theta) xi``."""
        return self.problem.noise(theta, xi)

    def variance(self, theta: Tensor) -> Tensor:
        """``diag Sigma(theta)``."""
        return self.problem.variance(theta)

    def couple(self, w: Tensor) -> Draw:
        """The driving noise, and a Brownian increment coupled to it, of standard normals ``w`` ``[P, normals]``."""
        return self.family.couple(w, self.rank)

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """The stochastic gradient of standard normals ``w`` ``[P, normals]``."""
        return self.gradient(theta) + self.sigma * self.noise(theta, self.couple(w).xi)

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A fresh stochastic gradient for each path."""
        w = torch.randn(theta.shape[0], self.normals, generator=generator, dtype=theta.dtype, device=theta.device)
        return self.drawn(theta, w)

    def at(self, sigma: float) -> NGOS:
        """The same problem at another noise scale: another batch size, ``sigma -> sigma / sqrt(kappa)``."""
        return replace(self, sigma=sigma, family=self.family.at(sigma))


@dataclass(frozen=True)
class _Wrapped:
    """An oracle made of another: everything is the base's unless said otherwise."""

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

    def gradient(self, theta: Tensor) -> Tensor:
        """``grad f(theta)``."""
        return self.base.gradient(theta)

    def noise(self, theta: Tensor, xi: Tensor) -> Tensor:
        """``Sigma^(1/2)(theta) xi``."""
        return self.base.noise(theta, xi)

    def variance(self, theta: Tensor) -> Tensor:
        """``diag Sigma(theta)``."""
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
        """``r1 g1 + r2 g2`` of the stochastic gradients of standard normals ``w`` ``[P, normals]``."""
        r1, r2 = svag_weights(self.ell)
        one, two = w.chunk(2, 1)
        g: Tensor = r1 * self.base.drawn(theta, one) + r2 * self.base.drawn(theta, two)  # type: ignore[attr-defined]
        return g

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """``r1 g1 + r2 g2`` of two fresh stochastic gradients."""
        r1, r2 = svag_weights(self.ell)
        return r1 * self.base.sample(theta, generator) + r2 * self.base.sample(theta, generator)


def svag(oracle: Oracle, ell: float) -> Oracle:
    """The SVAG operator: the oracle that returns ``r1(ell) g1 + r2(ell) g2`` of two stochastic gradients of ``oracle``.

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
        """``grad f(theta) + l2 theta``."""
        return self.base.gradient(theta) + self.l2 * theta

    def sample(self, theta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A stochastic gradient of the penalised loss."""
        return self.base.sample(theta, generator) + self.l2 * theta


def penalised(oracle: Oracle, l2: float) -> Oracle:
    """``oracle`` with ``l2 / 2 |theta|^2`` added to its loss (the oracle itself for ``l2 = 0``)."""
    if not nonnegative("l2", l2):
        return oracle
    if isinstance(oracle, NGOS):
        problem = oracle.problem
        return replace(oracle, problem=replace(problem, gradient=lambda theta: problem.gradient(theta) + l2 * theta))
    return Penalised(oracle, l2)


def _floats(value: Tensor | float | list[float] | list[list[float]]) -> Tensor:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else value.double()
    return torch.tensor(value, dtype=torch.double)  # numbers of Python keep their digits


def _root(covariance: Tensor, d: int) -> tuple[int, Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The rank, ``noise`` and ``variance`` of a constant covariance: diagonal ``[d]`` or full ``[d, d]``."""
    if covariance.shape == (d,):
        if not bool((covariance >= 0).all()):
            raise ValueError(f"covariance must be >= 0, got {covariance.tolist()}")
        scale = covariance.sqrt()
        return d, lambda theta, xi: scale.to(theta) * xi, lambda theta: covariance.to(theta).expand_as(theta)
    if covariance.shape != (d, d):
        raise ValueError(
            f"covariance must have the shape [{d}] (diagonal) or [{d}, {d}] (full), got {list(covariance.shape)}"
        )
    values, vectors = torch.linalg.eigh(covariance)
    if not torch.allclose(covariance, covariance.T) or bool((values < -1e-10 * values.abs().max()).any()):
        raise ValueError("covariance must be symmetric and positive semi-definite, with eigenvalues >= 0")
    root = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    diagonal = covariance.diagonal().clone()
    return d, lambda theta, xi: xi @ root.to(theta), lambda theta: diagonal.to(theta).expand_as(theta)


def linear(gbar: Tensor | list[float], covariance: Tensor | list[float] | None = None) -> Problem:
    """The paper's warm-up: ``f(theta) = <theta, gbar>`` with constant noise, ``covariance`` ones unless given."""
    g = _floats(gbar)
    d = g.numel()
    rank, noise, variance = _root(torch.ones_like(g) if covariance is None else _floats(covariance), d)
    return Problem("linear", d, rank, lambda theta: g.to(theta).expand_as(theta), noise, variance)


def quadratic(
    hessian: Tensor | list[float], optimum: Tensor | list[float] | float = 0.0, covariance: Tensor | None = None
) -> Problem:
    """``f(theta) = (theta - optimum)^T H (theta - optimum) / 2`` with constant noise.

    Args:
        hessian: ``H``, as its diagonal ``[d]`` or in full ``[d, d]``.
        optimum: ``[d]``, or a number for all coordinates.
        covariance: ``Sigma``, as its diagonal ``[d]`` or in full ``[d, d]``; the identity unless given.
    """
    h, x = _floats(hessian), _floats(optimum)
    d = h.shape[0]
    if h.shape not in ((d,), (d, d)):
        raise ValueError(f"hessian must have the shape [d] (diagonal) or [d, d] (full), got {list(h.shape)}")
    if h.ndim == 2 and not torch.allclose(h, h.T):
        raise ValueError("hessian must be symmetric: it is the second derivative of a loss")
    rank, noise, variance = _root(h.new_ones(d) if covariance is None else _floats(covariance), d)

    def gradient(theta: Tensor) -> Tensor:
        shift = theta - x.to(theta)
        return shift * h.to(theta) if h.ndim == 1 else shift @ h.to(theta)

    return Problem("quadratic", d, rank, gradient, noise, variance)


def cosine(d: int = 1, bend: float = 0.5, swing: float = 0.5) -> Problem:
    """A non-quadratic loss with a covariance that depends on the state, and all that the theorems ask for.

        f(theta) = sum_i theta_i^2 / 2 + bend cos(theta_i),     Sigma^(1/2)(theta) = diag(1 + swing cos(theta_i))

    Args:
        d: the number of (independent) coordinates.
        bend: below 1 in size, so that the loss is convex.
        swing: below 1 in size, so that the noise never vanishes.
    """
    if not (abs(bend) < 1 and abs(swing) < 1):
        raise ValueError(f"bend and swing must be below 1 in size, got bend={bend}, swing={swing}")
    return Problem(
        "cosine",
        d,
        d,
        gradient=lambda theta: theta - bend * torch.sin(theta),
        noise=lambda theta, xi: (1 + swing * torch.cos(theta)) * xi,
        variance=lambda theta: (1 + swing * torch.cos(theta)).square(),
    )


def logistic(features: Tensor, labels: Tensor, l2: float = 0.0) -> Problem:
    """Logistic regression on ``n`` data points: ``f(theta) = mean_i log(1 + exp(x_i theta)) - y_i x_i theta``.

    The covariance is that of the gradient of a random point, ``Sigma = mean_i (g_i - gbar)(g_i - gbar)^T``, and
    ``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - gbar) xi_i``, so that ``rank = n`` and mini-batches are a noise family.

    Args:
        features: ``x``, ``[n, d]``.
        labels: ``y``, ``[n]``, 0 or 1.
        l2: adds ``l2 / 2 |theta|^2`` to the loss, which keeps the optimum finite on separable data.
    """
    x, y = _floats(features), _floats(labels)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"features must be [n, d] and labels [n] with the same n, got {list(x.shape)} and {list(y.shape)}"
        )
    if not bool(((y == 0) | (y == 1)).all()):
        raise ValueError("labels must be 0 or 1")
    n, d = x.shape

    def residual(theta: Tensor) -> Tensor:  # [P, n]; the gradient of point i is residual_i x_i
        return torch.sigmoid(theta @ x.T.to(theta)) - y.to(theta)

    def gradient(theta: Tensor) -> Tensor:
        return residual(theta) @ x.to(theta) / n + l2 * theta

    def noise(theta: Tensor, xi: Tensor) -> Tensor:
        # sum_i (g_i - gbar) xi_i = sum_i g_i (xi_i - mean xi): one weighted sum of gradients.
        return (residual(theta) * (xi - xi.mean(1, keepdim=True))) @ x.to(theta) / math.sqrt(n)

    def variance(theta: Tensor) -> Tensor:
        r = residual(theta)
        return r.square() @ x.to(theta).square() / n - (r @ x.to(theta) / n).square()

    return Problem("logistic", d, n, gradient, noise, variance)
