"""A training script as a command line, with the values of each run filled in."""

from __future__ import annotations

import contextlib
import glob
import math
import shlex
import shutil
import signal
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rootscale.compare.log import Log
from rootscale.files import held_locks
from rootscale.hparams import Optimizer
from rootscale.lab.loop import Convert, RunLog, parsed_source
from rootscale.lab.processes import Child
from rootscale.plan import Plan

#: The files of a log, with when each was written and how long it is.
Stamp = list[tuple[str, int, int]]
#: What can stand in a command besides the values of its plan.
PLACES = ("batch_size", "seed", "kappa", "log", "folder", "checkpoint")
#: Of these a command has one, or all its runs would be the same.
_CHANGED = ("batch_size", "kappa", "checkpoint")
#: Names of values as options spell them, where they are others than those of a plan.
_SPELLED = {"eta": "lr", "beta": "alpha", "min_eta": "min_lr", "warmup": "warmup_steps", "decay": "decay_steps"}
#: Counts of steps, which are whole numbers in a command.
_COUNTS = ("steps", "warmup_steps", "decay_steps", "epochs", "dataset_size")
#: Seconds between looks at whether a command has to stop, and at its log.
_LOOK = 0.2
#: Of the time of a command, the most in which its log is read while it runs.
_READING = 0.05
#: Names of files that decide what a command does, where it names them.
_DECIDES = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
#: Words that only a shell understands.
_SHELL = ("&&", "||", "|", ";", ">", ">>", "<")
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
        read: reads what the script logged, given a path: `rootscale.compare.read_logs`.
        log: the path of what it logs, in which the same names are replaced; None is ``{log}``. A pattern such as
            ``{folder}/run_*/metrics.csv`` is for folders with a time in their name: the one that the run wrote to.
    """

    text: str
    plan: Plan | None
    read: Callable[[Any], list[Log]]
    log: str | None = None

    def __post_init__(self) -> None:
        _need_program(self.text)
        known = [*PLACES, *([] if self.plan is None else values_of(self.plan))]
        for text in (self.text, self.log or ""):
            for name in _names(text):
                if name not in known:
                    raise ValueError(
                        f"the command has {{{name}}}, which is not known; known are {', '.join(known)}, and what "
                        "--values gives; braces that are to stay are written {{ and }}"
                    )
        if not set(_CHANGED) & set(_names(self.text)):
            raise ValueError(
                f"the command must have {{batch_size}}, which the check changes, or {{kappa}} or {{checkpoint}}; got "
                f"{self.text!r}"
            )
        if "seed" not in _names(self.text):
            raise ValueError(f"the command must have {{seed}}, so that runs differ; got {self.text!r}")
        if self.log is None and "log" not in _names(self.text):
            raise ValueError(
                "where does the command log? have it write JSON lines to {log}, or give the path of its log with --log"
            )

    def source(self) -> str:
        """Return the command and the programs and settings it names as files: what its runs depend on."""
        return "\n".join([self.text, *(_content(file) for file in self._files())])

    def programs(self) -> list[Path]:
        """Return the Python programs that it names, as files or with ``-m``."""
        words = shlex.split(self.text)
        modules = [Path(*module.split(".")) for option, module in pairwise(words) if option == "-m"]
        files = [file for module in modules for file in (module.with_suffix(".py"), module / "__main__.py")]
        return [file for file in (*self._files(), *files) if file.suffix == ".py" and file.is_file()]

    def _files(self) -> list[Path]:
        words = [word.rpartition("=")[2] for word in shlex.split(self.text)]
        words += [inner for word in words if " " in word for inner in _split(word)]  # of sh -c '...'
        return [Path(word) for word in words if word.endswith(_DECIDES) and Path(word).is_file()]

    def __call__(self, batch_size: int, seed: int, log: RunLog, convert: Convert) -> None:
        """Make a run."""
        values: dict[str, Any] = {} if self.plan is None else values_of(convert.plan(self.plan))
        values |= {
            "batch_size": batch_size,
            "seed": seed,
            "kappa": float(convert.kappa),
            "log": log.folder / "command.jsonl",
            "folder": log.folder,
            "checkpoint": "" if convert.checkpoint is None else convert.checkpoint.absolute(),
        }
        words = [_filled(word, values) for word in shlex.split(self.text)]
        place = _Place.of(self.log or "{log}", values)
        _finish(words, log, self._following(place, log))
        paths = place.paths()
        written = paths if self.log is None else place.written()
        if not paths:
            raise ValueError(f"the command ended without a log at {place.text}: {shlex.join(words)}")
        if not written:
            raise ValueError(f"the command did not write to {place.text}, whose log is older: {shlex.join(words)}")
        if len(written) > 1:
            raise ValueError(
                f"{place.text} leads to {len(written)} logs that were written in this run, {written[0]} and "
                f"{written[1]} among them; a run has one: have the command log below {{folder}}, and give that in --log"
            )
        log.show(self._rows(written[0]))

    def _following(self, place: _Place, log: RunLog) -> Callable[[], None]:
        """Return what hands on the log of a command that runs, if anyone looks at it and it has grown."""
        seen, due = place.stamps(), 0.0

        def follow() -> None:
            nonlocal seen, due
            began = time.monotonic()
            if not log.followed or began < due or (now := place.stamps()) == seen:
                return
            seen, written = now, place.written()
            try:
                rows = self._rows(written[0])[:-1] if len(written) == 1 else []  # the last may be under way
            except (OSError, ValueError):  # as all of it may
                rows = []
            due = time.monotonic() + (time.monotonic() - began) / _READING
            if rows:
                log.show(rows)

        return follow

    def _rows(self, path: Path) -> list[dict[str, float]]:
        """Return the rows of a log as they were written."""
        logs = self.read(path)
        if len(logs) != 1:
            raise ValueError(f"{path} holds {len(logs)} runs; a command logs one")
        rows: dict[int, dict[str, float]] = {}
        for name, series in logs[0].columns.items():
            for row, value in zip(series.rows.tolist(), series.values.tolist(), strict=True):
                rows.setdefault(row, {})[name] = value if math.isfinite(value) else math.nan
        return [rows[row] for row in sorted(rows)]


@dataclass(frozen=True)
class _Place:
    """Where a command logs: a path, or a pattern for one that has a time or a number in its name.

    Args:
        text: with all values filled in.
        pattern: the same for `glob`; None for a path.
        before: when what is there was written, before the command ran.
    """

    text: str
    pattern: str | None
    before: Mapping[Path, Stamp]

    @classmethod
    def of(cls, text: str, values: Mapping[str, Any]) -> _Place:
        plain = _filled(text, values)
        escaped = {name: glob.escape(str(value)) for name, value in values.items()}
        made = cls(plain, _filled(text, escaped) if glob.has_magic(text) and not Path(plain).exists() else None, {})
        return replace(made, before=made.stamps())

    def paths(self) -> list[Path]:
        if self.pattern is None:
            return [Path(self.text)] if Path(self.text).exists() else []
        return [Path(path) for path in sorted(glob.glob(self.pattern, recursive=True))]

    def stamps(self) -> dict[Path, Stamp]:
        return {path: _stamp(path) for path in self.paths()}

    def written(self) -> list[Path]:
        """Return what was written since."""
        return [path for path, stamp in self.stamps().items() if stamp != self.before.get(path)]


def values_of(plan: Plan) -> dict[str, float]:
    """Return the values of a plan as options of a script have them.

    >>> from rootscale import AdamW
    >>> values_of(Plan(AdamW(eta=1e-3), batch_size=4, steps=1000).at(16))["lr"]
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


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _names(text: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def _filled(text: str, values: Mapping[str, Any]) -> str:
    return text.format(**values)


def _need_program(text: str) -> None:
    """Refuse a command that does not begin with a program, or that only a shell could run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words ({error}): {text}") from None
    name, sets, _ = words[0].partition("=") if words else ("", "", "")
    strange = [word for word in words if word in _SHELL]
    if strange or name in ("cd", "export") or (sets and name.isidentifier()):
        raise ValueError(
            f"the command has {(strange or words)[0]!r}, which only a shell understands, and none runs it: write it as "
            f"sh -c '...', or set a variable as env NAME=VALUE python ...; got {text!r}"
        )


def _content(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace")
    return parsed_source(text) if file.suffix == ".py" else text


def _stamp(path: Path) -> Stamp:
    """Return when what a path leads to was written, and how much of it there is."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            found.append((str(file), (stat := file.stat()).st_mtime_ns, stat.st_size))
    return found


def _finish(words: list[str], log: RunLog, follow: Callable[[], None]) -> None:
    """Run the command to its end; one that is asked to stop is ended, with all that it started."""
    if shutil.which(words[0]) is None:
        raise ValueError(f"cannot run {words[0]!r}: no such program")
    output = log.folder / "output.txt"
    with output.open("wb") as file:
        child = Child.command(words, file, held_locks())
        try:
            while child.wait(_LOOK) is None:
                log.look()
                follow()
        finally:
            child.end()
            child.wait()
    if child.returncode:
        log.look()  # all processes of a job are told to end at once: then it has not failed
        tail = output.read_bytes()[-_TAIL:].decode("utf-8", errors="replace")
        tail = "".join(
            letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in tail
        )
        how = f"was killed by {signal.Signals(-child.returncode).name}" if child.returncode < 0 else (
            f"failed with {child.returncode}"
        )  # fmt: skip
        raise ValueError(f"the command {how}: {shlex.join(words)}\n{tail}")
