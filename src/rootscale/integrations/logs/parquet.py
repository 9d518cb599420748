"""Parquet files, by whichever library for them is installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.integrations.logs.text_tables import names_runs, table_logs
from rootscale.logs import Log, as_logs

__all__ = ["detect", "read"]

#: The libraries that read Parquet, with the module and function that do.
_READERS = (("pyarrow.parquet", "read_table"), ("polars", "read_parquet"), ("pandas", "read_parquet"))


def detect(path: Path) -> bool:
    """Return whether it is a Parquet file."""
    return path.is_file() and path.suffix.lower() in (".parquet", ".pq")


def read(path: Path) -> list[Log]:
    """Read a table; rows of several runs are told apart as in CSV files."""
    table = _table(path)
    names = [str(name) for name in getattr(table, "column_names", None) or table.columns]
    columns = {name: np.asarray(table[name]) for name in names}
    if not names_runs(names):
        return as_logs(str(path), {name: column for name, column in columns.items() if column.dtype.kind in "iuf"})
    rows = [
        {name: str(column[i]) for name, column in columns.items() if not _missing(column[i])}
        for i in range(len(columns[names[0]]) if names else 0)
    ]
    return table_logs(path, names, rows)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _table(path: Path) -> Any:
    for module, function in _READERS:
        try:
            library = importlib.import_module(module)
        except ImportError:
            continue
        try:
            return getattr(library, function)(path)
        except Exception as error:  # every library has errors of its own
            raise ValueError(f"{path} is no Parquet file that {module} can read: {error}") from None
    raise ValueError(f"{path}: a Parquet file needs pyarrow, polars or pandas; pip install pyarrow, or save it as CSV")
