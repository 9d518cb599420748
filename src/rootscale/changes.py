"""What a change of batch size changes: a list of quantities before and after, as data that prints as a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rootscale.format import format_table, frame_of, html_table, listed, show
from rootscale.messages import say
from rootscale.units import Number, Unit, stops

if TYPE_CHECKING:
    from rootscale.rules import Rule


_COLUMNS = ("quantity", "before", "after", "status", "why")
#: Changes that the short form has.
_SHOWN = 6
#: Quantities that the theorem is not about, or that are part of its state or its loss.
_BESIDE = ("l2", "ema", "v", "m", "step_counter")


class ScalingWarning(UserWarning):
    """A change of batch size outside the range where the rule is known to hold."""


@dataclass(frozen=True)
class Change:
    """One quantity before and after.

    Args:
        name: the quantity, as users know it.
        before: its value at the old batch size.
        after: its exact value at the new one.
        unit: the row of the table that was applied; None if the rule keeps the quantity.
        used: the value to use, where ``after`` cannot be used as it is (a whole number of steps).
        note: what else there is to say.
        field: where the quantity is kept, which programs look it up by: ``optimizer.eta``, ``schedule.warmup``,
            ``intervals.eval`` in a plan; the name, where it is kept nowhere else.
    """

    name: str
    before: Number | None
    after: Number | None
    unit: Unit | None
    used: Number | None = None
    note: str = ""
    field: str = ""

    def __post_init__(self) -> None:
        if not self.field:
            object.__setattr__(self, "field", self.name)

    @property
    def value(self) -> Number | None:
        """The value to use at the new batch size."""
        return self.after if self.used is None else self.used

    @property
    def status(self) -> str:
        """``theorem``, ``derived`` or ``heuristic``, or ``kept`` where the rule has no row for the quantity."""
        return self.unit.status if self.unit else "kept"

    @property
    def kind(self) -> str:
        """The key of its unit; empty where the rule has no row for it."""
        return self.unit.key if self.unit else ""

    def derived(self) -> Change:
        """Return the change as it is in a run that no theorem covers."""
        if self.unit is None or self.unit.status != "theorem":
            return self
        return replace(self, unit=replace(self.unit, status="derived"))

    @property
    def why(self) -> str:
        """The reason, with the note."""
        return "; ".join(filter(None, (self.unit.why if self.unit else say("kept"), self.note)))

    def to_dict(self) -> dict[str, Any]:
        """Return the change in JSON's types; exact fractions become floats."""
        return {
            "name": self.name,
            "field": self.field,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "used": _plain(self.value),
            "form": self.unit.form.text if self.unit else "x",
            "status": self.status,
            "source": self.unit.source if self.unit else "",
            "why": self.why,
        }


def no_way_back(rows: Iterable[Change], kappa: Number) -> list[str]:
    """Say which values have stopped at a floor: a file does not keep what they were without it."""
    stopped = [
        row.name
        for row in rows
        if row.unit and row.before is not None and row.value is not None
        and stops(row.unit.form, row.before, row.value, kappa)
    ]  # fmt: skip
    text = "stopped at a floor, so converting the new file back does not return it; keep the old one"
    return [f"{', '.join(stopped)}: {text}"] * bool(stopped)


def _metric_name(field: str) -> str:
    """Return a name that every tracker takes; MLflow has letters, digits and ``_ . / -``."""
    return re.sub(r"[^\w./-]+", "_", field.replace(": ", "/")).strip("_")


def _plain(value: Number | None) -> int | float | None:
    return value if value is None or isinstance(value, int) else float(value)


class Reminder(str):
    """Something that is left to the caller, in words, with a key for who does it instead.

    >>> Reminder("gradient clip: 1 -> 0.5", "clip").key
    'clip'
    """

    key: str

    def __new__(cls, text: str, key: str = "") -> Reminder:
        made = super().__new__(cls, text)
        made.key = key
        return made


def key_of(text: str) -> str:
    """Return what a reminder is about; "" where it is not said."""
    return text.key if isinstance(text, Reminder) else ""


