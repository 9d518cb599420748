"""The findings of a check in words and numbers as people write them; plain text, not yet HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootscale.compare import Array, Comparison, Gap, Verdict
from rootscale.lab.check import Arm, Check
from rootscale.trajectory import Trajectory
from rootscale.units import show

#: By verdict: the word, and what the run of an arm does with the base.
VERDICTS: dict[Verdict, str] = {"same": "Same", "different": "Different", "undecided": "Undecided"}
_SEVERITY: dict[Verdict, int] = {"same": 0, "undecided": 1, "different": 2}
#: The test function that is drawn against the batch sizes, and not with the others.
NOISE_SCALE = "noise scale"


def number(value: float, digits: int = 3) -> str:
    """A few significant digits.

    >>> number(0.012345), number(12345.6), number(-2.5e-7), number(float("nan"))
    ('0.0123', '12,300', '−2.5e-07', '–')
    """
    if not math.isfinite(value):
        return "–"
    text = show(float(f"{value:.{digits}g}"))
    return text.replace("-", "−", 1) if text.startswith("-") else text


def percent(share: float) -> str:
    r"""A share in percent, to a tenth; the space does not break.

    >>> percent(0.05), percent(-0.0163), percent(0.2071), percent(0.0), percent(0.0004)
    ('5\xa0%', '−1.6\xa0%', '20.7\xa0%', '0\xa0%', '0.04\xa0%')
    """
    value = 100 * share
    if abs(value) < 0.05:
        return f"{number(value, 1)}\N{NO-BREAK SPACE}%"
    return f"{number(round(value, 1 if abs(value) < 100 else 0), 6)}\N{NO-BREAK SPACE}%"


def with_error(mean: float, se: float) -> str:
    """A mean and two standard errors, to the digits that the error leaves.

    >>> with_error(0.56, 0.00123), with_error(12345.6, 120.0), with_error(2.0, float("nan")), with_error(2.0, 0.0)
    ('0.5600 ± 0.0025', '12,350 ± 240', '2', '2 ± 0')
    """
    if not (math.isfinite(mean) and math.isfinite(se)):
        return number(mean)
    if se <= 0:
        return f"{number(mean)} ± 0"
    places = 1 - math.floor(math.log10(2 * se))
    if places > 8:
        return f"{number(mean, 8)} ± {number(2 * se, 2)}"
    values = (round(value, places) for value in (mean, 2 * se))
    return " ± ".join(f"{value:,.{max(places, 0)}f}" for value in values).replace("-", "−")


def listed(parts: Sequence[str]) -> str:
    """The parts as a sentence has them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def ranges(numbers: Iterable[Any]) -> str:
    """Seeds in few words.

    >>> ranges([0, 1, 2, 3, 7, 9, 10]), ranges([]), ranges(["a", 1])
    ('0–3, 7, 9, 10', 'not recorded', 'a, 1')
    """
    values = list(numbers)
    if not all(isinstance(value, int) for value in values):
        return ", ".join(map(str, values))
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts) or "not recorded"


@dataclass(frozen=True)
class Largest:
    """Where the mean curves are farthest apart: the gap there, its band, and the place (in samples, or in time)."""

    gap: float
    low: float
    high: float
    at: float

    @property
    def text(self) -> str:
        """The gap with its band."""
        return f"{percent(self.gap)} ({percent(self.low)} to {percent(self.high)})"


def clock(trajectory: Trajectory) -> Array:
    """Samples seen at each time, where they were recorded; else the time itself."""
    samples = trajectory.meta.get("samples")
    return trajectory.times if samples is None else np.asarray(samples, np.float64)


def clock_name(trajectory: Trajectory) -> str:
    """What `clock` counts."""
    return "continuous time" if trajectory.meta.get("samples") is None else "samples seen"


def clock_of_gap(gap: Gap, trajectory: Trajectory) -> Array:
    """The same for the times of a gap."""
    return np.interp(gap.times, trajectory.times, clock(trajectory))


def largest(gap: Gap, trajectory: Trajectory) -> Largest | None:
    """None where there is no gap at any time: too many runs have diverged."""
    size = np.where(np.isfinite(gap.gap), np.abs(gap.gap), -1)
    i = int(np.argmax(size))
    if size[i] < 0:
        return None
    return Largest(float(gap.gap[i]), float(gap.low[i]), float(gap.high[i]), float(clock_of_gap(gap, trajectory)[i]))


def deciding(comparison: Comparison, trajectory: Trajectory) -> tuple[Gap, Largest | None] | None:
    """The test function with the largest gap, of those with the verdict of the whole."""
    found = [(gap, largest(gap, trajectory)) for gap in comparison.gaps.values()]
    found.sort(key=lambda pair: (_SEVERITY[pair[0].verdict], abs(pair[1].gap) if pair[1] else 0), reverse=True)
    return found[0] if found else None


def decide(comparison: Comparison) -> str:
    """What it would take to decide every test function that is undecided."""
    undecided = [gap.seeds_needed for gap in comparison.gaps.values() if gap.verdict == "undecided"]
    numbers = [needed for needed in undecided if needed is not None]
    if not undecided:
        (lost, lost_base), (runs, runs_base) = comparison.diverged, comparison.seeds
        return f"{lost} of {runs} runs diverged, of the base {lost_base} of {runs_base}: too few to tell"
    if len(numbers) < len(undecided):
        return "no number of seeds would decide, if the gap is what it seems: it lies on the tolerance"
    return f"about {max(numbers)} seeds would decide (there are {min(comparison.seeds)})"


