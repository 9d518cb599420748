"""Runs in MLflow's database, which newer versions make by themselves: ``mlflow.db``, or ``mlflow.db/NAME`` for some.

NAME is the name or the number of a run, or a pattern such as ``base-*``. It is written like a file in the database.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rootscale.logs import Log
from rootscale.logs.clock import BATCH_SIZES
from rootscale.logs.record import number_of

__all__ = ["detect", "read"]

_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def detect(path: Path) -> bool:
    """Return whether it is a database, or names runs in one."""
    return any(one.suffix.lower() in _SUFFIXES and one.is_file() for one in (path, path.parent))


def read(path: Path) -> list[Log]:
    """Read the runs that a path names; all that were not deleted, where it names none."""
    file, wanted = (path, "*") if path.is_file() else (path.parent, path.name)
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            runs = database.execute(
                "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
            )
            names = {str(number): str(name or number) for number, name in runs}
            chosen = [number for number, name in names.items() if fnmatch(name, wanted) or fnmatch(number, wanted)]
            found = [_run(database, number, f"{file}/{names[number]}") for number in chosen]
    except sqlite3.Error as error:
        raise ValueError(f"{file} is no database of MLflow that can be read: {error}") from None
    if not found:
        raise ValueError(f"{file} has no run {wanted!r}; its runs are {', '.join(names.values()) or 'none'}")
    return found


def _run(database: sqlite3.Connection, number: str, name: str) -> Log:
    rows: list[dict[str, Any]] = []
    last: tuple[int, int] | None = None
    logged = database.execute(
        "SELECT timestamp, step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step", (number,)
    )
    for when, step, key, value, is_nan in logged:
        if last != (when, step):
            rows.append({"step": step})
            last = (when, step)
        rows[-1][key] = float("nan") if is_nan else float(value)
    params = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (number,)).fetchall())
    sizes = [number_of(params[key]) for key in BATCH_SIZES if key in params]
    return Log.of_rows(name, rows, batch_size=next((size for size in sizes if size), None))