@dataclass(frozen=True, repr=False)
class Changes:
    """Every change that a rule made at ``kappa``; print it, or iterate it for the single `Change` records.

    Attributes:
        remaining: what is left for the caller to change, in words.
        evidence: what is proven and what was measured of such a change, in sentences; `made` finds it.
    """

    kappa: Number
    rule: Rule
    rows: tuple[Change, ...]
    warnings: tuple[str, ...] = ()
    title: str = ""
    remaining: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @classmethod
    def made(
        cls, kappa: Number, rule: Rule, rows: Iterable[Change], warnings: Iterable[str] = (), *,
        optimizers: Iterable[tuple[str, str]], varies: str = "", batchnorm: bool = False,
        title: str = "", remaining: tuple[str, ...] = (),
    ) -> Changes:  # fmt: skip
        """Return changes with what is known of them.

        A row is a theorem only in a run that the theorem covers as a whole; in another run it is derived.

        Args:
            kappa, rule, rows, warnings, title, remaining: as for `Changes`.
            optimizers: the families that were converted, each with the name of its rule.
            varies: what changes with time in the run, such as ``schedule``.
            batchnorm: whether the net is known to have BatchNorm.
        """
        from rootscale.evidence import promise  # reads a table, which no help text needs
        from rootscale.optimizers import FAMILIES

        rows, pairs, size = list(rows), list(dict.fromkeys(optimizers)), float(kappa)
        families = [FAMILIES[name] for name, _ in pairs]
        beside = [row.record.__name__ for row in families if row.status != "theorem" and row.name != "adamw"]
        if not beside:  # AdamW is Adam, but for its weight decay
            beside = [varies] if varies else []
            beside += [row.name for row in rows if row.status != "theorem" and row.kind not in _BESIDE]
        notes: list[str] = []
        if beside and any(row.status == "theorem" for row in rows):
            notes.append(say("not covered", names=listed(list(dict.fromkeys(beside)))))
            rows = [row.derived() for row in rows]
        notes += dict.fromkeys(promise(family, name, size, batchnorm) for family, name in pairs)
        evidence = () if kappa == 1 else tuple(filter(None, notes))
        return cls(kappa, rule, tuple(rows), tuple(warnings), title, remaining, evidence)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: object) -> bool:
        """Whether there is a change of that field or name."""
        return any(key in (row.field, row.name) for row in self.rows)

    def __getitem__(self, key: str) -> Change:
        """Return the change of that field, or of that name."""
        for row in self.rows:
            if key in (row.field, row.name):
                return row
        raise KeyError(f"no change of {key!r}; there are {', '.join(row.name for row in self.rows)}")

    @property
    def clip(self) -> float | None:
        """The gradient clip to use from now on, where the old one was given."""
        return float(self["clip"].value or 0.0) if "clip" in self else None

    @property
    def steps_factor(self) -> float:
        """What the number of steps left, and every interval in steps, is multiplied by."""
        return float(self.rule.convert("steps", 1.0, self.kappa))

    def flat(self, prefix: str = "rootscale/") -> dict[str, float]:
        """Return the new values as one flat dictionary of numbers, for loggers.

        >>> from rootscale import Adam, Plan
        >>> changes = Plan(Adam(1e-3, beta1=0.98), batch_size=16, steps=1000).convert(64).changes
        >>> changes.flat()["rootscale/optimizer.eta"], changes.flat("")["kappa"]
        (0.002, 4.0)
        """
        values = {_metric_name(row.field): row.value for row in self.rows}
        found = {"kappa": self.kappa, **{name: value for name, value in values.items() if value is not None}}
        return {f"{prefix}{name}": float(value) for name, value in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the changes in JSON's types."""
        return {
            "kappa": float(self.kappa),
            "rule": self.rule.name,
            "changes": [row.to_dict() for row in self.rows],
            "warnings": list(self.warnings),
            "evidence": list(self.evidence),
            **({"remaining": list(self.remaining)} if self.remaining else {}),
        }

    @property
    def heading(self) -> str:
        """What was changed, in one line."""
        return say("rule", title=self.title or f"kappa = {show(self.kappa)}", rule=self.rule.name)

    def to_frame(self) -> Any:
        """Return a row for each change as a DataFrame of pandas, or of polars where only that is installed."""
        rows = [row.to_dict() for row in self.rows]
        return frame_of({key: [row[key] for row in rows] for key in (rows[0] if rows else ())})

    def __repr__(self) -> str:
        """Return what was changed in one line; `str` has the whole table.

        >>> from rootscale import Adam, Plan
        >>> Plan(Adam(1e-3, beta1=0.98), batch_size=16, steps=1000).convert(64).changes
        Changes(batch size 16 -> 64, kappa = 4, 16,000 samples in both, rule sqrt: lr 0.001 -> 0.002, beta1 0.98 -> ...
        """
        rows = [row for row in self.rows if row.before != row.value]
        changed = [f"{row.name} {show(row.before)} -> {show(row.value)}" for row in rows]
        counts = (
            (len(changed) - _SHOWN, "more"), (len(self.rows) - len(changed), "unchanged"),
            (len(self.warnings), "warnings"), (len(self.remaining), "left to you"),
        )  # fmt: skip
        rest = [f"{count} {what}" for count, what in counts if count > 0]
        return f"Changes({self.heading}: {'; '.join([', '.join(changed[:_SHOWN]) or 'nothing', *rest])})"

    def _repr_html_(self) -> str:
        return html_table(self.heading, _COLUMNS, self._cells(), self._notes())

    def _cells(self) -> list[list[str]]:
        return [[row.name, show(row.before), show(row.value), row.status, row.why] for row in self.rows]

    def _notes(self) -> list[str]:
        left = [f"left to you: {text}" for text in self.remaining]
        return [*(f"warning: {text}" for text in self.warnings), *left, *self.evidence]

    def __str__(self) -> str:
        table = format_table(_COLUMNS, self._cells(), right=("before", "after"))
        return "\n".join([self.heading, "", table, *self._notes()])
