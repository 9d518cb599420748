"""What the library returns, as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rootscale.changes import PROMISE, Changes
from rootscale.cli.tables import Column, FittedTable
from rootscale.format import show

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["render_changes"]

_STATUS = {"theorem": "cyan", "derived": "blue", "heuristic": "yellow"}


def render_changes(changes: Changes) -> RenderableType:
    """Return every change as a row: what changes stands out, what stays is dim."""
    from rich.console import Group
    from rich.text import Text

    rows = []
    for row in changes:
        changed = row.before != row.value
        rows.append(
            (
                Text(row.name, style="bold" if changed else "dim"),
                Text(show(row.before), style="" if changed else "dim"),
                Text(show(row.value), style="bold green" if changed else "dim"),
                Text(row.status, style=_STATUS.get(row.status, "dim")),
                Text(row.why, style="" if changed else "dim"),
            )
        )
    columns = [
        Column("quantity"), Column("before", right=True), Column("after", right=True), Column("status"),
        Column("why", folds=True),
    ]  # fmt: skip
    parts: list[RenderableType] = [Text(changes.heading, style="bold"), FittedTable(columns, rows)]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in changes.warnings]
    if changes.rule.holds_for:
        parts.append(Text(PROMISE, style="dim"))
    return Group(*parts)
