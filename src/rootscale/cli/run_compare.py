"""What `rootscale compare` does, and how it prints it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rootscale.cli.console import make_console
from rootscale.cli.verdicts import EXIT, print_notes, print_verdicts, write_report
from rootscale.compare.alignment import Alignment
from rootscale.compare.comparison import compare
from rootscale.compare.log import Log
from rootscale.compare.readers.formats import read_logs
from rootscale.compare.result import Result, Table
from rootscale.files import command_line, need_folder
from rootscale.format import show
from rootscale.sizes import samples_of
from rootscale.verdict import Judge


def handle_compare(args: argparse.Namespace) -> int:
    """Run `rootscale compare`."""
    if args.report is not None:
        need_folder(args.report, "report", "--report")
    sizes = [float(samples_of("--batch-size", text, args.sequence_length)) for text in args.batch_size]
    if args.sequence_length is not None and not sizes:
        raise ValueError("--sequence-length does nothing without --batch-size: leave it out, or add that")
    sides = [read_logs(paths) for paths in (args.base, *args.to)]
    found = compare(
        *sides,
        names=args.names or _names([args.base, *args.to], sides, sizes),
        alignment=Alignment(
            args.metric, args.clock, sizes, args.window, args.points, args.start, args.stop
        ),
        judge=Judge(args.tolerance, args.level, looks=args.looks),
        paired=args.paired,
        command=command_line("rootscale", args.words),
    )  # fmt: skip
    if args.out is not None:
        found.save(args.out)
    console = make_console()
    if args.json:
        print(json.dumps(_as_json(found), indent=2, allow_nan=False))
        console = Console(stderr=True, highlight=False)
    else:
        _show(found, sides, console)
    if args.report is not None:
        write_report(found, args.report, console)
    _draw(found, args, console)
    return EXIT[found.verdict]


def _names(paths: Sequence[Sequence[str]], sides: Sequence[Sequence[Log]], sizes: Sequence[float]) -> list[str]:
    """Return a name for each side: its batch size, or what the names of its logs or their folders have in common."""
    known: list[float | None] = [*sizes] or [logs[0].batch_size for logs in sides]
    if None not in known and len(set(known)) == len(sides):
        return [f"B = {show(size)}" for size in known]
    names = [_common(some) for some in paths]
    if all(name and names.count(name) == 1 for name in names):
        return names
    return [_few(some) if not name or names.count(name) > 1 else name for name, some in zip(names, paths, strict=True)]


def _common(paths: Sequence[str]) -> str:
    """Return what several names have in common, up to a number, or else the folder that they share; empty for nothing.

    >>> _common(["runs/base/a.jsonl", "runs/base/b.jsonl"]), _common(["runs/base"]), _common(["a.csv", "b.csv"])
    ('base', 'base', '')
    >>> _common(["lr-only-0.csv", "lr-only-1.csv"]), _common(["rule_*.csv"])
    ('lr-only', 'rule')
    """
    stems = [Path(path).stem.partition("*")[0] for path in paths]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*stems, strict=False))
    name = "".join(letters[0] for letters in alike)
    if len(paths) > 1 or "*" in paths[0]:  # what numbers the runs is no part of their name
        name = name.rstrip("0123456789")
    folder = os.path.commonpath([os.path.abspath(os.path.dirname(path)) for path in paths])
    in_folders = all(os.path.dirname(path) for path in paths)
    return name.rstrip("-_. ") or (Path(folder).name if in_folders else "")


def _few(paths: Sequence[str]) -> str:
    """Return the first of some paths, and how many more there are.

    >>> _few(["a.csv"]), _few(["a.csv", "b.csv", "c.csv"])
    ('a.csv', 'a.csv and 2 more')
    """
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _show(found: Table, sides: Sequence[Sequence[Log]], console: Console) -> None:
    runs = [f"{len(logs)} run{'s' * (len(logs) > 1)}" for logs in sides]
    others = ", ".join(f"{escape(arm.label)} ({n})" for arm, n in zip(found.others, runs[1:], strict=True))
    console.print(f"{others} compared with [bold]{escape(found.base.label)}[/] ({runs[0]}):\n")
    print_verdicts(found, console)
    for arm in found.others:
        for text in _said(arm):
            console.print(f"  {escape(arm.label)}: {escape(text)}", soft_wrap=True)
    console.print("")
    print_notes(found, console)


def _said(arm: Result) -> list[str]:
    """Return what is behind a verdict: where the curves part, and notes."""
    from rootscale.compare.result import parts, settles

    assert arm.comparison is not None
    return [text for text in (parts(arm), settles(arm)) if text] + list(arm.comparison.notes)


def _as_json(found: Table) -> dict[str, object]:
    """Return the result in JSON's types, without the curves themselves."""
    return {
        "verdict": found.verdict,
        "base": found.base.label,
        "clock": found.base.trajectory.meta["clock"],
        "others": [
            {"label": arm.label, **arm.comparison.to_dict(), "said": _said(arm), **_parting(arm)}
            for arm in found.others
            if arm.comparison is not None
        ],
        **found.made,
    }


def _parting(arm: Result) -> dict[str, object]:
    assert arm.comparison is not None
    return {"parts_at": {gap.name: gap.parts_at(arm.comparison.limit(gap)) for gap in arm.comparison.decisive}}


def _draw(found: Table, args: argparse.Namespace, console: Console) -> None:
    for kind, folder in (("png", args.png), ("pdf", args.pdf)):
        if folder is not None:
            from rootscale.report.figures import draw_figures

            for path in draw_figures(found, folder, (kind,)):
                console.print(f"A figure: [bold]{escape(str(path))}[/]")
