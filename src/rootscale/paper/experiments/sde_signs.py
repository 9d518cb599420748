"""SDEs of SignSGD, Signum and Lion, measured: orders of weak errors, and the rules that keep the dynamics.

They are not in the paper; the derivations are in docs/theory.md. The claims, a section each (``--only`` picks some):

signs          SignSGD, Signum and Lion with momentum kept in steps are of order 1 in eta^2; with momentum kept in time
               Signum is of order 1 and Lion of order 1/2 in eta.
sign-rules     runs at B and kappa B differ by O(eta^2) under the rule a = 0 of the registry (momentum in steps), by
               O(eta) under a = 1 (momentum in time), and by more under others, whatever eta is.
sign-windows   what a conversion with a = 0, 1/2 and 1 keeps of a run whose momentum is short or long; a calculation.
sign-strength  how far the rule a = 0 is off where the gradient is not small beside the noise; a calculation.

A few minutes on one core with the defaults.

    python -m rootscale.paper.experiments.sde_signs --out results/theory
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rootscale.paper.experiments.sde_orders import Lines, Sections, head, measure, number, run_sections, table
from rootscale.theory import Paths, case, rescaled, weak_error
from rootscale.theory.cases import NOISES, Case
from rootscale.theory.signs import Memory, SignSDE


def long_memory(mu: float) -> Case:
    """Return the setting of Signum with this momentum."""
    made = case("signum")
    assert isinstance(made.equation, SignSDE)
    return replace(made, equation=replace(made.equation, memory=Memory(1 - mu, mu)))


def signs(paths: int, seed: int) -> Lines:
    coarse, fine, finer = (16, 32, 64, 128), (32, 64, 128), (128, 256, 512)
    settings = (
        ("signsgd, cosine", case("signsgd"), coarse),
        ("signsgd, quadratic", case("signsgd", "quadratic"), coarse),
        (
            "signsgd, logistic, noise of correlated coordinates",
            case("signsgd", "logistic", NOISES["gaussian"]),
            coarse[:3],
        ),
        ("signum with mu = 0.5, cosine, momentum in steps", case("signum"), fine),
        ("signum with mu = 0.9, cosine, momentum in steps", long_memory(0.9), finer),
        ("lion with beta1 = 0.5, beta2 = 0.6, cosine, momentum in steps", case("lion"), fine),
        ("signum, cosine, momentum in time", case("signum-time"), coarse),
        ("lion, cosine, momentum in time", case("lion-time"), fine),
    )
    for title, made, steps in settings:
        many = paths if made.equation.clock_power == 1 or "signsgd" in title else 2 * paths
        yield from table(
            f"{title}, Gaussian noise, {many:,} paths", measure(made, [made.chain(n) for n in steps], many, seed)
        )


def sign_rules(paths: int, seed: int) -> Lines:
    short, long = (64, 128, 256), (256, 512, 1024)
    rows = (
        ("signsgd", case("signsgd"), (None, "linear-eta", "none"), short),
        ("signum with mu = 0.8", long_memory(0.8), (None, "normalized-half", "sqrt with paper", "none"), long),
        ("signum, momentum in time", case("signum-time"), (None, "normalized-sqrt", "sqrt with paper", "none"), short),
    )
    for (title, made, rules, steps), kappa in itertools.product(rows, (4, 16)):
        yield f"\n**{title}, cosine, kappa = {kappa}**: error between B and kappa B\n"
        columns = (f"{n} steps and {n // kappa}" for n in steps)
        yield from head("rule", "test function", *columns, "extrapolated to eta = 0")
        for rule in rules:
            chains = [made.chain(n) for n in steps]
            try:
                others = [rescaled(chain, kappa, rule) for chain in chains]
            except ValueError:
                yield f"| {rule} | has no mu for this kappa | | | | |"
                continue
            errors = weak_error(chains, others, made.x0, made.save, paths=Paths(paths, seed))
            for name in errors.names:
                error, se = errors.at(name)
                limit = number(2 * error[-1] - error[-2], float(np.hypot(2 * se[-1], se[-2])))
                yield f"| {rule or 'its own'} | {name} | " + " | ".join(map(number, error, se)) + f" | {limit} |"


def sign_windows(paths: int, seed: int) -> Lines:
    """What `Memory` says of a conversion: per sample, drift and diffusion of the limit before and after."""
    del paths, seed
    yield "\nRatios per sample, after over before: 1 is kept. The window is that of momentum, in samples.\n"
    yield from head("mu", "kappa", "a", "mu after", "drift", "diffusion", "pull", "window")
    for mu, kappa in itertools.product((0.9, 0.95, 0.99), (4, 16)):
        for name, a in (("0", 0.0), ("1/2", 0.5), ("1", 1.0)):
            lost = (1 - mu) * kappa**a
            if lost > 1:
                yield f"| {mu} | {kappa} | {name} | none | | | | |"
                continue
            old, new, eta = Memory(1 - mu, mu), Memory(lost, 1 - lost), kappa ** ((1 + a) / 2)
            drift = eta * new.response / old.response / math.sqrt(kappa)
            diffusion = eta**2 * new.diffusion / old.diffusion / kappa
            pull = eta**2 * new.pull / old.pull / kappa
            window = kappa ** (1 - a)
            numbers = " | ".join(f"{value:.3f}" for value in (drift, diffusion, pull))
            yield f"| {mu} | {kappa} | {name} | {1 - lost:.3f} | {numbers} | {window:g} |"


def sign_strength(paths: int, seed: int) -> Lines:
    """The drift per sample of SignSGD under the square root, over that at the base batch."""
    del paths, seed
    yield "\nDrift per sample at kappa times the batch over that at the batch, by |gradient| / noise at the batch.\n"
    strengths = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    yield from head("rule", "kappa", *(f"{x:g}" for x in strengths))
    for (rule, power), kappa in itertools.product((("sqrt", 0.5), ("linear", 1.0)), (4, 16)):
        ratios = (
            kappa ** (power - 1) * math.erf(x * math.sqrt(kappa / 2)) / math.erf(x / math.sqrt(2)) for x in strengths
        )
        yield f"| {rule} | {kappa} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |"


SECTIONS: Sections = {
    "signs": (signs, 10_000, "Orders of SignSGD, Signum and Lion"),
    "sign-rules": (sign_rules, 1_000, "Signs: B against kappa B"),
    "sign-windows": (sign_windows, 0, "Signum: what each choice of a keeps"),
    "sign-strength": (sign_strength, 0, "SignSGD: where the gradient is not small beside the noise"),
}


def main(argv: Sequence[str] | None = None) -> None:
    run_sections("sde_signs", SECTIONS, __doc__, argv)


if __name__ == "__main__":
    main()
