"""Ready-made settings in which a theorem can be watched: an SDE, where it starts, and for how long it runs.

The constants are chosen so that every one of them matters: ``u`` starts far from ``diag Sigma``, ``eps0`` is comparable
to ``sigma0 sqrt(u)``, ``1/c1`` and ``1/c2`` are comparable to the time, noise and drift both move ``theta``. They are
also chosen so that the leading coefficient of the error does not vanish for the usual test functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from rootscale.theory.discrete import Chain, discretise
from rootscale.theory.oracle import FAMILIES, NGOS, AnyFamily, Minibatch, Problem, cosine, linear, logistic, quadratic
from rootscale.theory.sde import SDE, SGDSDE, AdamSDE, AdamState, RMSpropSDE, RMSpropState, SGDState

__all__ = ["OPTIMIZERS", "PROBLEMS", "Case", "case"]


@dataclass(frozen=True)
class Case:
    """An SDE, its initial state ``x0`` (tensors ``[1, d]``, float64) at time ``start``, and how long to run it."""

    equation: SDE
    x0: SGDState | RMSpropState | AdamState
    start: float
    duration: float

    @property
    def end(self) -> float:
        """The last time."""
        return self.start + self.duration

    def chain(self, steps: int) -> Chain:
        """The chain that takes ``steps`` steps for the duration."""
        h = self.duration / steps
        return discretise(self.equation, h if isinstance(self.equation, SGDSDE) else h**0.5)


@dataclass(frozen=True)
class _Scale:
    """What the constants of an SDE are measured in: typical noise and gradient, ``sigma0``; and where each starts."""

    problem: Callable[[], Problem]
    family: AnyFamily
    sigma0: float
    theta0: Mapping[str, float]
    noise: float
    gradient: float
    duration: float


def _balanced() -> Problem:
    """Logistic regression on four points whose labels are balanced: the noise of a batch is nearly symmetric."""
    x = 0.2 * torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [1.0, -1.0]], dtype=torch.double)
    return logistic(x, torch.tensor([0, 1, 0, 1]))


_ONE = {"sgd": 1.0, "rmsprop": 1.0, "adam": 1.0}
#: Problems by name: the loss and covariance, the noise family, and their scales.
PROBLEMS: Mapping[str, _Scale] = MappingProxyType({
    "cosine": _Scale(lambda: cosine(1), FAMILIES["gaussian"], 0.7, _ONE, 1.0, 1.0, 1.0),
    "quadratic": _Scale(lambda: quadratic([1.0]), FAMILIES["gaussian"], 0.7, _ONE, 1.0, 1.0, 1.0),
    "linear": _Scale(lambda: linear([1.0]), FAMILIES["gaussian"], 0.7, _ONE, 1.0, 1.0, 1.0),
    "logistic": _Scale(_balanced, Minibatch(1), 0.05, {**_ONE, "rmsprop": 4.0}, 0.1, 0.02, 0.8),
})  # fmt: skip


def _full(scale: _Scale, value: float) -> Tensor:
    return torch.full((1, scale.problem().d), value, dtype=torch.double)


def _sgd(scale: _Scale, oracle: NGOS) -> tuple[SDE, SGDState]:
    return SGDSDE(oracle, scale.sigma0), SGDState(_full(scale, scale.theta0["sgd"]))


def _rmsprop(scale: _Scale, oracle: NGOS) -> tuple[SDE, RMSpropState]:
    eps0 = 0.4 * scale.sigma0 * scale.noise
    equation = RMSpropSDE(oracle, scale.sigma0, c2=2.0 / scale.duration, eps0=eps0)
    return equation, RMSpropState(_full(scale, scale.theta0["rmsprop"]), _full(scale, 0.3 * scale.noise**2))


def _adam(scale: _Scale, oracle: NGOS) -> tuple[SDE, AdamState]:
    eps0 = 0.4 * scale.sigma0 * scale.noise
    equation = AdamSDE(oracle, scale.sigma0, c1=1.5 / scale.duration, c2=2.0 / scale.duration, eps0=eps0)
    start = (_full(scale, v) for v in (scale.theta0["adam"], -scale.gradient, 0.5 * scale.noise**2))
    return equation, AdamState(*start)


#: How each optimizer's SDE and initial state follow from the scales of a problem, and at what time it starts.
OPTIMIZERS: Mapping[str, tuple[Callable[[_Scale, NGOS], tuple[SDE, SGDState | RMSpropState | AdamState]], float]]
OPTIMIZERS = MappingProxyType({"sgd": (_sgd, 0.0), "rmsprop": (_rmsprop, 0.0), "adam": (_adam, 0.5)})


def case(optimizer: str, problem: str = "cosine", family: AnyFamily | None = None) -> Case:
    """The setting for this optimizer on this problem, by their names in `OPTIMIZERS` and `PROBLEMS`.

    >>> chain = case("adam").chain(steps=64)
    >>> chain.optimizer.eta, chain.optimizer.beta1, chain.optimizer.beta2, chain.oracle.sigma
    (0.125, 0.9765625, 0.96875, 5.6)

    Args:
        optimizer: whose SDE.
        problem: the loss and covariance.
        family: the noise; that of the problem unless given (mini-batches for ``logistic``, else Gaussian).
    """
    for what, name, table in (("optimizer", optimizer, OPTIMIZERS), ("problem", problem, PROBLEMS)):
        if name not in table:
            raise ValueError(f"{what} must be one of {', '.join(table)}, got {name!r}")
    scale, (make, start) = PROBLEMS[problem], OPTIMIZERS[optimizer]
    equation, x0 = make(scale, NGOS(scale.problem(), 1.0, family or scale.family))
    return Case(equation, x0, start * scale.duration, scale.duration)
