"""Tables: plain CSV, Lightning's ``metrics.csv``, the exports of W&B's charts and of MLflow's, Parquet.

| made by | columns |
|---|---|
| Lightning's CSVLogger | ``epoch, step`` and a column for each metric; empty where nothing was logged |
| W&B, export of a chart | ``Step, RUN - METRIC, RUN - METRIC__MIN, RUN - METRIC__MAX``: a column for each run |
| MLflow, download of a chart | ``run_id, key, value, step, timestamp``: a row for each value |
"""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.compare.log import Columns, Log, as_logs
from rootscale.compare.readers.text import Fast, decoded, text_blocks

Row = Mapping[str, str]
#: Columns that say which run a row is of, and which metric.
_RUN, _KEY, _VALUE = ("run_id", "run", "run_name", "run id"), ("key", "metric", "tag"), ("value",)
#: The first column of the export of a W&B chart.
_CHART_CLOCKS = ("step", "global_step", "trainer/global_step", "relative time (process)")
#: The libraries that read Parquet, with the module and function that do.
_PARQUET = (("pyarrow.parquet", "read_table"), ("polars", "read_parquet"), ("pandas", "read_parquet"))


def detect(path: Path) -> bool:
    """Return whether it is a table of text."""
    return path.is_file() and path.suffix.lower() in (".csv", ".tsv")


def read(path: Path) -> list[Log]:
    """Read a table: one run, or several where its columns or rows name them."""
    head, names, mark = _head(path)
    if not _names_runs(names):
        return [_plain(path, head, names, mark)]
    rows = (zip(names, row, strict=False) for block in _blocks(path, head) for row in _split(path, block, mark))
    return _logs_of_rows(path, names, [{name: text for name, text in row if name and text} for row in rows])


def detect_lightning(path: Path) -> bool:
    """Return whether it is ``metrics.csv`` of Lightning, or its folder."""
    return path.name == "metrics.csv" if path.is_file() else (path / "metrics.csv").is_file()


def read_lightning(path: Path) -> list[Log]:
    """Read ``metrics.csv``; the batch size is taken from ``hparams.yaml`` beside it, if it is there."""
    file = path if path.is_file() else path / "metrics.csv"
    logs = read(file)
    if len(logs) > 1:
        return logs
    return [replace(logs[0], batch_size=_hparam(file.with_name("hparams.yaml")))]


def _hparam(path: Path) -> float | None:
    """Return the one ``batch_size`` of a file of hyperparameters; None where there is none, or several."""
    if not path.is_file():
        return None
    sizes = re.findall(r"^\s*batch_size:\s*(\d+)\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return float(sizes[0]) if len(sizes) == 1 else None


def _head(path: Path) -> tuple[int, list[str], str]:
    """Return the length of the line of names, the names, and what separates columns."""
    with path.open("rb") as file:
        line = file.readline()
    first = decoded(path, line).rstrip("\r\n")
    mark = max((",", "\t", ";"), key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=mark), [])]
    if not names:
        raise ValueError(f"{path} is empty; expected a first line with the names of the columns")
    if all(_is_number(name) for name in names):
        raise ValueError(
            f"{path} has no names of columns in its first line, such as samples,loss; it begins: {first[:60]}"
        )
    return len(line), names, mark


def _plain(path: Path, head: int, names: Sequence[str], mark: str) -> Log:
    """Return the only run of a table."""
    columns, fast = Columns(), Fast(path)
    for block in _blocks(path, head):
        numbers = fast.csv(block, names, mark)
        if numbers is not None:
            columns.add(*numbers)
            continue
        rows = _split(path, block, mark)
        cells = zip(*((row + [""] * (len(names) - len(row)))[: len(names)] for row in rows), strict=True)
        values = {name: [text or None for text in column] for name, column in zip(names, cells, strict=False) if name}
        columns.add_values(values, len(rows))
    return columns.to_log(str(path))


def _blocks(path: Path, head: int) -> Iterator[bytes]:
    return text_blocks(path, head, quoted=True)


def _split(path: Path, block: bytes, mark: str) -> list[list[str]]:
    return [row for row in csv.reader(decoded(path, block).splitlines(keepends=True), delimiter=mark) if row]


def _logs_of_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> list[Log]:
    """Return the runs of a table that names them, or that has a row for each value."""
    run, key, value = (_column(columns, names) for names in (_RUN, _KEY, _VALUE))
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        if key and value and key in row and value in row:  # a row for each value
            row = {row[key]: row[value], **{name: text for name, text in row.items() if name not in (key, value)}}
        by_run.setdefault(row.get(run, "") if run else "", []).append(row)
    if run and len(by_run) == sum(map(len, by_run.values())) > 1:
        raise ValueError(
            f"{path} has one row for each run: the last values alone; export the history of a metric instead"
        )
    charted = _chart(columns)
    if charted:
        return [_of_chart(path, name, metrics, by_run[""]) for name, metrics in charted.items()]
    return [Log.of_rows(f"{path}{f' ({name})' if name else ''}", some) for name, some in by_run.items()]


def _names_runs(columns: Sequence[str]) -> bool:
    """Return whether a table may hold several runs, or a row for each value."""
    return any(_column(columns, names) for names in (_RUN, _KEY)) or bool(_chart(columns))


def _column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    plain = {name.lower(): name for name in columns}
    return next((plain[name] for name in names if name in plain), None)


def _chart(columns: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the columns of each run in the export of a W&B chart, by metric; nothing for another table."""
    if not any(name.endswith("__MIN") for name in columns) and columns[0].lower() not in _CHART_CLOCKS:
        return {}
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        run, dash, metric = name.rpartition(" - ")
        if dash and not metric.endswith(("__MIN", "__MAX")):
            found.setdefault(run, {})[metric] = name
    return found


def _of_chart(path: Path, run: str, metrics: Mapping[str, str], rows: Iterable[Row]) -> Log:
    """Return a run of a chart's export: its metrics, and the columns that all runs share."""
    names = {column: metric for metric, column in metrics.items()}
    kept = [
        {names.get(column, column): text for column, text in row.items() if column in names or " - " not in column}
        for row in rows
        if any(column in names for column in row)
    ]
    return Log.of_rows(f"{path} ({run})", kept)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- Parquet ---------------------------------------------------------------------------------------------------------


def detect_parquet(path: Path) -> bool:
    """Return whether it is a Parquet file."""
    return path.is_file() and path.suffix.lower() in (".parquet", ".pq")


def read_parquet(path: Path) -> list[Log]:
    """Read a table; rows of several runs are told apart as in CSV files."""
    table = _parquet(path)
    names = [str(name) for name in getattr(table, "column_names", None) or table.columns]
    columns = {name: np.asarray(table[name]) for name in names}
    if not _names_runs(names):
        return as_logs(str(path), {name: column for name, column in columns.items() if column.dtype.kind in "iuf"})
    rows = [
        {name: str(column[i]) for name, column in columns.items() if not _missing(column[i])}
        for i in range(len(columns[names[0]]) if names else 0)
    ]
    return _logs_of_rows(path, names, rows)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _parquet(path: Path) -> Any:
    for module, function in _PARQUET:
        try:
            library = importlib.import_module(module)
        except ImportError:
            continue
        try:
            return getattr(library, function)(path)
        except Exception as error:  # every library has errors of its own
            raise ValueError(f"{path} is no Parquet file that {module} can read: {error}") from None
    raise ValueError(f"{path}: a Parquet file needs pyarrow, polars or pandas; pip install pyarrow, or save it as CSV")
