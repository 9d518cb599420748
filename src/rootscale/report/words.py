"""The findings of a check in words and numbers as people write them; plain text, not yet HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from rootscale.compare import FEWEST, Array, Comparison, Gap
from rootscale.format import show
from rootscale.lab.result import LOSSES, Arm, Check
from rootscale.trajectory import Trajectory

#: The words for the verdicts, in the order of the page; the last is for runs that were too few for one.
VERDICTS = {"same": "Same", "different": "Different", "undecided": "Undecided", "unjudged": "Not judged"}
_SEVERITY = {"same": 0, "undecided": 1, "different": 2}
#: The test function that is drawn against the batch sizes, and not with the others.
NOISE_SCALE = "noise scale"
#: Noise scales above this say that no gradient was seen in the noise of its measurement.
NO_GRADIENT = 1e10


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
    r"""A share in percent, to a tenth (a hundredth where it is less); the space does not break.

    >>> percent(0.05), percent(-0.0163), percent(0.2071), percent(0.00001), percent(0.00038)
    ('5\xa0%', '−1.6\xa0%', '20.7\xa0%', '0\xa0%', '0.04\xa0%')
    """
    value = 100 * share
    places = 2 if abs(value) < 0.05 else 1 if abs(value) < 100 else 0
    return f"{number(round(value, places) + 0.0, 6)}\N{NO-BREAK SPACE}%"  # + 0.0: no negative zero


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


def deciding(check: Check) -> tuple[str, ...]:
    """The test functions on which the verdicts rest; where none was given, those on which they would have."""
    for arm in check.others:
        if arm.comparison is not None:
            return tuple(gap.name for gap in arm.comparison.decisive)
    names = _followed(check)
    return tuple(name for name in names if name in LOSSES) or tuple(names[:1])


def worst(comparison: Comparison, trajectory: Trajectory) -> tuple[Gap, Largest | None] | None:
    """Of the test functions that decide, with the severest verdict among them, the one with the largest gap."""
    found = [(gap, largest(gap, trajectory)) for gap in comparison.decisive]
    found.sort(key=lambda pair: (_SEVERITY[pair[0].verdict], abs(pair[1].gap) if pair[1] else 0), reverse=True)
    return found[0] if found else None


def decide(comparison: Comparison) -> str:
    """What it would take to decide."""
    if comparison.seeds_needed is not None:
        return f"about {comparison.seeds_needed:,} seeds would decide (there are {min(comparison.seeds)})"
    if any(gap.verdict == "undecided" and gap.seeds_needed is None for gap in comparison.decisive):
        return "no number of seeds would decide, if the gap is what it seems: it lies on the tolerance"
    (lost, lost_base), (runs, runs_base) = comparison.diverged, comparison.seeds
    return f"{lost} of {runs} runs diverged, of the base {lost_base} of {runs_base}: too few to tell"


def settles(arm: Arm) -> str:
    """From when on a run that is not the same is; empty where that is never, or always."""
    comparison = arm.comparison
    if comparison is None or comparison.verdict == "same" or comparison.settled_after is None:
        return ""
    time = comparison.settled_after
    if all(time <= gap.times[0] for gap in comparison.decisive):
        return ""
    at = float(np.interp(time, arm.trajectory.times, clock(arm.trajectory)))
    return f"from {place(at, arm.trajectory)} on the band stays within the tolerance"


def place(at: float, trajectory: Trajectory) -> str:
    """Where on the clock."""
    counted = clock_name(trajectory) == "samples seen"
    return f"{number(at)} samples" if counted else f"time {number(at)}"


def diverged(arm: Arm) -> str:
    """How many runs of the arm diverged; empty if none did."""
    lost = int(arm.trajectory.diverged[-1])
    return f"{lost} of {arm.trajectory.replicas} runs diverged" if lost else ""


def unbroken(label: str) -> str:
    """``B = 4`` stays on one line."""
    return label.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def judged(arm: Arm) -> str:
    """The verdict on an arm, or that there is none: a key of `VERDICTS`."""
    return arm.verdict or "unjudged"


def too_few(arms: Iterable[Arm]) -> str:
    """Why there is no verdict."""
    runs = sorted({arm.trajectory.replicas for arm in arms})
    there = f"; there {'is' if runs == [1] else 'are'} {listed([str(n) for n in runs])}" if max(runs) < FEWEST else ""
    return f"a verdict needs at least {FEWEST} seeds{there}"


@dataclass(frozen=True)
class Sentence:
    """A verdict in plain words.

    Args:
        verdict: a key of `VERDICTS`, whose word the sentence begins with.
        text: what follows that word.
        arms: on whom: the number of the arm (0 is the base), its label, and what is to be said of it alone.
    """

    verdict: str
    text: str
    arms: tuple[tuple[int, str, str], ...]

    def __str__(self) -> str:
        arms = "; ".join(label + (f": {said}" if said else "") for _, label, said in self.arms)
        return f"{VERDICTS[self.verdict]}{self.text}: {arms}"


def sentences(check: Check) -> list[Sentence]:
    """One for each verdict that was given, in the order of `VERDICTS`."""
    groups: dict[str, list[tuple[int, Arm]]] = {}
    for i, arm in enumerate(check.others, 1):
        groups.setdefault(judged(arm), []).append((i, arm))
    return [_sentence(check, verdict, groups[verdict]) for verdict in VERDICTS if verdict in groups]


def _sentence(check: Check, verdict: str, arms: Sequence[tuple[int, Arm]]) -> Sentence:
    base, names = unbroken(check.base.label), deciding(check)
    tolerance = max((arm.comparison.tolerance for _, arm in arms if arm.comparison), default=0.0)
    what = listed(names) if len(names) <= 3 else f"{len(names)} test functions"
    texts = {
        "same": f" as {base}, within {percent(tolerance)} of its range ({what})",
        "different": f" from {base}, by more than {percent(tolerance)} of its range ({what})",
        "undecided": f" whether the same as {base} within {percent(tolerance)} of its range ({what})",
        "unjudged": f": {too_few(arm for _, arm in arms)}",
    }
    return Sentence(
        verdict, texts[verdict], tuple((i, unbroken(arm.label), _said(arm, len(names) > 1)) for i, arm in arms)
    )


def _said(arm: Arm, several: bool) -> str:
    """What the sentence has to say on one arm; by which test function, where several decide."""
    if arm.comparison is None or arm.verdict == "same":
        return ""
    if arm.verdict == "undecided":
        return decide(arm.comparison)
    gap, far = worst(arm.comparison, arm.trajectory) or (None, None)
    if gap is not None and far is not None and gap.verdict == "different":
        return f"by up to {percent(abs(far.gap))}" + (f" ({gap.name})" if several else "")
    return diverged(arm)  # which can make the difference by itself


def mean_gap(arm: Arm, base: Arm, name: str) -> Array | None:
    """The gap of the means of an arm that was not compared, as shares of the range of the base's mean curve.

    None where that is flat, or where one of the two was not followed.
    """
    if name not in arm.trajectory.names or name not in base.trajectory.names:
        return None
    mean, reference = arm.trajectory[name].mean, base.trajectory[name].mean
    known = np.isfinite(reference)
    span = float(np.ptp(reference[known])) if known.any() else 0.0
    if span == 0:
        return None
    times = base.trajectory.times
    there = np.interp(arm.trajectory.times, times[known], reference[known], left=np.nan, right=np.nan)
    found: Array = (mean - there) / span
    return found


def stages(arm: Arm) -> list[tuple[float, float]]:
    """Each batch size of a run, with the samples seen before it; the plan's alone where no others were recorded."""
    size = float(arm.plan.batch_size.total)
    variant, plan = arm.trajectory.meta.get("variant"), arm.trajectory.meta.get("base_plan")
    if not isinstance(variant, Mapping) or not isinstance(plan, Mapping):
        return [(0.0, size)]
    ramp = [(float(at), Fraction(kappa)) for at, kappa in variant.get("ramp", ())]
    # The plan of an arm is that of its last stage.
    kappas = [Fraction(variant.get("kappa", 1)), *(kappa for _, kappa in ramp)]
    places = [float(arm.trajectory.meta.get("switch_at", 0)), *(at for at, _ in ramp)]
    return [(at, size * float(kappa / kappas[-1])) for at, kappa in zip(places, kappas, strict=True)]


