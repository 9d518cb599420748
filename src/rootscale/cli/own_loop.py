"""A training loop of the user's own on the command line of `rootscale check`: a function, or a command."""

from __future__ import annotations

import argparse
import inspect
import shlex
from pathlib import Path
from typing import Any

from rootscale.cli.plan_options import plan_of_values
from rootscale.compare.readers.formats import read_logs
from rootscale.lab.command import Command
from rootscale.lab.loop import Loop


def loop_of_command(args: argparse.Namespace) -> Loop:
    """Return the loop of ``--command``, whose values are those of ``--plan`` and ``--values``."""
    plan = None
    if args.plan is not None or args.values:
        plan = plan_of_values(args.plan, args.values, args.batch_size)
    if plan is None and args.batch_size is None:
        raise ValueError("--command needs the batch size of the base: give --batch-size, or a --plan")
    size = int(plan.batch_size.total) if plan is not None else args.batch_size
    command = Command(args.own_command, plan, read_logs, args.log)
    return Loop(_name(command.text), command, size, plan)


def loop_of_function(where: str, train: Any, args: argparse.Namespace) -> Loop:
    """Return the loop of a training function; its base batch size is ``--batch-size``, or the function's default."""
    default = inspect.signature(train).parameters["batch_size"].default
    size = args.batch_size or (default if isinstance(default, int) else None)
    if size is None:
        raise ValueError(
            f"{where} needs the batch size of the base: give --batch-size, or a default as in train(batch_size=16, ...)"
        )
    source, _, name = where.rpartition(":")
    plan = None
    if args.plan is not None or args.values:
        plan = plan_of_values(args.plan, args.values, size)
    return Loop(f"{Path(source).stem}-{name}", train, size, plan)


def loop_start(text: str) -> int | str:
    """Return where the runs of a loop start: 0 from scratch, or the path of a checkpoint."""
    return 0 if text == "0" else text


def _name(command: str) -> str:
    """Return a name for a command: that of its script.

    >>> _name("python scripts/train.py --lr {lr}"), _name("accelerate launch -m mine")
    ('train', 'accelerate')
    """
    words = shlex.split(command)
    return next((Path(word).stem for word in words if word.endswith((".py", ".sh"))), Path(words[0]).stem)
