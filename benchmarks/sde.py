"""Speed of the SDE solver against torchsde and diffrax, and evaluations that a weak error takes.

    python benchmarks/sde.py [--repeats 7] [--quick] [--threads 2]

The problem is the RMSprop SDE (and Adam's) on a quadratic with diagonal noise, d = 10, 20,000 paths, 200 steps,
float32; the cost is that of the whole call. Contenders take turns, and medians are compared, so that load on the
machine hits all of them; the time of all threads on the processor stands beside it. On a busy machine torch gets one
thread (threads that wait for each other lose far more than their share; XLA's cannot be set). The last line holds the
ratios: of torchsde's fastest method and of diffrax's Euler to the compiled solver (the smaller of RMSprop and Adam),
and of independent sampling to `weak_error` (the smallest of all test functions, at eta^2 = 1/256).
Peers: pip install "rootscale[bench-sde]".
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rootscale.lab.provenance import processor
from rootscale.theory import (
    NGOS,
    AdamState,
    Paths,
    RMSpropState,
    SaveAt,
    cosine,
    discretise,
    quadratic,
    run_chain,
    solve,
    weak_error,
)
from rootscale.theory.discrete import SDE
from rootscale.theory.engine import State, tests_of
from rootscale.theory.equations import AdamSDE, RMSpropSDE
from rootscale.theory.solver import SCHEMES, Scheme

PATHS, D, STEPS = 20_000, 10, 200
SIGMA0, C1, C2, EPS0, T0 = 1.0, 2.0, 1.0, 0.1, 0.1
HESSIAN, VARIANCE = np.linspace(0.5, 1.5, D), np.linspace(0.5, 2.0, D)
#: At least so many times faster: compiled and eager, against torchsde and diffrax.
TARGETS = {"compiled": (40.0, 18.0), "eager": (8.0, 3.5)}
NAIVE_TARGET = 1000.0
#: eta^2 of the chains whose weak error is measured; the last is the one that counts. The gain grows as 1 / eta^2.
CLOCKS = (1 / 64, 1 / 256)

Result = tuple[float, float]
Contender = Callable[[], Result]


def equation(name: str, hessian: Any = HESSIAN, variance: Any = VARIANCE) -> tuple[SDE, State, float]:
    """The SDE, its initial state and initial time."""
    h, v = (torch.as_tensor(x, dtype=torch.float32) for x in (hessian, variance))
    oracle, d = NGOS(quadratic(h, covariance=v), 1.0), len(h)
    one, zero = torch.ones(1, d), torch.zeros(1, d)
    if name == "RMSprop":
        return RMSpropSDE(oracle, SIGMA0, C2, EPS0), RMSpropState(one, one), 0.0
    return AdamSDE(oracle, SIGMA0, C1, C2, EPS0), AdamState(one, zero, one), T0


def summary(theta: Tensor | np.ndarray[Any, Any]) -> Result:
    """Mean of the last coordinate and its standard error, by which contenders must agree."""
    last = np.asarray(theta, np.float64)[:, -1]
    return float(last.mean()), float(last.std() / math.sqrt(len(last)))


def ours(name: str, compile: bool) -> Contender:
    sde, x0, t0 = equation(name)
    functions = {"theta": lambda x: x.theta[:, -1]}

    def run() -> Result:
        paths = Paths(PATHS, seed=1, compile=compile)
        mean, se = solve(sde, x0, SaveAt([t0 + 1.0], functions, t0), h=1 / STEPS, paths=paths)["theta"]
        return float(mean[0]), float(se[0])

    return run


def torchsde_contender(name: str, **options: Any) -> Contender:
    torchsde = importlib.import_module("torchsde")
    lam, var = (torch.as_tensor(x, dtype=torch.float32) for x in (HESSIAN, VARIANCE))
    adam = name == "Adam"

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            if not adam:
                theta, u = y.chunk(2, 1)
                return torch.cat((-lam * theta / (SIGMA0 * u.sqrt() + EPS0), C2 * (var - u)), 1)
            theta, m, u = y.chunk(3, 1)
            gamma1, root2 = -torch.expm1(-C1 * t), torch.sqrt(-torch.expm1(-C2 * t))
            rate = root2 / gamma1 / (SIGMA0 * u.sqrt() + EPS0 * root2)
            return torch.cat((-rate * m, C1 * (lam * theta - m), C2 * (var - u)), 1)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            if not adam:
                _, u = y.chunk(2, 1)
                return torch.cat((-SIGMA0 * var.sqrt() / (SIGMA0 * u.sqrt() + EPS0), torch.zeros_like(u)), 1)
            zero = torch.zeros(y.shape[0], D)
            return torch.cat((zero, (SIGMA0 * C1 * var.sqrt()).expand_as(zero), zero), 1)

    _, x0, t0 = equation(name)
    start = torch.cat([part.expand(PATHS, -1) for part in x0], 1)

    def run() -> Result:
        with torch.no_grad():
            y = torchsde.sdeint(Equation(), start, torch.tensor([t0, t0 + 1.0]), dt=1 / STEPS, **options)
        return summary(y[-1, :, :D])

    return run


def diffrax_contender(name: str) -> Contender:
    jax, jnp, diffrax = (importlib.import_module(module) for module in ("jax", "jax.numpy", "diffrax"))
    lam, var = (jnp.asarray(x, dtype=jnp.float32) for x in (HESSIAN, VARIANCE))
    adam, shape = name == "Adam", (PATHS, D)

    def drift(t: Any, y: Any, _: Any) -> Any:
        if not adam:
            theta, u = y
            return -lam * theta / (SIGMA0 * jnp.sqrt(u) + EPS0), C2 * (var - u)
        theta, m, u = y
        gamma1, root2 = -jnp.expm1(-C1 * t), jnp.sqrt(-jnp.expm1(-C2 * t))
        rate = root2 / gamma1 / (SIGMA0 * jnp.sqrt(u) + EPS0 * root2)
        return -rate * m, C1 * (lam * theta - m), C2 * (var - u)

    def diffusion(t: Any, y: Any, _: Any) -> Any:
        return SIGMA0 * C1 * jnp.sqrt(var) if adam else -SIGMA0 * jnp.sqrt(var) / (SIGMA0 * jnp.sqrt(y[1]) + EPS0)

    class DiagonalNoise(diffrax.ControlTerm):  # type: ignore[name-defined,misc]
        """One noise for each coordinate of theta (RMSprop) or m (Adam): no product with a matrix."""

        def prod(self, vf: Any, control: Any) -> Any:
            noise, zero = vf * control, jnp.zeros(shape)
            return (zero, noise, zero) if adam else (noise, zero)

    _, x0, t0 = equation(name)
    start = tuple(jnp.broadcast_to(jnp.asarray(part.numpy()), shape) for part in x0)

    # One solve of all paths is faster here than a vmap of solves; ForwardMode is what UnsafeBrownianPath allows.
    def integrate(key: Any) -> Any:
        brownian = diffrax.UnsafeBrownianPath(shape=shape, key=key)
        terms = diffrax.MultiTerm(diffrax.ODETerm(drift), DiagonalNoise(diffusion, brownian))
        return diffrax.diffeqsolve(
            terms, diffrax.Euler(), t0, t0 + 1.0, 1 / STEPS, start, saveat=diffrax.SaveAt(t1=True),
            adjoint=diffrax.ForwardMode(), max_steps=STEPS + 2,
        ).ys[0]  # fmt: skip

    jitted, keys = jax.jit(integrate), iter(range(1_000_000))

    def run() -> Result:
        return summary(np.asarray(jitted(jax.random.key(next(keys))))[-1])

    return run


@dataclass
class Times:
    """Seconds on the clock and, of all threads, on the processor."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, run: Callable[[], Any]) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        result = run()
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)
        return result

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


