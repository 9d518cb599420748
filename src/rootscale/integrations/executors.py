"""Executors for the processes of other libraries: Ray, submitit (SLURM), Dask, joblib, `concurrent.futures`.

`OnExecutor` takes whatever has ``submit(function, *arguments)`` and returns futures; `OnRay` is the same on a Ray
cluster. All of them need one folder that every machine sees, that of the store. Jobs go through it:

    FOLDER/.jobs-TOKEN/jobs.pkl     all jobs, written once: what they share, such as a task's data, is in it once
    FOLDER/.jobs-TOKEN/0.progress   how far job 0 is, written by its worker
    FOLDER/.jobs-TOKEN/0.end        how job 0 ended: a job without it lost its worker, and is submitted again
    FOLDER/.jobs-TOKEN/stop         written by this process: workers write their checkpoints and end
    FOLDER/.jobs-TOKEN/alive        touched by this process; workers end when that stops

Finished runs are in the store and never made twice, so that a sweep may be moved between executors at any time. Where
the submitting process was killed, the next one on its machine tells the workers that are left to stop.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import platform
import shutil
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rootscale.files import LOADED, is_alive, whole, write_json
from rootscale.lab.execute import TOGETHER
from rootscale.lab.stopping import Deadline, Job, OnProgress, Stop, UnfinishedError, held_interrupts

__all__ = ["OnExecutor", "OnRay"]

#: Seconds between two looks at the folder, on both sides.
_POLL = 0.5
#: Seconds in which workers write their checkpoints after they were asked to stop; then they are cancelled.
_GRACE = 60.0
#: Seconds without a sign of the process that submitted a job, after which the job stops. File systems that are shared
#: show a change late, some of them half a minute.
_ORPHANED = 120.0
#: Seconds in which the record of a job's end may become visible after its future is done.
_VISIBLE = 5.0


@dataclass(frozen=True, kw_only=True)
class _Submitting(ABC):
    """What the executors share; `rootscale.lab.execute.Execute`.

    Args:
        retries: how often a job is submitted again whose worker was lost.
        together: most seeds that one job trains in one program.
        deadline: when jobs stop, with checkpoints.
    """

    retries: int = 3
    together: int = TOGETHER
    deadline: Deadline = Deadline()

    @abstractmethod
    def workers(self) -> int:
        """Return how many jobs run at a time."""

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a future with ``done()``, ``result()`` and ``cancel()``."""

    @abstractmethod
    def prepare(self) -> None:
        """Connect, before anything is pickled."""

    def run(
        self, jobs: Sequence[Job], folder: Path, on_progress: OnProgress, interrupted: threading.Event | None = None
    ) -> None:
        """Run all jobs; see `rootscale.lab.execute.Execute.run`."""
        with held_interrupts() if interrupted is None else nullcontext(interrupted) as event:
            stop = Stop(event, self.deadline)
            stop.end()
            self.prepare()
            with _shipped(jobs, folder.resolve()) as place:
                _Batch(self, place, len(jobs), on_progress, stop).run()


