"""How large a batch, how many hours, which ramp: a forecast from the noise scale and the seconds of a step.

The samples that a run needs for the same loss grow with the batch as ``samples = least (1 + B / B_noise)``
(arXiv 1812.06162), which holds at every moment with the noise scale of that moment. Of two batch sizes only the ratio
is left, ``(1 + B / B_noise) / (1 + B0 / B_noise)``, averaged along the run of ``B0`` whose noise was measured. This is
a forecast: it takes each batch size as tuned, and the noise scale as what limits a batch. How far it is off is measured
in ``experiments/forecast.py``. Where the measurement does not say enough, nothing is forecast.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from rootscale.batch_size import BatchSize
from rootscale.conversion import Conversion
from rootscale.format import few_digits, show
from rootscale.noise import Interval
from rootscale.plan import Plan
from rootscale.rules import Rule
from rootscale.sizes import show_samples

__all__ = ["NoiseAlong", "Seconds", "make_forecast"]

#: The share of the noise scale's lower end up to which a batch of a ramp grows, as for `rootscale.training.Grow`.
SHARE = 0.5


@dataclass(frozen=True)
class NoiseAlong:
    """The noise scale along a run, in samples, with its interval; a single measurement stands for the whole run.

    Args:
        samples: seen at each measurement, increasing.
        scales: measured there.
    """

    samples: tuple[float, ...]
    scales: tuple[Interval, ...]

    def __post_init__(self) -> None:
        if not self.scales or len(self.samples) != len(self.scales):
            raise ValueError("the noise scale needs as many places of the run as measurements, at least one")
        if any(a >= b for a, b in pairwise(self.samples)):
            raise ValueError("the places where the noise scale was measured must increase")
        for at, scale in zip(self.samples, self.scales, strict=True):
            if not (math.isfinite(scale.value) and scale.value > 0) or not scale.low <= scale.value <= scale.high:
                raise ValueError(
                    f"the noise scale needs a finite value within its interval, got {scale.value} in [{scale.low}, "
                    f"{scale.high}] after {show(at)} samples"
                )

    def cost(self, size: float, base: float, until: float | None = None) -> Interval:
        """Return how many times the samples of ``base`` a batch size takes for the same loss: infinite where unknown.

        The ends are those of all intervals at once, which is careful: the errors of measurements do not add like that.

        Args:
            size, base: batch sizes, in samples.
            until: samples of the run of ``base`` up to which it counts; None is its last measurement.
        """
        weights = self._weights(until)

        def mean(scales: Sequence[float]) -> float:
            ratios = [1.0 if math.isinf(s) else (1 + size / s) / (1 + base / s) if s else size / base for s in scales]
            return float(np.dot(weights, ratios))

        ends = sorted(mean([getattr(scale, end) for scale in self.scales]) for end in ("low", "high"))
        return Interval(mean([scale.value for scale in self.scales]), ends[0], ends[1])

    def _weights(self, until: float | None) -> np.ndarray[Any, Any]:
        """Return the share of the run that each measurement stands for: what is nearest to it."""
        last = self.samples[-1] if until is None else until
        edges = [0.0, *(min((a + b) / 2, last) for a, b in pairwise(self.samples)), max(last, 0.0)]
        widths = np.maximum(np.diff(edges), 0.0)
        return np.asarray(widths / widths.sum() if widths.sum() else np.eye(len(self.scales))[0])

    def largest(self, share: float) -> list[float]:
        """Return at each measurement what is a share of the lower end of the noise scale."""
        return [share * scale.low for scale in self.scales]


@dataclass(frozen=True)
class Seconds:
    """Seconds of a step by batch size, measured at two or more; in between on a line, beyond on the nearest line.

    >>> seconds = Seconds({256: 0.5, 1024: 1.1})
    >>> seconds.at(512), seconds.at(2048), seconds.measured(2048)
    (0.7, 1.9, False)
    """

    points: Mapping[float, float]

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            known = ", ".join(f"{size}={value}" for size, value in self.points.items()) or "none"
            raise ValueError(
                f"seconds of a step are needed at two batch sizes or more, such as 256=0.41 1024=1.2; got {known}"
            )
        for size, value in self.points.items():
            if size < 1 or not 0 < value < math.inf:
                raise ValueError(f"a step must take a time above 0 at a batch size of 1 or more, got {size}={value}")

    def at(self, size: float) -> float:
        """Return the seconds of a step; of a smaller batch than any that was measured those of the smallest."""
        sizes = sorted(self.points)
        if size <= sizes[0]:
            return self.points[sizes[0]]
        i = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        low, high = sizes[i - 1], sizes[i]
        slope = (self.points[high] - self.points[low]) / (high - low)
        return round(max(self.points[low] + slope * (size - low), self.points[low] if slope < 0 else 0.0), 12)

    def measured(self, size: float) -> bool:
        """Return whether a batch size lies between those that were measured."""
        return min(self.points) <= size <= max(self.points)


@dataclass(frozen=True)
class Choice:
    """A batch size of a forecast.

    Args:
        conversion: of the plan to it.
        cost: samples for the same loss, over those of the plan's own batch size; None where that cannot be said.
        unknown: why it cannot be said.
        seconds: of a step; None where they are not known.
        measured: whether that was between batch sizes that were measured.
        risk: what runs like it did at this batch size, in words.
    """

    conversion: Conversion
    cost: Interval | None
    unknown: str
    seconds: float | None
    measured: bool
    risk: str = ""

    @property
    def size(self) -> BatchSize:
        """The batch size."""
        return self.conversion.plan.batch_size

    @property
    def steps(self) -> int:
        """Steps of the whole run, the last one perhaps of fewer samples."""
        return math.ceil(self.conversion.plan.total_steps or 0)

    @property
    def hours(self) -> float | None:
        """Hours for the tokens of the plan."""
        return None if self.seconds is None else self.steps * self.seconds / 3600

    @property
    def hours_to_loss(self) -> Interval | None:
        """Hours to the loss that the plan's own batch size reaches with its tokens."""
        if self.hours is None or self.cost is None:
            return None
        return Interval(*(self.hours * part for part in (self.cost.value, self.cost.low, self.cost.high)))

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        size = self.size
        return {
            "batch_size": size.to_json(),
            "tokens": None if size.tokens is None else float(size.tokens),
            "steps": self.steps,
            "seconds_per_step": self.seconds,
            "seconds_measured": self.measured,
            "hours": self.hours,
            "samples_for_the_same_loss": _ends(self.cost),
            **({"samples_unknown": self.unknown} if self.unknown else {}),
            "hours_to_the_same_loss": _ends(self.hours_to_loss),
            "risk": self.risk,
            "plan": self.conversion.plan.to_dict(),
        }


