"""The solver of an SDE for many paths: fixed steps of Euler-Maruyama or Heun, and Richardson's combinations.

A scheme is a row of `SCHEMES`: a step, and the step sizes ``h / n`` whose solutions are combined with weights. All of
them follow the same Brownian path, the coarse increments being sums of the fine ones, so the combination has about the
variance of a single solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory.discrete import Chain, Scheduled, sde
from rootscale.theory.engine import Paths, SaveAt, State, States, System, drive
from rootscale.theory.equations import AdamSDE, AdamState, need_later, started
from rootscale.trajectory import Trajectory


class Equation(Protocol):
    """What `solve` needs of an SDE ``dx = drift dt + diffusion dW``; see `rootscale.theory.equations`."""

    @property
    def oracle(self) -> Any:
        """Has ``rank``, the number of normals that a path takes in a step."""

    def drift(self, t: Any, x: Any) -> State:
        """Return the factor of ``dt``, like ``x``."""

    def diffusion(self, t: Any, x: Any, dw: Tensor) -> State:
        """Return the noise increment, like ``x``."""


Step = Callable[[Equation, Tensor, float | Tensor, State, Tensor], State]


def _like(x: State, parts: Iterable[Tensor]) -> State:
    # Not NamedTuple._make: torch.compile of torch 2.11 makes an empty tuple of it.
    made = tuple(parts)
    return type(x)(*made) if hasattr(x, "_fields") else made


def increment(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """Return ``drift(t, x) h + diffusion(t, x, dW)``; an equation may have an ``increment`` that saves work."""
    own = getattr(equation, "increment", None)
    if own is not None:
        return _like(x, own(t, x, h, dw))
    return _like(x, (a * h + b for a, b in zip(equation.drift(t, x), equation.diffusion(t, x, dw), strict=True)))


def euler(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """Take a step of Euler-Maruyama: ``x + drift(t, x) h + diffusion(t, x, dW)``. Weak order 1."""
    return _like(x, map(torch.add, x, increment(equation, t, h, x, dw)))


def heun(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """Take a step of Heun: the mean of the Euler-Maruyama increments at ``x`` and at its prediction ``y``.

        y  = x + drift(t, x) h + diffusion(t, x, dW)
        x' = x + (drift(t, x) + drift(t + h, y)) h / 2 + (diffusion(t, x, dW) + diffusion(t + h, y, dW)) / 2

    It solves the Stratonovich equation, so it is for SDEs where that is the Ito equation too: Adam's, whose noise
    enters ``m`` and depends on ``theta`` alone, or noise that depends on no state. There its weak order is 2.
    """
    first = increment(equation, t, h, x, dw)
    second = increment(equation, t + h, h, _like(x, map(torch.add, x, first)), dw)
    return _like(x, (y + (a + b) / 2 for y, a, b in zip(x, first, second, strict=True)))


@dataclass(frozen=True)
class Scheme:
    """How to solve.

    Args:
        name: as in `SCHEMES`.
        step: one step of one solution.
        levels: pairs ``(n, weight)``; the result is the sum of ``weight * g(solution with steps h / n)``.
        order: the weak order of the combination (for Heun: where its condition holds).
    """

    name: str
    step: Step
    levels: tuple[tuple[int, float], ...]
    order: int

    @property
    def draws(self) -> int:
        """How many increments the finest solution needs for each step ``h``."""
        return math.lcm(*(n for n, _ in self.levels))


#: The schemes by name. Richardson's weights cancel the leading error of the step: ``h`` of Euler's, ``h^2`` of Heun's.
SCHEMES: Mapping[str, Scheme] = MappingProxyType({
    scheme.name: scheme
    for scheme in (
        Scheme("euler", euler, ((1, 1.0),), 1),
        Scheme("heun", heun, ((1, 1.0),), 2),
        Scheme("richardson", euler, ((2, 2.0), (1, -1.0)), 2),
        Scheme("richardson-2-4", euler, ((4, 2.0), (2, -1.0)), 2),
        Scheme("heun-richardson", heun, ((2, 4 / 3), (1, -1 / 3)), 3),
    )
})  # fmt: skip


def get_scheme(scheme: Scheme | str) -> Scheme:
    """Return a row of `SCHEMES` by its name; a scheme is returned as it is."""
    if isinstance(scheme, str) and scheme not in SCHEMES:
        raise ValueError(f"no scheme {scheme!r}; there are {', '.join(SCHEMES)}")
    return SCHEMES[scheme] if isinstance(scheme, str) else scheme


def suits(scheme: Scheme, equation: Equation, x0: State, t0: float) -> bool:
    """Return whether a scheme solves this equation: Heun's only where the noise does not depend on what it moves."""
    if scheme.step is not heun:
        return True
    x = _like(x0, (part[:1] for part in x0))
    t = torch.tensor(t0, dtype=x[0].dtype, device=x[0].device)
    dw = torch.linspace(0.3, 0.7, equation.oracle.rank, dtype=x[0].dtype, device=x[0].device)[None]  # any increment
    here = equation.diffusion(t, x, dw)
    there = equation.diffusion(t, _like(x, map(torch.add, x, here)), dw)
    return all(torch.allclose(a, b, rtol=1e-5, atol=0.0) for a, b in zip(here, there, strict=True))


