"""The figure of a group of experiments: a table of gaps whose colours say which forms keep the run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rootscale.paper.figures.canvas import new_figure, save
from rootscale.paper.groups import Cell, Group, Measured
from rootscale.report.plotting import need_matplotlib, symbols
from rootscale.report.styles import GRID, SOFT, style_of

__all__ = ["draw_group"]

#: The colour of a run that was kept, and those of gaps from a little more than the null's to the whole range.
KEPT, OFF = style_of(4).colour, ("#fdf3d7", "#f6d58a", "#eda65d", "#d96a35", "#a93a14")
#: The gap, as a share of the range, from which on a colour counts.
STEPS = (0.0, 0.1, 0.2, 0.5, 1.0)


def draw_group(group: Group, cells: Sequence[Cell], path: Path) -> None:
    """Draw the switched runs of a group: a row for each net and change of batch size, a column for each form."""
    shown = [cell for cell in cells if not cell.scratch]
    rows = [(cell, kappa) for cell in shown for kappa in cell.kappas]
    n = sorted({final.seeds for cell in shown for final in cell.entry.finals})
    note = (
        "Largest gap to the run that keeps its batch size, in % of its curve's range; minus: a lower loss. Green: as "
        "close as a rerun (the null, at the left). Empty: not run, or the same run as another. "
        f"n = {', '.join(map(str, n))}."
    )
    figure = new_figure(1.55 + 0.27 * len(rows) + 0.12 * len(shown), symbols(group.headline(cells)), note)
    axis = figure.subplots()
    places = _places(rows)
    columns = ["rerun", *group.shown]
    left = 0.39 * len(columns)
    for column, name in enumerate(columns):
        unbroken = symbols(name).replace(", .", ",\N{NO-BREAK SPACE}.")  # two floors
        axis.annotate(
            textwrap.fill(unbroken, 11), (left + column + 0.5, -0.25), ha="center", va="bottom", fontsize=8.5,
            color=SOFT if not column else style_of(0).colour, linespacing=1.1, annotation_clip=False,
        )  # fmt: skip
    for (cell, kappa), y in zip(rows, places, strict=True):
        if kappa == cell.kappas[0]:
            for line, text in enumerate(_name(cell)):
                axis.annotate(
                    text, (0, y + 0.5 + line), fontsize=9.5, va="center", color=SOFT if line else style_of(0).colour
                )
            axis.axhline(y - 0.22, color=GRID, linewidth=1)
        axis.annotate(f"{kappa} ×", (left - 0.12, y + 0.5), fontsize=9.5, va="center", ha="right", color=SOFT)
        _cell(axis, left, y, cell.null, None)
        for column, form in enumerate(group.shown, 1):
            found = cell.found.get((kappa, form))
            if found is not None:
                _cell(axis, left + column, y, found, cell.null)
    axis.set_xlim(0, left + len(columns))
    axis.set_ylim(places[-1] + 1.1, -0.3)
    axis.axis("off")
    save(figure, path)


def _places(rows: Sequence[tuple[Cell, int]]) -> list[float]:
    """Return the height of each row, with some room before another net."""
    places, y = [], 0.0
    for i, (cell, kappa) in enumerate(rows):
        y += 0.45 if i and kappa == cell.kappas[0] else 0.0
        places.append(y)
        y += 1.0
    return places


def _name(cell: Cell) -> list[str]:
    """Return the net, and what else there is to say: whether its weights are averaged, and beta2."""
    net, *rest = cell.title.split(", ")
    said = [f"β₂ = {text.rpartition(' ')[2]}" if " and " in text else text for text in rest]
    if len(cell.kappas) == 1:
        return [", ".join((net, *said))]
    return [*textwrap.wrap(net, 26), ", ".join(said)]


def _cell(axis: Any, x: float, y: float, one: Measured, null: Measured | None) -> None:
    """Draw a gap on its colour; the null itself has none."""
    patches = need_matplotlib().patches
    size = abs(one.gap)
    kept = null is not None and one.keeps(null)
    colour = "white" if null is None else KEPT if kept else OFF[max(i for i, step in enumerate(STEPS) if size >= step)]
    axis.add_patch(
        patches.Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, color=colour, alpha=0.32 if kept else 1, linewidth=0)
    )
    dark = null is not None and not kept and size >= STEPS[3]
    axis.annotate(
        _percent(one), (x + 0.5, y + 0.5), ha="center", va="center", fontsize=9.5,
        fontweight="bold" if kept else "normal",
        color="white" if dark else SOFT if null is None else style_of(0).colour,
    )  # fmt: skip


def _percent(one: Measured) -> str:
    if math.isinf(one.gap):
        return "diverged"
    if abs(one.gap) > 10:
        return "> 1000"
    digits = 1 if abs(one.gap) < 0.0995 else 0
    return f"{100 * one.gap:.{digits}f}".replace("-", "\N{MINUS SIGN}")
