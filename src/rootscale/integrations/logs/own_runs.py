"""Runs of the lab: a saved `Trajectory`, or the folder of a run that holds one."""

from __future__ import annotations

from pathlib import Path

from rootscale.logs import Log, as_logs
from rootscale.trajectory import Trajectory

__all__ = ["detect", "read"]


def detect(path: Path) -> bool:
    """Return whether it is a trajectory, or the folder of a run."""
    return path.suffix == ".npz" if path.is_file() else (path / "trajectory.npz").is_file()


def read(path: Path) -> list[Log]:
    """Read a log for each replica."""
    return as_logs(str(path), Trajectory.load(path if path.is_file() else path / "trajectory.npz"))
