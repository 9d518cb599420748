"""Named settings in which a theorem can be watched, as data: problems, noises, and constants of SDEs.

No torch is needed to read them; `rootscale.theory.cases` makes an SDE of a setting. The constants are chosen so that
every one of them matters: ``u`` starts far from ``diag Sigma``, ``eps0`` is comparable to ``sigma0 sqrt(u)``, ``1/c1``
and ``1/c2`` are comparable to the time, noise and drift both move ``theta``. They are also chosen so that the leading
coefficient of the error does not vanish for the usual test functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

#: The noise families by name; those but the last are rows of `rootscale.theory.families.FAMILIES`.
NOISES = ("gaussian", "rademacher", "skewed", "student-t", "minibatch")
GAUSSIAN, RADEMACHER, SKEWED, STUDENT_T, MINIBATCH = NOISES

#: The learning-rate schedules by name, the rows of `rootscale.theory.equations.SCHEDULES`.
SCHEDULES = ("constant", "linear", "cosine", "exponential", "warmup", "step")
CONSTANT = SCHEDULES[0]


@dataclass(frozen=True)
class Scale:
    """A problem, and what the constants of an SDE on it are measured in.

    Args:
        arguments: of the function of `rootscale.theory.oracle` that has the problem's name.
        noise: its own noise family, one of `NOISES`.
        sigma0: the noise constant of the SDE.
        size: of the noise of a sample's gradient.
        gradient: the size of the gradient.
        duration: how long to run, in continuous time.
        theta0: where the parameters start, by optimizer; 1 unless given.
    """

    arguments: tuple[Any, ...]
    noise: str = GAUSSIAN
    sigma0: float = 0.7
    size: float = 1.0
    gradient: float = 1.0
    duration: float = 1.0
    theta0: Mapping[str, float] = field(default_factory=dict)


#: Four points whose labels are balanced: the noise of a batch is nearly symmetric.
_BALANCED = ([[0.2, 0.2], [0.2, 0.2], [0.2, -0.2], [0.2, -0.2]], [0.0, 1.0, 0.0, 1.0])
PROBLEMS: Mapping[str, Scale] = MappingProxyType(
    {
        "cosine": Scale((1,), theta0={"signsgd": 3.0, "signum": 5.0, "lion": 5.0}),
        "quadratic": Scale(([1.0],)),
        "linear": Scale(([1.0],)),
        "logistic": Scale(_BALANCED, MINIBATCH, 0.05, 0.1, 0.02, 0.8, {"rmsprop": 4.0, "rmspropw": 4.0}),
    }
)


@dataclass(frozen=True)
class Constants:
    """The constants and initial state of an optimizer's SDE, in units of a `Scale`; what it does not have is None.

    Args:
        start: the initial time over the duration.
        memory: of a sign: the weight of the last gradient, and how much of momentum a step keeps.
        c, mix: of a sign with momentum in time; ``c`` times the duration.
        c1, c2: times the duration.
        eps0: over ``sigma0`` times the size of the noise.
        m: over the size of the gradient.
        u: over the squared size of the noise.
        decay: decoupled weight decay per unit of time, times the duration.
        momentum: of SGD.
    """

    start: float = 0.0
    memory: tuple[float, float] | None = None
    c: float | None = None
    mix: float = 0.0
    c1: float | None = None
    c2: float | None = None
    eps0: float = 0.4
    m: float | None = None
    u: float | None = None
    decay: float = 0.0
    momentum: float = 0.0


#: The optimizers that have an SDE here; ``-time`` is with momentum's window kept in time and not in steps.
OPTIMIZERS: Mapping[str, Constants] = MappingProxyType(
    {
        "sgd": Constants(),
        "rmsprop": Constants(c2=2.0, u=0.3),
        "adam": Constants(start=0.5, c1=1.5, c2=2.0, m=-1.0, u=0.5),
        "adamw": Constants(start=0.5, c1=1.5, c2=2.0, m=-1.0, u=0.5, decay=0.5),
        "rmspropw": Constants(c2=2.0, u=0.3, decay=0.5),
        "sgd-momentum": Constants(momentum=0.5),
        "signsgd": Constants(memory=(1.0, 0.0)),
        "signum": Constants(memory=(0.5, 0.5)),
        "lion": Constants(memory=(0.5, 0.6)),
        "signum-time": Constants(c=2.5, m=-1.0),
        "lion-time": Constants(c=2.5, mix=0.5, m=-1.0),
    }
)
