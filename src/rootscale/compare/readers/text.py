"""The text of a log: whole, or in blocks of lines, so that a long one never stands in memory as Python objects.

Blocks of nothing but numbers are read by polars where it is installed. It is strict here: every value must be a number,
and no key, quote or separator of the block may be left over. What it does not take is read by Python instead, so that
the two never differ in what they read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.compare.log import Series

#: Bytes of a block, and of a file from which on polars is worth its import.
BLOCK, LONG = 1 << 22, 1 << 20
#: Blocks in a row that polars could not take, after which it is not asked again.
PATIENCE = 2
#: Columns, and how many rows they are of.
Block = tuple[dict[str, Series], int]


def read_text(path: Path) -> str:
    """Return the text of a file, without the mark that some programs begin it with."""
    return decoded(path, path.read_bytes())


def decoded(path: Path, block: bytes) -> str:
    """Return the text of a block of a file."""
    try:
        return block.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8, got something else: {error}; save it as UTF-8") from None


def text_blocks(path: Path, start: int = 0, quoted: bool = False) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines.

    Args:
        path: of the file.
        start: the byte at which the first block begins.
        quoted: whether a line may go on behind its end within quotes, as in CSV.
    """
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(BLOCK):
            block += file.readline()
            while quoted and block.count(b'"') % 2 and (line := file.readline()):
                block += line
            yield block


@cache
def _polars() -> Any:
    """Return polars, or None where it is not installed."""
    try:
        return importlib.import_module("polars")
    except ImportError:
        return None


class Fast:
    """Reads the blocks of one file with polars, as long as they hold nothing but numbers."""

    def __init__(self, path: Path) -> None:
        self._failed = 0 if path.stat().st_size >= LONG else PATIENCE

    def json(self, block: bytes, names: Sequence[str]) -> Block | None:
        """Return a block of JSON lines; None where they hold anything but numbers under these names.

        A key that is not among the names would be left out; but then its quotes are left over.
        """
        frame = self._read("read_ndjson", block, names)
        if frame is None:
            return None
        values = sum(len(frame) - nulls for nulls in frame.null_count().row(0))
        return self._columns(frame, block.count(b'"') == 2 * values)

    def csv(self, block: bytes, names: Sequence[str], separator: str) -> Block | None:
        """Return a block of CSV without the line of names; None where it holds anything but numbers."""
        if b'"' in block or len(set(names)) < len(names):
            return None
        frame = self._read("read_csv", block, names, has_header=False, separator=separator)
        if frame is None:
            return None
        marks = (len(names) - 1) * len(frame)
        return self._columns(frame, block.count(separator.encode()) == marks)

    def _read(self, function: str, block: bytes, names: Sequence[str], **options: Any) -> Any:
        if self._failed >= PATIENCE or not names or (polars := _polars()) is None:
            return None
        try:
            return getattr(polars, function)(block, schema=dict.fromkeys(names, polars.Float64), **options)
        except (polars.exceptions.PolarsError, ValueError, TypeError):
            self._failed += 1
            return None

    def _columns(self, frame: Any, whole: bool) -> Block | None:
        if not whole:
            self._failed += 1
            return None
        self._failed = 0
        return {name: _series(frame[name]) for name in frame.columns}, len(frame)


def _series(column: Any) -> Series:
    if not column.null_count():
        return Series(column.to_numpy())
    return Series(column.drop_nulls().to_numpy(), np.flatnonzero(column.is_not_null().to_numpy()))
