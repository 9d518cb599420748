"""Does the noise scale forecast how many samples a larger batch needs? Predicted against measured, on small nets.

Claim. Fixed before it was run: with the noise scale measured along the run of the smallest batch,
``samples = least (1 + B / B_noise)`` forecasts the samples to a loss within a factor of 1.5 at each of the other four
batch sizes, on both nets, and the noise scale in Adam's metric forecasts nearer than the Euclidean one.

Protocol. Runs from scratch at five batch sizes, every number converted by the square root rule from the smallest; nets
and sizes are those of `NETS`. The loss to reach is the test loss of the smallest batch after an eighth of the run (its
mean over seeds, interpolated); all runs have the same length, so that up to 8 times the samples can be seen. A run that
does not get there counts as not reached, and is not made a number of. Seeds 0 to 7; the ratio of samples is taken for
each seed, and its mean and 95 % interval are of the logarithm. The forecast uses the noise scale of the smallest batch
alone, up to that loss, in four norms: the median of the seeds, with the 2.5 % and 97.5 % quantiles as its interval.

Finding. On the digits (n = 8) the first half held: the Euclidean noise scale is off by at most a factor of 1.19 at the
four batch sizes. The second half is contradicted there: in Adam's metric it is off by up to 1.75, always too few
samples. The GPT was not run.

Cost. About 10 minutes of one core for the digits, an hour for the GPT.

Finding. On digits (n = 8) the noise scale, measured as usual, forecasts within a factor of 1.19; in Adam's metric and
in the dual norm of spectral updates it is off by 1.75 and 1.84. The GPT is not run yet.

    rootscale study experiments/forecast.py --results results --data FOLDER
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from results import Claim

from rootscale import Adam, AdamW, BatchSize, Plan
from rootscale.compare import Table
from rootscale.format import few_digits, listed, show
from rootscale.lab import Arm, Measure, Settings, Study, Task, Variant
from rootscale.lab.probes import NORMS
from rootscale.lab.tasks import digits
from rootscale.noise import Interval
from rootscale.planner import NoiseAlong
from rootscale.stats import student_quantile
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The share of the run of the smallest batch after which its loss is the one to reach.
SHARE = Fraction(1, 8)
SEEDS = 8
KEEPS = ("test loss", "train loss", *(f"{what}{norm}" for norm in ("", *NORMS) for what in ("Tr Sigma", "noise scale")))


@dataclass(frozen=True)
class Net:
    """What is trained, at which batch sizes, and for how many samples."""

    title: str
    sizes: tuple[int, ...]
    samples: int
    points: int = 24


NETS: Mapping[str, Net] = {
    "digits": Net("MLP on digits", (4, 16, 64, 256, 512), 98_304),
    "gpt": Net("tiny GPT on enwik8", (8, 32, 128, 512, 1024), 131_072),
}


def _task(net: str, data: str, smoke: bool) -> Task:
    size, samples = NETS[net].sizes[0], NETS[net].samples
    if net == "digits":
        plan = Plan(Adam(5e-4, 0.9, 0.999), BatchSize(size), steps=Fraction(samples, size))
        return replace(digits(), name="forecast-digits", plan=plan)
    from language_models import enwik8_gpt

    plan = Plan(AdamW(1e-3, 0.9, 0.99, weight_decay=0.01), BatchSize(size), steps=Fraction(samples, size))
    return enwik8_gpt("forecast-gpt", lambda windows: plan, "gpt-tiny", 32, data, smoke)


def places(net: Net) -> tuple[int, ...]:
    """Return the samples at which runs are measured: whole steps of the largest batch, denser at the beginning."""
    unit = net.sizes[-1]
    steps = np.unique(np.round(np.geomspace(1, net.samples // unit, net.points)).astype(int))
    return (0, *(int(step) * unit for step in steps))


def study(net: str, data: str = "", smoke: bool = False) -> Study:
    """Return the runs of one net at its batch sizes."""
    chosen, task = NETS[net], _task(net, data, smoke)
    grid = places(chosen)[:3] if smoke else places(chosen)
    settings = Settings(grid, 0, Measure(len(grid), 1024, noise_samples=1024, norms=True))
    first = chosen.sizes[0]
    arms = [Arm(f"B = {size}", task, Variant(Fraction(size, first))) for size in chosen.sizes]
    claim = f"{chosen.title}: samples to a loss at {len(arms)} batch sizes, forecast by the noise scale and measured"
    return Study(f"forecast-{net}", arms, claim, SEEDS, settings, keeps=KEEPS)


def studies(net: str = "", data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one net, or of both."""
    return [study(name, data, smoke) for name in ([net] if net else NETS)]


STUDY = studies


