"""Runs in MLflow's file store: ``mlruns/EXPERIMENT/RUN/metrics/NAME`` with a line ``timestamp value step`` a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rootscale.logs import Log
from rootscale.logs.clock import BATCH_SIZES
from rootscale.logs.record import number_of

__all__ = ["detect", "read"]


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
