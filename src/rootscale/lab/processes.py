"""Processes of our own, each under a guard that ends it with all that it started, and says how it ended.

    this process ── guard ── the process ── whatever it starts

A guard is a small process between two others. It ends what is below it when this process asks for that, or when this
process is gone, however it went: a pipe between the two is then closed, and the guard has another parent. If the guard
itself is killed, Linux sends the process a signal of death. What the process leaves behind is ended with it, so that
nobody writes to the files of a run after its end. Locks that are held when a process starts are held by it and by its
guard too, until both have ended.

`Child.forked` runs a function in a copy of this process; `Child.command` runs another program. There the guard is this
file, run by itself, so that it also works in processes that must not be forked. It imports nothing but Python's own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, ClassVar, NoReturn

#: Seconds that a process has between being asked to end and being killed, and what it left behind after its end.
GRACE, REST = 10.0, 2.0
#: Seconds between looks at whether the parent is still there, and at a process where Linux cannot wake us.
_LOOK, _POLL = 0.5, 0.02
#: What a guard is told: to let the process end itself, and to end it with all that it started.
_STOP, _END = b"s", b"e"
#: Signals that ask to end; they reach a guard when they are sent to all processes of a job.
_ASKING = (signal.SIGINT, signal.SIGTERM) if sys.platform == "win32" else (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP
)  # fmt: skip
#: The exit code of a process that could not begin.
_NOT_BEGUN = 127
#: What prctl is asked for: a signal when the parent dies, and to become the parent of orphans below.
_PDEATHSIG, _SUBREAPER = 1, 36


class Child:
    """A process under a guard.

    Attributes:
        returncode: how it ended: its exit code, or minus the number of the signal that killed it; None while it runs.
    """

    _alive: ClassVar[set[Child]] = set()
    _starting = threading.Lock()

    def __init__(self, orders: int, news: int, guard: subprocess.Popen[bytes] | int) -> None:
        self._orders, self._news, self._guard = orders, news, guard
        self.returncode: int | None = None
        self._alive.add(self)

    @classmethod
    def forked(cls, body: Callable[[], object]) -> Child:
        """Run a function in a copy of this process, which ends with the function."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()  # or the copy would write what is still in it a second time
        with cls._starting:
            ours, theirs = _pipes()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKING)  # until the copy has handlers of its own
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                for child in cls._alive:  # or their guards would not see the end of this process
                    _close(child._orders, child._news)
                cls._alive.clear()
                cls._starting = threading.Lock()  # that of the copy is held by nobody who could give it back
                _close(*ours)
                _guard(*theirs, parent, lambda: _called(body))
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _close(*theirs)
            return cls(*ours, pid)

    @classmethod
    def command(cls, words: Sequence[str], output: IO[bytes], held: Iterable[int] = ()) -> Child:
        """Run a program, whose output goes to a file.

        Args:
            words: the program and its arguments.
            output: where all that it prints goes.
            held: descriptors of files that it keeps open, such as those of locks.
        """
        if sys.platform == "win32":  # there are no guards
            return _Windows(words, output)
        ours, theirs = _pipes()
        own = [sys.executable, "-I", "-S", __file__, *map(str, (*theirs, os.getpid())), *words]
        process = subprocess.Popen(
            own, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=(*theirs, *held),
            start_new_session=True,
        )  # fmt: skip
        _close(*theirs)
        return cls(*ours, process)

    def fileno(self) -> int:
        """Return the descriptor that can be read when it has ended, for ``select``."""
        return self._news

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self.wait(0.0)

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, at most so many seconds, and return how it ended; None while it runs."""
        if self.returncode is None and select.select([self._news], [], [], seconds)[0]:
            text = os.read(self._news, 64)
            # A guard that says nothing was killed, and has taken its process along.
            self.returncode = int(text) if text else -signal.SIGKILL
            if isinstance(self._guard, int):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self._guard, 0)
            else:
                self._guard.wait()
            _close(self._orders, self._news)
            self._alive.discard(self)
        return self.returncode

    def stop(self) -> None:
        """Ask the process to end: what that takes is its own."""
        self._order(_STOP)

    def end(self) -> None:
        """End the process with all that it started; it has `GRACE` seconds to do so by itself. `wait` for it."""
        self._order(_END)

    def _order(self, order: bytes) -> None:
        if self.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._orders, order)


class _Windows(Child):
    """A program on Windows, which has neither guards nor groups of processes."""

    def __init__(self, words: Sequence[str], output: IO[bytes]) -> None:
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.returncode = None

    def wait(self, seconds: float | None = None) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.returncode = self._process.wait(seconds)
        return self.returncode

    def _order(self, order: bytes) -> None:
        self._process.kill()


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return both ends of what goes down and what comes up: those of this process, and those of the guard."""
    (read_orders, orders), (news, write_news) = os.pipe(), os.pipe()
    return (orders, news), (read_orders, write_news)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


