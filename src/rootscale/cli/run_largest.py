"""What `rootscale check --find-largest` does, and how it prints it."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rootscale.cli.console import make_console
from rootscale.cli.run_check import folder_name, make_executor, measure_of, samples_at, seeds_of, start_of, subject_of
from rootscale.cli.verdicts import EXIT, write_report
from rootscale.cli.watching import observing, stoppable, tracker
from rootscale.compare import Alignment
from rootscale.files import command_line, write_json
from rootscale.format import few_digits, listed, show
from rootscale.lab import Judge, Largest, Loop, Search, Setup, Store, find_largest
from rootscale.lab.largest import KAPPAS
from rootscale.lab.rounds import Rounds
from rootscale.rules import rule_text
from rootscale.tolerance import Tolerance, tolerance_text

__all__ = ["handle_largest"]


def handle_largest(args: argparse.Namespace) -> int:
    """Run `rootscale check --find-largest`."""
    task = subject_of(args)
    total = 0 if isinstance(task, Loop) else int(task.plan.samples or 0)
    size = Fraction(task.batch_size if isinstance(task, Loop) else task.plan.batch_size.total)
    if len(args.rule) > 1 or args.ell:
        raise ValueError("--find-largest takes one --rule, and no --ell")
    kappas = [to / size for to in args.to] or KAPPAS
    rule = rule_text(args.rule[0], args.averaging, args.keep)
    folder = args.out or Path("runs") / f"{folder_name(task.name)}-largest"
    console = make_console()
    measure = measure_of(args)
    with stoppable(folder), observing(console, tracker(args.track)) as observe:
        found = find_largest(
            task,
            Search(
                kappas,
                rule,
                Rounds.of(seeds_of(args), args.budget),
                Judge(args.tolerance, args.level, args.decide_by, args.looks),
            ),
            starts=[start_of(text, task, total) for text in args.switch_at],
            stop=None if args.stop is None else samples_at("--stop", args.stop, total),
            measure=measure,
            setup=Setup(args.device, args.micro, fast=args.fast, replacement=not args.epochs),
            alignment=Alignment(clock=args.clock, window=args.window, points=measure.points),
            execute=make_executor(args),
            store=Store(folder, command=command_line("rootscale", sys.argv[1:])),
            observe=observe,
        )
    write_json(folder / "largest.json", found.to_dict())
    _show(found, args.tolerance, console)
    for number, branch in enumerate(found.branches):
        write_report(branch.check, folder / f"start-{number}" / "report.html", console)
    return EXIT["same" if found.ramp else "undecided"]


def _show(found: Largest, tolerance: Tolerance, console: Console) -> None:
    """Print the largest batch from each start, next to what the noise scale allows, and the ramp."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("start, samples", "largest that is the same", "different from", "the noise scale allows", "runs"):
        table.add_column(column, overflow="fold")
    for branch in found.branches:
        table.add_row(
            show(branch.samples),
            f"[bold green]{show(branch.same)}[/]" if branch.same > branch.base else "[yellow]none[/]",
            "not seen" if branch.different is None else show(branch.different),
            branch.unknown if branch.advice is None else few_digits(branch.advice.batch_size),
            str(branch.runs),
        )
    console.print(table)
    console.print(
        f"\nThe largest batch size that is the same within {tolerance_text(tolerance)} lies between the second column "
        "and the third. It is assumed that larger batches are further away."
    )
    stages = [f"{show(size)} from {show(at)} samples on" for at, size in found.ramp]
    arms = [arm for branch in found.branches for arm in branch.check.others]
    unknown = list(dict.fromkeys(arm.label for arm in arms if arm.verdict == "undecided"))
    if stages:
        console.print(f"A ramp: {listed(stages)}.")
    elif unknown:
        console.print(f"No larger batch is known to be the same; more seeds for {listed(unknown)} may tell.")
    else:
        console.print("No larger batch is the same: switch later.")
