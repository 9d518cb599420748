"""Jobs in processes that are forked from this one: they have its objects already, and nothing is pickled."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch

from rootscale.lab.stopping import Deadline, Job, OnProgress, Stop

__all__ = ["Pool", "can_fork"]

#: Exit codes of a worker whose error is on its way to the parent, and of one that was interrupted.
_FAILED, _INTERRUPTED = 1, 130


def can_fork() -> bool:
    """Return whether processes can be forked: on Linux, while neither CUDA nor JAX is in use."""
    return sys.platform == "linux" and "jax" not in sys.modules and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


class Pool:
    """The processes of one call of `rootscale.lab.execute.Forked.run`.

    Args:
        jobs: what is run.
        workers: how many processes at a time.
        threads: of torch in each of them.
        on_progress: called with the number of a job and its progress.
        stop: what asks all of them to stop.
    """

    def __init__(self, jobs: Sequence[Job], workers: int, threads: int, on_progress: OnProgress, stop: Stop) -> None:
        self.workers, self.threads, self.on_progress, self.stop = workers, threads, on_progress, stop
        self.context = multiprocessing.get_context("fork")
        self.messages: Any = self.context.Queue()
        self.waiting = list(enumerate(jobs))
        self.running: dict[int, Any] = {}
        self.asked: set[int] = set()
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Run all jobs; a job that fails stops the others, and its error is raised here."""
        importlib.import_module("torch._dynamo")  # which every optimizer needs: a second, here and not in each process
        try:
            while self.waiting or self.running:
                stopping = self.stop.asked or self.failed is not None
                if stopping and not self.running:
                    break
                if not stopping:
                    self._start()
                elif self.failed is not None or self.stop.interrupted.is_set():  # a deadline they see themselves
                    self._interrupt()
                with contextlib.suppress(queue.Empty):
                    self._receive(self.messages.get(timeout=0.2))
                self._reap()
            while not self.messages.empty():
                self._receive(self.messages.get())
        finally:
            self._interrupt()
            for process in self.running.values():
                process.join()
        if self.failed is not None:
            raise self.failed
        if self.waiting or self.stop.interrupted.is_set():
            self.stop.end()

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.workers:
            number, job = self.waiting.pop(0)
            arguments = (number, job, self.messages, os.getpid(), self.threads, self.stop.deadline)
            process = self.running[number] = self.context.Process(target=_work, args=arguments)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can handle it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _receive(self, message: tuple[int, float | BaseException]) -> None:
        number, what = message
        if isinstance(what, BaseException):
            self.failed = self.failed or what
        else:
            self.on_progress(number, what)

    def _reap(self) -> None:
        for number in [number for number, process in self.running.items() if not process.is_alive()]:
            process = self.running.pop(number)
            process.join()
            if process.exitcode not in (0, _FAILED, _INTERRUPTED):
                self.failed = self.failed or RuntimeError(f"a worker process died with exit code {process.exitcode}")

    def _interrupt(self) -> None:
        for process in self.running.values():
            if process.pid not in self.asked:  # once: a second interrupt would not wait for a checkpoint
                self.asked.add(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)


def _work(number: int, job: Job, messages: Any, parent: int, threads: int, deadline: Deadline) -> None:
    """Run a job in a child."""
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing goes on when the parent was killed
    if os.getppid() != parent:
        os._exit(_FAILED)
    torch.set_num_threads(threads)  # the thread pool of the parent does not survive a fork
    code = 0
    try:
        job(lambda share: messages.put((number, share)), Stop(interrupted, deadline))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException as error:
        messages.put((number, portable(error)))
        code = _FAILED
    messages.close()
    messages.join_thread()
    os._exit(code)


def portable(error: BaseException) -> BaseException:
    """Return the error itself where it can be pickled, and else one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
