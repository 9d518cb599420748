"""Problems, and the noisy gradient oracles with a scale parameter (the paper's NGOS) that are made of them.

An oracle returns, for parameters ``theta``, a stochastic gradient

    g = grad f(theta) + sigma * z,     E z = 0,     Cov z = Sigma(theta).

Its noise is written ``z = Sigma^(1/2)(theta) xi`` with a driving noise ``xi`` of ``rank`` coordinates that has mean
zero and unit covariance (`rootscale.theory.families`); with ``xi`` standard normal this is also the noise of the SDE. A
problem is an oracle without its noise family and scale.

All functions take ``theta`` of shape ``[P, d]`` (``P`` paths) and are pure, so that ``torch.compile`` can take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rootscale.hparams import nonnegative
from rootscale.rules import svag_weights
from rootscale.theory.families import FAMILIES, AnyFamily, Draw, Minibatch, Svag

Numbers = Tensor | list[float] | list[list[float]]


@dataclass(frozen=True)
class Problem:
    """A loss ``f`` and a covariance ``Sigma`` as functions of ``theta``: an oracle without its noise family and scale.

    Args:
        name: for tables and messages.
        d: the number of parameters.
        rank: the number of coordinates of ``xi``.
        gradient, noise, variance: as in `Oracle`.
        data: whether ``xi`` has a coordinate for each of ``rank`` data points, ``noise = n^(-1/2) sum_i (g_i - gbar)
            xi_i``; only then can mini-batches be drawn.
    """

    name: str
    d: int
    rank: int
    gradient: Callable[[Tensor], Tensor]
    noise: Callable[[Tensor, Tensor], Tensor]
    variance: Callable[[Tensor], Tensor]
    data: bool = False


def _floats(name: str, value: Numbers | float) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.tensor(value, dtype=torch.double)  # numbers of Python keep their digits
    if not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite, got {value.tolist()!s:.60}")
    return value if value.is_floating_point() else value.double()


def _root(covariance: Tensor, d: int) -> tuple[int, Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return the rank, ``noise`` and ``variance`` of a constant covariance: diagonal ``[d]`` or full ``[d, d]``."""
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
    """Return the paper's warm-up: ``f(theta) = <theta, gbar>`` and constant noise; ``covariance`` is 1 unless given."""
    g = _floats("gbar", gbar)
    if g.ndim != 1:
        raise ValueError(f"gbar must have the shape [d], got {list(g.shape)}")
    d = len(g)
    rank, noise, variance = _root(torch.ones_like(g) if covariance is None else _floats("covariance", covariance), d)
    return Problem("linear", d, rank, lambda theta: g.to(theta).expand_as(theta), noise, variance)


def quadratic(
    hessian: Tensor | list[float], optimum: Tensor | list[float] | float = 0.0, covariance: Tensor | None = None
) -> Problem:
    """Return ``f(theta) = (theta - optimum)^T H (theta - optimum) / 2`` with constant noise.

    Args:
        hessian: ``H``, as its diagonal ``[d]`` or in full ``[d, d]``.
        optimum: ``[d]``, or a number for all coordinates.
        covariance: ``Sigma``, as its diagonal ``[d]`` or in full ``[d, d]``; the identity unless given.
    """
    h, x = _floats("hessian", hessian), _floats("optimum", optimum)
    d = len(h) if h.ndim else 1
    if h.shape not in ((d,), (d, d)):
        raise ValueError(f"hessian must have the shape [d] (diagonal) or [d, d] (full), got {list(h.shape)}")
    if h.ndim == 2 and not torch.allclose(h, h.T):
        raise ValueError("hessian must be symmetric: it is the second derivative of a loss")
    if x.shape not in ((), (d,)):
        raise ValueError(f"optimum must be a number or have the shape [{d}], got {list(x.shape)}")
    rank, noise, variance = _root(h.new_ones(d) if covariance is None else _floats("covariance", covariance), d)

    def gradient(theta: Tensor) -> Tensor:
        shift = theta - x.to(theta)
        return shift * h.to(theta) if h.ndim == 1 else shift @ h.to(theta)

    return Problem("quadratic", d, rank, gradient, noise, variance)


def cosine(d: int = 1, bend: float = 0.5, swing: float = 0.5) -> Problem:
    """Return a non-quadratic loss with a covariance that depends on the state, and all that the theorems ask for.

        f(theta) = sum_i theta_i^2 / 2 + bend cos(theta_i),     Sigma^(1/2)(theta) = diag(1 + swing cos(theta_i))

    Args:
        d: the number of (independent) coordinates.
        bend: below 1 in size, so that the loss is convex.
        swing: below 1 in size, so that the noise never vanishes.
    """
    if not (isinstance(d, Integral) and d >= 1):
        raise ValueError(f"d must be a whole number of at least 1, got {d!r}")
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


def logistic(features: Numbers, labels: Numbers, l2: float = 0.0) -> Problem:
    """Return logistic regression on ``n`` data points: ``f(theta) = mean_i log(1 + exp(x_i theta)) - y_i x_i theta``.

    The covariance is that of the gradient of a random point, ``Sigma = mean_i (g_i - gbar)(g_i - gbar)^T``, and
    ``Sigma^(1/2) xi = n^(-1/2) sum_i (g_i - gbar) xi_i``, so that ``rank = n`` and mini-batches are a noise family.

    Args:
        features: ``x``, ``[n, d]``.
        labels: ``y``, ``[n]``, 0 or 1.
        l2: adds ``l2 / 2 |theta|^2`` to the loss, which keeps the optimum finite on separable data.
    """
    x, y, l2 = _floats("features", features), _floats("labels", labels), nonnegative("l2", l2)
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

    return Problem("logistic", d, n, gradient, noise, variance, data=True)


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
