"""Logs of other tools, read as `rootscale.logs.Log`: each format is a row of `FORMATS`.

No library is needed but for Parquet: TensorBoard's event files are read by themselves.
"""

from rootscale.integrations.logs.reading import FORMATS, LogFormat, read_logs

__all__ = ["FORMATS", "LogFormat", "read_logs"]
