"""Change the batch size of a running PyTorch job: convert its live objects in place, all of them or none."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.hparams import positive
from rootscale.training import schedulers
from rootscale.training.edits import Edit, ema_edit, group_edits, norm_edits, scheduler_edit
from rootscale.training.guards import conversion_warnings
from rootscale.training.state import Scaled, StateScaling, centered_edits, number_edits, scaled_state
from rootscale.training.targets import Rules, Target, blaming, common_rule, find_targets, match_schedulers, several

__all__ = ["Prepared", "prepare", "rescale_"]


@dataclass(frozen=True)
class _Found:
    """What is to be changed for one optimizer, and the warnings."""

    groups: list[Edit]
    state: list[Scaled]
    schedulers: list[Edit]
    warnings: list[str]

    def rows(self, prefix: str) -> Iterator[Change]:
        """Yield the rows to report, with the name of the optimizer where there are several."""
        rows = [change for edit in self.groups for change in edit.changes]
        rows += [piece.change for piece in self.state]
        rows += [change for edit in self.schedulers for change in edit.changes]
        if not prefix:
            yield from rows
        for row in rows if prefix else ():
            yield replace(row, name=f"{prefix}{row.name}", field=f"{prefix}{row.field}")


Interval = Literal["step", "epoch"]


def rescale_(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    kappa: float,
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    rule: Rules = None,
    state: bool = True,
    interval: Interval | Sequence[Interval] = "step",
    forward_kappa: float | None = None,
    dry_run: bool = False,
) -> Changes:
    """Convert a run, at its start or in its middle, to ``kappa`` times its batch size, in place.

    Everything is checked first, and what fails nevertheless is rolled back: after an error nothing has changed. The
    caller changes what this function cannot see: the batch size itself, the number of steps left and every interval in
    steps (``/ kappa``), and the gradient clip (``* kappa^(-1/2)``).

    Args:
        optimizer: one that `rootscale.optimizers.FAMILIES` has a row for, of torch or of another library. A list, a
            container with ``optimizers`` or groups of several families are converted as a whole or not at all.
        kappa: new batch size over old one; any positive number.
        scheduler: the learning-rate scheduler (or several) that drives the optimizer (or one of them): any subclass of
            `torch.optim.lr_scheduler.LRScheduler` that sets its learning rates in ``step()``.
        model: the model (or several) whose BatchNorm momentum is to be converted.
        ema: a `torch.optim.swa_utils.AveragedModel` with torch's exponential averages, or any object with a ``decay``
            attribute, or several of them.
        rule: a rule or its text, for every optimizer: ``"sqrt"``, ``"with power"`` (``beta^kappa`` for the betas),
            ``"sqrt without v"``; None is each optimizer's own, ``sqrt`` for Adam, AdamW and RMSprop. A list has one for
            each optimizer, and a mapping one for each family that it names: ``{"muon": "normalized-linear"}``.
        state: whether the optimizer's state is converted too; without it the run is disturbed until the averages
            have forgotten the old batch size.
        interval: whether the scheduler is stepped with every optimizer ``step`` or once an ``epoch``; one for all
            schedulers, or one for each.
        forward_kappa: the same as ``kappa`` for the samples of one forward pass, which BatchNorm averages over; None is
            ``kappa``, 1 is a change by gradient accumulation alone.
        dry_run: only check, and return what would be changed.

    Returns:
        What was changed; print it. Of several optimizers, ``changes["optimizer 1: lr"]`` is that of the second one.

    Raises:
        TypeError: an object of a kind that cannot be converted; the message names those that can.
        ValueError: there is no valid value; the message has the largest kappa that has one.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> changes = rescale_(optimizer, 4)
    >>> changes["lr"].after, optimizer.param_groups[0]["lr"]
    (0.002, 0.002)
    """
    prepared = prepare(
        optimizer, kappa, scheduler=scheduler, model=model, ema=ema, rule=rule, state=state, interval=interval,
        forward_kappa=forward_kappa,
    )  # fmt: skip
    for message in prepared.changes.warnings:  # before anything is changed, for those who turn warnings into errors
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    if not dry_run:
        prepared.commit()
    return prepared.changes


@dataclass(frozen=True)
class Prepared:
    """A conversion that has been found possible, and not yet made.

    Args:
        changes: what will be changed, with the warnings.
        edits: make the changes that can be taken back.
        state: makes those that cannot, after all others.
    """

    changes: Changes
    edits: tuple[Edit, ...]
    state: StateScaling

    @torch.no_grad()
    def commit(self) -> None:
        """Make the changes, all or none.

        An error has a note that says what it left behind: nothing but the objects as they were, unless one of them
        could not be put back. See `rootscale.training.state` for what is promised of the optimizer's state.
        """
        restores: list[Callable[[], None]] = []
        try:
            for edit in self.edits:
                restores.append(edit.save())
                edit.apply()
        except BaseException as error:
            error.add_note(_roll_back(restores))
            raise
        try:
            self.state.finish()
        except Exception as error:
            _roll_back(restores)
            error.add_note("rescale_: the optimizer's state may have been converted in part; go back to a checkpoint")
            raise


def _roll_back(restores: Sequence[Callable[[], None]]) -> str:
    """Take back what was changed, last change first, and return what is to be said about it."""
    failures = []
    for restore in reversed(restores):
        try:
            restore()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
    if not failures:
        return "rescale_: all changes were taken back, so nothing has changed"
    return f"rescale_: the changes were taken back, except where that failed too ({'; '.join(failures)})"


def prepare(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    kappa: float,
    *,
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    ema: Any = None,
    rule: Rules = None,
    state: bool = True,
    interval: Interval | Sequence[Interval] = "step",
    forward_kappa: float | None = None,
) -> Prepared:
    """Check a conversion and return it, not yet made; the arguments are those of `rescale_`."""
    kappa = positive("kappa", kappa)
    forward = kappa if forward_kappa is None else positive("forward_kappa", forward_kappa)
    targets = find_targets(optimizer, rule)
    common = common_rule(targets)
    driving = match_schedulers(targets, several(scheduler), interval)
    found = []
    for target, driven in zip(targets, driving, strict=True):
        with blaming(target.prefix):
            found.append(_find(target, driven, kappa, state))
    norms = list(norm_edits(several(model), common, forward))
    averages = [ema_edit(one, common, kappa) for one in several(ema)]
    scaling = StateScaling([piece for one in found for piece in one.state])

    rows = [row for target, one in zip(targets, found, strict=True) for row in one.rows(target.prefix)]
    rows += [change for edit in (*norms, *averages) for change in edit.changes]
    messages = [f"{target.prefix}{text}" for target, one in zip(targets, found, strict=True) for text in one.warnings]
    edits = [edit for one in found for edit in (*one.groups, *one.schedulers)] + averages if kappa != 1 else []
    edits += norms if forward != 1 else []
    edits.append(Edit((), scaling.apply_others, scaling.save_others))
    return Prepared(Changes(kappa, common, tuple(rows), tuple(messages)), tuple(edits), scaling)


def _find(target: Target, driven: Sequence[tuple[Any, str]], kappa: float, state: bool) -> _Found:
    """Return what has to be changed for one optimizer."""
    optimizer, family, rule, part = target.optimizer, target.family, target.rule, target.part
    messages = rule.check(family.name)
    for scheduler, _ in driven:
        schedulers.check(scheduler, optimizer, rule, kappa)
    if not driven and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        messages.append("a scheduler drives this optimizer but was not given: it will set the old learning rates again")
    groups = list(group_edits(part, family, rule, kappa, state))
    pieces = list(scaled_state(part, family, rule, kappa)) if state else []
    if state:
        groups += [*number_edits(part, family, rule, kappa), *centered_edits(part, family, rule, kappa)]
    messages += conversion_warnings(part, family, rule, kappa, pieces)
    return _Found(
        groups, pieces, [scheduler_edit(scheduler, rule, kappa, interval) for scheduler, interval in driven], messages
    )
