"""The arguments of `rootscale reproduce`; torch is imported when it runs, not before."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.console import make_console, progress, unclipped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rootscale.paper.experiment import Experiment, Options
    from rootscale.paper.finals import Final
    from rootscale.paper.work import Work

UNFINISHED = 3


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "reproduce",
        usage="rootscale reproduce NAME ... [option ...] | --list",
        description="Run experiments of the paper, or resume them: finished runs are read, and one that was stopped is "
        f"resumed from its checkpoint. The exit status is {UNFINISHED} while runs are missing.",
        epilog="example: rootscale reproduce cifar10-vgg16-adam --epochs 100 --batch-sizes 256 1024 --device cuda "
        "--data DATA --minutes 9",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of experiments, made in this order; see --list")
    parser.add_argument("--list", action="store_true", help="the experiments, what they show and what they cost")
    parser.add_argument("--json", action="store_true", help="the list as JSON")
    parser.add_argument("--smoke", action="store_true", help="a small net on generated data, on the CPU in a minute")
    change = parser.add_argument_group("the experiment (default: as listed)")
    change.add_argument("--epochs", type=float, metavar="N", help="length of the runs, also a part of one such as 0.25")
    change.add_argument("--batch-sizes", type=int, nargs="+", metavar="B", help="of the runs")
    change.add_argument("--seeds", type=int, metavar="N", help="runs of each kind; a verdict needs 4")
    change.add_argument("--eps", type=float, help="of the optimizer; 1e-8 and 1e-30 in the paper")
    change.add_argument("--model", metavar="NAME", help="where the experiment leaves a choice")
    change.add_argument("--ells", type=float, nargs="+", metavar="ELL", help="of SVAG")
    change.add_argument("--points", type=int, metavar="N", help="at which runs are measured")
    change.add_argument(
        "--recipe", metavar="TEXT",
        help="of a run on CIFAR-10: house or authors, and +FACTOR of decays, head, bias-correction, warm-up, groups, "
        "fp32, v_k, such as authors+groups",
    )  # fmt: skip
    change.add_argument(
        "--paper-batchnorm", action="store_true", default=None,
        help="leave BatchNorm's momentum at .1 at every batch size, as in the paper",
    )  # fmt: skip
    where = parser.add_argument_group("where and how long")
    where.add_argument("--device", help="such as cuda; default: cuda where there is one (cpu for --smoke)")
    where.add_argument("--data", metavar="FOLDER", help="that holds the data; default: ROOTSCALE_DATA")
    where.add_argument("--out", type=Path, metavar="FOLDER", help="of the results; default: results/NAME")
    where.add_argument("--runs", type=Path, metavar="FOLDER", help="of runs and checkpoints; default: runs/NAME")
    where.add_argument("--together", type=int, default=1, metavar="N", help="seeds trained at once; default: 1")
    where.add_argument(
        "--minutes", type=float, metavar="M",
        help="stop after that time, with checkpoints; 0 runs nothing and collects what is finished",
    )  # fmt: skip
    where.add_argument(
        "--processes", type=int, default=1, metavar="N",
        help="that share the runs; on a GPU, small batches leave room for several (default: 1)",
    )  # fmt: skip
    where.add_argument(
        "--only", nargs="+", default=(), metavar="TEXT",
        help="make only the runs whose name contains one of these texts (or is one of them), and collect all that are "
        "finished: several processes may work on one experiment at once",
    )  # fmt: skip
    where.add_argument(
        "--complete", action="store_true",
        help="keep the runs that the folder of results holds, and make only seeds and rows that it lacks",
    )  # fmt: skip
    parser.set_defaults(handler=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from rootscale.cli.watching import speaking
    from rootscale.paper.experiments import experiments
    from rootscale.paper.running import reproduce_all
    from rootscale.paper.work import How, Watch

    found, console = experiments(), make_console()
    if args.list or args.json:
        _list(console, found, args.json)
        return 0
    wrong = [name for name in args.names if name not in found]
    if wrong or not args.names:
        got = ", ".join(map(repr, wrong)) or "none"
        raise ValueError(f"an experiment is needed, one of {', '.join(found)}; got {got}")
    several = [f"--{name}" for name in ("out", "runs", "only") if getattr(args, name)]
    if len(args.names) > 1 and several:
        raise ValueError(f"{' and '.join(several)} can be given for one experiment, got {len(args.names)} experiments")
    how = How(args.minutes, args.together, args.processes, tuple(args.only), args.complete)
    works = [_work(args, found[name]) for name in args.names]
    if os.environ.get("RANK", "0") != "0":  # of several processes that torchrun started, the first prints
        console.quiet = True
        logging.getLogger("rootscale").setLevel(logging.WARNING)
    for work in works:
        _print(console, f"{work.experiment.title}: {work.experiment.command(work.options)}")
    with progress(console) as bar:

        def ended(number: int, total: int, run: str, outcome: str) -> None:
            _print(console, f"{number} of {total}: {run}: {outcome}")

        complete = reproduce_all(works, how, Watch(speaking(console, bar), ended))
    for work, done in zip(works, complete, strict=True):
        _show(console, work, done, bool(args.only))
    return 0 if all(complete) else UNFINISHED


def _options(args: argparse.Namespace, experiment: Experiment) -> Options:
    return experiment.options(
        smoke=args.smoke,
        device=args.device or ("cpu" if args.smoke else _device()),
        batch_sizes=None if args.batch_sizes is None else tuple(args.batch_sizes),
        ells=None if args.ells is None else tuple(args.ells),
        **{
            name: getattr(args, name)
            for name in ("epochs", "seeds", "eps", "model", "points", "paper_batchnorm", "recipe", "data")
        },
    )


def _work(args: argparse.Namespace, experiment: Experiment) -> Work:
    """Return what is asked of an experiment, and where it goes."""
    from rootscale.paper.work import Work

    options = _options(args, experiment)
    folder, place = experiment.folder(options), Path("build/smoke") if args.smoke else Path()
    return Work(experiment, options, args.out or place / "results" / folder, args.runs or place / "runs" / folder)


def _show(console: Console, work: Work, complete: bool, part: bool) -> None:
    """Print what an experiment came to."""
    from rootscale.paper import stored

    experiment = work.experiment
    if (work.out / "experiment.json").exists() and experiment.words is not None:
        console.print(_table(experiment, stored.finals_of(work.out)))
        _print(console, stored.outcome(experiment, work.out))
    if not complete:
        _print(console, f"not finished: the same command resumes it; runs are in {work.runs}")
    elif part:
        _print(console, "finished what --only asks for; without it, the rest is made")
    elif experiment.script is None:
        _print(console, f"wrote {work.out}")


def _table(experiment: Experiment, finals: Sequence[Final]) -> Table:
    """Return the final values as a table for the terminal."""
    from rich import box
    from rich.table import Table

    from rootscale.paper.finals import MEASURES, format_curve, format_end, format_gap

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("run")
    shown = MEASURES[experiment.measure]
    for column in ("seeds", *shown.values(), "less the base's", "gap of train loss", "seconds"):
        made.add_column(column, justify="right")
    for i, final in enumerate(finals):
        ends = [format_end(name, final.end(name)) for name in shown]
        gap = format_gap(experiment.measure, final.end(experiment.measure)) if i else ""
        curve = format_curve(final, "train loss") if i else ""
        made.add_row(final.label, str(final.seeds), *ends, gap, curve, f"{final.seconds:.0f}")
    return unclipped(made)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _device() -> str:
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks without CUDA: processes can still be forked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _list(console: Console, found: Mapping[str, Experiment], as_json: bool) -> None:
    if as_json:
        keys = ("title", "claim", "source", "minutes")
        print(json.dumps({name: {key: getattr(one, key) for key in keys} for name, one in found.items()}, indent=2))
        return
    for experiment in found.values():
        console.print(f"[bold]{experiment.name}[/bold]  {experiment.title}", soft_wrap=True)
        _print(console, f"    {experiment.claim}.")
        _print(console, f"    Paper: {experiment.source}. About {experiment.minutes:g} minutes on one H200.")
