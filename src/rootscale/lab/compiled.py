"""``torch.compile`` and cuDNN's search for algorithms, each used where it helps and left where it fails."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Batches up to this one try all of cuDNN's algorithms for their convolutions.
SHORT_TRY = 1024


def can_compile() -> bool:
    """Return whether torch.compile has what it needs, and warn where not."""
    if importlib.util.find_spec("triton") is None:
        warnings.warn("torch.compile needs triton, which is missing: the model is run as it is", stacklevel=3)
        return False
    return True


def try_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function through ``torch.compile``; where that fails it warns once and is run as it is."""
    now = torch.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        nonlocal now
        if now is function:
            return function(*args)
        try:
            return now(*args)
        except Exception as error:
            result = function(*args)  # raises the error again where it is the function's own
            reason = next((line for line in reversed(str(error).splitlines()) if "Error" in line), type(error).__name__)
            warnings.warn(f"torch.compile failed, which costs speed only: {reason.strip()}", stacklevel=2)
            now = function
            return result

    return call


@contextmanager
def fastest_convolutions(batch: int) -> Iterator[None]:
    """Let cuDNN try its algorithms for a convolution the first time it comes; a graph keeps the one it found.

    It tries all of them for small batches, where a try is short and the best may not be among the first ten.
    """
    cudnn: Any = torch.backends.cudnn
    new = {"benchmark": True} | ({"benchmark_limit": 0} if batch <= SHORT_TRY and cudnn.is_available() else {})
    before = {name: getattr(cudnn, name) for name in new}
    try:
        for name, value in new.items():
            setattr(cudnn, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(cudnn, name, value)