@dataclass(frozen=True)
class Levels:
    """One step ``h`` of all solutions of a scheme, on one Brownian path: an ``advance`` for `drive`."""

    equation: Equation
    scheme: Scheme

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        """Take the step; ``w`` are the normals of the ``scheme.draws`` finest increments."""
        fine = len(w)
        dw = [z * (h / fine) ** 0.5 for z in w]
        return tuple(self.solution(n, t, h, y, dw) for (n, _), y in zip(self.scheme.levels, x, strict=True))

    def solution(self, n: int, t: Tensor, h: float | Tensor, x: State, dw: list[Tensor]) -> State:
        """Take ``n`` steps ``h / n`` of one solution."""
        share = len(dw) // n
        for j in range(n):
            increment = sum(dw[j * share + 1 : (j + 1) * share], start=dw[j * share])
            x = self.scheme.step(self.equation, t + h * (j / n) if j else t, h / n, x, increment)
        return x


def solve(
    equation: Equation,
    x0: State,
    save: SaveAt,
    *,
    h: float,
    scheme: Scheme | str = "euler",
    paths: Paths = Paths(),  # noqa: B008  (frozen)
) -> Trajectory:
    """Return test functions of the solution of an SDE at requested times.

    >>> from rootscale.theory import NGOS, Paths, SaveAt, quadratic
    >>> from rootscale.theory.equations import SGDSDE, SGDState
    >>> ornstein_uhlenbeck = SGDSDE(NGOS(quadratic([1.0]), sigma=1.0), sigma0=0.5)
    >>> x0 = SGDState(torch.full((1, 1), 2.0, dtype=torch.float64))
    >>> save = SaveAt([1.0], {"theta": lambda x: x.theta[:, 0]})
    >>> mean, se = solve(ornstein_uhlenbeck, x0, save, h=0.01, paths=Paths(1000))["theta"]
    >>> bool(abs(mean[0] - 2 * math.exp(-1)) < 4 * se[0])
    True

    Args:
        equation: the SDE.
        x0: its state at ``save.start``: tensors ``[P, d]``, or ``[1, d]`` for a common start. Their device and dtype
            are those of the solve.
        save: which test functions to evaluate, and when.
        h: the step size (the largest, if the scheme combines several).
        scheme: a row of `SCHEMES`, or its name.
        paths: how many, and how. Schemes of equal ``draws`` share the Brownian motion of a seed.
    """
    scheme, kind = get_scheme(scheme), getattr(equation, "kind", None)
    if kind is not None:
        x0 = started(x0, kind, equation.oracle)
        need_later(kind, save.start)
    if not suits(scheme, equation, x0, save.start):
        fitting = ", ".join(name for name, row in SCHEMES.items() if row.step is not heun)
        raise ValueError(
            f"scheme {scheme.name!r} solves the Stratonovich equation, which is another one where the noise depends on "
            f"what it moves, as that of this {type(equation).__name__}; use one of {fitting}"
        )
    levels, functions = scheme.levels, save.functions_of(x0)

    def observe(t: float, x: States) -> dict[str, Tensor]:
        return {
            name: sum((weight * f(y) for (_, weight), y in zip(levels[1:], x[1:], strict=True)), levels[0][1] * f(x[0]))
            for name, f in functions.items()
        }

    system = System(Levels(equation, scheme), positive("h", h), equation.oracle.rank, scheme.draws)
    meta = {"scheme": scheme.name, "equation": type(equation).__name__}
    return drive(system, (x0,) * len(levels), observe, save, paths, meta)


