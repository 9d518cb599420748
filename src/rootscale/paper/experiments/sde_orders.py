"""The theorems of the paper, measured: orders of weak errors, the scaling rule's error, and what must fail.

The claims, a section each (``--only`` picks some):

orders    SGD (in eta), RMSprop and Adam (in eta^2) are order-1 weak approximations of their SDEs, on Gaussian and on
          mini-batch noise.
svag      so is SVAG, in 1/ell^2, also on noise too skewed for the plain chain.
rule      runs at B and kappa B under the square root rule differ by at most C (1 + kappa) eta^2.
subsets   the linear rule and every proper subset of the rule (Adam) keep an error that does not vanish with eta.
skewness  noise whose skewness does not shrink lowers the order of the plain chain to 1/2.
unbalanced  on skewed data mini-batches meet their limit: a batch cannot be smaller than 1, and as it nears 1 at fixed
          sigma0 the third moment of its noise keeps growing (it goes as sigma, where 1/sigma is wanted), so that the
          order bends; SVAG goes on.
betas     fixed betas with eta -> 0 drift away from the SDE.
signal    sigma << |gradient| has no SDE limit: no clock keeps both mean and variance.

Errors are estimate ± standard error; orders ± half a 95 % interval. "unresolved" is an error below 5 standard errors.
About 10 minutes on one core with the defaults.

    python -m rootscale.paper.experiments.sde_orders --out results/theory
"""

from __future__ import annotations

import argparse
import itertools
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from rootscale import __version__
from rootscale.files import whole
from rootscale.hparams import Adam, RMSprop
from rootscale.lab.provenance import processor
from rootscale.rules import get_rule
from rootscale.theory import (
    FAMILIES,
    NGOS,
    Chain,
    Minibatch,
    Paths,
    RMSpropState,
    case,
    fit_order,
    linear,
    logistic,
    rescaled,
    svag_chain,
    weak_error,
)
from rootscale.theory.cases import Case
from rootscale.theory.equations import RMSpropSDE
from rootscale.theory.weak import Order, WeakError

Lines = Iterator[str]
#: What makes the lines of a section of ``paths`` and a seed, how many paths, and its title.
Sections = Mapping[str, tuple[Callable[[int, int], Lines], int, str]]
ADAM_ROWS = ("eta", "beta1", "beta2", "eps")


def head(*columns: str) -> Lines:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)


def number(error: float, se: float) -> str:
    text = f"{error:.2e} ± {se:.0e}"
    return text if abs(error) >= 5 * se else f"({text}) unresolved"


def slope(order: Order) -> str:
    if len(order.used) < 2:
        return "unresolved"
    few = " (2 points)" if len(order.used) == 2 else ""
    return f"{order.slope:.2f} ± {1.96 * order.se:.2f}" + few + (" *" if order.notes else "")


def table(title: str, errors: WeakError) -> Lines:
    """A row for each test function: the errors, and the order."""
    yield f"\n**{title}**; diverged paths: {sum(errors.diverged)}\n"
    yield from head("test function", *(f"h = {h:.4g}" for h in errors.h), "order in h")
    for name in errors.names:
        yield f"| {name} | " + " | ".join(map(number, *errors.at(name))) + f" | {slope(fit_order(errors, name))} |"


def measure(setting: Case, chains: list[Chain], paths: int, seed: int) -> WeakError:
    return weak_error(chains, setting.equation, setting.x0, setting.save, paths=Paths(paths, seed))


def orders(paths: int, seed: int) -> Lines:
    steps = {"cosine": (16, 32, 64, 128, 256), "logistic": (20, 40, 80, 160, 320)}
    for problem, optimizer in itertools.product(steps, ("sgd", "rmsprop", "adam")):
        setting = case(optimizer, problem)
        chains = [setting.chain(n) for n in steps[problem]]
        errors = measure(setting, chains, paths, seed)
        noise = (
            "Gaussian noise"
            if problem == "cosine"
            else "mini-batches of " + ", ".join(str(round(chain.oracle.sigma**-2)) for chain in chains)
        )
        yield from table(f"{optimizer}, {problem}, {noise}", errors)


def svag(paths: int, seed: int) -> Lines:
    settings = (
        ("cosine", "gaussian", 4, (2, 3, 4, 6, 8)),
        ("logistic", None, 10, (2, 3, 4)),
        ("cosine", "skewed", 16, (2, 3, 4, 6, 8)),
    )
    for (problem, family, base, ells), optimizer in itertools.product(settings, ("sgd", "rmsprop", "adam")):
        setting = case(optimizer, problem, FAMILIES[family] if family else None)
        errors = measure(setting, [svag_chain(setting.chain(base), ell) for ell in ells], paths, seed)
        yield from table(f"SVAG on {optimizer}, {problem}, {family or 'mini-batch'} noise, ell = {ells}", errors)