def switches(check: Check) -> list[tuple[float, str]]:
    """Where all runs change their batch size, by the clock, and what to write there."""
    if not check.switch_at:
        return []
    base = check.base.trajectory
    if clock_name(base) != "samples seen":
        return [(float(base.times[0]), "switch")]
    ways = [stages(arm) for arm in check.others if arm.kind == "batch size"]
    found = [(float(check.switch_at), "switch")]
    if ways and all(way == ways[0] for way in ways) and len(ways[0]) > 1:
        found = [(at, f"B → {number(size, 6)}") for at, size in ways[0]]
    return found


def batch_sizes(check: Check) -> list[tuple[int, float]]:
    """The first arm (0 is the base) that has each batch size at some time; SVAG's is nominal and left out."""
    sizes: dict[float, int] = {}
    for i, arm in enumerate((check.base, *check.others)):
        for _, size in stages(arm) if arm.kind != "svag" else ():
            sizes.setdefault(size, i)
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


def noise_levels(check: Check) -> tuple[float, float]:
    """Lowest and highest level that a figure of the noise scale has to show, batch sizes included.

    Where no gradient was seen the noise scale is beyond all measure: there a curve leaves the figure.
    """
    parts = [part.middle for part in (noise(check.warm), noise(check.base.trajectory)) if part is not None]
    scales = np.concatenate([*parts, [size for _, size in batch_sizes(check)]])
    seen = scales[(scales > 0) & (scales < NO_GRADIENT)]
    return float(seen.min()), float(seen.max())


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


def _followed(check: Check) -> list[str]:
    return [name for name in check.base.trajectory.names if name != NOISE_SCALE]


def functions(check: Check) -> list[str]:
    """The test functions, those that decide first; the noise scale has a place of its own."""
    first = deciding(check)
    return sorted(_followed(check), key=lambda name: name not in first)


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
