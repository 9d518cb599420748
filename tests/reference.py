"""Closed forms, and slow, obvious versions of what the package does fast."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ornstein_uhlenbeck(a: Tensor, q: Tensor, x0: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance at time t of dx = -A x dt + Q^(1/2) dW, x_0 = x0, for symmetric A > 0 and any Q."""
    values, vectors = torch.linalg.eigh(a)
    mean = vectors @ (torch.exp(-values * t) * (vectors.T @ x0))
    total = values[:, None] + values[None, :]
    inner = (vectors.T @ q @ vectors) * -torch.expm1(-total * t) / total
    return mean, vectors @ inner @ vectors.T


def sgd_on_quadratic(
    h: Tensor, covariance: Tensor, x0: Tensor, eta: float, sigma: float, k: int
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the k-th iterate of SGD with learning rate eta, by the recursion they obey."""
    step = torch.eye(len(x0), dtype=x0.dtype) - eta * h
    mean, cov = x0, torch.zeros_like(h)
    for _ in range(k):
        mean, cov = step @ mean, step @ cov @ step.T + eta**2 * sigma**2 * covariance
    return mean, cov


def warm_up_second_moment(v0: Tensor, gbar: Tensor, sigma: float, beta: float, k: int) -> Tensor:
    """E[v_k] = beta^k v_0 + (1 - beta^k)(gbar^2 + sigma^2) of the paper's section on the linear loss."""
    return beta**k * v0 + (1 - beta**k) * (gbar**2 + sigma**2)


def euler_maruyama(equation, x, t: float, h: float, steps: int, generator: torch.Generator):
    """The obvious solver: x + drift h + diffusion(dW)."""
    for k in range(steps):
        dw = math.sqrt(h) * torch.randn(x[0].shape[0], equation.oracle.rank, generator=generator, dtype=x[0].dtype)
        drift, diffusion = equation.drift(t + k * h, x), equation.diffusion(t + k * h, x, dw)
        x = type(x)(*(a + b * h + c for a, b, c in zip(x, drift, diffusion, strict=True)))
    return x


def standard_errors(sample: Tensor, expected: Tensor | float) -> Tensor:
    """How many standard errors the mean over paths (dim 0) is away from what is expected."""
    return (sample.mean(0) - expected).abs() / (sample.std(0) / math.sqrt(sample.shape[0]))
