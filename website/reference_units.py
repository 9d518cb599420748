"""The reference of units, rules and optimizers, from the tables that the library reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from reference_cli import plain
from registry import TOYS, table, toy_gap

from rootscale import TABLE
from rootscale.averagings import AVERAGINGS
from rootscale.evidence import summary
from rootscale.optimizers import FAMILIES, Family
from rootscale.rules import RULES, Rule
from rootscale.units import UNITS

__all__ = ["optimizers", "rules", "units"]

STATUS = (
    "**theorem**: proven in a paper. **derived**: follows by a calculation. **measured**: an experiment of ours "
    "decides. **heuristic**: known to leave something out."
)


def units() -> str:
    """Return the page of units: how each quantity changes with the batch size."""
    rows = [
        (f"`{unit.key}`", plain(unit.label), f"`{unit.form.text}`", unit.status, plain(unit.why), plain(unit.source))
        for unit in TABLE
    ]
    return (
        "# Units\n\nHow each quantity `x` of a run changes when the batch size is multiplied by `kappa`, by the square "
        "root rule; [the rules](rules.md) choose among these rows and have forms of their own. `rootscale units` "
        f"prints this table. Whatever has no row does not depend on the batch size.\n\n{STATUS}\n\n"
        + table(("key", "quantity", "`x` becomes", "status", "why", "source"), rows)
        + "\n"
    )


def rules() -> str:
    """Return the page of rules: what each converts, and the forms of averaging."""
    listed = [
        (f"[`{rule.name}`](#{rule.name})", plain(rule.summary), ", ".join(rule.holds_for)) for rule in RULES.values()
    ]
    forms = [(f"`{name}`", plain(row.text), plain(row.why)) for name, row in AVERAGINGS.items()]
    sections = [
        f"## {rule.name}\n\n{plain(rule.summary[:1].upper() + rule.summary[1:])}.\n\n{table(*converted(rule))}"
        for rule in RULES.values()
    ]
    return (
        "# Rules\n\nA rule says what becomes of each quantity of a run. It can be written as text, "
        "`[NAME] [with AVERAGING] [without ROW, ROW]`: `sqrt`, `with power`, `sqrt without beta2, v`. By default an "
        "optimizer has the rule of [its row](optimizers.md).\n\n"
        + table(("rule", "what it is", "keeps the dynamics of"), listed)
        + "\n\n## Forms of averaging\n\nWhat becomes of a weight `beta` of an average, by `--averaging` or `with`. The "
        "first is the default; `floor:0.7,0.9` has floors of your own.\n\n"
        + table(("form", "beta becomes", "why"), forms)
        + "\n\n"
        + "\n\n".join(sections)
        + "\n"
    )


def converted(rule: Rule) -> tuple[tuple[str, ...], Sequence[tuple[str, ...]]]:
    """Return head and rows of the table of what a rule converts."""
    rows = [
        (f"`{key}`", plain(unit.label), f"`{unit.form.text}`", unit.status)
        for key, unit in rule.units.items()
        if unit.form.text != "x"
    ]
    return ("key", "quantity", "`x` becomes", "status"), rows


def optimizers() -> str:
    """Return the page of optimizers: rule, status, measured gap, and what becomes of each value."""
    found = json.loads(TOYS.read_text(encoding="utf-8"))
    rows = [
        (
            f"[{row.name}](#{row.name})",
            f"[{row.rules[0]}](rules.md#{row.rules[0]})",
            row.status,
            toy_gap(row, found.get(row.name, {})),
            summary(row.name),
        )
        for row in FAMILIES.values()
    ]
    return (
        "# Optimizers\n\nThe registry of optimizers, with the rule that keeps the dynamics of each and how sure that "
        "is. [Which optimizer, which rule](../optimizers.md) explains, and says which classes of which libraries "
        f"belong to these families.\n\n{STATUS}\n\n"
        "The toy gap is the largest gap of the mean loss on two small problems, as a share of the base curve's range, "
        "at four and sixteen times the batch. Other seeds alone give 0.01 to 0.03.\n\n"
        + table(("optimizer", "its rule", "how sure", "toy gap at 4 / 16", "in training"), rows)
        + "\n\n"
        + "\n\n".join("\n".join(section(row)) for row in FAMILIES.values())
        + "\n"
    )


def section(row: Family) -> Iterator[str]:
    """Yield the section of one family."""
    rule = RULES[row.rules[0]]
    yield from (f"## {row.name}", "", plain(row.why), "")
    others = ", ".join(f"[{name}](rules.md#{name})" for name in row.rules[1:])
    more = f", or {others}" if others else ""
    yield f"Rule: [{rule.name}](rules.md#{rule.name}){more} ({row.status}; {plain(row.source)})."
    yield ""
    values = [
        (name, key)
        for name, held in row.torch_units().items()
        for key in ((held,) if isinstance(held, str) else held)
        if key
    ]
    state = [(name, row.state[held]) for name, held in {**row.torch.parameter_state, **row.torch.group_state}.items()]
    rows = [(f"`{name}`", plain(UNITS[key].label), becomes(rule, key)) for name, key in values]
    rows += [(f"state `{name}`", plain(UNITS[key].label), becomes(rule, key)) for name, key in state]
    yield table((f"in `{row.torch.name}`", "quantity", "`x` becomes"), rows)


def becomes(rule: Rule, key: str) -> str:
    """Return what a rule makes of a unit; a quantity without a row is kept."""
    text = rule.units[key].form.text if key in rule.units else "x"
    return "kept" if text == "x" else f"`{text}`"
