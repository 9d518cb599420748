"""Runs of a sweep on a Ray cluster (extra ``ray``): `rootscale.lab.sweep` with ``engine="ray"``.

Every run is a Ray task. A run whose worker is lost is started again elsewhere and goes on from its checkpoint; what is
finished is in the sweep's folder, which all nodes have to see, and is never run twice. So a sweep may be moved between
Ray and this machine's processes at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rootscale.lab.pool import Job

__all__ = ["run_all"]


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    on_progress: Callable[[int, float], object],
    interrupted: threading.Event,
    *,
    address: str | None = None,
    gpus: float = 0.0,
    retries: int = 3,
) -> None:
    """Run all jobs, as many at a time as the cluster has room for.

    Args:
        jobs: as for `rootscale.lab.pool.run_all`.
        folder: of the sweep; the workers must see it.
        on_progress: called with the number of a job that is finished, and 1.
        interrupted: an event that asks to stop; jobs that are under way keep their checkpoints.
        address: of the cluster; None is the one this process is connected to, or a new one on this machine.
        gpus: that one run takes.
        retries: how often a run is started again whose worker was lost.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("a sweep on Ray needs the extra 'ray': pip install 'rootscale[ray]'") from None
    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / ".seen-by-all"
    token.touch()
    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=retries)(_work)
    waiting = {remote.remote(job, str(token)): number for number, job in enumerate(jobs)}
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=0.5)
            if interrupted.is_set():
                raise KeyboardInterrupt
            for reference in done:
                number = waiting.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.WorkerCrashedError:
                    raise RuntimeError(f"a run lost its worker more than {retries} times") from None
                on_progress(number, 1.0)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        token.unlink(missing_ok=True)


def _work(job: Job, token: str) -> None:
    """On a worker."""
    import torch

    if not Path(token).exists():
        raise ValueError(
            f"a worker of the Ray cluster does not see the folder {Path(token).parent}: keep the sweep on a file "
            "system that all nodes share"
        )
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    job(lambda share: None, threading.Event())
