"""The rows that describe a tool's configuration: fields, optimizers, schedules, refusals, and the whole format.

All a row knows is names: of the tool's options, of the fields of a plan, of families in `rootscale.optimizers` and of
rows of `rootscale.units`. What the quantities become is said there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rootscale.changes import Change
from rootscale.optimizers import FAMILIES

__all__ = [
    "PLAN_UNITS",
    "UNIT_KEYS",
    "Field",
    "Format",
    "Layout",
    "OptimizerRow",
    "Refusal",
    "ScheduleRow",
    "Source",
    "When",
    "optimizer",
    "unit_of",
]

#: The fields of a plan that a configuration may hold, besides those of its optimizer, with their units. ``intervals``
#: is anything done every so many steps.
PLAN_UNITS: Mapping[str, str] = {
    "steps": "steps",
    "intervals": "steps",
    "clip": "clip",
    "ema": "ema",
    "batchnorm_momentum": "batchnorm",
}
#: Rows of `rootscale.units` for what is no field of a plan, or may stand in a configuration several times.
UNIT_KEYS = ("eta", "min_eta", "decoupled_decay", "warmup", "schedule")


class Source(Protocol):
    """Something that holds values by dotted paths: a file, or live arguments."""

    def __getitem__(self, path: str) -> Any:
        """Return the value, or None where there is none."""

    def __contains__(self, path: str) -> bool:
        """Whether there is such a path."""

    def under(self, path: str) -> list[str]:
        """Return the paths of what a table holds."""


@dataclass(frozen=True)
class When:
    """A condition on a value.

    Args:
        path: of the value.
        values: one of which it must be, in lower case if text; empty: anything but None, False, 0 and the empty text.
        default: what the tool takes where there is none.
    """

    path: str
    values: tuple[Any, ...] = ()
    default: Any = None

    def holds(self, source: Source) -> bool:
        """Whether a configuration meets the condition."""
        value = source[self.path]
        value = self.default if value is None else value
        value = value.lower() if isinstance(value, str) else value
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True)
class Field:
    """A value that is converted.

    Args:
        path: dotted; a number leads into a list.
        what: the field of a plan that it is (``optimizer.eta``, or a key of `PLAN_UNITS`), or one of `UNIT_KEYS`.
        default: what the tool takes where there is none; written down where the rule changes it.
        when: all must hold, or the value is not used.
        needed: why it must be given, where the tool's own default is not certain.
        unless: paths of which one that holds something takes the place of the default.
        scaled: where the tool itself multiplies the value with a power of the batch size: returns the name and the
            exponent of that scaling.
    """

    path: str
    what: str
    default: float | None = None
    when: tuple[When, ...] = ()
    needed: str = ""
    unless: tuple[str, ...] = ()
    scaled: Callable[[Source], tuple[str, float]] | None = None


@dataclass(frozen=True)
class OptimizerRow:
    """An optimizer of the tool.

    Args:
        family: its name in `rootscale.optimizers.FAMILIES`.
        fields: its hyperparameters.
        switch: ``(path, value, family)``: with this value there, it is of that other family.
        not_in_files: why it cannot be converted in a file, though live arguments can be; empty if it can.
        torch_state: whether its state is that of a torch optimizer, which a live conversion needs.
    """

    family: str
    fields: tuple[Field, ...]
    switch: tuple[str, Any, str] | None = None
    not_in_files: str = ""
    torch_state: bool = True


def optimizer(family: str, held: Mapping[str, str | tuple[str, float | None]], **options: Any) -> OptimizerRow:
    """Return the row of an optimizer from the paths of its hyperparameters, by the fields of the family's record.

    A path alone has no default; with one it is ``(path, default)``.

    >>> optimizer("sgd", {"eta": ("lr", 0.1), "momentum": "momentum"}).fields[0]
    Field(path='lr', what='optimizer.eta', default=0.1, when=(), needed='', unless=(), scaled=None)
    """
    pairs = ((name, (path, None) if isinstance(path, str) else path) for name, path in held.items())
    return OptimizerRow(
        family, tuple(Field(path, f"optimizer.{name}", default) for name, (path, default) in pairs), **options
    )


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule of the tool.

    Args:
        fields: its own numbers that are converted.
        others: names of its options that have no unit; known by name only where the format has ``schedule_values``.
        refused: why it cannot be converted; empty if it can.
    """

    fields: tuple[Field, ...] = ()
    others: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Refusal:
    """A value with which nothing can be converted.

    Args:
        path: of the value, or of a table that must be empty.
        reason: why, and what to do.
        allowed: the values with which it can, in lower case if text.
        when: it matters only if this holds.
    """

    path: str
    reason: str
    allowed: tuple[Any, ...] = (None, False)
    when: When | None = None

    def check(self, source: Source) -> None:
        """Raise a `ValueError` if the configuration has such a value."""
        if self.when is not None and not self.when.holds(source):
            return
        held, value = source.under(self.path), source[self.path]
        if held or (value.lower() if isinstance(value, str) else value) not in self.allowed:
            raise ValueError(f"{held[0] if held else f'{self.path}={value!r}'}: {self.reason}")


