"""The table of the formats of logs, and which of them a file or folder has."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rootscale.compare.log import Log, as_logs
from rootscale.compare.readers import events, json_rows, mlflow, printed, tables
from rootscale.trajectory import Trajectory


@dataclass(frozen=True)
class LogFormat:
    """A format of logs.

    Args:
        name: in words.
        layout: what a file or folder of it is called.
        detect: whether a path is of this format.
        read: its runs; `ValueError` where they cannot be read.
    """

    name: str
    layout: str
    detect: Callable[[Path], bool]
    read: Callable[[Path], list[Log]]


def _detect_own(path: Path) -> bool:
    return path.suffix == ".npz" if path.is_file() else (path / "trajectory.npz").is_file()


def _read_own(path: Path) -> list[Log]:
    return as_logs(str(path), Trajectory.load(path if path.is_file() else path / "trajectory.npz"))


#: The formats, in the order in which they are tried.
FORMATS = (
    LogFormat("rootscale's own runs", "trajectory.npz, or the folder of a run", _detect_own, _read_own),
    LogFormat(
        "TensorBoard event files", "events.out.tfevents.*, or the folder that holds them",
        events.detect, events.read,
    ),
    LogFormat(
        "Hugging Face Trainer", "trainer_state.json, or the folder with it or with checkpoint-*",
        json_rows.detect_trainer, json_rows.read_trainer,
    ),
    LogFormat("MLflow run", "mlruns/EXPERIMENT/RUN, with metrics/ and meta.yaml", mlflow.detect, mlflow.read),
    LogFormat(
        "MLflow database", "mlflow.db, or mlflow.db/RUN for the runs of that name", mlflow.detect_database,
        mlflow.read_database,
    ),
    LogFormat(
        "Lightning CSVLogger", "metrics.csv, or the folder version_N with it",
        tables.detect_lightning, tables.read_lightning,
    ),
    LogFormat("W&B, MLflow or plain CSV", "*.csv, *.tsv", tables.detect, tables.read),
    LogFormat(
        "JSON lines (also W&B history)", "*.jsonl, *.ndjson, *.json", json_rows.detect, json_rows.read
    ),
    LogFormat("Parquet", "*.parquet", tables.detect_parquet, tables.read_parquet),
    LogFormat("what nanoGPT and others print", "*.log, *.txt, *.out", printed.detect, printed.read),
)  # fmt: skip

#: Ends of the names of packed files.
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz")


def read_logs(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Log]:
    """Return the logs of all runs at these paths: files, folders of one run, or folders of such folders and files.

    Args:
        paths: one or many; a pattern such as ``base/*.jsonl`` is expanded.

    Raises:
        ValueError: a path is not there, or has no log that can be read.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [log for path in _expanded(given) for log in _read(path)]
    if not found:
        raise ValueError("no logs were given")
    return found


def _expanded(given: Iterable[str | os.PathLike[str]]) -> list[Path]:
    paths: list[Path] = []
    for one in [os.fspath(path) for path in given]:
        if not Path(one).exists() and glob.has_magic(one) and not mlflow.detect_database(Path(one)):
            matches = sorted(glob.glob(one, recursive=True))
            if not matches:
                raise ValueError(f"no file matches {one}")
            paths += map(Path, matches)
        else:
            paths.append(Path(one))
    return paths


def _read(path: Path) -> list[Log]:
    if not path.exists() and not mlflow.detect_database(path):
        raise ValueError(f"there is no file or folder {path}")
    if path.is_file() and path.suffix.lower() in _PACKED:
        raise ValueError(f"{path} is packed; unpack it, and give what was in it")
    for row in FORMATS:
        if row.detect(path):
            return _need_columns(row.read(path), path, row)
    if path.is_dir():
        if (path / "table.npz").exists():
            raise ValueError(
                f"{path} is a whole check: `rootscale report {path}` shows it; to compare its runs, give the folder of "
                f"one of its variants, such as {path}/runs/NAME"
            )
        found = [log for one in _logs_in(path) for log in _read(one)]
        if found:
            return found
    raise ValueError(f"{path} is no log that is known; known are {_known()}")


def _logs_in(folder: Path) -> list[Path]:
    """Return the logs and folders with logs in a folder; what was printed counts where there is nothing else."""
    inner = [one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and _holds_log(one)]
    written = [one for one in inner if not printed.detect(one)]
    return written or inner


def _holds_log(path: Path) -> bool:
    return any(row.detect(path) for row in FORMATS) or (path.is_dir() and bool(_logs_in(path)))


def _need_columns(logs: list[Log], path: Path, row: LogFormat) -> list[Log]:
    if not logs or not any(log.columns for log in logs):
        raise ValueError(f"{path} ({row.name}) has no numbers in it")
    return logs


def _known() -> str:
    return "; ".join(f"{row.name} ({row.layout})" for row in FORMATS)
