"""Versions and hardware, as they are recorded with every result."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from rootscale._version import __version__


def device_of(name: str) -> torch.device:
    """Return the device of this name, which another machine may have."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be one of torch, such as cpu or cuda, got {name!r}") from None


def device_here(device: str) -> torch.device:
    """Return the device of this name, which has to be one of this machine's."""
    here = device_of(device)
    if here.type == "cuda":
        try:
            torch.cuda.get_device_name(here)
        except (AssertionError, RuntimeError) as error:
            raise ValueError(f"there is no device {device} for torch ({error}); cpu is always there") from None
    return here


def environment(device: str) -> dict[str, Any]:
    """Return the versions of what computes, and the name of the hardware it runs on."""
    threads = torch.get_num_threads()
    hardware = f"{processor()}, {os.cpu_count()} cores, {threads} {'thread' if threads == 1 else 'threads'}"
    if device_here(device).type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    versions = {"rootscale": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"versions": {**versions, "numpy": np.__version__}, "hardware": hardware}


def processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
