"""An executor for sweeps and checks on a Ray cluster (extra ``ray``): ``check(task, [4], execute=OnRay(), store=...)``.

Every job is a Ray task. A job whose worker is lost is started again elsewhere and resumes from its checkpoint. Finished
runs are in the folder of the sweep, which all nodes have to see, and are never made twice: a sweep may be moved between
Ray and this machine's processes at any time.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.files import LOADED
from rootscale.lab.execute import TOGETHER
from rootscale.lab.stopping import Deadline, Job, Stop, UnfinishedError, held_interrupts

__all__ = ["OnRay"]

#: Between looks at jobs that are under way, in seconds.
LOOK = 0.5
#: For workers to write their checkpoints after the deadline, in seconds.
GRACE = 60.0


@dataclass(frozen=True)
class OnRay:
    """Runs jobs on a Ray cluster, as many at a time as it has room for: `rootscale.lab.execute.Execute`.

    Args:
        address: of the cluster; None is the one this process is connected to, or a new one on this machine.
        gpus: that one job takes.
        retries: how often a job is started again whose worker was lost.
        together: most seeds that one job trains in one program.
        deadline: when jobs stop.
    """

    address: str | None = None
    gpus: float = 0.0
    retries: int = 3
    together: int = TOGETHER
    deadline: Deadline = Deadline()

    def workers(self) -> int:
        """Return how many jobs the cluster has room for: one for each CPU, or as many as share its GPUs."""
        resources = self._connected().cluster_resources()
        room = resources.get("GPU", 0.0) / self.gpus if self.gpus else resources.get("CPU", 1.0)
        return max(1, int(room))

    def run(
        self,
        jobs: Sequence[Job],
        folder: Path,
        on_progress: Callable[[int, float], object],
        interrupted: threading.Event | None = None,
    ) -> None:
        """Run all jobs; see `rootscale.lab.execute.Execute.run`."""
        if interrupted is None:
            with held_interrupts() as event:
                return self.run(jobs, folder, on_progress, event)
        ray = self._connected()
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        stop = Stop(interrupted, self.deadline)
        stop.end()
        token = folder / ".seen-by-all"
        token.touch()
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(LOADED):  # a worker could not import it
                ray.cloudpickle.register_pickle_by_value(module)
        remote: Any = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=self.retries)(_work)
        left = None if math.isinf(self.deadline.at) else self.deadline.left  # the clocks of machines differ
        waiting = {remote.remote(job, str(token), left): number for number, job in enumerate(jobs)}
        finished = 0
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), timeout=LOOK)
                for reference in done:
                    number = waiting.pop(reference)
                    with suppress(UnfinishedError):  # the others are writing their checkpoints
                        self._result(ray, reference)
                        on_progress(number, 1.0)
                        finished += 1
                if interrupted.is_set() or self.deadline.at + GRACE < time.monotonic():
                    stop.end()
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
            token.unlink(missing_ok=True)
        if finished < len(jobs):
            stop.end()
        return None

    def _result(self, ray: Any, reference: Any) -> None:
        try:
            ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.WorkerCrashedError:
            raise RuntimeError(f"a run lost its worker more than {self.retries} times") from None

    def _connected(self) -> Any:
        try:
            import ray
        except ImportError:
            raise ValueError("a sweep on Ray needs the extra 'ray': pip install 'rootscale[ray]'") from None
        if not ray.is_initialized():
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False)
        return ray


def _work(job: Job, token: str, seconds: float | None) -> None:
    """Run a job on a worker."""
    import torch

    if not Path(token).exists():
        raise ValueError(
            f"a worker of the Ray cluster does not see the folder {Path(token).parent}: keep the sweep on a file "
            "system that all nodes share"
        )
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    job(lambda share: None, Stop(threading.Event(), Deadline.after(seconds)))
