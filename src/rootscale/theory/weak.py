"""Weak errors with standard errors, and the orders they fall with.

The weak error of a chain for a test function ``phi`` is ``E phi(x_k) - E phi(X_t)`` at ``t = k h``, with ``h`` the
chain's clock. It is small, ``O(h)``, and drowns in the sampling noise of ``phi`` unless three things are done:

- *One Brownian path.* The chain and the solver of the SDE use the same increments. For Gaussian noise the chain's
  ``xi_k`` *is* the increment over ``sqrt(h)``; other families come with a coupled normal
  (`rootscale.theory.families.Draw`), mini-batches with an independent one. Each process keeps its own law, so a poor
  coupling costs variance, never bias. A second batch, ``kappa`` times as large, is the union of ``kappa`` batches of
  the first.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rootscale.theory.coupling import Controls, Coupled, stride_of
from rootscale.theory.discrete import SDE, Chain
from rootscale.theory.engine import Functions, Paths, SaveAt, State, States, System, drive
from rootscale.theory.equations import need_later, started
from rootscale.theory.families import FAMILIES
from rootscale.theory.oracle import NGOS
from rootscale.theory.solver import SCHEMES, Scheme, get_scheme, suits
from rootscale.trajectory import Estimate, Trajectory

Array = NDArray[np.float64]

#: Paths of each chain unless given.
PATHS = 20_000
#: From how many standard errors on an error counts as resolved, and the ``h`` from which on it is not asymptotic.
RESOLVED, LARGEST = 5.0, 0.1
#: What is beyond this counts as diverged: its square would soon not be a number.
HUGE = 1e100


@dataclass(frozen=True)
class WeakError:
    """Weak errors of several chains: for each, a `Trajectory` of ``E phi(chain) - E phi(reference)`` with s.e.

    Args:
        h: the clock of each chain: ``eta^2``, for SGD and momentum in time ``eta``; for SVAG ``eta^2 / ell^2``.
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
        """Return errors and standard errors of a test function, one for each chain, at the time of that index."""
        estimates = [error[name] for error in self.errors]
        return np.array([e.mean[time] for e in estimates]), np.array([e.se[time] for e in estimates])

    def rows(self, time: int = -1) -> Iterator[tuple[float, str, float, float, bool]]:
        """Yield ``(h, test function, error, standard error, resolved)``; 5 standard errors are resolved."""
        for name in self.names:
            for h, error, se in zip(self.h, *self.at(name, time), strict=True):
                yield h, name, float(error), float(se), bool(abs(error) >= RESOLVED * se)


