"""What the runs of an experiment came to: the table of final values, from their trajectories, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rootscale.compare import Verdict
from rootscale.lab import Arm
from rootscale.trajectory import Trajectory

__all__ = [
    "ACCURACY",
    "MEASURES",
    "End",
    "Final",
    "accuracies",
    "finals",
    "largest_gap",
    "percent",
    "starts_high",
    "told",
    "told_gap",
]

Array = NDArray[np.float64]

ACCURACY = "test accuracy"
#: What an experiment may be judged by: the test functions whose ends are shown, with their titles, the deciding last.
MEASURES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        ACCURACY: MappingProxyType({ACCURACY: "test accuracy"}),
        "test loss": MappingProxyType({"train loss": "train log-perplexity", "test loss": "validation log-perplexity"}),
    }
)


@dataclass(frozen=True)
class End:
    """A test function at the end of a line; None is what is not known.

    Args:
        value: the mean over the seeds that have not diverged; None if all have.
        se: its standard error over the seeds. Of one seed there is none, but for the test accuracy: there it is
            binomial, for the samples of the test set.
        gap: the value less the base's, over the seeds both have; None for the base itself.
        gap_se: its standard error.
    """

    value: float | None = None
    se: float | None = None
    gap: float | None = None
    gap_se: float | None = None


@dataclass(frozen=True)
class Final:
    """What a line came to.

    Args:
        label: of the line.
        batch_size: at its end.
        seeds: how many runs.
        diverged: how many of them did.
        ends: of every test function.
        curves: by test function, the largest gap of the mean curves as a share of the range of the base's curve, and
            its standard error over seeds (None for one seed).
        seconds: of the runs.
        verdict: on the comparison with the base; None where there was none, for want of seeds.
    """

    label: str
    batch_size: int
    seeds: int
    diverged: int
    ends: Mapping[str, End]
    curves: Mapping[str, tuple[float, float | None]]
    seconds: float
    verdict: Verdict | None = None

    def end(self, name: str) -> End:
        """Of a test function, which may be one that was not measured."""
        return self.ends.get(name, End())

    @property
    def accuracy(self) -> End:
        """On the test set."""
        return self.end(ACCURACY)


# -- from trajectories -----------------------------------------------------------------------------------------------


def finals(arms: Sequence[Arm], test_samples: int) -> list[Final]:
    """The table of final values: the first arm is the base; the accuracy is measured on so many samples."""
    base = arms[0]
    return [_final(base, arm, test_samples) for arm in arms]


def _final(base: Arm, arm: Arm, test_samples: int) -> Final:
    here, there = arm.trajectory, base.trajectory
    pairs = list(_pairs(there, here))
    return Final(
        arm.label,
        int(arm.plan.batch_size.total),
        here.replicas,
        int(here.diverged[-1]),
        {name: _end(there, here, name, [] if arm is base else pairs, test_samples) for name in here.names},
        {} if arm is base else dict(_curve_gaps(there, here, pairs)),
        float(here.meta["seconds"]),
        arm.verdict,
    )


def _end(base: Trajectory, other: Trajectory, name: str, pairs: Sequence[tuple[int, int]], test_samples: int) -> End:
    value, se = _mean(other.values[name][:, -1], name, test_samples)
    if value is None or name not in base.names:
        return End(value, se)
    differences = [other.values[name][j, -1] - base.values[name][i, -1] for i, j in pairs]
    gap, gap_se = _mean(np.array(differences), "", test_samples)
    if gap is not None and gap_se is None and name == ACCURACY:
        gap_se = math.hypot(se or 0.0, _mean(base.values[name][:, -1], name, test_samples)[1] or 0.0)
    return End(value, se, gap, gap_se)


def _mean(values: Array, name: str, test_samples: int) -> tuple[float | None, float | None]:
    """The mean of the finite values, and its standard error."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    mean = float(values.mean())
    if len(values) > 1:
        return mean, float(values.std(ddof=1) / math.sqrt(len(values)))
    return mean, math.sqrt(mean * (1 - mean) / test_samples) if name == ACCURACY else None


def _pairs(base: Trajectory, other: Trajectory) -> Iterator[tuple[int, int]]:
    """Rows of both of the seeds that both have."""
    rows = {seed: i for i, seed in enumerate(base.meta["seeds"])}
    return ((rows[seed], j) for j, seed in enumerate(other.meta["seeds"]) if seed in rows)


