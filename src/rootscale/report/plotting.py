"""What all PNG and PDF figures have in common: matplotlib where it is installed, plain axes, files without dates.

matplotlib is an extra (``pip install 'rootscale[plot]'``) and is imported when a figure is drawn.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rootscale.files import whole
from rootscale.report.styles import GRID

__all__ = ["need_matplotlib", "plain_axes", "save_figure"]


def need_matplotlib() -> Any:
    """Return matplotlib, drawing to files; raise a `ValueError` that says how to install it where it is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise ValueError("figures need matplotlib, which is not installed; pip install 'rootscale[plot]'") from None
    importlib.import_module("matplotlib.figure")
    return matplotlib


def plain_axes(axes: Iterable[Any]) -> None:
    """Leave the axes two spines and a pale grid."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color=GRID, linewidth=0.6)


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int) -> Path:
    """Write a PNG or PDF, whole or not at all; without dates, so that the same figure gives the same file."""
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None}
    with whole(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
    return path
