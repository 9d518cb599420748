"""`rootscale rules`: the rules, and the optimizers that are known with theirs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rootscale.cli.console import Column, FittedTable, make_console
from rootscale.evidence import summary
from rootscale.optimizers import FAMILIES
from rootscale.rules import RULES


def add_parsers(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = commands.add_parser(
        "rules",
        description="Print the rules that --rule takes with the rows of `rootscale units` that each converts, and the "
        "optimizers that are known, each with its own rule and how sure it is.",
        epilog="example: rootscale rules --json",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, with every form as data")
    parser.set_defaults(handler=_rules)


def _rules(args: argparse.Namespace) -> int:
    if args.json:
        from rootscale.tables import rules_data

        print(json.dumps(rules_data(), indent=2))
        return 0
    rules = []
    for rule in RULES.values():
        converted = [key for key, unit in rule.units.items() if unit.form.text != "x"]
        rules.append((rule.name, rule.summary, ", ".join(converted)))
    families = [(row.name, ", ".join(row.rules), row.status, row.why, summary(row.name)) for row in FAMILIES.values()]
    console = make_console()
    console.print(
        FittedTable([Column("rule"), Column("what it is", folds=True), Column("converts", folds=True)], rules)
    )
    columns = [Column("optimizer"), Column("rules, its own first", folds=True), Column("status")]
    console.print(FittedTable([*columns, Column("why", folds=True), Column("measured", folds=True)], families))
    return 0
