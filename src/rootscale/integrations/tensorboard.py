"""TensorBoard's event files of runs (extra ``tensorboard``): ``Observer(measured=EventFiles())``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rootscale.lab import Run

__all__ = ["EventFiles"]


class EventFiles:
    """Writes the mean over replicas of every test function to event files in the folder of the run.

    The step is the number of samples seen. Points after the one from which a run was resumed are written anew.
    """

    def __init__(self) -> None:
        self._writers: dict[Path, Any] = {}
        _writer_class()  # says what is missing before anything is run

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files behind: every process has its own."""
        return {"_writers": {}}

    def __call__(self, place: Path, run: Run) -> None:
        """Write the latest measurement."""
        point = run.measured - 1
        samples = run.settings.grid[point]
        if place not in self._writers:
            self._writers[place] = _writer_class()(str(place), purge_step=samples if point else None)
        for name, rows in run.values.items():
            kept = [value for value in rows[point] if np.isfinite(value)]
            if kept:
                self._writers[place].add_scalar(name, sum(kept) / len(kept), samples)
        self._writers[place].flush()


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard's files need the extra 'tensorboard': pip install 'rootscale[tensorboard]'"
        ) from None
    return SummaryWriter
