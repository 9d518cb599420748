"""From a configuration, a file or live arguments, to a plan, and from the plan's changes back to its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes
from rootscale.configs.batch import AUTO
from rootscale.configs.rows import PLAN_UNITS, Field, Format, ScheduleRow, fields_of, unit_of
from rootscale.conversion import Conversion
from rootscale.documents import Document, Quantity, at_least_one, under
from rootscale.format import show
from rootscale.hparams import DOMAINS, Optimizer
from rootscale.optimizers import FAMILIES
from rootscale.plan import Plan
from rootscale.rules import Rule
from rootscale.sizes import LARGEST
from rootscale.spellings import Spelling
from rootscale.units import KEPT, Number

_COUNTS = ("steps", "warmup", "schedule")  # units that are numbers of steps


@dataclass(frozen=True)
class Length:
    """The length of a run, where its configuration does not have it; it is explained, not written.

    Args:
        steps: of the run.
        dataset_size: samples in the data, for a run whose length is in epochs.
    """

    steps: Number | None = None
    dataset_size: int | None = None


@dataclass(frozen=True)
class Reading:
    """What a configuration says.

    Args:
        source: the configuration.
        format: its table.
        row: that of its optimizer.
        values: of every field that is used; the tool's default where there is none.
        auto: paths of values that are filled in elsewhere.
    """

    source: Document
    format: Format
    row: Spelling
    values: Mapping[Field, int | float]
    auto: tuple[str, ...] = ()

    def record(self) -> Optimizer:
        """Return the hyperparameters of the optimizer."""
        family = FAMILIES[self.row.family]
        # Where a value is not given ("auto") the record needs one that no limit is reached with; it is not shown.
        fill = {"eta": 1.0, "beta1": 1 - 1e-12, "beta2": 1 - 1e-12}
        held = {"eta": 1.0}
        for one in fields_of(self.row):
            name = one.what.removeprefix("optimizer.")
            if name != one.what and family.unit(name) in fill:
                held[name] = fill[family.unit(name)]
        for one, value in self.values.items():
            if one.what.startswith("optimizer."):
                held[one.what.removeprefix("optimizer.")] = value
        return family.record(**held)

    def plan(self, size: BatchSize, length: Length = Length()) -> Plan:  # noqa: B008
        """Return the run that the configuration describes, as far as it does."""
        data: dict[str, Any] = {"intervals": {}}
        for one, value in self.values.items():
            if one.what == "intervals":
                data["intervals"][one.path] = value
            elif one.what in PLAN_UNITS:
                data[one.what] = value
        if length.steps is not None and data.setdefault("steps", length.steps) != length.steps:
            raise ValueError(f"the run has {show(data['steps'])} steps, and --steps says {show(length.steps)}")
        epochs = self.source[self.format.epochs] if self.format.epochs else None
        if length.dataset_size is not None and "steps" not in data and isinstance(epochs, int | float) and epochs > 0:
            _check_finite(self.format.epochs, epochs)
            data |= {"epochs": Fraction(epochs), "dataset_size": length.dataset_size}
        return Plan(self.record(), size, **data)

    def changes(self, conversion: Conversion) -> Changes:
        """Return the plan's changes as changes of the configuration: rows go by paths, in the table's order."""
        explained, kappa = conversion.changes, float(conversion.changes.kappa)
        rows = {one.path: self._row(one, value, conversion) for one, value in self.values.items()}
        rows = self.format.adjust(self.source, rows)
        if not any(one.what == "steps" for one in self.values) and conversion.plan.total_steps is not None:
            rows["steps"] = explained["steps"]
        remarks = (remark(self.source, kappa) for remark in self.format.remarks)
        warnings = [*explained.warnings, *filter(None, remarks)]
        if self.auto:
            warnings.append(
                f'{", ".join(self.auto)}: "auto" is filled in from the training arguments; convert those too'
            )
        return replace(explained, rows=tuple(rows.values()), warnings=tuple(dict.fromkeys(warnings)))

    def _row(self, one: Field, value: int | float, conversion: Conversion) -> Change:
        explained = conversion.changes
        field = f"intervals.{one.path}" if one.what == "intervals" else one.what
        if one.what not in PLAN_UNITS and not one.what.startswith("optimizer."):
            row, field = self._unit_row(one, value, explained), one.path
        elif field in explained:
            row = explained[field]
        else:  # it is 0, and stays 0
            row = Change(one.path, value, value, None)
        note = "" if self.source[one.path] is not None else "not given: the tool's default"
        note = "; ".join(filter(None, (row.note, note)))
        return replace(row, name=one.path, field=field, before=value, note=note)

    def _unit_row(self, one: Field, value: int | float, explained: Changes) -> Change:
        """A quantity of which a plan has no field."""
        rule, kappa, key = explained.rule, explained.kappa, one.what
        if one.scaled is not None:
            return _scaled(one, value, rule, float(kappa), *one.scaled(self.source))
        row = Quantity(one.path, key, whole=at_least_one if key in _COUNTS else None).change(value, rule, kappa)
        if key in _COUNTS and row.after is not None and row.after < Fraction(1, 2):
            raise ValueError(
                f"{one.path}={show(value)} would become {show(row.after)} of a step; "
                f"need kappa <= {show(2 * Fraction(value))}, or write 0 if there is to be none"
            )
        return row


def _scaled(one: Field, value: float, rule: Rule, kappa: float, name: str, exponent: float) -> Change:
    """A learning rate that the tool itself multiplies with a power of the batch size."""
    unit, own = rule.units.get(one.what), kappa**exponent
    after = float(rule.convert(one.what, value, kappa, one.path)) / own
    if math.isclose(after, value, rel_tol=1e-12):
        why = f"the tool multiplies it with the {name} scale of the batch size, as the rule does"
        return Change(one.path, value, value, unit and replace(unit, form=KEPT, why=why))
    return Change(one.path, value, after, unit, note=f"the tool itself multiplies with {show(own)} ({name} scale)")


def read_configuration(source: Document, known: Format) -> Reading:
    """Return what a configuration says.

    Raises:
        ValueError: it cannot be converted as a whole.
    """
    row, schedule = _optimizer(source, known), _schedule(source, known)
    for refusal in known.refusals:
        refusal.check(source)
    # of two fields with one path, the later one says what becomes of the value
    fields = (*fields_of(row), *known.fields, *schedule.fields)
    values = {one: value for one in fields if (value := _value(source, one, row.family, known.null)) is not None}
    auto = dict.fromkeys(path for one in fields if (path := _auto(source, one)))
    return Reading(source, known, row, values, tuple(auto))


def _optimizer(source: Document, known: Format) -> Spelling:
    name = source[known.optimizer]
    if name is None and not known.default_optimizer:
        raise ValueError(
            f"{known.optimizer} is not in the file: the optimizer is made elsewhere (in code, or by the training "
            "arguments), and has to be converted there"
        )
    row = known.optimizers.get(str(name or known.default_optimizer).lower())
    if row is None:
        raise ValueError(
            f"{known.optimizer}={name!r}: there is no rule for this optimizer; "
            f"there is one for {', '.join(known.optimizers)}"
        )
    return row if row.family_of is None else replace(row, family=row.family_of(None, source))


def _schedule(source: Document, known: Format) -> ScheduleRow:
    name = source[known.schedule] if known.schedule else None
    name = known.default_schedule if name is None else name
    if not known.schedules or (not name and name not in known.schedules):
        return ScheduleRow()
    row = known.schedules.get(str(name).lower())
    if row is None or row.refused:
        usable = [name for name, one in known.schedules.items() if name and not one.refused]
        reason = row.refused if row is not None else "this schedule's clock is not known"
        raise ValueError(f"{known.schedule}={name!r}: {reason}; known are {', '.join(usable)}")
    if known.schedule_values:
        holder = source[known.schedule_values]
        if holder is not None and not isinstance(holder, dict):
            raise ValueError(f"{known.schedule_values} must be names and values, got {holder!r}")
        names = [*(one.path.rpartition(".")[2] for one in row.fields), *row.others]
        for path in under(source, known.schedule_values):
            if path.rpartition(".")[2] not in names:
                raise ValueError(
                    f"{path}: its unit is not known for {known.schedule}={name!r}; known are "
                    f"{', '.join(names) or 'none'}"
                )
    return row


def _auto(source: Document, one: Field) -> str:
    """The path, or that of the list it is in, if it says that its value comes from elsewhere."""
    parent, _, last = one.path.rpartition(".")
    path = parent if last.isdigit() and one.path not in source else one.path
    return path if source[path] == AUTO else ""


def _value(source: Document, one: Field, family: str, null: bool) -> int | float | None:
    """The value of a field, the tool's default where there is none; None where there is nothing to convert."""
    if null and one.path in source and source[one.path] is None and not one.what.startswith("optimizer."):
        return None
    if _auto(source, one) or not all(condition.holds(source) for condition in one.when):
        return None
    value, unit = source[one.path], unit_of(one, family)
    if value is None:
        default = one.default(source) if callable(one.default) else one.default
        if default is not None:
            _check_parents(source, one)
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{one.path} must be a number, got {value!r}")
    _check_finite(one.path, value)
    if unit in _COUNTS and value > LARGEST:
        raise ValueError(f"{one.path} must be a number of steps, got {value!r}")
    if unit in _COUNTS and 0 < value < 1:
        return None  # a share of the run
    if value <= 0 and (unit in (*_COUNTS, "clip") or one.scaled is not None):
        return None  # the tools' way to say: not set
    if unit in DOMAINS:
        DOMAINS[unit](one.path, value)
    return value


def _check_finite(path: str, value: float) -> None:
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        raise ValueError(f"{path} must be a finite number, got one of {len(str(value))} digits") from None
    if not finite:
        raise ValueError(f"{path} must be a finite number, got {value!r}")


def _check_parents(source: Document, one: Field) -> None:
    """Where a value is missing, what it would stand in must not be something else: that would be written over."""
    *parents, last = one.path.split(".")
    for i in range(1, len(parents) + 1):
        path = ".".join(parents[:i])
        holder, kind = source[path], list if last.isdigit() and i == len(parents) else dict
        if holder is not None and not isinstance(holder, kind):
            wanted = "a list of numbers" if kind is list else "names and values"
            raise ValueError(f"{path} must be {wanted}, got {holder!r}")
        if kind is list and holder is not None:
            raise ValueError(f"{path} must be a list of at least {int(last) + 1} numbers, got {len(holder)}")
