"""Bring a run that was loaded the ordinary way to the units that it was saved in, and declare units from the start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.format import show
from rootscale.training import schedulers
from rootscale.training.averages import averaging_layers, ema_edits, norm_edits
from rootscale.training.decays import restoring_factor
from rootscale.training.drivers import check_restored
from rootscale.training.edits import Edit, free_keys, units_edit
from rootscale.training.live import Live
from rootscale.training.markers import PARTS, Carried, same, units_of
from rootscale.training.prepared import Prepared
from rootscale.training.scheduler_changes import check_scheduler, save_scheduler, ticks
from rootscale.training.scheduler_state import FRAMES, frames_kappa, unseal
from rootscale.training.standing import left_behind
from rootscale.training.state import StateScaling
from rootscale.training.targets import common_rule, find_targets, match_schedulers
from rootscale.training.watch import missing_parts, restore_call, save_watch, settle, was_given
from rootscale.units import UNITS

__all__ = ["restore_", "restore_live", "track_"]


def restore_(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
) -> Changes:
    """Bring what no ``state_dict`` restores to the units of a run that was saved after `rescale_`, in place.

    Call it after every ``load_state_dict``, on objects made as the script makes them. A run that was never converted
    stays as it is, and so does what is in the right units already. An optimizer's own numbers come with its state;
    its scheduler, BatchNorm's momentum and the decay of parameter averages are brought to the same units here.

    Args:
        optimizer, scheduler, model, ema: the same as for `rescale_`; an empty list says that there is none any more.

    Returns:
        What was changed; its ``kappa`` is that of the run, from its script's batch size to that of the checkpoint.

    Raises:
        ValueError: something was converted with the optimizer and is not given, or its state was not loaded. Nothing
            has changed then.

    >>> import torch
    >>> from rootscale.training import rescale_
    >>> def build():
    ...     optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3, betas=(0.98, 0.999))
    ...     return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    >>> optimizer, scheduler = build()
    >>> changes = rescale_(optimizer, 4, scheduler=scheduler)
    >>> saved = optimizer.state_dict(), scheduler.state_dict()

    >>> optimizer, scheduler = build()
    >>> optimizer.load_state_dict(saved[0]); scheduler.load_state_dict(saved[1])
    >>> restore_(optimizer, scheduler=scheduler).kappa
    4.0
    """
    return restore_live(Live(optimizer, scheduler, model, ema))


def restore_live(live: Live, *, dry_run: bool = False) -> Changes:
    """Do as `restore_` does, for the objects of a run; or only check and return what would be changed."""
    targets = find_targets(live.optimizer, None)
    common = common_rule(targets)
    driving = match_schedulers(targets, live.given("scheduler"), "step")
    carried = units_of(targets[0].optimizer.param_groups)
    edits: list[Edit] = []
    for target, driven in ((one, by) for one, by in zip(targets, driving, strict=True) if one.leads):
        own = units_of(target.optimizer.param_groups)
        if not same(own.kappa, carried.kappa):
            raise ValueError(
                f"the optimizers are in different units, kappa = {show(carried.kappa)} and {show(own.kappa)}; restore "
                "each of them with its own scheduler, model and ema"
            )
        if not driven and live.given("scheduler") and not same(own.parts.get("scheduler", 1.0), 1.0):
            raise ValueError(
                f"{target.prefix}this {type(target.optimizer).__name__} was converted ({own}) together with a "
                "scheduler, and none of those given drives it: give that one too"
            )
        edits += [_scheduler_edit(one, own) for one, _ in driven]
        edits.append(_settled(live, target.optimizer, own))
        if own.converted:
            check_restored(target.optimizer, [one for one, _ in driven])
    layers = averaging_layers(live.given("model"))
    edits += norm_edits(layers, common, lambda tag: (carried.parts.get("model", 1.0) / tag, ""))
    messages = [*_left_behind(live, carried)]
    for i, ema in enumerate(live.given("ema")):
        factor, message = restoring_factor(ema, i, carried, common)
        edits += ema_edits(ema, common, factor, carried.parts.get("ema", 1.0))
        messages += [message] if message else []
    rows = tuple(row for edit in edits for row in edit.changes if row.before != row.after)
    title = f"restored at kappa = {show(carried.kappa)}"
    restored = Prepared(
        Changes(carried.kappa, common, rows, tuple(messages), title=title), tuple(edits), StateScaling([])
    )
    if not dry_run:
        for message in messages:
            warnings.warn(message, ScalingWarning, stacklevel=3)
        restored.commit()
    return restored.changes


def _left_behind(live: Live, carried: Carried) -> Iterator[str]:
    """Yield what is given now but was not converted with the run."""
    for argument in ("scheduler", "ema"):  # BatchNorm may have stayed as it is, if it was accumulation that changed
        lag = carried.kappa / carried.parts.get(argument, 1.0)
        if live.given(argument) and not same(lag, 1.0):
            yield left_behind(argument, lag)


def _scheduler_edit(scheduler: Any, carried: Carried) -> Edit:
    """Return the edit that makes an ordinary scheduler with a converted state step in that state's units."""
    name, wanted = type(scheduler).__name__, carried.parts.get("scheduler", 1.0)
    for one in schedulers.nested(scheduler):
        unseal(vars(one))  # refuses what was loaded in part
    there = frames_kappa(vars(scheduler).get(FRAMES, ()))
    if not same(there, wanted):
        raise ValueError(
            f"this {name} is at kappa = {show(there)}, and the optimizer was converted with one at kappa = "
            f"{show(wanted)}: {_mismatch(there, wanted)}"
        )
    if not schedulers.is_loaded(scheduler):
        return Edit((), lambda: None, partial(save_scheduler, scheduler))
    clock = Change(f"{name} clock", 1.0, ticks(scheduler, 1, "step"), UNITS["steps"])
    return Edit((clock,), partial(schedulers.wrap, scheduler), partial(save_scheduler, scheduler))


