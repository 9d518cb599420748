"""Hugging Face accelerate: a `Run` of what ``accelerator.prepare`` returned, and its trackers.

A prepared scheduler is stepped once for each process at every optimizer step (unless batches are split), because
accelerate takes its length to be counted in batches of one process. In a run its length is the script's: that of
``tuned_at``, whatever the number of processes is now.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping
from typing import Any, Literal

from torch.utils.data import DataLoader

from rootscale.batch_size import BatchSize
from rootscale.changes import ScalingWarning
from rootscale.noise import Noise
from rootscale.tracking import SAMPLES, Running, Tracked, above_noise, numbers
from rootscale.training.optimizers import bare_optimizers
from rootscale.training.run import Run, Size
from rootscale.verdict import Comparison

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.accelerate needs accelerate ({error}): pip install 'rootscale[accelerate]'"
    ) from error

__all__ = ["global_batch_size", "log", "run"]


def global_batch_size(accelerator: Accelerator, loader: DataLoader[Any]) -> BatchSize:
    """Return the samples of an optimizer step: per process x accumulation x processes.

    Args:
        accelerator: whose ``gradient_accumulation_steps`` is taken.
        loader: what ``accelerator.prepare`` returned.
    """
    total = getattr(loader, "total_batch_size", None)
    if not isinstance(total, int):
        raise ValueError(
            f"the batch size cannot be found in this {type(loader).__name__}: give a loader of accelerator.prepare, or "
            'the samples of an optimizer step over all processes, as batch_size=256 or "32x4x2"'
        )
    processes = int(accelerator.num_processes)
    return BatchSize(total // processes, int(accelerator.gradient_accumulation_steps), processes)


def run(
    accelerator: Accelerator,
    optimizer: Any,
    *,
    tuned_at: Size,
    batch_size: Size | DataLoader[Any] | None = None,
    scheduler: Any = None,
    interval: Literal["step", "epoch"] | None = None,
    **options: Any,
) -> Run:
    """Return a `Run` of prepared objects. ``accelerator.save_state`` and ``load_state`` need nothing else.

    >>> import torch
    >>> accelerator = Accelerator(cpu=True)
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> loader = DataLoader(torch.randn(64, 2), batch_size=16)
    >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    >>> follow = run(accelerator, optimizer, tuned_at=4, batch_size=loader)
    >>> follow.kappa, follow.values()["lr"], optimizer.param_groups[0]["lr"]
    (4.0, 0.002, 0.001)

    Args:
        accelerator: the one that prepared them.
        optimizer: what ``accelerator.prepare`` returned, or bare ones; one or several.
        tuned_at: the batch size that the script's numbers belong to. As a layout, ``"32x1x8"``, it says that the
            schedule's length is that of a script of accelerate on so many processes, which steps it once for each; as a
            number, that the length is in optimizer steps.
        batch_size: that of now, over processes and accumulation; or the prepared data loader, from which it is found.
        scheduler: what ``accelerator.prepare`` returned, or bare ones; one or several.
        interval: ``"epoch"`` if the loop steps its schedulers once an epoch. None is every optimizer step for prepared
            ones, and found from the calls for others.
        options: the others of `Run`: ``model``, ``ema``, ``rule``, ``loss``.
    """
    tuned, processes = BatchSize.of(tuned_at), int(AcceleratorState().num_processes)
    found = global_batch_size(accelerator, batch_size) if isinstance(batch_size, DataLoader) else batch_size
    if isinstance(found, BatchSize) and found.plain and not tuned.laid_out:
        found = BatchSize(found.total)
    given = scheduler if isinstance(scheduler, list | tuple) else [] if scheduler is None else [scheduler]
    wrapped = [held for held in given if isinstance(held, AcceleratedScheduler)]
    made = Run(
        [_inner(held) for held in _prepared(optimizer)],
        tuned_at=tuned,
        batch_size=found,
        scheduler=None if scheduler is None else [_inner(held) for held in given],
        interval=interval,
        **options,
    )
    driven = {id(held.scheduler): held for held in made.schedulers}
    for held in wrapped:
        if held.step_with_optimizer and interval != "epoch":
            one = driven[id(held.scheduler)]
            one.interval = "step"
            one.per_step = float(1 if held.split_batches else tuned.workers)
            one.per_call = one.per_step / (1 if held.split_batches else processes)
    return made


def log(
    accelerator: Accelerator,
    *found: Tracked | Running | Noise | Comparison | Mapping[str, float],
    samples: float,
    batch_size: float | None = None,
) -> None:
    """Log what was found to all trackers of an accelerator, at the number of samples seen as the step.

    >>> log(Accelerator(cpu=True), {"loss": 0.5}, samples=4096)

    Args:
        accelerator: made with ``log_with=...``, after ``init_trackers``.
        found: a `Run`, for what its steps really use; what a `NoiseMeter` estimated, a verdict, or numbers by name.
        samples: seen until now, over all processes: ``run.samples``. As the step they let curves of different batch
            sizes continue each other.
        batch_size: over processes and accumulation; if it exceeds a noise scale that is logged, that is a warning.
    """
    accelerator.log({**numbers(*found), SAMPLES: float(samples)}, step=int(samples))
    for one in found:
        message = above_noise(one, batch_size) if isinstance(one, Noise) and batch_size is not None else ""
        if message and accelerator.is_main_process:
            python_warnings.warn(message, ScalingWarning, stacklevel=2)


def _prepared(optimizer: Any) -> list[Any]:
    """Return the optimizers that were given; one that is prepared holds another, and is no container of several."""
    return [optimizer] if isinstance(optimizer, AcceleratedOptimizer) else list(bare_optimizers(optimizer))


def _inner(prepared: Any) -> Any:
    """Return what ``accelerator.prepare`` was given."""
    if isinstance(prepared, AcceleratedOptimizer):
        return _inner(prepared.optimizer)
    return prepared.scheduler if isinstance(prepared, AcceleratedScheduler) else prepared
