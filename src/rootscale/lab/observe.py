"""Callbacks that follow runs while they are made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rootscale.lab.trial import Trial

_log = logging.getLogger(__name__)


def silent(*told: object) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Observer:
    """Callbacks that follow runs.

    Args:
        progress: called with the label of a run, its number, the number of all runs (every seed of every kind is one),
            and how far it is, from 0 to 1.
        note: called with a sentence for the user; the default is a warning of `logging`.
        measured: called with the folder of a run and the `rootscale.lab.Trial` after each of its measurements, in the
            process that makes it. On Ray it has to be picklable.
        logged: called with the folder of a run of a user's loop after each row that it logs, and with whether it has
            ended, in the process that makes it.
    """

    progress: Callable[[str, int, int, float], object] = silent
    note: Callable[[str], object] = _log.warning
    measured: Callable[[Path, Trial], object] | None = None
    logged: Callable[[Path, bool], object] | None = None
