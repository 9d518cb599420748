"""The conversion of a plan to another batch size: the new plan, every change with its reason, and the warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes
from rootscale.format import show
from rootscale.messages import say
from rootscale.rules import RULES, Rule, get_rule
from rootscale.sizes import show_samples
from rootscale.units import Number

if TYPE_CHECKING:
    from rootscale.plan import Plan


@dataclass(frozen=True)
class Conversion:
    """What a change of batch size makes of a plan.

    Args:
        before: the plan.
        plan: the same run at the other batch size.
        changes: every quantity before and after, with its reason.
    """

    before: Plan
    plan: Plan
    changes: Changes

    @property
    def warnings(self) -> tuple[str, ...]:
        """What lies outside the range where the rule is known to hold, each in a sentence."""
        return self.changes.warnings


def convert_plan(plan: Plan, batch_size: BatchSize | Number | str, rule: str | Rule | None = None) -> Conversion:
    """Return the conversion of a plan; the arguments are those of `Plan.convert`."""
    chosen = get_rule(rule, plan.optimizer.name)
    messages = chosen.check(plan.optimizer.name)
    size = plan.batch_size.at(batch_size)
    kappa = plan.kappa(size)
    tuned = _tuned(plan, chosen)
    new = _at(tuned, size, chosen)
    if size != tuned.batch_size:
        object.__setattr__(new, "_tuned", (tuned, chosen.name))
    from rootscale.evidence import doubts  # reads a table, which no help text needs

    messages += _guards(plan, new, chosen, kappa)
    messages += doubts(plan.optimizer.name, chosen.name, float(kappa), plan.batchnorm_momentum is not None)
    return Conversion(plan, new, _changes(plan, new, new, chosen, messages, tuned))


def _tuned(plan: Plan, rule: Rule) -> Plan:
    """Return the plan whose numbers a rule starts from: that which this one was made of, if by the same rule."""
    if plan.tuned is None or plan.tuned[1] != rule.name:
        return plan
    first, name = plan.tuned
    return first if rule.key in RULES and get_rule(name, plan.optimizer.name) == rule else plan


def _at(plan: Plan, size: BatchSize, rule: Rule) -> Plan:
    """Return a plan at another batch size."""
    new = replace(plan, batch_size=size, **converted_parts(plan, rule, plan.kappa(size)))
    if plan.batchnorm_momentum is None:
        return new
    forward = plan.batch_size.forward_kappa(size)
    momentum = float(rule.convert("batchnorm", plan.batchnorm_momentum, forward, "batchnorm_momentum"))
    return replace(new, batchnorm_momentum=momentum)


def converted_parts(plan: Plan, rule: Rule, kappa: Fraction) -> dict[str, Any]:
    """Return the parts of a plan that a rule converts, but for the batch size."""
    return {
        "optimizer": rule.convert_record(plan.optimizer, kappa),
        "schedule": rule.convert_record(plan.schedule, kappa),
        **rule.converted(plan, kappa),
    }


def explain_change(plan: Plan, other: Plan, rule: str | Rule | None = None) -> Changes:
    """Return every change from one plan to another; where the rule gives another value, the row says so."""
    if type(other.optimizer) is not type(plan.optimizer):
        raise ValueError(
            f"both plans must have the same optimizer, got {plan.optimizer.name} and {other.optimizer.name}"
        )
    expected = convert_plan(plan, other.batch_size, rule)
    rule = expected.changes.rule
    return _changes(plan, other, expected.plan, rule, list(expected.warnings), _tuned(plan, rule))


def _guards(plan: Plan, new: Plan, rule: Rule, kappa: Fraction) -> list[str]:
    """Warnings about this plan at this kappa."""
    weights = {f.metadata.get("unit"): getattr(plan.optimizer, f.name) for f in fields(plan.optimizer)}
    messages = rule.check_averages(float(kappa), weights.get("beta1") or 0.0, weights.get("beta2"))
    size, old = new.batch_size, plan.batch_size
    if plan.noise_scale is not None and size.total > plan.noise_scale:
        largest = show(plan.noise_scale / float(old.total))
        noise = show_samples(plan.noise_scale, plan.sequence_length)
        from rootscale.evidence import beyond_noise

        beyond = show_samples(size.total, plan.sequence_length)
        messages.append(say("noise scale", size=beyond, noise=noise, kappa=largest, seen=beyond_noise()))
    if old.laid_out and not size.laid_out and size.total != old.total:
        messages.append(say("layout", size=show(size.total), micro=old.micro, workers=old.workers))
    total = new.total_steps
    if total is not None:
        from rootscale.evidence import few_steps

        messages += [say("short run", steps=show(total))] if total < 1 else few_steps(float(total), float(kappa))
    messages += [
        say("short interval", name=name, steps=show(value))
        for name, value in new.intervals.items()
        if value < Fraction(1, 2)
    ]
    return messages


class _Quantity(NamedTuple):
    """A value of a plan that has a unit: its name for users, the unit and the value."""

    name: str
    unit: str
    value: Number


def _changes(plan: Plan, new: Plan, expected: Plan, rule: Rule, messages: list[str], tuned: Plan) -> Changes:
    """Rows from ``plan`` to ``new``; ``expected`` is what the rule gives, from the numbers that were tuned."""
    before, after, ruled, first = (dict(_quantities(one)) for one in (plan, new, expected, tuned))
    rows = []
    for field in dict.fromkeys([*before, *after]):
        some = before.get(field) or after[field]
        old, value, should = (side[field].value if field in side else None for side in (before, after, ruled))
        used, note = _whole(field, value, new) if some.unit in ("steps", "warmup", "schedule") else (None, "")
        if some.unit == "batchnorm" and plan.batch_size.forward_kappa(new.batch_size) != plan.kappa(new):
            note = say("forwards", before=plan.batch_size.accumulation, after=new.batch_size.accumulation)
        if not _close(value, should):
            note = f"the rule gives {show(should)}" if should is not None else "only in the second plan"
        unit, own = rule.row(some.unit, old, should, plan.kappa(new)), rule.units.get(some.unit)
        if tuned is not plan and own is not None and unit != own and field in first:  # it is or was at a floor
            back = rule.row(some.unit, first[field].value, should, tuned.kappa(new)) == own
            unit = replace(own, why=say("tuned at", size=tuned.batch_size)) if back else unit
        rows.append(Change(some.name, old, value, unit, used, note, field))
    kappa = plan.kappa(new)
    title = say("title", before=plan.batch_size, after=new.batch_size, kappa=show(kappa))
    if new.samples is not None and _close(new.samples, plan.samples):
        counted = {"samples": show(new.samples), "tokens": show(new.tokens)}
        title += say("samples" if new.tokens is None else "tokens", **counted)
    schedule = plan.schedule
    varies = f"the {schedule.name} schedule" if schedule.name != "constant" else ""
    pair, batchnorm = (plan.optimizer.name, rule.name), plan.batchnorm_momentum is not None
    return Changes.made(kappa, rule, rows, messages, optimizers=[pair], varies=varies, batchnorm=batchnorm, title=title)


def _quantities(record: Any, path: str = "") -> Iterator[tuple[str, _Quantity]]:
    """Every value of a plan that has a unit, by its field, but for None and a 0 that is the default."""
    for f in fields(record):
        value, unit = getattr(record, f.name), f.metadata.get("unit")
        field, label = f"{path}{f.name}", f.metadata.get("label") or f.name
        if is_dataclass(value) and not isinstance(value, BatchSize):
            yield from _quantities(value, f"{field}.")
        elif f.name == "epochs" and value is not None:
            yield "steps", _Quantity("steps", "steps", record.total_steps)
        elif unit is not None and isinstance(value, tuple):
            for i, item in enumerate(value):
                yield f"{field}.{i}", _Quantity(f"{label} {i + 1}", unit, item)
        elif unit is not None and isinstance(value, Mapping):
            for name, item in value.items():
                yield f"{field}.{name}", _Quantity(f"{label} {name}", unit, item)
        elif unit is not None and value is not None and (value or f.default):
            yield field, _Quantity(label, unit, value)


def _whole(field: str, value: Number | None, plan: Plan) -> tuple[Number | None, str]:
    """The whole number of steps to use, and what the rounding does."""
    if not isinstance(value, Fraction):
        return None, ""
    if field == "steps":
        rest = (value - math.floor(value)) * Fraction(plan.batch_size.total)
        return math.ceil(value), say("last step", steps=show(value), samples=show(rest))
    return max(1, round(value)), say("rounded", value=show(value))


def _close(a: Number | None, b: Number | None) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9)
