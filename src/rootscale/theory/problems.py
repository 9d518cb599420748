"""Problems: a loss and the covariance of its gradient noise, as functions of ``theta`` of shape ``[P, d]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from rootscale.hparams import nonnegative

__all__ = ["Problem", "cosine", "linear", "logistic", "quadratic"]

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
