"""What a change of batch size changes: a list that prints as a table."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rootscale.format import show
from rootscale.rules import Rule
from rootscale.units import Number, Unit

if TYPE_CHECKING:
    from rich.console import RenderableType

PROMISE = "The rule keeps the training trajectory at equal samples seen; it does not promise a better one."


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
    """

    name: str
    before: Number | None
    after: Number | None
    unit: Unit | None
    used: Number | None = None
    note: str = ""

    @property
    def status(self) -> str:
        """``theorem``, ``derived`` or ``heuristic``, or ``kept`` where the rule has no row for the quantity."""
        return self.unit.status if self.unit else "kept"

    @property
    def why(self) -> str:
        """The reason, with the note."""
        return "; ".join(filter(None, (self.unit.why if self.unit else "not touched by this rule", self.note)))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; exact fractions become floats."""
        return {
            "name": self.name,
            "before": _plain(self.before),
            "after": _plain(self.after),
            "used": _plain(self.after if self.used is None else self.used),
            "form": self.unit.form.text if self.unit else "x",
            "status": self.status,
            "source": self.unit.source if self.unit else "",
            "why": self.why,
        }


def _plain(value: Number | None) -> int | float | None:
    return value if value is None or isinstance(value, int) else float(value)


@dataclass(frozen=True)
class Changes:
    """Every change that a rule made at ``kappa``, printable; iterate it for the single `Change` records."""

    kappa: Number
    rule: Rule
    rows: tuple[Change, ...]
    warnings: tuple[str, ...] = ()
    title: str = ""

    def __iter__(self) -> Iterator[Change]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Change:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no change of {name!r}; there are {', '.join(row.name for row in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kappa": float(self.kappa),
            "rule": self.rule.name,
            "averaging": self.rule.averaging,
            "changes": [row.to_dict() for row in self.rows],
            "warnings": list(self.warnings),
        }

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column, justify in (("quantity", "left"), ("before", "right"), ("after", "right"), ("status", "left")):
            table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        table.add_column("why", overflow="fold")
        for row in self.rows:
            after = row.after if row.used is None else row.used
            changed = row.before != after
            table.add_row(
                Text(row.name, style="bold" if changed else "dim"),
                Text(show(row.before), style="" if changed else "dim"),
                Text(show(after), style="bold green" if changed else "dim"),
                Text(
                    row.status,
                    style={"theorem": "cyan", "derived": "blue", "heuristic": "yellow"}.get(row.status, "dim"),
                ),
                Text(row.why, style="" if changed else "dim"),
            )
        title = self.title or f"kappa = {show(self.kappa)}"
        form = "" if self.rule.averaging == "paper" else ", beta^kappa"
        parts: list[RenderableType] = [Text(f"{title}, rule {self.rule.name}{form}", style="bold"), table]
        parts += [Text(f"warning: {warning}", style="yellow") for warning in self.warnings]
        if self.rule.holds_for:
            parts.append(Text(PROMISE, style="dim"))
        return Group(*parts)

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120, no_color=True, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