def rule(paths: int, seed: int) -> Lines:
    kappas = (2, 4, 8, 16, 32)
    for optimizer, (problem, steps) in itertools.product(("rmsprop", "adam"), (("cosine", 512), ("logistic", 320))):
        setting = case(optimizer, problem)
        base = setting.chain(steps)
        others = [rescaled(base, kappa) for kappa in kappas]
        errors = weak_error([base] * len(kappas), others, setting.x0, setting.save, paths=Paths(paths, seed))
        yield f"\n**{optimizer}, {problem}, eta^2 = {base.clock:.4g}**; diverged paths: {sum(errors.diverged)}\n"
        yield from head(
            "test function",
            *(f"kappa = {k}" for k in kappas),
            "largest of error / ((1 + kappa) eta^2)",
            "growth: power of kappa - 1",
        )
        growth = replace(errors, h=tuple((k - 1) * 1e-3 for k in kappas))  # fit_order fits a power of whatever h is
        for name in errors.names:
            error, se = errors.at(name)
            bound = np.abs(error) / ((1 + np.array(kappas)) * base.clock)
            worst = int(bound.argmax())
            spread = se[worst] / ((1 + kappas[worst]) * base.clock)
            yield (
                f"| {name} | " + " | ".join(map(number, error, se)) + f" | {bound[worst]:.3f} ± {spread:.3f} | "
                f"{slope(fit_order(growth, name))} |"
            )


def subsets(paths: int, seed: int) -> Lines:
    setting, kappa, steps = case("adam"), 4, (128, 256, 512)
    full = get_rule("sqrt", "adam")
    rows = [
        (", ".join(chosen) or "none", replace(full, units=MappingProxyType({k: full.units[k] for k in chosen})))
        for size in range(5)
        for chosen in itertools.combinations(ADAM_ROWS, size)
    ]
    rows.append(("the linear rule", get_rule("linear", "adam")))
    for title, way in rows:
        chains = [setting.chain(n) for n in steps]
        others = [rescaled(chain, kappa, way) for chain in chains]
        errors = weak_error(chains, others, setting.x0, setting.save, paths=Paths(paths, seed))
        what = "all of the rule" if title == ", ".join(ADAM_ROWS) else title
        yield f"\n**Adam, cosine, kappa = {kappa}, converted: {what}**; diverged paths: {sum(errors.diverged)}\n"
        yield from head("test function", *(f"eta^2 = {h:.4g}" for h in errors.h), "extrapolated to eta = 0")
        for name in errors.names:
            error, se = errors.at(name)
            limit = number(2 * error[-1] - error[-2], float(np.hypot(2 * se[-1], se[-2])))  # a of a + b h
            yield f"| {name} | " + " | ".join(map(number, error, se)) + f" | {limit} |"


def skewness(paths: int, seed: int) -> Lines:
    steps = (512, 1024, 2048, 4096)
    for optimizer in ("sgd", "rmsprop", "adam"):
        setting = case(optimizer, "cosine", FAMILIES["skewed"])
        errors = measure(setting, [setting.chain(n) for n in steps], paths, seed)
        yield from table(f"{optimizer}, cosine, centred exponential noise", errors)


def unbalanced(paths: int, seed: int) -> Lines:
    """One label in eight is 1: the noise of a batch is skewed, the more so the smaller the batch."""
    setting = case("rmsprop", "logistic")
    problem = logistic(torch.full((8, 1), 0.08**0.5, dtype=torch.double), torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]))
    assert isinstance(setting.x0, RMSpropState)
    x0 = RMSpropState(torch.full((1, 1), -2.0, dtype=torch.double), setting.x0.u[:, :1])
    assert isinstance(setting.equation, RMSpropSDE)
    setting = replace(setting, equation=replace(setting.equation, oracle=NGOS(problem, 1.0, Minibatch(1))), x0=x0)
    for title, chains in (
        ("plain, mini-batches of 16, 8, 4, 2, 1", [setting.chain(n) for n in (20, 40, 80, 160, 320)]),
        ("SVAG on mini-batches of 16, ell = 2, 3, 4", [svag_chain(setting.chain(20), ell) for ell in (2, 3, 4)]),
    ):
        errors = measure(setting, chains, paths, seed)
        yield from table(f"rmsprop, logistic regression with one label in eight, {title}", errors)
        yield "\nLocal orders, from each h to the next: " + "; ".join(
            f"{name} {np.round(np.diff(np.log(np.abs(errors.at(name)[0]))) / np.diff(np.log(errors.h)), 2).tolist()}"
            for name in errors.names
        )


