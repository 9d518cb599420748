"""The arguments of `rootscale convert`; what reads the files is imported when it runs, not before."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.cli.console import console as make_console
from rootscale.cli.render import render_changes
from rootscale.rules import AVERAGINGS, RULES, rule_text

if TYPE_CHECKING:
    from rootscale.integrations.configs import Conversion

__all__ = ["add_parsers"]

#: The rows of `rootscale.integrations.configs.FORMATS`, which is not imported here; a test compares them.
FORMATS = ("deepspeed", "transformers", "timm", "torchtitan", "megatron")


def add_parsers(subparsers: Any) -> None:
    """Adds the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    convert = subparsers.add_parser(
        "convert",
        help="a configuration file of another tool at another batch size",
        description="Convert a configuration file (DeepSpeed, transformers, timm, torchtitan, Megatron-LM) to another "
        "batch size: prints the diff and the reason of every change. Only the values that have to change do; comments, "
        "order and everything else stay. Nothing is written without -o or --in-place.",
        epilog="example: rootscale convert ds_config.json --to 4096 -o ds_config_4096.json",
    )
    convert.add_argument("file", type=Path, help="the configuration")
    convert.add_argument(
        "--to", required=True, metavar="B", help="the new samples per step, or MICROxACCUMULATIONxWORKERS as 32x4x8"
    )
    convert.add_argument("--from", dest="start", metavar="B", help="the old ones, where the file does not say")
    convert.add_argument(
        "--world-size", type=int, metavar="N", help="data-parallel workers, where the file has samples per worker only"
    )
    convert.add_argument("--rule", choices=list(RULES), metavar="RULE", help="see `rootscale rules`")
    convert.add_argument(
        "--averaging", choices=list(AVERAGINGS), default="paper",
        help="betas: 1 - kappa (1 - beta) as in the paper, or beta^kappa, which has no largest kappa",
    )  # fmt: skip
    convert.add_argument("--dataset-size", type=int, metavar="N", help="samples in the data: steps for a run in epochs")
    convert.add_argument("--steps", type=int, metavar="N", help="length of the run, where the file does not say")
    convert.add_argument("--format", choices=FORMATS, help="of the file; default: found out")
    convert.add_argument("--json", action="store_true", help="print everything as JSON, the new text included")
    target = convert.add_mutually_exclusive_group()
    target.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the new configuration there")
    target.add_argument("--in-place", action="store_true", help="write it over the old one")
    convert.set_defaults(handler=_convert)


def _convert(args: argparse.Namespace) -> int:
    from rootscale.integrations.configs import convert

    try:
        text = args.file.read_bytes().decode("utf-8")  # line ends as they are
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {args.file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        conversion = convert(
            text, args.to, start=args.start, world_size=args.world_size, rule=rule_text(args.rule, args.averaging),
            dataset_size=args.dataset_size, steps=args.steps, format=args.format,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"{args.file}: {error}") from None
    target = args.file if args.in_place else args.output
    if target is not None:
        _write(target, conversion.after)
    if args.json:
        print(json.dumps({**conversion.to_dict(), "text": conversion.after}, indent=2))
    else:
        _show(conversion, args.file.name, target)
    return 0


def _write(path: Path, text: str) -> None:
    from rootscale.files import whole

    try:
        if path.is_file() or not path.exists():
            path = path.resolve()  # a link stays a link
        mode = path.stat().st_mode & 0o7777 if path.is_file() else None
        with whole(path) as temporary:
            temporary.write_bytes(text.encode("utf-8"))
        if mode is not None:
            path.chmod(mode)  # a script stays executable
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def _show(conversion: Conversion, name: str, target: Path | None) -> None:
    from rich.text import Text

    console = make_console()
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in conversion.diff(name).splitlines():
        # A diff is for machines too: no line is folded.
        console.print(Text(line, style=styles.get(line[:1], "")), soft_wrap=True)
    if conversion.values:
        console.print()
    console.print(render_changes(conversion.changes))
    if target is not None:
        console.print(f"written to {target}", soft_wrap=True, markup=False)
    elif conversion.values:
        console.print("nothing was written; -o FILE or --in-place writes it")
