"""The figures of groups of experiments: the size of gaps against the change of batch size, a panel for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rootscale.paper.groups import Cell, Group
from rootscale.report.plotting import need_matplotlib, plain_axes, save_figure
from rootscale.report.styles import SOFT, STRIP, line_styles

__all__ = ["draw_group"]

#: Gaps are shown between these shares of the range.
LOW, HIGH = 0.005, 30.0


def draw_group(group: Group, cells: Sequence[Cell], path: Path) -> None:
    """Draw the switched runs of a group."""
    shown = [cell for cell in cells if not cell.scratch]
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    figure = need_matplotlib().figure.Figure(
        figsize=((4.4 if columns < 4 else 3.7) * columns, 3.2 * rows + 0.6), layout="constrained"
    )
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    plain_axes(axes.flat)
    styles = dict(zip(group.shown, line_styles(len(group.shown) + 1)[1:], strict=True))
    for axis, cell in zip(axes.flat, shown, strict=False):
        _panel(axis, cell, styles)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("largest gap, % of the range", fontsize=8)
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    named = {name: handles[name] for name in (*group.shown, "null") if name in handles}
    figure.legend(named.values(), named, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    n = sorted({final.seeds for cell in shown for final in cell.entry.finals})
    figure.suptitle(f"{group.title} (n = {', '.join(map(str, n))})", fontsize=11)
    save_figure(figure, path, 120)


def _panel(axis: Any, cell: Cell, styles: dict[str, tuple[str, Any]]) -> None:
    null, kappas = cell.null, cell.kappas
    axis.axhspan(LOW, max(LOW, abs(null.gap) + 2 * null.se), color=SOFT, alpha=0.18, linewidth=0, label="null")
    axis.axhline(1.0, color=STRIP, linewidth=0.8, linestyle="--")
    for form, (colour, dash) in styles.items():
        found = [cell.found[kappa, form] for kappa in kappas if (kappa, form) in cell.found]
        x = [kappas.index(one.kappa) for one in found]
        y = [_clipped(one.gap) for one in found]
        low = [value - _clipped(max(LOW, abs(one.gap) - one.se)) for one, value in zip(found, y, strict=True)]
        high = [_clipped(abs(one.gap) + one.se) - value for one, value in zip(found, y, strict=True)]
        if found:
            axis.errorbar(
                x, y, yerr=[low, high], color=colour, linestyle=dash, marker="o", markersize=4, linewidth=1.3,
                elinewidth=0.8, label=form,
            )  # fmt: skip
            below = [(a, b) for a, b, one in zip(x, y, found, strict=True) if one.gap < 0]
            axis.plot(
                [a for a, _ in below], [b for _, b in below], "o", markersize=4, color=colour, markerfacecolor="white",
                zorder=3,
            )  # fmt: skip
    axis.set_yscale("log")
    axis.set_ylim(LOW, 1.2 * HIGH)
    axis.set_yticks([0.01, 0.1, 1.0, 10.0], ["1", "10", "100", "1000"])
    axis.set_xticks(range(len(kappas)), [str(kappa) for kappa in kappas])
    axis.set_xlim(-0.3, len(kappas) - 0.7)
    axis.set_xlabel("κ, new batch size over the old", fontsize=8)
    axis.set_title(cell.title, fontsize=9, loc="left")
    axis.tick_params(labelsize=8)


def _clipped(gap: float) -> float:
    return min(HIGH, max(LOW, abs(gap))) if math.isfinite(gap) else HIGH
