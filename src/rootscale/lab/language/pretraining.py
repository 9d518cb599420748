"""Pre-training to a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rootscale.files import whole
from rootscale.lab.engine import Run, Settings, Variant
from rootscale.lab.task import Task

__all__ = ["pretrain"]


def pretrain(
    task: Task,
    variant: Variant,
    seed: int,
    settings: Settings,
    path: str | os.PathLike[str],
    *,
    stop: Callable[[], bool] = lambda: False,
    every: float = 60.0,
) -> bool:
    """Train a model and store its parameters in a file; what was begun is gone on with.

    Args:
        task, variant, seed, settings: of the run (`rootscale.lab.Run`).
        path: of the file; beside it are a checkpoint while it runs, and its trajectory (.npz) at the end.
        stop: asked after every step; if it says so, a checkpoint is written and the rest is left for another time.
        every: seconds between checkpoints.

    Returns:
        Whether the file is there.
    """
    path = Path(path)
    if path.exists():
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = path.with_suffix(".checkpoint")
    run = Run(task, variant, [seed], settings)
    if checkpoint.exists():
        run.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    saved = time.monotonic()
    with torch.random.fork_rng():
        while not run.done:
            run.advance()
            stopping = stop()
            if stopping or time.monotonic() - saved > every:
                with whole(checkpoint) as temporary:
                    torch.save(run.state_dict(), temporary)
                saved = time.monotonic()
            if stopping:
                return False
    if None not in run.diverged:
        raise ValueError(f"the run {task.name} at {variant.label(task.plan)} diverged: there is no model to go on with")
    run.trajectory().save(path.with_suffix(".npz"))
    with whole(path) as temporary:
        torch.save({name: value.cpu() for name, value in run.learner.replica(0).state_dict().items()}, temporary)
    checkpoint.unlink(missing_ok=True)
    return True
