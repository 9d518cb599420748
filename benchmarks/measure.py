"""Time and memory of a call, on a CPU or a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def clock(function: Callable[[], object], device: str) -> float:
    """Seconds."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(function: Callable[[], object], device: str) -> int:
    """The extra memory of tensors at the worst moment, in bytes."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        function()
    events: Any = trace.profiler.kineto_results.events()
    sizes = [int(event.nbytes()) for event in events if event.name() == "[memory]"]
    return max(accumulate(sizes, initial=0))
