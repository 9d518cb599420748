"""Does the squared gradient that the SDE drops predict the gap of a batch beyond the noise scale?

Claim. Not in the paper. The mean square of a stochastic gradient is ``sigma^2 diag Sigma + (grad f)^2``. The SDE of the
paper leaves the second term out, since it vanishes as ``sigma`` grows. At ``kappa`` times the batch it is ``kappa``
times as large beside the first. Two predictions of the gap ``E loss(kappa B) - E loss(B)`` at equal samples seen:

- *equation*: the SDE with ``d u = c2 (diag Sigma + kappa (grad f)^2 / sigma_B^2 - u) dt``, solved for kappa and for 1
  on the same Brownian paths;
- *time*: the run at kappa B is the run at B, slowed down. Its clock tau obeys
  ``d tau / dt = 1 - (1 - D_kappa / D_1) (1 - exp(-c2 t))``, where
  ``D_kappa = sum_i g_i^2 / (sigma0 sqrt(u_i + (kappa - 1) g_i^2 / sigma_B^2) + eps0)`` is how fast the drift lowers the
  loss, measured on the runs at B at the time tau. The gap is ``L(tau(t)) - L(t)`` on the curve of B.

Fixed before it was run: each prediction has the sign of the measured gap and is within a factor of two
of it, at the time of the largest measured gap and at the end, in every cell that is beyond the noise scale (``kappa B``
at least ``B_noise = Tr Sigma / |grad f|^2`` at the start) and whose measured gap there is at least 3 standard errors.
Cells below the noise scale are reported and decide nothing: other errors of the order of the step may be larger there.
A prediction that holds in all of these cells becomes a function; one that fails in any of them is published as failed.

Protocol. The square root rule in the paper's form, Adam's floors unused. *Quadratic*: d = 4, curvature .5 to 1.5,
unit Gaussian noise, RMSprop and Adam with 2,048 steps a unit of time at B, sigma0 = .7, c1 = 10, c2 = 2, eps0 = .1,
from theta = 4 and 16, kappa = 4, 16, 64; 20,000 paths, seeds 0 (B), 1, 2, 3 (kappa B), 4 (equation). *Digits*: MLP
64-32-10, Adam with lr 5e-4, betas .99/.999, B = 4, torch's form, from the state after 500 and after 3,000 steps of seed
0, then 16,384 samples, kappa = 4, 16, 64; 64 replicas of the runs (seeds 10 to 13), 16 of the equation (seed 14, Heun,
256 steps; 32 were planned, and halved for the machine's sake before any run on digits had ended).

Afterwards, when the quadratics had shown that the equation fails where steps get coarse: ``--afterwards``
solves the equation by Euler-Maruyama with the steps of the chains themselves, ``kappa eta^2`` and ``eta^2``. What this
changes is the error of a step; what it leaves is the noise in ``u``. It decides nothing of the hypothesis.

Second hypothesis, written when the first had been contradicted by one gap of RMSprop at coarse steps while all of
Adam's were met, and before any run of its own: for *Adam* the equation has the sign of the gap and is within a factor
of two, at the largest gap and at the end, in every resolved cell from a quarter of the noise scale on. New settings and
seeds: Adam on the cosine problem with noise that depends on theta (d = 4, from 6, sigma0 = .5, c1 = 5, c2 = 4, eps0 =
.1, 2,048 steps, 10,000 paths, kappa = 4, 16, 64, seeds 20 to 24); digits with lr 1e-3, betas .9/.99, B = 32, from 100
steps of seed 1, 1,024 steps, kappa = 2, 4, 8, seeds 30 to 34; digits with lr 5e-4, betas .95/.999, B = 16, from 400
steps of seed 2, 1,024 steps, kappa = 4, 8, 16, seeds 40 to 44. If it holds, the equation is offered for Adam.

Cost. About ten minutes on one core. Each problem is stored when it ends, and the page is made of all that are stored.

Finding. The first hypothesis is contradicted: of 18 resolved gaps the equation predicts 17 and the slowed run 8. The
second holds: the equation predicts 16 of 16 of Adam's. So it is offered for Adam (64 replicas to 20,000 paths).

    python experiments/beyond_noise.py
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from results import Claim
from sde_digits import ADAM, common_start, network
from torch import Tensor

from rootscale import Adam
from rootscale.files import write_json
from rootscale.theory import (
    FORMS,
    NGOS,
    AdamState,
    Chain,
    Paths,
    RMSpropState,
    SaveAt,
    cosine,
    discretise,
    quadratic,
    rescaled,
    run_chain,
    sde,
    solve,
)
from rootscale.theory.equations import AdamSDE, RMSpropSDE
from rootscale.trajectory import Trajectory

Array = NDArray[np.float64]
GROUP = "beyond"
NAME = "beyond-noise"
POINTS = 16
SURE, FACTOR = 3.0, 2.0


@dataclass(frozen=True)
class Problem:
    """A run at B, where it starts, and how its gaps are measured and predicted."""

    name: str
    chain: Chain
    equation: RMSpropSDE | AdamSDE
    x0: RMSpropState | AdamState
    start: float
    duration: float
    loss: Callable[[Tensor], Tensor]
    paths: int
    equation_paths: int
    substep: int  # steps of B in a step of the solver
    seeds: tuple[int, ...]
    kappas: tuple[int, ...] = (4, 16, 64)

    def save(self, functions: dict[str, Callable[[Any], Tensor]]) -> SaveAt:
        """The recording times: whole steps at every batch size."""
        longest = self.duration / POINTS
        return SaveAt([self.start + i * longest for i in range(1, POINTS + 1)], functions, self.start)

    @property
    def noise_scale(self) -> float:
        """``B_noise / B`` at the start: the kappa at which gradient and noise are equal."""
        oracle, theta = self.chain.oracle, self.x0.theta
        ratio = oracle.variance(theta).sum() / oracle.gradient(theta).square().sum()
        return float(oracle.sigma**2 * ratio)

    def descent(self, kappa: float, x: Any) -> Tensor:
        """``D_kappa`` of a state at B."""
        equation = self.equation
        g2 = self.chain.oracle.gradient(x.theta).square()
        u = x.u + g2 * ((kappa - 1) / self.chain.oracle.sigma**2)
        result: Tensor = (g2 / (equation.sigma0 * u.sqrt() + equation.eps0)).sum(1)
        return result


@dataclass(frozen=True)
class Cell:
    """What was measured and predicted of one change of batch size, over time."""

    problem: str
    kappa: int
    noise_scale: float
    base: list[float]
    measured: list[float]
    se: list[float]
    equation: list[float]
    equation_se: list[float]
    time: list[float]

    @property
    def beyond(self) -> bool:
        return self.kappa >= self.noise_scale

    @property
    def places(self) -> tuple[int, int]:
        """The time of the largest measured gap, and the end."""
        return int(np.argmax(np.abs(self.measured))), len(self.measured) - 1

    def holds(self, prediction: str, place: int) -> bool | None:
        """Whether a prediction is within the factor; None where the gap is not resolved."""
        if abs(self.measured[place]) < SURE * self.se[place]:
            return None
        predicted: list[float] = getattr(self, prediction)
        return 1 / FACTOR <= predicted[place] / self.measured[place] <= FACTOR


def cells(problem: Problem) -> Iterator[Cell]:
    """Run the base, the larger batches and the equation."""
    chain = problem.chain
    functions: dict[str, Callable[[Any], Tensor]] = {"loss": lambda x: problem.loss(x.theta)}
    drifts = {str(kappa): functools.partial(problem.descent, kappa) for kappa in (1, *problem.kappas)}
    base = run_chain(chain, problem.x0, problem.save(functions | drifts), Paths(problem.paths, problem.seeds[0]))
    equations, rates = equation_losses(problem), drift_ratios(problem, base)
    curve = np.concatenate([[float(problem.loss(problem.x0.theta).mean())], base["loss"].mean])
    for i, kappa in enumerate(problem.kappas, start=1):
        larger = rescaled(chain, kappa, "sqrt with paper")
        runs = run_chain(larger, problem.x0, problem.save(functions), Paths(problem.paths, problem.seeds[i]))
        gap, difference = runs["loss"].mean - base["loss"].mean, equations[kappa] - equations[1]
        yield Cell(
            problem.name,
            kappa,
            problem.noise_scale,
            base["loss"].mean.tolist(),
            gap.tolist(),
            np.hypot(runs["loss"].se, base["loss"].se).tolist(),
            difference.mean(0).tolist(),
            (difference.std(0, ddof=1) / math.sqrt(len(difference))).tolist(),
            slowed(problem, curve, rates[kappa]).tolist(),
        )


def equation_losses(problem: Problem) -> dict[int, Array]:
    """The losses ``[paths, times]`` of the equation with the term, for each kappa, on the same Brownian paths."""
    found = {}
    for kappa in (1, *problem.kappas):
        equation = replace(problem.equation, signal=kappa / problem.chain.oracle.sigma**2)
        save = replace(problem.save({"loss": lambda x: problem.loss(x.theta)}), keep=True)
        scheme = "heun" if isinstance(equation, AdamSDE) else "euler"
        h = problem.chain.clock * problem.substep
        paths = Paths(problem.equation_paths, problem.seeds[4])
        found[kappa] = solve(equation, problem.x0, save, h=h, scheme=scheme, paths=paths).values["loss"]
    return found


def drift_ratios(problem: Problem, runs: Trajectory) -> dict[int, Array]:
    """``D_kappa / D_1`` on the runs at B: at the start, and at the recording times."""
    one = problem.descent(1, problem.x0).mean()
    first = {kappa: float(problem.descent(kappa, problem.x0).mean() / one) for kappa in problem.kappas}
    return {kappa: np.concatenate([[first[kappa]], runs[str(kappa)].mean / runs["1"].mean]) for kappa in problem.kappas}


def own_steps(problem: Problem) -> dict[str, list[float]]:
    """The gap of the equation, solved by Euler-Maruyama with the steps of the chains."""
    losses = {}
    for kappa in (1, *problem.kappas):
        equation = replace(problem.equation, signal=kappa / problem.chain.oracle.sigma**2)
        save = problem.save({"loss": lambda x: problem.loss(x.theta)})
        paths = Paths(problem.equation_paths, problem.seeds[4] + kappa)
        losses[kappa] = solve(equation, problem.x0, save, h=kappa * problem.chain.clock, paths=paths)["loss"].mean
    return {str(kappa): (losses[kappa] - losses[1]).tolist() for kappa in problem.kappas}


def slowed(problem: Problem, curve: Array, ratio: Array) -> Array:
    """The gap of the slowed clock: ``L(tau(t)) - L(t)`` by interpolation on the curve of B, from the start on."""
    grid, parts = np.linspace(0.0, problem.duration, len(curve)), 100
    tau, gaps, step = 0.0, [], grid[1] / parts
    for i in range(len(grid) - 1):
        for j in range(parts):
            built_up = -math.expm1(-problem.equation.c2 * (grid[i] + (j + 0.5) * step))
            tau += step * (1 - (1 - float(np.interp(tau, grid, ratio))) * built_up)
        gaps.append(float(np.interp(tau, grid, curve)) - float(curve[i + 1]))
    return np.array(gaps)


def on_quadratic(kind: str, theta0: float) -> Problem:
    d, start, duration = 4, 0.25, 1.0
    hessian = torch.linspace(0.5, 1.5, d, dtype=torch.double)
    oracle = NGOS(quadratic(hessian), 1.0)
    theta = torch.full((1, d), theta0, dtype=torch.double)
    one = torch.ones_like(theta)
    equation: RMSpropSDE | AdamSDE
    x0: RMSpropState | AdamState
    if kind == "rmsprop":
        equation, x0 = RMSpropSDE(oracle, 0.7, 2.0, 0.1), RMSpropState(theta, one)
    else:
        equation, x0 = AdamSDE(oracle, 0.7, 10.0, 2.0, 0.1), AdamState(theta, theta * hessian, one)
    chain = discretise(equation, math.sqrt(duration / 2048))

    def loss(theta: Tensor) -> Tensor:
        return (hessian * theta.square()).sum(1) / 2

    return Problem(
        f"{kind} on a quadratic from {theta0:g}", chain, equation, x0, start, duration, loss, 20_000, 20_000, 4,
        (0, 1, 2, 3, 4),
    )  # fmt: skip


def on_cosine() -> Problem:
    d, start, duration = 4, 0.25, 1.0
    oracle = NGOS(cosine(d), 1.0)
    theta = torch.full((1, d), 6.0, dtype=torch.double)
    equation = AdamSDE(oracle, 0.5, 5.0, 4.0, 0.1)
    x0 = AdamState(theta, oracle.gradient(theta), oracle.variance(theta))
    chain = discretise(equation, math.sqrt(duration / 2048))

    def loss(theta: Tensor) -> Tensor:
        return (theta.square() / 2 + theta.cos() / 2).sum(1)

    return Problem(
        "adam on cosine from 6", chain, equation, x0, start, duration, loss, 10_000, 10_000, 4, (20, 21, 22, 23, 24)
    )


def on_digits(
    optimizer: Adam, batch_size: int, before: int, seed: int, after: int, substep: int, seeds: tuple[int, ...],
    kappas: tuple[int, ...],
) -> Problem:  # fmt: skip
    oracle = network(batch_size)
    chain = Chain(optimizer, oracle, FORMS["torch"])
    equation = sde(optimizer, oracle)
    assert isinstance(equation, AdamSDE)
    return Problem(
        f"adam {optimizer.beta1}/{optimizer.beta2} on digits, B = {batch_size}, after {before:,} steps", chain,
        equation, common_start(chain, before, seed), before * chain.clock, after * chain.clock,
        lambda theta: oracle.losses(theta).mean(1), 64, 16, substep, seeds, kappas,
    )  # fmt: skip


FIRST: dict[str, Callable[[], Problem]] = {
    **{f"{kind}-{theta0}": functools.partial(on_quadratic, kind, theta0)
       for kind in ("rmsprop", "adam") for theta0 in (4, 16)},
    **{f"digits-{before}": functools.partial(
        on_digits, ADAM, 4, before, 0, 4096, 16, (10, 11, 12, 13, 14), (4, 16, 64)) for before in (500, 3000)},
}  # fmt: skip
SECOND: dict[str, Callable[[], Problem]] = {
    "cosine": on_cosine,
    "digits-short": functools.partial(
        on_digits, Adam(1e-3, 0.9, 0.99), 32, 100, 1, 1024, 4, (30, 31, 32, 33, 34), (2, 4, 8)
    ),
    "digits-mixed": functools.partial(
        on_digits, Adam(5e-4, 0.95, 0.999), 16, 400, 2, 1024, 4, (40, 41, 42, 43, 44), (4, 8, 16)
    ),
}
PROBLEMS = FIRST | SECOND
PREDICTIONS = ("equation", "time")


def tables(first: list[Cell], second: list[Cell]) -> Iterator[str]:
    """The tables, and what they say of the hypotheses."""
    yield "# Beyond the noise scale: two predictions\n"
    yield (
        "Claim, hypotheses, seeds and protocol are in the script, written before the runs. Gaps are those of the mean "
        "loss, kappa B less B, at equal samples: at the time of the largest measured gap, and at the end; ± one "
        f"standard error. *x* is prediction over measurement, shown where the measured gap is at least {SURE:g} "
        "standard errors. All times are in results/beyond-noise.json.\n"
    )
    yield "## First hypothesis\n"
    yield from table(first)
    for name in PREDICTIONS:
        for where, chosen in (("at or beyond", True), ("below", False)):
            yield tally(f"- {name}, {where} the noise scale", name, [c for c in first if c.beyond == chosen])
        yield f"- {name}: the hypothesis {verdict(name, [cell for cell in first if cell.beyond])}.\n"
    if second:
        yield "## Second hypothesis: Adam, the equation\n"
        yield from table(second)
        asked = [cell for cell in second if cell.kappa >= cell.noise_scale / 4]
        yield tally("- equation, from a quarter of the noise scale on", "equation", asked)
        yield f"- equation: the hypothesis {verdict('equation', asked)}.\n"


def table(found: list[Cell]) -> Iterator[str]:
    yield "| run | kappa | kappa B / B_noise | when | loss at B | measured | equation (x) | time (x) |"
    yield "|---" * 8 + "|"
    for cell in found:
        for when, place in zip(("largest", "end"), cell.places, strict=True):
            measured = f"{cell.measured[place]:.4g} ± {cell.se[place]:.1g}"
            values = [getattr(cell, name)[place] for name in PREDICTIONS]
            resolved = cell.holds("time", place) is not None
            texts = [f"{v:.4g}" + (f" ({v / cell.measured[place]:.2f})" if resolved else "") for v in values]
            yield (
                f"| {cell.problem} | {cell.kappa} | {cell.kappa / cell.noise_scale:.2g} | {when} | "
                f"{cell.base[place]:.4g} | {measured} | {' | '.join(texts)} |"
            )
    yield ""


def tally(title: str, name: str, found: list[Cell]) -> str:
    results = [cell.holds(name, place) for cell in found for place in cell.places]
    decided = [result for result in results if result is not None]
    return (
        f"{title}: within a factor of {FACTOR:g} in {sum(decided)} of {len(decided)} resolved gaps "
        f"({len(results) - len(decided)} unresolved)."
    )


def verdict(name: str, found: list[Cell]) -> str:
    results = [cell.holds(name, place) for cell in found for place in cell.places]
    return "is contradicted" if False in results else "holds"


def afterwards_lines(found: dict[str, list[Cell]], own: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """What was looked at when the hypothesis had been decided."""
    if not own:
        return
    yield "## Looked at afterwards\n"
    yield (
        "The equation again, solved by Euler-Maruyama with the steps of the chains, kappa eta^2 and eta^2: prediction "
        "over measurement.\n"
    )
    yield "| run | kappa | when | equation | with the chain's own steps |"
    yield "|---" * 5 + "|"
    for name, gaps in own.items():
        for cell in found[name]:
            for when, place in zip(("largest", "end"), cell.places, strict=True):
                if cell.holds("equation", place) is not None:
                    ratios = (x[place] / cell.measured[place] for x in (cell.equation, gaps[str(cell.kappa)]))
                    yield f"| {cell.problem} | {cell.kappa} | {when} | {' | '.join(f'{x:.2f}' for x in ratios)} |"


def read(path: Path) -> tuple[dict[str, list[Cell]], dict[str, dict[str, list[float]]]]:
    """Return what is stored: the cells of each problem, and what was looked at afterwards."""
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = {name: [Cell(**row) for row in stored[name]] for name in PROBLEMS if name in stored}
    return found, {name: stored[f"{name} afterwards"] for name in found if f"{name} afterwards" in stored}


def chosen(found: dict[str, list[Cell]], names: Iterable[str]) -> list[Cell]:
    """Return the cells of some problems."""
    return [cell for name in names for cell in found.get(name, [])]


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims: each prediction of the first hypothesis, and the second hypothesis."""
    found, _ = read(results / f"{NAME}.json")
    first, second = chosen(found, FIRST), chosen(found, SECOND)
    beyond = [cell for cell in first if cell.beyond]
    near = [cell for cell in second if cell.kappa >= cell.noise_scale / 4]
    asked = (
        ("the SDE with its squared gradient", "equation", beyond),
        ("a run that is slowed down", "time", beyond),
        ("and for Adam alone the SDE with its squared gradient", "equation", near),
    )
    rows = []
    for title, name, cells in asked:
        words = f"**{verdict(name, cells).removeprefix('is ')}**{tally('', name, cells)}" if cells else ""
        claim = f"Beyond the noise scale {title} predicts the gap within a factor of two"
        rows.append(Claim(claim, words, "64 to 20,000 paths" if cells else "", f"{NAME}.json", __file__))
    return rows


def page(results: Path) -> str:
    """Return all tables in Markdown."""
    found, own = read(results / f"{NAME}.json")
    return "\n".join([*tables(chosen(found, FIRST), chosen(found, SECOND)), *afterwards_lines(found, own), ""])


def main() -> None:
    """Make what is asked for, and print everything that is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=Path("results"), help="of beyond-noise.json")
    parser.add_argument(
        "--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS), help="which runs; without names nothing is run"
    )
    parser.add_argument("--afterwards", action="store_true", help="solve the equation with the steps of the chains")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.out / f"{NAME}.json"
    for name in arguments.only:
        problem = PROBLEMS[name]()
        key = f"{name} afterwards" if arguments.afterwards else name
        made = own_steps(problem) if arguments.afterwards else [asdict(cell) for cell in cells(problem)]
        print(key, "done", flush=True)
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}  # others may store beside this
        write_json(file, {**stored, key: made})
    print(page(arguments.out))


if __name__ == "__main__":
    main()
