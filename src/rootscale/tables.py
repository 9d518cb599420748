"""The tables of units, rules and optimizers as data for other programs: what ``--json`` prints."""

from __future__ import annotations

from typing import Any

from rootscale.averagings import AVERAGINGS
from rootscale.evidence import summary
from rootscale.optimizers import FAMILIES, Family
from rootscale.rules import RULES, Rule
from rootscale.units import TABLE, Form, Unit


def units_data() -> list[dict[str, Any]]:
    """Return the table of units.

    >>> units_data()[0]["key"], units_data()[0]["form"]
    ('eta', {'text': 'x * kappa^(1/2)', 'kind': 'power', 'exponent': '1/2'})
    """
    return [unit_data(unit) for unit in TABLE]


def rules_data() -> dict[str, Any]:
    """Return the rules with the rows that each converts, the forms of averaging, and the rules of each optimizer."""
    return {
        "rules": {
            key: {**rule_data(rule), "rows": [unit_data(unit) for unit in rule.units.values()]}
            for key, rule in RULES.items()
        },
        "averagings": {name: row.text for name, row in AVERAGINGS.items()},
        "optimizers": {name: family_data(row) for name, row in FAMILIES.items()},
    }


def unit_data(unit: Unit) -> dict[str, Any]:
    """Return a row of the table of units."""
    return {
        "key": unit.key,
        "label": unit.label,
        "form": _form(unit.form),
        "status": unit.status,
        "source": unit.source,
        "why": unit.why,
    }


def _form(form: Form) -> dict[str, Any]:
    exponent = {"exponent": str(form.exponent)} if form.kind in ("power", "shortened", "window", "summed") else {}
    return {"text": form.text, "kind": form.kind, **exponent, **({} if form.floor is None else {"floor": form.floor})}


def rule_data(rule: Rule) -> dict[str, Any]:
    """Return a rule without its rows."""
    return {"summary": rule.summary, "holds_for": rule.holds_for, "refuses": rule.refuses}


def family_data(row: Family) -> dict[str, Any]:
    """Return what is known of a family of optimizers."""
    return {
        "rules": row.rules,
        "status": row.status,
        "source": row.source,
        "why": row.why,
        "measured": summary(row.name),
        "state": dict(row.state),
    }
