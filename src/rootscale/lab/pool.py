"""Independent jobs on the cores of this machine, each in a process of its own that is forked from this one.

A forked process has the task already, lambdas and data included: nothing has to be pickled. It uses one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["available", "default_workers", "run_all"]

#: What a job is given: a function to call with its progress, and an event that asks it to stop.
Job = Callable[[Callable[[float], object], threading.Event], object]


def available() -> bool:
    """Whether processes can be forked here; not where CUDA or JAX is in use, nor on macOS or Windows."""
    return sys.platform == "linux" and "jax" not in sys.modules and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def default_workers() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if available() else 1


def run_all(
    jobs: Sequence[Job], workers: int, on_progress: Callable[[int, float], object], interrupted: threading.Event
) -> None:
    """Run all jobs, so many at a time.

    An interrupt is passed on to the jobs, which stop when they have saved what they have. A job that fails stops the
    others in the same way, and its error is raised here.
    """
    context = multiprocessing.get_context("fork")
    said: Any = context.Queue()
    waiting = list(enumerate(jobs))
    running: dict[int, Any] = {}
    failed: BaseException | None = None
    try:
        while waiting or running:
            stopping = interrupted.is_set() or failed is not None
            while waiting and not stopping and len(running) < workers:
                number, job = waiting.pop(0)
                running[number] = context.Process(target=_work, args=(number, job, said, os.getpid()))
                running[number].start()
            if stopping and not running:
                break
            if stopping:
                _ask_to_stop(running.values())
            with contextlib.suppress(queue.Empty):
                number, what = said.get(timeout=0.2)
                if isinstance(what, BaseException):
                    failed = failed or what
                else:
                    on_progress(number, what)
            for number in [number for number, process in running.items() if not process.is_alive()]:
                process = running.pop(number)
                process.join()
                if process.exitcode not in (0, 1, 130):  # 1: it has said what failed
                    failed = failed or RuntimeError(f"a worker process died with exit code {process.exitcode}")
        while failed is None and not said.empty():
            number, what = said.get()
            failed = what if isinstance(what, BaseException) else failed
    finally:
        _ask_to_stop(running.values())
        for process in running.values():
            process.join()
    if failed is not None:
        raise failed
    if interrupted.is_set():
        raise KeyboardInterrupt


def _ask_to_stop(processes: Any) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(process.pid, signal.SIGINT)


def _work(number: int, job: Job, said: Any, parent: int) -> None:
    """In the child."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing goes on when the parent was killed
    if os.getppid() != parent:
        os._exit(1)
    torch.set_num_threads(1)  # the thread pool of the parent does not survive a fork

    code = 0
    try:
        job(lambda share: said.put((number, share)), stop)
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        said.put((number, _portable(error)))
        code = 1
    said.close()
    said.join_thread()
    os._exit(code)


def _portable(error: BaseException) -> BaseException:
    """The error itself where it can be sent, else one with its text."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