def _mismatch(there: float, wanted: float) -> str:
    """Return what to do where a scheduler and its optimizer are in different units."""
    load = "load both of their states before restore_"
    if same(there, 1.0):
        return (
            f"{load}; that of the scheduler seems to be missing. If the scheduler was made after the change, for the "
            "new batch size, it has nothing to restore: give scheduler=[]"
        )
    if same(wanted, 1.0):
        return f"{load}; that of the optimizer seems to be missing"
    return "their states are of different checkpoints; load both from the same one"


def _settled(live: Live, optimizer: torch.optim.Optimizer, carried: Carried) -> Edit:
    """Return the edit that notes what was restored, or refuse if something was not given."""
    missing = [part for part in missing_parts(optimizer) if getattr(live, part.argument) is None]
    if missing:
        given = [part for part in PARTS if getattr(live, part.argument) is not None]
        raise ValueError(
            f"this {type(optimizer).__name__} was converted ({carried}) together with "
            f"{' and '.join(part.what for part in missing)}, to be restored with it: call "
            f"{restore_call([*given, *missing])} (an empty list says that there is none any more)"
        )
    wanted = {part.argument: carried.parts.get(part.argument, 1.0) for part in PARTS}
    parts = {name: tag for name, tag in wanted.items() if was_given(optimizer, name) or not same(tag, 1.0)}
    return Edit((), partial(settle, optimizer, parts), partial(save_watch, optimizer))


def track_(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    batch_size: Any,
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
) -> None:
    """Declare the batch size that a run starts with, so that its checkpoints carry it from then on.

    Nothing is converted. Afterwards ``rescale_(optimizer, batch_size=64)`` knows what to convert from; a scheduler
    that is given here restores itself when it loads the state of a converted one; and every ``state_dict`` has the
    keys of the units, without which `torch.distributed.checkpoint` would not load them.

    Args:
        optimizer, scheduler: the same as for `rescale_`.
        batch_size: samples per optimizer step, over all ranks and micro-batches; a layout such as ``"16x4x1"`` counts
            by its product.

    >>> import torch
    >>> optimizer = torch.optim.Adam([torch.ones(1, requires_grad=True)], lr=1e-3)
    >>> track_(optimizer, 16)
    >>> optimizer.state_dict()["param_groups"][0]["rootscale_batch_size"]
    16.0
    """
    size = float(BatchSize.of(batch_size).total)
    live = Live(optimizer, scheduler)
    targets = find_targets(live.optimizer, None)
    driving = match_schedulers(targets, live.given("scheduler"), "step")
    for target, driven in zip(targets, driving, strict=True):
        carried = units_of(target.optimizer.param_groups)
        if carried.converted or (carried.batch_size is not None and carried.batch_size != size):
            raise ValueError(
                f"track_ is for a run that starts; this {type(target.optimizer).__name__} is at {carried} already"
            )
        for one, _ in driven:
            check_scheduler(one, target.optimizer, target.rule, 1.0)
    for target, driven in ((one, by) for one, by in zip(targets, driving, strict=True) if one.leads):
        for one, _ in driven:
            schedulers.wrap(one)
        units_edit(target.optimizer, 1.0, size, {}).apply()
    for target in targets:
        for group, key in free_keys(target.part, target.family, target.rule):
            group.setdefault(key, None)
