"""Studies of a named setting: weak errors with their orders, and processes side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rootscale.format import show
from rootscale.rules import Rule, get_rule
from rootscale.theory.cases import STEPS, Setting
from rootscale.theory.discrete import Chain, rescaled, svag_chain
from rootscale.theory.engine import Paths, SaveAt
from rootscale.theory.equations import SDE
from rootscale.theory.orders import Order, fit_order
from rootscale.theory.simulate import run_chain
from rootscale.theory.solver import SCHEMES, Scheme, solve
from rootscale.theory.states import AdamState
from rootscale.theory.weak import WeakError, weak_error
from rootscale.trajectory import Trajectory

__all__ = ["Against", "Orders", "Processes", "measure_orders", "run_processes"]


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
