"""The SDEs of SGD, RMSprop and Adam, their auxiliary forms, and decoupled weight decay.

Those of optimizers that move by a sign are in `rootscale.theory.sign_equations`; `sde` gives them all.

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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from rootscale.hparams import SGD, AdamW, RMSprop, SDEConstants, positive, quantity
from rootscale.records import Lion, SDEOptimizer, Signum
from rootscale.theory.memory import memory_of
from rootscale.theory.oracle import Oracle, need_oracle, penalised
from rootscale.theory.sign_equations import SaturatedSignSDE, SignFlowSDE, SignSDE, noise_density
from rootscale.theory.states import AdamState, Kind, RMSpropState, SGDState, Time
from rootscale.theory_settings import CONSTANT

__all__ = [
    "SCHEDULES", "SDE", "SGDSDE", "AdamSDE", "AdamState", "RMSpropSDE", "RMSpropState", "RMSpropW", "RateSchedule",
    "SGDState", "Scheduled", "auxiliary", "clock_of", "eta_of", "gamma", "lowest_u", "mu", "sde", "tau",
]  # fmt: skip


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
class RMSpropW(RMSprop):
    """RMSprop with decoupled weight decay: each step also does ``theta -= eta * weight_decay * theta``."""

    weight_decay: float = quantity("decoupled_decay", default=0.01)

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size."""
        return replace(super().constants(batch_size), decay=self.weight_decay / self.eta)


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


#: The learning rate over its base, as a function of the share ``p`` of the time that has passed.
SCHEDULES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({
    CONSTANT: torch.ones_like,
    "linear": lambda p: 1 - p,
    "cosine": lambda p: (1 + torch.cos(math.pi * p)) / 2,
    "exponential": lambda p: torch.exp(-math.log(10) * p),
    "warmup": lambda p: (p / 0.3).clamp(max=1.0),
    "step": lambda p: torch.where(p > 0.5 - 1e-9, 0.1, 1.0).to(p),  # times are sums, and rounded
})  # fmt: skip


@dataclass(frozen=True)
class RateSchedule:
    """A learning rate over its base as a function of continuous time.

    >>> RateSchedule("cosine", start=0.5, duration=1.0)(1.0)
    tensor(0.5000, dtype=torch.float64)

    Args:
        name: one of `SCHEDULES`.
        start: when it begins.
        duration: how long it takes; before and after it stays what it is at its ends.
    """

    name: str
    start: float = 0.0
    duration: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.name!r}")
        positive("duration", self.duration)

    def __call__(self, t: Time) -> Tensor:
        """Return the factor at time ``t``."""
        t = torch.as_tensor(t, dtype=None if isinstance(t, Tensor) else torch.double)
        return SCHEDULES[self.name](((t - self.start) / self.duration).clamp(0.0, 1.0))


#: The SDEs of optimizers whose learning rate is constant.
_Constant = SGDSDE | RMSpropSDE | AdamSDE | SignSDE | SaturatedSignSDE | SignFlowSDE


@dataclass(frozen=True)
class Scheduled:
    """The SDE of an optimizer whose learning rate follows a schedule, ``eta_k = schedule(t_k) eta``:

        d theta = schedule(t) (d theta of the base),     everything else as in the base

    The averages are made of gradients, not of steps, so that a learning rate moves ``theta`` alone. Constants and clock
    are those of the base learning rate ``eta``, to which the schedule is relative.

    Args:
        base: the SDE at the base learning rate.
        schedule: the factor at a time ``t``, such as a `RateSchedule`; of tensors, so that a compiled step can take it.
    """

    base: _Constant
    schedule: Callable[[Time], Time]

    def __post_init__(self) -> None:
        if isinstance(self.base, SaturatedSignSDE) or (isinstance(self.base, SignSDE) and not self.base.memory.empty):
            raise ValueError(
                f"a schedule is for SDEs whose theta is moved in proportion to eta; {type(self.base).__name__} has "
                "terms of other powers of eta here (momentum in steps, saturation)"
            )

    @property
    def oracle(self) -> Oracle:
        """That of the base."""
        return self.base.oracle

    @property
    def sigma0(self) -> float:
        """That of the base."""
        return self.base.sigma0

    @property
    def clock_power(self) -> int:
        """That of the base."""
        return self.base.clock_power

    @property
    def kind(self) -> Kind:
        """That of the base."""
        return self.base.kind

    def _scaled(self, t: Time, x: Any) -> Any:
        return x._replace(theta=x.theta * self.schedule(t))

    def drift(self, t: Time, x: Any) -> Any:
        """Return the factor of ``dt``."""
        return self._scaled(t, self.base.drift(t, x))

    def diffusion(self, t: Time, x: Any, dw: Tensor) -> Any:
        """Return the noise increment."""
        return self._scaled(t, self.base.diffusion(t, x, dw))

    def increment(self, t: Time, x: Any, h: Time, dw: Tensor) -> Any:
        """Return ``drift(t, x) h + diffusion(t, x, dw)``, with less work."""
        if isinstance(self.base, SGDSDE | RMSpropSDE | AdamSDE):
            return self._scaled(t, self.base.increment(t, x, h, dw))
        parts = zip(self.drift(t, x), self.diffusion(t, x, dw), strict=True)
        return type(x)(*(a * h + b for a, b in parts))


