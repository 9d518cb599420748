"""Ready-made settings in which a theorem can be watched: an SDE, where it starts, and for how long it runs.

The numbers are data of `rootscale.theory_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory import problems
from rootscale.theory.discrete import Chain, discretise
from rootscale.theory.engine import SaveAt
from rootscale.theory.equations import SDE, SGDSDE, AdamSDE, RateSchedule, RMSpropSDE, Scheduled, clock_of, eta_of
from rootscale.theory.families import FAMILIES, AnyFamily, Minibatch
from rootscale.theory.memory import Memory
from rootscale.theory.oracle import NGOS
from rootscale.theory.sign_equations import SignFlowSDE, SignSDE, noise_density
from rootscale.theory.states import AdamState, RMSpropState, SGDState, SignumState
from rootscale.theory_settings import CONSTANT, MINIBATCH, OPTIMIZERS, PROBLEMS, Constants, Scale

__all__ = ["NOISES", "STEPS", "Case", "Setting", "case"]

#: The noise families by name; a mini-batch takes its size from the noise scale.
NOISES: Mapping[str, AnyFamily] = MappingProxyType({**FAMILIES, MINIBATCH: Minibatch(1)})
#: Numbers of steps that are tried where no learning rates are given.
STEPS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Case:
    """An SDE, its initial state ``x0`` (tensors ``[1, d]``, float64) at time ``start``, and how long to run it."""

    equation: SDE
    x0: SGDState | RMSpropState | AdamState | SignumState
    start: float
    duration: float

    @property
    def end(self) -> float:
        """The last time."""
        return self.start + self.duration

    @property
    def save(self) -> SaveAt:
        """The usual test functions at the end."""
        return SaveAt([self.end], start=self.start)

    def chain(self, steps: int) -> Chain:
        """Return the chain that takes ``steps`` steps for the duration."""
        return discretise(self.equation, eta_of(self.equation, self.duration / positive("steps", steps)))


def _equation(scale: Scale, row: Constants, oracle: NGOS) -> SDE:
    """Return the SDE with these constants, in the units of the problem."""
    if row.memory is not None:
        memory = Memory(*row.memory)
        return SignSDE(oracle, scale.sigma0, memory, density=noise_density(oracle, alone=memory.empty))
    if row.c is not None:
        if row.mix:
            noise_density(oracle, alone=False)  # refuses other noise
        return SignFlowSDE(oracle, scale.sigma0, row.c / scale.duration, row.mix)
    decay = row.decay / scale.duration
    if row.c2 is None:
        return SGDSDE(oracle, scale.sigma0, momentum=row.momentum)
    c2, eps0 = row.c2 / scale.duration, row.eps0 * scale.sigma0 * scale.size
    if row.c1 is None:
        return RMSpropSDE(oracle, scale.sigma0, c2=c2, eps0=eps0, decay=decay)
    return AdamSDE(oracle, scale.sigma0, c1=row.c1 / scale.duration, c2=c2, eps0=eps0, decay=decay)


def _state(scale: Scale, row: Constants, theta: float, d: int) -> SGDState | RMSpropState | AdamState | SignumState:
    """Return the initial state, in the units of the problem."""

    def full(value: float) -> Tensor:
        return torch.full((1, d), value, dtype=torch.double)

    if row.u is None:
        return SGDState(full(theta)) if row.m is None else SignumState(full(theta), full(row.m * scale.gradient))
    u = full(row.u * scale.size**2)
    return RMSpropState(full(theta), u) if row.m is None else AdamState(full(theta), full(row.m * scale.gradient), u)


def case(optimizer: str, problem: str = "cosine", family: AnyFamily | None = None) -> Case:
    """Return the setting for this optimizer on this problem, by their names in `rootscale.theory_settings`.

    >>> chain = case("adam").chain(steps=64)
    >>> chain.optimizer.eta, chain.optimizer.beta1, chain.optimizer.beta2, chain.oracle.sigma
    (0.125, 0.9765625, 0.96875, 5.6)

    Args:
        optimizer: whose SDE.
        problem: the loss and covariance.
        family: the noise; that of the problem unless given (mini-batches for ``logistic``, else Gaussian).
    """
    for what, name, table in (("optimizer", optimizer, OPTIMIZERS), ("problem", problem, PROBLEMS)):
        if name not in table:
            raise ValueError(f"{what} must be one of {', '.join(table)}, got {name!r}")
    scale, row = PROBLEMS[problem], OPTIMIZERS[optimizer]
    oracle = NGOS(getattr(problems, problem)(*scale.arguments), 1.0, family or NOISES[scale.noise])
    x0 = _state(scale, row, scale.theta0.get(optimizer, 1.0), oracle.d)
    return Case(_equation(scale, row, oracle), x0, row.start * scale.duration, scale.duration)


@dataclass(frozen=True)
class Setting:
    """An optimizer on a named problem with a named noise, all of `rootscale.theory_settings`.

    Args:
        optimizer: whose chain and SDE.
        problem: the loss and covariance, and the constants of the SDE.
        noise: one of `NOISES`; the problem's own unless given.
        time: how long, in continuous time; the problem's own unless given.
        schedule: of the learning rate over that time, one of `rootscale.theory_settings.SCHEDULES`.
    """

    optimizer: str = "adam"
    problem: str = "cosine"
    noise: str | None = None
    time: float | None = None
    schedule: str = CONSTANT

    def __post_init__(self) -> None:
        if self.noise is not None and self.noise not in NOISES:
            raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {self.noise!r}")
        positive("time", self.case.duration)  # making the case checks the names

    def __str__(self) -> str:
        schedule = "" if self.schedule == CONSTANT else f", {self.schedule} schedule"
        return f"{self.optimizer} on {self.problem} with {self.noise or PROBLEMS[self.problem].noise} noise{schedule}"

    @property
    def case(self) -> Case:
        """The SDE, its initial state and its times."""
        made = case(self.optimizer, self.problem, None if self.noise is None else NOISES[self.noise])
        made = made if self.time is None else replace(made, duration=positive("time", self.time))
        if self.schedule == CONSTANT:
            return made
        schedule = RateSchedule(self.schedule, made.start, made.duration)
        return replace(made, equation=Scheduled(made.equation, schedule))  # type: ignore[arg-type]

    def chain(self, eta: float) -> Chain:
        """Return the chain at the nearest learning rate whose steps fill the time, and whose batch is whole."""
        made = self.case
        steps = round(made.duration / clock_of(made.equation, positive("eta", eta)))
        if steps < 1:
            raise ValueError(f"a step at eta={eta:g} takes longer than time={made.duration:g}; use a smaller eta")
        if (self.noise or PROBLEMS[self.problem].noise) != MINIBATCH:
            return made.chain(steps)
        longest = made.equation.sigma0**2  # how long a step is where a batch has one sample
        most = round(made.duration / longest)
        if steps > most:
            raise ValueError(
                f"mini-batches have at least one sample, which needs eta >= {eta_of(made.equation, longest):g} here, "
                f"got eta={eta:g}; SVAG goes further: give ells, and an eta of at least that"
            )
        for other in sorted(range(1, most + 1), key=lambda n: abs(n - steps)):
            with suppress(ValueError):  # a batch has a whole number of samples
                return made.chain(other)
        raise ValueError(f"no number of steps fills time={made.duration:g} with whole mini-batches; give another time")

    def chains(self) -> list[Chain]:
        """Return those of `STEPS` steps that the noise allows: a mini-batch has a whole number of samples."""
        found = []
        for steps in STEPS:
            with suppress(ValueError):
                found.append(self.case.chain(steps))
        return found
