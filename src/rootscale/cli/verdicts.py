"""How commands print verdicts, and what they exit with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from rootscale.compare.result import Table, range_sentence
from rootscale.format import percent

EXIT = {"same": 0, "different": 1, "undecided": 3}
_STYLE = {"same": "green", "different": "red", "undecided": "yellow"}


def print_verdicts(found: Table, console: Console) -> None:
    """Print the verdict on each arm as a table, and what its words mean."""
    table = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    open_ones = any(arm.verdict == "undecided" for arm in found.changed)
    more = ["seeds needed"] if open_ones else []
    for column in ("", "verdict", "n", "largest gap, with its band", "absolute", *more):
        table.add_column(column, overflow="fold")
    for arm in found.changed:
        assert arm.comparison is not None
        verdict = arm.comparison.verdict or "not judged"
        worst, size, absolute = arm.comparison.worst, "no gap: nothing is finite", "–"
        needed = arm.comparison.seeds_needed
        if worst is not None:
            judged = worst.judged
            gap = str(judged) if np.isfinite(judged.low) else percent(judged.gap, judged.se, sign="+")
            size = f"{gap} of the {escape(worst.name)}'s range"
            absolute = worst.in_own_unit(judged.gap) if np.isfinite(judged.gap) else absolute
        row = (
            escape(arm.label),
            f"[bold {_STYLE.get(verdict, 'dim')}]{verdict}[/]",
            str(min(arm.comparison.seeds)),
            size,
            absolute,
            "" if verdict != "undecided" else "no number" if needed is None else str(needed),
        )
        table.add_row(*row[: len(table.columns)])
    console.print(table)
    comparison = next(arm.comparison for arm in found.others if arm.comparison)
    console.print(f"\n{escape(comparison.definition)} {escape(comparison.reliability)}")
    console.print(escape(range_sentence(found, comparison)))


def print_notes(found: Table, console: Console) -> None:
    """Print how the logs were read, where runs were compared by them."""
    for note in found.made.get("notes", ()):
        console.print(f"[dim]  {escape(note)}[/]", soft_wrap=True)


def write_report(found: Table, path: Path, console: Console) -> None:
    """Write the report and say where it is; or why there is none, which takes nothing from the verdict."""
    try:
        from rootscale.report.page import write_page

        console.print(f"\nThe report: [bold]{escape(str(write_page(found, path)))}[/]")
    except (ImportError, OSError, ValueError) as error:
        console.print(f"\nNo report: {escape(str(error))}")
