"""`rootscale units`: the table of units."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rootscale.cli.console import Column, FittedTable, make_console
from rootscale.units import TABLE


def add_parsers(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = commands.add_parser(
        "units",
        description="Print the table of units: what every quantity of a run becomes at kappa times the batch size, how "
        "sure that is (theorem, derived, measured or heuristic), why, and where it comes from.",
        epilog="example: rootscale units --json",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, with every form as data")
    parser.set_defaults(handler=_units)


def _units(args: argparse.Namespace) -> int:
    if args.json:
        from rootscale.tables import units_data

        print(json.dumps(units_data(), indent=2))
        return 0
    columns = [Column("key"), Column("quantity", folds=True), Column("x becomes"), Column("status")]
    rows = [(u.key, u.label, u.form.text, u.status, f"{u.why} ({u.source})") for u in TABLE]
    make_console().print(FittedTable([*columns, Column("why (source)", folds=True)], rows))
    return 0
