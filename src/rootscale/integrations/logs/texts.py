"""The text of a log."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_text"]


def read_text(path: Path) -> str:
    """Return the text of a file, without the mark that some programs begin it with."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got something else: {error}; save it as UTF-8") from None
