"""How the outcome of an experiment is drawn and judged: which gap, which limit, and the finding in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rootscale.gap import Largest
from rootscale.paper.finals import End, Final

__all__ = [
    "CONTRADICTED",
    "REPRODUCED",
    "UNDECIDED",
    "Dot",
    "Outcome",
    "Planned",
    "Point",
    "Shown",
    "Sweep",
    "judge_ends",
    "tell_ends",
]

Outcome = Literal["reproduced", "contradicted", "undecided"]
REPRODUCED: Outcome = "reproduced"
CONTRADICTED: Outcome = "contradicted"
UNDECIDED: Outcome = "undecided"


@dataclass(frozen=True)
class Dot:
    """A final value of a dot plot.

    Args:
        row: what was run.
        series: which of the series, such as a batch size.
        end: its final test accuracy, and the gap that is drawn.
        curve: the largest gap of its curve on the way, which makes a second panel; None where that is not told.
    """

    row: str
    series: str
    end: End
    curve: Largest | None = None


@dataclass(frozen=True)
class Point:
    """What runs came to with one of the numbers that were tried.

    Args:
        series: to which of the lines it belongs, such as a batch size.
        number: that was tried; infinity is drawn at the right.
        value: a final loss, or a largest gap in percent.
        error: its standard error; None where it is not known.
    """

    series: str
    number: float
    value: float
    error: float | None = None


@dataclass(frozen=True)
class Sweep:
    """Values over numbers that were tried.

    Args:
        points: of all series.
        axis: what the numbers are.
        value: what the values are.
        null: where the values are gaps, between which of them a rerun lies; None where the lowest value is the best.
        marks: further numbers, with what is to be said of them.
    """

    points: Sequence[Point]
    axis: str
    value: str
    null: tuple[float, float] | None = None
    marks: Mapping[float, str] = field(default_factory=dict)

    @property
    def series(self) -> list[str]:
        """Return the names of the series, in their order."""
        return list(dict.fromkeys(point.series for point in self.points))

    def best(self, series: str) -> Point:
        """Return the point of a series with the lowest value; of gaps, that nearest to none."""
        own = [point for point in self.points if point.series == series]
        return min(own, key=lambda point: point.value if self.null is None else abs(point.value))


@dataclass(frozen=True)
class Planned:
    """Options under which an experiment decides (results/PROTOCOL.md), and what that costs in minutes of one H200."""

    options: Mapping[str, Any]
    minutes: float


@dataclass(frozen=True)
class Shown:
    """How an experiment is drawn and judged.

    Args:
        headline: returns the finding as a sentence, which is the title of the figure.
        function: the test function whose gap to the base is drawn; empty for the measure of the experiment.
        limit: how far it may be off, in its own unit; None draws the gap as a share of the base curve's range, with
            the check's tolerance.
        limited_by: what says so.
        dots: returns the points of a dot plot, which is drawn instead of curves.
        sweep: returns values over numbers that were tried, which are drawn instead of curves.
        compares: whether the runs are compared with the first one; of a choice among them only the ends are shown.
        brief: returns what was measured for the table of all results; None tells the gap that is drawn.
        judge: returns whether the runs reproduce the paper's claim.
        differs: how the experiment differs from the paper's even with its default options.
        paper_setting: whether its net, data and length are the paper's under the options that decide. Runs of another
            net or of a small copy are told, and decide nothing.
        stands_for: the experiment whose claim it tests in another setting, and which alone decides.
        decided_by: the options that decide, where they are not the defaults.
    """

    headline: Callable[[Sequence[Final]], str] | None = None
    function: str = ""
    limit: float | None = None
    limited_by: str = "the paper's claim"
    dots: Callable[[Sequence[Final]], Sequence[Dot]] | None = None
    sweep: Callable[[Sequence[Final]], Sweep] | None = None
    compares: bool = True
    brief: Callable[[Sequence[Final]], str] | None = None
    judge: Callable[[Sequence[Final]], Outcome] | None = None
    differs: str = ""
    paper_setting: bool = True
    stands_for: str = ""
    decided_by: Planned | None = None


def judge_ends(ends: Sequence[End], limit: float) -> Outcome:
    """Return whether final values are within a limit of the base's: undecided within twice the error, or without one.

    Nothing decides nothing: without a final value it is undecided.

    >>> judge_ends([End(gap=-0.008, gap_se=0.007)], 0.03), judge_ends([End(gap=-0.05, gap_se=0.007)], 0.03)
    ('reproduced', 'contradicted')
    >>> judge_ends([End(gap=-0.02, gap_se=0.007)], 0.03), judge_ends([End(gap=0.0)], 0.03), judge_ends([End()], 0.03)
    ('undecided', 'undecided', 'contradicted')
    >>> judge_ends([], 0.03)
    'undecided'
    """
    sure = [(abs(end.gap), 2 * end.gap_se) for end in ends if end.gap is not None and end.gap_se is not None]
    if any(end.value is None and end.gap is None for end in ends) or any(gap - two > limit for gap, two in sure):
        return CONTRADICTED
    within = bool(ends) and len(sure) == len(ends) and all(gap + two <= limit for gap, two in sure)
    return REPRODUCED if within else UNDECIDED


def tell_ends(ends: Mapping[str, End]) -> str:
    r"""Return what final test accuracies are off by, for a sentence: verb and unit once, where they stay the same.

    >>> tell_ends({"4 times": End(gap=-0.008, gap_se=0.007), "16 times": End(gap=-0.05, gap_se=0.007), "64": End()})
    '4 times loses 0.8 ± 0.7\xa0points, 16 times 5.0 ± 0.7, 64 diverges'
    >>> tell_ends({"v": End(gap=0.004), "w": End(gap=-0.01)})
    'v gains 0.4\xa0points, w loses 1.0\xa0points'
    """
    parts, before = [], ""
    for text, end in ends.items():
        if end.gap is None:
            parts.append(f"{text} diverges")
            continue
        verb = "gains" if end.gap > 0 else "loses"
        number = f"{100 * abs(end.gap):.1f}" + ("" if end.gap_se is None else f" ± {100 * end.gap_se:.1f}")
        parts.append(f"{text} {number}" if verb == before else f"{text} {verb} {number}\N{NO-BREAK SPACE}points")
        before = verb
    return ", ".join(parts)
