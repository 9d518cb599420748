"""What the nets of ``transformers`` have in common.

Their layers are called one by one, since the library's own ``forward`` looks at the values of masks, which cannot be
part of a CUDA graph.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

__all__ = ["filled", "first", "transformers_models"]


def transformers_models(module: str) -> Any:
    try:
        return importlib.import_module(f"transformers.models.{module}")
    except ImportError as error:
        raise ValueError(
            f"language models need transformers ({error}); pip install 'rootscale[transformers]'"
        ) from None


def first(out: Any) -> Tensor:
    """What a layer gives: a tensor, or in some versions of the library the first of several."""
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found


def filled(vocabulary: int) -> int:
    return vocabulary if vocabulary <= 1024 else -(-vocabulary // 64) * 64