def weak_error(
    chains: Chain | Sequence[Chain],
    reference: SDE | Chain | Sequence[SDE | Chain],
    x0: State,
    save: SaveAt,
    *,
    scheme: str | Scheme | None = None,
    controls: bool = True,
    paths: Paths = Paths(PATHS),  # noqa: B008  (frozen)
) -> WeakError:
    """Estimate ``E phi(chain) - E phi(reference)`` with standard errors, for each chain and test function.

    >>> import torch
    >>> from rootscale.theory import NGOS, RMSpropState, cosine, discretise, fit_order
    >>> from rootscale.theory.equations import RMSpropSDE
    >>> equation = RMSpropSDE(NGOS(cosine(), sigma=1.0), sigma0=0.7, c2=2.0, eps0=0.3)
    >>> x0 = RMSpropState(*torch.tensor([[[1.0]], [[0.3]]], dtype=torch.float64))
    >>> chains = [discretise(equation, eta=h**0.5) for h in (1 / 16, 1 / 32, 1 / 64)]
    >>> errors = weak_error(chains, equation, x0, SaveAt([1.0]), paths=Paths(4000))
    >>> fit_order(errors, "theta").covers(1.0, within=0.15)
    True

    Args:
        chains: the chains, of any step sizes; see `discretise`, `svag_chain`, `rescaled`. Their oracles must be `NGOS`.
        reference: the SDE; or for each chain a second chain at ``kappa`` times the batch size, ``kappa`` whole, or an
            SDE of its own.
        x0: where all of them start: a state of the SDE, of tensors ``[1, d]`` or ``[P, d]``.
        save: which test functions to compare, and when: whole steps of every chain after the start. The start is Adam's
            step counter too, ``k = start / h``; Adam needs ``start > 0``.
        scheme: how to solve the SDE: a row of `SCHEMES` whose weak order is at least 2. Richardson on Euler-Maruyama
            unless given; for Adam on Heun, since its noise is in ``m`` alone.
        controls: regress out the martingale controls.
        paths: how many for each chain, and how. Chain ``i`` uses ``seed + i``, so that errors of different chains are
            independent. Steps are compiled only where ``compile=True``: they are two to three times as fast, after a
            minute of compiling.

    Warns:
        RuntimeWarning: paths diverged; they are counted in ``diverged`` and left out.
    """
    chains = [chains] if isinstance(chains, Chain) else list(chains)
    references: list[SDE | Chain]
    references = list(reference) if isinstance(reference, Sequence) else [reference] * len(chains)
    if not chains or len(references) != len(chains):
        raise ValueError(f"as many references as chains are needed, got {len(references)} and {len(chains)}")
    count = len(x0[0]) if len(x0[0]) > 1 else paths.count or PATHS
    if count < 100:
        raise ValueError(f"paths must be at least 100, for a standard error to mean something, got {count}")
    errors = []
    for i, (chain, ref) in enumerate(zip(chains, references, strict=True)):
        if not isinstance(chain.oracle, NGOS):
            raise TypeError(
                f"weak_error needs chains over an NGOS, whose noise can be coupled, got {chain.oracle!r:.80}"
            )
        how = replace(
            paths, count=count, seed=paths.seed + i, compile=bool(paths.compile), warn=False,
            progress=_part(paths, i, len(chains)),
        )  # fmt: skip
        x = started(x0, chain.kind, chain.oracle)
        error = _Pair(chain, ref, _scheme(chain, ref, x, save.start, scheme), controls).error(x, save, how)
        if paths.warn and error.diverged[-1]:
            warnings.warn(
                f"{error.diverged[-1]} of {error.replicas} paths diverged (beyond {HUGE:g}); means are over the others",
                RuntimeWarning,
                stacklevel=2,
            )
        errors.append(error)
    return WeakError(tuple(chain.clock for chain in chains), tuple(errors))


def _part(paths: Paths, index: int, count: int) -> Callable[[float], None] | None:
    """Return what reports the progress of one chain of several."""
    report = paths.progress
    return None if report is None else lambda share: report((index + share) / count)


def _scheme(chain: Chain, reference: SDE | Chain, x0: State, start: float, scheme: str | Scheme | None) -> Scheme:
    """Return the scheme to solve the SDE with, after checks of the chain and of the scheme."""
    if getattr(reference, "kind", chain.kind) is not chain.kind:
        raise ValueError(
            f"a chain of {chain.optimizer.name} has states {chain.kind.__name__}, its reference has "
            f"{reference.kind.__name__}; compare it with sde(chain.optimizer, chain.oracle)"
        )
    need_later(chain.kind, start)
    if scheme is None:
        scheme = "heun-richardson" if chain.moments == 2 else "richardson"
    how = get_scheme(scheme)

    def solves(row: Scheme) -> bool:
        return isinstance(reference, Chain) or suits(row, reference, x0, start)

    if how.order < 2 or not solves(how):
        why = (
            "has weak order 1, that of the error to be measured"
            if solves(how)
            else f"does not solve {type(reference).__name__}, whose noise depends on what it moves"
        )
        suited = [repr(row.name) for row in SCHEMES.values() if row.order > 1 and solves(row)]
        raise ValueError(f"scheme {how.name!r} {why}; use {' or '.join(suited)}")
    return how


