"""The table of final values of an experiment's runs: where they end, and their largest gaps to the base, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rootscale.format import percent, plus_minus
from rootscale.gap import Gap, Largest, Verdict, gaps
from rootscale.lab import Result
from rootscale.trajectory import Trajectory

__all__ = [
    "ACCURACY",
    "MEASURES",
    "SEED_DEVIATION",
    "End",
    "Final",
    "accuracies",
    "difference",
    "final_values",
    "format_curve",
    "format_end",
    "format_gap",
]

Array = NDArray[np.float64]

ACCURACY = "test accuracy"
#: Standard deviation over seeds of the final test accuracy on CIFAR-10, measured with VGG-16: a single run's error.
SEED_DEVIATION = 0.005
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
        se: its standard error over the seeds. Of one seed, the standard deviation over seeds where that is known.
        gap: the value less the base's, over the seeds both have; None for the base itself.
        gap_se: its standard error; of one seed, that of a difference of two single runs.
    """

    value: float | None = None
    se: float | None = None
    gap: float | None = None
    gap_se: float | None = None


@dataclass(frozen=True)
class Final:
    """What a line of an experiment came to.

    Args:
        label: of the line.
        batch_size: at its end.
        seeds: how many runs.
        diverged: how many of them did.
        ends: of every test function.
        curves: by test function, the gap of the mean curves to the base's (`rootscale.gap`).
        seconds: of the runs.
        verdict: on the comparison with the base; None where there was none, for want of seeds.
        starts: every test function at the first time, without what it is compared with.
    """

    label: str
    batch_size: int
    seeds: int
    diverged: int
    ends: Mapping[str, End]
    curves: Mapping[str, Gap]
    seconds: float
    verdict: Verdict | None = None
    starts: Mapping[str, End] = field(default_factory=dict)

    def end(self, name: str) -> End:
        """Return the end of a test function, which may be one that was not measured."""
        return self.ends.get(name, End())

    def curve(self, name: str) -> Largest | None:
        """Return the largest gap of a test function; None where it is not known at the end, as the runs diverged."""
        found = self.curves.get(name)
        return None if found is None or math.isnan(found.gap[-1]) else found.largest

    @property
    def accuracy(self) -> End:
        """The accuracy on the test set."""
        return self.end(ACCURACY)


# -- from trajectories -----------------------------------------------------------------------------------------------


def final_values(arms: Sequence[Result], deviation: float | None = None) -> list[Final]:
    """Return the table of final values of arms, the base first.

    Args:
        arms: with their trajectories.
        deviation: the standard deviation over seeds of the final test accuracy, which is the error of a single run;
            None where it was not measured.
    """
    base = arms[0]
    return [_final(base, arm, deviation) for arm in arms]


def _final(base: Result, arm: Result, deviation: float | None) -> Final:
    here, there = arm.trajectory, base.trajectory
    compared = gaps(there, here) if arm.comparison is None else arm.comparison.gaps
    pairs = list(_pairs(there, here))
    return Final(
        arm.label,
        int(arm.the_plan.batch_size.total),
        here.replicas,
        int(here.diverged[-1]),
        {
            name: _end(there, here, name, [] if arm is base else pairs, deviation if name == ACCURACY else None)
            for name in here.names
        },
        {} if arm is base else compared,
        float(here.meta["seconds"]),
        arm.verdict,
        {name: End(*_mean(values[:, 0], None)) for name, values in here.values.items()},
    )


def _end(
    base: Trajectory, other: Trajectory, name: str, pairs: Sequence[tuple[int, int]], deviation: float | None
) -> End:
    value, se = _mean(other.values[name][:, -1], deviation)
    if value is None or name not in base.names:
        return End(value, se)
    differences = [other.values[name][j, -1] - base.values[name][i, -1] for i, j in pairs]
    return End(value, se, *_mean(np.array(differences), None if deviation is None else math.sqrt(2) * deviation))


def _mean(values: Array, deviation: float | None) -> tuple[float | None, float | None]:
    """Return the mean of the finite values, and its standard error."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    return float(values.mean()), deviation if len(values) == 1 else float(values.std(ddof=1) / math.sqrt(len(values)))


def difference(base: Final, other: Final) -> End:
    """Return the final test accuracy of a line less that of another, which need not be the experiment's base."""
    there, here = base.accuracy, other.accuracy
    if there.value is None or here.value is None:
        return End(here.value)
    known = there.se is not None and here.se is not None
    return End(
        here.value, here.se, here.value - there.value, math.hypot(there.se or 0, here.se or 0) if known else None
    )


def _pairs(base: Trajectory, other: Trajectory) -> Iterator[tuple[int, int]]:
    """Yield the rows of base and other of each seed that both have."""
    rows = {seed: i for i, seed in enumerate(base.meta["seeds"])}
    return ((rows[seed], j) for j, seed in enumerate(other.meta["seeds"]) if seed in rows)


# -- in words --------------------------------------------------------------------------------------------------------


def format_curve(final: Final, name: str) -> str:
    """Return the largest gap of a curve and its standard error, in percent of the range of the base's."""
    found = final.curve(name)
    return "diverged" if found is None else percent(found.gap, found.se)


def format_end(name: str, end: End) -> str:
    """Return a test function at the end and its standard error; accuracies in percent.

    >>> format_end("test accuracy", End(0.8782, 0.0029)), format_end("test loss", End(1.7041, 0.0012))
    ('87.82 ± 0.29 %', '1.7041 ± 0.0012')
    >>> format_end("test loss", End(1.7041)), format_end("test loss", End())
    ('1.704', 'diverged')
    """
    if end.value is None:
        return "diverged"
    if name.endswith("accuracy"):
        return f"{plus_minus(100 * end.value, None if end.se is None else 100 * end.se, 2)} %"
    return plus_minus(end.value, end.se, None if end.se else 3)


def format_gap(name: str, end: End) -> str:
    """Return the end less the base's and its standard error; accuracies in percentage points.

    >>> format_gap("test accuracy", End(0.87, 0.003, -0.0123, 0.004)), format_gap("test accuracy", End())
    ('-1.2 ± 0.4 points', 'diverged')
    >>> format_gap("test loss", End(1.7, 0.001, 0.0094, 0.0004)), format_gap("test loss", End(1.7, None, 0.0094, None))
    ('+0.00940 ± 0.00040', '+0.009, one seed')
    """
    if end.gap is None:
        return "diverged" if end.value is None else "not known"
    if name.endswith("accuracy"):
        text = f"{plus_minus(100 * end.gap, None if end.gap_se is None else 100 * end.gap_se, 1, '+')} points"
    else:
        text = plus_minus(end.gap, end.gap_se, None if end.gap_se else 3, "+")
    return text if end.gap_se is not None else f"{text}, one seed"


def accuracies(finals: Sequence[Final]) -> str:
    """Return the accuracy of every line with its standard error, and how many of its runs diverged where some did."""
    return ", ".join(
        f"{final.label}: {format_end(ACCURACY, final.accuracy)}{_some_diverged(final)}" for final in finals
    )


def _some_diverged(final: Final) -> str:
    return f" ({final.diverged} of {final.seeds} diverged)" if 0 < final.diverged < final.seeds else ""