def interleaved(contenders: Mapping[str, Contender], repeats: int) -> dict[str, Times]:
    """Times of each contender, in turns; the first turn (compilation) is not counted.

    Nobody is fast by solving something else: in the first turn results are compared.
    """
    times = {name: Times() for name in contenders}
    results = {name: run() for name, run in contenders.items()}
    (first, (mean, se)), *others = results.items()
    for name, (other, other_se) in others:
        if abs(other - mean) > 5 * math.hypot(se, other_se):
            raise SystemExit(f"{name} gives {other:.4f} ± {other_se:.4f}, {first} {mean:.4f} ± {se:.4f}")
    for _ in range(repeats):
        for name, run in contenders.items():
            times[name].add(run)
    return times


@dataclass(frozen=True)
class Speed:
    """Ratios of a peer's median to ours."""

    torchsde: float
    diffrax: float


def speed(name: str, repeats: int, console: Console) -> dict[str, Speed]:
    """Times all contenders on one SDE; the ratios of our compiled and eager solver."""
    contenders = {
        "compiled": ours(name, True),
        "eager": ours(name, False),
        "diffrax Euler": diffrax_contender(name),
        "torchsde euler": torchsde_contender(name, method="euler"),
    }
    times = interleaved(contenders, repeats)
    # Its default method is so much slower that it gets one turn, after the others.
    times["torchsde default (srk)"] = Times()
    times["torchsde default (srk)"].add(torchsde_contender(name))
    table = Table(
        "", "median s", "range s", "/ compiled", "/ eager", "processor s", "/ compiled",
        title=f"{name} SDE, d={D}, {PATHS} paths, {STEPS} steps",
    )  # fmt: skip
    busy = {who: statistics.median(t.processor) for who, t in times.items()}
    for who, t in times.items():
        ratios = (f"{t.median / times[mine].median:.1f}" for mine in TARGETS)
        spread = f"{min(t.wall):.4f} - {max(t.wall):.4f}"
        table.add_row(
            who, f"{t.median:.4f}", spread, *ratios, f"{busy[who]:.4f}", f"{busy[who] / busy['compiled']:.1f}"
        )
    console.print(table)
    peers = min(t.median for who, t in times.items() if "torchsde" in who), times["diffrax Euler"].median
    return {mine: Speed(*(peer / times[mine].median for peer in peers)) for mine in TARGETS}


