"""Versions and hardware, as they are recorded with every result."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from rootscale._version import __version__

__all__ = ["environment", "processor"]


def environment(device: str) -> dict[str, Any]:
    """Return the versions of what computes, and the name of the hardware it runs on."""
    threads = torch.get_num_threads()
    hardware = f"{processor()}, {os.cpu_count()} cores, {threads} {'thread' if threads == 1 else 'threads'}"
    if torch.device(device).type == "cuda":
        try:
            hardware = torch.cuda.get_device_name(device)
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"there is no device {device} for torch ({error}); cpu is always there") from None
    versions = {"rootscale": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"versions": {**versions, "numpy": np.__version__}, "hardware": hardware}


def processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
