"""How noisy a gradient is, as numbers: estimates with intervals, and what they allow. No torch.

The noise scale ``Tr Sigma / |grad f|^2`` is the batch size up to which the noise dominates the gradient.
`rootscale.training.noise` measures it in a training loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rootscale.format import show
from rootscale.plan import Plan
from rootscale.rules import shortest_average
from rootscale.stats import student_quantile

__all__ = ["Advice", "Interval", "Noise", "advise", "dominated_share", "noise_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = (self.value, self.low, self.high)  # three digits: an interval has no more to say
        value, low, high = (show(float(f"{x:.3g}")) if math.isfinite(x) else str(x) for x in ends)
        return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Noise:
    """What a `NoiseMeter` found; 95 % intervals.

    Args:
        trace: ``Tr Sigma``, of one sample.
        gradient: ``|grad f|^2``; its estimate may be negative where the noise hides it.
        scale: ``Tr Sigma / |grad f|^2``, in samples; without an upper end where the gradient cannot be told from 0.
        steps: how many steps it is from.
        share: of the coordinates that have a gradient, those where the noise dominates: ``Sigma_ii / B > (d_i f)^2``.
        batch_size: ``B`` of that share.
    """

    trace: Interval
    gradient: Interval
    scale: Interval
    steps: int
    share: Interval | None = None
    batch_size: float | None = None

    def __str__(self) -> str:
        text = f"noise scale {self.scale} samples, Tr Sigma {self.trace}, |grad f|^2 {self.gradient}"
        if self.share is not None:
            text += f", noise dominates a share {self.share} of the coordinates at batch size {show(self.batch_size)}"
        return f"{text} ({self._source()})"

    def _source(self) -> str:
        return f"{self.steps} steps" if self.steps else "exact"


def dominated_share(points: Array, size: float) -> Interval | None:
    """The share of coordinates with ``excess_i = Sigma_ii / size - (d_i f)^2 > 0``, from ``[steps, 2, coordinates]``.

    The value counts the estimates above 0. Noise carries estimates near 0 to either side, which biases that count by an
    unknown amount; the interval does not rest on it. Its lower end counts the coordinates whose excess is above 0 at
    the one-sided level of 2.5 %, less the 2.5 % of the others that may be among them by chance, and less the error of
    having looked at a sample of coordinates; its upper end counts the opposite ones in the same way.
    """
    excess = points[:, 0] / size - points[:, 1]
    excess = excess[:, (points != 0).any((0, 1))]
    steps, number = excess.shape
    if not number:
        return None
    mean, error = excess.mean(0), excess.std(0, ddof=1) / math.sqrt(steps)
    level, normal = 0.025, NormalDist().inv_cdf(0.975)
    sure = student_quantile(steps - 1, 1 - level) * error

    def at_least(count: int) -> float:
        part: float = max(0.0, (count / number - level) / (1 - level))
        return max(0.0, part - normal * math.sqrt(part * (1 - part) / number))

    low, high = at_least(int((mean > sure).sum())), 1 - at_least(int((mean < -sure).sum()))
    value = float((mean > 0).mean())
    return Interval(value, min(low, value), max(high, value))


def noise_of(pairs: Array) -> Noise:
    """Means of ``(trace, gradient)`` over independent rows (steps, seeds), and their ratio.

    With Student's intervals, and Fieller's for the ratio.
    """
    n = len(pairs)
    a, b = (float(x) for x in pairs.mean(0))
    (aa, ab), (_, bb) = (np.cov(pairs.T) / n).tolist()
    t = student_quantile(n - 1)

    def interval(value: float, variance: float) -> Interval:
        half = t * math.sqrt(max(variance, 0.0))
        return Interval(value, value - half, value + half)

    # Fieller: all ratios r with |a - r b| <= t * s.e.(a - r b), which is a quadratic inequality in r.
    q2, q1, q0 = b * b - t * t * bb, a * b - t * t * ab, a * a - t * t * aa
    root = math.sqrt(max(q1 * q1 - q2 * q0, 0.0))
    if b > 0 and q2 > 0:
        scale = Interval(a / b, max(0.0, (q1 - root) / q2), (q1 + root) / q2)
    else:  # the gradient cannot be told from 0
        low = (q1 - root) / q2 if q2 else (q0 / (2 * q1) if q1 else 0.0)
        scale = Interval(a / b if b > 0 else math.inf, max(0.0, low) if q0 > 0 else 0.0, math.inf)
    return Noise(interval(a, aa), interval(b, bb), scale, n)


@dataclass(frozen=True)
class Advice:
    """How far the batch size of a plan may be raised now.

    Args:
        kappa: the largest factor that is safe.
        batch_size: of that factor.
        limit: which limit binds.
    """

    kappa: float
    batch_size: float
    limit: str

    def __str__(self) -> str:
        return f"up to kappa = {show(self.kappa)} (batch size {show(self.batch_size)}): {self.limit}"


def advise(plan: Plan, noise: Noise) -> Advice:
    """The largest kappa that is safe for this plan at this noise, and the limit that binds.

    The limits: the batch size stays below the noise scale (the lower end of its interval); the first moment averages
    over two steps or more, ``kappa (1 - beta1) < 1/2``; the theorem's range, ``kappa (1 - beta2) < 1/2``.
    """
    size, optimizer = float(plan.batch_size.total), plan.optimizer
    limits = {f"the noise scale, at least {show(noise.scale.low)} samples": noise.scale.low / size}
    for name in ("beta1", "beta2", "beta"):
        beta = getattr(optimizer, name, 0.0)
        if beta:
            limits[f"kappa (1 - {name}) < 1/2, with {name} = {show(beta)}"] = shortest_average(beta)
    limit = min(limits, key=lambda key: limits[key])
    kappa, largest = (float(f"{value:.12g}") for value in (limits[limit], limits[limit] * size))  # 80, not 80 + 1e-14
    return Advice(kappa, largest, limit)
