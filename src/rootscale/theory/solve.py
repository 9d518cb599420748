"""Solving an SDE for many paths: fixed steps of Euler-Maruyama or Heun, and Richardson's combinations of step sizes.

A scheme is a row of `SCHEMES`: a step, and the step sizes ``h / n`` whose solutions are combined with weights. All of
them follow the same Brownian path, the coarse increments being sums of the fine ones, so the combination has about the
variance of a single solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.theory.engine import State, States, drive
from rootscale.trajectory import Trajectory

__all__ = ["SCHEMES", "Equation", "Levels", "Scheme", "euler", "heun", "increment", "solve", "whole_steps"]


class Equation(Protocol):
    """What `solve` needs of an SDE ``dx = drift dt + diffusion dW``; see `rootscale.theory.sde`."""

    @property
    def oracle(self) -> Any:
        """Has ``rank``, the number of normals that a path takes in a step."""

    def drift(self, t: Any, x: Any) -> State:
        """The factor of ``dt``, like ``x``."""

    def diffusion(self, t: Any, x: Any, dw: Tensor) -> State:
        """The noise increment, like ``x``."""


Step = Callable[[Equation, Tensor, float | Tensor, State, Tensor], State]


def _like(x: State, parts: Iterable[Tensor]) -> State:
    # Not NamedTuple._make: torch.compile of torch 2.11 makes an empty tuple of it.
    made = tuple(parts)
    return type(x)(*made) if hasattr(x, "_fields") else made


def increment(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """``drift(t, x) h + diffusion(t, x, dW)``; by the equation's own ``increment``, if it has one that saves work."""
    own = getattr(equation, "increment", None)
    if own is not None:
        return _like(x, own(t, x, h, dw))
    return _like(x, (a * h + b for a, b in zip(equation.drift(t, x), equation.diffusion(t, x, dw), strict=True)))


def euler(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """Euler-Maruyama: ``x + drift(t, x) h + diffusion(t, x, dW)``. Weak order 1."""
    return _like(x, map(torch.add, x, increment(equation, t, h, x, dw)))


def heun(equation: Equation, t: Tensor, h: float | Tensor, x: State, dw: Tensor) -> State:
    """Heun: the mean of the Euler-Maruyama increments at ``x`` and at its prediction ``y``.

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


def suits(scheme: Scheme, equation: Equation, x0: State, t0: float) -> bool:
    """Whether a scheme solves this equation: Heun's only where the noise does not depend on the state it moves."""
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
        """``w`` are the normals of the ``scheme.draws`` finest increments."""
        fine = len(w)
        dw = [z * (h / fine) ** 0.5 for z in w]
        return tuple(self.solution(n, t, h, y, dw) for (n, _), y in zip(self.scheme.levels, x, strict=True))

    def solution(self, n: int, t: Tensor, h: float | Tensor, x: State, dw: list[Tensor]) -> State:
        """``n`` steps ``h / n`` of one solution."""
        share = len(dw) // n
        for j in range(n):
            increment = sum(dw[j * share + 1 : (j + 1) * share], start=dw[j * share])
            x = self.scheme.step(self.equation, t + h * (j / n) if j else t, h / n, x, increment)
        return x


def solve(
    equation: Equation,
    x0: State,
    functions: Mapping[str, Callable[[Any], Tensor]],
    times: Sequence[float],
    *,
    h: float,
    seed: int,
    scheme: Scheme | str = "euler",
    t0: float = 0.0,
    paths: int | None = None,
    keep: bool = False,
    compile: bool | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
) -> Trajectory:
    """Test functions of the solution of an SDE at requested times.

    >>> from rootscale.theory.oracle import NGOS, quadratic
    >>> from rootscale.theory.sde import SGDSDE, SGDState
    >>> ornstein_uhlenbeck = SGDSDE(NGOS(quadratic([1.0]), sigma=1.0), sigma0=0.5)
    >>> x0 = SGDState(torch.full((1, 1), 2.0, dtype=torch.float64))
    >>> result = solve(ornstein_uhlenbeck, x0, {"theta": lambda x: x.theta[:, 0]}, [1.0], h=0.01, seed=0, paths=1000)
    >>> mean, se = result["theta"]
    >>> bool(abs(mean[0] - 2 * math.exp(-1)) < 4 * se[0])
    True

    Args:
        equation: the SDE.
        x0: its state at ``t0``: tensors ``[P, d]``, or ``[1, d]`` together with ``paths``. Their device and dtype are
            those of the solve.
        functions: the test functions: of a state, one number for each path, ``[P]``.
        times: when to evaluate them: increasing, and whole numbers of steps from ``t0``.
        h: the step size (the largest, if the scheme combines several).
        seed: of the Brownian motion, which schemes of equal ``draws`` share.
        scheme: a row of `SCHEMES`, or its name.
        t0: the initial time; Adam's SDE needs ``t0 > 0``.
        paths, keep, compile, chunk, progress: as in `rootscale.theory.engine.drive`.
    """
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            raise ValueError(f"no scheme {scheme!r}; there are {', '.join(SCHEMES)}")
        scheme = SCHEMES[scheme]
    if not suits(scheme, equation, x0, t0):
        fitting = ", ".join(name for name, row in SCHEMES.items() if row.step is not heun)
        raise ValueError(
            f"scheme {scheme.name!r} solves the Stratonovich equation, which is another one where the noise depends on "
            f"what it moves, as that of this {type(equation).__name__}; use one of {fitting}"
        )
    levels = scheme.levels

    def observe(t: float, x: States) -> dict[str, Tensor]:
        return {
            name: sum((weight * f(y) for (_, weight), y in zip(levels[1:], x[1:], strict=True)), levels[0][1] * f(x[0]))
            for name, f in functions.items()
        }

    return drive(
        Levels(equation, scheme),
        (x0,) * len(levels),
        observe,
        steps=whole_steps(times, t0, h),
        h=h,
        width=equation.oracle.rank,
        draws=scheme.draws,
        seed=seed,
        t0=t0,
        paths=paths,
        keep=keep,
        compile=compile,
        chunk=chunk,
        progress=progress,
        meta={"scheme": scheme.name, "equation": type(equation).__name__},
    )


def whole_steps(times: Sequence[float], t0: float, h: float) -> list[int]:
    """How many steps ``h`` each time is after ``t0``, or an error that names the nearest time that would do."""
    steps, h = [], positive("h", h)
    for t in times:
        step = round((t - t0) / h)
        if abs(t0 + step * h - t) > 1e-6 * h:
            raise ValueError(f"times must be whole steps h={h:g} after t0={t0:g}; t={t:g} is not, {t0 + step * h:g} is")
        steps.append(step)
    return steps
