"""Learning-rate schedules by name, as functions of the step; they belong to a `rootscale.Plan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from types import MappingProxyType

from rootscale.format import show
from rootscale.hparams import nonnegative, part, positive, quantity, share, validate
from rootscale.messages import say
from rootscale.sizes import Count, count


@dataclass(frozen=True)
class Shape:
    """Describes what a schedule does after the warm-up.

    Args:
        summary: in words, with the formula; ``p`` runs from 0 at the end of the warm-up to 1 at the end of the run.
        takes: the parameters of `Schedule` it uses, besides the warm-up.
        factor: the share of the way from ``min_eta`` (0) to ``eta`` (1), as a function of the schedule, the step and
            the number of steps of the run (0 where it has no end).
        needs: parameters that must be given.
        needs_length: whether it must know where the run ends.
    """

    summary: str
    takes: tuple[str, ...]
    factor: Callable[[Schedule, float, float], float]
    needs: tuple[str, ...] = ()
    needs_length: bool = False


def _progress(s: Schedule, k: float, steps: float) -> float:
    """Return the share of the run after the warm-up that has passed."""
    body = steps - float(s.warmup)
    return min(1.0, (k - float(s.warmup)) / body) if body > 0 else 1.0


def _constant(s: Schedule, k: float, steps: float) -> float:
    return 1.0


def _linear(s: Schedule, k: float, steps: float) -> float:
    return 1 - _progress(s, k, steps)


def _cosine(s: Schedule, k: float, steps: float) -> float:
    return (1 + math.cos(math.pi * _progress(s, k, steps))) / 2


def _polynomial(s: Schedule, k: float, steps: float) -> float:
    return math.pow(1 - _progress(s, k, steps), s.power)


def _exponential(s: Schedule, k: float, steps: float) -> float:
    return math.pow(s.gamma, (k - float(s.warmup)) / float(s.every or 1))


def _step(s: Schedule, k: float, steps: float) -> float:
    return s.gamma ** (Fraction(k) // Fraction(s.every or 1))


def _multistep(s: Schedule, k: float, steps: float) -> float:
    return s.gamma ** sum(k >= milestone for milestone in s.milestones)


def _inverse_sqrt(s: Schedule, k: float, steps: float) -> float:
    return math.sqrt(float(s.warmup) / k) if k > s.warmup else 1.0


def _stable_decay(s: Schedule, k: float, steps: float) -> float:
    return min(1.0, max(0.0, steps - k) / float(s.decay or 1))


#: Every schedule by its name; the command line and the docs iterate this table.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "constant": Shape("stays at eta", (), _constant),
        "linear": Shape("falls to min_eta as 1 - p", ("min_eta",), _linear, needs_length=True),
        "cosine": Shape("falls to min_eta as (1 + cos(pi p)) / 2", ("min_eta",), _cosine, needs_length=True),
        "polynomial": Shape("falls to min_eta as (1 - p)^power", ("min_eta", "power"), _polynomial, needs_length=True),
        "exponential": Shape("gamma^((k - warmup) / every)", ("every", "gamma", "min_eta"), _exponential, ("every",)),
        "step": Shape("times gamma at each multiple of every", ("every", "gamma"), _step, ("every",)),
        "multistep": Shape("times gamma at each milestone", ("milestones", "gamma"), _multistep, ("milestones",)),
        "inverse-sqrt": Shape("sqrt(warmup / k)", (), _inverse_sqrt, ("warmup",)),
        "warmup-stable-decay": Shape(
            "stays at eta, then falls to min_eta over the last decay steps",
            ("decay", "min_eta"),
            _stable_decay,
            ("decay",),
            needs_length=True,
        ),
    }
)

#: How the learning rate rises from ``warmup_start * eta`` to ``eta``, as a function of the start and of k / warmup.
WARMUPS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "linear": lambda start, p: start + (1 - start) * p,
        "exponential": lambda start, p: start ** (1 - p),  # the paper's, with start = 1e-3
    }
)


@dataclass(frozen=True)
class Schedule:
    """A warm-up and what follows it; all counts are steps of the plan that holds the schedule, from its start.

    Args:
        name: one of `SHAPES`.
        warmup: steps of warm-up.
        warmup_shape: one of `WARMUPS`.
        warmup_start: the learning rate at step 0, as a share of eta.
        min_eta: the lowest learning rate.
        milestones: where ``multistep`` multiplies by gamma.
        every: the period of ``step`` and ``exponential``.
        decay: how long ``warmup-stable-decay`` falls.
        gamma: the factor of ``step``, ``multistep`` and ``exponential``.
        power: the exponent of ``polynomial``.

    >>> Schedule("cosine", warmup=2_000, milestones=[5])
    Traceback (most recent call last):
    ...
    ValueError: schedule 'cosine' does not use milestones; it takes min_eta and the warm-up
    """

    name: str = "constant"
    warmup: Count = quantity("warmup", "warm-up steps", default=0)
    warmup_shape: str = "linear"
    warmup_start: float = 0.0
    min_eta: float = quantity("min_eta", "lowest lr", default=0.0)
    milestones: list[Count] | tuple[Count, ...] = quantity("schedule", "milestone", default=())
    every: Count | None = quantity("schedule", "decay every", default=None)
    decay: Count | None = quantity("schedule", "decay steps", default=None)
    gamma: float = 0.1
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in SHAPES:
            raise ValueError(f"schedule must be one of {', '.join(SHAPES)}, got {self.name!r}")
        if self.warmup_shape not in WARMUPS:
            raise ValueError(f"warmup_shape must be one of {', '.join(WARMUPS)}, got {self.warmup_shape!r}")
        validate(self)
        if not isinstance(self.milestones, list | tuple):
            raise ValueError(f"milestones must be a list of steps, got {self.milestones!r}")
        values = {
            "warmup": count("warmup", self.warmup, zero=True),
            "warmup_start": share("warmup_start", self.warmup_start),
            "milestones": tuple(count("milestones", m) for m in self.milestones),
            "every": None if self.every is None else count("every", self.every),
            "decay": None if self.decay is None else count("decay", self.decay),
            "gamma": part("gamma", self.gamma),
            "power": positive("power", self.power),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.warmup_shape == "exponential" and not self.warmup_start:
            raise ValueError(say("warm-up start"))
        if any(a >= b for a, b in zip(self.milestones, self.milestones[1:], strict=False)):
            raise ValueError(say("milestones", milestones=", ".join(map(show, self.milestones))))
        shape = SHAPES[self.name]
        always = {"name", "warmup", "warmup_shape", "warmup_start"}
        for f in fields(self):
            given = getattr(self, f.name) != f.default
            if given and f.name not in always | set(shape.takes):
                takes = ", ".join(shape.takes) or "no parameters"
                raise ValueError(say("schedule takes", schedule=self.name, name=f.name, takes=takes))
            if f.name in shape.needs and not getattr(self, f.name):
                raise ValueError(say("schedule needs", schedule=self.name, name=f.name))

    def eta(self, peak: float, k: float, steps: Count | None) -> float:
        """Return the learning rate at step ``k``, which may be fractional, of a run of ``steps`` steps.

        Args:
            peak: the learning rate after the warm-up.
            k: steps made so far.
            steps: length of the run; None where it has no end.
        """
        nonnegative("step", k)
        shape = SHAPES[self.name]
        if shape.needs_length and steps is None:
            raise ValueError(say("schedule needs length", schedule=self.name))
        if k < self.warmup:
            return peak * WARMUPS[self.warmup_shape](self.warmup_start, k / float(self.warmup))
        return self.min_eta + (peak - self.min_eta) * shape.factor(self, k, float(steps or 0))
