"""Tables for the terminal: in columns where they fit, else a block of lines for each row; nothing is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

__all__ = ["Column", "FittedTable", "unclipped"]

#: Columns of text narrower than this are hard to read.
_NARROWEST = 22


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
