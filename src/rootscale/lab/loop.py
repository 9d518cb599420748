"""A training loop of the user's own, as a function: what the check hands to it, and what it hands back.

def train(batch_size, seed, log, convert):
torch.manual_seed(seed)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # the values of the base batch size
convert(optimizer, model=model)  # those of this run
for samples, batch in batches(batch_size):
...
log(samples=samples, loss=loss.item())
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rootscale.changes import Changes, ScalingWarning
from rootscale.compare.log import Log
from rootscale.format import show
from rootscale.lab.stopping import Stop
from rootscale.lab.task import need_file_name
from rootscale.plan import Plan
from rootscale.training.run import Run

#: What a training function takes, by name; one that does not make its own `Run` may take ``convert`` too.
PARAMETERS = ("batch_size", "seed", "log")
#: Called with the folder of a run after each row that it logs, and with whether it has ended.
Logged = Callable[[Path, bool], object]
_PART, _WHOLE = "log.part.jsonl", "log.jsonl"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Seconds between two signs of life.
_TELL = 1.0


@dataclass(frozen=True)
class Convert:
    """Lets what a loop made for its base batch size follow the batch size of the run.

    ``convert(optimizer, scheduler=..., model=..., ema=...)`` makes a `rootscale.training.Run` of live PyTorch objects.
    A loop may as well make its own, ``Run(optimizer, tuned_at=..., batch_size=batch_size)``, and take no ``convert``.

    Attributes:
        kappa: the batch size of the run over that of the base.
        batch_size: of the run.
        base: the batch size of the base.
        rule: by which is converted, as text; None is the optimizer's own.
        checkpoint: the file or folder from which the run starts, saved at the base batch size; None from scratch.
    """

    batch_size: int
    base: int
    rule: str | None = None
    checkpoint: Path | None = None
    warnings: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def kappa(self) -> Fraction:
        """The batch size of the run over that of the base."""
        return Fraction(self.batch_size, self.base)

    def __call__(self, optimizer: Any, **objects: Any) -> Changes:
        """Let an optimizer (or several) follow, with all that belongs to it; the arguments are those of `Run`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScalingWarning)  # the check says them
            run = Run(optimizer, tuned_at=self.base, batch_size=self.batch_size, **{"rule": self.rule, **objects})
        self.warnings.extend(text for text in run.warnings if text not in self.warnings)
        return run.changes

    def plan(self, plan: Plan) -> Plan:
        """Return a plan of the base at the batch size of the run, for loops without torch's optimizers."""
        made = plan.convert(self.batch_size, self.rule)
        self.warnings.extend(text for text in made.warnings if text not in self.warnings)
        return made.plan

    def steps(self, count: float) -> int:
        """Return a number of steps of the base (a length, an interval) as steps of this run, at least 1."""
        return max(1, round(Fraction(count) / self.kappa))


