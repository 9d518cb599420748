"""A training script as a command line, with the values of each run filled in."""

from __future__ import annotations

import math
import shlex
import string
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rootscale.hparams import Optimizer
from rootscale.lab.loop import Convert, RunLog, parsed_source
from rootscale.logs import Log
from rootscale.plan import Plan

__all__ = ["PLACES", "Command", "values_of"]

#: What can stand in a command besides the values of its plan.
PLACES = ("batch_size", "seed", "kappa", "log", "folder", "checkpoint")
#: Names of values as options spell them, where they are others than those of a plan.
_SPELLED = {"eta": "lr", "beta": "alpha", "min_eta": "min_lr", "warmup": "warmup_steps", "decay": "decay_steps"}
#: Counts of steps, which are whole numbers in a command.
_COUNTS = ("steps", "warmup_steps", "decay_steps", "epochs", "dataset_size")
#: Seconds between looks at whether a command has ended.
_LOOK = 0.2
#: Characters of its output that an error shows.
_TAIL = 2000


@dataclass(frozen=True)
class Command:
    """Runs a command for each run: ``train`` of a `rootscale.lab.Loop`.

    In the command ``{batch_size}`` and ``{seed}`` are replaced, and the values of the plan at that batch size:
    ``{lr}``, ``{beta1}``, ``{beta2}``, ``{eps}``, ``{weight_decay}``, ``{steps}``, ``{warmup_steps}`` and whatever else
    the plan has. ``{log}`` is the file to which the script writes JSON lines; ``{folder}`` is a folder of this run, and
    ``{checkpoint}`` that from which it starts.

    Args:
        text: the command.
        plan: of the base.
        read: reads what the script logged, given a path: `rootscale.integrations.logs.read_logs`.
        log: the path of what it logs, in which the same names are replaced; None is ``{log}``.
    """

    text: str
    plan: Plan | None
    read: Callable[[Any], list[Log]]
    log: str | None = None

    def __post_init__(self) -> None:
        known = [*PLACES, *([] if self.plan is None else values_of(self.plan))]
        for text in (self.text, self.log or ""):
            for name in _names(text):
                if name not in known:
                    raise ValueError(f"the command has {{{name}}}, which is not known; known are {', '.join(known)}")
        if "batch_size" not in _names(self.text):
            raise ValueError(f"the command must have {{batch_size}}, which the check changes; got {self.text!r}")
        if "seed" not in _names(self.text):
            raise ValueError(f"the command must have {{seed}}, so that runs differ; got {self.text!r}")
        if self.log is None and "log" not in _names(self.text):
            raise ValueError(
                "where does the command log? have it write JSON lines to {log}, or give the path of its log with --log"
            )

    def source(self) -> str:
        """Return the command and the Python files it names: what its runs depend on."""
        files = [Path(word) for word in shlex.split(self.text) if word.endswith(".py") and Path(word).is_file()]
        return "\n".join([self.text, *(parsed_source(file.read_text(encoding="utf-8")) for file in files)])

    def __call__(self, batch_size: int, seed: int, log: RunLog, convert: Convert) -> None:
        """Make a run."""
        values: dict[str, Any] = {} if self.plan is None else values_of(convert.plan(self.plan))
        values |= {
            "batch_size": batch_size,
            "seed": seed,
            "kappa": float(convert.kappa),
            "log": log.folder / "command.jsonl",
            "folder": log.folder,
            "checkpoint": convert.checkpoint or "",
        }
        words = [_filled(word, values) for word in shlex.split(self.text)]
        _finish(words, log)
        path = Path(_filled(self.log or "{log}", values))
        if not path.exists():
            raise ValueError(f"the command ended without a log at {path}: {shlex.join(words)}")
        (found,) = _one(self.read(path), path)
        for row in _rows(found):
            log(row)


def values_of(plan: Plan) -> dict[str, float]:
    """Return the values of a plan as options of a script have them.

    >>> from rootscale import AdamW
    >>> values_of(Plan(AdamW(eta=1e-3), batch_size=4, steps=100).at(16))["lr"]
    0.002
    """
    found: dict[str, float] = {}
    for part in (plan.optimizer, plan.schedule, plan):
        for one in fields(part):
            value = getattr(part, one.name)
            name = _SPELLED.get(one.name, one.name)
            if isinstance(value, bool | str) or one.name == "batch_size" or isinstance(value, Optimizer):
                continue
            if isinstance(value, Mapping):
                found |= {f"every_{key}": max(1, round(count)) for key, count in value.items()}
            elif value is not None and not isinstance(value, tuple) and not hasattr(value, "__dataclass_fields__"):
                found[name] = max(0, round(value)) if name in _COUNTS else float(f"{float(value):.12g}")
    return found


def _names(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def _filled(text: str, values: Mapping[str, Any]) -> str:
    return text.format(**values)


def _finish(words: list[str], log: RunLog) -> None:
    """Run the command to its end; one that is asked to stop is ended."""
    output = log.folder / "output.txt"
    with output.open("w", encoding="utf-8") as file:
        try:
            process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
        except OSError as error:
            raise ValueError(f"cannot run {words[0]!r}: {error.strerror or error}") from None
        try:
            while process.poll() is None:
                try:
                    process.wait(_LOOK)
                except subprocess.TimeoutExpired:
                    log.look()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        tail = output.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
        raise ValueError(f"the command failed with {process.returncode}: {shlex.join(words)}\n{tail}")


def _one(logs: list[Log], path: Path) -> list[Log]:
    if len(logs) != 1:
        raise ValueError(f"{path} holds {len(logs)} runs; a command logs one")
    return logs


def _rows(log: Log) -> list[dict[str, float]]:
    """Return the rows of a log as they were written."""
    rows: dict[int, dict[str, float]] = {}
    for name, series in log.columns.items():
        for row, value in zip(series.rows.tolist(), series.values.tolist(), strict=True):
            rows.setdefault(row, {})[name] = value if math.isfinite(value) else math.nan
    return [rows[row] for row in sorted(rows)]