@dataclass(frozen=True)
class _Pair:
    """A chain, what it is compared with, and how."""

    chain: Chain
    reference: SDE | Chain
    scheme: Scheme
    controls: bool

    def error(self, x0: State, save: SaveAt, paths: Paths) -> Trajectory:
        """Return the weak errors at the requested times."""
        chain, reference = self.chain, self.reference
        assert isinstance(chain.oracle, NGOS)
        stride, gaussian = stride_of(chain, reference), chain.oracle.family == FAMILIES["gaussian"]
        momentum = getattr(chain.optimizer, "momentum", 0.0)
        fades: tuple[float, ...] = (0.0, 2.0 / (save.times[-1] - save.start)) if self.controls else ()
        if self.controls and momentum:  # theta lacks the noise that momentum still holds
            fades += ((1 - momentum) / chain.clock,)
        halves = not isinstance(reference, Chain) and self.scheme.draws > 1
        sums = Controls(fades, "u" in chain.kind._fields, gaussian, halves, chain.memory)
        coupled = Coupled(chain, reference, self.scheme, stride, save.start / chain.clock, sums)
        functions = save.functions_of(x0)
        raw = drive(
            System(coupled, stride * chain.clock, coupled.width),
            coupled.initial(x0),
            lambda t, x: self._columns(x, functions),
            replace(save, keep=True),
            paths,
        )
        estimates, diverged, gains = _estimates(raw, list(functions))
        meta = {
            **raw.meta, "chain": repr(chain.optimizer), "sigma": chain.oracle.sigma,
            "problem": chain.oracle.problem.name, "family": repr(chain.oracle.family)[:200],
            "scheme": self.scheme.name, "kappa": stride, "variance_gain": gains,
            "reference": repr(reference.optimizer) if isinstance(reference, Chain) else type(reference).__name__,
        }  # fmt: skip
        return Trajectory(raw.times, {}, estimates, raw.replicas, diverged, meta)

    def _columns(self, x: States, functions: Functions) -> dict[str, Tensor]:
        """Return the differences of the test functions, and the controls, for each path."""
        first, sums, *others = x
        solutions: list[tuple[float, State]]
        if isinstance(self.reference, Chain):
            solutions = [(1.0, self.reference.scaled(others[0]))]
            sums = (*sums, *others[1])
        else:
            solutions = [(weight, y) for (_, weight), y in zip(self.scheme.levels, others, strict=True)]
        mine = self.chain.scaled(first)
        columns = {name: phi(mine) - sum(w * phi(y) for w, y in solutions) for name, phi in functions.items()}
        return columns | {f"control {i}": s.mean(1) for i, s in enumerate(sums)}


