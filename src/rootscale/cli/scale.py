"""`rootscale scale`: the same run at another batch size."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

from rootscale.batch_size import BatchSize
from rootscale.cli.console import make_console, render_changes
from rootscale.cli.options import add_rule
from rootscale.cli.plan_options import add_plan, plan_of_options
from rootscale.rules import rule_text

_LOG = logging.getLogger(__name__)


def add_parsers(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    scale = commands.add_parser(
        "scale",
        usage="rootscale scale --optimizer NAME --lr ETA --batch-size B --to B [...]",
        description="Print a run at another batch size: every value before and after, its status and the reason.",
        epilog="examples:\n"
        "rootscale scale --optimizer adamw --lr 3e-4 --betas 0.9 0.95 --weight-decay 0.1 "
        "--batch-size 256 --to 1024 --steps 100000 --warmup-steps 2000 --ema 0.9999\n"
        "rootscale scale --optimizer adamw --lr 3e-4 --batch-size 0.5M --to 2M --sequence-length 2048 "
        "--tokens 10B",
    )
    target = scale.add_argument_group("the change")
    target.add_argument("--to", required=True, metavar="B", help="the new batch size, as --batch-size")
    add_rule(target)
    add_plan(scale.add_argument_group("the run"))
    output = scale.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="both plans and the changes, machine-readable")
    output.add_argument("--snippet", choices=["torch"], help="code to paste instead of the table")
    scale.set_defaults(handler=_scale)


def _scale(args: argparse.Namespace) -> int:
    from rootscale.snippets import torch_code

    plan = plan_of_options(args)
    try:
        size = BatchSize.of(args.to, plan.sequence_length)
    except ValueError as error:
        raise ValueError(str(error).replace("batch_size", "--to", 1)) from None
    conversion = plan.convert(size, rule_text(args.rule, args.averaging))
    new, changes = conversion.plan, conversion.changes
    if args.json:
        print(json.dumps({"from": plan.to_dict(), "to": new.to_dict(tuned=True), **changes.to_dict()}, indent=2))
    elif args.snippet:
        print(torch_code(new))
        for warning in changes.warnings:
            _LOG.warning("rootscale scale: warning: %s", warning)
    else:
        make_console().print(render_changes(changes))
    return 0
