"""What `rootscale order` and `rootscale simulate` do: named problems, measured, as tables and figures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from rootscale.format import show
from rootscale.hparams import positive
from rootscale.report.orders import draw_orders, draw_trajectories
from rootscale.rules import get_rule
from rootscale.theory.cases import PROBLEMS, Case, case
from rootscale.theory.discrete import Chain, rescaled, svag_chain
from rootscale.theory.oracle import FAMILIES, NGOS, AnyFamily, Minibatch
from rootscale.theory.sde import SDE, SGDSDE, AdamSDE
from rootscale.theory.simulate import run_chain
from rootscale.theory.solve import SCHEMES, solve
from rootscale.theory.weak import (
    LARGEST,
    RESOLVED,
    Order,
    PreAsymptoticWarning,
    WeakError,
    fit_order,
    tests_of,
    weak_error,
)
from rootscale.trajectory import Trajectory

__all__ = ["NOISES", "Setting", "order", "simulate"]

#: The noise families by name; a mini-batch takes its size from the noise scale.
NOISES: Mapping[str, AnyFamily] = MappingProxyType({**FAMILIES, "minibatch": Minibatch(1)})
#: Numbers of steps that are tried where no learning rates are given.
STEPS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Setting:
    """An optimizer on a named problem of `rootscale.theory.cases`, with a named noise.

    Args:
        optimizer: whose chain and SDE.
        problem: the loss and covariance, and the constants of the SDE.
        noise: a row of `NOISES`; the problem's own unless given.
        time: how long, in continuous time; the problem's own unless given.
    """

    optimizer: str = "adam"
    problem: str = "cosine"
    noise: str | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        if self.noise is not None and self.noise not in NOISES:
            raise ValueError(f"noise must be one of {', '.join(NOISES)}, got {self.noise!r}")
        if isinstance(self.family, Minibatch) and not isinstance(PROBLEMS[self.problem].family, Minibatch):
            raise ValueError(
                f"mini-batches need a problem with data, got {self.problem!r}; use --problem logistic, or --noise "
                f"{' or '.join(FAMILIES)}"
            )

    def __str__(self) -> str:
        noise = self.noise or next(name for name, row in NOISES.items() if row == self.family)
        return f"{self.optimizer} on {self.problem} with {noise} noise"

    @property
    def family(self) -> AnyFamily:
        """The noise."""
        oracle = self.case.equation.oracle
        assert isinstance(oracle, NGOS)
        return oracle.family

    @property
    def case(self) -> Case:
        """The SDE, its initial state and its times."""
        made = case(self.optimizer, self.problem, None if self.noise is None else NOISES[self.noise])
        return made if self.time is None else replace(made, duration=positive("time", self.time))

    def chain(self, eta: float) -> Chain:
        """The chain at the learning rate nearest to ``eta`` whose steps fill the time, and whose batch is whole."""
        made = self.case
        steps = round(made.duration / positive("eta", eta) ** (1 if isinstance(made.equation, SGDSDE) else 2))
        if steps < 1:
            raise ValueError(f"a step at eta={eta:g} takes longer than time={made.duration:g}; use a smaller eta")
        near = range(1, 2 * steps) if isinstance(self.family, Minibatch) else ()  # they have whole numbers of samples
        for other in sorted(near, key=lambda n: abs(n - steps)):
            with suppress(ValueError):
                return made.chain(other)
        return made.chain(steps)

    def chains(self) -> list[Chain]:
        """Those of `STEPS` steps that the noise allows: a mini-batch has a whole number of samples."""
        found = []
        for steps in STEPS:
            with suppress(ValueError):
                found.append(self.case.chain(steps))
        return found


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{place} cannot be made a folder: {error.strerror}; give another one") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings that the tables say better."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreAsymptoticWarning)
        warnings.filterwarnings("ignore", message=r"\d+ of \d+ paths diverged")
        yield


def _number(value: float, error: float) -> str:
    """``value ± 1.96 standard errors``, to the digits that the error leaves."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return "-"
    half = 1.96 * error
    digits = 1 - math.floor(math.log10(half)) if half > 0 else 6
    if abs(value) < 1e-3:
        shift = math.floor(math.log10(max(abs(value), half, 1e-300)))
        scale = 10.0**shift
        digits = max(0, digits + shift)
        return f"({value / scale:.{digits}f} ± {half / scale:.{digits}f})e{shift:d}"
    return f"{value:.{max(0, digits)}f} ± {half:.{max(0, digits)}f}"