@dataclass(frozen=True)
class Ramp:
    """A batch that grows along the run, as far as the noise scale allows.

    Args:
        stages: the samples seen, and the batch size from there on; the first is the plan's.
        steps: of the whole run.
        cost: samples for the same loss, over those of the plan's own batch size.
        hours: for the tokens of the plan; None where the seconds of a step are not known.
    """

    stages: tuple[tuple[int, int], ...]
    steps: int
    cost: Interval
    hours: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "stages": [list(stage) for stage in self.stages], "steps": self.steps,
            "samples_for_the_same_loss": _ends(self.cost), "hours": self.hours,
        }  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """What several batch sizes would take of one run.

    Args:
        plan: the run as it is.
        choices: a row for each batch size, the smallest first.
        ramp: a batch that grows; None where that cannot be said.
        no_ramp: why not.
    """

    plan: Plan
    choices: tuple[Choice, ...]
    ramp: Ramp | None
    no_ramp: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "forecast": "samples for the same loss grow as 1 + B / B_noise (arXiv 1812.06162), each batch size tuned",
            "plan": self.plan.to_dict(),
            "batch_sizes": [choice.to_dict() for choice in self.choices],
            "ramp": None if self.ramp is None else self.ramp.to_dict(),
            **({"no_ramp": self.no_ramp} if self.no_ramp else {}),
        }


