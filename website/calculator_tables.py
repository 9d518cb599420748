"""Write docs/calculator/table.js, what the calculator in the browser knows: ``python website/calculator_tables.py``.

The calculator evaluates the forms by their kind and fills in the same templates as Python; everything else about a
conversion comes from these tables.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import places

from rootscale import Plan, Schedule
from rootscale.averagings import AVERAGINGS, get_averaging
from rootscale.evidence import USUAL, answers, beyond_noise, cases_of, fewest_steps
from rootscale.files import whole
from rootscale.hparams import DOMAINS, Domain, part, positive, share
from rootscale.messages import MESSAGES
from rootscale.optimizers import FAMILIES, OPTIMIZERS, Family
from rootscale.rules import RULES
from rootscale.schedule import SHAPES, WARMUPS
from rootscale.snippets import SHAPE_CODE, TEMPLATES
from rootscale.tables import family_data, rule_data, unit_data
from rootscale.units import UNITS, Unit

__all__ = ["calculator_tables", "write_tables"]


def calculator_tables() -> dict[str, Any]:
    """Return everything that the calculator in the browser evaluates."""
    rows: dict[str, int] = {}  # the text of a row, with its place

    def place(unit: Unit) -> int:
        return rows.setdefault(json.dumps(unit_data(unit)), len(rows))

    rules = {
        key: {
            **rule_data(rule),
            "rows": {
                name: {unit: place(row) for unit, row in rule.averaged(name).units.items()} for name in AVERAGINGS
            },
        }
        for key, rule in RULES.items()
    }
    optimizers = {name: {**family_data(FAMILIES[name]), **_spelled(FAMILIES[name])} for name in OPTIMIZERS}
    units = {key: place(unit) for key, unit in UNITS.items()}
    return {
        "messages": dict(MESSAGES),
        "evidence": _evidence(),
        "domains": {key: _domain(one) for key, one in (*DOMAINS.items(), *_OTHER_DOMAINS.items())},
        "optimizers": optimizers,
        "plan": list(_fields(Plan)),
        "schedule": list(_fields(Schedule)),
        "shapes": {
            name: {"summary": one.summary, "takes": one.takes, "needs": one.needs, "needs_length": one.needs_length}
            for name, one in SHAPES.items()
        },
        "warmups": list(WARMUPS),
        "averagings": {name: row.text for name, row in AVERAGINGS.items()},
        "floors": _floors(),
        "rules": rules,
        "units": units,
        "rows": [json.loads(row) for row in rows],
        "code": dict(TEMPLATES),
        "shape_code": dict(SHAPE_CODE),
    }


#: Domains of values that have no unit.
_OTHER_DOMAINS: Mapping[str, Domain] = {"positive": positive, "warmup_start": share, "gamma": part}


def _evidence() -> dict[str, Any]:
    """What is known of each family by the names of rules: for all nets, and for those with BatchNorm if that differs.

    An answer is up to which kappa it holds, and the places of its two sentences among the texts.
    """
    texts: dict[str, int] = {"": 0}

    def found(family: str, rule: str, batchnorm: bool) -> list[list[Any]]:
        return [
            [
                None if math.isinf(one.kappa) else one.kappa,
                *(texts.setdefault(text, len(texts)) for text in (one.promise, one.doubt)),
            ]
            for one in answers(family, rule, batchnorm)
        ]

    families: dict[str, Any] = {}
    for name in OPTIMIZERS:
        measured = (row.rule for row in cases_of(name) if row.verdict and row.rule and " without " not in row.rule)
        rules = dict.fromkeys([*FAMILIES[name].rules, *measured])
        both = {rule: [found(name, rule, False), found(name, rule, True)] for rule in rules}
        families[name] = {rule: pair if pair[0] != pair[1] else pair[:1] for rule, pair in both.items()}
    return {
        "families": families,
        "texts": list(texts),
        "beyond_noise": beyond_noise(),
        "usual": USUAL,
        "fewest_steps": fewest_steps(),
    }


def _spelled(row: Family) -> dict[str, Any]:
    """How the optimizer is written in torch, and what it takes."""
    torch = row.torch
    spelled = {
        "name": torch.name,
        "in_torch": torch.in_torch,
        "arguments": dict(torch.values),
        "fixed": dict(torch.defaults),
    }
    return {"torch": spelled, "record": row.record.__name__, "fields": list(_fields(row.record))}


#: What a field holds, by what its annotation contains; the first that fits.
_KINDS = (
    ("Mapping[", "intervals"), ("list[", "counts"), ("Count", "count"), ("int", "count"), ("bool", "flag"),
    ("str", "name"), ("float", "number"),
)  # fmt: skip


def _fields(record: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record; those without a default must be given."""
    for f in fields(record):
        kind = next((kind for text, kind in _KINDS if text in str(f.type)), None)
        if kind is None:
            continue  # the parts of a plan: its optimizer, its batch size, its schedule
        default = {} if f.default is MISSING else {"default": f.default}
        unit, label = f.metadata.get("unit"), f.metadata.get("label")
        yield {"name": f.name, "label": label or f.name, "unit": unit, "kind": kind, **default}


def _domain(one: Domain) -> dict[str, Any]:
    high = None if math.isinf(one.high) else one.high
    return {"expected": one.expected, "low": one.low, "high": high, "ends": one.ends}


def _floors() -> dict[str, str]:
    """Which of two floors of a user's own, beta1's or beta2's, each average takes."""
    forms = get_averaging("floor:0.25,0.75").forms
    return {key: "beta1" if form.floor == 0.25 else "beta2" for key, form in forms.items() if form.floor is not None}


def write_tables(path: Path) -> None:
    """Write the tables as a script that a page can load without a server."""
    lines = ["// Written by `python website/calculator_tables.py` from the tables of the package; do not edit."]
    lines += [
        "const ROOTSCALE = {",
        *(f"{json.dumps(key)}: {_text(value)}," for key, value in calculator_tables().items()),
    ]
    with whole(path) as temporary:
        temporary.write_text("\n".join([*lines, "};"]) + "\n", encoding="utf-8")


def _text(value: Any) -> str:
    """A table as JSON, with a line for each of its rows."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]) if sys.argv[1:] else places.ROOT / "docs" / "calculator" / "table.js")
