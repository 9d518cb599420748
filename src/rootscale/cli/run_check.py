"""What `rootscale check` and `rootscale demo` do, and how they print it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from rootscale.cli.check import TASKS
from rootscale.cli.console import make_console
from rootscale.cli.options import refuse_unused
from rootscale.cli.own_loop import loop_of_command, loop_of_function, loop_start
from rootscale.cli.pieces import collected, in_pieces, make_pieces, refuse_pieces, store_of
from rootscale.cli.verdicts import EXIT, print_notes, print_verdicts, write_report
from rootscale.cli.watching import duration, observing, stoppable, tracker
from rootscale.compare.alignment import Alignment
from rootscale.compare.result import Result, Table
from rootscale.files import need_folder
from rootscale.format import few_digits, show
from rootscale.lab.checking import check, study_of
from rootscale.lab.cost import Cost, estimate_cost
from rootscale.lab.execute import Execute, Forked, default_executor
from rootscale.lab.loop import Loop, is_train_function
from rootscale.lab.recommendation import recommend
from rootscale.lab.rounds import FIRST, Rounds
from rootscale.lab.settings import SHARE, Measure, Settings, Setup
from rootscale.lab.store import Store
from rootscale.lab.study import need_seeds
from rootscale.lab.task import Task, as_task, load_named
from rootscale.lab.tasks import digits
from rootscale.lab.variant import Variant
from rootscale.noise import advise, noise_at_start
from rootscale.plan import Plan
from rootscale.rules import rule_text
from rootscale.verdict import Judge

#: Samples seen before the batch size of the demo goes from 4 to 16, and to 64.
DEMO_SWITCH, DEMO_MIDDLE = 12_000, 26_000
#: The share of measuring in a quick check.
QUICK_SHARE = 0.1


def handle_check(args: argparse.Namespace) -> int:
    """Run `rootscale check`."""
    task = subject_of(args)
    variants = _variants(args, task)
    total = 0 if isinstance(task, Loop) else int(task.plan.samples or 0)
    folder = args.out or Path("runs") / folder_name(task.name)
    if args.report is not None:
        need_folder(args.report, "report", "--report")
    console = make_console()
    start, stop = (
        start_of(args.switch_at, task, total),
        None if args.stop is None else samples_at("--stop", args.stop, total),
    )
    measure, execute = measure_of(args), make_executor(args)
    setup = Setup(args.device, args.micro, fast=args.fast, replacement=not args.epochs)
    judge = Judge(args.tolerance, args.level, args.decide_by, args.looks)
    seeds = seeds_of(args)
    study = study_of(
        task, variants, start, stop, measure=measure, setup=setup, judge=judge,
        alignment=Alignment(clock=args.clock, window=args.window),
    )  # fmt: skip
    first = Rounds.of(seeds, args.budget).first
    if args.seed is None:
        need_seeds(first)
    refuse_pieces(args)
    study = replace(study, seeds=seeds)
    study.refuse(first if args.seed is None else [args.seed])
    if isinstance(task, Task) and args.device.startswith("cpu"):
        _say_cost(estimate_cost(task, variants, study.settings), study.settings, seeds, execute)
    store = store_of(folder, args)
    with stoppable(folder / "runs"), observing(console, tracker(args.track)) as observe:
        if in_pieces(args):
            make_pieces(study, args, store, execute, observe, console)
            return 0
        found = collected(study, store) if args.collect else study.run(store, execute, observe, args.budget)
    show_check(found, console)
    write_report(found, args.report or folder / "report.html", console)
    return EXIT[found.verdict if len(found.others) == len(variants) else "undecided"]


def handle_demo(args: argparse.Namespace) -> int:
    """Run `rootscale demo`: digits, from B = 4 to 16 and 64 in mid-run, by the rule and by wrong ones, and SVAG."""
    task, console = digits(samples=40_000), make_console()
    console.print(
        f"[bold]Digits[/], a net 64-32-10, Adam, batch size 4. After {show(DEMO_SWITCH)} samples the batch size goes "
        f"from 4 to 16, and after {show(DEMO_MIDDLE)} to 64: by the square root rule with the state converted, and by "
        "half-measures. SVAG with ell = 2 simulates the SDE behind all of them. "
        f"{args.seeds} seeds of each.\n"
    )
    ramp = ((DEMO_MIDDLE, 16),)
    variants = [
        Variant(4, ramp=ramp, name="the square root rule"),
        Variant(4, "without v, step_counter", ramp=ramp, name="hyperparameters, not the state"),
        Variant(4, "linear", ramp=ramp, name="linear rule"),
        Variant(4, "sqrt-eta", ramp=ramp, name="learning rate only"),
        Variant(4, "none", ramp=ramp, name="nothing but the batch size"),
        Variant(ell=2),
    ]
    with stoppable(args.out / "runs"), observing(console) as observe:
        found = check(
            task,
            variants,
            seeds=args.seeds,
            switch_at=DEMO_SWITCH,
            measure=Measure(points=30),
            judge=Judge(decide_by=["train loss"]),  # 360 test images are too few to tell independent runs apart
            execute=Forked(args.workers),
            store=Store(args.out, command=f"rootscale demo --seeds {args.seeds}"),
            observe=observe,
        )
    show_noise(found, task.plan, console)
    show_check(found, console)
    write_report(found, args.out / "report.html", console)
    return 0


# -- arguments -------------------------------------------------------------------------------------------------------


def subject_of(args: argparse.Namespace) -> Task | Loop:
    """Return what is checked: the command, or the task or training function that TASK leads to."""
    text = args.task
    if (text is None) == (args.own_command is None):
        raise ValueError("give TASK, or a command with --command; one of them")
    if text is None:
        refuse_unused(args, args.words, "command")
        return loop_of_command(args)
    if ":" not in text and text not in TASKS:
        raise ValueError(f"TASK must be file.py:name, module:name, or one of {', '.join(TASKS)}; got {text!r}")
    where = text if ":" in text else f"rootscale.lab.tasks:{text}"
    found = load_named(where)
    if is_train_function(found):
        refuse_unused(args, args.words, "loop")
        return loop_of_function(where, found, args)
    task = as_task(where, found)
    refuse_unused(args, args.words, "task")
    return task


def start_of(text: str, task: Task | Loop, total: int) -> int | str:
    return loop_start(text) if isinstance(task, Loop) else samples_at("--switch-at", text, total)


def _variants(args: argparse.Namespace, task: Task | Loop) -> list[Variant]:
    size = Fraction(task.batch_size if isinstance(task, Loop) else task.plan.batch_size.total)
    rules = [rule_text(rule, args.averaging, args.keep) for rule in args.rule]
    found = [Variant(to / size, rule) for to in args.to for rule in rules]
    found = [variant for variant in found if variant.kappa != 1] + [Variant(ell=ell) for ell in args.ell if ell != 1]
    found = list(dict.fromkeys(found))
    if not found:
        raise ValueError(
            f"nothing to compare with batch size {show(size)}: give others with --to, or SVAG with --ell; "
            f"for example --to {show(4 * size)}"
        )
    return found


def make_executor(args: argparse.Namespace) -> Execute:
    if args.engine == "ray":
        from rootscale.integrations.executors import OnRay

        return OnRay(args.address, args.gpus_per_run, together=args.together)
    return default_executor(args.device, args.workers, args.together)


def seeds_of(args: argparse.Namespace) -> int | Literal["auto"]:
    """Return how many seeds there are; of a quick check, the first few and no more."""
    given: int | Literal["auto"] = args.seeds
    return FIRST if args.quick and given == "auto" else given


def measure_of(args: argparse.Namespace, norms: bool = False) -> Measure:
    """Return what is measured: as much as the share allows, but for numbers that were given."""
    given = {"points": args.points, "eval_samples": args.eval_samples}
    given = {name: value for name, value in given.items() if value is not None}
    share = args.measure_share
    if share is None and not given:
        share = QUICK_SHARE if args.quick else SHARE
    return Measure(**given, share=share, norms=norms)


def _say_cost(cost: Cost, settings: Settings, seeds: int | str, execute: Execute) -> None:
    """Print, before anything is run, about how long it takes."""
    count, more = (seeds, "") if isinstance(seeds, int) else (FIRST, " at first")
    measure = settings.measure
    short = ""
    if measure.share is not None and cost.share > 1.1 * measure.share:
        short = f" (more than {100 * measure.share:.0f} %: the runs are too short for less)"
    print(
        f"about {duration(cost.seconds(count, execute.workers()))} for {cost.runs} kinds of runs with {count} seeds"
        f"{more}, {100 * cost.share:.0f} % of it measuring: {len(settings.grid)} points on {measure.eval_samples:,} "
        f"samples{short}; runs that are stored are not made again",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def folder_name(name: str) -> str:
    """Return the name of a task as that of a folder: no path, and nothing that leads elsewhere.

    >>> folder_name("../my task"), folder_name("..")
    ('my-task', 'task')
    """
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task"


def samples_at(flag: str, text: str, total: int) -> int:
    """Return a number of samples, given as such or as a share of the run, whose length a loop does not tell."""
    if text.endswith("%") and not total:
        raise ValueError(f"{flag} takes a number of samples where a loop of your own is checked, got {text!r}")
    try:
        return int(float(text[:-1]) / 100 * total) if text.endswith("%") else int(float(text))
    except (OverflowError, ValueError):
        raise ValueError(f"{flag} takes samples or a share such as 25%, got {text!r}") from None


# -- printing --------------------------------------------------------------------------------------------------------


def show_noise(found: Table, plan: Plan, console: Console) -> None:
    """Print the noise scale when the runs begin, and how far it allows to go."""
    noise = noise_at_start(found.base.trajectory)
    assert noise is not None
    advice = advise(plan, noise)
    console.print(
        f"At the start of the comparison the noise scale is {escape(str(noise.scale))} samples, with its 95 % interval "
        f"over {noise.steps} seeds. That allows batches of up to {few_digits(advice.batch_size)} samples, "
        f"{few_digits(advice.kappa)} times as large.\n"
    )


def show_check(found: Table, console: Console) -> None:
    """Print the verdicts as a table, and what is behind them."""
    start = f"switched after {show(found.switch_at)} samples" if found.switch_at else "from scratch"
    if "checkpoint" in found.made:
        start = f"from {found.made['checkpoint']}"
    numbers = sorted({arm.trajectory.replicas for arm in (found.base, *found.others)})
    seeds = f"{' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} seeds each"
    console.print(
        f"[bold]{escape(found.task)}[/]: runs {start}, each compared with {escape(found.base.label)} ({seeds}):\n"
    )
    if "reused" in found.made:
        console.print(f"[dim]{_reuse(**found.made['reused'])}[/]\n", soft_wrap=True)
    if found.others:
        print_verdicts(found, console)
    if "missing" in found.made:
        console.print(f"Not finished: {escape('; '.join(found.made['missing']))}.", soft_wrap=True)
    for arm in found.others:
        _explain(arm, console)
    print_notes(found, console)
    advice = recommend(found)
    if advice:
        console.print("\n[bold]What to do[/]")
    for sentence in advice:
        console.print(f"  {escape(sentence)}", soft_wrap=True)


def _reuse(runs: int, of: int, made: Sequence[str]) -> str:
    """Return in words how many runs were reused, and from when they are.

    >>> _reuse(8, 8, ["2026-11-18 09:00"]), _reuse(0, 8, [])
    ('8 of 8 runs were there already, of 2026-11-18 09:00 (--fresh makes all anew).', 'All 8 runs are new.')
    """
    if not runs:
        return f"All {of} runs are new."
    return f"{runs} of {of} runs were there already, of {' to '.join(made)} (--fresh makes all anew)."


def _explain(arm: Result, console: Console) -> None:
    assert arm.comparison is not None
    words = {
        "likely": arm.causes, "note": arm.comparison.notes, "warning": arm.guards if not arm.causes else (),
    }  # fmt: skip
    for what, texts in words.items():
        for text in texts[:3]:
            console.print(f"  {escape(arm.label)}: {what}: {escape(text)}", soft_wrap=True)
