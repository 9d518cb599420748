"""Rows of JSON: JSON lines, lists of rows, columns, W&B histories, and the ``trainer_state.json`` of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rootscale.compare.log import Columns, Log, as_logs
from rootscale.compare.readers.text import Fast, decoded, read_text, text_blocks

_STATE = "trainer_state.json"


def detect(path: Path) -> bool:
    """Return whether it is a file of JSON."""
    return path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson", ".json")


def read(path: Path) -> list[Log]:
    """Read JSON lines, a list of rows, or an object of columns.

    The last line may be cut off, as a run leaves it that is being written or was killed.
    """
    return _whole(path, read_text(path)) if path.suffix.lower() == ".json" else [_lines(path)]


def _lines(path: Path) -> Log:
    columns, fast, notes, first = Columns(), Fast(path), list[str](), 1
    for block in text_blocks(path):
        numbers = fast.json(block, columns.names or _keys(block))
        if numbers is None:
            rows = _rows(path, block, first, columns.rows > 0, notes)
            columns.add_rows(rows)
        else:
            columns.add(*numbers)
        first += block.count(b"\n")
    return columns.to_log(str(path), notes=tuple(notes))


def _keys(block: bytes) -> list[str]:
    """Return the keys of the first line, if it is an object."""
    try:
        return list(json.loads(block.partition(b"\n")[0]))
    except (ValueError, TypeError):
        return []


def _rows(path: Path, block: bytes, first: int, begun: bool, notes: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a block, whose first line has this number in the file."""
    text = decoded(path, block)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), first) if line.strip()]
    try:
        rows: list[dict[str, Any]] = json.loads(f"[{','.join(line for _, line in lines)}]")
    except ValueError:
        rows = []
    if len(rows) == len(lines) and all(type(row) is dict for row in rows):
        return rows
    rows = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == lines[-1][0] and (rows or begun) and not text.endswith("\n"):
                notes.append("its last line is cut off and was left out")
                break
            raise ValueError(f'{path}, line {number}: expected JSON such as {{"samples": 1000, "loss": 0.9}}: {error}'
            ) from None  # fmt: skip
        if not isinstance(row, dict):
            raise ValueError(
                f'{path}, line {number}: expected an object such as {{"samples": 1000, "loss": 0.9}}, got {line[:60]}'
            )
        rows.append(row)
    return rows


def _whole(path: Path, text: str) -> list[Log]:
    try:
        data = json.loads(text)
    except ValueError as error:
        if "\n{" in text.strip():  # JSON lines by another name
            return [_lines(path)]
        raise ValueError(f"{path} is no JSON: {error}") from None
    if isinstance(data, Mapping) and isinstance(data.get("log_history"), list):
        return _of_state(path, data)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return [Log.of_rows(str(path), data)]
    if isinstance(data, Mapping) and any(isinstance(value, list) for value in data.values()):
        kept = {key: value for key, value in data.items() if isinstance(value, list | int | float)}
        return as_logs(str(path), {key: _numbers(value) for key, value in kept.items()})
    raise ValueError(
        f'{path} must hold a list of rows such as {{"samples": 1000, "loss": 0.9}}, an object of lists '
        '({"samples": [...], "loss": [...]}), or a log_history'
    )


def _numbers(value: Any) -> Any:
    return [float("nan") if item is None else item for item in value] if isinstance(value, list) else value


# -- transformers ----------------------------------------------------------------------------------------------------


def detect_trainer(path: Path) -> bool:
    """Return whether it is the state of a Trainer, or a folder that holds it or checkpoints with it."""
    return path.name == _STATE if path.is_file() else _state_file(path) is not None


def read_trainer(path: Path) -> list[Log]:
    """Read the log of a Trainer; of several checkpoints, that of the latest."""
    file = path if path.is_file() else _state_file(path)
    assert file is not None
    try:
        data = json.loads(read_text(file))
        assert isinstance(data["log_history"], list)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"{file} is no state of a Trainer with a log_history: {error!r}") from None
    return _of_state(file, data)


def _of_state(path: Path, data: Mapping[str, Any]) -> list[Log]:
    """Return the log of a state. ``loss`` is the mean since the row before; the last row sums up the whole run."""
    rows = [row for row in data["log_history"] if isinstance(row, Mapping) and "train_runtime" not in row]
    return [Log.of_rows(str(path), rows, averaged=frozenset({"loss"}))]


def _state_file(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    if (folder / _STATE).is_file():
        return folder / _STATE
    numbered = [
        (int(match[1]), one / _STATE)
        for one in folder.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", one.name)) and (one / _STATE).is_file()
    ]
    return max(numbered)[1] if numbered else None