class _Batch:
    """The jobs of one call, while they run."""

    def __init__(self, executor: _Submitting, place: Path, jobs: int, on_progress: OnProgress, stop: Stop) -> None:
        self.executor, self.place, self.on_progress, self.stop = executor, place, on_progress, stop
        self.shares = [-1.0] * jobs
        self.lost = [0] * jobs
        self.unfinished = False
        self.error: BaseException | None = None
        self.futures = {number: self.submit(number) for number in range(jobs)}

    def submit(self, number: int) -> Any:
        deadline = self.executor.deadline
        left = None if math.isinf(deadline.at) else deadline.left  # the clocks of machines differ
        return self.executor.submit(_work, str(self.place), number, left)

    def run(self) -> None:
        """Wait for all jobs. One that fails stops the others, and its error is raised."""
        asked = math.inf
        try:
            while self.futures:
                (self.place / "alive").touch()
                for number in [number for number, future in self.futures.items() if future.done()]:
                    self.end(number)
                for number in self.futures:
                    self.progress(number)
                stopping = self.error is not None or self.stop.asked
                if stopping and math.isinf(asked):
                    asked = time.monotonic()
                    (self.place / "stop").touch()
                if time.monotonic() > asked + _GRACE:
                    break
                time.sleep(_POLL if self.futures else 0)
        finally:
            (self.place / "stop").touch()
            for future in self.futures.values():
                future.cancel()
        if self.error is not None:
            raise self.error
        if self.futures or self.unfinished:
            self.stop.end()
            raise UnfinishedError("jobs were stopped before their end; the same call resumes them")

    def end(self, number: int) -> None:
        """Take note of a job whose future is done."""
        future = self.futures.pop(number)
        record = self.record(number)
        if record is None:
            self.resubmit(number, future)
        elif record["end"] == "finished":
            self.on_progress(number, 1.0)
        elif record["end"] == "unfinished":
            self.unfinished = True
        else:
            self.error = self.error or _read_error(self.place / f"{number}.error", record["error"])

    def record(self, number: int) -> dict[str, Any] | None:
        """Return how a job ended, or None where its worker was lost before it could say."""
        limit = time.monotonic() + _VISIBLE
        while True:
            with suppress(OSError, ValueError):
                return dict(json.loads((self.place / f"{number}.end").read_text(encoding="utf-8")))
            if time.monotonic() > limit:
                return None
            time.sleep(0.1)

    def resubmit(self, number: int, future: Any) -> None:
        """Submit a job again that left no record of its end, unless that is hopeless."""
        try:
            host, reason = future.result(), ""
        except Exception as error:  # of the library: a killed process, a node that is gone, a limit of the queue
            host, reason = None, f": {type(error).__name__}: {str(error).strip().splitlines()[-1:] or ['']}"
        if host is not None:
            self.error = ValueError(
                f"{host} does not see the folder {self.place.parent}: keep the runs on a file system that all machines "
                "share, or run this on one machine (Forked)"
            )
        elif self.stop.asked or self.error is not None:
            self.unfinished = True
        elif self.lost[number] >= self.executor.retries:
            self.error = RuntimeError(f"job {number} lost its worker {self.lost[number] + 1} times{reason}")
        else:
            self.lost[number] += 1
            self.futures[number] = self.submit(number)

    def progress(self, number: int) -> None:
        """Report how far a job is, where that has changed."""
        with suppress(OSError, ValueError):
            share = float((self.place / f"{number}.progress").read_text(encoding="utf-8"))
            if share > self.shares[number]:
                self.shares[number] = share
                self.on_progress(number, min(share, 0.999))  # 1 when the record of its end is there


@dataclass(frozen=True)
class OnExecutor(_Submitting):
    """Runs jobs by anything that has ``submit``: `concurrent.futures`, submitit, Dask's or joblib's executor.

        executor = submitit.AutoExecutor("slurm-logs")
        executor.update_parameters(slurm_partition="gpu", gpus_per_node=1, timeout_min=240)
        check(task, [4], store="shared/check", execute=OnExecutor(executor, at_once=16))

    Args:
        executor: its ``submit(function, *arguments)`` returns a future with ``done()``, ``result()``, ``cancel()``.
        at_once: how many jobs it runs at a time: work is split to fill them.
        retries, together, deadline: how often a job is submitted again whose worker was lost, most seeds of one
            program, when jobs stop.
    """

    executor: Any = None
    at_once: int = 1

    def __post_init__(self) -> None:
        if not callable(getattr(self.executor, "submit", None)):
            raise TypeError(
                f"executor must have submit(function, *arguments), such as submitit's AutoExecutor or Dask's "
                f"Client.get_executor(), got {type(self.executor).__name__}"
            )
        if self.at_once < 1:
            raise ValueError(f"at_once must be at least 1, got {self.at_once}")

    def workers(self) -> int:
        """Return how many jobs run at a time."""
        return self.at_once

    def prepare(self) -> None:
        """Do nothing: the executor is ready."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the executor's own future."""
        return self.executor.submit(function, *arguments)


@dataclass(frozen=True)
class OnRay(_Submitting):
    """Runs jobs on a Ray cluster, as many at a time as it has room for (extra ``ray``).

    Args:
        address: of the cluster; None is the one this process is connected to, or a new one on this machine.
        gpus: that one job takes, all of them on one node; .5 lets two jobs share one.
        retries, together, deadline: how often a job is submitted again whose worker or node was lost, most seeds of
            one program, when jobs stop.
    """

    address: str | None = None
    gpus: float = 0.0

    def workers(self) -> int:
        """Return how many jobs the nodes have room for: one for each CPU, or as many as the GPUs of a node hold."""
        nodes = [node["Resources"] for node in self._ray().nodes() if node["Alive"]]
        if self.gpus:
            return max(1, sum(int(node.get("GPU", 0.0) / self.gpus + 1e-9) for node in nodes))
        return max(1, int(sum(node.get("CPU", 0.0) for node in nodes)))

    def prepare(self) -> None:
        """Connect to the cluster."""
        self._ray()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the future of a Ray task. Ray's own retries are off: jobs are submitted again from here."""
        ray = self._ray()
        remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(function)
        return _RayFuture(ray, remote.remote(*arguments))

    def _ray(self) -> Any:
        try:
            import ray
        except ImportError:
            raise ValueError("a sweep on Ray needs the extra 'ray': pip install 'rootscale[ray]'") from None
        if not ray.is_initialized():
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False)
        return ray