# -- what is read from the runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A batch size: samples to the loss over those of the smallest, measured and forecast.

    Args:
        size: the batch size.
        measured: its geometric mean over seeds, with its interval; None where not every seed reached the loss.
        reached: seeds that did.
        forecast: by norm.
    """

    size: int
    measured: Interval | None
    reached: int
    forecast: Mapping[str, Interval]


def samples_to(runs: Trajectory, loss: float) -> np.ndarray:
    """Return the samples after which each seed is at a loss for the first time, on lines between the points."""
    at, curves = np.asarray(runs.meta["samples"], float), runs.values["test loss"]
    found = np.full(len(curves), np.nan)
    for i, curve in enumerate(curves):
        below = np.flatnonzero(curve <= loss)
        if len(below) and below[0]:
            j = int(below[0])
            part = (curve[j - 1] - loss) / (curve[j - 1] - curve[j])
            found[i] = at[j - 1] + part * (at[j] - at[j - 1])
    return found


def rows(table: Table) -> list[Row]:
    """Return what was measured and forecast for each batch size but the smallest."""
    base = table.base.trajectory
    at, mean = np.asarray(base.meta["samples"], float), base.values["test loss"].mean(0)
    until = float(at[-1] * SHARE)
    loss = float(np.interp(until, at, mean))
    own, first = samples_to(base, loss), int(table.base.plan.batch_size.total)  # type: ignore[union-attr]
    along = {name or ", Euclidean": noise_along(base, name, until) for name in ("", *NORMS)}
    found = []
    for arm in table.others:
        size, ratio = int(arm.plan.batch_size.total), np.log(samples_to(arm.trajectory, loss) / own)  # type: ignore[union-attr]
        reached = int(np.isfinite(ratio).sum())
        measured = None
        if reached == len(ratio):
            half = student_quantile(len(ratio) - 1) * float(ratio.std(ddof=1)) / math.sqrt(len(ratio))
            middle = float(ratio.mean())
            measured = Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
        forecast = {name[2:]: noise.cost(size, first, until) for name, noise in along.items() if noise is not None}
        found.append(Row(size, measured, reached, forecast))
    return found


def noise_along(runs: Trajectory, norm: str, until: float) -> NoiseAlong | None:
    """Return the noise scale along runs up to some samples: the median of the seeds and where 95 % of them lie."""
    if f"noise scale{norm}" not in runs.values:
        return None
    at, values = np.asarray(runs.meta["samples"], float), runs.values[f"noise scale{norm}"]
    some = [i for i in range(len(at)) if at[i] <= until and np.isfinite(values[:, i]).all()]
    scales = [Interval(*np.quantile(values[:, i], (0.5, 0.025, 0.975))) for i in some]
    return NoiseAlong(tuple(float(at[i]) for i in some), tuple(scales))


def worst(found: list[Row], norm: str) -> float:
    """Return the largest factor by which a forecast is off, over batch sizes that reached the loss."""
    pairs = [(row.forecast[norm].value, row.measured.value) for row in found if row.measured and norm in row.forecast]
    return max((max(a / b, b / a) for a, b in pairs), default=math.nan)


def outcome(table: Table) -> str:
    """Return by how much the forecasts are off, and each batch size, in words."""
    found, parts = rows(table), []
    for row in found:
        measured = "not reached" if row.measured is None else f"{few_digits(row.measured.value)} times the samples"
        forecasts = listed([f"{few_digits(one.value)} ({norm})" for norm, one in row.forecast.items()])
        parts.append(f"B = {show(row.size)}: {measured}, forecast {forecasts}")
    off = listed([f"{few_digits(worst(found, norm))} ({norm})" for norm in found[0].forecast])
    return f"largest factor off: {off}; {'; '.join(parts)}"


def claims(results: Path) -> list[Claim]:
    """Return a row of the table of claims for each net."""
    found = []
    for net, chosen in NETS.items():
        title = f"{chosen.title}: the noise scale forecasts the samples to a loss within a factor of 1.5"
        command, file = f"`rootscale study experiments/forecast.py --net {net}`", f"forecast-{net}.npz"
        if _exists(results, net):
            table = Table.load(results / file)
            found.append(Claim(title, outcome(table), str(table.base.trajectory.replicas), file, command))
        else:
            found.append(Claim(title, "not run", "", "", command))
    return found


def figures(results: Path) -> dict[str, Figure]:
    """Return the figure of forecasts over measurements, by name."""
    import matplotlib.pyplot as plt

    stored = {net: Table.load(results / f"forecast-{net}.npz") for net in NETS if _exists(results, net)}
    if not stored:
        return {}
    figure, axes = plt.subplots(1, len(stored), figsize=(5 * len(stored), 4), squeeze=False)
    for axis, (net, table) in zip(axes[0], stored.items(), strict=True):
        found = rows(table)
        for norm in found[0].forecast:
            forecasts = [row.forecast[norm].value for row in found]
            axis.plot([row.size for row in found], forecasts, label=f"forecast, {norm}")
        known = [(row.size, row.measured) for row in found if row.measured is not None]
        ends = np.array([[one.value - one.low, one.high - one.value] for _, one in known]).T
        middle = [one.value for _, one in known]
        axis.errorbar([size for size, _ in known], middle, ends, fmt="ko", capsize=3, label="measured, 95 %")
        axis.set(xscale="log", yscale="log", xlabel="batch size", ylabel="samples to the loss / those of the smallest")
        axis.set_title(f"{NETS[net].title}, n = {table.base.trajectory.replicas}")
        axis.legend(fontsize=8)
    figure.tight_layout()
    return {"forecast": figure}


def _exists(results: Path, net: str) -> bool:
    return (results / f"forecast-{net}.npz").exists()
