"""SGD, RMSprop, Adam, Signum and Lion as discrete chains over an oracle, and the way to their SDEs and back.

The paper's chains divide by ``sqrt(v_k)``, those of torch by ``sqrt(v_{k+1})``: one number, the lag of ``v``, is the
whole difference (`FORMS`). A chain's state is a tuple of tensors ``[P, d]``: ``(theta,)``, ``(theta, v)``,
``(theta, m, v)``, or ``(theta, m)`` of a sign; `Chain.scaled` turns it into the state of the SDE, ``u = v / sigma^2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rootscale.hparams import SGD, Adam, AdamW, RMSprop, SDEConstants, positive, quantity
from rootscale.records import Lion, SDEOptimizer, Signum
from rootscale.rules import Rule, get_rule, svag_weights
from rootscale.theory.equations import (
    SGDSDE,
    AdamSDE,
    AdamState,
    Kind,
    RMSpropSDE,
    RMSpropState,
    SGDState,
    SignumState,
    Time,
)
from rootscale.theory.oracle import Oracle, need_oracle, penalised, svag
from rootscale.theory.signs import Memory, SaturatedSignSDE, SignFlowSDE, SignSDE, is_gaussian, memory_of, noise_density
from rootscale.theory_settings import CONSTANT

State = tuple[Tensor, ...]
SDEState = SGDState | RMSpropState | AdamState | SignumState


@dataclass(frozen=True)
class RMSpropW(RMSprop):
    """RMSprop with decoupled weight decay: each step also does ``theta -= eta * weight_decay * theta``."""

    weight_decay: float = quantity("decoupled_decay", default=0.01)

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size."""
        return replace(super().constants(batch_size), decay=self.weight_decay / self.eta)


#: How many moments the state of a chain has besides ``theta`` (SGD: one more with momentum).
_MOMENTS: Mapping[type, int] = MappingProxyType(
    {SGD: 0, RMSprop: 1, RMSpropW: 1, Adam: 2, AdamW: 2, Signum: 1, Lion: 1}
)


@dataclass(frozen=True)
class Form:
    """How a chain is read.

    Args:
        name: as in `FORMS`.
        lag: the update of ``theta`` divides by ``v_{k+1-lag}``.
        in_time: of Signum and Lion: as ``eta -> 0`` the window of momentum is kept in time, not in steps. The steps are
            the same; the clock and the SDE are others.
    """

    name: str
    lag: int
    in_time: bool = False


#: The paper's chains (``v_k``), torch's (``v_{k+1}``), and a sign's with momentum in time.
FORMS: Mapping[str, Form] = MappingProxyType(
    {form.name: form for form in (Form("paper", 1), Form("torch", 0), Form("time", 0, in_time=True))}
)


