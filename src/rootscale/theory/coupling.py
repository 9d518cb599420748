"""A chain and what it is compared with, driven by one Brownian path, and the martingales that take the noise out.

Each process keeps its own law, so a poor coupling costs variance, never bias; see `rootscale.theory.weak`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rootscale.theory.discrete import SDE, Chain
from rootscale.theory.engine import State, States
from rootscale.theory.families import Draw
from rootscale.theory.oracle import NGOS
from rootscale.theory.signs import Memory
from rootscale.theory.solver import Levels, Scheme


@dataclass(frozen=True)
class Controls:
    """Sums of increments that have mean zero given the past, each with weights and fading that keep it so.

    At a step of the chain with ``y = Sigma^(1/2) brownian`` and ``z = Sigma^(1/2) xi``, they are, by coordinate,

        sqrt(h) y,   h (y^2 - Sigma),   h y1 y2,   sqrt(h) (z - y),   du = c2 h (z^2 - Sigma + 2 z f' / sigma),
        N sqrt(h) y

    (``y1, y2`` the two halves of the increment, ``N`` the running sum of ``du``: the noise in the chain's ``u``).
    Each is summed with the weights 1, ``theta`` and ``cos theta`` of the past, and its own running sum times the next
    ``sqrt(h) y`` once more; every sum with and without fading, since the dynamics forget.

    A sign does not know the size of the noise, so that there ``y`` and ``z`` are divided by ``diag Sigma^(1/2)``. Where
    the mean of the sign given the past is known, for Gaussian noise, ``sqrt(h)`` (sign - mean) is one more increment.
    """

    fades: tuple[float, ...]
    adaptive: bool
    gaussian: bool
    halves: bool
    memory: Memory | None = None

    @property
    def rows(self) -> int:
        """How many increments there are."""
        return 2 + self.halves + 2 * self.adaptive + (not self.gaussian) * (2 - self.adaptive) + self.signs

    @property
    def signs(self) -> bool:
        """Whether the noise of a sign is among them."""
        return self.gaussian and self.memory is not None

    @property
    def size(self) -> int:
        """How many tensors the state has: the noise in ``u``, then four sums for each increment and fading."""
        return 1 + 4 * self.rows * len(self.fades)

    def add(self, x: State, h: float | Tensor, theta: Tensor, increments: list[Tensor], du: Tensor | None) -> State:
        """Return the sums after one step more; ``increments[0]`` is ``sqrt(h) y``."""
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
class Coupled:
    """One base step of a chain and what it is compared with, on one probability space: an ``advance`` for `drive`.

    The states: that of the chain, the controls, and the solutions of the SDE (or the second chain and its controls).
    A base step is ``stride`` steps of the chain: one of the second chain, or of the solver.
    """

    chain: Chain
    reference: SDE | Chain
    scheme: Scheme
    stride: int
    start: float
    controls: Controls

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
        """Return the states that start at ``x0``, a state of the SDE."""
        zero = torch.zeros_like(x0[0])
        controls = (zero,) * self.controls.size
        if isinstance(self.reference, Chain):
            return (self.chain.unscaled(x0), controls, self.reference.unscaled(x0), (zero,) * 4)
        return (self.chain.unscaled(x0), controls, *(x0 for _ in self.scheme.levels))

    def __call__(self, k: Tensor, t: Tensor, h: float | Tensor, x: States, w: tuple[Tensor, ...]) -> States:
        """Return all states, one base step ``h`` later."""
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
        """Return the second chain, and controls of its own: the noise in its ``u``, or in its signs, as it acts."""
        assert isinstance(self.reference, Chain)
        oracle, theta = self.reference.oracle, x[0]
        gradient, z = oracle.gradient(theta), oracle.noise(theta, xi)
        new = self.reference.step(self.start / self.stride + k, x, gradient + oracle.sigma * z)
        if self.controls.fades and self.controls.signs:
            push = h**0.5 * surprise(self.reference, x, gradient, z)
            weights = (torch.ones_like(theta), theta, torch.cos(theta), sums[0])
            return new, tuple(total + weight * push for total, weight in zip(sums, weights, strict=True))
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
        """Return standard normals whose sum over ``sqrt(fine)`` is ``brownian``: halves of halves, by Levy's bridge."""
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
        unit = torch.ones_like(variance) if which.memory is None else variance.rsqrt()
        if which.memory is not None:
            y, variance = y * unit, torch.ones_like(variance)
        increments, du = [root * y, h * (y * y - variance)], None
        if which.halves:
            middle = len(fine) // 2
            one, two = (sum(some[1:], start=some[0]) for some in (fine[:middle], fine[middle:]))
            increments.append(h * oracle.noise(theta, one) * unit * oracle.noise(theta, two) * unit)
        if which.signs:
            increments.append(root * surprise(self.chain, x, gradient, z))
        if which.adaptive:
            share = self.chain.share
            jump = share * (z * z - variance + 2 / oracle.sigma * gradient * z)
            increments += [jump, controls[0] * increments[0]]
            du = (1 - share) * controls[0] + jump
        if not which.gaussian:
            z = z * unit
            increments.append(root * (z - y))
            if not which.adaptive:
                increments.append(h * (z * z - variance))
        return new, which.add(controls, h, theta, increments, du)


def surprise(chain: Chain, x: State, gradient: Tensor, z: Tensor) -> Tensor:
    """Return the sign of a chain's next step less its mean given the past, for Gaussian noise ``z``."""
    oracle, memory = chain.oracle, chain.memory
    assert memory is not None
    mean, _ = chain.summed(x, gradient)
    moved, _ = chain.summed(x, gradient + oracle.sigma * z)
    return torch.sign(moved) - memory.expected_sign(mean, oracle.sigma * oracle.variance(x[0]).sqrt())


def stride_of(chain: Chain, reference: SDE | Chain) -> int:
    """Return how many steps of the chain one step of the reference takes: ``kappa`` for a second chain, else 1."""
    if not isinstance(reference, Chain):
        return 1
    kappa = (chain.oracle.sigma / reference.oracle.sigma) ** 2
    if round(kappa) < 1 or abs(kappa - round(kappa)) > 1e-6 * kappa:
        raise ValueError(
            f"the second chain's batch must be a whole multiple of the first's, got {kappa:.6g} times as many samples "
            f"(sigma {chain.oracle.sigma:.6g} and {reference.oracle.sigma:.6g}); swap the two, or use rescaled()"
        )
    return round(kappa)
