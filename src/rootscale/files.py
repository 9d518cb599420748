"""Files written whole or not at all, locks between processes, a Python file as a module, a command for the record."""

from __future__ import annotations

import errno
import importlib.util
import json
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

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
        dead = owner is not None and owner[1] == _node() and not is_alive(int(owner[2]))
        if (all_processes or dead) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif all_processes or dead:
            path.unlink(missing_ok=True)


def _node() -> str:
    return re.sub(r"\W", "", platform.node())[:32]


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
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


def need_writable(folder: Path, what: str, option: str) -> None:
    """Refuse a folder in which nothing can be written; it is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
    except OSError as error:
        raise ValueError(
            f"{what} cannot be stored in {folder}: {error.strerror or error}; give another folder ({option})"
        ) from None


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


# -- locks -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str], wait: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Holds a lock that all processes respect which see the file, and says whether it could be had.

    Where another process holds it, this one waits as long as ``wait()`` is true. The lock ends with the block, or with
    the process and those that it has started with `held_locks`; the file stays, in a folder that is made where it is
    missing, and names its last holder. It is a lock of the file system (flock); where that has none, a `_Heartbeat`.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    lock: _Flock | _Heartbeat = _Flock(file)
    try:
        while not (mine := lock.take()) and wait():
            time.sleep(0.1)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            os.close(file)
            raise
        lock = _Heartbeat(Path(f"{os.fspath(path)}.held"))
        while not (mine := lock.take()) and wait():
            time.sleep(0.1)
    try:
        yield mine
    finally:
        if mine:
            lock.give_back()
        os.close(file)


def held_locks() -> tuple[int, ...]:
    """The descriptors of the locks of this process, for a process that writes what they protect."""
    return tuple(_held)


def lock_holder(path: str | os.PathLike[str]) -> str:
    """Who holds a lock, or held it last, in words; empty where that is not known."""
    for file in (Path(f"{os.fspath(path)}.held"), Path(path)):
        with suppress(OSError, ValueError, KeyError, TypeError):
            owner = json.loads(file.read_text(encoding="utf-8"))
            return f"process {owner['process']} on {owner['host']}, since {owner['since']}"
    return ""


#: What systems say that have no flock.
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
#: The locks of this process.
_held: set[int] = set()
#: Seconds between two signs of life, and without one after which the holder of a lock is taken for gone: a process of
#: this machine that is not there, whose command may still be ending, and any other.
_BEAT, _GONE, _SILENT = 5.0, 20.0, 120.0


def _owner(**more: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"process": os.getpid(), "host": platform.node(), "since": since, **more})


@dataclass
class _Flock:
    """A lock of the file system."""

    file: int

    def take(self) -> bool:
        try:
            import fcntl
        except ImportError:
            raise OSError(errno.ENOSYS, "this system has no flock") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _held.add(self.file)
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, _owner().encode(), 0)
        return True

    def give_back(self) -> None:
        import fcntl

        _held.discard(self.file)  # others that hold it too have ended by now, or end with this process
        fcntl.flock(self.file, fcntl.LOCK_UN)


class _Heartbeat:
    """A lock as a file that only one process can make, and that it touches as long as it lives.

    One that was not touched for long is taken over, by one process only: who makes the file that is named after the
    mark of the last holder. A holder that was taken for gone, such as one that was asleep, is interrupted.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, uuid.uuid4().hex
        self._over = threading.Event()

    def take(self) -> bool:
        """Take the lock, and go on touching it."""
        if not (self._make(self.path) or self._take_over()):
            return False
        threading.Thread(target=self._beat, daemon=True).start()
        return True

    def give_back(self) -> None:
        self._over.set()
        if self._marked() == self.mark:
            self.path.unlink(missing_ok=True)

    def _make(self, path: Path) -> bool:
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with open(file, "w", encoding="utf-8") as written:
            written.write(_owner(mark=self.mark))
        return True

    def _take_over(self) -> bool:
        before = self._marked()
        heir = self.path.with_name(f"{self.path.name}-{before}")
        if before is None or not self._silent(self.path):
            return False
        if not self._make(heir):
            if self._silent(heir):  # left by one that was killed here
                heir.unlink(missing_ok=True)
            return False
        if self._marked() != before:
            heir.unlink(missing_ok=True)
            return False
        os.replace(heir, self.path)
        return True

    def _marked(self) -> str | None:
        """The mark of who holds it; None where nobody does."""
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads(self.path.read_text(encoding="utf-8"))["mark"])
        return "" if self.path.exists() else None  # one that is being written, or was killed while it was

    def _silent(self, path: Path) -> bool:
        """Whether nobody has touched a lock for too long, by the clock of the file system."""
        try:
            with tempfile.TemporaryFile(dir=path.parent) as now:
                age = os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
            owner = json.loads(path.read_text(encoding="utf-8"))
            here = owner["host"] == platform.node()
            return age > (_GONE if here and not is_alive(int(owner["process"])) else _SILENT)
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError):
            return age > _SILENT

    def _beat(self) -> None:
        while not self._over.wait(_BEAT):
            if self._marked() not in (self.mark, ""):
                _log.error("%s was taken over by %s: this process stops", self.path, lock_holder(self.path))
                os.kill(os.getpid(), signal.SIGTERM)
                return
            with suppress(OSError):
                os.utime(self.path)
