"""The rows that describe a tool's configuration: fields, optimizers, schedules, refusals.

All a row knows is names: of the tool's options, of the fields of a plan, of families in `rootscale.optimizers` and of
rows of `rootscale.units`. What the quantities become is said there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rootscale.optimizers import FAMILIES

__all__ = [
    "PLAN_UNITS",
    "UNIT_KEYS",
    "Field",
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
        negate: whether the value must be none of them instead.
    """

    path: str
    values: tuple[Any, ...] = ()
    default: Any = None
    negate: bool = False

    def holds(self, source: Source) -> bool:
        """Whether a configuration meets the condition."""
        value = source[self.path]
        value = self.default if value is None else value
        value = value.lower() if isinstance(value, str) else value
        return self.negate != (value in self.values if self.values else bool(value))


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
        text_is_other: whether a text there is something that is not counted in steps, such as ``"2e12T"`` (tokens).
    """

    path: str
    what: str
    default: float | None = None
    when: tuple[When, ...] = ()
    needed: str = ""
    unless: tuple[str, ...] = ()
    scaled: Callable[[Source], tuple[str, float]] | None = None
    text_is_other: bool = False


@dataclass(frozen=True)
class OptimizerRow:
    """An optimizer of the tool.

    Args:
        family: its name in `rootscale.optimizers.FAMILIES`.
        fields: its hyperparameters.
        switch: ``(path, value, family)``: with this value there, it is of that other family.
        not_in_files: why it cannot be converted in a file, though live arguments can be; empty if it can.
        live: whether the state of a live run can be converted: it is known to `rootscale.training`.
    """

    family: str
    fields: tuple[Field, ...]
    switch: tuple[str, Any, str] | None = None
    not_in_files: str = ""
    live: bool = True


def optimizer(family: str, held: Mapping[str, str | tuple[str, float | None]], **options: Any) -> OptimizerRow:
    """Return the row of an optimizer from the paths of its hyperparameters, by the fields of the family's record.

    A path alone has no default; with one it is ``(path, default)``.

    >>> optimizer("sgd", {"eta": ("lr", 0.1), "momentum": "momentum"}).fields[0]
    Field(path='lr', what='optimizer.eta', default=0.1, when=(), needed='', unless=(), scaled=None, text_is_other=False)
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
        matching: a pattern that is searched in the values of a list instead of ``allowed``.
        missing: whether it is the missing value that is refused.
    """

    path: str
    reason: str
    allowed: tuple[Any, ...] = (None, False)
    when: When | None = None
    matching: str = ""
    missing: bool = False

    def check(self, source: Source) -> None:
        """Raise a `ValueError` if the configuration has such a value."""
        if self.when is not None and not self.when.holds(source):
            return
        if self.matching:
            for path in source.under(self.path):
                if re.search(self.matching, str(source[path])):
                    raise ValueError(f"{source[path]}: {self.reason}")
            return
        held, value = source.under(self.path), source[self.path]
        if self.missing:
            if value is None:
                raise ValueError(f"{self.path} {self.reason}")
            return
        if held or (value.lower() if isinstance(value, str) else value) not in self.allowed:
            raise ValueError(f"{held[0] if held else f'{self.path}={value!r}'}: {self.reason}")


def unit_of(one: Field, family: str) -> str:
    """Return the row of `rootscale.units` that a field of a configuration is measured by."""
    name = one.what.removeprefix("optimizer.")
    return FAMILIES[family].unit(name) if name != one.what else PLAN_UNITS.get(name, name)
