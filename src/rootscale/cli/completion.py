"""`rootscale completion`: a script for the shell, which shtab makes from the parsers."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from rootscale.averagings import AVERAGINGS
from rootscale.cli.check import TASKS

SHELLS = ("bash", "zsh", "fish")
#: Arguments of these names are files or folders, whatever type they are read as.
_FILES = ("FILE", "FOLDER", "LOG", "PATH", "IN", "OUT", "RUNS")
#: Words for arguments that also take others, by where argparse keeps them.
_WORDS = {"averaging": tuple(AVERAGINGS), "task": TASKS}


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script for your shell, which then completes commands, options, their words and files. "
        "For zsh and fish, write it where the shell looks: a folder of $fpath as _rootscale, or "
        "~/.config/fish/completions/rootscale.fish. Needs the extra 'completion'.",
        epilog="example: rootscale completion zsh > ~/.zfunc/_rootscale",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(handler=_completion)


def _completion(args: argparse.Namespace) -> int:
    from rootscale.cli import COMMANDS, make_parser

    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise ValueError('completion needs shtab; pip install "rootscale[completion]"') from None
    parser = make_parser(*COMMANDS)
    for action in _actions(parser):
        if action.type is Path or str(action.metavar) in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest in _WORDS:
            action.choices = _WORDS[action.dest]
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser and of all its commands."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [inner for one in action.choices.values() for inner in _actions(one)]
    return found
