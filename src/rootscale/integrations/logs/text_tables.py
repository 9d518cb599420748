"""Tables of text: plain CSV, Lightning's ``metrics.csv``, the exports of W&B's charts and of MLflow's.

| made by | columns |
|---|---|
| Lightning's CSVLogger | ``epoch, step`` and a column for each metric; empty where nothing was logged |
| W&B, export of a chart | ``Step, RUN - METRIC, RUN - METRIC__MIN, RUN - METRIC__MAX``: a column for each run |
| MLflow, download of a chart | ``run_id, key, value, step, timestamp``: a row for each value |
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rootscale.integrations.logs.texts import read_text
from rootscale.logs import Log

__all__ = ["detect", "detect_lightning", "names_runs", "read", "read_lightning", "table_logs"]

Row = Mapping[str, str]
#: Columns that say which run a row is of, and which metric.
_RUN, _KEY, _VALUE = ("run_id", "run", "run_name", "run id"), ("key", "metric", "tag"), ("value",)
#: The first column of the export of a W&B chart.
_CHART_CLOCKS = ("step", "global_step", "trainer/global_step", "relative time (process)")


def detect(path: Path) -> bool:
    """Return whether it is a table of text."""
    return path.is_file() and path.suffix.lower() in (".csv", ".tsv")


def read(path: Path) -> list[Log]:
    """Read a table: one run, or several where its columns or rows name them."""
    return table_logs(path, *_table(path))


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


def _table(path: Path) -> tuple[list[str], list[Row]]:
    text = read_text(path)
    first = text.partition("\n")[0]
    mark = max((",", "\t", ";"), key=first.count)
    reader = csv.DictReader(text.splitlines(), delimiter=mark)
    columns = [name.strip() for name in reader.fieldnames or ()]
    if not columns:
        raise ValueError(f"{path} is empty; expected a first line with the names of the columns")
    reader.fieldnames = columns
    rows: list[Row] = [{key: value for key, value in row.items() if key and value} for row in reader]
    if all(_is_number(name) for name in columns):
        raise ValueError(
            f"{path} has no names of columns in its first line, such as samples,loss; it begins: {first[:60]}"
        )
    return columns, rows


def table_logs(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> list[Log]:
    """Return the runs of a table."""
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


def names_runs(columns: Sequence[str]) -> bool:
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
