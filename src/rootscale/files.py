"""Files written whole or not at all, locks between processes, a Python file as a module, a command for the record."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "LOADED",
    "cache_folder",
    "command_line",
    "load_file",
    "locked",
    "need_folder",
    "remove_temporary",
    "this_command",
    "whole",
    "whole_folder",
    "write_json",
]

#: The attribute of a module that was loaded from a file.
LOADED = "__loaded_from_file__"
#: Options that say where files lie, or when to stop: they decide nothing about a result.
PLACES = ("--data", "--minutes", "--out", "--pages", "--pretrained", "--report", "--runs", "--text")


def cache_folder() -> Path:
    """Return the folder for what can be made again: ``ROOTSCALE_CACHE``, or ``rootscale`` in the user's cache folder.

    Data folders are only read.
    """
    own = os.environ.get("ROOTSCALE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rootscale"


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file to write to, which takes the place of ``path`` when the block ends.

    On any failure, an interrupt included, ``path`` is what it was and the temporary file is gone. A device or a pipe
    stays what it is, and is written to.
    """
    path = Path(path)
    special = path.exists() and not path.is_file() and not path.is_dir()
    prefix = f".{path.stem}-{_node()}-{os.getpid()}-"
    handle, name = tempfile.mkstemp(dir=None if special else path.parent, prefix=prefix, suffix=".tmp")
    os.close(handle)
    try:
        yield Path(name)
        if special:
            path.write_bytes(Path(name).read_bytes())
            os.unlink(name)
            return
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # mkstemp makes private files
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder to write into, which takes the place of ``path`` when the block ends.

    On any failure, an interrupt included, ``path`` is what it was and the temporary folder is gone.
    """
    path = Path(path)
    prefix = f".{path.name}-{_node()}-{os.getpid()}-"
    name = tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=".tmp")
    try:
        new = Path(name, path.name)
        new.mkdir()
        yield new
        if path.exists():
            os.replace(path, Path(name, f"{path.name}.old"))
        os.replace(new, path)
    except BaseException:
        old = Path(name, f"{path.name}.old")
        if old.exists() and not path.exists():
            os.replace(old, path)
        raise
    finally:
        shutil.rmtree(name, ignore_errors=True)


def remove_temporary(folder: str | os.PathLike[str], all_processes: bool = False) -> None:
    """Remove the temporary files and folders that processes left when they were killed while they wrote.

    Args:
        folder: where; folders in it are not looked at.
        all_processes: remove those of running processes and of other machines too, for who holds a lock on the folder.
    """
    for path in Path(folder).glob(".*.tmp"):
        owner = re.fullmatch(r"\..+-(\w*)-(\d+)-\w+\.tmp", path.name)
        dead = owner is not None and owner[1] == _node() and not _alive(int(owner[2]))
        if (all_processes or dead) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif all_processes or dead:
            path.unlink(missing_ok=True)


def _node() -> str:
    return re.sub(r"\W", "", platform.node())[:32]


def _alive(pid: int) -> bool:
    if sys.platform == "win32":  # there is no way to ask
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def need_folder(path: Path, what: str, option: str) -> None:
    """Refuse a file whose folder is not there: to be called before the work, not after it."""
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the {what}; make it, or give another {option}")


def write_json(path: str | os.PathLike[str], data: Any, **options: Any) -> None:
    """Write data as JSON text; the options are those of `json.dumps`."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(data, **{"indent": 2, **options}) + "\n", encoding="utf-8")


def command_line(program: str, words: Sequence[str]) -> str:
    """A command as it is kept with a result: without its `PLACES`, which another machine does not have.

    >>> command_line("rootscale", ["check", "mine.py:task", "--out", "/here", "--seeds", "8", "--report=there.html"])
    'rootscale check mine.py:task --seeds 8'
    """
    kept = [
        word
        for before, word in zip(("", *words), words, strict=False)
        if before not in PLACES and word.split("=")[0] not in PLACES
    ]
    return f"{program} {shlex.join(kept)}"


def this_command() -> str:
    """The command line of this process, as `command_line` keeps it."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return command_line(name, sys.argv[1:])


def load_file(path: Path, name: str) -> Any:
    """A Python file as a module of that name; it has `LOADED`, since other machines cannot import it by that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    setattr(module, LOADED, True)
    return module


@contextmanager
def locked(path: str | os.PathLike[str], wait: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Holds a lock that all processes of this machine respect, and says whether it could be had.

    Where another process holds it, this one waits as long as ``wait()`` is true. The lock ends with the block, or with
    the process; the empty file stays, in a folder that is made where it is missing. Systems without such locks
    (Windows) give it to everyone.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        while not (mine := _lock(fcntl, file)) and wait():
            time.sleep(0.1)
        try:
            yield mine
        finally:
            if mine:
                fcntl.flock(file, fcntl.LOCK_UN)


def _lock(fcntl: Any, file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
