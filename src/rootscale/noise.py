"""How noisy a gradient is, as numbers: estimates with intervals, where noise dominates, and what that allows. No torch.

The noise of the gradient of a batch of size B has the mean square ``Tr Sigma / B``. **The noise dominates** where that
exceeds the gradient's, ``|grad f|^2``: where the noise scale ``Tr Sigma / |grad f|^2`` is above B. That is the only
definition, for causes, reports and advice alike; `Dominance` states it for a run. `rootscale.training.noise` measures
the noise scale in a training loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rootscale.averagings import STABLE_SHARE, stability_bound
from rootscale.format import few_digits, show
from rootscale.hparams import number
from rootscale.plan import Plan
from rootscale.rules import Rule, averaged_batches, get_rule, shortest_average
from rootscale.stats import student_quantile
from rootscale.trajectory import Trajectory

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: The test function that holds the noise scale.
NOISE_SCALE = "noise scale"
#: The one that holds the trace of the covariance of the gradient's noise.
TRACE = "Tr Sigma"
#: A noise scale above this says that no gradient was seen in the noise of its measurement.
NO_GRADIENT = 1e10
#: A cause is looked for in the noise where it does not dominate by this factor.
NARROW = 4


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
        size = math.floor(self.batch_size) if math.isfinite(self.batch_size) else self.batch_size
        return f"up to kappa = {few_digits(self.kappa)} (batch size {show(size)}): {self.limit}"


def noise_at_start(base: Trajectory, norm: str = "") -> Noise | None:
    """Return the noise of the gradient at the first time of runs that measured it; None where they did not.

    Args:
        base: the runs.
        norm: what follows the names of the test functions that were measured in another norm, such as ``", sign"``.
    """
    scale, trace = NOISE_SCALE + norm, TRACE + norm
    if scale not in base.names or trace not in base.names or base.replicas < 2:
        return None
    first = base.values[trace][:, 0]
    pairs = np.stack([first, first / base.values[scale][:, 0]], 1)  # |grad f|^2 without bias
    pairs = pairs[np.isfinite(pairs).all(1)]
    return noise_of(pairs) if len(pairs) > 1 else None


def advise(plan: Plan, noise: Noise, rule: str | Rule | None = None, eta_h: float | None = None) -> Advice:
    """Return the largest kappa that is safe for this plan at this noise, and the limit that binds.

    The batch size stays below the noise scale, the lower end of its interval. The averages of the optimizer set no
    limit where they stop at floors, as they do by default; a rule ``with paper`` or ``with power`` keeps
    ``kappa (1 - beta) < 1/2``, so that they last two steps or more. Where momentum itself is normalised (Muon, Lion,
    Signum, LAMB), its noise has to dominate too, which is that of all the batches that it averages.

    Args:
        plan: of the run.
        noise: of its gradient, as measured now.
        rule: by which the plan is converted; None is the optimizer's own.
        eta_h: the measured largest curvature times the learning rate (`rootscale.training.measure_stability`), of Adam
            or RMSprop: ``kappa eta_h`` then stays below three quarters of its bound at the beta1 of the larger batch.
    """
    size, optimizer = float(plan.batch_size.total), plan.optimizer
    limits = {f"the noise scale, at least {few_digits(noise.scale.low)} samples": noise.scale.low / size}
    chosen = get_rule(rule, optimizer.name)
    for name, key in (("beta1", "beta1"), ("beta2", "beta2"), ("beta", "beta2")):
        beta = getattr(optimizer, name, 0.0)
        if beta and chosen.shortens(key):
            limits[f"kappa (1 - {name}) < 1/2, with {name} = {show(beta)}"] = shortest_average(beta)
    if eta_h is not None:
        limits[f"{STABLE_SHARE:g} of the bound of stable steps, with eta h = {few_digits(eta_h)}"] = _stable_kappa(
            chosen, float(getattr(optimizer, "beta1", 0.0)), number("eta_h", eta_h, "> 0", lambda x: 0 < x < math.inf)
        )
    for mu in (getattr(optimizer, f.name) for f in fields(optimizer) if f.metadata.get("unit") == "mu"):
        longest = chosen.longest_momentum(mu, noise.scale.low / size)
        limits[
            f"the noise of momentum, which averages {few_digits(averaged_batches(mu))} batches, at a noise scale of "
            f"at least {few_digits(noise.scale.low)} samples"
        ] = longest
    limit = min(limits, key=lambda key: limits[key])
    kappa, largest = (float(f"{value:.12g}") for value in (limits[limit], limits[limit] * size))  # 80, not 80 + 1e-14
    return Advice(kappa, largest, limit)


def _stable_kappa(rule: Rule, beta1: float, eta_h: float) -> float:
    """Return the largest kappa at which ``kappa eta_h`` is within its bound, at the beta1 that the rule gives.

    The bound falls and ``kappa eta_h`` grows, so bisection finds it.
    """

    def stable(kappa: float) -> bool:
        try:
            after = float(rule.convert("beta1", beta1, kappa)) if beta1 else 0.0
        except ValueError:  # the rule has no beta1 there
            return False
        return kappa * eta_h <= STABLE_SHARE * stability_bound(after)

    low, high = 0.0, math.log(1e9)
    if not stable(1.0):
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(math.exp(middle)) else (low, middle)
    return math.exp(low)


def advice_of_scale(scale: Interval, size: float) -> Advice:
    """Return the largest kappa that a noise scale allows at this batch size, where no plan is known."""
    kappa, largest = (float(f"{value:.12g}") for value in (scale.low / size, scale.low))
    return Advice(kappa, largest, f"the noise scale, at least {few_digits(scale.low)} samples")


# -- where noise dominates along a run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaleCurve:
    """The noise scale along a run: the median of its seeds and where 90 % of them lie, ``[T]`` each.

    It is a ratio whose denominator may come near 0, so that means over seeds say nothing.

    Args:
        clock: samples seen, or the time where samples were not recorded.
        middle: the median.
        low, high: the 5 % and 95 % quantiles.
    """

    clock: Array
    middle: Array
    low: Array
    high: Array


def scale_curve(*parts: Trajectory | None) -> ScaleCurve | None:
    """Return the noise scale along these parts of a run, one after the other; None where it was not measured."""
    curves = [_scale_curve(part) for part in parts if part is not None and NOISE_SCALE in part.names]
    return ScaleCurve(*np.concatenate(curves, axis=1)) if curves else None


def _scale_curve(trajectory: Trajectory) -> Array:
    """Return clock and quantiles, ``[4, T]``."""
    clock = np.asarray(trajectory.meta.get("samples", trajectory.times), np.float64)
    if not trajectory.values:
        mean, se = trajectory[NOISE_SCALE]
        return np.stack([clock, mean, mean - 1.645 * se, mean + 1.645 * se])
    kept = np.where(trajectory.lost, np.nan, trajectory.values[NOISE_SCALE])
    some = ~trajectory.lost.all(0)
    quantiles = np.full((3, len(clock)), np.nan)
    quantiles[:, some] = np.nanquantile(kept[:, some], (0.5, 0.05, 0.95), axis=0)
    return np.concatenate([clock[None], quantiles])


@dataclass(frozen=True)
class Dominance:
    """Where along a run the noise of a batch of this size dominates the gradient: the noise scale's median is above it.

    Args:
        curve: the noise scale. Times at which all seeds had diverged do not count.
        size: the batch size.
        measured_on: on how many samples the noise scale was measured. Where no gradient was seen in their noise, it is
            above that number; whether it is above a larger batch is not known.
        unit: of the curve's clock.
    """

    curve: ScaleCurve
    size: float
    measured_on: float
    unit: str = "samples"

    @cached_property
    def _some(self) -> Mask:
        return np.isfinite(self.curve.middle)

    @cached_property
    def clock(self) -> Array:
        """The times that count, ``[N]``."""
        return self.curve.clock[self._some]

    @cached_property
    def unknown(self) -> Mask:
        """Where no gradient was seen, and the batch is larger than what was measured, ``[N]``."""
        return (self.curve.middle[self._some] >= NO_GRADIENT) & (self.size > self.measured_on)

    @cached_property
    def dominates(self) -> Mask:
        """Where the noise dominates, ``[N]``; not where that is unknown."""
        return (self.curve.middle[self._some] > self.size) & ~self.unknown

    @property
    def share(self) -> tuple[float, float] | None:
        """The share of the times at which the noise dominates, without and with those where that is unknown.

        None for fewer than three times.
        """
        if len(self.clock) < 3:
            return None
        return float(self.dominates.mean()), float((self.dominates | self.unknown).mean())

    @property
    def where(self) -> str:
        """Where the noise dominates, in words."""
        yes, maybe = self.dominates, self.dominates | self.unknown
        beyond = "" if (yes == maybe).all() else " (where no gradient was seen, that is beyond what was measured)"
        if yes.all():
            return "noise dominates all along"
        if not yes.any():
            return f"noise dominates {'nowhere' if not beyond else 'nowhere for sure'}{beyond}"
        last = int(np.flatnonzero(~maybe)[-1]) if not maybe.all() else -1
        if last + 1 < len(yes):
            first = last + 1
            since = f"from {show(self.clock[first])} {self.unit} on, not before" if first else "all along"
            return f"noise dominates {since}{beyond}"
        return f"noise dominates at {int(yes.sum())} of {len(yes)} times, not at the end{beyond}"

    @property
    def cause(self) -> str:
        """Why a run at this batch size may differ: where the noise scale is lowest; empty where it is far above."""
        middle = self.curve.middle[self._some]
        if not len(middle) or middle.min() >= NARROW * self.size:
            return ""
        at = int(middle.argmin())
        low, high = (few_digits(float(part[self._some][at])) for part in (self.curve.low, self.curve.high))
        place = f"after {show(self.clock[at])} {self.unit}"
        factor = middle[at] / self.size
        narrow = f", but by a factor of only {few_digits(factor, 2)}" if factor > 1 else ""
        return (
            f"{self.where}{narrow}: {place} the noise scale is {few_digits(float(middle[at]))} (median of the seeds; "
            f"90 % of them between {low} and {high}), and the batch is {show(self.size)}"
        )


def noise_cause(base: Trajectory, size: float, measured_on: float) -> Sequence[str]:
    """Return what the noise of the base says about a difference at this batch size: a sentence, or nothing."""
    curve = scale_curve(base)
    cause = "" if curve is None else Dominance(curve, size, measured_on).cause
    return [cause] if cause else []
