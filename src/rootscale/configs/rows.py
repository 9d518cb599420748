"""The rows that describe a tool's configuration: its batch size, values, optimizers, schedules and refusals.

All a row knows is names: of the tool's options, of the fields of a plan, of families in `rootscale.optimizers` and of
rows of `rootscale.units`. What the quantities become is said there. What one tool alone needs is a function on its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rootscale.changes import Change
from rootscale.documents import Document, under
from rootscale.optimizers import FAMILIES
from rootscale.spellings import Spelling

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


@dataclass(frozen=True)
class When:
    """A condition on a value.

    Args:
        path: of the value.
        values: one of which it must be, in lower case if text; empty: anything but None, False, 0 and the empty text;
            or a function that says whether it holds for a value.
        default: what the tool takes where there is none.
    """

    path: str
    values: tuple[Any, ...] | Callable[[Any], bool] = ()
    default: Any = None

    def holds(self, source: Document) -> bool:
        """Whether a configuration meets the condition."""
        value = source[self.path]
        value = self.default if value is None else value
        if callable(self.values):
            return self.values(value)
        value = value.lower() if isinstance(value, str) else value
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True)
class Field:
    """A value that is converted.

    Args:
        path: dotted; a number leads into a list.
        what: the field of a plan that it is (``optimizer.eta``, or a key of `PLAN_UNITS`), or one of `UNIT_KEYS`.
        default: what the tool takes where there is none, or a function that returns it; written down where the rule
            changes it.
        when: all must hold, or the value is not used.
        scaled: where the tool itself multiplies the value with a power of the batch size: returns the name and the
            exponent of that scaling.
    """

    path: str
    what: str
    default: float | Callable[[Document], float | None] | None = None
    when: tuple[When, ...] = ()
    scaled: Callable[[Document], tuple[str, float]] | None = None


def each(what: str, *paths: str, **columns: Any) -> tuple[Field, ...]:
    """Return the fields of several values that are the same quantity and have no default.

    >>> [one.path for one in each("intervals", "eval_steps", "save_steps")]
    ['eval_steps', 'save_steps']
    """
    return tuple(Field(path, what, **columns) for path in paths)


def optimizer(family: str, values: Mapping[str, str | tuple[str, float | None]], **columns: Any) -> Spelling:
    """Return how a tool spells an optimizer, from the paths of its values by the fields of the family's record.

    A path alone has no default; with one it is ``(path, default)``. The tool's name of it is the key in
    `Format.optimizers`. A ``check`` refuses what a file cannot say, though live arguments can.

    >>> [(one.path, one.what) for one in fields_of(optimizer("sgd", {"eta": ("lr", 0.1), "momentum": "momentum"}))]
    [('lr', 'optimizer.eta'), ('momentum', 'optimizer.momentum')]
    """
    pairs = {name: (path, None) if isinstance(path, str) else path for name, path in values.items()}
    paths = {path: name for name, (path, _) in pairs.items()}
    defaults = {path: default for path, default in pairs.values() if default is not None}
    return Spelling((), family, MappingProxyType(paths), defaults=MappingProxyType(defaults), **columns)


def fields_of(row: Spelling) -> tuple[Field, ...]:
    """Return the hyperparameters of an optimizer as values of a configuration."""
    return tuple(Field(path, f"optimizer.{name}", row.defaults.get(path)) for path, name in row.values.items())


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
        allowed: the values with which it can, in lower case if text; or a function that says whether a value can,
            which is asked of each item of a list or table.
        when: it matters only if this holds.
    """

    path: str
    reason: str
    allowed: tuple[Any, ...] | Callable[[Any], bool] = (None, False)
    when: When | None = None

    def check(self, source: Document) -> None:
        """Raise a `ValueError` if the configuration has such a value."""
        if self.when is not None and not self.when.holds(source):
            return
        inner, value = under(source, self.path), source[self.path]
        if callable(self.allowed):
            for path in inner or [self.path]:
                if not self.allowed(source[path]):
                    missing = source[path] is None
                    what = f"{path} is not in the file, and" if missing else f"{source[path]}:"
                    raise ValueError(f"{what} {self.reason}")
        elif inner or (value.lower() if isinstance(value, str) else value) not in self.allowed:
            raise ValueError(f"{inner[0] if inner else f'{self.path}={value!r}'}: {self.reason}")


def given(value: Any) -> bool:
    """Return whether there is a value: for a `Refusal` of one that is missing."""
    return value is not None


def no_text(value: Any) -> bool:
    """Return whether a value is no text, such as ``"2e12T"``, which counts tokens and not steps."""
    return not isinstance(value, str)


def without(pattern: str) -> Callable[[Any], bool]:
    """Return whether a value does not have a pattern, which is searched in its text."""
    return lambda value: value is None or re.search(pattern, str(value)) is None


