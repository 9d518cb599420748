"""Runs from whatever tool, compared by their logs: on one clock, on one grid, with a verdict. No torch.

A `Log` is the table that a tool wrote: `read_logs` reads files, `as_logs` takes arrays, dicts and frames. `align` puts
runs on samples or tokens seen, and `compare` says whether they are the same within a tolerance.
"""

from rootscale.compare.alignment import Alignment, align, reached
from rootscale.compare.comparison import compare
from rootscale.compare.log import Log, as_logs
from rootscale.compare.readers.formats import FORMATS, read_logs
from rootscale.compare.result import Result, Table
from rootscale.verdict import Judge

__all__ = [
    "FORMATS",
    "Alignment",
    "Judge",
    "Log",
    "Result",
    "Table",
    "align",
    "as_logs",
    "compare",
    "reached",
    "read_logs",
]
