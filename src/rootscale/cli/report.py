"""The arguments of `rootscale report`; what makes the report is imported when it runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rootscale.compare.result import Table


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    report = subparsers.add_parser(
        "report",
        description="Write what a check found as one HTML page that needs no network: the verdict, the trajectories, "
        "the gaps against the tolerance, the noise scale, the plans and how it was made. Needs the extra 'report'.",
        epilog="example: rootscale report runs/digits -o report.html --pdf figures",
    )
    report.add_argument(
        "runs", type=Path, metavar="RUNS", help="the folder of a check or a study, or its table in a file (.npz)"
    )
    report.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="default: %(default)s"
    )
    report.add_argument(
        "--png", type=Path, metavar="FOLDER", help="also write a PNG of each test function (needs the extra 'plot')"
    )
    report.add_argument(
        "--pdf", type=Path, metavar="FOLDER", help="also write a PDF of each test function (needs it too)"
    )
    report.set_defaults(handler=_report)


def _report(args: argparse.Namespace) -> int:
    from rootscale.report.figures import draw_figures
    from rootscale.report.page import need_plotly, write_page
    from rootscale.report.plotting import need_matplotlib

    need_plotly()  # before the work, not after it
    wanted = [(kind, folder) for kind, folder in (("png", args.png), ("pdf", args.pdf)) if folder is not None]
    if wanted:
        need_matplotlib()
    if args.output.is_dir() or not args.output.parent.is_dir():
        raise ValueError(f"--output must be a file in a folder that exists, got {args.output}")
    check = _load(args.runs)
    try:
        print(write_page(check, args.output))
        for kind, folder in wanted:
            for path in draw_figures(check, folder, (kind,)):
                print(path)
    except OSError as error:
        raise ValueError(f"cannot write {error.filename or args.output}: {error.strerror or error}") from None
    return 0


def _load(folder: Path) -> Table:
    """Return the check in a folder; what is wrong with it is one line."""
    from rootscale.compare.result import Table

    try:
        return Table.load(folder)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename or folder}: {error.strerror or error}") from None
