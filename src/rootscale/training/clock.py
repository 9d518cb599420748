"""The arithmetic of averages on the sample clock, where every step may have another batch size.

A step with ``n`` samples is ``k = n / reference_batch`` steps of the reference batch. The table of units
(`rootscale.units`) with ``kappa = k`` gives one step of Adam at that batch: ``eta' = eta k^(1/2)``,
``1 - beta' = k (1 - beta)``, ``eps' = eps k^(-1/2)``, ``v' = v / k``, ``m' = m``. Written for the reference's ``m`` and
``v``, all roots cancel:

    m <- (1 - w1) m + k (1 - beta1) g             w1 = k (1 - beta1)
    v <- (1 - w2) v + w2 k g^2                    w2 = k (1 - beta2)
    theta <- theta - eta (w1 / (1 - beta1)) m_hat / (sqrt(v_hat) + eps),      theta <- theta - k eta lambda theta

A large ``k`` stops at a floor: ``w = min(k (1 - beta), max(1 - floor, 1 - beta))``. ``m`` then holds the displacement
that past gradients are still owed, in units of ``eta / (1 - beta1)``: a gradient adds what is due to it,
``k (1 - beta1) g``, and a step pays out the share ``w1``. So a gradient moves the parameters by
``eta k g / sqrt(v)`` in all, on average over the batches after it. At a constant ``k`` this is Adam with
``beta1' = 1 - w1`` and the learning rate ``eta k^(1/2)``, exactly. (To average ``g`` itself with the weight ``w1`` and
to step with ``k`` would move too far where a large batch follows small ones.)

``m_hat = m / (1 - prod(1 - w1))`` and ``v_hat = v / (1 - prod(1 - w2))``: the weights that the averages have so far.
A beta of 0 means that nothing is averaged, at any ``k``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["START", "Clock", "Move", "advance", "largest_ratio"]

#: A tensor where a CUDA graph has to hold it.
Number = float | Tensor


class Clock(NamedTuple):
    """Where the state of a parameter stands.

    Args:
        steps: reference batches seen; the sample clock.
        first: the number of steps at the reference batch that have the same bias: ``beta1^first = prod(1 - w1)``.
        second: the same for ``beta2``.
        m: the first moment is this times what is stored.
        v: the second moment is this times what is stored.
    """

    steps: Number
    first: Number
    second: Number
    m: Number
    v: Number


START = Clock(0.0, 0.0, 0.0, 1.0, 1.0)


class Move(NamedTuple):
    """One step of what is stored: ``m`` over `Clock.m` and ``v`` over `Clock.v`, plain averages of ``g`` and ``g^2``.

    Args:
        beta1: weight of the past in the average of ``g``.
        beta2: weight of the past in the average of ``g^2``.
        lr: the learning rate over ``eta``, before the bias correction.
        bias: what that learning rate is divided by.
        root: what the root of the average of ``g^2`` is divided by.
    """

    beta1: Number
    beta2: Number
    lr: Number
    bias: Number
    root: Number


def advance(
    clock: Clock, k: Number, beta1: float, beta2: float, floors: tuple[float, float], corrected: bool = True
) -> tuple[Clock, Move]:
    """Return the clock after a step of ``k`` reference batches, and that step.

    ``m`` and ``v`` are stored over scalars of their own, so that one step is a step of plain Adam with other numbers:
    with ``v = c V``, the average above is ``V <- b V + (1 - b) g^2`` for ``c' = (1 - w2) c + w2 k`` and
    ``b = (1 - w2) c / c'``. No state is ever multiplied because the batch has changed. At ``k = 1`` every number is
    torch's to the bit.
    """
    w1, keep1, steps1 = _weights(k, beta1, floors[0])
    w2, keep2, steps2 = _weights(k, beta2, floors[1])
    m = clock.m + ((k * (1 - beta1) if beta1 else k) - w1 * clock.m)
    v = clock.v + w2 * (k - clock.v)
    after = Clock(clock.steps + k, clock.first + steps1, clock.second + steps2, m, v)
    first, second = (1 - beta1**after.first, 1 - beta2**after.second) if corrected else (1.0, 1.0)
    paid = w1 / (1 - beta1) if beta1 else 1.0
    return after, Move(clock.m * keep1 / m, clock.v * keep2 / v, paid * m, first, (second / v) ** 0.5)


def _weights(k: Number, beta: float, floor: float) -> tuple[Number, Number, Number]:
    """Return the weight of the present, that of the past, and the steps of the reference that forget as much."""
    if not beta:
        return 1.0, 0.0, 1.0
    bound, w = max(1 - floor, 1 - beta), k * (1 - beta)
    w = w.clamp(max=bound) if isinstance(w, Tensor) else min(w, bound)
    keep = beta - (w - (1 - beta))  # beta itself, to the bit, at k = 1
    return w, keep, (torch.log(keep) if isinstance(keep, Tensor) else math.log(keep)) / math.log(beta)


def largest_ratio(beta: float, floor: float) -> float:
    """Return what ``k`` must stay below: without a floor an average has no past left at ``k (1 - beta) = 1``."""
    return 1 / (1 - beta) if beta and not floor else math.inf
