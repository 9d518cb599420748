"""Runs of MLflow: in its file store, or in its database.

The file store has ``mlruns/EXPERIMENT/RUN/metrics/NAME`` with a line ``timestamp value step`` a value. The database is
what MLflow makes by itself from 3.7 on: ``mlflow.db``, or ``mlflow.db/NAME`` for some of its runs, where NAME is the
name or the number of a run, or a pattern such as ``base-*``.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rootscale.compare.columns import BATCH_SIZES
from rootscale.compare.log import Log, number_of

_DATABASES = (".db", ".sqlite", ".sqlite3")


def detect(path: Path) -> bool:
    """Return whether it is the folder of a run."""
    return (path / "metrics").is_dir() and (path / "meta.yaml").is_file()


def read(path: Path) -> list[Log]:
    """Read all metrics of a run, joined on their steps; the batch size is taken from its parameters, if it is there."""
    by_place: list[tuple[int, int, int, str, float]] = []
    for file in sorted(one for one in (path / "metrics").rglob("*") if one.is_file()):
        name = file.relative_to(path / "metrics").as_posix()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            by_place.append(_value(file, name, number, line))
    rows: list[dict[str, Any]] = []
    last: tuple[int, int] | None = None
    for when, step, _, name, value in sorted(by_place):
        if last != (when, step):
            rows.append({"step": step})
            last = (when, step)
        rows[-1][name] = value
    return [Log.of_rows(str(path), rows, batch_size=_batch_size(path / "params"))]


def _value(file: Path, name: str, number: int, line: str) -> tuple[int, int, int, str, float]:
    parts = line.split()
    try:
        when, text, step = parts if len(parts) == 3 else (*parts, "0")
        return int(when), int(step), number, name, float(text)
    except ValueError:
        raise ValueError(f"{file}, line {number}: expected timestamp, value and step, got {line[:60]!r}") from None


def _batch_size(folder: Path) -> float | None:
    for name in BATCH_SIZES:
        if (folder / name).is_file():
            found = number_of((folder / name).read_text(encoding="utf-8").strip())
            if found is not None and found > 0:
                return found
    return None


# -- the database ----------------------------------------------------------------------------------------------------


def detect_database(path: Path) -> bool:
    """Return whether it is a database, or names runs in one."""
    return any(one.suffix.lower() in _DATABASES and one.is_file() for one in (path, path.parent))


def read_database(path: Path) -> list[Log]:
    """Read the runs that a path names; all that were not deleted, where it names none."""
    file, wanted = (path, "*") if path.is_file() else (path.parent, path.name)
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            runs = database.execute(
                "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
            )
            names = {str(number): str(name or number) for number, name in runs}
            chosen = [number for number, name in names.items() if fnmatch(name, wanted) or fnmatch(number, wanted)]
            found = [_database_run(database, number, f"{file}/{names[number]}") for number in chosen]
    except sqlite3.Error as error:
        raise ValueError(f"{file} is no database of MLflow that can be read: {error}") from None
    if not found:
        raise ValueError(f"{file} has no run {wanted!r}; its runs are {', '.join(names.values()) or 'none'}")
    return found


def _database_run(database: sqlite3.Connection, number: str, name: str) -> Log:
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
