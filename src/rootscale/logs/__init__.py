"""Logs of training runs, from whatever tool, as curves on one clock that can be compared. No torch.

A `Log` is the table that a tool wrote. `as_logs` makes logs of arrays, dicts and frames; `rootscale.integrations.logs`
reads the files of other tools. `align` finds the clock (samples, tokens) and puts all runs on one grid.
"""

from rootscale.logs.alignment import Aligned, Alignment, align, reached
from rootscale.logs.given import as_logs
from rootscale.logs.record import Log, Series

__all__ = ["Aligned", "Alignment", "Log", "Series", "align", "as_logs", "reached"]
