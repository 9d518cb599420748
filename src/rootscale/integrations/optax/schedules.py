"""optax's schedules, functions of the count of steps, in the units of another batch size."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from rootscale.hparams import DOMAINS, average, positive
from rootscale.rules import Rule, get_rule

__all__ = ["exact_kappa", "floating", "scale_schedule"]

Schedule = Callable[[Any], Any]


def scale_schedule(schedule: Schedule, kappa: float, unit: str = "eta", *, rule: str | Rule | None = None) -> Schedule:
    """Return a schedule at ``kappa`` times the batch size: at equal samples, the converted value of the original one.

        new(k) = sqrt(kappa) * old(k * kappa)

    for a learning rate under the square root rule. The new schedule takes integers, and the fractional counts that
    `rescale` may leave.

    Args:
        schedule: a function of the count of steps.
        kappa: new batch size over old one.
        unit: a row of the table of units; ``eta`` for a learning rate, ``decoupled_decay`` for AdamW's decay.
        rule: a rule or its text; None is that of Adam.

    >>> import optax
    >>> warmup = optax.linear_schedule(0.0, 0.1, transition_steps=100)
    >>> round(float(warmup(20)), 6), round(float(scale_schedule(warmup, 4)(5)), 6)
    (0.02, 0.04)
    """
    kappa = positive("kappa", kappa)
    if DOMAINS.get(unit) is average or unit in ("ema", "batchnorm"):
        raise ValueError(f"a schedule of {unit} cannot be checked at every step; give a number, or convert it yourself")
    chosen = get_rule(rule, "adam")
    if kappa == 1:
        return schedule
    exact = exact_kappa(kappa)
    factor = float(chosen.convert(unit, 1.0, kappa))
    return lambda count: factor * schedule(_old_count(count, exact))


def exact_kappa(kappa: float) -> Fraction:
    """Return the fraction that a kappa stands for: 1/3, not the float next to it."""
    return Fraction(kappa).limit_denominator(10**6)


def floating(value: Any) -> bool:
    """Whether a count or a hyperparameter is a floating-point number."""
    return bool(jnp.issubdtype(jnp.asarray(value).dtype, jnp.floating))


def _old_count(count: Any, kappa: Fraction) -> Any:
    """``count * kappa``: an integer where it can be, and free of rounding where it is nearly one."""
    if kappa.denominator == 1 and not floating(count):
        return count * kappa.numerator
    old = count * float(kappa)
    whole = jnp.round(old)
    return jnp.where(jnp.abs(old - whole) < 1e-3, whole, old)