def order(
    setting: Setting,
    etas: Sequence[float] = (),
    *,
    ells: Sequence[float] = (),
    kappa: int = 1,
    rule: str | None = None,
    paths: int = 20_000,
    seed: int = 0,
    png: Path | None = None,
    console: Console | None = None,
    progress: bool | None = None,
) -> tuple[WeakError, dict[str, Order]]:
    """Measures weak errors over several step sizes, fits their orders, and prints both.

    Args:
        setting: what is measured.
        etas: the learning rates; moved to the nearest ones whose steps fill the time exactly. Those of 16, 32, 64 and
            128 steps unless given (for SVAG: of 16).
        ells: measure SVAG at these ell instead, with one eta.
        kappa: compare with ``kappa`` times the batch size under ``rule``, not with the SDE.
        rule: a rule of `rootscale.rules`; the one that keeps the dynamics unless given.
        paths: for each step size.
        seed: of the normals.
        png: a figure to write.
        console: where to print; standard output unless given.
        progress: a progress bar; by default on a terminal.
    """
    if ells and len(etas) > 1:
        raise ValueError(f"SVAG is measured over ell at one eta, got {len(etas)}; give one, e.g. --etas {etas[0]:g}")
    if ells and kappa != 1:
        raise ValueError("choose either ells (SVAG against the SDE) or kappa (two batch sizes), not both")
    if rule is not None and kappa == 1:
        raise ValueError(f"rule {rule!r} needs a second batch size to convert to; give kappa, e.g. --kappa 4")
    if kappa < 1:
        raise ValueError(f"kappa must be a whole number of at least 1, got {kappa}")
    made = setting.case
    chains = [setting.chain(eta) for eta in etas] or setting.chains()
    if not chains:
        steps = ", ".join(map(str, STEPS))
        raise ValueError(
            f"none of {steps} steps fills time={made.duration:g} with whole mini-batches; give --etas or another --time"
        )
    if ells:
        chains = [svag_chain(chains[0], ell) for ell in ells]
    if len({chain.clock for chain in chains}) < len(chains):
        given = "ells" if ells else "etas"
        values = ", ".join(show(chain.optimizer.eta) for chain in chains)
        raise ValueError(
            f"{given} must differ, also after they are moved to whole steps: there they are eta = {values}"
        )
    reference: SDE | list[Chain] = made.equation if kappa == 1 else [rescaled(chain, kappa, rule) for chain in chains]
    with _quiet():
        errors = weak_error(
            chains, reference, made.x0, [made.end], start=made.start, paths=paths, seed=seed, progress=progress
        )
        fits = {name: fit_order(errors, name) for name in errors.names}
    console = console or Console(highlight=False)
    name = get_rule(rule, setting.optimizer).name
    against = "its SDE" if kappa == 1 else f"{kappa} times the batch size (rule {name!r})"
    title = f"{'SVAG, ' if ells else ''}{setting}: weak error against {against}"
    _print_errors(console, title, errors, fits, [chain.optimizer.eta for chain in chains], ells, paths)
    if png is not None:
        rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in errors.names}
        for h, name, error, se, _ in errors.rows():
            rows[name].append((h, error, se))
        text = {name: _fit_text(fit) for name, fit in fits.items()}
        step = "$\\eta$" if setting.optimizer == "sgd" else "$\\eta^2$"
        label = f"{step}$/\\ell^2$" if ells and step != "$\\eta$" else step
        draw_orders(rows, png, fits=text, title=title, step=label, largest=LARGEST, resolved=RESOLVED)
        console.print(f"wrote {png}")
    return errors, fits


def _fit_text(fit: Order) -> str:
    return f"{fit.slope:.2f} ± {1.96 * fit.se:.2f}" if math.isfinite(fit.slope) else "unresolved"


