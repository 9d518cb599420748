"""What one run a side allows to conclude, and what it does not.

The spread between seeds cannot be seen in a single run: no verdict. What can be seen is the scatter of the logged
values around their own smooth curve. It bounds the spread from below: two runs of one setting differ by at least that
much. So a gap within the scatter shows nothing, and a gap beyond it is a difference of these two runs, whose cause may
be the setting or the seed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rootscale.format import percent
from rootscale.gap import Gap
from rootscale.logs.record import Array
from rootscale.stats import student_quantile
from rootscale.verdict import FEWEST, Comparison, diverged_counts

__all__ = ["conclusions"]

#: Runs a side from which on a verdict is of use.
USEFUL = 4
_ASSUMED = "assuming that values scatter independently around the smooth curve, beyond what neighbours share"
_CAUSE = "Whether the setting or the seed made the difference cannot be told"


def conclusions(comparison: Comparison, base: Mapping[str, Array], other: Mapping[str, Array]) -> tuple[str, ...]:
    """Return a sentence on each deciding metric of a comparison without a verdict.

    Args:
        comparison: of too few runs for a verdict.
        base, other: the standard errors that the scatter of logged values gives the mean curves, ``[T]`` each; they may
            begin before the window of the comparison.
    """
    n = min(comparison.seeds)
    if comparison.verdict is not None or n >= FEWEST:
        return ()
    runs = "one run" if n == 1 else f"{n} runs"
    found = [f"{runs} on a side cannot show how far seeds differ: no verdict; run at least {USEFUL} of each"]
    if comparison.divergence != "same":
        return *found, f"{diverged_counts(comparison)}: these runs differ. {_CAUSE}"
    for gap in comparison.decisive:
        length = len(gap.times)
        scatter = np.sqrt(base[gap.name][-length:] ** 2 + other[gap.name][-length:] ** 2) / gap.range
        found.append(_conclusion(gap, scatter, comparison.limit(gap), comparison.level))
    return tuple(found)


def _conclusion(gap: Gap, scatter: Array, tolerance: float, level: float) -> str:
    known = np.isfinite(gap.gap) & np.isfinite(scatter)
    if not known.any():
        return f"{gap.name}: no gap could be measured"
    size, c = np.abs(gap.gap[known]), student_quantile(1000.0, 1 - (1 - level) / (2 * int(known.sum())))
    half = c * scatter[known]
    noise = f"the scatter of the logged values alone is ± {percent(float(np.median(half)))} ({_ASSUMED})"
    if np.any(size - half > tolerance):
        return f"{gap.name}: these runs differ by more than {percent(tolerance)}; {noise}. {_CAUSE}"
    if np.all(size + half <= tolerance):
        return (
            f"{gap.name}: no difference beyond {percent(tolerance)} is seen between these runs; {noise}. That is not "
            '"same": another seed may differ by more'
        )
    return (
        f"{gap.name}: nothing can be told at {percent(tolerance)}; {noise}. A wider --window, more runs or a larger "
        "--tolerance would help"
    )