def _curve_gaps(
    base: Trajectory, other: Trajectory, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, tuple[float, float | None]]]:
    """The largest gap of the mean curves over the range of the base's; pairs of which one diverged are left out.

    A loss before the first step that is far above all others makes no range: a net with BatchNorm may begin anywhere.
    """
    loss = "train loss"
    kept = [(i, j) for i, j in pairs if np.isfinite([base.values[loss][i], other.values[loss][j]]).all()]
    if not kept:
        return
    for name in base.names:
        if name == "noise scale":
            continue
        ours = np.stack([other.values[name][j] for _, j in kept])
        theirs = np.stack([base.values[name][i] for i, _ in kept])
        curve = theirs.mean(0)
        span = float(np.ptp(curve[1:] if name.endswith("loss") and starts_high(base, curve) else curve))
        if not span > 0:
            continue
        yield name, largest_gap((ours - theirs) / span)


def starts_high(base: Trajectory, curve: Array) -> bool:
    """Whether a curve from scratch begins at more than three times all that follows."""
    return base.meta["samples"][0] == 0 and len(curve) > 2 and bool(curve[0] > 3 * np.nanmax(curve[1:]))


def largest_gap(differences: Array) -> tuple[float, float | None]:
    """Of curves ``[R, T]``, where their mean is farthest from 0: how far, and its standard error (None for one)."""
    gap = np.abs(differences.mean(0))
    at, n = int(gap.argmax()), len(differences)
    return float(gap[at]), float(differences[:, at].std(ddof=1) / math.sqrt(n)) if n > 1 else None


# -- in words --------------------------------------------------------------------------------------------------------


def percent(gap: tuple[float, float | None] | None) -> str:
    """A share and its standard error, in percent.

    >>> percent((0.0123, 0.004)), percent((0.5, None)), percent((1e5, None)), percent(None)
    ('1.2 ± 0.4 %', '50.0 %', '> 1000 %', 'diverged')
    """
    if gap is None:
        return "diverged"
    value, se = gap
    if value > 10:
        return "> 1000 %"
    return f"{100 * value:.1f} %" if se is None else f"{100 * value:.1f} ± {100 * se:.1f} %"


def told(name: str, end: End) -> str:
    """A test function at the end and its standard error; accuracies in percent.

    >>> told("test accuracy", End(0.8782, 0.0029)), told("test loss", End(1.7041, 0.0012)), told("test loss", End())
    ('87.82 ± 0.29 %', '1.704 ± 0.0012', 'diverged')
    """
    if end.value is None:
        return "diverged"
    if name.endswith("accuracy"):
        return f"{100 * end.value:.2f}{'' if end.se is None else f' ± {100 * end.se:.2f}'} %"
    return f"{end.value:.3f}{_error(end.se)}"


def told_gap(name: str, end: End) -> str:
    """The end less the base's and its standard error; accuracies in percentage points.

    >>> told_gap("test accuracy", End(0.87, 0.003, -0.0123, 0.004)), told_gap("test accuracy", End())
    ('-1.2 ± 0.4 points', 'diverged')
    >>> told_gap("test loss", End(1.7, 0.001, 0.0094, 0.0004)), told_gap("test loss", End(1.7, None, 0.0094, None))
    ('+0.009 ± 0.0004', '+0.009, one seed')
    """
    if end.gap is None:
        return "diverged" if end.value is None else "not known"
    if name.endswith("accuracy"):
        text = f"{100 * end.gap:+.1f}{'' if end.gap_se is None else f' ± {100 * end.gap_se:.1f}'} points"
    else:
        text = f"{end.gap:+.3f}{_error(end.gap_se)}"
    return text if end.gap_se is not None else f"{text}, one seed"


def _error(se: float | None) -> str:
    return "" if se is None else f" ± {se:.2g}"


def accuracies(finals: Sequence[Final]) -> str:
    """Of every line, with its standard error, and how many of its runs diverged where some did."""
    return ", ".join(f"{final.label}: {told(ACCURACY, final.accuracy)}{_some_diverged(final)}" for final in finals)


def _some_diverged(final: Final) -> str:
    return f" ({final.diverged} of {final.seeds} diverged)" if 0 < final.diverged < final.seeds else ""