class _RayFuture:
    """A reference of Ray with the methods of a future."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def done(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Any:
        return self.ray.get(self.reference)

    def cancel(self) -> None:
        self.ray.cancel(self.reference, force=True)


# -- shipping ---------------------------------------------------------------------------------------------------------


@contextmanager
def _shipped(jobs: Sequence[Job], folder: Path) -> Iterator[Path]:
    """Write jobs to a folder of their own within the shared one, which is removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    _stop_left(folder)
    place = Path(tempfile.mkdtemp(prefix=".jobs-", dir=folder))
    place.chmod(0o700)  # what is unpickled there must not come from others
    try:
        write_json(place / "driver.json", {"host": platform.node(), "pid": os.getpid()})
        with whole(place / "jobs.pkl") as temporary, temporary.open("wb") as file:
            _pickler()(file).dump(list(jobs))
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _stop_left(folder: Path) -> None:
    """Stop the jobs of processes of this machine that are gone; remove their folders when nobody looks there."""
    for place in folder.glob(".jobs-*"):
        with suppress(OSError, ValueError, KeyError):
            driver = json.loads((place / "driver.json").read_text(encoding="utf-8"))
            if driver["host"] != platform.node() or is_alive(int(driver["pid"])):
                continue
            if not (place / "stop").exists():
                (place / "stop").touch()
            elif time.time() - (place / "stop").stat().st_mtime > _ORPHANED + _GRACE:
                shutil.rmtree(place, ignore_errors=True)


def _pickler() -> Any:
    """Return cloudpickle's class of picklers, by which a view of a tensor goes without the rest of its storage."""
    import torch

    try:
        import cloudpickle
    except ImportError:
        raise ValueError(
            "jobs for other processes are pickled by cloudpickle: pip install 'rootscale[cluster]'"
        ) from None
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(LOADED):  # a file of the user's, which a worker could not import
            cloudpickle.register_pickle_by_value(module)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.requires_grad
            if plain and value.untyped_storage().nbytes() > value.element_size() * value.numel():
                return value.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return super().reducer_override(value)

    return Pickler


@lru_cache(1)
def _jobs(path: str) -> list[Job]:
    """Return the jobs of a file, which a worker reads once."""
    with open(path, "rb") as file:
        return list(pickle.load(file))


# -- on a worker ------------------------------------------------------------------------------------------------------


def _work(name: str, number: int, seconds: float | None) -> str | None:
    """Run a job on a worker, and record its end. Return the worker's host where it does not see the folder."""
    import torch

    place, event = Path(name), threading.Event()
    if not (place / "jobs.pkl").exists():
        return platform.node()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    end: dict[str, Any] = {"end": "finished"}
    with _reporting(place, number, event) as tell:
        try:
            _jobs(str(place / "jobs.pkl"))[number](tell, Stop(event, Deadline.after(seconds)))
        except (KeyboardInterrupt, UnfinishedError):
            end = {"end": "unfinished"}
        except Exception as error:
            end = {"end": "failed", "error": f"{type(error).__name__}: {error}"}
            _write_error(place / f"{number}.error", error)
    with suppress(FileNotFoundError):  # the submitting process has gone, and its folder with it
        write_json(place / f"{number}.end", {**end, "host": platform.node(), "pid": os.getpid()})
    return None


@contextmanager
def _reporting(place: Path, number: int, event: threading.Event) -> Iterator[Callable[[float], object]]:
    """Give what takes a job's progress; set an event when the job is to stop, or nobody waits for it any more."""
    shares, over = [0.0], threading.Event()

    def watch() -> None:
        written, beat, seen = -1.0, -1.0, time.monotonic()
        while not over.wait(_POLL):
            with suppress(OSError):
                if shares[0] > written:
                    written = shares[0]
                    with whole(place / f"{number}.progress") as temporary:
                        temporary.write_text(str(written), encoding="utf-8")
            with suppress(OSError):
                latest = (place / "alive").stat().st_mtime
                if latest != beat:
                    beat, seen = latest, time.monotonic()
            if (place / "stop").exists() or time.monotonic() > seen + _ORPHANED:
                event.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda share: shares.__setitem__(0, share)
    finally:
        over.set()
        thread.join()


def _write_error(path: Path, error: Exception) -> None:
    """Write an error where it can be pickled."""
    with suppress(Exception):
        data = pickle.dumps(error)
        pickle.loads(data)
        with whole(path) as temporary:
            temporary.write_bytes(data)


def _read_error(path: Path, text: str) -> BaseException:
    """Return the error of a job, or one with its text where it could not be pickled."""
    with suppress(Exception):
        error = pickle.loads(path.read_bytes())
        if isinstance(error, BaseException):
            return error
    return RuntimeError(text)