def _estimates(raw: Trajectory, names: list[str]) -> tuple[dict[str, Estimate], NDArray[np.int64], dict[str, float]]:
    """Return estimates by test function, lost paths at each time, and by how much the controls cut the variance."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    gains: dict[str, float] = {}
    diverged = np.zeros(len(raw.times), np.int64)
    for time in range(len(raw.times)):
        columns = np.stack([raw.values[name][:, time] for name in raw.values], 1)
        columns = columns[(np.abs(columns) < HUGE).all(1)]  # NaN is not below anything
        diverged[time] = raw.replicas - len(columns)
        if len(columns) < 100:
            raise ValueError(f"{diverged[time]} of {raw.replicas} paths diverged; too few are left")
        mean, se, plain = _regressed(columns, len(names))
        for i, name in enumerate(names):
            found[name].append((mean[i], se[i]))
            gains[name] = float((plain[i] / se[i]) ** 2) if se[i] else math.inf
    pairs = {name: np.array(values) for name, values in found.items()}
    return {name: Estimate(p[:, 0], p[:, 1]) for name, p in pairs.items()}, diverged, gains


def _regressed(values: Array, tests: int) -> tuple[Array, Array, Array]:
    """Return mean and standard error of the first columns, less what the others explain; and the plain standard error.

    The other columns, the controls, have mean zero.

    Coefficients come from the other half of the paths (even and odd ones), so that they do not know the noise that
    they are multiplied with, and nothing is biased. A control that is made of events too rare for half of the paths
    has no coefficient.
    """
    means, variances, plain = [], [], []
    reach = np.abs(values[:, tests:]).max(0)
    folds = [values[fold::2] for fold in (0, 1)]
    for fold, other in ((folds[0], folds[1]), (folds[1], folds[0])):
        centered = other - other.mean(0)
        controls = centered[:, tests:]
        size = np.sqrt((controls**2).mean(0))
        scale = np.where((size > 0) & (reach <= size * math.sqrt(len(other))), size, np.inf)
        values_of, vectors = np.linalg.eigh(controls.T @ controls / np.outer(scale, scale) / len(other))
        keep = values_of > 1e-9  # what other controls repeat, or what is always zero, is left out, not inverted
        basis = vectors[:, keep] / scale[:, None]
        slope = basis @ ((basis.T @ (controls.T @ centered[:, :tests] / len(other))) / values_of[keep, None])
        rest = fold[:, :tests] - fold[:, tests:] @ slope
        means.append(rest.mean(0))
        variances.append(rest.var(0, ddof=1) / len(rest))
        plain.append(fold[:, :tests].var(0, ddof=1))
    share = np.array([len(fold) for fold in folds]) / len(values)
    plain_se = np.sqrt(share @ np.array(plain) / len(values))
    return share @ np.array(means), np.sqrt(share**2 @ np.array(variances)), plain_se


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
        """Return whether the slope is within so much of ``order``; without two resolved points it is not."""
        return bool(abs(self.slope - order) <= within)

    def __str__(self) -> str:
        """Return a line such as ``theta: 1.02 ± 0.03 (5 points)``, and the notes."""
        if not math.isfinite(self.slope):
            return f"{self.name}: unresolved"
        text = f"{self.name}: {self.slope:.3f} ± {1.96 * self.se:.3f} ({len(self.used)} points)"
        return "; ".join((text, *self.notes))


def fit_order(
    errors: WeakError, name: str, *, time: int = -1, threshold: float = RESOLVED, largest: float = LARGEST
) -> Order:
    """Fit the order of the error in ``h``: a weighted straight line through ``log |error|`` over ``log h``.

    ``notes`` of the result say what makes the fit doubtful: the error changes its sign, or the largest ``h`` that is
    used does not lie on the line of the others.

    Args:
        errors: from `weak_error`.
        name: the test function.
        time: the index of the time.
        threshold: how many standard errors an error must have to be used.
        largest: ``h`` from which on points are left out as not asymptotic.
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
    return Order(name, slope, slope_se, tuple(np.exp(x).tolist()), **left, notes=tuple(_notes(x, y, s, error[use])))


def _notes(x: Array, y: Array, s: Array, error: Array) -> list[str]:
    """Return what makes a fit of ``y`` over ``x`` with errors ``s`` doubtful; the points are in the order of ``x``."""
    notes = []
    if len(set(np.sign(error))) > 1:
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
    return notes


def _line(x: Array, y: Array, s: Array) -> tuple[float, float]:
    """Return slope and standard error of a weighted straight line, with Birge's factor for excess scatter."""
    weight = s**-2.0
    centre = np.average(x, weights=weight)
    spread = float(weight @ (x - centre) ** 2)
    slope = float(weight @ ((x - centre) * y)) / spread
    rest = y - np.average(y, weights=weight) - slope * (x - centre)
    birge = float(weight @ rest**2) / (len(x) - 2) if len(x) > 2 else 1.0
    return slope, math.sqrt(max(1.0, birge) / spread)