def diverged(arm: Arm) -> str:
    """How many runs of the arm diverged; empty if none did."""
    lost = int(arm.trajectory.diverged[-1])
    return f"{lost} of {arm.trajectory.replicas} runs diverged" if lost else ""


def _unbroken(label: str) -> str:
    """``B = 4`` stays on one line."""
    return label.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _under(arm: Arm) -> str:
    comma = "," if "," in arm.label else ""
    return f"{'under' if arm.kind == 'svag' else 'at'} {_unbroken(arm.label)}{comma}"


def _same(base: str, arms: Sequence[Arm]) -> str:
    tolerance = max(arm.comparison.tolerance for arm in arms if arm.comparison)
    return f"{listed([_under(arm) for arm in arms])} the run follows {base} within {percent(tolerance)} of its range."


def _different(base: str, arms: Sequence[Arm]) -> str:
    distances: list[str] = []
    for arm in arms:
        gap, far = (arm.comparison and deciding(arm.comparison, arm.trajectory)) or (None, None)
        distance = f"({diverged(arm)})"  # which can make the difference by itself
        if gap is not None and far is not None and gap.verdict == "different":
            share = "" if distances else " of its range"
            distance = f"by up to {percent(abs(far.gap))}{share} ({gap.name})"
        distances.append(distance)
    if len(arms) == 1:
        return f"{_under(arms[0])} the run leaves {base} {distances[0]}."
    ways = [f"{_under(arm)} {distance}" for arm, distance in zip(arms, distances, strict=True)]
    return f"the run leaves {base} {listed(ways)}."


def _undecided(base: str, arms: Sequence[Arm]) -> str:
    ways = sorted({decide(arm.comparison) for arm in arms if arm.comparison is not None})
    what = ways[0] if len(ways) == 1 else "the cards say what would decide"
    return f"{listed([_under(arm) for arm in arms])} the run may or may not follow {base}; {what}."


_SENTENCES = {"same": _same, "different": _different, "undecided": _undecided}


def sentences(check: Check) -> list[tuple[Verdict, str]]:
    """The verdict in plain words: one sentence for each verdict that was given, in the order of the arms."""
    groups: dict[Verdict, list[Arm]] = {}
    for arm in check.others:
        if arm.verdict is not None:
            groups.setdefault(arm.verdict, []).append(arm)
    return [(verdict, _SENTENCES[verdict](_unbroken(check.base.label), arms)) for verdict, arms in groups.items()]


def batch_sizes(check: Check) -> list[tuple[int, float]]:
    """The first arm (0 is the base) at each batch size; SVAG's is nominal and left out."""
    sizes: dict[float, int] = {}
    for i, arm in enumerate((check.base, *check.others)):
        if arm.kind != "svag":
            sizes.setdefault(float(arm.plan.batch_size.total), i)
    return [(i, size) for size, i in sorted(sizes.items())]


@dataclass(frozen=True)
class Noise:
    """The noise scale of a trajectory: the median of its replicas and where 90 % of them lie, ``[T]`` each.

    It is a ratio whose denominator may come near 0, so that means over replicas say nothing.
    """

    clock: Array
    middle: Array
    low: Array
    high: Array


def noise(trajectory: Trajectory | None) -> Noise | None:
    """None where the noise scale was not measured."""
    if trajectory is None or NOISE_SCALE not in trajectory.names:
        return None
    if not trajectory.values:
        mean, se = trajectory[NOISE_SCALE]
        return Noise(clock(trajectory), mean, mean - 1.645 * se, mean + 1.645 * se)
    kept = np.where(trajectory.lost, np.nan, trajectory.values[NOISE_SCALE])
    some = ~trajectory.lost.all(0)
    quantiles = np.full((3, len(trajectory.times)), np.nan)
    quantiles[:, some] = np.nanquantile(kept[:, some], (0.5, 0.05, 0.95), axis=0)
    return Noise(clock(trajectory), *quantiles)


def noise_dominates(check: Check) -> list[tuple[int, str]]:
    """For each batch size (with its first arm) where the noise scale lies above it."""
    parts = [part for part in (noise(check.warm), noise(check.base.trajectory)) if part is not None]
    if not parts:
        return []
    when = np.concatenate([part.clock for part in parts])
    scale = np.concatenate([part.middle for part in parts])
    unit = "samples" if clock_name(check.base.trajectory) == "samples seen" else "(time)"
    lines = []
    for arm, size in batch_sizes(check):
        above = scale > size
        last_below = -1 if above.all() else int(np.flatnonzero(~above)[-1])
        if last_below < 0:
            where = "noise dominates all along"
        elif not above.any():
            where = "noise dominates nowhere"
        elif last_below + 1 < len(above):
            where = f"noise dominates from {number(when[last_below + 1])} {unit} on"
        else:
            where = f"noise dominates at {int(above.sum())} of {len(above)} times, not at the end"
        lines.append((arm, f"B = {number(size, 6)}: {where}"))
    return lines


def functions(check: Check) -> list[str]:
    """The test functions that are followed; the noise scale has a place of its own."""
    return [name for name in check.base.trajectory.names if name != NOISE_SCALE]


def described(value: Any) -> str:
    """Anything that JSON can hold, as text.

    >>> described({"torch": "2.6", "numpy": "2.0"}), described([1, 2]), described(83.4)
    ('torch 2.6, numpy 2.0', '1, 2', '83.4')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {described(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(described, value))
    return str(value)
