"""What a run takes: its seconds, those of them that are not training, and the memory of a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

#: Steps at the beginning of a stage in which a model may be compiled and a CUDA graph is recorded.
SETTLING_STEPS = 4
_TIMES = ("seconds", "measuring", "settling")


class Spent:
    """Count the seconds of a run. A GPU works on after a step was launched; it is waited for where a count begins.

    Args:
        device: where the run is trained.

    Attributes:
        seconds: all of them.
        measuring: of them, those in which test functions were measured.
        settling: of them, those of the first `SETTLING_STEPS` steps of each stage.
        memory: the most bytes of a GPU that were in use in those steps, data included; 0 on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds, self.measuring, self.settling, self.memory = 0.0, 0.0, 0.0, 0
        self._device, self._steps = device, 0

    def begin_stage(self) -> None:
        """Expect that the next steps compile and record."""
        self._steps = 0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count what is measured; the steps that a GPU is still at are training."""
        before = time.perf_counter()
        self._wait()
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self.measuring += now - began
        self.seconds += now - before

    @contextmanager
    def stepped(self, first: bool = False) -> Iterator[None]:
        """Count a step, which may be the first of a stage."""
        if first:
            self.begin_stage()
        before, settles = time.perf_counter(), self._steps < SETTLING_STEPS
        if settles:
            self._wait()
            began = time.perf_counter()
            if not self._steps:
                self._forget_peak()
        yield
        if settles:
            self._wait()
            self.settling += time.perf_counter() - began
            self.memory = max(self.memory, self._peak())
        self._steps += 1
        self.seconds += time.perf_counter() - before

    def state_dict(self) -> dict[str, float]:
        """Return the counts."""
        return {name: getattr(self, name) for name in _TIMES}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from counts; older versions have fewer."""
        for name in _TIMES:
            setattr(self, name, state.get(name, 0.0))
        self.begin_stage()

    def to_dict(self) -> dict[str, float]:
        """Return the counts for a record, and when they were taken (seconds since 1970)."""
        rounded = {name: round(getattr(self, name), 3) for name in _TIMES}
        return {**rounded, "memory": self.memory, "ended": round(time.time(), 1)}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forget_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