def unit_of(one: Field, family: str) -> str:
    """Return the row of `rootscale.units` that a field of a configuration is measured by."""
    name = one.what.removeprefix("optimizer.")
    return FAMILIES[family].unit(name) if name != one.what else PLAN_UNITS.get(name, name)


@dataclass(frozen=True)
class Batch:
    """Where the batch size is.

    Args:
        total: samples per step.
        micro: samples per backward of a worker.
        accumulation: backwards per step.
        defaults: what the tool takes where one of these is not given.
        all_workers: whether ``accumulation`` counts the backwards of all workers together.
        stages: the batch sizes of a ramp, each converted; ``*`` stands for every item of a list.
        last_stage: the list whose last item is the batch size, where ``total`` is not given.
        counts: what the numbers count.
    """

    total: str = ""
    micro: str = ""
    accumulation: str = ""
    defaults: Mapping[str, int] = field(default_factory=dict)
    all_workers: bool = False
    stages: tuple[str, ...] = ()
    last_stage: str = ""
    counts: str = "samples"

    def paths(self) -> tuple[str, ...]:
        """Return every path that a batch size may be at."""
        return tuple(filter(None, (self.total, self.micro, self.accumulation, *self.stages)))


#: One path, or several of which one is enough.
Paths = str | tuple[str, ...]


def _is_there(source: Document, paths: Paths) -> bool:
    """Return whether one of the paths, or a table of that name, is in a configuration."""
    return any(path in source or under(source, path) for path in ([paths] if isinstance(paths, str) else paths))


@dataclass(frozen=True)
class Format:
    """A tool's configuration.

    Args:
        name: as on the command line.
        summary: what it is.
        syntaxes: what a file is written in; names of `rootscale.configs.places.SYNTAXES`.
        markers: paths that only this tool has; a file is of this format if one is there, and all of ``also``.
        also: see ``markers``.
        batch: where the batch size is.
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
        tables: where an unknown option that sounds like the optimizer's is refused; empty text: the top of the file.
        strict: tables in which every unknown option is refused.
        others: options that are known to have no unit, as full paths.
        flat: whether values are known by bare names, with ``_`` for ``-``.
        null: whether a null switches off what it stands for; else the tool takes its default.
        aliases: other names of options, with the path of each.
        sections: whether a file may have several configurations, each in a table of its name.
        left_alone: what is not converted and why, for the docs.
    """

    name: str
    summary: str
    syntaxes: tuple[str, ...]
    markers: tuple[str, ...]
    batch: Batch
    optimizer: str
    optimizers: Mapping[str, Spelling]
    also: tuple[Paths, ...] = ()
    default_optimizer: str = ""
    schedule: str = ""
    schedules: Mapping[str, ScheduleRow] = field(default_factory=dict)
    default_schedule: str = ""
    schedule_values: str = ""
    fields: tuple[Field, ...] = ()
    epochs: str = ""
    refusals: tuple[Refusal, ...] = ()
    remarks: tuple[Callable[[Document, float], str], ...] = ()
    adjust: Callable[[Document, dict[str, Change]], dict[str, Change]] = lambda source, rows: rows
    tables: tuple[str, ...] = ()
    strict: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    flat: bool = False
    null: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    sections: bool = False
    left_alone: str = ""

    def matches(self, source: Document) -> bool:
        """Whether a configuration is of this format."""
        return _is_there(source, self.markers) and all(_is_there(source, paths) for paths in self.also)

    @property
    def looked_for(self) -> str:
        """What makes a file of this format, in words."""
        also = [paths if isinstance(paths, str) else " or ".join(paths) for paths in self.also]
        with_also = f" and {', '.join(also)}" if also else ""
        return f"{self.name} ({' or '.join(self.syntaxes)} with {' or '.join(self.markers)}{with_also})"

    def all_fields(self) -> Iterator[Field]:
        """Yield every field of the format, whatever the optimizer and the schedule."""
        for row in self.optimizers.values():
            yield from fields_of(row)
        for schedule in self.schedules.values():
            yield from schedule.fields
        yield from self.fields

    def known_paths(self) -> frozenset[str]:
        """Return every path that the table says something about."""
        conditions = (when.path for one in self.all_fields() for when in one.when)
        named = (self.optimizer, self.schedule, self.schedule_values, self.epochs)
        # a function looks for one name among others, about which the table says nothing
        refused = (refusal.path for refusal in self.refusals if not callable(refusal.allowed))
        fields = [one.path for one in self.all_fields()]
        lists = (path.rpartition(".")[0] for path in fields if path.rpartition(".")[2].isdigit())
        known = (*fields, *lists, *conditions, *named, *refused, *self.batch.paths(), *self.others)
        return frozenset(filter(None, known))
