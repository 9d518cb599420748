"""Weak errors with standard errors, and the orders they fall with.

The weak error of a chain for a test function ``phi`` is ``E phi(x_k) - E phi(X_t)`` at ``t = k h``, with ``h`` the
chain's clock. It is small, ``O(h)``, and drowns in the sampling noise of ``phi`` unless three things are done:

- *One Brownian path.* The chain and the solver of the SDE use the same increments. For Gaussian noise the chain's
  ``xi_k`` *is* the increment over ``sqrt(h)``; other families come with a coupled normal (`Draw`), mini-batches with an
  independent one. Each process keeps its own law, so a poor coupling costs variance, never bias. A second batch,
  ``kappa`` times as large, is the union of ``kappa`` batches of the first.
- *Richardson.* Euler-Maruyama with step ``h / n`` has a weak error ``a h / n + b (h / n)^2 + ...`` of its own; a
  combination of several ``n`` cancels the leading terms. A plain solver at ``h / 8`` would report its own error.
- *Martingale controls.* Noise that the chain has and the SDE lacks (in ``v``), or that a coupling leaves over, comes in
  increments of mean zero *exactly*, whatever weight they get from the past. Sums of them are regressed out, with
  coefficients fitted on the other half of the paths, so that the estimate stays unbiased.

Paths that leave the finite numbers are counted; estimates are then conditional on the rest, and a warning says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rootscale.theory.discrete import Chain
from rootscale.theory.engine import State, States, drive
from rootscale.theory.oracle import FAMILIES, NGOS, Draw
from rootscale.theory.sde import SDE
from rootscale.theory.solve import SCHEMES, Levels, Scheme, suits, whole_steps
from rootscale.trajectory import Estimate, Trajectory

__all__ = ["TESTS", "Order", "PreAsymptoticWarning", "TestFunction", "WeakError", "fit_order", "tests_of", "weak_error"]

Array = NDArray[np.float64]


class PreAsymptoticWarning(UserWarning):
    """The errors do not yet follow one power of ``h``."""


@dataclass(frozen=True)
class TestFunction:
    """A test function of the state of the SDE.

    Args:
        name: for tables.
        function: of a state of the SDE; ``[P]``.
        needs: which parts of the state it uses.
    """

    __test__: ClassVar[bool] = False  # pytest: not a class of tests
    name: str
    function: Callable[[Any], Tensor]
    needs: frozenset[str] = frozenset({"theta"})


#: The test functions by name, averaged over coordinates.
TESTS: Mapping[str, TestFunction] = MappingProxyType({
    test.name: test
    for test in (
        TestFunction("theta", lambda x: x.theta.mean(1)),
        TestFunction("theta^2", lambda x: x.theta.square().mean(1)),
        TestFunction("cos theta", lambda x: x.theta.cos().mean(1)),
        TestFunction("theta*u", lambda x: (x.theta * x.u).mean(1), frozenset({"theta", "u"})),
        TestFunction("m^2", lambda x: x.m.square().mean(1), frozenset({"m"})),
    )
})  # fmt: skip


def tests_of(state: State) -> dict[str, Callable[[Any], Tensor]]:
    """The rows of `TESTS` that can be evaluated on this state, by name."""
    parts = set(getattr(state, "_fields", ()))
    return {name: test.function for name, test in TESTS.items() if test.needs <= parts}


# ------------------------------------------------------------------------------------------------- coupled processes


@dataclass(frozen=True)
class _Controls:
    """Sums of increments that have mean zero given the past, each with weights and fading that keep it so.

    At a step of the chain with ``y = Sigma^(1/2) brownian`` and ``z = Sigma^(1/2) xi``, they are, by coordinate,

        sqrt(h) y,   h (y^2 - Sigma),   h y1 y2,   sqrt(h) (z - y),   du = c2 h (z^2 - Sigma + 2 z f' / sigma),
        N sqrt(h) y

    (``y1, y2`` the two halves of the increment, ``N`` the running sum of ``du``: the noise in the chain's ``u``).
    Each is summed with the weights 1, ``theta`` and ``cos theta`` of the past, and its own running sum times the next
    ``sqrt(h) y`` once more; every sum with and without fading, since the dynamics forget.
    """

    fades: tuple[float, ...]
    adaptive: bool
    gaussian: bool
    halves: bool

    @property
    def rows(self) -> int:
        """How many increments there are."""
        return 2 + self.halves + 2 * self.adaptive + (not self.gaussian) * (2 - self.adaptive)

    @property
    def size(self) -> int:
        """How many tensors the state has: the noise in ``u``, then four sums for each increment and fading."""
        return 1 + 4 * self.rows * len(self.fades)

    def add(self, x: State, h: float | Tensor, theta: Tensor, increments: list[Tensor], du: Tensor | None) -> State:
        """The sums after one step more; ``increments[0]`` is ``sqrt(h) y``."""
        noise, out = increments[0], [x[0] if du is None else du]
        weights = (theta, torch.cos(theta))
        old = iter(x[1:])
        for fade in self.fades:
            keep = 1 - fade * h
            for increment in increments:
                total = next(old)
                out.append(keep * total + increment)
                out.extend(keep * next(old) + weight * increment for weight in weights)
                out.append(keep * keep * next(old) + total * noise)
        return tuple(out)


@dataclass(frozen=True)
class _Coupled:
    """One base step of a chain and what it is compared with, on one probability space: an ``advance`` for `drive`.

    The states: that of the chain, the controls, and the solutions of the SDE (or the second chain and its controls).
    A base step is ``stride`` steps of the chain: one of the second chain, or of the solver.
    """

    chain: Chain
    reference: SDE | Chain
    scheme: Scheme
    stride: int
    start: float
    controls: _Controls

    @property
    def oracle(self) -> NGOS:
        """That of the chain."""
        assert isinstance(self.chain.oracle, NGOS)
        return self.chain.oracle

    @property
    def fine(self) -> int:
        """How many increments the solver needs for each step of the chain."""
        return 1 if isinstance(self.reference, Chain) else self.scheme.draws

    @property
    def width(self) -> int:
        """How many standard normals a path takes in a base step."""
        return self.stride * (self.oracle.normals + (self.fine - 1) * self.oracle.rank)

    def initial(self, x0: State) -> States:
        """The states that start at ``x0``, a state of the SDE."""
        zero = torch.zeros_like(x0[0])
        controls = (zero,) * self.controls.size
        if isinstance(self.reference, Chain):
            return (self.chain.unscaled(x0), controls, self.reference.unscaled(x0), (zero,) * 4)
        return (self.chain.unscaled(x0), controls, *(x0 for _ in self.scheme.levels))

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        """All states, one base step ``h`` later."""
        chain, controls, *others = x
        normals, total = w[0].chunk(self.stride, 1), None
        h = h / self.stride
        for i, part in enumerate(normals):
            draw = self.oracle.couple(part[:, : self.oracle.normals])
            fine = self._split(draw.brownian, part[:, self.oracle.normals :])
            count = self.start + self.stride * k + i
            chain, controls = self._step(count, h, chain, controls, draw, fine)
            total = draw.xi if total is None else total + draw.xi
            if not isinstance(self.reference, Chain):
                others = list(Levels(self.reference, self.scheme)(k, t + i * h, h, tuple(others), fine))
        if isinstance(self.reference, Chain):
            assert total is not None
            others = list(self._second(k, self.stride * h, total / math.sqrt(self.stride), *others))
        return (chain, controls, *others)

    def _second(self, k: Tensor, h: float | Tensor, xi: Tensor, x: State, sums: State) -> tuple[State, State]:
        """The second chain, and controls of its own: the noise ``N`` in its ``u``, alone and with what it acts on."""
        assert isinstance(self.reference, Chain)
        oracle, theta = self.reference.oracle, x[0]
        gradient, z = oracle.gradient(theta), oracle.noise(theta, xi)
        new = self.reference.step(self.start / self.stride + k, x, gradient + oracle.sigma * z)
        if not (self.controls.fades and self.controls.adaptive):
            return new, sums
        share = self.reference.share
        jump = share * (z * z - oracle.variance(theta) + 2 / oracle.sigma * gradient * z)
        noise, weighted, moved, weighted_moved = sums
        push = h**0.5 * noise * z
        return new, (
            (1 - share) * noise + jump, (1 - share) * weighted + theta * jump, moved + push,
            weighted_moved + theta * push,
        )  # fmt: skip

    def _split(self, brownian: Tensor, extra: Tensor) -> tuple[Tensor, ...]:
        """Standard normals whose sum over ``sqrt(fine)`` is ``brownian``: halves of halves, by Levy's bridge."""
        parts, spare = [brownian], iter(extra.chunk(self.fine - 1, 1) if self.fine > 1 else ())
        while len(parts) < self.fine:
            parts = [half for a in parts for e in (next(spare),) for half in ((a + e) / 2**0.5, (a - e) / 2**0.5)]
        return tuple(parts)

    def _step(
        self, k: Tensor, h: float | Tensor, x: State, controls: State, draw: Draw, fine: tuple[Tensor, ...]
    ) -> tuple[State, State]:
        oracle, theta, which = self.oracle, x[0], self.controls
        gradient, z = oracle.gradient(theta), oracle.noise(theta, draw.xi)
        new = self.chain.step(k, x, gradient + oracle.sigma * z)
        if not which.fades:
            return new, controls
        variance, root = oracle.variance(theta), h**0.5
        y = z if which.gaussian else oracle.noise(theta, draw.brownian)
        increments, du = [root * y, h * (y * y - variance)], None
        if which.halves:
            middle = len(fine) // 2
            one, two = (sum(some[1:], start=some[0]) for some in (fine[:middle], fine[middle:]))
            increments.append(h * oracle.noise(theta, one) * oracle.noise(theta, two))
        if which.adaptive:
            share = self.chain.share
            jump = share * (z * z - variance + 2 / oracle.sigma * gradient * z)
            increments += [jump, controls[0] * increments[0]]
            du = (1 - share) * controls[0] + jump
        if not which.gaussian:
            increments.append(root * (z - y))
            if not which.adaptive:
                increments.append(h * (z * z - variance))
        return new, which.add(controls, h, theta, increments, du)


def _stride(chain: Chain, reference: SDE | Chain) -> int:
    if not isinstance(reference, Chain):
        return 1
    kappa = (chain.oracle.sigma / reference.oracle.sigma) ** 2
    if round(kappa) < 1 or abs(kappa - round(kappa)) > 1e-6 * kappa:
        raise ValueError(
            f"the second chain's batch must be a whole multiple of the first's, got {kappa:.6g} times as many samples "
            f"(sigma {chain.oracle.sigma:.6g} and {reference.oracle.sigma:.6g}); swap the two, or use rescaled()"
        )
    return round(kappa)


def _regressed(values: Array, tests: int) -> tuple[Array, Array, Array]:
    """Mean and standard error of the first columns, less what the others (of mean zero) explain; and the plain s.e.

    Coefficients come from the other half of the paths (even and odd ones), so that they do not know the noise that
    they are multiplied with, and nothing is biased.
    """
    means, variances, plain = [], [], []
    folds = [values[fold::2] for fold in (0, 1)]
    for fold, other in ((folds[0], folds[1]), (folds[1], folds[0])):
        centred = other - other.mean(0)
        controls = centred[:, tests:]
        size = np.sqrt((controls**2).mean(0))
        scale = np.where(size > 0, size, 1.0)
        values_of, vectors = np.linalg.eigh(controls.T @ controls / np.outer(scale, scale) / len(other))
        keep = values_of > 1e-9  # what other controls repeat, or what is always zero, is left out, not inverted
        basis = vectors[:, keep] / scale[:, None]
        slope = basis @ ((basis.T @ (controls.T @ centred[:, :tests] / len(other))) / values_of[keep, None])
        rest = fold[:, :tests] - fold[:, tests:] @ slope
        means.append(rest.mean(0))
        variances.append(rest.var(0, ddof=1) / len(rest))
        plain.append(fold[:, :tests].var(0, ddof=1))
    share = np.array([len(fold) for fold in folds]) / len(values)
    plain_se = np.sqrt(share @ np.array(plain) / len(values))
    return share @ np.array(means), np.sqrt(share**2 @ np.array(variances)), plain_se


@dataclass(frozen=True)
class WeakError:
    """Weak errors of several chains: for each, a `Trajectory` of ``E phi(chain) - E phi(reference)`` with s.e.

    Args:
        h: the clock of each chain: ``eta^2``, for SGD ``eta``; for SVAG ``eta^2 / ell^2``.
        errors: for each chain the estimated error at each time, by test function.
    """

    h: tuple[float, ...]
    errors: tuple[Trajectory, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The test functions."""
        return self.errors[0].names

    @property
    def diverged(self) -> tuple[int, ...]:
        """How many paths of each chain (or of its reference) had diverged at the end."""
        return tuple(int(error.diverged[-1]) for error in self.errors)

    def at(self, name: str, time: int = -1) -> tuple[Array, Array]:
        """Errors and standard errors of a test function, one for each chain, at the time of that index."""
        estimates = [error[name] for error in self.errors]
        return np.array([e.mean[time] for e in estimates]), np.array([e.se[time] for e in estimates])

    def rows(self, time: int = -1) -> Iterator[tuple[float, str, float, float, bool]]:
        """``(h, test function, error, standard error, resolved)``; an error is resolved from 5 standard errors on."""
        for name in self.names:
            for h, error, se in zip(self.h, *self.at(name, time), strict=True):
                yield h, name, float(error), float(se), bool(abs(error) >= RESOLVED * se)


#: From how many standard errors on an error counts as resolved, and the ``h`` from which on it is not asymptotic.
RESOLVED, LARGEST = 5.0, 0.1
#: What is beyond this counts as diverged: its square would soon not be a number.
HUGE = 1e100


def weak_error(
    chains: Chain | Sequence[Chain],
    reference: SDE | Chain | Sequence[Chain],
    x0: State,
    times: Sequence[float],
    *,
    start: float = 0.0,
    tests: Mapping[str, Callable[[Any], Tensor]] | None = None,
    paths: int = 20_000,
    seed: int = 0,
    scheme: str | Scheme | None = None,
    controls: bool = True,
    compile: bool = False,
    progress: bool | None = None,
) -> WeakError:
    """Estimates ``E phi(chain) - E phi(reference)`` with standard errors, for each chain and test function.

    >>> from rootscale.theory import NGOS, RMSpropSDE, RMSpropState, cosine, discretise
    >>> equation = RMSpropSDE(NGOS(cosine(), sigma=1.0), sigma0=0.7, c2=2.0, eps0=0.3)
    >>> x0 = RMSpropState(*torch.tensor([[[1.0]], [[0.3]]], dtype=torch.float64))
    >>> chains = [discretise(equation, eta=h**0.5) for h in (1 / 16, 1 / 32, 1 / 64)]
    >>> errors = weak_error(chains, equation, x0, [1.0], paths=4000)
    >>> fit_order(errors, "theta").covers(1.0, within=0.15)
    True

    Args:
        chains: the chains, of any step sizes; see `discretise`, `svag_chain`, `rescaled`. Their oracles must be `NGOS`.
        reference: the SDE; or for each chain a second chain at ``kappa`` times the batch size, ``kappa`` whole.
        x0: where all of them start: a state of the SDE, of tensors ``[1, d]`` or ``[P, d]``.
        times: when to compare, increasing; whole steps of every chain after ``start``.
        start: the time at the beginning, which is Adam's step counter too, ``k = start / h``; Adam needs ``start > 0``.
        tests: test functions of a state of the SDE, ``[P]`` each; those of `TESTS` that the state allows unless given.
        paths: how many, for each chain.
        seed: chain ``i`` uses ``seed + i``, so that errors of different chains are independent.
        scheme: how to solve the SDE: a row of `SCHEMES` whose weak order is at least 2. Richardson on Euler-Maruyama
            unless given; for Adam on Heun, since its noise is in ``m`` alone.
        controls: regress out the martingale controls.
        compile: take the coupled step with ``torch.compile``: two to three times as fast, after a minute of compiling.
        progress: as in `rootscale.theory.engine.drive`.

    Warns:
        RuntimeWarning: paths diverged; they are counted in ``diverged`` and left out.
    """
    chains = [chains] if isinstance(chains, Chain) else list(chains)
    references: list[SDE | Chain]
    references = list(reference) if isinstance(reference, Sequence) else [reference] * len(chains)
    if not chains or len(references) != len(chains):
        raise ValueError(f"as many references as chains are needed, got {len(references)} and {len(chains)}")
    if paths < 100:
        raise ValueError(f"paths must be at least 100, for a standard error to mean something, got {paths}")
    tests = tests_of(x0) if tests is None else tests
    errors = [
        _one(chain, ref, x0, list(times), start, tests, paths, seed + i, scheme, controls, compile, progress)
        for i, (chain, ref) in enumerate(zip(chains, references, strict=True))
    ]
    return WeakError(tuple(chain.clock for chain in chains), tuple(errors))


def _one(
    chain: Chain, reference: SDE | Chain, x0: State, times: list[float], start: float,
    tests: Mapping[str, Callable[[Any], Tensor]], paths: int, seed: int, scheme: str | Scheme | None, controls: bool,
    compile: bool, progress: bool | None,
) -> Trajectory:  # fmt: skip
    if not isinstance(chain.oracle, NGOS):
        raise TypeError(f"weak_error needs chains over an NGOS, whose noise can be coupled, got {chain.oracle!r:.80}")
    if chain.moments == 2 and not start > 0:
        raise ValueError(f"Adam's SDE needs start > 0 (its normalisation is 0/0 at t = 0), got start={start}")
    if len(x0) != chain.moments + 1:
        raise ValueError(f"x0 must be a state of the chain's SDE with {chain.moments + 1} parts, got {len(x0)}")
    how = (
        scheme
        if isinstance(scheme, Scheme)
        else SCHEMES[scheme or ("richardson", "heun-richardson")[chain.moments == 2]]
    )
    solves = isinstance(reference, Chain) or suits(how, reference, x0, start)
    if how.order < 2 or not solves:
        why = (
            f"does not solve {type(reference).__name__}, whose noise depends on what it moves"
            if not solves
            else "has weak order 1, that of the error to be measured"
        )
        suited = [
            repr(row.name)
            for row in SCHEMES.values()
            if row.order > 1 and (isinstance(reference, Chain) or suits(row, reference, x0, start))
        ]
        raise ValueError(f"scheme {how.name!r} {why}; use {' or '.join(suited)}")
    stride, gaussian = _stride(chain, reference), chain.oracle.family == FAMILIES["gaussian"]
    fades = (0.0, 2.0 / (times[-1] - start)) if controls else ()
    halves = not isinstance(reference, Chain) and how.draws > 1
    coupled = _Coupled(
        chain, reference, how, stride, start / chain.clock, _Controls(fades, chain.moments > 0, gaussian, halves)
    )
    h = stride * chain.clock

    def observe(t: float, x: States) -> dict[str, Tensor]:
        first, sums, *others = x
        if isinstance(reference, Chain):
            solutions = [(1.0, reference.scaled(others[0]))]
        else:
            solutions = [(weight, y) for (_, weight), y in zip(how.levels, others, strict=True)]  # type: ignore[misc]
        mine = chain.scaled(first)
        columns = {name: phi(mine) - sum(w * phi(y) for w, y in solutions) for name, phi in tests.items()}
        every = (*sums, *others[1]) if isinstance(reference, Chain) else sums
        return columns | {f"control {i}": s.mean(1) for i, s in enumerate(every)}

    raw = drive(
        coupled, coupled.initial(x0), observe, steps=whole_steps(times, start, h), h=h, width=coupled.width, seed=seed,
        t0=start, paths=paths if x0[0].shape[0] == 1 else None, keep=True, compile=compile, progress=progress,
    )  # fmt: skip
    estimates: dict[str, list[tuple[float, float]]] = {name: [] for name in tests}
    gains: dict[str, float] = {}
    diverged = np.zeros(len(times), np.int64)
    for time in range(len(times)):
        columns = np.stack([raw.values[name][:, time] for name in raw.values], 1)
        columns = columns[(np.abs(columns) < HUGE).all(1)]  # NaN is not below anything
        diverged[time] = raw.replicas - len(columns)
        if len(columns) < 100:
            raise ValueError(f"{diverged[time]} of {raw.replicas} paths diverged; too few are left")
        mean, se, plain = _regressed(columns, len(tests))
        for i, name in enumerate(tests):
            estimates[name].append((mean[i], se[i]))
            gains[name] = float((plain[i] / se[i]) ** 2) if se[i] else math.inf
    if (diverged > raw.diverged).any():  # the others have been warned of
        warnings.warn(
            f"{diverged[-1]} of {raw.replicas} paths diverged (beyond {HUGE:g}); means are over the others",
            RuntimeWarning,
            stacklevel=3,
        )
    meta = {
        **raw.meta, "chain": repr(chain.optimizer), "sigma": chain.oracle.sigma, "problem": chain.oracle.problem.name,
        "family": repr(chain.oracle.family)[:200], "scheme": how.name, "kappa": stride, "variance_gain": gains,
        "reference": repr(reference.optimizer) if isinstance(reference, Chain) else type(reference).__name__,
    }  # fmt: skip
    pairs = {name: np.array(values) for name, values in estimates.items()}
    return Trajectory(
        raw.times, {}, {name: Estimate(p[:, 0], p[:, 1]) for name, p in pairs.items()}, raw.replicas, diverged, meta
    )


# -------------------------------------------------------------------------------------------------------- the order


@dataclass(frozen=True)
class Order:
    """A power law ``|error| = C h^slope``, fitted.

    Args:
        name: the test function.
        slope: the order.
        se: its standard error, widened where the points scatter more than their own errors allow.
        used: the ``h`` of the points that were fitted.
        unresolved: the ``h`` of those below 5 standard errors, left out.
        large: the ``h`` of those too large to be asymptotic, left out.
        notes: what makes the fit doubtful.
    """

    name: str
    slope: float
    se: float
    used: tuple[float, ...]
    unresolved: tuple[float, ...] = ()
    large: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval; NaN where fewer than two points are resolved."""
        return self.slope - 1.96 * self.se, self.slope + 1.96 * self.se

    def covers(self, order: float, within: float = 0.0) -> bool:
        """Whether the slope is within so much of ``order``; that of a fit without two resolved points is not."""
        return bool(abs(self.slope - order) <= within)

    def __str__(self) -> str:
        """As ``theta: 1.02 ± 0.03 (5 points)``."""
        text = f"{self.name}: {self.slope:.3f} ± {1.96 * self.se:.3f} ({len(self.used)} points)"
        return text if self.used else f"{self.name}: unresolved"


def fit_order(
    errors: WeakError, name: str, *, time: int = -1, threshold: float = RESOLVED, largest: float = LARGEST
) -> Order:
    """The order of the error in ``h``: a weighted straight line through ``log |error|`` over ``log h``.

    Args:
        errors: from `weak_error`.
        name: the test function.
        time: the index of the time.
        threshold: how many standard errors an error must have to be used.
        largest: ``h`` from which on points are left out as not asymptotic.

    Warns:
        PreAsymptoticWarning: the error changes its sign, or the largest ``h`` that is used does not lie on the line of
            the others.
    """
    h = np.array(errors.h)
    error, se = errors.at(name, time)
    small, resolved = h < largest, np.abs(error) >= threshold * se
    use = small & resolved
    left = {"unresolved": tuple(h[small & ~resolved].tolist()), "large": tuple(h[~small].tolist())}
    if len(set(h[use])) < 2:
        return Order(name, math.nan, math.nan, tuple(h[use].tolist()), **left)
    order = np.argsort(h[use])
    x, y, s = np.log(h[use][order]), np.log(np.abs(error[use][order])), (se / np.abs(error))[use][order]
    slope, slope_se = _line(x, y, s)
    notes = []
    if len(set(np.sign(error[use]))) > 1:
        notes.append("the error changes its sign, so it follows no power of h yet")
    if len(x) > 2:
        rest, rest_se = _line(x[:-1], y[:-1], s[:-1])
        intercept = np.average(y[:-1] - rest * x[:-1], weights=s[:-1] ** -2)
        gap = y[-1] - intercept - rest * x[-1]
        if abs(gap) > 0.1 and abs(gap) > 2 * math.hypot(s[-1], rest_se * (x[-1] - x[:-1].mean())):
            notes.append(
                f"h={math.exp(x[-1]):.4g} is off the line of the others by {100 * abs(math.expm1(gap)):.0f} %; "
                f"without it the order is {rest:.3f} ± {1.96 * rest_se:.3f}"
            )
    for note in notes:
        warnings.warn(f"{name}: {note}", PreAsymptoticWarning, stacklevel=2)
    return Order(name, slope, slope_se, tuple(np.exp(x).tolist()), **left, notes=tuple(notes))


def _line(x: Array, y: Array, s: Array) -> tuple[float, float]:
    """Slope and standard error of a weighted straight line, with Birge's factor for excess scatter."""
    weight = s**-2.0
    centre = np.average(x, weights=weight)
    spread = float(weight @ (x - centre) ** 2)
    slope = float(weight @ ((x - centre) * y)) / spread
    rest = y - np.average(y, weights=weight) - slope * (x - centre)
    birge = float(weight @ rest**2) / (len(x) - 2) if len(x) > 2 else 1.0
    return slope, math.sqrt(max(1.0, birge) / spread)
