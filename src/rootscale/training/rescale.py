"""Change the batch size of a running PyTorch job: convert its live objects in place, all of them or none."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.training.live import Interval, Live, Size, Switch, is_reached
from rootscale.training.markers import PARTS, units_of
from rootscale.training.prepared import clip_change, prepare
from rootscale.training.reminders import remaining
from rootscale.training.restore import restore_live
from rootscale.training.targets import Rules, common_rule, find_targets
from rootscale.training.watch import is_newly_loaded, restore_call

__all__ = ["rescale_"]


def rescale_(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    kappa: float | None = None,
    *,
    batch_size: Size | tuple[Size, Size] | None = None,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    clip: float | None = None,
    rule: Rules = None,
    state: bool = True,
    interval: Interval | Sequence[Interval] = "step",
    forward_kappa: float | None = None,
    dry_run: bool = False,
) -> Changes:
    """Convert a run, at its start or in its middle, to ``kappa`` times its batch size, in place.

    Everything is checked first, and what fails nevertheless is rolled back: after an error nothing has changed. The
    caller changes what this function cannot see: the batch size itself, the number of steps left and every interval in
    steps (``/ kappa``), and the gradient clip (``* kappa^(-1/2)``). `Changes.remaining` names them.

    The run carries its units from then on, in the parameter groups of its optimizers (`rootscale.training.markers`), so
    that a checkpoint of it is not taken for one from before the change; `restore_` loads it.

    Args:
        optimizer: one that `rootscale.optimizers.FAMILIES` has a row for, of torch or of another library. A list, a
            dictionary, a container with ``optimizers`` or groups of several families are converted as a whole or not at
            all.
        kappa: new batch size over old one; any positive number.
        batch_size: instead of ``kappa``, the old and the new one, as in ``(16, 64)`` or, micro-batch x accumulation x
            workers, ``("16x1x1", "16x4x1")``. A checkpoint that says it is at the new one is only restored. Where the
            run carries its batch size, the new one alone will do.
        scheduler: the learning-rate scheduler (or several) that drives the optimizer (or one of them): any subclass of
            `torch.optim.lr_scheduler.LRScheduler` that sets its learning rates in ``step()``.
        model: the model (or several) whose BatchNorm momentum is to be converted.
        ema: a `torch.optim.swa_utils.AveragedModel` with torch's exponential averages, or any object with a ``decay``
            attribute, or several of them.
        clip: the largest gradient norm until now; that from now on is ``changes.clip``.
        rule: a rule or its text, for every optimizer: ``"sqrt"``, ``"with power"`` (``beta^kappa`` for the betas),
            ``"sqrt without v"``; None is each optimizer's own, ``sqrt`` for Adam, AdamW and RMSprop. A list has one for
            each optimizer, and a mapping one for each family that it names: ``{"muon": "normalized-linear"}``.
        state: whether the optimizer's state is converted too; without it the run is disturbed until the averages
            have forgotten the old batch size.
        interval: whether the scheduler is stepped with every optimizer ``step`` or once an ``epoch``; one for all
            schedulers, or one for each.
        forward_kappa: the same as ``kappa`` for the samples of one forward pass, which BatchNorm averages over; None is
            ``kappa``, or what the layouts of ``batch_size`` say; 1 is a change by gradient accumulation alone.
        dry_run: only check, and return what would be changed.

    Returns:
        What was changed and what is left to you; print it. ``changes.clip`` is the new clip, ``changes.steps_factor``
        the factor for the steps left, ``changes.flat()`` a dictionary for loggers. Of several optimizers,
        ``changes["optimizer 1: lr"]`` is that of the second one.

    Raises:
        TypeError: an object of a kind that cannot be converted; the message names those that can.
        ValueError: there is no valid value; the message has the largest kappa that has one. Or the optimizer was loaded
            from a run that had been converted, and `restore_` has to come first.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> changes = rescale_(optimizer, batch_size=(16, 64), clip=1.0)
    >>> changes["lr"].after, optimizer.param_groups[0]["lr"], changes.clip, changes.steps_factor
    (0.002, 0.002, 0.5, 0.25)
    """
    for name, value in (("state", state), ("dry_run", dry_run)):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
    live = Live(optimizer, scheduler, model, ema, interval)
    loaded = [one for one in live.given("optimizer") if isinstance(one, torch.optim.Optimizer) and is_newly_loaded(one)]
    if loaded and is_reached(batch_size, live.carried):
        return _restored(live, _made(kappa, batch_size, forward_kappa, live), rule, clip, dry_run)
    if loaded:
        raise ValueError(_already(loaded[0], live))
    switch = Switch.of(kappa, batch_size, forward_kappa, live.carried)
    prepared = prepare(live, switch, rule=rule, state=state, clip=clip)
    for message in prepared.changes.warnings:  # before anything is changed, for those who turn warnings into errors
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    if not dry_run:
        prepared.commit()
    return prepared.changes


def _made(kappa: float | None, batch_size: Any, forward_kappa: float | None, live: Live) -> Switch:
    """Return the change that a loaded run has made already; from its script's batch size, where none is given."""
    if not isinstance(batch_size, list | tuple):
        after = BatchSize.of(batch_size)
        batch_size = (after.at(float(after.total) / live.carried[0].kappa), after)
    return Switch.of(kappa, batch_size, forward_kappa)


def _restored(live: Live, switch: Switch, rule: Rules, clip: float | None, dry_run: bool) -> Changes:
    """Restore a run that is at the new batch size already; the clip and what is left to do are those of the change."""
    targets = find_targets(live.optimizer, rule)
    common = common_rule(targets)
    clips = () if clip is None else (clip_change(clip, common, switch.kappa),)
    restored = restore_live(live, dry_run=dry_run)
    left = remaining(live, switch, common, clip, targets)
    return replace(restored, kappa=switch.kappa, rule=common, rows=(*restored.rows, *clips), remaining=left)


def _already(optimizer: torch.optim.Optimizer, live: Live) -> str:
    """Return what to say of a run that was loaded from a converted one, and is not to be converted twice."""
    given = [part for part in PARTS if getattr(live, part.argument) is not None]
    return (
        f"this {type(optimizer).__name__} was loaded or copied from a run that had been converted already, to "
        f"{units_of(optimizer.param_groups)}: call {restore_call(given)} after load_state_dict. If that was this "
        "change, leave rescale_ out; if this is another one, let it follow restore_"
    )