def scaling(repeats: int, quick: bool, console: Console) -> float:
    """Cost from 1e3 to 1e7 path-coordinates, along each of paths, d and steps; the largest departure from a line."""

    def cost(paths: int, d: int, steps: int) -> float:
        sde, x0, t0 = equation("RMSprop", np.linspace(0.5, 1.5, d), np.ones(d))
        functions = {"theta": lambda x: x.theta[:, -1]}
        seconds = []
        for turn in range(repeats + 1):
            begun = time.perf_counter()
            save = SaveAt([steps / STEPS], functions, t0)
            solve(sde, x0, save, h=1 / STEPS, paths=Paths(paths, seed=1, compile=True))
            if turn:
                seconds.append(time.perf_counter() - begun)
        return statistics.median(seconds)

    top = 6 if quick else 7
    rows: dict[str, list[tuple[int, int, int]]] = {
        "paths": [(10**k // 10, 10, 40) for k in range(3, top + 1)],
        "d": [(1000, 10**k // 1000, 40) for k in range(3, top + 1)],
        "steps": [(10_000, 10, 4 * 10**k) for k in range(1, top - 3)],
    }
    table = Table(
        "varied", "paths", "d", "steps", "s", "ns / update", "line", title="cost: a fixed cost per step, and a line"
    )
    worst = 0.0
    for what, sizes in rows.items():
        work = np.array([math.prod(size) for size in sizes], float)
        seconds = np.array([cost(*size) for size in sizes])
        # a + b work, with relative weights: a is the call of a step, b what counts
        weights = 1 / seconds
        design = np.stack((np.ones_like(work), work), 1)
        fit, *_ = np.linalg.lstsq(design * weights[:, None], np.ones_like(work), rcond=None)
        line = design @ fit
        for size, s, w, on_line in zip(sizes, seconds, work, line, strict=True):
            table.add_row(what, *map(str, size), f"{s:.4f}", f"{1e9 * s / w:.2f}", f"{on_line:.4f}")
        worst = max(worst, float(np.max(np.abs(seconds / line - 1))))
    console.print(table)
    return worst


def weak_contest(quick: bool, console: Console) -> float:
    """Evaluations of the oracle that independent sampling needs, over those of `weak_error`: the smallest ratio."""
    oracle = NGOS(cosine(), 1.0)
    cases: dict[str, tuple[SDE, State, float]] = {
        "RMSprop": (RMSpropSDE(oracle, 0.7, 2.0, 0.3), RMSpropState(*_column(1.0, 0.3)), 0.0),
        "Adam": (AdamSDE(oracle, 0.7, 3.0, 2.0, 0.3), AdamState(*_column(1.0, 0.2, 0.3)), 0.5),
    }
    paths = 5_000 if quick else 20_000
    table = Table(
        "", "eta^2", "function", "error ± s.e.", "bias", "finer", "variance", "evaluations", "sampling", "ratio",
        title="weak error of the chain at t = 1, and what independent sampling would take",
    )  # fmt: skip
    least = dict.fromkeys(CLOCKS, math.inf)
    for name, (sde, x0, t0) in cases.items():
        for h in CLOCKS:
            for row, ratio in _weak_rows(name, sde, x0, t0, h, paths):
                table.add_row(*row)
                least[h] = min(least[h], ratio)
    console.print(table)
    console.print("smallest ratio: " + ", ".join(f"{ratio:.0f} at eta^2 = 1/{1 / h:.0f}" for h, ratio in least.items()))
    return least[CLOCKS[-1]]


def _column(*values: float) -> list[Tensor]:
    return [torch.tensor([[value]], dtype=torch.float64) for value in values]


def _weak_rows(
    name: str, sde: SDE, x0: State, t0: float, h: float, paths: int
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Both at the same standard error, and at the same bias: that of the reference solution.

    The bias of Euler-Maruyama with steps h/n is ``B1 / n``; that of our combination ``B2`` is measured by halving its
    step and taken two standard errors too large, which favours sampling. ``n = B1 / B2`` is then what sampling needs,
    at the cost of n evaluations for each step of the chain. Its paths are shared out between chain and SDE at best.
    """
    scheme = SCHEMES["heun-richardson" if isinstance(sde, AdamSDE) else "richardson"]
    functions, t1, steps = tests_of(x0), t0 + 1.0, round(1 / h)
    chain = discretise(sde, math.sqrt(h))
    save = SaveAt([t1], functions, t0)
    ours = weak_error(chain, sde, x0, save, paths=Paths(paths, seed=3)).errors[0]
    stages = 2 if isinstance(sde, AdamSDE) else 1  # Heun evaluates twice
    mine = paths * steps * (1 + stages * sum(n for n, _ in scheme.levels))
    many = 20 * paths
    halved = Scheme("halved", scheme.step, _minus(scheme, 2), scheme.order)
    plain = Scheme("plain", SCHEMES["euler"].step, ((1, 1.0), (2, -1.0)), 1)
    bias2 = solve(sde, x0, save, h=h, scheme=halved, paths=Paths(many, seed=4))
    bias1 = solve(sde, x0, save, h=h, scheme=plain, paths=Paths(many, seed=5))
    spread_sde = solve(sde, x0, save, h=h, paths=Paths(paths, seed=6))
    spread_chain = run_chain(chain, x0, save, Paths(paths, seed=7))
    for function in functions:
        error, se = (float(x[0]) for x in ours[function])
        shrink = 1 - 2.0**-scheme.order
        b2 = (abs(bias2[function].mean[0]) + 2 * bias2[function].se[0]) / shrink
        b1 = (abs(bias1[function].mean[0]) - 2 * bias1[function].se[0]) * 2
        finer = max(1.0, float(b1 / b2))
        sd = [float(s[function].se[0]) * math.sqrt(paths) for s in (spread_chain, spread_sde)]
        # cost N1 c1 + N2 c2 subject to sd1^2/N1 + sd2^2/N2 = se^2 is least at (sd1 sqrt(c1) + sd2 sqrt(c2))^2 / se^2
        sampling = steps * (sd[0] + sd[1] * math.sqrt(finer)) ** 2 / se**2
        variance = (sd[0] ** 2 + sd[1] ** 2) / (paths * se**2)
        row = (
            name, f"1/{1 / h:.0f}", function, f"{error:.6f} ± {se:.6f}", f"{b2:.1e}", f"{finer:.1f}",
            f"{variance:.0f}", f"{mine:.1e}", f"{sampling:.1e}", f"{sampling / mine:.0f}",
        )  # fmt: skip
        yield row, sampling / mine


def _minus(scheme: Scheme, factor: int) -> tuple[tuple[int, float], ...]:
    """The levels of the scheme minus those of the scheme at a step ``factor`` times smaller."""
    weights: dict[int, float] = {}
    for n, weight in scheme.levels:
        weights[n] = weights.get(n, 0.0) + weight
        weights[factor * n] = weights.get(factor * n, 0.0) - weight
    return tuple((n, weight) for n, weight in weights.items() if weight)


def turns(arguments: argparse.Namespace) -> int:
    return 3 if arguments.quick else int(arguments.repeats)


def part_speed(arguments: argparse.Namespace, console: Console) -> dict[str, float]:
    speeds = {name: speed(name, turns(arguments), console) for name in ("RMSprop", "Adam")}
    for mine, asked in TARGETS.items():
        for name, by in speeds.items():
            got = by[mine]
            met = got.torchsde >= asked[0] and got.diffrax >= asked[1]
            console.print(
                f"{name} {mine}: torchsde / ours {got.torchsde:.1f} (asked {asked[0]:g}), diffrax / ours "
                f"{got.diffrax:.1f} (asked {asked[1]:g}): {'met' if met else 'NOT met'}"
            )
    return {peer: min(getattr(by["compiled"], peer) for by in speeds.values()) for peer in ("torchsde", "diffrax")}


def part_scaling(arguments: argparse.Namespace, console: Console) -> dict[str, float]:
    worst = scaling(min(turns(arguments), 3), arguments.quick, console)
    console.print(f"largest departure from the lines: {100 * worst:.0f} %")
    return {}


def part_weak(arguments: argparse.Namespace, console: Console) -> dict[str, float]:
    naive = weak_contest(arguments.quick, console)
    console.print(f"weak error: {naive:.0f} x fewer evaluations than sampling (asked {NAIVE_TARGET:g})")
    return {"naive": naive}


PARTS = {"speed": part_speed, "scaling": part_scaling, "weak": part_weak}


def busy_share(seconds: float = 1.0) -> float:
    """The share of all cores that other work takes now; 0 where the system does not tell.

    Not the load average, which remembers the last minute: the installation of the peers, say.
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def ticks() -> list[int]:
        return [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]

    before = ticks()
    time.sleep(seconds)
    passed = [after - was for after, was in zip(ticks(), before, strict=True)]
    return 1 - (passed[3] + passed[4]) / max(1, sum(passed))  # idle, and waiting for a disk


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contender (default 7)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores, or 1 if they are busy)")
    parser.add_argument("--quick", action="store_true", help="fewer turns and smaller sizes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to run; default: all")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    busy = busy_share()
    torch.set_num_threads(arguments.threads or (cores if busy < 0.25 else 1))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    console = Console(width=120)
    missing = [name for name in ("torchsde", "diffrax") if importlib.util.find_spec(name) is None]
    if missing and "speed" in arguments.parts:
        sys.exit(f'{" and ".join(missing)} missing; pip install "rootscale[bench-sde]"')
    names = ("torch", "torchsde", "diffrax", "jax")
    versions = {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)}
    console.print(
        f"{', '.join(f'{k} {v}' for k, v in versions.items())}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads of {cores} cores, {processor()}, {100 * busy:.0f} % busy before the start"
    )
    last: dict[str, float] = {}
    for part in arguments.parts:
        last |= PARTS[part](arguments, console)
    print(" ".join(f"{name}={value:.{0 if value > 100 else 1}f}" for name, value in last.items()))


if __name__ == "__main__":
    main()