def make_forecast(
    plan: Plan,
    sizes: Sequence[int] = (),
    noise: NoiseAlong | None = None,
    seconds: Seconds | None = None,
    rule: str | Rule | None = None,
) -> Forecast:
    """Return what batch sizes would take of a run.

    Args:
        plan: the run as it is, with its length.
        sizes: batch sizes in samples; none takes 1, 2, 4, ... times the plan's, up to 64 times or a tenth of the run.
        noise: the noise scale, measured along a run of this plan; without it no cost is forecast.
        seconds: of a step; without them no hours are.
        rule: by which the numbers are converted; None is the optimizer's own.

    >>> from rootscale import Adam, Plan
    >>> plan = Plan(Adam(1e-3), batch_size=256, steps=4000)
    >>> found = make_forecast(plan, [1024], NoiseAlong((0,), (Interval(1024, 800, 1300),)), Seconds({256: 1, 1024: 2}))
    >>> [(choice.steps, round(choice.cost.value, 2)) for choice in found.choices]
    [(4000, 1.0), (1000, 1.6)]
    """
    total = plan.samples
    if total is None:
        raise ValueError("a forecast needs the length of the run: give steps, tokens or epochs (--tokens 10B)")
    base = plan.batch_size
    usual = [base.total * 2**i for i in range(7) if i == 0 or base.total * 2**i * 10 <= total]
    for size in sizes:
        if size > total:
            raise ValueError(
                f"a batch of {show(size)} samples is more than the whole run of "
                f"{show_samples(total, plan.sequence_length)}"
            )
    chosen = sorted({Fraction(size) for size in (*(sizes or usual), base.total)})
    choices = tuple(_choice(plan, size, noise, seconds, rule) for size in chosen)
    ramp, why = _ramp(plan, [choice for choice in choices if choice.size.total >= base.total], noise, seconds)
    return Forecast(plan, choices, ramp, why)


def _choice(
    plan: Plan, size: Fraction, noise: NoiseAlong | None, seconds: Seconds | None, rule: str | Rule | None
) -> Choice:
    base, total = float(plan.batch_size.total), float(plan.samples or 0)
    number = int(size) if size.denominator == 1 else size
    conversion = plan.convert(plan.batch_size if size == plan.batch_size.total else number, rule)
    cost, unknown = None, "" if noise is not None else "no noise scale was given"
    if noise is not None:
        cost = noise.cost(float(size), base, total)
        if math.isinf(cost.high) or min(scale.low for scale in noise.scales) <= 0:
            unknown = "the interval of the noise scale reaches 0"
            cost = cost if size == plan.batch_size.total else None
    known = seconds is not None and seconds.measured(float(size))
    return Choice(conversion, cost, "" if cost else unknown, seconds.at(float(size)) if seconds else None, known)


def _ramp(
    plan: Plan, choices: Sequence[Choice], noise: NoiseAlong | None, seconds: Seconds | None
) -> tuple[Ramp | None, str]:
    """Return the ramp that the lower end of the noise scale allows, or None and why there is none."""
    total, base = float(plan.samples or 0), float(plan.batch_size.total)
    if noise is None or len(noise.scales) < 2:
        return None, "a ramp needs the noise scale at several places of the run (a log of it)"
    if noise.samples[-1] > total * 1.001:
        raise ValueError(
            f"the noise scale was measured up to {show(noise.samples[-1])} samples, and the run has {show(total)}: a "
            "ramp from there would lie above the data; give the length of the run that the log is of"
        )
    sizes = [int(choice.size.total) for choice in choices if choice.size.total == int(choice.size.total)]
    stages, most = [(0, round(base))], noise.largest(SHARE)
    for at, limit in zip(noise.samples, most, strict=True):
        allowed = max((size for size in sizes if size <= limit), default=0)
        if allowed > stages[-1][1] and at < total:
            stages.append((math.ceil(at), allowed))
    if len(stages) == 1:
        return None, (
            f"no batch size above {show(base)} stays below half of the noise scale's lower end, at most "
            f"{few_digits(max(scale.low for scale in noise.scales))} samples"
        )
    if stages[1][0] == 0:
        del stages[0]
    ends = [start for start, _ in stages[1:]] + [total]
    parts = [(size, end - start) for (start, size), end in zip(stages, ends, strict=True)]
    steps = sum(math.ceil(length / size) for size, length in parts)
    hours = None
    if seconds is not None:
        hours = sum(math.ceil(length / size) * seconds.at(size) for size, length in parts) / 3600
    bounds, scales = [0.0, *ends], list[Interval]()
    for (size, length), start in zip(parts, bounds, strict=False):
        inside = [i for i, at in enumerate(noise.samples) if start <= at <= start + length]
        places = inside or [min(range(len(noise.samples)), key=lambda i: abs(noise.samples[i] - start))]
        own = NoiseAlong(tuple(noise.samples[i] for i in places), tuple(noise.scales[i] for i in places))
        one, share = own.cost(size, base), length / total
        scales.append(Interval(one.value * share, one.low * share, one.high * share))
    cost = Interval(*(sum(getattr(one, end) for one in scales) for end in ("value", "low", "high")))
    return Ramp(tuple(stages), steps, cost, hours), ""


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.value, interval.low, interval.high]
