"""`rootscale convert`: configuration files of other tools at another batch size."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rootscale.cli.console import make_console, render_changes
from rootscale.cli.options import add_rule
from rootscale.configs.convert import ConvertedFile, convert_file
from rootscale.configs.reading import Length
from rootscale.configs.tools import FORMATS
from rootscale.rules import rule_text


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    convert = subparsers.add_parser(
        "convert",
        description=f"Convert a configuration file ({', '.join(FORMATS)}) to another "
        "batch size: prints the diff and the reason of every change. Only the values that have to change do; comments, "
        "order and everything else stay. Nothing is written without -o or --in-place.",
        epilog="example: rootscale convert ds_config.json --to 4096 -o ds_config_4096.json",
    )
    convert.add_argument("file", type=Path, help="the configuration")
    convert.add_argument(
        "--to", required=True, metavar="B", help="the new samples per step, or MICROxACCUMULATIONxWORKERS as 32x4x8"
    )
    convert.add_argument("--from", dest="start", metavar="B", help="the old ones, where the file does not have them")
    convert.add_argument(
        "--world-size", type=int, metavar="N", help="data-parallel workers, where the file has samples per worker only"
    )
    add_rule(convert)
    convert.add_argument("--dataset-size", type=int, metavar="N", help="samples in the data: steps for a run in epochs")
    convert.add_argument("--steps", type=int, metavar="N", help="length of the run, where the file does not have it")
    convert.add_argument("--format", choices=list(FORMATS), help="of the file; default: found out")
    convert.add_argument("--section", metavar="NAME", help="the configuration to convert, where a file has several")
    convert.add_argument("--json", action="store_true", help="print everything as JSON, the new text included")
    target = convert.add_mutually_exclusive_group()
    target.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the new configuration there")
    target.add_argument("--in-place", action="store_true", help="write it over the old one")
    convert.set_defaults(handler=_convert)


def _convert(args: argparse.Namespace) -> int:
    converted = convert_file(
        args.file, args.to, start=args.start, world_size=args.world_size, rule=rule_text(args.rule, args.averaging),
        format=args.format, section=args.section, length=Length(args.steps, args.dataset_size),
    )  # fmt: skip
    target = args.file if args.in_place else args.output
    if target is not None:
        _write(target, converted.after)
    if args.json:
        print(json.dumps({**converted.to_dict(), "text": converted.after}, indent=2))
    else:
        _show(converted, args.file.name, target)
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


def _show(converted: ConvertedFile, name: str, target: Path | None) -> None:
    from rich.text import Text

    console = make_console()
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in converted.diff(name).splitlines():
        # A diff is for machines too: no line is folded.
        console.print(Text(line, style=styles.get(line[:1], "")), soft_wrap=True)
    if converted.values:
        console.print()
    console.print(render_changes(converted.changes))
    if target is not None:
        console.print(f"written to {target}", soft_wrap=True, markup=False)
    elif converted.values:
        console.print("nothing was written; -o FILE or --in-place writes it")
