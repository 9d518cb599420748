"""Hugging Face accelerate: `rescale_` for what ``accelerator.prepare`` returned, and samples for the sample clock.

A prepared scheduler is stepped ``num_processes`` times for every optimizer step (unless batches are split), because its
length is counted in batches of one process. So its clock follows a change in the number of processes by itself, and
only the rest of a change of batch size is converted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch

from rootscale.changes import Change, Changes
from rootscale.hparams import positive
from rootscale.rules import RULES
from rootscale.training import rescale_, schedulers
from rootscale.training.sample_clock import SampleClock
from rootscale.units import UNITS

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.accelerate needs accelerate ({error}): pip install 'rootscale[accelerate]'"
    ) from error

__all__ = ["add_samples", "rescale"]


def add_samples(accelerator: Accelerator, optimizer: Any, samples: float) -> None:
    """Count the samples of a micro-batch, over all processes, for an optimizer on the sample clock.

    Call it on every process after ``accelerator.backward``; ``optimizer.step()`` takes what was counted since the last
    ``zero_grad``. Accelerate averages processes with equal weights, so unequal ones are refused: weigh the loss by
    `rootscale.training.samples.count_ranks`, and call ``add_samples`` of the optimizer itself.

    Args:
        accelerator: the one that prepared the optimizer.
        optimizer: what ``accelerator.prepare`` returned.
        samples: of this process.
    """
    bare = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
    if not isinstance(bare, SampleClock):
        raise TypeError(f"optimizer must be on the sample clock, got {type(bare).__name__}")
    counts = accelerator.gather(torch.tensor([float(samples)], device=accelerator.device))
    if not bool(counts.eq(samples).all()):
        raise ValueError(
            f"the processes have unequal samples ({', '.join(f'{n:g}' for n in counts.tolist())}), but their gradients "
            "are averaged with equal weights: multiply the loss by the weight of "
            "rootscale.training.samples.count_ranks, and call optimizer.optimizer.add_samples"
        )
    bare.add_samples(float(counts.sum()))


def rescale(
    optimizer: Any | Sequence[Any],
    kappa: float,
    *,
    scheduler: Any | Sequence[Any] | None = None,
    interval: Literal["step", "epoch"] | None = None,
    processes_before: int | None = None,
    **options: Any,
) -> Changes:
    """Convert a run under accelerate to ``kappa`` times its global batch size, in place; at its start or in its middle.

    Args:
        optimizer: what ``accelerator.prepare`` returned (or a bare one), one or several: all are converted or none.
        kappa: new global batch size over old one, counted over processes and accumulation.
        scheduler: what ``accelerator.prepare`` returned, one or several.
        interval: whether ``scheduler.step()`` is called with every optimizer ``step`` or once an ``epoch``. None is
            ``step``; schedulers that were prepared with ``step_scheduler_with_optimizer=False`` need it.
        processes_before: number of processes of the run that wrote the checkpoint; None is the present number. Call
            this function after ``accelerator.load_state``.
        options: the others of `rootscale.training.rescale_`: ``model``, ``ema``, ``rule``, ``state``,
            ``forward_kappa``, ``dry_run``.

    Returns:
        What was changed; print it.

    Raises:
        TypeError: an object of a kind that cannot be converted.
        ValueError: there is no valid value, or the scheduler's clock is not known. Nothing has changed then.
    """
    prepared: list[Any] = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    bare = [one.optimizer if isinstance(one, AcceleratedOptimizer) else one for one in prepared]
    several = list(scheduler) if isinstance(scheduler, list | tuple) else [] if scheduler is None else [scheduler]
    wrapped = [one for one in several if isinstance(one, AcceleratedScheduler)]
    inner: list[Any] = [one.scheduler if isinstance(one, AcceleratedScheduler) else one for one in several]
    if interval is None and any(not one.step_with_optimizer for one in wrapped):
        raise ValueError(
            "a scheduler prepared with step_scheduler_with_optimizer=False is stepped whenever you call it, so its "
            "clock is not known: give interval='step' (once per optimizer step) or interval='epoch'"
        )
    factor = 1.0
    if processes_before is not None:
        factor = positive("processes_before", processes_before) / AcceleratorState().num_processes
    with _belonging_to(bare, inner, prepared):
        changes = rescale_(bare, kappa, scheduler=inner, interval=interval or "step", **options)
    if factor == 1 or interval == "epoch" or options.get("dry_run"):
        return changes
    rows = []
    for one in wrapped:
        if one.step_with_optimizer and not one.split_batches:
            drives = [one.scheduler.optimizer in pair for pair in zip(bare, prepared, strict=True)].index(True)
            rows.append(_convert_clock(one.scheduler, factor, f"optimizer {drives}: " if len(bare) > 1 else ""))
    return replace(changes, rows=(*changes.rows, *rows))


def _convert_clock(scheduler: Any, factor: float, prefix: str) -> Change:
    """Convert the clock of a scheduler and nothing else: there and back, but back without the clock."""
    before = schedulers.ticks(scheduler, 1, "step")
    schedulers.rescale(scheduler, RULES["none"], factor, "step")()
    schedulers.rescale(scheduler, RULES["none"], 1 / factor, "epoch")()
    after = schedulers.ticks(scheduler, 1, "step")
    note = "accelerate steps it once for each process, and their number has changed"
    return Change(f"{prefix}{type(scheduler).__name__} clock", before, after, UNITS["steps"], note=note)


@contextmanager
def _belonging_to(bare: list[Any], inner: list[Any], prepared: list[Any]) -> Iterator[None]:
    """Let schedulers made after ``prepare``, which belong to the wrapper, belong to what is in it during the change."""
    moved = []
    for one in inner:
        for inside, wrapper in zip(bare, prepared, strict=True):
            if inside is not wrapper and getattr(one, "optimizer", None) is wrapper:
                one.optimizer = inside
                moved.append((one, wrapper))
    try:
        yield
    finally:
        for one, wrapper in moved:
            one.optimizer = wrapper
