"""The arguments of `rootscale demo`; what trains is imported when it runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    demo = subparsers.add_parser(
        "demo",
        description="Train a small net on digits, switch its batch size 4 -> 16 -> 64 in mid-run with the square root "
        "rule and with wrong ones, compare them with SVAG, and write report.html. Needs the extras 'lab' and 'report'.",
        epilog="example: rootscale demo --out demo",
    )
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="FOLDER", help="default: %(default)s")
    demo.add_argument("--seeds", type=int, default=16, help="default: %(default)s")
    demo.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core")
    demo.set_defaults(handler=_demo)


def _demo(args: argparse.Namespace) -> int:
    from rootscale.cli.run_check import handle_demo

    return handle_demo(args)
