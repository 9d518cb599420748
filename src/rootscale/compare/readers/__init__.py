"""Logs of other tools, read as `rootscale.compare.Log`: each format is a row of `FORMATS`.

No library is needed but for Parquet: TensorBoard's event files are read by themselves. Long tables of numbers are read
by polars where it is installed.
"""
