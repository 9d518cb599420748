"""A conversion that has been found possible: everything is checked first, and then made as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rootscale.changes import Change, Changes
from rootscale.hparams import positive
from rootscale.rules import Rule
from rootscale.training.averages import averaging_layers, ema_edits, norm_edits, tag_of
from rootscale.training.edits import Edit, group_edits, scheduler_edit, units_edit
from rootscale.training.guards import conversion_warnings
from rootscale.training.live import Live, Switch
from rootscale.training.reminders import remaining
from rootscale.training.scheduler_changes import check_scheduler
from rootscale.training.scheduler_state import FRAMES, frames_kappa
from rootscale.training.state import Scaled, StateScaling, centered_edits, number_edits, scaled_state
from rootscale.training.targets import Rules, Target, common_rule, find_targets, match_schedulers, prefixed_errors
from rootscale.training.watch import is_driven

__all__ = ["Prepared", "prepare"]


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


def prepare(
    live: Live, switch: Switch, *, rule: Rules = None, state: bool = True, clip: float | None = None
) -> Prepared:
    """Check a conversion and return it, not yet made.

    Args:
        live: what is converted.
        switch: the change of batch size.
        rule, state, clip: as for `rescale_`.
    """
    kappa, forward = switch.kappa, switch.forward_kappa
    targets = find_targets(live.optimizer, rule)
    common = common_rule(targets)
    driving = match_schedulers(targets, live.given("scheduler"), live.interval)
    found = []
    for target, driven in zip(targets, driving, strict=True):
        with prefixed_errors(target.prefix):
            found.append(_find(target, driven, kappa, state))
    layers = averaging_layers(live.given("model"), refuse_scripted="batchnorm" in common.units and forward != 1)
    norms = list(norm_edits(layers, common, lambda tag: forward))
    averages = [edit for one in live.given("ema") for edit in ema_edits(one, common, lambda tag: kappa)]
    scaling = StateScaling([piece for one in found for piece in one.state])

    rows = [row for target, one in zip(targets, found, strict=True) for row in one.rows(target.prefix)]
    rows += [change for edit in (*norms, *averages) for change in edit.changes]
    if clip is not None:
        rows.append(_clip(positive("clip", clip), common, kappa))
    messages = [f"{target.prefix}{text}" for target, one in zip(targets, found, strict=True) for text in one.warnings]
    edits = [edit for one in found for edit in (*one.groups, *one.schedulers)] + averages if kappa != 1 else []
    edits += norms if forward != 1 else []
    if kappa != 1 or forward != 1:
        for target, driven in ((one, by) for one, by in zip(targets, driving, strict=True) if one.leads):
            edits.append(_carry(target, [one for one, _ in driven], layers, live.given("ema"), switch))
    edits.append(Edit((), scaling.apply_others, scaling.save_others))
    left = remaining(live, switch, common, clip, targets)
    return Prepared(Changes(kappa, common, tuple(rows), tuple(messages), remaining=left), tuple(edits), scaling)


def _find(target: Target, driven: Sequence[tuple[Any, str]], kappa: float, state: bool) -> _Found:
    """Return what has to be changed for one optimizer."""
    optimizer, family, rule, part = target.optimizer, target.family, target.rule, target.part
    messages = rule.check(family.name)
    for scheduler, _ in driven:
        check_scheduler(scheduler, optimizer, rule, kappa)
    if not driven and target.leads and is_driven(optimizer):
        messages.append(
            "a scheduler drives this optimizer but was not given: its clock stays that of the old batch size, and it "
            "may set the old learning rates again; give scheduler=scheduler"
        )
    groups = list(group_edits(part, family, rule, kappa, state))
    pieces = list(scaled_state(part, family, rule, kappa)) if state else []
    if state:
        groups += [*number_edits(part, family, rule, kappa), *centered_edits(part, family, rule, kappa)]
    messages += conversion_warnings(part, family, rule, kappa, pieces)
    return _Found(
        groups, pieces, [scheduler_edit(scheduler, rule, kappa, interval) for scheduler, interval in driven], messages
    )


def _clip(clip: float, rule: Rule, kappa: float) -> Change:
    return Change("clip", clip, float(rule.convert("clip", clip, kappa, "clip")), rule.units.get("clip"))


def _carry(
    target: Target, driving: Sequence[Any], layers: Sequence[Any], averages: Sequence[Any], switch: Switch
) -> Edit:
    """Return the edit of the units that an optimizer carries."""
    parts: dict[str, float] = {}
    if driving:
        parts["scheduler"] = frames_kappa(vars(driving[0]).get(FRAMES, ())) * switch.kappa
    if layers and "batchnorm" in target.rule.units:
        parts["model"] = tag_of(layers[0]) * switch.forward_kappa
    if averages and "ema" in target.rule.units:
        parts["ema"] = tag_of(averages[0]) * switch.kappa
    return units_edit(target.optimizer, switch.kappa, switch.sizes[1], parts)
