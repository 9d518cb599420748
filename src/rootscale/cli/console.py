"""Where commands print."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console"]


def console() -> Console:
    """A terminal with its own width, and one wide enough for tables where there is none (a file, a pipe)."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
