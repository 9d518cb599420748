"""Ready-made settings in which a theorem can be watched, and what the two commands compute of them.

A setting is an SDE, where it starts, and for how long it runs; the numbers are data of `rootscale.theory_settings`.
`measure_orders` and `run_processes` give weak errors with their orders, and processes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from rootscale.format import show
from rootscale.hparams import positive
from rootscale.rules import Rule, get_rule
from rootscale.theory.discrete import (
    SDE,
    Chain,
    RateSchedule,
    Scheduled,
    clock_of,
    discretise,
    eta_of,
    rescaled,
    svag_chain,
)
from rootscale.theory.engine import Paths, SaveAt
from rootscale.theory.equations import SGDSDE, AdamSDE, AdamState, RMSpropSDE, RMSpropState, SGDState, SignumState
from rootscale.theory.families import FAMILIES, AnyFamily, Minibatch
from rootscale.theory.oracle import NGOS, Problem, cosine, linear, logistic, quadratic
from rootscale.theory.signs import Memory, SignFlowSDE, SignSDE, noise_density
from rootscale.theory.solver import SCHEMES, Scheme, run_chain, solve
from rootscale.theory.weak import Order, WeakError, fit_order, weak_error
from rootscale.theory_settings import CONSTANT, MINIBATCH, OPTIMIZERS, PROBLEMS, Constants, Scale
from rootscale.trajectory import Trajectory

#: The noise families by name; a mini-batch takes its size from the noise scale.
NOISES: Mapping[str, AnyFamily] = MappingProxyType({**FAMILIES, MINIBATCH: Minibatch(1)})
_PROBLEMS: Mapping[str, Callable[..., Problem]] = {
    "cosine": cosine, "quadratic": quadratic, "linear": linear, "logistic": logistic,
}  # fmt: skip
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
    oracle = NGOS(_PROBLEMS[problem](*scale.arguments), 1.0, family or NOISES[scale.noise])
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


@dataclass(frozen=True)
class Against:
    """What a chain is compared with: its SDE, or the chain at another batch size.

    Args:
        kappa: how many times the batch size; 1 is the SDE.
        rule: that converts the hyperparameters; the one that keeps the dynamics unless given.
    """

    kappa: int = 1
    rule: str | Rule | None = None

    def __post_init__(self) -> None:
        if self.kappa < 1:
            raise ValueError(f"kappa must be a whole number of at least 1, got {self.kappa}")
        if self.rule is not None and self.kappa == 1:
            name = self.rule if isinstance(self.rule, str) else self.rule.name
            raise ValueError(f"rule {name!r} needs a second batch size to convert to; give a kappa above 1, e.g. 4")

    def words(self, chain: Chain) -> str:
        """Return what it is, for a title."""
        if self.kappa == 1:
            return "its SDE"
        rule = get_rule(chain.rule if self.rule is None else self.rule, chain.optimizer.name)
        return f"{self.kappa} times the batch size (rule {rule.name!r})"


@dataclass(frozen=True)
class Orders:
    """Weak errors of a setting over several step sizes, and the orders they fall with.

    Args:
        setting: what was measured.
        against: what it was compared with.
        chains: one for each step size.
        ells: of SVAG, one for each chain; none without SVAG.
        errors: the weak errors.
        fits: the fitted orders, by test function.
    """

    setting: Setting
    against: Against
    chains: tuple[Chain, ...]
    ells: tuple[float, ...]
    errors: WeakError
    fits: Mapping[str, Order]

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        what = self.against.words(self.chains[0])
        return f"{'SVAG, ' if self.ells else ''}{self.setting}: weak error against {what}"


def measure_orders(
    setting: Setting,
    etas: Sequence[float] = (),
    *,
    ells: Sequence[float] = (),
    against: Against = Against(),  # noqa: B008  (frozen)
    paths: Paths = Paths(20_000),  # noqa: B008  (frozen)
) -> Orders:
    """Measure weak errors over several step sizes, and fit their orders.

    Args:
        setting: what is measured.
        etas: the learning rates; moved to the nearest ones whose steps fill the time exactly. Those of 16, 32, 64 and
            128 steps unless given (for SVAG: of 16).
        ells: measure SVAG at these ell instead, with one eta.
        against: the SDE, or another batch size.
        paths: for each step size. Paths that diverge are counted in the errors, without a warning.
    """
    if ells and len(etas) > 1:
        raise ValueError(f"SVAG is measured over ells at one of etas, got {len(etas)}; give one, e.g. {etas[0]:g}")
    if ells and against.kappa != 1:
        raise ValueError("choose either ells (SVAG against the SDE) or kappa (two batch sizes), not both")
    made = setting.case
    chains = [setting.chain(eta) for eta in etas] or setting.chains()
    if not chains:
        steps = ", ".join(map(str, STEPS))
        raise ValueError(
            f"none of {steps} steps fills time={made.duration:g} with whole mini-batches; give etas or another time"
        )
    if ells:
        chains = [svag_chain(chains[0], ell) for ell in ells]
    if len({chain.clock for chain in chains}) < len(chains):
        given = "ells" if ells else "etas"
        values = ", ".join(show(chain.optimizer.eta) for chain in chains)
        raise ValueError(
            f"{given} must differ, also after they are moved to whole steps: there they are eta = {values}"
        )
    reference: SDE | list[Chain] = made.equation
    if against.kappa != 1:
        reference = [rescaled(chain, against.kappa, against.rule) for chain in chains]
    errors = weak_error(chains, reference, made.x0, made.save, paths=replace(paths, warn=False))
    fits = {name: fit_order(errors, name) for name in errors.names}
    return Orders(setting, against, tuple(chains), tuple(ells), errors, fits)


@dataclass(frozen=True)
class Processes:
    """The discrete optimizer, SVAG and the SDE from one start.

    Args:
        setting: what was run.
        chain: the discrete optimizer.
        scheme: how the SDE was solved.
        trajectories: by process.
    """

    setting: Setting
    chain: Chain
    scheme: Scheme
    trajectories: Mapping[str, Trajectory]

    @property
    def title(self) -> str:
        """What was run, in a line."""
        times = next(iter(self.trajectories.values())).times
        steps = round(self.setting.case.duration / self.chain.clock)
        return (
            f"{self.setting}, eta={show(self.chain.optimizer.eta)}: {steps} steps, t={show(times[0])} to "
            f"{show(times[-1])}"
        )


def run_processes(
    setting: Setting,
    eta: float,
    *,
    ells: Sequence[float] = (2, 4),
    points: int = 20,
    substeps: int = 8,
    paths: Paths = Paths(10_000),  # noqa: B008  (frozen)
) -> Processes:
    """Run the discrete optimizer, SVAG and the SDE from one start.

    Args:
        setting: what is run.
        eta: the learning rate; moved to the nearest one whose steps fill the time exactly.
        ells: of SVAG.
        points: how often to look, at most.
        substeps: steps of the SDE's solver for each step of the discrete optimizer.
        paths: of each process. The first uses the seed, every further one the next.
    """
    if substeps < 1 or points < 1 or (paths.count or 0) < 2:
        raise ValueError(f"need substeps >= 1, points >= 1 and paths >= 2, got {substeps}, {points} and {paths.count}")
    made, chain = setting.case, setting.chain(eta)
    steps = round(made.duration / chain.clock)
    marks = sorted({round(steps * i / points) for i in range(points + 1)})
    save = SaveAt([made.start + k * chain.clock for k in marks], start=made.start, keep=True)
    # Heun's step is for noise that enters m alone; see rootscale.theory.solver.
    scheme = SCHEMES["heun" if made.equation.kind is AdamState else "euler"]
    chains = {f"discrete {setting.optimizer}": chain}
    chains |= {f"SVAG ell={show(ell)}": svag_chain(chain, ell) for ell in ells}

    def own(i: int) -> Paths:
        report, every = paths.progress, len(chains) + 1
        progress = None if report is None else lambda share: report((i + share) / every)
        return replace(paths, seed=paths.seed + i, warn=False, progress=progress)

    results = {label: run_chain(one, made.x0, save, own(i)) for i, (label, one) in enumerate(chains.items())}
    h = chain.clock / substeps
    results["SDE"] = solve(made.equation, made.x0, save, h=h, scheme=scheme, paths=own(len(chains)))
    return Processes(setting, chain, scheme, results)
