"""The ``rootscale`` command: arguments in, what the library says out.

`COMMANDS` is the table of commands. Each is a file, which is imported when the command is called: the help of the whole
needs none of them.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rootscale._version import __version__
from rootscale.cli.parser import Parser


@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        module: of this package, whose ``add_parsers`` adds the command; it may have others as well.
        summary: in one line.
    """

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "scale": Command("scale", "the same run at another batch size"),
    "units": Command("units", "the table of units: how each quantity changes with the batch size"),
    "rules": Command("rules", "the scaling rules, what each converts, and the rule of each optimizer"),
    "check": Command("check", "train a task at several batch sizes and decide whether its training stays the same"),
    "largest": Command("largest", "how large the batch may be: the largest that trains the same, from checkpoints"),
    "plan": Command("plan", "batch sizes, hours and a ramp for a number of tokens: a forecast from the noise scale"),
    "demo": Command("demo", "the check on scikit-learn's digits, in about two minutes"),
    "compare": Command("compare", "decide from logs of any tool whether runs are the same"),
    "report": Command("report", "what a check found, as one HTML page and as figures for papers"),
    "convert": Command("convert", "a configuration file of another tool at another batch size"),
    "checkpoint": Command("checkpoint", "a checkpoint on disk at another batch size"),
    "study": Command("study", "run a study that a Python file defines: arms, compared with a base"),
    "order": Command("theory", "measure how fast an optimizer approaches its SDE: weak errors and their order"),
    "simulate": Command("theory", "run an optimizer, SVAG and the SDE over continuous time"),
    "completion": Command("completion", "a script that lets your shell complete commands, options and files"),
}


#: Commands that there were, and what takes their place.
GONE: Mapping[str, str] = {
    "reproduce": "experiments are files, one for each claim: run `rootscale study experiments/FILE.py`; "
    "results/README.md lists them",
}


@dataclass(frozen=True)
class _Listed:
    """The commands of a parser, each with its summary."""

    commands: Any

    def add_parser(self, name: str, **options: Any) -> Any:
        return self.commands.add_parser(name, help=COMMANDS[name].summary, **options)


def make_parser(*called: str) -> Parser:
    """Return the parser with the arguments of these commands; of the others it knows the names."""
    parser = Parser(
        prog="rootscale", description="Change the batch size of a run without retuning. Without a "
        "command: what people come for, and the commands for it.",
        epilog="example: rootscale scale --optimizer adamw --lr 3e-4 --batch-size 256 --to 1024 --steps 100000",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"rootscale {__version__}")
    parser.set_defaults(handler=_show_cases)
    commands = _Listed(parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, title="commands"))
    modules = {COMMANDS[name].module for name in called}
    for module in dict.fromkeys(row.module for row in COMMANDS.values()):
        if module in modules:
            importlib.import_module(f"rootscale.cli.{module}").add_parsers(commands)
        else:
            for name in (name for name, row in COMMANDS.items() if row.module == module):
                commands.add_parser(name)
    return parser


def _show_cases(args: argparse.Namespace) -> int:
    from rootscale.cli.cases import show_cases

    return show_cases()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; users' mistakes end in one line on stderr and exit code 2."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] and words[0] in GONE:
        print(f"rootscale {words[0]}: error: {GONE[words[0]]}", file=sys.stderr)
        return 2
    args = make_parser(*(word for word in words[:1] if word in COMMANDS)).parse_args(words)
    args.words = words  # for commands that look at what was given, or record it
    try:
        with _logged_to_stderr(), _sigterm_interrupts():
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


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM, which schedulers send before they take a machine away, interrupt as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _ToStderr(logging.Handler):
    """Writes to stderr as it is when something is logged: a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def _logged_to_stderr() -> Iterator[None]:
    """Write what is no answer to stderr, as it was logged: warnings, notes, how far the work is."""
    logger, handler = logging.getLogger("rootscale"), _ToStderr()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


if __name__ == "__main__":
    sys.exit(main())
