"""`rootscale largest`: how large may the batch be? What trains and compares is imported when it runs."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.check import TASK_HELP, add_loop, add_runs, add_verdict
from rootscale.cli.options import add_rule

if TYPE_CHECKING:
    from rich.console import Console

    from rootscale.lab.largest import Largest
    from rootscale.tolerance import Tolerance


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "largest",
        description="Find the largest batch size that trains the same: from a checkpoint, or several along a run, "
        "branches are run at growing batch sizes and compared with the run as it is; one that is clearly different is "
        "stopped on its way and ends the search. The answer has its interval, the noise scales beside it, and the ramp "
        "that several checkpoints give. The same command goes on where it was stopped. Exit code: 0 a larger batch is "
        "the same, 3 none is known to be.",
        epilog="examples:\n"
        "rootscale largest train.py:train --batch-size 16 --switch-at ckpt/1000.pt ckpt/5000.pt --budget 30m\n"
        "rootscale largest my_task.py:task --switch-at 5% 25% --to 32 64 128\n"
        'rootscale largest --command "python train.py {batch_size} {lr} {seed} {checkpoint} {log}" '
        "--values optimizer=adamw lr=3e-4 --batch-size 16 --switch-at ckpt/5000.pt",
    )
    parser.add_argument("task", metavar="TASK", nargs="?", help=TASK_HELP)
    what = parser.add_argument_group("what is tried")
    what.add_argument(
        "--to", nargs="+", default=[], metavar="B", help="batch sizes, such as 64 or 0.5K; default: 2 to 64 times that "
        "of the run",
    )  # fmt: skip
    what.add_argument(
        "--switch-at", nargs="+", default=["0"], metavar="START", help="where the branches start, one or several: "
        "samples or a share such as 25%% of a Task, the path of a checkpoint of your own loop ({seed} is the seed); "
        "default: from scratch",
    )  # fmt: skip
    what.add_argument("--stop", metavar="SAMPLES", help="end the branches there, samples or a share; default: the end")
    add_rule(what)
    what.add_argument("--keep", nargs="+", default=[], metavar="ROW", help="rows of `rootscale units` not converted")
    add_loop(parser.add_argument_group("your own loop"))
    budget = "for all of it, such as 30m or 2h: what is not judged by then is said to be open; default: none"
    add_verdict(parser.add_argument_group("the verdict"), budget)
    add_runs(parser.add_argument_group("the runs"))
    parser.set_defaults(handler=_largest)


def _largest(args: argparse.Namespace) -> int:
    from rootscale.cli.console import make_console
    from rootscale.cli.run_check import (
        folder_name,
        make_executor,
        measure_of,
        samples_at,
        seeds_of,
        start_of,
        subject_of,
    )  # fmt: skip
    from rootscale.cli.verdicts import EXIT, write_report
    from rootscale.cli.watching import observing, stoppable, tracker
    from rootscale.compare.alignment import Alignment
    from rootscale.files import command_line, write_json
    from rootscale.lab.largest import KAPPAS, Search, find_largest
    from rootscale.lab.loop import Loop
    from rootscale.lab.rounds import Rounds
    from rootscale.lab.settings import Setup
    from rootscale.lab.store import Store
    from rootscale.rules import rule_text
    from rootscale.sizes import samples_of
    from rootscale.verdict import Judge

    task = subject_of(args)
    plan = task.plan
    total = 0 if isinstance(task, Loop) or plan is None else int(plan.samples or 0)
    size = Fraction(task.batch_size if isinstance(task, Loop) else task.plan.batch_size.total)
    length = None if plan is None else plan.sequence_length
    kappas = [Fraction(samples_of("--to", to, length)) / size for to in args.to] or KAPPAS
    folder = args.out or Path("runs") / f"{folder_name(task.name)}-largest"
    console, measure = make_console(), measure_of(args, norms=True)
    judge = Judge(args.tolerance, args.level, args.decide_by, args.looks)
    with stoppable(folder), observing(console, tracker(args.track)) as observe:
        found = find_largest(
            task,
            Search(kappas, rule_text(args.rule, args.averaging, args.keep), Rounds.of(seeds_of(args)), judge),
            starts=[start_of(text, task, total) for text in args.switch_at],
            stop=None if args.stop is None else samples_at("--stop", args.stop, total),
            measure=measure,
            setup=Setup(args.device, args.micro, fast=args.fast, replacement=not args.epochs),
            alignment=Alignment(clock=args.clock, window=args.window, points=measure.points),
            execute=make_executor(args),
            store=Store(folder, command=command_line("rootscale", sys.argv[1:]), depends=args.depends),
            observe=observe,
            budget=args.budget,
        )
    write_json(folder / "largest.json", found.to_dict())
    _show(found, args.tolerance, length, console)
    for number, branch in enumerate(found.branches):
        if branch.check is not None:
            write_report(branch.check, folder / f"start-{number}" / "report.html", console)
    return EXIT["same" if found.ramp else "undecided"]


def _show(found: Largest, tolerance: Tolerance, length: int | None, console: Console) -> None:
    """Print the largest batch from each start, beside the noise scales there, and the ramp."""
    from rich.table import Table

    from rootscale.format import few_digits, listed, show
    from rootscale.sizes import show_samples
    from rootscale.tolerance import tolerance_text

    names = list(dict.fromkeys(name for branch in found.branches for name in branch.noise))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ("start, samples", "largest that is the same", "different from", "the noise scale allows", "runs")
    for column in (*columns, *(f"noise scale ({name})" for name in names)):
        table.add_column(column, overflow="fold")
    for branch in found.branches:
        best = f"[bold green]{show_samples(branch.same, length)}[/]" if branch.same > branch.base else "[yellow]none[/]"
        table.add_row(
            show(branch.samples),
            best if branch.check is not None else "[yellow]cannot say[/]",
            "not seen" if branch.different is None else show_samples(branch.different, length),
            branch.unknown if branch.advice is None else few_digits(branch.advice.batch_size),
            str(branch.runs),
            *(str(branch.noise.get(name, "")) for name in names),
        )
    console.print(table)
    console.print(
        f"\nThe largest batch size that is the same within {tolerance_text(tolerance)} lies between the second column "
        "and the third. It is assumed that larger batches are further away. Noise scales are in samples, with 95 % "
        "intervals."
    )
    for branch in found.branches:
        if branch.stopped:
            console.print(f"From {show(branch.samples)} samples on: {branch.stopped}.", soft_wrap=True)
    stages = [f"{show_samples(size, length)} from {show(at)} samples on" for at, size in found.ramp]
    arms = [arm for branch in found.branches if branch.check is not None for arm in branch.check.others]
    unknown = list(dict.fromkeys(arm.label for arm in arms if arm.verdict == "undecided"))
    if stages:
        console.print(f"A ramp: {listed(stages)}.")
    elif unknown:
        console.print(f"No larger batch is known to be the same; more seeds for {listed(unknown)} may tell.")
    elif arms:
        console.print("No larger batch is the same: switch later.")
    else:
        console.print("Nothing can be said yet: the same command goes on, with a longer --budget or fewer --seeds.")