def batch_gap(
    chain: Chain,
    kappa: float,
    x0: State,
    save: SaveAt,
    *,
    h: float,
    paths: Paths = Paths(),  # noqa: B008  (frozen)
) -> Trajectory:
    """Predict the gap of Adam at ``kappa`` times the batch under the square root rule, at equal samples.

    The rule keeps the SDE of the limit, so that a gap is what the limit leaves out. Most of it is the squared gradient
    in ``u``: the larger batch has ``kappa / sigma^2 (grad f)^2`` where the smaller one has ``(grad f)^2 / sigma^2``.
    This solves the SDE with both (`AdamSDE.signal`) on the same Brownian paths. In 16 of 16 measured gaps, on digits
    and on the cosine problem at 0.5 to 3.5 noise scales, the prediction was 0.86 to 1.02 of the measured
    (experiments/beyond_noise.py). Steps near their edge of stability have errors of their own.

    >>> import torch
    >>> from rootscale.hparams import Adam
    >>> from rootscale.theory import NGOS, AdamState, Chain, cosine
    >>> chain = Chain(Adam(eta=1 / 32, beta1=0.99, beta2=0.996), NGOS(cosine(), sigma=16.0))
    >>> x0 = AdamState(*torch.tensor([[[6.0]], [[6.0]], [[1.0]]], dtype=torch.float64))
    >>> loss = {"loss": lambda x: (x.theta.square() + x.theta.cos())[:, 0] / 2}
    >>> gap = batch_gap(chain, 16, x0, SaveAt([1.25], loss, start=0.25), h=1 / 64, paths=Paths(500))
    >>> round(float(gap["loss"].mean[0]), 2)
    0.14

    Args:
        chain: Adam or AdamW at the batch size it has.
        kappa: by how much the batch is multiplied.
        x0: the state of the SDE at ``save.start``, where the batch changes.
        save: which test functions to compare, and when; every path's difference is kept.
        h: the step of the solver (Heun); a fraction of ``1 / c1``.
        paths: how many, and how; few suffice, since both solutions share their noise.
    """
    if chain.kind is not AdamState:
        raise ValueError(
            f"gaps are predicted for Adam and AdamW, where predictions were held against runs; got "
            f"{chain.optimizer.name}. Run both batch sizes: run_chain(chain, ...) and run_chain(rescaled(chain, kappa))"
        )
    positive("kappa", kappa)
    limit = sde(chain.optimizer, chain.oracle)
    assert isinstance(limit, AdamSDE)
    found = []
    for factor in (1.0, kappa):
        finite = replace(limit, signal=factor / chain.oracle.sigma**2)
        equation = finite if chain.schedule is None else Scheduled(finite, chain.schedule)
        found.append(solve(equation, x0, replace(save, keep=True), h=h, scheme="heun", paths=paths))
    base, larger = found
    gaps = {name: larger.values[name] - base.values[name] for name in base.names}
    return Trajectory(base.times, gaps, meta={**base.meta, "kappa": kappa, "sigma": chain.oracle.sigma})


@runtime_checkable
class Drawable(Protocol):
    """What `run_chain` needs of an oracle: stochastic gradients as a function of standard normals."""

    @property
    def normals(self) -> int:
        """How many standard normals a stochastic gradient takes."""

    def drawn(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return the stochastic gradient ``[P, d]`` of the normals ``w [P, normals]``."""


@dataclass(frozen=True)
class _Step:
    """One step of a chain: an ``advance`` for `drive`. ``start`` is the counter of its first step."""

    chain: Chain
    oracle: Drawable
    start: float

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        return (self.chain.step(self.start + k, x[0], self.oracle.drawn(x[0][0], w[0])),)


def run_chain(
    chain: Chain,
    x0: State,
    save: SaveAt,
    paths: Paths = Paths(),  # noqa: B008  (frozen)
) -> Trajectory:
    """Return test functions of a chain at times ``t = k chain.clock``, as `solve` gives them of its SDE.

    >>> import torch
    >>> from rootscale.hparams import RMSprop
    >>> from rootscale.theory import NGOS, Chain, RMSpropState, cosine
    >>> chain = Chain(RMSprop(eta=0.1, beta=0.98), NGOS(cosine(), sigma=10.0))
    >>> x0 = RMSpropState(torch.ones(1, 1), torch.ones(1, 1))
    >>> result = run_chain(chain, x0, SaveAt([0.0, 1.0], {"theta": lambda x: x.theta[:, 0]}), Paths(100))
    >>> result["theta"].mean[0]
    np.float64(1.0)

    Args:
        chain: the optimizer on its oracle; `svag_chain` gives SVAG's.
        x0: the state at ``save.start``, *of the SDE* (``u = v / sigma^2``), so that all processes can start at the
            same one.
        save: which test functions of a state of the SDE to evaluate, and when. The chain's counter starts at
            ``save.start`` over the time of a step.
        paths: how many, and how; the stochastic gradients are made of its normals.
    """
    oracle, h = chain.oracle, chain.clock
    if not isinstance(oracle, Drawable):
        raise TypeError(
            f"run_chain needs an oracle with normals and drawn(theta, w), as NGOS and NetworkOracle have them; "
            f"{type(oracle).__name__} has none (Chain.iterate takes any oracle)"
        )
    x0 = started(x0, chain.kind, chain.oracle)
    functions = save.functions_of(x0)

    def observe(t: float, x: States) -> dict[str, Tensor]:
        state = chain.scaled(x[0])
        return {name: f(state) for name, f in functions.items()}

    system = System(_Step(chain, oracle, save.start / h), h, oracle.normals)
    meta = {"optimizer": repr(chain.optimizer), "sigma": oracle.sigma, "form": chain.form.name}
    return drive(system, (chain.unscaled(x0),), observe, save, paths, meta)
