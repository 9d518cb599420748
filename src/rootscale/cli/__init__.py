"""The ``rootscale`` command: arguments in, what the library says out.

A module for each family of commands; what they need is imported when one of them runs, not before.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from rootscale._version import __version__
from rootscale.cli import checkpoint, compare, completion, convert, lab, report, reproduce, scale, study, theory
from rootscale.cli.cases import show_cases
from rootscale.cli.parser import Parser

__all__ = ["main", "make_parser"]


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rootscale", description="Change the batch size of a run and keep its training dynamics. Without a "
        "command: what people come for, and the commands for it.",
        epilog="example: rootscale scale --optimizer adamw --lr 3e-4 --batch-size 256 --to 1024 --steps 100000",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"rootscale {__version__}")
    parser.set_defaults(handler=lambda args: show_cases())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, title="commands")
    for family in (scale, lab, compare, report, convert, checkpoint, study, reproduce, theory, completion):
        family.add_parsers(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; users' mistakes end in one line on stderr and exit code 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser()
    args = parser.parse_args(words)
    args.words, args.parser = words, parser  # for commands that start themselves again, or describe the others
    try:
        code: int = args.handler(args)
        sys.stdout.flush()
    except ValueError as error:
        print(f"rootscale {args.command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"rootscale {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"rootscale {args.command}: interrupted", file=sys.stderr)
        return 130
    except Exception:  # a fault of ours: not to be taken for what an exit code of 1 says
        traceback.print_exc()
        return 70
    return code


if __name__ == "__main__":
    sys.exit(main())
