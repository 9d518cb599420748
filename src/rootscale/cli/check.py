"""The arguments of `rootscale check`; what trains and compares is imported when it runs, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rootscale.cli.options import add_rule, add_tolerance, duration, seeds, size
from rootscale.cli.pieces import add_depends, add_pieces

#: Tasks that have a name on the command line.
TASKS = ("digits", "mnist")
TASK_HELP = (
    "file.py:name or module:name of a rootscale.lab.Task, of a function that makes one, or of a training function "
    f"train(batch_size, seed, log, convert); or {', '.join(TASKS)} (the folder that holds the data of the last two is "
    "ROOTSCALE_DATA)"
)
#: Trackers that runs can be logged to: the keys of `rootscale.integrations.trackers.TRACKERS`.
TRACKERS = ("tensorboard", "wandb", "mlflow")


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    check = subparsers.add_parser(
        "check",
        description="Train a task as it is and at other batch sizes, compare the mean trajectories with simultaneous "
        "confidence bands, and print a verdict: same, different or undecided, and why. The same command resumes a "
        "check that was stopped. Exit code: 0 same, 1 different, 3 undecided.",
        epilog="examples:\n"
        "rootscale check my_task.py:task --to 16 64 --ell 2 --switch-at 25%\n"
        "rootscale check train.py:train --batch-size 16 --to 64\n"
        'rootscale check --command "python train.py {batch_size} {lr} {seed} {log}" '
        "--values optimizer=adamw lr=3e-4 --batch-size 16 --to 64",
    )
    check.add_argument(
        "task", metavar="TASK", nargs="?",
        help=TASK_HELP,
    )  # fmt: skip
    what = check.add_argument_group("what is compared")
    what.add_argument("--to", type=size, nargs="+", default=[], metavar="B", help="batch sizes to compare with")
    add_rule(what, several=True)
    what.add_argument(
        "--keep", nargs="+", default=[], metavar="ROW", help="rows of `rootscale units` that are not converted"
    )
    what.add_argument(
        "--ell", type=float, nargs="+", default=[], metavar="ELL", help="SVAG, which simulates the SDE, at these ell"
    )
    what.add_argument(
        "--switch-at", default="0", metavar="SAMPLES",
        help="switch in mid-run, after so many samples or a share such as 25%%; of your own loop, the path of its "
        "checkpoint ({seed} is the seed); default: from scratch",
    )  # fmt: skip
    what.add_argument(
        "--stop", metavar="SAMPLES", help="end the runs there, samples or a share; default: the plan's end"
    )
    add_loop(check.add_argument_group("your own loop"))
    add_verdict(check.add_argument_group("the verdict"))
    runs = check.add_argument_group("the runs")
    add_runs(runs)
    add_pieces(runs)
    runs.add_argument("--report", type=Path, metavar="FILE", help="the HTML report; default: report.html in the folder")
    check.set_defaults(handler=_check)


def add_loop(own: Any) -> None:
    """Add what says which loop of the user's own is run."""
    own.add_argument(
        "--command", dest="own_command", metavar="TEXT", help="a command that makes a run, instead of TASK, with "
        "{batch_size}, {seed}, {log} (a file for JSON lines) and the values of --values filled in",
    )  # fmt: skip
    own.add_argument("--batch-size", type=size, metavar="B", help="of the base")
    own.add_argument("--plan", type=Path, metavar="FILE", help="the run as it is, as JSON, for --command")
    own.add_argument(
        "--values", nargs="+", default=[], metavar="NAME=VALUE", help="the run as it is: the options of `rootscale "
        "scale`, such as optimizer=adamw lr=3e-4 betas=0.9,0.95 steps=10000",
    )  # fmt: skip
    own.add_argument(
        "--log", metavar="PATH", help="what --command logs to, of any format that `rootscale compare` reads; "
        "{batch_size}, {seed} and {folder} are filled in; default: {log}",
    )  # fmt: skip
    own.add_argument("--clock", metavar="COLUMN", help="of the log, that counts samples or tokens")
    own.add_argument("--window", type=float, metavar="W", help="width of the smoothing of the log, on the clock")


def add_verdict(
    how: Any, budget: str = "with --seeds auto: add no more seeds after so long, such as 90s, 30m or 2h; default: none"
) -> None:
    """Add what makes runs the same, and how many there are."""
    how.add_argument(
        "--seeds", type=seeds, default="auto", metavar="N", help="runs of each kind; auto takes 4, and more until all "
        "verdicts are decided; default: %(default)s",
    )  # fmt: skip
    how.add_argument(
        "--budget", type=duration, metavar="TIME", help=budget,
    )  # fmt: skip
    add_tolerance(how)
    how.add_argument(
        "--quick", action="store_true", help="a first answer: 4 seeds and no more, and half as much measuring"
    )
    how.add_argument(
        "--measure-share", type=float, metavar="SHARE", help="of the work, the most that is measuring: points, samples "
        "and noise are chosen to fit; default: 0.2, unless --points or --eval-samples is given",
    )  # fmt: skip
    how.add_argument("--points", type=int, metavar="N", help="of the time grid, at most; default: 40")
    how.add_argument(
        "--eval-samples", type=int, metavar="N",
        help="training samples, and test samples, on which test functions are measured, at most; default: 2048",
    )  # fmt: skip
    how.add_argument(
        "--decide-by", nargs="+", metavar="FUNCTION", help="test functions on which the verdict rests; default: the "
        "train loss and the test loss",
    )  # fmt: skip


def add_runs(run: Any) -> None:
    """Add where and how runs are made."""
    run.add_argument("--out", type=Path, metavar="FOLDER", help="of the runs and the result; default: runs/TASK")
    run.add_argument("--device", default="cpu", help="default: %(default)s")
    run.add_argument("--fast", action="store_true", help="CUDA graphs, bfloat16 and torch.compile on a GPU")
    run.add_argument("--micro", type=int, metavar="N", help="most samples of a run through its model at once")
    run.add_argument(
        "--together", type=int, default=16, metavar="N", help="most seeds in one program; default: %(default)s"
    )
    run.add_argument("--workers", type=int, metavar="N", help="processes; default: one for each core, one on a GPU")
    run.add_argument("--engine", choices=["processes", "ray"], default="processes", help="where; default: %(default)s")
    run.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster; default: a new one on this machine")
    run.add_argument("--gpus-per-run", type=float, default=0.0, metavar="N", help="on the Ray cluster")
    add_depends(run)
    run.add_argument("--epochs", action="store_true", help="sample by epochs, not with replacement")
    run.add_argument(
        "--track", choices=TRACKERS, help="log the runs to a tracker too: event files beside them, or the tracker's "
        "own settings (its project is rootscale)",
    )  # fmt: skip


def _check(args: argparse.Namespace) -> int:
    from rootscale.cli.run_check import handle_check

    return handle_check(args)
