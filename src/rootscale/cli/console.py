"""Where commands print, and how they tell how far they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["make_console", "progress"]


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
