"""The arguments of `rootscale reproduce`; torch is imported when it runs, not before."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.console import console as make_console

if TYPE_CHECKING:
    from rootscale.paper.experiment import Experiment, Options

__all__ = ["add_parsers"]

UNFINISHED = 3


def add_parsers(subparsers: Any) -> None:
    """Adds the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "reproduce",
        usage="rootscale reproduce NAME ... [option ...] | --list",
        help="run an experiment of the paper again",
        description="Run experiments of the paper, or go on with them: runs that are finished are read, and one that "
        f"was stopped goes on from its checkpoint. The exit status is {UNFINISHED} while runs are missing.",
        epilog="example: rootscale reproduce cifar10-vgg16-adam --epochs 100 --batch-sizes 256 1024 --device cuda "
        "--data DATA --minutes 9",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of experiments, made in this order; see --list")
    parser.add_argument("--list", action="store_true", help="the experiments, what they show and what they cost")
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
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)  # one of those processes
    where.add_argument(
        "--only", nargs="+", default=(), metavar="TEXT",
        help="make only the runs whose name contains one of these texts (or is one of them), and collect all that are "
        "finished: several processes may work on one experiment at once",
    )  # fmt: skip
    parser.set_defaults(handler=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from rich.console import Console

    from rootscale.paper.experiments import experiments

    found = experiments()
    if args.list:
        _list(Console(highlight=False, soft_wrap=True), found)
        return 0
    wrong = [name for name in args.names if name not in found]
    if wrong or not args.names:
        got = ", ".join(map(repr, wrong)) or "none"
        raise ValueError(f"an experiment is needed, one of {', '.join(found)}; got {got}")
    several = [f"--{name}" for name in ("out", "runs", "only") if getattr(args, name)]
    if len(args.names) > 1 and several:
        raise ValueError(f"{' and '.join(several)} can be given for one experiment, got {len(args.names)} experiments")
    if args.processes < 1:
        raise ValueError(f"--processes must be at least 1, got {args.processes}")
    chosen = {name: _options(args, found[name]) for name in args.names}
    failed = False
    if args.processes > 1:
        make_console().print(f"{args.processes} processes make the runs of {', '.join(chosen)}", markup=False)
        failed = _in_processes(args)
        args.minutes = 0.0  # what they have made is collected here
    began, status = time.monotonic(), 0
    for name, options in chosen.items():
        left = None if args.minutes is None else max(0.0, args.minutes - (time.monotonic() - began) / 60)
        status = max(status, _run(args, found[name], options, left))
    return 1 if failed else status


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


def _run(args: argparse.Namespace, experiment: Experiment, options: Options, minutes: float | None) -> int:
    """One experiment."""
    from rootscale.paper import running, stored

    folder = experiment.folder(options)
    place = Path("build/smoke") if args.smoke else Path()
    out = args.out or place / "results" / folder
    runs = args.runs or place / "runs" / folder
    console = make_console()
    if not args.worker:
        console.print(f"{experiment.title}: {experiment.command(options)}", markup=False, soft_wrap=True)
    complete = running.reproduce(
        experiment, options, out, runs,
        minutes=minutes, together=args.together, only=args.only, shared=args.worker, console=console,
    )  # fmt: skip
    if args.worker:
        return 0 if complete else UNFINISHED
    if (out / "experiment.json").exists() and experiment.words is not None:
        console.print(stored.table(experiment, out))
        console.print(stored.outcome(experiment, out), markup=False, soft_wrap=True)
    if not complete:
        console.print(f"not finished: the same command goes on; runs are in {runs}", markup=False, soft_wrap=True)
    elif args.only:
        console.print("finished what --only asks for; without it, the rest is made", markup=False, soft_wrap=True)
    elif experiment.script is None:
        console.print(f"wrote {out}", markup=False, soft_wrap=True)
    return 0 if complete else UNFINISHED


def _in_processes(args: argparse.Namespace) -> bool:
    """Several processes of the same command, which share the runs; gives whether one of them failed.

    They have sessions of their own, so that Ctrl-C reaches them once, from here.
    """
    words = [sys.executable, "-m", "rootscale", *args.words, "--processes", "1", "--worker"]
    threads = str(max(1, (os.cpu_count() or 1) // args.processes))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    processes = [subprocess.Popen(words, env=environment, start_new_session=True) for _ in range(args.processes)]
    interrupted = False
    while any(process.poll() is None for process in processes):
        try:
            for process in processes:
                process.wait()
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            for process in processes:
                process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return any(process.returncode not in (0, UNFINISHED) for process in processes)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _list(console: Any, found: Any) -> None:
    for experiment in found.values():
        console.print(f"[bold]{experiment.name}[/bold]  {experiment.title}")
        console.print(f"    {experiment.claim}.", markup=False)
        console.print(
            f"    Paper: {experiment.source}. About {experiment.minutes:g} minutes on one H200.", markup=False
        )
