"""Hugging Face accelerate: `rescale_` for what ``accelerator.prepare`` returned, and samples for the sample clock.

A prepared scheduler is stepped ``num_processes`` times for every optimizer step (unless batches are split), because its
length is counted in batches of one process. So its clock follows a change in the number of processes by itself, and
only the rest of a change of batch size is converted here.
"""

from __future__ import annotations

import math
import warnings as python_warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.hparams import positive
from rootscale.noise import Noise
from rootscale.rules import RULES
from rootscale.tracking import SAMPLES, Tracked, above_noise, numbers
from rootscale.training import rescale_, restore_, schedulers, track_
from rootscale.training.sample_clock import SampleClock
from rootscale.training.scheduler_changes import rescale_scheduler, ticks
from rootscale.training.targets import several
from rootscale.units import UNITS
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

Lengths = Literal["fixed", "per process"]

__all__ = ["add_samples", "log", "rescale", "restore", "track"]


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
    kappa: float | None = None,
    *,
    scheduler: Any | Sequence[Any] | None = None,
    interval: Literal["step", "epoch"] | None = None,
    processes_before: int | None = None,
    lengths: Lengths | None = None,
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
        lengths: of the functions in a `LambdaLR`, which no checkpoint holds, where the number of processes has changed:
            ``"fixed"``, or ``"per process"`` if the script multiplies them by ``accelerator.num_processes``. None finds
            out from the learning rate of the checkpoint.
        options: the others of `rootscale.training.rescale_`: ``batch_size`` instead of ``kappa``, ``model``, ``ema``,
            ``clip``, ``rule``, ``state``, ``forward_kappa``, ``dry_run``.

    Returns:
        What was changed; print it.

    Raises:
        TypeError: an object of a kind that cannot be converted.
        ValueError: there is no valid value, or the scheduler's clock is not known. Nothing has changed then.
    """
    prepared = several(optimizer)
    bare = [_bare(one) for one in prepared]
    given = several(scheduler)
    wrapped = [one for one in given if isinstance(one, AcceleratedScheduler)]
    inner = [_inner(one) for one in given]
    if interval is None and any(not one.step_with_optimizer for one in wrapped):
        raise ValueError(
            "a scheduler prepared with step_scheduler_with_optimizer=False is stepped whenever you call it, so its "
            "clock is not known: give interval='step' (once per optimizer step) or interval='epoch'"
        )
    factor = 1.0
    if processes_before is not None:
        factor = positive("processes_before", processes_before) / AcceleratorState().num_processes
    moved = [one for one in wrapped if one.step_with_optimizer and not one.split_batches and interval != "epoch"]
    follows = [factor != 1 and _follows(one.scheduler, factor, lengths) for one in moved]
    with _belonging_to(bare, inner, prepared):
        changes = rescale_(bare, kappa, scheduler=inner, interval=interval or "step", **options)
    if factor == 1 or options.get("dry_run"):
        return changes
    rows = []
    for one, place in zip(moved, follows, strict=True):
        drives = [one.scheduler.optimizer in pair for pair in zip(bare, prepared, strict=True)].index(True)
        convert = _convert_place if place else _convert_clock
        rows.append(convert(one.scheduler, factor, f"optimizer {drives}: " if len(bare) > 1 else ""))
    return replace(changes, rows=(*changes.rows, *rows))


def restore(
    optimizer: Any | Sequence[Any],
    *,
    scheduler: Any | Sequence[Any] | None = None,
    model: Any = None,
    ema: Any = None,
) -> Changes:
    """Bring a run that ``accelerator.load_state`` has loaded to the units it was saved in; see `restore_`.

    Args:
        optimizer, scheduler, model, ema: what ``accelerator.prepare`` returned, or bare ones; one or several.
    """
    prepared = several(optimizer)
    bare = [_bare(one) for one in prepared]
    inner = None if scheduler is None else [_inner(one) for one in several(scheduler)]
    with _belonging_to(bare, inner or [], prepared):
        return restore_(bare, scheduler=inner, model=model, ema=ema)


def track(optimizer: Any | Sequence[Any], batch_size: int, *, scheduler: Any | Sequence[Any] | None = None) -> None:
    """Declare the global batch size that a run under accelerate starts with; see `track_`.

    Args:
        optimizer, scheduler: what ``accelerator.prepare`` returned, or bare ones; one or several.
        batch_size: samples per optimizer step, over processes and accumulation.
    """
    prepared = several(optimizer)
    bare, inner = [_bare(one) for one in prepared], [_inner(one) for one in several(scheduler)]
    with _belonging_to(bare, inner, prepared):
        track_(bare, batch_size, scheduler=inner)


def log(
    accelerator: Accelerator,
    *found: Tracked | Noise | Comparison | Mapping[str, float],
    samples: int,
    batch_size: float | None = None,
) -> None:
    """Log what was found to all trackers of an accelerator, at the number of samples seen as the step.

    >>> log(Accelerator(cpu=True), {"loss": 0.5}, samples=4096)

    Args:
        accelerator: made with ``log_with=...``, after ``init_trackers``.
        found: what `rescale` returned, what a `NoiseMeter` estimated, a verdict, or numbers by name.
        samples: seen until now, over all processes. As the step they let curves before and after a change of batch
            size continue each other, also where the change follows a restart.
        batch_size: over processes and accumulation; if it exceeds a noise scale that is logged, that is a warning.
    """
    accelerator.log({**numbers(*found), SAMPLES: float(samples)}, step=int(samples))
    for one in found:
        message = above_noise(one, batch_size) if isinstance(one, Noise) and batch_size is not None else ""
        if message and accelerator.is_main_process:
            python_warnings.warn(message, ScalingWarning, stacklevel=2)


def _bare(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


def _inner(scheduler: Any) -> Any:
    return scheduler.scheduler if isinstance(scheduler, AcceleratedScheduler) else scheduler


def _follows(scheduler: Any, factor: float, lengths: Lengths | None) -> bool:
    """Return whether a scheduler's functions have lengths that follow the number of processes.

    Those of torch's schedulers are loaded with their states. A function is not: it is what the script says now. If its
    lengths are fixed, it gives the checkpoint's learning rate at the checkpoint's place; if the script multiplies them
    by the number of processes, at a place multiplied alike.
    """
    if lengths not in (None, "fixed", "per process"):
        raise ValueError(f"lengths must be 'fixed' or 'per process', got {lengths!r}")
    holders = [one for one in schedulers.nested(scheduler) if isinstance(one, LambdaLR | MultiplicativeLR)]
    if not holders or lengths == "fixed":
        return False
    name = schedulers.own_name(holders[0])
    if holders != [scheduler] or isinstance(scheduler, MultiplicativeLR):
        raise ValueError(
            f"the functions of this {name} are not in the checkpoint, and it cannot be told whether their lengths "
            "follow the number of processes: keep those of the run as it was and give lengths='fixed'"
        )
    if lengths == "per process":
        return True
    now = schedulers.own_learning_rates(scheduler)
    functions = list(zip(scheduler.base_lrs, scheduler.lr_lambdas, now, strict=True))
    fixed, follow = (
        all(math.isclose(base * of(place), rate, rel_tol=1e-6, abs_tol=1e-9 * base) for base, of, rate in functions)
        for place in (scheduler.last_epoch, scheduler.last_epoch / factor)
    )
    if fixed == follow:
        found = "at both" if fixed else "at neither"
        raise ValueError(
            f"the function of this {name} gives the checkpoint's learning rate {found} of the places that the numbers "
            "of processes admit: give lengths='fixed' if its lengths are those of the run as it was, or "
            "lengths='per process' if the script multiplies them by accelerator.num_processes"
        )
    return follow


def _convert_place(scheduler: Any, factor: float, prefix: str) -> Change:
    """Convert the place of a scheduler whose function has been stretched with the number of processes."""
    before = scheduler.last_epoch
    after = before / factor
    schedulers.wrap(scheduler)
    scheduler.last_epoch = math.floor(after + 1e-9)
    scheduler._rootscale_owed += max(0.0, after - scheduler.last_epoch)
    note = "its function's lengths are multiplied by the number of processes, which has changed"
    return Change(f"{prefix}{schedulers.own_name(scheduler)} place", before, after, UNITS["steps"], note=note)


def _convert_clock(scheduler: Any, factor: float, prefix: str) -> Change:
    """Convert the clock of a scheduler and nothing else: there and back, but back without the clock."""
    before = ticks(scheduler, 1, "step")
    rescale_scheduler(scheduler, RULES["none"], factor, "step")()
    rescale_scheduler(scheduler, RULES["none"], 1 / factor, "epoch")()
    after = ticks(scheduler, 1, "step")
    note = "accelerate steps it once for each process, and their number has changed"
    return Change(f"{prefix}{schedulers.own_name(scheduler)} clock", before, after, UNITS["steps"], note=note)


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
