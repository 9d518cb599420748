"""How the commands read their arguments and print their help."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn


class _Help(argparse.HelpFormatter):
    """Help that breaks no option at its hyphens, and shows examples as lines that can be pasted."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):  # argparse forgets that commands are indented
            self._action_max_length += self._indent_increment

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if not _many(action):
            return super()._metavar_formatter(action, default_metavar)
        name = max(action.option_strings, key=len, default=action.dest).strip("-").upper()
        return lambda size: (name,) * size

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return f"{text}; one of {', '.join(map(str, action.choices or ()))}" if _many(action) else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        title, colon, commands = text.partition(":")
        if title in ("example", "examples") and colon:
            return "\n".join([f"{title}:", *(fold_command(one, width) for one in commands.strip().splitlines())])
        lines = textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, initial_indent=indent)
        return "\n".join(lines)


def _many(action: argparse.Action) -> bool:
    """Whether an option has more words to choose from than a line of usage should have."""
    return action.metavar is None and action.choices is not None and len(",".join(map(str, action.choices))) > 30


def fold_command(text: str, width: int) -> str:
    r"""Return a command in lines that a shell reads as one; an option stays with its first value.

    >>> print(fold_command("rootscale convert ds_config.json --to 4096 -o ds.json", 40))
      rootscale convert ds_config.json \
          --to 4096 -o ds.json
    """
    pieces = re.split(r" (?=--?[a-z])(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", text.strip())  # before options, outside quotes
    lines = [f"  {pieces[0]}"]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 3 <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"      {piece}")
    return " \\\n".join(lines)


class Parser(argparse.ArgumentParser):
    """Options by their full names only, and errors in one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **kwargs}, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)  # also -1e-3

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")