class RunLog:
    """What a run logs to: ``log(samples=1000, loss=0.9)``, or ``log({"step": 10, "eval_loss": 0.9})``.

    A row needs the samples (or tokens) seen, or the step. Tensors of one element are taken as numbers.

    Attributes:
        folder: of the run, in which the loop may keep files of its own. A run that was stopped is started again with
            the same folder: a loop that finds its checkpoint there may go on from it.
    """

    def __init__(self, folder: Path, stop: Stop, tell: Callable[[float], object], logged: Logged | None = None) -> None:
        self.folder, self._stop, self._tell, self._logged = folder, stop, tell, logged
        self._told = time.monotonic()
        self._process = os.getpid()
        _cut(folder / _PART)
        self._file = (folder / _PART).open("a", encoding="utf-8")
        self._rows = 0

    def __call__(self, row: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Write a row; raises what the user or a deadline asked for, when the run is to stop."""
        if os.getpid() != self._process:
            raise RuntimeError("log was called in a process that the loop has forked: only the loop's own may call it")
        text = json.dumps({key: _plain(key, value) for key, value in {**(row or {}), **values}.items()})
        self._file.write(text + "\n")
        self._file.flush()
        self._rows += 1
        self.look()
        if self._logged is not None:
            self._logged(self.folder, False)

    @property
    def followed(self) -> bool:
        """Whether anyone looks at the log while the run is made."""
        return self._logged is not None

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows in place of all that was logged so far."""
        self._file.truncate(0)
        self._file.writelines(json.dumps(row) + "\n" for row in rows)
        self._file.flush()
        self._rows = len(rows)
        if self._logged is not None:
            self._logged(self.folder, False)

    def look(self) -> None:
        """Raise what the user or a deadline asked for, when the run is to stop; and let it be known that it is made."""
        self._stop.end()
        if time.monotonic() - self._told > _TELL:
            self._told = time.monotonic()
            self._tell(0.0)  # how far it is only the loop knows

    def finish(self) -> None:
        """Close the log: the run is finished."""
        self._file.close()
        if not self._rows:
            raise ValueError(
                "the run logged nothing: call log(samples=..., loss=...) along the way, or, in a command, write JSON "
                "lines to {log}"
            )
        (self.folder / _PART).replace(self.folder / _WHOLE)
        if self._logged is not None:
            self._logged(self.folder, True)

    def close(self) -> None:
        """Close the log of a run that is not finished."""
        self._file.close()


def _cut(path: Path) -> None:
    """Cut off the line in whose middle a run was killed, or the disk was full."""
    with suppress(FileNotFoundError), path.open("rb+") as file:
        written = file.read()
        if not written.endswith(b"\n"):
            file.truncate(written.rfind(b"\n") + 1)


def _plain(key: str, value: Any) -> Any:
    """Return a value in JSON's types; a tensor has one element."""
    if isinstance(value, Mapping):
        return {inner: _plain(inner, item) for inner, item in value.items()}
    try:
        found = value.item() if hasattr(value, "item") else value
        json.dumps(found)
    except (RuntimeError, TypeError, ValueError):
        shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(f"log takes numbers; {key!r} is a {type(value).__name__}{shape}") from None
    return found


def read_log(folder: Path, name: str, seed: int, batch_size: float) -> Log:
    """Read the log of a run, or what an unfinished one has logged so far; it has no columns where that is nothing."""
    lines: list[str] = []
    for file in (folder / _WHOLE, folder / _PART):
        if file.exists():
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            break
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be under way
    return Log.of_rows(name, rows, seed=seed, batch_size=batch_size)


@dataclass(frozen=True, eq=False)
class Loop:
    """A training loop of the user's own, which `rootscale.lab.check` runs as it runs a `Task`.

    >>> def train(batch_size, seed, log, convert):
    ...     plan = convert.plan(Plan(SGD(eta=0.1), batch_size=4))
    ...     for step in range(1, 1 + convert.steps(10)):
    ...         log(step=step, loss=(1 - plan.optimizer.eta) ** step)
    >>> from rootscale import SGD
    >>> Loop("mine", train, batch_size=4).batch_size
    4

    Args:
        name: of the loop, which is also part of the names of files and folders.
        train: ``train(batch_size, seed, log, convert)``; a run of it. `RunLog` and `Convert` say what the last two are.
        batch_size: of the base.
        plan: of the base, for the table of changes in the report; None where the loop converts itself.
    """

    name: str
    train: Callable[..., object]
    batch_size: int
    plan: Plan | None = None

    def __post_init__(self) -> None:
        need_file_name(self.name)
        if not callable(self.train):
            raise TypeError(f"train must be a function train({', '.join(PARAMETERS)}), got {type(self.train).__name__}")
        if self.batch_size < 1 or int(self.batch_size) != self.batch_size:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {show(self.batch_size)}")
        if self.plan is not None and self.plan.batch_size.total != self.batch_size:
            raise ValueError(
                f"the plan must have the batch size of the loop, {self.batch_size}, got {self.plan.batch_size}"
            )

    def fingerprint(self) -> dict[str, Any]:
        """Return hashes of the source of the loop, and of the modules of the user's own that it imports.

        Runs that another source made are not taken for its own.
        """
        own = getattr(self.train, "source", None)
        text, programs = (own(), self.train.programs()) if own is not None else _source(self.train)  # type: ignore[attr-defined]
        modules = {name: _digest(parsed_source(_text(path))) for name, path in sorted(local_modules(programs).items())}
        return {"source": _digest(text), "seeds": {}, **({"modules": modules} if modules else {})}


def is_train_function(found: Any) -> bool:
    """Return whether it is a function of `PARAMETERS`."""
    if not callable(found) or inspect.isclass(found):
        return False
    try:
        names = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False
    return set(PARAMETERS) <= set(names)


def _source(function: Any) -> tuple[str, list[Path]]:
    """Return the program of the file in which a function stands, and that file; or the function alone.

    Comments and docstrings do not count.
    """
    try:
        file = Path(inspect.getsourcefile(function) or "")
        return parsed_source(file.read_text(encoding="utf-8")), [file]
    except (OSError, TypeError, ValueError):
        code = getattr(function, "__code__", None)
        return (repr((code.co_code, code.co_consts, code.co_names)) if code is not None else repr(function)), []


def local_modules(programs: Sequence[Path]) -> dict[str, Path]:
    """Return the modules that programs import, one through the other, and that are not installed: names and files.

    They are looked for beside the programs, and where Python looks but for what is installed. Imports by a name that
    is put together while a program runs are not seen.
    """
    found: dict[str, Path] = {}
    beside = [path.resolve().parent for path in programs]
    places = list(dict.fromkeys([*beside, *_own_places()]))
    left = [(path.resolve(), "") for path in programs]
    while left:
        path, package = left.pop()
        for name in _imported(path, package):
            for place in places:
                file = place.joinpath(*name.split("."))
                file = file / "__init__.py" if (file / "__init__.py").is_file() else file.with_suffix(".py")
                if file.is_file():
                    if name not in found and file not in map(Path.resolve, programs):
                        found[name] = file
                        left.append((file, name if file.name == "__init__.py" else name.rpartition(".")[0]))
                    break
    return found


def _own_places() -> list[Path]:
    """Return the folders in which Python looks for modules, without those of what is installed, and of this package."""
    installed = [Path(place).resolve() for place in dict.fromkeys((sys.prefix, sys.base_prefix))]
    places = [
        Path(place or ".").resolve() for place in (*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path)
    ]
    own = [place for place in places if place.is_dir() and not {place, *place.parents} & set(installed)]
    return [place for place in own if not (place / "rootscale" / "__init__.py").exists()]


def _imported(path: Path, package: str) -> list[str]:
    """Return the names of modules that a program may import, with the packages that they are in."""
    try:
        tree = ast.parse(_text(path))
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" if module else alias.name for alias in node.names)]
    parts = [name.split(".") for name in names if name]
    return list(dict.fromkeys(".".join(part[: i + 1]) for part in parts for i in range(len(part))))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def parsed_source(text: str) -> str:
    """Return a Python program without comments, docstrings and line breaks; other text as it is."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
