"""`rootscale checkpoint`: checkpoints on disk at another batch size."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.console import make_console, progress, render_changes
from rootscale.cli.options import add_rule
from rootscale.rules import rule_text

if TYPE_CHECKING:
    from rootscale.checkpoints.convert import ConvertedCheckpoint


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "checkpoint",
        description="Rebase a checkpoint for good: the optimizer's hyperparameters and state, the schedulers and the "
        "counters become those of a run with the new batch size, whose script has the numbers for that size. (A "
        "training Run of rootscale needs no such file: it resumes any checkpoint at any batch size.) Prints the reason "
        "of every change, and what remains for you. Nothing in the checkpoint is executed, everything else is kept "
        "byte for byte, and nothing is written without -o.",
        epilog="example: rootscale checkpoint last.pt --from 16 --to 64 --counter iter_num -o last_64.pt",
    )
    parser.add_argument("path", type=Path, metavar="IN", help="the file or folder")
    size = "samples per step%s, or MICROxACCUMULATIONxWORKERS as 32x4x8"
    parser.add_argument("--from", dest="start", required=True, metavar="B", help=size % " it was written at")
    parser.add_argument("--to", required=True, metavar="B", help=size % " it shall be resumed at")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="write the new checkpoint there")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there, or is a link")
    add_rule(parser)
    parser.add_argument(
        "--optimizer", metavar="NAME", help="which optimizer it is (adam, adamw, ...), where the file does not show it"
    )
    key = "the key of %s in a saved dictionary, dotted where nested; may be repeated; default: found"
    parser.add_argument("--optimizer-key", action="append", default=[], metavar="KEY", help=key % "an optimizer")
    parser.add_argument("--scheduler-key", action="append", default=[], metavar="KEY", help=key % "a scheduler")
    parser.add_argument(
        "--counter", action="append", default=[], metavar="KEY",
        help="the key of a number that counts steps of your loop, such as iter_num; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--interval", choices=("step", "epoch"), help="how the scheduler is stepped, where its counters do not show it"
    )
    parser.add_argument("--dataset-size", type=int, metavar="N", help="samples in the data, for tools with epochs")
    parser.add_argument("--format", metavar="FORMAT", help="of the checkpoint; default: found")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=_checkpoint)


def _checkpoint(args: argparse.Namespace) -> int:
    from rootscale.checkpoints.contents import Keys
    from rootscale.checkpoints.convert import convert_checkpoint

    console = make_console()
    with progress(None if args.json else console) as tell:
        converted = convert_checkpoint(
            args.path, args.start, args.to, args.output, rule=rule_text(args.rule, args.averaging),
            keys=Keys(args.optimizer_key, args.scheduler_key, args.optimizer, args.interval, args.counter),
            format=args.format, dataset_size=args.dataset_size, force=args.force, progress=tell,
        )  # fmt: skip
    if args.json:
        print(json.dumps(converted.to_dict(), indent=2))
    else:
        _show(converted, console)
    return 0


def _show(converted: ConvertedCheckpoint, console: Any) -> None:
    console.print(f"{converted.format.title}", style="dim", markup=False)
    console.print(render_changes(converted.changes))
    if converted.changes.remaining:
        console.print("left to you:", style="bold")
    for line in converted.changes.remaining:
        console.print(f"  {line}", soft_wrap=True, markup=False)
    if converted.written is not None:
        console.print(f"written to {converted.written}", soft_wrap=True, markup=False)
    else:
        console.print("nothing was written; -o OUT writes it")
