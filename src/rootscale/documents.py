"""What holds a run's numbers in a file or a call: configurations, arguments and checkpoints, read and written by path.

A `Document` has ``get``, ``set`` and ``paths``. `convert` visits the quantities of one: it reads each, converts it by
a rule, rounds what has to be whole, and reports it as a `Change`. `commit` writes such changes, or takes all of them
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from rootscale.changes import Change
from rootscale.format import show
from rootscale.rules import Rule
from rootscale.spellings import Options
from rootscale.units import Number


class Document(Options, Protocol):
    """Something that holds numbers by dotted paths, such as ``optimizer.betas.0``."""

    def set(self, path: str, value: Any, /) -> None:
        """Write a value; it is read back by `get`."""

    def paths(self) -> Iterable[str]:
        """Return the paths of all values."""


_MISSING = object()


def under(document: Document, path: str) -> list[str]:
    """Return the paths of what a table or a list of a document holds."""
    return [name for name in document.paths() if name.startswith(f"{path}.")]


class Values:
    """Nested dictionaries and lists as a document, such as a checkpoint, a parameter group or arguments by name.

    >>> values = Values({"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}})
    >>> values.set("optimizer.betas.1", 0.96)
    >>> values.get("optimizer.betas.1"), list(values.paths())
    (0.96, ['optimizer.lr', 'optimizer.betas.0', 'optimizer.betas.1'])
    """

    def __init__(self, root: Any) -> None:
        self.root = root

    def __getitem__(self, path: str) -> Any:
        if isinstance(self.root, Mapping) and path in self.root:  # a key may have dots, as in DCP
            return self.root[path]
        holder = self.root
        for part in path.split("."):
            holder = holder[int(part)] if isinstance(holder, list | tuple) else holder[part]
        return holder

    def __contains__(self, path: object) -> bool:
        return self.get(str(path), _MISSING) is not _MISSING

    def get(self, path: str, default: Any = None) -> Any:
        """Return a value, or the default where there is none."""
        try:
            return self[path]
        except (KeyError, IndexError, TypeError, ValueError):
            return default

    def set(self, path: str, value: Any) -> None:
        """Write a value into the dictionary or list that holds it."""
        parent, _, last = ("", "", path) if path in self.root else path.rpartition(".")
        holder = self[parent] if parent else self.root
        holder[int(last) if isinstance(holder, list) else last] = value

    def paths(self) -> Iterator[str]:
        """Yield the paths of all values."""
        yield from _leaves(self.root, "")


def _leaves(holder: Any, path: str) -> Iterator[str]:
    if isinstance(holder, Mapping):
        for key, value in holder.items():
            yield from _leaves(value, f"{path}{key}.")
    elif isinstance(holder, list | tuple):
        for i, value in enumerate(holder):
            yield from _leaves(value, f"{path}{i}.")
    else:
        yield path.removesuffix(".")


def round_down(exact: Number) -> int:
    """Return the largest whole number that is not above."""
    return math.floor(exact)


def round_up(exact: Number) -> int:
    """Return the smallest whole number that is not below."""
    return math.ceil(exact)


def at_least_one(exact: Number) -> int:
    """Return the nearest whole number, but 1 for less: an interval of no steps is none."""
    return max(1, round(exact))


@dataclass(frozen=True)
class Quantity:
    """A value of a document that has a unit.

    Args:
        path: of the value.
        unit: a key of `rootscale.units.UNITS`.
        name: as users know it; empty is the path.
        whole: makes a whole number of the exact value, where the document needs one; None keeps it exact.
    """

    path: str
    unit: str
    name: str = ""
    whole: Callable[[Number], Number] | None = None

    def change(self, before: Number, rule: Rule, kappa: Number) -> Change:
        """Return what a rule makes of a value of this quantity at ``kappa`` times the batch size."""
        name = self.name or self.path
        if self.whole is None:
            after = rule.convert(self.unit, before, kappa, name)
            return Change(name, before, after, rule.row(self.unit, before, after, kappa), field=self.path)
        exact = rule.convert(self.unit, Fraction(before), kappa, name)
        used = self.whole(exact)
        unit = rule.units.get(self.unit)
        if used == exact:
            return Change(name, before, used, unit, field=self.path)
        return Change(name, before, exact, unit, used, f"rounded from {show(exact)}", self.path)


def convert(document: Document, quantities: Iterable[Quantity], rule: Rule, kappa: Number) -> list[Change]:
    """Return what a rule makes of those quantities that a document has; the document is only read.

    >>> from rootscale.rules import RULES
    >>> quantities = Quantity("lr", "eta"), Quantity("steps", "steps", whole=round_up), Quantity("clip", "clip")
    >>> rows = convert(Values({"lr": 3e-4, "steps": 10}), quantities, RULES["sqrt"], 4)
    >>> [(row.name, row.value, row.note) for row in rows]
    [('lr', 0.0006, ''), ('steps', 3, 'rounded from 2.5')]
    """
    held = ((quantity, document.get(quantity.path)) for quantity in quantities)
    return [quantity.change(value, rule, kappa) for quantity, value in held if value is not None]


def commit(changes: Sequence[tuple[Document, Change]]) -> None:
    """Write the new values of changes into their documents; after an error all of them have their old values again."""
    with ExitStack() as undo:
        for document, row in changes:
            undo.callback(document.set, row.field, row.before)
            document.set(row.field, row.value)
        undo.pop_all()