def _print_errors(
    console: Console, title: str, errors: WeakError, fits: Mapping[str, Order], etas: Sequence[float],
    ells: Sequence[float], paths: int,
) -> None:  # fmt: skip
    console.print(title, style="bold", soft_wrap=True)
    table = Table("test function", "eta", *(["ell"] if ells else []), "step of time")
    for column in ("weak error", "diverged"):
        table.add_column(column, justify="right")
    for name in errors.names:
        rows = zip(etas, errors.h, *errors.at(name), errors.diverged, strict=True)
        for i, (eta, h, error, se, diverged) in enumerate(rows):
            value = _number(error, se) + ("  " if abs(error) >= RESOLVED * se else " ?")
            table.add_row(
                "" if i else name, show(eta), *([show(ells[i])] if ells else []), show(h), value, str(diverged)
            )
        table.add_row("", "[bold]order", *([""] if ells else []), "", f"[bold]{_fit_text(fits[name])}  ", "")
        table.add_section()
    console.print(table)
    console.print(
        f"± is 95 %, {paths:,} paths each; that of an order is statistical and does not cover curvature, which a "
        f"smaller eta reduces\n?: unresolved (below {RESOLVED:g} standard errors), not in the fit"
    )
    if any(h >= LARGEST for h in errors.h):
        console.print(f"steps of time from {LARGEST:g} on are not in the fit: too large to follow one power")
    for fit in fits.values():
        for note in fit.notes:
            console.print(f"note: {fit.name}: {note}")
    if any(errors.diverged):
        console.print(f"note: {sum(errors.diverged)} paths diverged; estimates are over the others")


def simulate(
    setting: Setting,
    eta: float,
    *,
    ells: Sequence[float] = (2, 4),
    paths: int = 10_000,
    points: int = 20,
    substeps: int = 8,
    seed: int = 0,
    png: Path | None = None,
    save: Path | None = None,
    console: Console | None = None,
    progress: bool | None = None,
) -> dict[str, Trajectory]:
    """Runs the discrete optimizer, SVAG and the SDE from one start, and prints where they are at the end.

    Args:
        setting: what is run.
        eta: the learning rate; moved to the nearest one whose steps fill the time exactly.
        ells: of SVAG.
        paths: of each process, with random numbers of its own.
        points: how often to look, at most.
        substeps: steps of the SDE's solver for each step of the discrete optimizer.
        seed: the first process uses it, every further one the next.
        png: a figure to write.
        save: a folder for the trajectories, one ``.npz`` for each process.
        console: where to print; standard output unless given.
        progress: a progress bar; by default on a terminal.
    """
    if substeps < 1 or points < 1 or paths < 2:
        raise ValueError(f"need substeps >= 1, points >= 1 and paths >= 2, got {substeps}, {points} and {paths}")
    if save is not None:
        _make_folder(save)  # before the work, not after it
    made = setting.case
    chain = setting.chain(eta)
    steps = round(made.duration / chain.clock)
    marks = sorted({round(steps * i / points) for i in range(points + 1)})
    times = [made.start + k * chain.clock for k in marks]
    functions = tests_of(made.x0)
    # Heun's step is for noise that enters m alone; see rootscale.theory.solve.
    scheme = SCHEMES["heun" if isinstance(made.equation, AdamSDE) else "euler"]
    results: dict[str, Trajectory] = {}
    with _quiet():
        for i, ell in enumerate((1, *ells)):
            label = f"discrete {setting.optimizer}" if i == 0 else f"SVAG ell={show(ell)}"
            results[label] = run_chain(
                chain if i == 0 else svag_chain(chain, ell), made.x0, functions, times, seed=seed + i, t0=made.start,
                paths=paths, keep=True, progress=progress,
            )  # fmt: skip
        results["SDE"] = solve(
            made.equation, made.x0, functions, times, h=chain.clock / substeps, seed=seed + 1 + len(ells),
            scheme=scheme, t0=made.start, paths=paths, keep=True, progress=progress,
        )  # fmt: skip
    console = console or Console(highlight=False)
    title = f"{setting}, eta={show(chain.optimizer.eta)}: {steps} steps, t={show(times[0])} to {show(times[-1])}"
    console.print(title, style="bold", soft_wrap=True)
    table = Table("test function", "process")
    for column in ("mean at the end", "diverged"):
        table.add_column(column, justify="right")
    for name in functions:
        for i, (label, result) in enumerate(results.items()):
            end = result[name]
            value = _number(end.mean[-1], end.se[-1])
            table.add_row("" if i else name, label, value, f"{result.diverged[-1]} of {paths}")
        table.add_section()
    console.print(table)
    step = "eta^2" if chain.moments else "eta"
    console.print(f"± is 95 %; the SDE was solved by {scheme.name} with steps of {step}/{substeps}")
    if any(result.diverged[-1] for result in results.values()):
        console.print("note: means are over the paths that did not diverge")
    if png is not None:
        draw_trajectories(results, png, title=title)
        console.print(f"wrote {png}")
    if save is not None:
        for label, result in results.items():
            result.save(save / f"{label.replace(' ', '-').replace('=', '-')}.npz")
        console.print(f"wrote {len(results)} trajectories to {save}")
    return results