#: Every SDE. A step of its chain takes the time `clock_of`.
SDE = _Constant | Scheduled


def _base(equation: SDE) -> _Constant:
    return equation.base if isinstance(equation, Scheduled) else equation


def clock_of(equation: SDE, eta: float) -> float:
    """Return the time that a step of the chain with learning rate ``eta`` takes."""
    base = _base(equation)
    return eta / (1 - base.momentum) if isinstance(base, SGDSDE) else float(eta**base.clock_power)


def eta_of(equation: SDE, clock: float) -> float:
    """Return the learning rate whose steps take the time ``clock``."""
    base = _base(equation)
    return clock * (1 - base.momentum) if isinstance(base, SGDSDE) else float(clock ** (1 / base.clock_power))


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


def sde(
    optimizer: SDEOptimizer,
    oracle: Oracle,
    *,
    in_time: bool = False,
    schedule: Callable[[Time], Time] | None = None,
) -> SDE:
    """Return the SDE that this optimizer follows on this oracle; ``oracle.sigma`` takes the place of ``1 / sqrt(B)``.

    Args:
        optimizer: the hyperparameters.
        oracle: gives ``grad f`` and ``Sigma``.
        in_time: of Signum and Lion: keep the window of momentum in time and not in steps as ``eta -> 0``.
        schedule: the learning rate over ``optimizer.eta`` as a function of time; see `Scheduled`.

    Raises:
        ValueError: Adam with ``beta1 = 0``, which has no SDE here; a sign of noise that is not Gaussian.
    """
    made = _constant_sde(optimizer, oracle, in_time)
    return made if schedule is None else Scheduled(made, schedule)


def _constant_sde(optimizer: SDEOptimizer, oracle: Oracle, in_time: bool) -> _Constant:
    """Return the SDE at a constant learning rate."""
    need_oracle(oracle)
    if not oracle.sigma > 0:
        raise ValueError(f"an SDE needs an oracle with sigma > 0, got sigma={oracle.sigma}")
    constants = optimizer.constants(1 / oracle.sigma**2)
    if isinstance(optimizer, Signum | Lion):
        return _of_sign(optimizer, oracle, in_time)
    if in_time:
        raise ValueError(f"in_time is a choice of Signum and Lion; {optimizer.name} has one SDE")
    if isinstance(optimizer, SGD):
        sigma0 = oracle.sigma * math.sqrt(optimizer.eta / (1 - optimizer.momentum))
        return SGDSDE(penalised(oracle, optimizer.weight_decay), sigma0, momentum=optimizer.momentum)
    assert constants.c2 is not None
    assert constants.eps0 is not None
    assert constants.eps_root0 is not None
    l2 = 0.0 if isinstance(optimizer, AdamW | RMSpropW) else optimizer.weight_decay
    oracle, eps = penalised(oracle, l2), (constants.eps0, constants.eps_root0)
    if isinstance(optimizer, RMSprop):
        return RMSpropSDE(oracle, constants.sigma0, constants.c2, *eps, constants.decay)
    if constants.c1 is None:
        raise ValueError(
            "the SDE of Adam needs beta1 > 0; with beta1 = 0 use RMSprop(eta, beta=beta2), once 1 - beta2^k is near 1"
        )
    return AdamSDE(oracle, constants.sigma0, constants.c1, constants.c2, *eps, constants.decay)


def _of_sign(optimizer: Signum | Lion, oracle: Oracle, in_time: bool) -> _Constant:
    """Return the SDE of an optimizer that moves by a sign."""
    eta, memory = optimizer.eta, memory_of(optimizer)
    assert memory is not None
    if not in_time:
        density = noise_density(oracle, alone=memory.empty)
        return SignSDE(oracle, oracle.sigma * eta, memory, optimizer.weight_decay / eta, density)
    if memory.mu == 0:
        raise ValueError("a window in time needs momentum: mu > 0 (Lion: beta2 > 0), got 0")
    mix = 0.0  # momentum averages over many steps, which makes its noise Gaussian; what Lion adds is of one step
    if isinstance(optimizer, Lion):
        noise_density(oracle, alone=False)  # refuses other noise
        mix = memory.share / math.sqrt(eta)
    return SignFlowSDE(oracle, oracle.sigma * math.sqrt(eta), (1 - memory.mu) / eta, mix, optimizer.weight_decay)
