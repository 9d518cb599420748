"""Tables as plain text, for what prints itself outside of the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), width: int = 120
) -> str:
    """Return rows under their columns, two spaces apart; the last column is folded to the width.

    Args:
        columns: their titles.
        rows: of cells, as many as there are columns.
        right: the titles of columns that are aligned to the right.
        width: of the whole table.

    >>> print(format_table(["name", "value"], [["lr", "0.001"], ["steps", "25"]], right=["value"]))
    name   value
    ------------
    lr     0.001
    steps     25
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    start = sum(widths[:-1]) + 2 * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(20, width - start))

    def lines(cells: Sequence[str]) -> list[str]:
        folded = textwrap.wrap(cells[-1], widths[-1]) or [""]
        aligned = [
            cell.rjust(size) if title in right else cell.ljust(size)
            for cell, size, title in zip((*cells[:-1], folded[0]), widths, columns, strict=True)
        ]
        return ["  ".join(aligned).rstrip(), *(f"{' ' * start}{rest}" for rest in folded[1:])]

    body = [line for row in rows for line in lines(row)]
    return "\n".join([*lines(columns), "-" * (start + widths[-1]), *body])
