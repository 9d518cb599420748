"""What `rootscale compare` does, and how it prints it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rootscale.cli.console import make_console
from rootscale.cli.verdicts import EXIT, print_notes, print_verdicts, write_report
from rootscale.files import command_line, need_folder
from rootscale.format import show
from rootscale.integrations.logs import read_logs
from rootscale.lab import Judge, Result, Table, compare
from rootscale.logs import Alignment, Log

__all__ = ["handle_compare"]


def handle_compare(args: argparse.Namespace) -> int:
    """Run `rootscale compare`."""
    if args.report is not None:
        need_folder(args.report, "report", "--report")
    sides = [read_logs(paths) for paths in (args.base, *args.to)]
    found = compare(
        *sides,
        names=args.names or _names([args.base, *args.to], sides, args.batch_size),
        alignment=Alignment(
            args.metric, args.clock, args.batch_size, args.window, args.points, args.start, args.stop
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
    """Return a name for each side: its batch size, or the folder or file that its logs have in common."""
    known: list[float | None] = [*sizes] or [logs[0].batch_size for logs in sides]
    if None not in known and len(set(known)) == len(sides):
        return [f"B = {show(size)}" for size in known]
    names = [_common(some) for some in paths]
    return names if len(set(names)) == len(names) and all(names) else []


def _common(paths: Sequence[str]) -> str:
    """Return the name of the folder that several paths share, or of the only one.

    >>> _common(["runs/base/a.jsonl", "runs/base/b.jsonl"]), _common(["runs/base"]), _common(["a.csv", "b.csv"])
    ('base', 'base', '')
    """
    if len(paths) == 1:
        return Path(paths[0]).stem
    return (
        Path(os.path.commonpath([os.path.abspath(path) for path in paths])).name
        if all(os.path.dirname(path) for path in paths)
        else ""
    )


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
    from rootscale.report import words

    assert arm.comparison is not None
    return [text for text in (words.parts(arm), words.settles(arm)) if text] + list(arm.comparison.notes)


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
            from rootscale.report import draw_figures

            for path in draw_figures(found, folder, (kind,)):
                console.print(f"A figure: [bold]{escape(str(path))}[/]")
