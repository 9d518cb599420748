"""The SDEs of SGD, RMSprop and Adam with their states, their auxiliary forms, and decoupled weight decay.

Those of optimizers that move by a sign are in `rootscale.theory.signs`; `rootscale.theory.discrete.sde` gives them all.

An SDE is a record of its constants and its oracle. For a state ``x`` (a tuple of tensors ``[P, d]``) at time ``t`` it
gives ``drift(t, x)`` and the noise increment ``diffusion(t, x, dW)``, so that an Euler-Maruyama step of length ``h`` is

    x + drift(t, x) * h + diffusion(t, x, dW),     dW ~ N(0, h) of shape [P, oracle.rank].

Only ``gradient``, ``noise`` and ``variance`` of the oracle are used: its ``sigma`` is in ``sigma0`` already.
``u = v / sigma^2`` is the second moment in units of the noise. An eps inside the root (``eps_root0``) and decoupled
weight decay (``decay``) are not in the paper; they follow from the same limit and are zero unless given. Neither is
``signal``, the squared gradient that a batch of finite size has in ``u``: with ``signal = 1 / sigma^2`` the equation of
``u`` is exact in the mean, also where noise does not dominate; in the limit it is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory.oracle import Oracle

Time = float | Tensor


class SGDState(NamedTuple):
    """``theta``, as ``[P, d]``."""

    theta: Tensor


class RMSpropState(NamedTuple):
    """``theta`` and ``u = v / sigma^2``, each ``[P, d]``."""

    theta: Tensor
    u: Tensor


class AdamState(NamedTuple):
    """``theta``, ``m`` and ``u = v / sigma^2``, each ``[P, d]``."""

    theta: Tensor
    m: Tensor
    u: Tensor


class SignumState(NamedTuple):
    """``theta`` and the momentum ``m``, each ``[P, d]``."""

    theta: Tensor
    m: Tensor


#: Up to so many coordinates of ``xi`` the noise is checked.
_FEW = 64
Kind = type[SGDState] | type[RMSpropState] | type[AdamState] | type[SignumState]


def started(x0: tuple[Tensor, ...], kind: Kind, oracle: Oracle) -> SGDState | RMSpropState | AdamState | SignumState:
    """Return an initial state as one of this kind, or raise where it does not suit the oracle.

    Tensors broadcast, so that a wrong width would go unnoticed: columns that an oracle does not have share one noise.

    Args:
        x0: as the user gave it; a plain tuple is read in the order of the kind.
        kind: of the states of the SDE.
        oracle: where the state is used; its variance must be that of its noise there.
    """
    fields, d = kind._fields, oracle.d
    if getattr(x0, "_fields", fields) != fields or len(x0) != len(fields) or not all(map(torch.is_tensor, x0)):
        parts = ", ".join(type(part).__name__ for part in x0)
        raise ValueError(
            f"x0 must be {kind.__name__}({', '.join(fields)}) of tensors, got {type(x0).__name__} of ({parts})"
        )
    for name, part in zip(fields, x0, strict=True):
        if part.ndim == 2 and part.shape[1] != d:
            raise ValueError(
                f"{name} of x0 must be [P, {d}] or [1, {d}], as the oracle has d={d}, got {list(part.shape)}"
            )
        if not bool(part.isfinite().all()):
            raise ValueError(f"{name} of x0 must be finite, got {int((~part.isfinite()).sum())} numbers that are not")
        if name == "u" and bool((part < 0).any()):
            raise ValueError(f"u of x0 must be >= 0, as a mean of squares is, got {float(part.min()):g}")
    if x0[0].ndim == 2 and x0[0].is_floating_point() and oracle.rank <= _FEW:
        _check_variance(oracle, x0[0][:1])
    return kind(*x0)


def _check_variance(oracle: Oracle, theta: Tensor) -> None:
    """Refuse an oracle whose ``variance`` is not the diagonal of what its ``noise`` gives, at ``theta`` ``[1, d]``."""
    units = torch.eye(oracle.rank, dtype=theta.dtype, device=theta.device)
    found = oracle.noise(theta.expand(oracle.rank, -1), units).square().sum(0)
    stated = oracle.variance(theta)[0]
    # a variance that is a mean square less a squared mean is exact to the roundings of those
    exact = 1e-6 * found.max() + 100 * torch.finfo(theta.dtype).eps * oracle.gradient(theta).square().max()
    if not torch.allclose(found, stated, rtol=1e-3, atol=float(exact)):
        worst = int((found - stated).abs().argmax())
        raise ValueError(
            f"variance(theta) of the oracle must be the diagonal of the covariance of noise(theta, xi) for standard "
            f"normal xi, without sigma; at x0 parameter {worst} has {stated[worst]:g}, its noise gives {found[worst]:g}"
        )


def need_later(kind: Kind, start: float) -> None:
    """Raise where the SDE of states of this kind cannot start at this time."""
    if kind is AdamState and not start > 0:
        raise ValueError(
            f"Adam's SDE needs start > 0 (its normalization is 0/0 at t = 0), got start={start}; give SaveAt a start"
        )


def _plus(x: Tensor, y: Tensor, a: Time) -> Tensor:
    """Return ``x + a y`` in the place of ``x``, which must be nobody else's: as few passes over memory as can be."""
    return x.add_(a * y) if isinstance(a, Tensor) else x.add_(y, alpha=a)


