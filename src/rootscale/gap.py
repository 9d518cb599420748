"""The gap between two sets of runs, as a share of the range of the base's mean curve. The only definition there is.

For a test function f (a loss, an accuracy, a norm) at time t

    gap(t) = (mean of the other runs - mean of the base runs)(t) / range
    range  = largest - smallest value of the base runs' mean curve over the window

**Window.** All recorded times after the first step. The start of a run from scratch (no samples seen; ``t = 0`` where
samples were not recorded) has no part, neither in the range nor in the gap: nothing has been trained there, and a net
with BatchNorm may begin at a loss of thousands, against which every later gap would look like nothing. The start of a
comparison in mid-run is a state that training has reached, and counts. A window of one time would have no range: where
a single time follows the start, the start counts after all.

**Pairs.** Runs of equal seeds (``meta["seeds"]``) share initialisation and samples: their differences are averaged, and
runs of other seeds are left out. Sets without a common seed are independent.

**Divergence.** A run (a pair, if either run) is left out from where it has diverged, and the gap is that of the rest;
there is none where fewer than half of the runs are left. The range is that of all runs of the base that never diverge,
paired or not: it is one unit for all that is compared with that base, and the last values before a divergence may be
huge.

**Few seeds.** The gap needs one run of each. Its standard error, bands and verdicts need two
(`rootscale.verdict.FEWEST`); with one there is the same gap, and no verdict.

**Flat curves.** A function whose base curve does not move has no range, hence no gap. It is left out, and a note says
so. So is the noise scale: it is a ratio whose denominator comes near 0, and has no mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rootscale.format import few_digits, percent
from rootscale.pairing import Array, Mask, PairedRuns, pair_runs
from rootscale.trajectory import Trajectory, need_keys

__all__ = ["gaps"]

Verdict = Literal["same", "different", "undecided"]
#: How many tolerances a gap may have at a single time and still be the same, if its neighbours make up for it.
SPIKE = 2.0


def _nothing() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class Largest:
    """The gap where it is largest in absolute value: its size, error and band (NaN where unknown), and the time."""

    gap: float
    se: float
    low: float
    high: float
    time: float

    def __str__(self) -> str:
        return f"{percent(self.gap, sign='+')} ({percent(self.low, sign='+')} to {percent(self.high, sign='+')})"


@dataclass(frozen=True)
class Gap:
    """The gap of one test function over time; `rootscale.gap` has the definition.

    Args:
        name: of the test function.
        times: ``[T]``, the window.
        gap: ``[T]``, as a share of ``range``; NaN where too many runs had diverged.
        se: ``[T]``, its standard error over seeds; NaN for fewer than two.
        range: largest minus smallest value of the base's mean curve over the window.
        low, high: ``[T]``, the band that holds the true gap at all times (and of all deciding test functions) at once:
            it says "different". NaN where too few runs are left to judge; all NaN where there was no verdict.
        local: ``[T]``, the gap averaged over neighbouring times, a tenth of all on either side: it says "same". In
            records from before there was one, ``gap`` itself.
        margin: ``[T]``, half the width of the band around ``local`` that holds at each time by itself
            (`rootscale.bands`). In records from before there was one, that of the other band.
        single: ``[T]``, half the width of the band around ``gap`` that holds at each time by itself.
        end: half the width of the band around the last ``gap``, which decides whether the runs end the same. In
            records from before there was one, that of the last ``single``.
        span: the smallest and the largest value of the base's mean curve, between which ``range`` lies; NaN in records
            from before they were kept.
        verdict: on this test function; None where there were too few seeds for one.
        seeds_needed: where undecided, how many seeds would decide if the gap is what it seems; None if no number can.
    """

    name: str
    times: Array
    gap: Array
    se: Array
    range: float
    low: Array = field(default_factory=_nothing)
    high: Array = field(default_factory=_nothing)
    verdict: Verdict | None = None
    seeds_needed: int | None = None
    margin: Array = field(default_factory=_nothing)
    local: Array = field(default_factory=_nothing)
    single: Array = field(default_factory=_nothing)
    end: float = math.nan
    span: tuple[float, float] = (math.nan, math.nan)

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.times), np.nan))
        if not len(self.margin):
            object.__setattr__(self, "margin", (self.high - self.low) / 2)
        if not len(self.local):
            object.__setattr__(self, "local", self.gap)
        if not len(self.single):
            object.__setattr__(self, "single", self.margin)
        if math.isnan(self.end) and len(self.single):
            object.__setattr__(self, "end", float(self.single[-1]))

    @property
    def band(self) -> tuple[Array, Array]:
        """The band that the verdict rests on: for "same" that of `local`, else that of all times at once."""
        return (self.local - self.margin, self.local + self.margin) if self.verdict == "same" else (self.low, self.high)

    @property
    def largest(self) -> Largest:
        """Where the gap is largest in absolute value, with the band of all times; all NaN where it is known at none."""
        return self._largest(self.gap, self.low, self.high)

    @property
    def judged(self) -> Largest:
        """What the verdict rests on, with its `band`: `largest`; for "same" where `local` is largest.

        Bands are wider at some times. Where that of the largest gap holds 0 and the verdict is "different" all the
        same, it is the gap whose band is farthest from 0.
        """
        far = self._largest(self.local if self.verdict == "same" else self.gap, *self.band)
        if self.verdict == "different" and far.low <= 0 <= far.high:
            return self._at(int(np.nanargmax(np.maximum(self.low, -self.high))), self.gap, self.low, self.high)
        return far

    def _largest(self, gap: Array, low: Array, high: Array) -> Largest:
        return self._at(int(np.argmax(np.nan_to_num(np.abs(gap), nan=-1.0))), gap, low, high)

    def _at(self, at: int, gap: Array, low: Array, high: Array) -> Largest:
        return Largest(*(float(part[at]) for part in (gap, self.se, low, high, self.times)))

    def within(self, tolerance: float) -> Mask:
        """Return where the gap is the same, ``[T]``.

        The band of `local` lies within the tolerance there, and that of the gap at this single time within twice it;
        at the last time, within the tolerance itself.
        """
        found: Mask = np.abs(self.local) + self.margin <= tolerance
        found = found & (np.abs(self.gap) + self.single <= SPIKE * tolerance)
        found[-1:] &= self.at_end(tolerance) == "same"
        return found

    def at_end(self, tolerance: float) -> Verdict:
        """Return the verdict on the last time alone, not averaged over others."""
        if self.outside(tolerance)[-1]:
            return "different"
        return "same" if abs(self.gap[-1]) + self.end <= tolerance else "undecided"

    def outside(self, tolerance: float) -> Mask:
        """Return where the band of all times at once lies outside ``[-tolerance, tolerance]``, ``[T]``."""
        return (self.low > tolerance) | (self.high < -tolerance)

    def settled_after(self, tolerance: float) -> float | None:
        """Return the time from which on the gap is the same, `within`; None where it is not at the last."""
        bad = np.flatnonzero(~self.within(tolerance))
        first = int(bad[-1]) + 1 if bad.size else 0
        return float(self.times[first]) if first < len(self.times) else None

    def parts_at(self, tolerance: float) -> float | None:
        """Return the first time at which the whole band lies outside the tolerance; without a band, the gap itself.

        None where there is no such time.
        """
        banded = np.isfinite(self.low).any()
        with np.errstate(invalid="ignore"):
            beyond = np.flatnonzero(self.outside(tolerance) if banded else np.abs(self.gap) > tolerance)
        return float(self.times[beyond[0]]) if beyond.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return it in JSON's types; None for NaN, and for a curve of nothing else."""
        return {
            "name": self.name,
            **{key: _to_json(getattr(self, key)) for key in _CURVES},
            "range": self.range,
            **({"end": self.end} if math.isfinite(self.end) else {}),
            **({"span": list(self.span)} if math.isfinite(self.span[0]) else {}),
            "verdict": self.verdict,
            "seeds_needed": self.seeds_needed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Gap:
        """Read what `to_dict` gave; older records lack some of the curves (`Gap`)."""
        need_keys("a gap", data, ("name", "times", "gap", "low", "high", "range", "verdict"))
        if data["times"] is None:
            raise ValueError(f"the gap of {data['name']!r} must have times, got none")
        unknown = np.full(len(data["times"]), np.nan)
        curves = {key: unknown if data.get(key) is None else np.array(data[key], np.float64) for key in _CURVES}
        curves |= {key: _nothing() for key in ("margin", "local", "single") if key not in data}
        length = {key: curve.shape for key, curve in curves.items() if curve.size}
        if len(set(length.values())) > 1 or curves["times"].ndim != 1:
            raise ValueError(f"the curves of the gap of {data['name']!r} must have one length, got {length}")
        return cls(
            name=str(data["name"]), range=float(data["range"]), verdict=data["verdict"],
            seeds_needed=data.get("seeds_needed"), end=float(data.get("end", math.nan)),
            span=tuple(data.get("span", (math.nan, math.nan))), **curves,
        )  # fmt: skip

    def __str__(self) -> str:
        """Return one line, in percent of the base curve's range."""
        far, verdict = self.judged, self.verdict or "not judged"
        needed = f" ({self.seeds_needed} seeds would decide)" if self.seeds_needed else ""
        band = f", band {percent(far.low, sign='+')} to {percent(far.high, sign='+')}" if math.isfinite(far.low) else ""
        own = f" ({self.in_own_unit(far.gap)})" if math.isfinite(far.gap) else ""
        return (
            f"{self.name}: {verdict}{needed}; largest gap {percent(far.gap, sign='+')}{own} of {self.range_text}, "
            f"at t = {far.time:.4g}{band}"
        )

    def in_own_unit(self, gap: float) -> str:
        """Return a gap in the unit of the test function: a share of the range, times the range."""
        return f"{'-' if gap < 0 else '+'}{few_digits(abs(gap) * self.range)}"

    @property
    def range_text(self) -> str:
        """The range that gaps are shares of, with the values it lies between where they are known."""
        low, high = self.span
        between = f" ({few_digits(low)} to {few_digits(high)})" if math.isfinite(low) else ""
        return f"the base curve's range{between}"


_CURVES = ("times", "gap", "se", "low", "high", "margin", "local", "single")


def _to_json(values: Array) -> list[float | None] | None:
    numbers = [float(value) if math.isfinite(value) else None for value in values]
    return numbers if any(number is not None for number in numbers) else None


def gaps(
    base: Trajectory, other: Trajectory, functions: Sequence[str] | None = None, *, whole: Trajectory | None = None
) -> dict[str, Gap]:
    """Return the gap of each test function, without bands and verdicts; from one run on each side on.

    Args:
        base, other: with ``values [R, T]`` on the same times.
        functions: which test functions; all that both have, but for the noise scale, if None.
        whole: the base over a longer window, whose range is taken as the unit instead.
    """
    return gaps_of(pair_runs(base, other, functions, whole=whole))


def gaps_of(runs: PairedRuns) -> dict[str, Gap]:
    """Return the gaps of runs that are paired already, by test function."""
    rows = zip(runs.names, runs.gap, runs.se, runs.spans, strict=True)
    return {name: Gap(name, runs.times, gap, se, span[1] - span[0], span=span) for name, gap, se, span in rows}
