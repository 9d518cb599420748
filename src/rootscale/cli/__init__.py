"""The ``rootscale`` command: arguments in, what the library says out.

A module for each family of commands; what they need is imported when one of them runs, not before.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from rootscale._version import __version__
from rootscale.cli import checkpoint, compare, convert, lab, report, reproduce, scale, theory

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """Options by their full names only, and errors in one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)  # also -1e-3

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rootscale", description="Change the batch size of a run and keep its training dynamics.")
    parser.add_argument("--version", action="version", version=f"rootscale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for family in (scale, lab, compare, report, convert, checkpoint, reproduce, theory):
        family.add_parsers(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; users' mistakes end in one line on stderr and exit code 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(words)
    args.words = words  # for commands that start themselves again
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
