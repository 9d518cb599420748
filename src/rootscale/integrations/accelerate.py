"""Hugging Face accelerate: `rescale_` for what ``accelerator.prepare`` returned.

A prepared scheduler is stepped ``num_processes`` times for every optimizer step (unless batches are split), because its
length is counted in batches of one process. So its clock already follows a change in the number of processes by itself,
and only the rest of a change of batch size has to be given to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch

from rootscale.changes import Change, Changes
from rootscale.hparams import positive
from rootscale.rules import RULES, Rule
from rootscale.training import rescale_, schedulers
from rootscale.units import UNITS

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.accelerate needs accelerate ({error}): pip install 'rootscale[accelerate]'"
    ) from error

__all__ = ["rescale"]


def rescale(
    optimizer: Any | Sequence[Any],
    kappa: float,
    *,
    scheduler: Any | Sequence[Any] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    rule: str | Rule | None = None,
    state: bool = True,
    interval: Literal["step", "epoch"] | None = None,
    forward_kappa: float | None = None,
    processes_before: int | None = None,
) -> Changes:
    """Convert a run of accelerate's, fresh or under way, to ``kappa`` times its global batch size, in place.

    Args:
        optimizer: what ``accelerator.prepare`` returned (or a bare one), one or several: all are converted or none.
        kappa: new global batch size over old one, counted over processes and accumulation.
        scheduler: what ``accelerator.prepare`` returned, one or several.
        model: the model (or several) whose BatchNorm layers' momentum is to be converted.
        ema: parameter averages, as `rescale_` takes them.
        rule: a name from `rootscale.RULES`; None is each optimizer's own.
        state: whether the optimizer's state is converted too.
        interval: whether ``scheduler.step()`` is called with every optimizer ``step`` or once an ``epoch``. None is
            ``step``; it has to be said for schedulers that were prepared with ``step_scheduler_with_optimizer=False``.
        forward_kappa: by how much the samples of one forward pass change, over all processes; None is ``kappa``, 1 is a
            change by accumulation alone.
        processes_before: number of processes of the run that wrote the checkpoint; None is the present number. Call
            this function after ``accelerator.load_state``.

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
            "clock is not known: say interval='step' (once per optimizer step) or interval='epoch'"
        )
    factor = 1.0
    if processes_before is not None:
        factor = positive("processes_before", processes_before) / AcceleratorState().num_processes
    with _belonging_to(bare, inner, prepared):
        changes = rescale_(
            bare, kappa, scheduler=inner, model=model, ema=ema, rule=rule, state=state,
            interval=interval or "step", forward_kappa=forward_kappa,
        )  # fmt: skip
    rows = []
    for one in wrapped:
        if factor != 1 and one.step_with_optimizer and not one.split_batches and interval != "epoch":
            before = schedulers.ticks(one.scheduler, 1, "step")
            # There and back, but only there in the clock; the units stay as they are under this rule.
            schedulers.rescale(one.scheduler, RULES["none"], factor, "step")()
            schedulers.rescale(one.scheduler, RULES["none"], 1 / factor, "epoch")()
            after = schedulers.ticks(one.scheduler, 1, "step")
            note = "accelerate steps it once for each process, and their number has changed"
            drives = [one.scheduler.optimizer in pair for pair in zip(bare, prepared, strict=True)].index(True)
            name = f"{f'optimizer {drives}: ' if len(bare) > 1 else ''}{type(one.scheduler).__name__} clock"
            rows.append(Change(name, before, after, UNITS["steps"], note=note))
    return replace(changes, rows=(*changes.rows, *rows))


@contextmanager
def _belonging_to(bare: list[Any], inner: list[Any], prepared: list[Any]) -> Iterator[None]:
    """A scheduler made after ``prepare`` belongs to the wrapper: for the time of the change, to what is in it."""
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
