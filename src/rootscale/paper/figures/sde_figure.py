"""The figure of the SDE of a real network: discrete Adam, SVAG and the solved SDE have one loss curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rootscale.gap import gaps
from rootscale.paper.figures.canvas import finished, new_figure, save
from rootscale.report.plotting import LineEnd, few_ticks, label_ends
from rootscale.report.styles import STRIP, style_of
from rootscale.trajectory import Trajectory

__all__ = ["draw_sde"]

#: The test function that is drawn, and the share of its range that counts as the same.
LOSS, TOLERANCE = "loss", 0.05


def draw_sde(processes: Mapping[str, Trajectory], path: Path) -> None:
    """Draw the mean train loss of processes, and what each is off by.

    Args:
        processes: by label; gaps are to the first. The last is what must fail.
        path: the PNG to write.
    """
    (first, base), *others = processes.items()
    found = {label: gaps(base, other, [LOSS])[LOSS] for label, other in others}
    *good, _ = (100 * abs(gap.largest.gap) for gap in found.values())
    bad = 100 * abs(list(found.values())[-1].largest.gap)
    title = (
        f"A real network: Adam, SVAG and the solved SDE have one loss curve, within {max(good):.1f} % of its range; "
        f"four times the batch with nothing converted is off by {bad:.0f} %"
    )
    n = min(trajectory.replicas for trajectory in processes.values())
    note = (
        f"MLP 64-32-10 on digits, B = 4, from one state in mid-training; means of {n} replicas, bands: ± two standard "
        "errors."
    )
    figure = new_figure(3.9, title, note)
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    loss, gap = left.subplots(), right.subplots()
    x = base.times / base.meta["h"] / 1000
    gap.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color=STRIP, alpha=0.13, linewidth=0)
    gap.axhline(0, color=style_of(0).colour, linewidth=1.6)
    loss.plot(x, base[LOSS].mean, color=style_of(0).colour, linewidth=4, alpha=0.5)
    ends = []
    for i, (label, trajectory) in enumerate(others, 1):
        colour, off = style_of(i).colour, found[label]
        loss.plot(x, trajectory[LOSS].mean, color=colour, linewidth=1.5)
        low, high = (100 * (off.gap + side * off.se) for side in (-2, 2))
        gap.fill_between(x[-len(off.gap) :], low, high, color=colour, alpha=0.15, linewidth=0)
        gap.plot(x[-len(off.gap) :], 100 * off.gap, color=colour, linewidth=1.6)
        ends.append(LineEnd(x[-1], 100 * off.gap[-1], label, colour))
    loss.set_title("train loss", loc="left", fontsize=10)
    gap.set_title(f"less that of {first}, % of its range (grey: ± {100 * TOLERANCE:g})", loc="left", fontsize=10)
    for axis in (loss, gap):
        axis.set_xlim(x[0], x[-1])
        axis.set_xlabel("thousand steps of Adam")
        few_ticks(axis, 4)
    finished((loss, gap))
    label_ends(gap, ends, 9.0)
    save(figure, path)
