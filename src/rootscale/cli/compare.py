"""The arguments of `rootscale compare`; what compares is imported when it runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rootscale.cli.options import add_tolerance, size


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "compare",
        description="Compare runs that were made anywhere by their logs: JSON lines, CSV, Parquet, TensorBoard event "
        "files, Hugging Face trainer_state.json, Lightning metrics.csv, exports of W&B and MLflow, runs of rootscale. "
        "They are aligned on samples or tokens seen, and judged as by `rootscale check`. Exit code: 0 same, 1 "
        "different, 3 undecided.",
        epilog="example: rootscale compare base/*.jsonl --to big/*.jsonl --batch-size 16 64 --report compare.html",
    )
    parser.add_argument(
        "base", nargs="+", metavar="LOG", help="logs of the base: files, folders of a run, or folders of these"
    )
    parser.add_argument(
        "--to", nargs="+", action="append", required=True, metavar="LOG",
        help="logs of the runs that are compared with it; may be given several times, once for each side",
    )  # fmt: skip
    _add_alignment(parser.add_argument_group("what is compared, and when"))
    _add_verdict(parser.add_argument_group("the verdict"))
    _add_output(parser.add_argument_group("the result"))
    parser.set_defaults(handler=_compare)


def _add_alignment(group: Any) -> None:
    group.add_argument("--metric", nargs="+", default=[], metavar="NAME", help="default: all losses that every run has")
    group.add_argument(
        "--batch-size", nargs="+", default=[], metavar="B",
        help="of the base and of each --to, for logs that count steps: 64, 0.5M, '0.5M tokens'",
    )  # fmt: skip
    group.add_argument(
        "--sequence-length", type=size, metavar="TOKENS", help="of a sample, where --batch-size counts tokens"
    )
    group.add_argument("--clock", metavar="COLUMN", help="that counts samples or tokens; default: one that is known")
    group.add_argument(
        "--window", type=float, metavar="W", help="width of the smoothing, on the clock; 0 for none; default: a "
        "cell of the grid where values are noisy",
    )  # fmt: skip
    group.add_argument("--points", type=int, default=40, help="most points of the grid; default: %(default)s")
    group.add_argument("--start", type=float, metavar="W", help="compare from there on, on the clock")
    group.add_argument("--stop", type=float, metavar="W", help="compare up to there, on the clock")
    group.add_argument(
        "--paired", action="store_true", help="runs of all sides share seeds (start and order of samples), in the "
        "order in which they are given: differences of pairs are compared",
    )  # fmt: skip


def _add_verdict(group: Any) -> None:
    add_tolerance(group)


def _add_output(group: Any) -> None:
    group.add_argument("--names", nargs="+", default=[], metavar="NAME", help="of the base and of each --to")
    group.add_argument("--report", type=Path, metavar="FILE", help="write the HTML report (needs the extra 'report')")
    group.add_argument("--png", type=Path, metavar="FOLDER", help="write a figure of each metric (needs 'plot')")
    group.add_argument("--pdf", type=Path, metavar="FOLDER", help="the same as PDF")
    group.add_argument(
        "--out", type=Path, metavar="FOLDER", help="keep the result there, for `rootscale report FOLDER`"
    )
    group.add_argument("--json", action="store_true", help="print the result as JSON")


def _compare(args: argparse.Namespace) -> int:
    from rootscale.cli.run_compare import handle_compare

    return handle_compare(args)