@dataclass(frozen=True)
class Chain:
    """The chain of an optimizer over an oracle. With ``g_k`` a stochastic gradient plus ``l2 theta_k``:

        SGD       b_{k+1} = momentum b_k + g_k,     theta_{k+1} = theta_k - eta b_{k+1}
        RMSprop   v_{k+1} = beta v_k + (1 - beta) g_k^2
                  theta_{k+1} = theta_k - eta g_k / (sqrt(v_j + eps_root) + eps),          j = k + 1 - lag
        Adam      m_{k+1} = beta1 m_k + (1 - beta1) g_k,     v_{k+1} = beta2 v_k + (1 - beta2) g_k^2
                  theta_{k+1} = theta_k - eta mhat_{k+1} / (sqrt(vhat_j + eps_root) + eps),
                  mhat_k = m_k / (1 - beta1^k),     vhat_k = v_k / (1 - beta2^k)
        AdamW     as Adam, with theta_k (1 - eta weight_decay) in the place of theta_k; RMSpropW likewise
        Signum    m_{k+1} = mu m_k + (1 - mu) g_k,   theta_{k+1} = theta_k (1 - eta weight_decay) - eta sign(m_{k+1})
        Lion      as Signum, with sign(beta1 m_k + (1 - beta1) g_k), and beta2 for mu

    In the paper's form Adam's ``vhat_0`` is 0/0. As the paper's own code does, the step ``k = 0`` then leaves ``theta``
    alone and only fills ``m`` and ``v`` (decoupled decay included: nothing moves ``theta``).

    Args:
        optimizer: the hyperparameters.
        oracle: where stochastic gradients come from.
        form: a row of `FORMS`; the paper's unless given.
        schedule: the learning rate of a step over ``optimizer.eta``, as a function of the time at its start. The clock
            is that of ``optimizer.eta``.
    """

    optimizer: SDEOptimizer
    oracle: Oracle
    form: Form = FORMS["paper"]
    schedule: Callable[[Time], Time] | None = None

    def __post_init__(self) -> None:
        need_oracle(self.oracle)
        if type(self.optimizer) not in _MOMENTS:
            known = ", ".join(record.__name__ for record in _MOMENTS)
            raise ValueError(f"chains are of the records {known}; got {type(self.optimizer).__name__}")
        if not isinstance(self.form, Form):
            raise ValueError(f"form must be a row of FORMS, such as FORMS['torch'], got {self.form!r}")
        if self.form.in_time and (self.memory is None or self.memory.mu == 0):
            raise ValueError(f"form {self.form.name!r} is for Signum and Lion with momentum, got {self.optimizer}")

    @property
    def clock(self) -> float:
        """The continuous time that a step takes: ``eta^2``; ``eta`` for a sign with momentum in time.

        Of SGD ``eta / (1 - momentum)``, which is how far a gradient moves ``theta`` in all steps together.
        """
        if isinstance(self.optimizer, SGD):
            return self.optimizer.eta / (1 - self.optimizer.momentum)
        return self.optimizer.eta if self.form.in_time else self.optimizer.constants().step

    @property
    def memory(self) -> Memory | None:
        """How gradients are summed before their sign is taken; None where none is taken."""
        return memory_of(self.optimizer)

    @property
    def rule(self) -> str | None:
        """The rule that keeps the SDE, where it is not the optimizer's own."""
        return "normalized-linear" if self.form.in_time else None

    @property
    def moments(self) -> int:
        """How many moments the state has besides ``theta``: none for plain SGD, 2 for Adam, 1 for the others."""
        return _MOMENTS[type(self.optimizer)] + bool(getattr(self.optimizer, "momentum", 0.0))

    @property
    def kind(self) -> type[SDEState]:
        """The kind of state that the SDE has; it has no momentum of SGD, and of a sign only if it is kept in time."""
        if self.memory is not None:
            return SignumState if self.form.in_time else SGDState
        if isinstance(self.optimizer, SGD):
            return SGDState
        return RMSpropState if isinstance(self.optimizer, RMSprop) else AdamState

    @property
    def share(self) -> float:
        """The weight of the new squared gradient in ``v``: ``1 - beta2``; 1 for those that have no ``v``."""
        optimizer = self.optimizer
        if isinstance(optimizer, SGD | Signum | Lion):
            return 1.0
        return 1 - (optimizer.beta if isinstance(optimizer, RMSprop) else optimizer.beta2)

    def start(self, theta: Tensor) -> State:
        """Return the state of a new run at ``theta`` ``[P, d]``: all moments zero."""
        return (theta, *(torch.zeros_like(theta) for _ in range(self.moments)))

    def step(self, k: float | Tensor, x: State, g: Tensor) -> State:
        """Return state ``k + 1`` from state ``k`` and the stochastic gradient ``g`` at its ``theta``.

        ``k`` counts from 0, and need not be whole: a run whose batch size was changed has a fractional counter. As a
        tensor without dimensions it lets one compiled step serve all.
        """
        theta, *moments = self._constant_step(k, x, g)
        if self.schedule is not None:  # every update is theta plus eta times something
            theta = x[0] + (theta - x[0]) * self.schedule(k * self.clock)
        return (theta, *moments)

    def _constant_step(self, k: float | Tensor, x: State, g: Tensor) -> State:
        """Return state ``k + 1`` at the base learning rate."""
        opt, theta = self.optimizer, x[0]
        if isinstance(opt, Signum | Lion):
            summed, m = self.summed(x, g)
            return theta * (1 - opt.eta * opt.weight_decay) - opt.eta * torch.sign(summed), m
        kept = theta
        if opt.weight_decay and isinstance(opt, AdamW | RMSpropW):
            kept = theta * (1 - opt.eta * opt.weight_decay)
        elif opt.weight_decay:
            g = g + opt.weight_decay * theta
        if isinstance(opt, SGD):
            buffer = opt.momentum * x[1] + g if opt.momentum else g
            return (theta - opt.eta * buffer, buffer)[: 1 + self.moments]
        beta2 = opt.beta if isinstance(opt, RMSprop) else opt.beta2
        old, new = x[-1], beta2 * x[-1] + (1 - beta2) * g * g
        v = old if self.form.lag else new
        if isinstance(opt, RMSprop):
            return kept - opt.eta * g / (torch.sqrt(v + opt.eps_root) + opt.eps), new
        m = opt.beta1 * x[1] + (1 - opt.beta1) * g
        k = torch.as_tensor(k, dtype=torch.double)
        j = k + 1 - self.form.lag
        m_hat, v_hat = m / (1 - opt.beta1 ** (k + 1)), v / (1 - opt.beta2**j)
        moved = kept - opt.eta * m_hat / (torch.sqrt(v_hat + opt.eps_root) + opt.eps)
        return (moved if self.form.lag == 0 else torch.where(j == 0, theta, moved)), m, new

    def summed(self, x: State, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the sign is taken of, and the new momentum."""
        memory = self.memory
        assert memory is not None
        return (1 - memory.share) * x[1] + memory.share * g, memory.mu * x[1] + (1 - memory.mu) * g

    def iterate(
        self, x: State, steps: int, generator: torch.Generator | None = None, start: float = 0
    ) -> Iterator[tuple[float, State]]:
        """Run the chain: yield the counter ``k`` and state ``x_k`` after each of ``steps`` steps from ``x_start``."""
        for i in range(steps):
            x = self.step(start + i, x, self.oracle.sample(x[0], generator))
            yield start + i + 1, x

    def scaled(self, x: State) -> SDEState:
        """Return the state of the SDE: ``u = v / sigma^2``; momentum that the SDE does not have is left out."""
        kind = self.kind
        if kind in (RMSpropState, AdamState):
            x = (*x[:-1], x[-1] / self.oracle.sigma**2)
        return kind(*x[: len(kind._fields)])

    def unscaled(self, x: State) -> State:
        """Return the chain's state: ``v = sigma^2 u``; momentum that the SDE does not have starts at zero."""
        if self.kind in (RMSpropState, AdamState):
            return (*x[:-1], x[-1] * self.oracle.sigma**2)
        return (*x, *(torch.zeros_like(x[0]) for _ in range(self.moments + 1 - len(x))))


def rescaled(chain: Chain, kappa: float, rule: str | Rule | None = None) -> Chain:
    """Return the chain at ``kappa`` times the batch size: ``sigma / sqrt(kappa)``, hyperparameters by a scaling rule.

    Args:
        chain: the chain at the batch size it has.
        kappa: by how much to multiply the batch size.
        rule: a rule of `rootscale.rules`; the one that keeps the SDE unless given. Betas have no floors here, as the
            SDE knows none.
    """
    chosen = get_rule(chain.rule if rule is None else rule, chain.optimizer.name)
    chosen = chosen.averaged("paper") if chosen.averaging == "floor" else chosen
    _check_kappa(chosen, chain.optimizer, kappa)
    optimizer = chosen.convert_record(chain.optimizer, kappa)
    return replace(chain, optimizer=optimizer, oracle=_at(chain.oracle, chain.oracle.sigma / math.sqrt(kappa)))


def _check_kappa(rule: Rule, optimizer: SDEOptimizer, kappa: float) -> None:
    """Refuse a ``kappa`` that leaves nothing of an average, without the advice to use floors."""
    for f in fields(optimizer):
        unit, value = rule.units.get(f.metadata.get("unit", "")), getattr(optimizer, f.name)
        if unit is not None and kappa >= unit.form.limit(value) * (1 - 1e-12):
            raise ValueError(
                f"kappa={kappa:g} gives {f.name}={unit.form(value, kappa):g}; need kappa < {unit.form.limit(value):g}, "
                "or a chain of the same SDE with a smaller eta, whose averages are longer"
            )


def svag_chain(chain: Chain, ell: float) -> Chain:
    """Return SVAG's chain: the SVAG operator on the oracle, and hyperparameters of the rule at ``kappa = ell^-2``.

    A step of ``chain`` takes as long as ``ell^2`` steps of it.
    """
    svag_weights(ell)  # checks ell
    averaged = chain.form.in_time and isinstance(chain.optimizer, Signum)  # over many steps, which makes it Gaussian
    if chain.memory is not None and not averaged and ell != 1 and not is_gaussian(chain.oracle):
        raise ValueError(
            "SVAG keeps the first two moments of the noise, but a sign depends on its density at 0, which SVAG changes "
            "unless the noise is Gaussian; leave ells out, or use noise gaussian"
        )
    optimizer = get_rule(chain.rule, chain.optimizer.name).convert_record(chain.optimizer, 1 / ell**2)
    return replace(chain, optimizer=optimizer, oracle=svag(chain.oracle, ell))


def _at(oracle: Oracle, sigma: float) -> Oracle:
    if not hasattr(oracle, "at"):
        raise TypeError(f"another noise scale needs an oracle with at(sigma); {type(oracle).__name__} has none")
    at: Oracle = oracle.at(sigma)
    return at


def _beta(name: str, c: float, eta: float) -> float:
    if c * eta**2 >= 1:
        raise ValueError(f"eta={eta:.6g} gives {name}={1 - c * eta**2:.6g}; need eta < {1 / math.sqrt(c):.6g}")
    return 1 - c * eta**2


def discretise(equation: SDE, eta: float, form: Form = FORMS["paper"]) -> Chain:
    """Return the chain with learning rate ``eta`` whose SDE is ``equation``: the inverse of `sde`.

        sigma = sigma0 / eta (SGD: sigma0 / sqrt(clock)),   beta_i = 1 - c_i eta^2,   eps = eps0 / eta,
        eps_root = eps_root0 / eta^2,   decoupled weight decay = decay eta

    The oracle is taken at that noise scale. ``eta -> sqrt(kappa) eta`` is therefore the square root scaling rule. A
    sign keeps its memory; with momentum in time it has ``1 - mu = c eta`` and ``sigma = sigma0 / sqrt(eta)``.
    """
    oracle, eta = equation.oracle, positive("eta", eta)
    if not hasattr(oracle, "at"):
        raise TypeError(
            f"discretise needs an oracle with at(sigma), for other noise scales; got {type(oracle).__name__}"
        )
    if isinstance(equation, Scheduled):
        return replace(discretise(equation.base, eta, form), schedule=equation.schedule)
    if isinstance(equation, SignSDE | SaturatedSignSDE | SignFlowSDE):
        return _sign_chain(equation, eta)
    if isinstance(equation, SGDSDE):
        if equation.decay:
            raise ValueError("SGD has no decoupled weight decay here; add an L2 term to the oracle with penalised()")
        sigma = equation.sigma0 / math.sqrt(clock_of(equation, eta))
        return Chain(SGD(eta, equation.momentum), _at(oracle, sigma), form)
    at = _at(oracle, equation.sigma0 / eta)
    beta2 = _beta("beta" if isinstance(equation, RMSpropSDE) else "beta2", equation.c2, eta)
    eps, eps_root = equation.eps0 / eta, equation.eps_root0 / eta**2
    if isinstance(equation, RMSpropSDE):
        if equation.decay:
            return Chain(RMSpropW(eta, beta2, eps, eps_root, equation.decay * eta), at, form)
        return Chain(RMSprop(eta, beta2, eps, eps_root), at, form)
    beta1 = _beta("beta1", equation.c1, eta)
    if equation.decay:
        return Chain(AdamW(eta, beta1, beta2, eps, eps_root, equation.decay * eta), at, form)
    return Chain(Adam(eta, beta1, beta2, eps, eps_root), at, form)


def _sign_chain(equation: SignSDE | SaturatedSignSDE | SignFlowSDE, eta: float) -> Chain:
    """Return the chain of a sign with learning rate ``eta`` that has this SDE."""
    if isinstance(equation, SignFlowSDE):
        share, lost = equation.mix * math.sqrt(eta), equation.c * eta
        if lost >= 1 or share > 1:
            raise ValueError(f"eta={eta:.6g} gives mu={1 - lost:.6g}; need eta < {1 / equation.c:.6g}")
        oracle, decay = _at(equation.oracle, equation.sigma0 / math.sqrt(eta)), equation.decay
        memory, form = Memory(share or lost, 1 - lost), FORMS["time"]
    else:
        if isinstance(equation, SaturatedSignSDE) and not math.isclose(equation.eta, eta):
            raise ValueError(f"this SDE is that of eta={equation.eta:g} alone, got eta={eta:g}")
        memory = equation.memory if isinstance(equation, SignSDE) else Memory()
        oracle, decay, form = _at(equation.oracle, equation.sigma0 / eta), equation.decay * eta, FORMS["paper"]
    if math.isclose(memory.share, 1 - memory.mu):
        return Chain(Signum(eta, memory.mu, decay), oracle, form)
    return Chain(Lion(eta, 1 - memory.share, memory.mu, decay), oracle, form)


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
        return _sign_sde(optimizer, oracle, in_time)
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


def _sign_sde(optimizer: Signum | Lion, oracle: Oracle, in_time: bool) -> _Constant:
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