@dataclass(frozen=True)
class Layout:
    """Where the batch size is: samples per step (``total``), per backward of a worker (``micro``), accumulation."""

    total: str = ""
    micro: str = ""
    accumulation: str = ""


@dataclass(frozen=True)
class Format:
    """A tool's configuration.

    Args:
        name: as on the command line.
        summary: what it is.
        syntaxes: what a file is written in; names of `rootscale.integrations.configs.syntaxes.SYNTAXES`.
        markers: a file is of this format if one of these paths is there, and all of ``also``.
        also: see ``markers``.
        layout: where the batch size is.
        optimizer: the path of the optimizer's name.
        optimizers: by name in lower case.
        default_optimizer: where none is named; empty if one must be.
        schedule: the path of the schedule's name.
        schedules: by name in lower case; empty if nothing depends on the schedule.
        default_schedule: where none is named.
        schedule_values: the table that holds the schedule's own options, where all of them must be known.
        fields: of every configuration of this format.
        epochs: the path of the length of the run in passes over the data, which does not change.
        refusals: what cannot be converted.
        remarks: each returns what else to know about a configuration at this kappa, or nothing.
        adjust: returns the rows, by path, with what has to fit together made to fit.
        flat: whether values are known by bare names, with ``_`` for ``-``.
    """

    name: str
    summary: str
    syntaxes: tuple[str, ...]
    markers: tuple[str, ...]
    layout: Layout
    optimizer: str
    optimizers: Mapping[str, OptimizerRow]
    also: tuple[str, ...] = ()
    default_optimizer: str = ""
    schedule: str = ""
    schedules: Mapping[str, ScheduleRow] = field(default_factory=dict)
    default_schedule: str = ""
    schedule_values: str = ""
    fields: tuple[Field, ...] = ()
    epochs: str = ""
    refusals: tuple[Refusal, ...] = ()
    remarks: tuple[Callable[[Source, float], str], ...] = ()
    adjust: Callable[[Source, dict[str, Change]], dict[str, Change]] = lambda source, rows: rows
    flat: bool = False

    def matches(self, source: Source) -> bool:
        """Whether a configuration is of this format."""
        return any(path in source for path in self.markers) and all(path in source for path in self.also)

    @property
    def looked_for(self) -> str:
        """What makes a file of this format, in words."""
        also = f" and {', '.join(self.also)}" if self.also else ""
        return f"{self.name} ({' or '.join(self.syntaxes)} with {' or '.join(self.markers)}{also})"

    def all_fields(self) -> tuple[Field, ...]:
        """Return every field of the format, whatever the optimizer and the schedule."""
        optimizers = (one for row in self.optimizers.values() for one in row.fields)
        schedules = (one for row in self.schedules.values() for one in row.fields)
        return (*optimizers, *schedules, *self.fields)


def unit_of(one: Field, family: str) -> str:
    """Return the row of `rootscale.units` that a field of a configuration is measured by."""
    name = one.what.removeprefix("optimizer.")
    return FAMILIES[family].unit(name) if name != one.what else PLAN_UNITS.get(name, name)