# -- below this process -----------------------------------------------------------------------------------------------


def _guard(orders: int, news: int, parent: int, begin: Callable[[], object]) -> NoReturn:
    """Begin a process in a session of its own, see it to its end, and say how that was."""
    try:
        with contextlib.suppress(PermissionError):  # it has one already
            os.setsid()
        for number in _ASKING:  # all that it does is on behalf of the parent
            signal.signal(number, signal.SIG_IGN)
        _prctl(_SUBREAPER, 1)
        guard, pid = os.getpid(), os.fork()
        if not pid:
            _close(orders, news)
            os.setsid()
            _prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(_NOT_BEGUN)
            for number in _ASKING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            begin()
            os._exit(0)
        with contextlib.suppress(BrokenPipeError):
            os.write(news, str(_see_to_the_end(pid, orders, parent)).encode())
    finally:
        os._exit(0)


def _called(body: Callable[[], object]) -> NoReturn:
    """Run a function in a copy of a process; what it printed is written, and nothing else is done at the end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # A progress bar stands in for these in the original, with a lock that may be held by a thread that is not here.
    sys.stdout, sys.stderr = (getattr(s, "rich_proxied_file", s) for s in (sys.stdout, sys.stderr))
    code = 0
    try:
        body()
    except BaseException:
        code = _NOT_BEGUN
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def _see_to_the_end(pid: int, orders: int, parent: int) -> int:
    """Wait for the end of a process, or bring it about; return how it ended."""
    awake = [orders]
    with contextlib.suppress(AttributeError, OSError):
        awake.append(os.pidfd_open(pid))
    wait, killing = _LOOK if len(awake) == 2 else _POLL, None
    while True:
        for ready in select.select(awake, [], [], wait)[0]:
            if ready != orders:
                continue
            order = os.read(orders, 1)
            if not order:
                awake.remove(orders)
            if order == _STOP:
                os.kill(pid, signal.SIGTERM)
            elif killing is None:
                _signal_all(pid, signal.SIGTERM)
                killing = time.monotonic() + GRACE
        if killing is None and os.getppid() != parent:
            _signal_all(pid, signal.SIGTERM)
            killing = time.monotonic() + GRACE
        if killing is not None and time.monotonic() >= killing:
            _signal_all(pid, signal.SIGKILL)
        if killing is not None:
            wait = _POLL
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _end_rest(pid)
            return os.waitstatus_to_exitcode(status)


def _signal_all(pid: int, number: int) -> None:
    """Send a signal to a process and to its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _end_rest(group: int) -> None:
    """End what a process left behind: its group, and on Linux its orphans, wherever they went."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + REST
        while time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            left = _children()
            try:
                os.killpg(group, number)
            except (PermissionError, ProcessLookupError):
                if not left:
                    return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(_POLL)


def _children() -> list[int]:
    """Return the children of this process that have not been waited for, as far as the system says."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            library: Any = ctypes.CDLL(None)
            library.prctl(option, value, 0, 0, 0)


def _replaced(words: Sequence[str]) -> None:
    """Become a program."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_BEGUN)


if __name__ == "__main__":
    _orders, _news, _parent = map(int, sys.argv[1:4])
    _guard(_orders, _news, _parent, lambda: _replaced(sys.argv[4:]))