def _moments(oracle: Oracle, theta: Tensor, xi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradient, noise and variance; by one evaluation, if the oracle has it (`NetworkOracle.moments`)."""
    at_once = getattr(oracle, "moments", None)
    if at_once is not None:
        gradient, noise, variance = at_once(theta, xi)
        return gradient, noise, variance
    return oracle.gradient(theta), oracle.noise(theta, xi), oracle.variance(theta)


def _square(variance: Tensor, gradient: Tensor, signal: float) -> Tensor:
    """Return the mean square of a stochastic gradient over ``sigma^2``, with ``signal`` for ``1 / sigma^2``."""
    return torch.addcmul(variance, gradient, gradient, value=signal) if signal else variance


def _once(x: Tensor) -> Tensor:
    """Return ``x``, a number, as the result of a reduction.

    Otherwise a compiled step repeats its formula for every element that it is multiplied with, which takes a third of
    the time of Adam's step.
    """
    return x.expand(16).amax() if torch.compiler.is_compiling() and x.ndim == 0 else x


def gamma(c: float, t: Time) -> Tensor:
    """Return ``gamma(t) = 1 - exp(-c t)``, the limit of Adam's normalization ``1 - beta^k``."""
    return _once(-torch.expm1(-c * torch.as_tensor(t, dtype=None if isinstance(t, Tensor) else torch.double)))


def tau(z: Tensor) -> Tensor:
    """Return the smooth step: 0 for ``z <= 0``, 1 for ``z >= 1``, ``e^(-1/z) / (e^(-1/z) + e^(-1/(1-z)))`` between."""
    inside = z.clamp(torch.finfo(z.dtype).tiny, 1 - torch.finfo(z.dtype).eps)
    # the ratio is a sigmoid of 1/(1-z) - 1/z, which cannot overflow to 0/0 near the ends
    smooth = torch.sigmoid(1 / (1 - inside) - 1 / inside)
    return torch.where(z <= 0, torch.zeros_like(z), torch.where(z >= 1, torch.ones_like(z), smooth))


def mu(u: Tensor, u_min: float) -> Tensor:
    """Return ``mu(u) = u_min/2 + tau(2u/u_min - 1) (u - u_min/2)``: ``u`` above ``u_min``, at least ``u_min/2``."""
    return u_min / 2 + tau(2 * u / u_min - 1) * (u - u_min / 2)


@dataclass(frozen=True)
class SGDSDE:
    """The SDE of SGD (clock ``t = k eta / (1 - momentum)``):

        d theta = -(grad f(theta) dt + sigma0 Sigma^(1/2)(theta) dW) - decay theta dt
        sigma0  = sigma sqrt(eta / (1 - momentum))

    The sign of the noise does not matter to the law; as it stands a chain and its SDE can share one Brownian path. With
    ``momentum`` fixed as ``eta -> 0``, the buffer ``b = momentum b + g`` is over at once on this clock. What is left of
    it is the factor ``1 / (1 - momentum)`` of the learning rate, so that the equation is that of plain SGD.

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: the noise constant.
        decay: decoupled weight decay per unit of time.
        momentum: of the chains that have this SDE; drift and noise do not contain it.
    """

    oracle: Oracle
    sigma0: float
    decay: float = 0.0
    momentum: float = 0.0
    clock_power: ClassVar[int] = 1
    kind: ClassVar[Kind] = SGDState

    def drift(self, t: Time, x: SGDState) -> SGDState:
        """Return the factor of ``dt``."""
        return SGDState(-self.oracle.gradient(x.theta) - self.decay * x.theta)

    def diffusion(self, t: Time, x: SGDState, dw: Tensor) -> SGDState:
        """Return the noise increment."""
        return SGDState(-self.sigma0 * self.oracle.noise(x.theta, dw))

    def increment(self, t: Time, x: SGDState, h: Time, dw: Tensor) -> SGDState:
        """Return ``drift(t, x) h + diffusion(t, x, dw)``, with less work."""
        theta = _plus(self.oracle.noise(x.theta, dw) * -self.sigma0, self.oracle.gradient(x.theta), -h)
        return SGDState(_plus(theta, x.theta, -self.decay * h) if self.decay else theta)


@dataclass(frozen=True)
class RMSpropSDE:
    """The SDE of RMSprop (clock ``t = k eta^2``), Def. 4.1 of the paper:

        d theta = -P^-1 (grad f(theta) dt + sigma0 Sigma^(1/2)(theta) dW) - decay theta dt
        d u     = c2 (diag Sigma(theta) + signal (grad f(theta))^2 - u) dt
        P       = sqrt(sigma0^2 u + eps_root0) + eps0          (= sigma0 sqrt(u) + eps0 in the paper)

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: ``sigma * eta``.
        c2: ``(1 - beta) / eta^2``.
        eps0: ``eps * eta``.
        eps_root0: ``eps_root * eta^2``, for an eps inside the root.
        decay: decoupled weight decay per unit of time, ``lambda / eta``.
        u_min: if given, ``u`` in ``P`` is replaced by ``mu(u)``: the auxiliary SDE of the paper's proof.
        signal: ``1 / sigma^2`` of a batch of finite size; zero in the limit.
    """

    oracle: Oracle
    sigma0: float
    c2: float
    eps0: float = 0.0
    eps_root0: float = 0.0
    decay: float = 0.0
    u_min: float | None = None
    signal: float = 0.0
    clock_power: ClassVar[int] = 2
    kind: ClassVar[Kind] = RMSpropState

    def preconditioner(self, u: Tensor) -> Tensor:
        """Return ``P``, by coordinate."""
        u = u if self.u_min is None else mu(u, self.u_min)
        v = u * self.sigma0**2
        return (v.add_(self.eps_root0) if self.eps_root0 else v).sqrt_().add_(self.eps0)

    def drift(self, t: Time, x: RMSpropState) -> RMSpropState:
        """Return the factor of ``dt``."""
        gradient = self.oracle.gradient(x.theta)
        theta = -gradient / self.preconditioner(x.u) - self.decay * x.theta
        return RMSpropState(theta, self.c2 * (_square(self.oracle.variance(x.theta), gradient, self.signal) - x.u))

    def diffusion(self, t: Time, x: RMSpropState, dw: Tensor) -> RMSpropState:
        """Return the noise increment; none in ``u``."""
        theta = -self.sigma0 * self.oracle.noise(x.theta, dw) / self.preconditioner(x.u)
        return RMSpropState(theta, torch.zeros_like(x.u))

    def increment(self, t: Time, x: RMSpropState, h: Time, dw: Tensor) -> RMSpropState:
        """Return ``drift(t, x) h + diffusion(t, x, dw)``, with less work: ``P`` and the oracle are evaluated once."""
        gradient, noise, variance = _moments(self.oracle, x.theta, dw)
        theta = _plus(noise * -self.sigma0, gradient, -h).div_(self.preconditioner(x.u))
        theta = _plus(theta, x.theta, -self.decay * h) if self.decay else theta
        return RMSpropState(theta, (_square(variance, gradient, self.signal) - x.u).mul_(self.c2 * h))


@dataclass(frozen=True)
class AdamSDE:
    """The SDE of Adam (clock ``t = k eta^2``), Def. 4.4 of the paper; it needs ``t > 0``:

        d theta = -sqrt(gamma2(t)) / gamma1(t) P^-1 m dt - decay theta dt
        d m     = c1 (grad f(theta) - m) dt + sigma0 c1 Sigma^(1/2)(theta) dW
        d u     = c2 (diag Sigma(theta) + signal (grad f(theta))^2 - u) dt
        P       = sqrt(sigma0^2 u + eps_root0 gamma2(t)) + eps0 sqrt(gamma2(t)),     gamma_i(t) = 1 - exp(-c_i t)

    The noise is in ``m`` alone and depends on ``theta`` alone, so that the Ito and Stratonovich readings agree.

    Args:
        oracle: gives ``grad f`` and ``Sigma``.
        sigma0: ``sigma * eta``.
        c1: ``(1 - beta1) / eta^2``.
        c2: ``(1 - beta2) / eta^2``.
        eps0: ``eps * eta``.
        eps_root0: ``eps_root * eta^2``, for an eps inside the root.
        decay: decoupled weight decay per unit of time, ``lambda / eta``.
        u_min: if given, ``u`` in ``P`` is replaced by ``mu(u)``: the auxiliary SDE of the paper's proof.
        signal: ``1 / sigma^2`` of a batch of finite size; zero in the limit.
    """

    oracle: Oracle
    sigma0: float
    c1: float
    c2: float
    eps0: float = 0.0
    eps_root0: float = 0.0
    decay: float = 0.0
    u_min: float | None = None
    signal: float = 0.0
    clock_power: ClassVar[int] = 2
    kind: ClassVar[Kind] = AdamState

    def rate(self, t: Time, u: Tensor) -> Tensor:
        """Return ``sqrt(gamma2) / gamma1 P^-1``, by coordinate: what ``-m dt`` is multiplied by."""
        gamma1, gamma2 = gamma(self.c1, t), gamma(self.c2, t)
        u = u if self.u_min is None else mu(u, self.u_min)
        root2 = torch.sqrt(gamma2)
        v = u * self.sigma0**2
        v = v.add_(self.eps_root0 * gamma2) if self.eps_root0 else v
        return root2 / gamma1 / v.sqrt_().add_(self.eps0 * root2)

    def drift(self, t: Time, x: AdamState) -> AdamState:
        """Return the factor of ``dt``."""
        gradient = self.oracle.gradient(x.theta)
        return AdamState(
            -self.rate(t, x.u) * x.m - self.decay * x.theta,
            self.c1 * (gradient - x.m),
            self.c2 * (_square(self.oracle.variance(x.theta), gradient, self.signal) - x.u),
        )

    def diffusion(self, t: Time, x: AdamState, dw: Tensor) -> AdamState:
        """Return the noise increment: in ``m`` alone."""
        zero = torch.zeros_like(x.u)
        return AdamState(zero, self.sigma0 * self.c1 * self.oracle.noise(x.theta, dw), zero)

    def increment(self, t: Time, x: AdamState, h: Time, dw: Tensor) -> AdamState:
        """Return ``drift(t, x) h + diffusion(t, x, dw)``, with less work: the oracle is evaluated once."""
        gradient, noise, variance = _moments(self.oracle, x.theta, dw)
        theta = self.rate(t, x.u).mul_(x.m).mul_(-h)
        theta = _plus(theta, x.theta, -self.decay * h) if self.decay else theta
        m = _plus(_plus(noise * self.sigma0, gradient, h), x.m, -h).mul_(self.c1)
        return AdamState(theta, m, (_square(variance, gradient, self.signal) - x.u).mul_(self.c2 * h))


_Adaptive = TypeVar("_Adaptive", RMSpropSDE, AdamSDE)


def lowest_u(c2: float, u0: Tensor, duration: float) -> float:
    """Return a bound that ``u`` stays above for ``duration``, on the SDE and on the chain: ``4^(-c2 duration) min u0``.

    On the SDE ``du/dt >= -c2 u``; a step of the chain keeps at least ``1 - c2 eta^2 >= 4^(-c2 eta^2)`` of ``u`` where
    ``c2 eta^2 <= 1/2``. (The paper's ``2^(-c2 duration)`` is not low enough: ``exp(-x) < 2^(-x)``.)
    """
    return float(u0.min()) * float(4.0 ** (-c2 * duration))


def auxiliary(equation: _Adaptive, u_min: float) -> _Adaptive:
    """Return the auxiliary SDE: ``mu(u)`` for ``u`` in the preconditioner; the same law as long as ``u >= u_min``."""
    return replace(equation, u_min=positive("u_min", u_min))
