"""What commands print: changes and tables, in columns where they fit, and how far they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rootscale.changes import Changes
from rootscale.format import show

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

#: Columns of text narrower than this are hard to read.
_NARROWEST = 22


_STATUS = {"theorem": "cyan", "derived": "blue", "heuristic": "yellow"}


def make_console() -> Console:
    """A terminal with its own width, and one wide enough for tables where there is none (a file, a pipe)."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


@contextmanager
def progress(console: Console | None) -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal: ``tell(what, share)`` sets its text and how far it is, from 0 to 1. Elsewhere nothing."""
    if console is None or not (console.is_terminal and console.file.isatty()):  # FORCE_COLOR makes a pipe a terminal
        yield lambda what, share: None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), Remaining())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=1.0)
        yield lambda what, share: bars.update(bar, description=escape(what), completed=share)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: above it.
        right: whether its cells are aligned to the right.
        folds: whether its cells are text that may be folded; the others stay on one line.
    """

    title: str
    right: bool = False
    folds: bool = False


@dataclass(frozen=True)
class FittedTable:
    """Rows under columns; on a console that is too narrow for them, each row is a block under its first cell."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._in_columns() if self._width() <= options.max_width else self._in_blocks()

    def _width(self) -> int:
        """The least width at which the columns can be read."""
        widest = [
            max(len(cell) for cell in cells)
            for cells in zip([column.title for column in self.columns], *self.rows, strict=True)
        ]
        least = [
            min(_NARROWEST, size) if column.folds else size for column, size in zip(self.columns, widest, strict=True)
        ]
        return sum(least) + 3 * len(least)

    def _in_columns(self) -> RenderableType:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in self.columns:
            table.add_column(
                column.title, justify="right" if column.right else "left", no_wrap=not column.folds, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(_text, row))
        return table

    def _in_blocks(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        parts: list[RenderableType] = []
        for first, *rest in self.rows:
            head = _text(first).copy()
            head.stylize("bold")
            parts += [Text(), head]
            short: list[Text] = []
            long: list[Text] = []
            for column, cell in zip(self.columns[1:], map(_text, rest), strict=True):
                if cell.plain:
                    named = Text.assemble((f"{column.title}: ", "dim"), cell, overflow="fold")
                    (long if column.folds else short).append(named)
            lines = [Text("  ").join(short), *long] if short else long
            parts += [Padding(line, (0, 0, 0, 2), expand=False) for line in lines]
        return Group(*parts, Text())


def unclipped(table: Table) -> Table:
    """Return a table of few columns with every cell folded, not cut off, where the console is narrow."""
    for column in table.columns:
        column.overflow = "fold"
    return table


def _text(cell: str | Text) -> Text:
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else cell


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
    parts += [Text(text, style="dim") for text in changes.evidence]
    return Group(*parts)
