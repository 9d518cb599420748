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
from rootscale.training.decays import converted_so_far, decays_after
from rootscale.training.drivers import clock_warnings, missing_drivers
from rootscale.training.edits import Edit, group_edits, scheduler_edit, units_edit
from rootscale.training.guards import conversion_warnings
from rootscale.training.live import Live, Switch
from rootscale.training.markers import PARTS, Part, units_of
from rootscale.training.reminders import remaining
from rootscale.training.scheduler_changes import check_scheduler
from rootscale.training.scheduler_state import FRAMES, frames_kappa
from rootscale.training.standing import Standing
from rootscale.training.state import Scaled, StateScaling, centered_edits, number_edits, scaled_state
from rootscale.training.targets import (
    Rules,
    Target,
    check_forward,
    common_rule,
    find_targets,
    match_schedulers,
    prefixed_errors,
)
from rootscale.training.watch import was_given

__all__ = ["Prepared", "clip_change", "prepare"]


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


@dataclass(frozen=True)
class _Beside:
    """What is to be changed beside the optimizers and their schedulers, and the warnings.

    Args:
        norms, averages: the edits of BatchNorm's momentum and of parameter averages.
        reached: how far they are converted then, by the argument of `rescale_`; absent where none is given.
        decays: that an optimizer remembers, as in `Carried`.
        warnings: about what lags behind.
    """

    norms: list[Edit]
    averages: list[Edit]
    reached: dict[str, float]
    decays: dict[int, float] | None
    warnings: list[str]


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
    if switch.unclear and "batchnorm" in common.units and averaging_layers(live.given("model")):
        raise ValueError(switch.unclear)
    driving = match_schedulers(targets, live.given("scheduler"), live.interval)
    found = []
    for target, driven in zip(targets, driving, strict=True):
        with prefixed_errors(target.prefix):
            if switch.forward_given:
                check_forward(target, kappa, forward)
            found.append(_find(target, driven, kappa, state))
    beside = _find_beside(live, switch, targets, common)
    scaling = StateScaling([piece for one in found for piece in one.state])

    rows = [row for target, one in zip(targets, found, strict=True) for row in one.rows(target.prefix)]
    rows += [change for edit in (*beside.norms, *beside.averages) for change in edit.changes]
    if clip is not None:
        rows.append(clip_change(clip, common, kappa))
    messages = [f"{target.prefix}{text}" for target, one in zip(targets, found, strict=True) for text in one.warnings]
    messages += beside.warnings
    if isinstance(live.interval, str) and kappa != 1:  # a list says it of each scheduler
        for target, driven in zip(targets, driving, strict=True):
            messages += [f"{target.prefix}{text}" for text in clock_warnings(target.optimizer, driven)]
    edits = [edit for one in found for edit in (*one.groups, *one.schedulers)] + beside.averages if kappa != 1 else []
    edits += beside.norms if forward != 1 else []
    if kappa != 1 or forward != 1:
        for target, driven in ((one, by) for one, by in zip(targets, driving, strict=True) if one.leads):
            edits.append(_carry(target, [one for one, _ in driven], beside, switch))
    edits.append(Edit((), scaling.apply_others, scaling.save_others))
    left = remaining(live, switch, common, clip, targets)
    return Prepared(Changes(kappa, common, tuple(rows), tuple(messages), remaining=left), tuple(edits), scaling)


def _find(target: Target, driven: Sequence[tuple[Any, str]], kappa: float, state: bool) -> _Found:
    """Return what has to be changed for one optimizer."""
    optimizer, family, rule, part = target.optimizer, target.family, target.rule, target.part
    messages = rule.check(family.name)
    for scheduler, _ in driven:
        check_scheduler(scheduler, optimizer, rule, kappa)
    messages += missing_drivers(optimizer, [scheduler for scheduler, _ in driven]) if target.leads else []
    standing = Standing(_part("scheduler"), kappa, [units_of(optimizer.param_groups)])
    messages += standing.behind(_scheduler_tag(scheduler) for scheduler, _ in driven)
    groups = list(group_edits(part, family, rule, kappa, state))
    pieces = list(scaled_state(part, family, rule, kappa)) if state else []
    if state:
        groups += [*number_edits(part, family, rule, kappa), *centered_edits(part, family, rule, kappa)]
    messages += conversion_warnings(part, family, rule, kappa, pieces)
    return _Found(
        groups, pieces, [scheduler_edit(scheduler, rule, kappa, interval) for scheduler, interval in driven], messages
    )


def clip_change(clip: float, rule: Rule, kappa: float) -> Change:
    """Return the change of a gradient clip."""
    clip = positive("clip", clip)
    return Change("clip", clip, float(rule.convert("clip", clip, kappa, "clip")), rule.units.get("clip"))


def _find_beside(live: Live, switch: Switch, targets: Sequence[Target], rule: Rule) -> _Beside:
    """Return what has to be changed beside the optimizers."""
    leaders = [target.optimizer for target in targets if target.leads]
    carried = [units_of(one.param_groups) for one in leaders]
    forward = switch.forward_kappa if "batchnorm" in rule.units else 1.0
    known = any(was_given(one, "model") for one in leaders)
    model, ema = (
        Standing(_part("model"), forward, carried, known),
        Standing(_part("ema"), switch.kappa if "ema" in rule.units else 1.0, carried),
    )
    layers, averages = averaging_layers(live.given("model"), refuse_scripted=forward != 1), live.given("ema")
    tags = {"model": [tag_of(one) for one in layers]}
    tags["ema"] = [converted_so_far(one, i, carried) for i, one in enumerate(averages)]
    edits = []
    for one, tag in zip(averages, tags["ema"], strict=True):
        kappa, note = ema.due(tag)
        edits.append(list(ema_edits(one, rule, kappa, tag * kappa, note)))
    return _Beside(
        list(norm_edits(layers, rule, model.due)),
        [edit for some in edits for edit in some],
        {one.part.argument: tag * one.due(tag)[0] for one in (model, ema) for tag in tags[one.part.argument][:1]},
        decays_after(averages, edits) if averages else None,
        [text for one in (model, ema) for text in one.behind(tags[one.part.argument])],
    )


def _part(argument: str) -> Part:
    return next(part for part in PARTS if part.argument == argument)


def _scheduler_tag(scheduler: Any) -> float:
    """Return how far a scheduler has been converted."""
    return frames_kappa(vars(scheduler).get(FRAMES, ()))


def _carry(target: Target, driving: Sequence[Any], beside: _Beside, switch: Switch) -> Edit:
    """Return the edit of the units that an optimizer carries."""
    rows = {"model": "batchnorm", "ema": "ema"}
    parts = {name: tag for name, tag in beside.reached.items() if rows[name] in target.rule.units}
    if driving:
        parts["scheduler"] = _scheduler_tag(driving[0]) * switch.kappa
    return units_edit(target.optimizer, switch.kappa, switch.sizes[1], parts, beside.decays if "ema" in parts else None)
