"""Tensors that are spread over several processes."""

from __future__ import annotations

from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a DTensor; another tensor is returned as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