def betas(paths: int, seed: int) -> Lines:
    setting, steps = case("adam"), (32, 64, 128, 256)
    fixed, chains = setting.chain(steps[0]).optimizer, []
    assert isinstance(fixed, Adam)
    for chain in map(setting.chain, steps):
        assert isinstance(chain.optimizer, Adam)
        chains.append(replace(chain, optimizer=replace(chain.optimizer, beta1=fixed.beta1, beta2=fixed.beta2)))
    errors = measure(setting, chains, paths, seed)
    yield from table(f"Adam, cosine, beta1 = {fixed.beta1:.4f} and beta2 = {fixed.beta2:.4f} for every eta", errors)


def signal(paths: int, seed: int) -> Lines:
    """RMSprop on the paper's warm-up: gbar = 1, sigma = 0.1 fixed, while eta falls."""
    sigma, c2 = 0.1, 2.0
    yield "\n**RMSprop, linear loss, gbar = 1, sigma = 0.1, beta = 1 - 2 eta^2, eps = 0**\n"
    yield from head("eta", "mean at t = k eta^2 = 1", "variance there", "mean at k eta = 1", "variance there")
    for eta in (0.2, 0.1, 0.05):
        chain = Chain(RMSprop(eta, 1 - c2 * eta**2, eps=0.0), NGOS(linear([1.0]), sigma))
        cells = []
        for steps in (round(1 / eta**2), round(1 / eta)):
            start = RMSpropState(
                torch.zeros(paths, 1).double(), torch.full((paths, 1), (1 + sigma**2) / sigma**2).double()
            )
            *_, (_, x) = chain.iterate(chain.unscaled(start), steps, torch.Generator().manual_seed(seed))
            theta = x[0][:, 0]
            se = float(theta.std()) / paths**0.5
            var = float(theta.var())
            cells += [f"{float(theta.mean()):.4f} ± {se:.4f}", f"{var:.6f} ± {var * (2 / paths) ** 0.5:.6f}"]
        yield f"| {eta} | " + " | ".join(cells) + " |"


SECTIONS: Sections = {
    "orders": (orders, 20_000, "Orders of SGD, RMSprop and Adam"),
    "svag": (svag, 20_000, "SVAG"),
    "rule": (rule, 20_000, "The scaling rule: B against kappa B"),
    "subsets": (subsets, 5_000, "The linear rule, and proper subsets of the square root rule"),
    "skewness": (skewness, 20_000, "Skewness that does not shrink"),
    "unbalanced": (unbalanced, 20_000, "Mini-batches of skewed data"),
    "betas": (betas, 10_000, "Fixed betas"),
    "signal": (signal, 10_000, "A gradient that dominates the noise"),
}


def main(argv: Sequence[str] | None = None) -> None:
    run_sections("sde_orders", SECTIONS, __doc__, argv)


def run_sections(program: str, sections: Sections, description: str | None, argv: Sequence[str] | None) -> None:
    """Run a program of this folder that measures some sections and writes a file for each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/theory"))
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # small tensors
    folder = arguments.out / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        make, paths, title = sections[name]
        started = time.monotonic()
        lines = list(make(paths, arguments.seed))
        made = (
            f"`python -m rootscale.paper.experiments.{program} --only {name} --seed {arguments.seed}`: "
            f"{f'{paths:,} paths a chain' if paths else 'a calculation'}, "
            f"{time.monotonic() - started:.0f} s on one core of {processor()}; rootscale {__version__}, "
            f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}."
        )
        notes = (
            "h is the clock of a chain (eta^2; eta for SGD and momentum in time; divided by ell^2 for SVAG). Errors "
            "are estimate ± one standard error, orders ± half a 95 % interval, from h < 0.1 and errors of at least 5 "
            "standard errors; * the points do not follow one power yet."
        )
        about = [f"# {title}", "", made, *(["", notes] if paths else [])]
        with whole(folder / f"{name}.md") as temporary:
            temporary.write_text("\n".join([*about, *lines, ""]))
        print("\n".join(lines), flush=True)
        print(f"-> {folder / name}.md ({shlex.join(sys.argv)})", flush=True)


if __name__ == "__main__":
    main()
