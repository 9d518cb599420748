"""The reference of the command line, from the parsers that read it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from rootscale.cli import COMMANDS, make_parser

__all__ = ["commands", "page"]


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name."""
    (action,) = (one for one in make_parser(*COMMANDS)._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def page() -> str:
    """Return the page: what each command does, and its options by their groups."""
    parser = make_parser(*COMMANDS)
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
    lines = [
        "# Command line",
        "",
        f"{parser.description} `rootscale COMMAND --help` prints what is here about a command.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {plain(summaries.get(name, ''))} |" for name in action.choices),
    ]
    for name, command in action.choices.items():
        lines += ["", f"## {name}", "", *described(command, summaries.get(name, ""))]
    return "\n".join(lines) + "\n"


def described(command: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    """Yield the section of one command."""
    text = command.description or f"{summary[:1].upper()}{summary[1:]}."
    yield plain(text)
    usage = re.sub(r"\s+", " ", command.format_usage().removeprefix("usage: ").strip())
    yield from ("", "```text", *folded(usage), "```")
    for group in command._action_groups:
        actions = [one for one in group._group_actions if one.help is not argparse.SUPPRESS and one.dest != "help"]
        if not actions:
            continue
        title = {"positional arguments": "Arguments", "options": "Options"}.get(group.title or "", group.title or "")
        yield from ("", f"**{title[:1].upper()}{title[1:]}**", "")
        for action in actions:
            yield from option(command, action)
    if command.epilog:
        examples = command.epilog.partition(":")[2].strip().splitlines()  # behind "example:" or "examples:"
        yield from ("", "```console", *(f"$ {one}" for one in examples), "```")


def option(command: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    """Yield an option and what it is, as a term and its definition."""
    formatter = command._get_formatter()
    names = ", ".join(action.option_strings)
    default = action.dest.upper() if action.option_strings else action.dest
    values = "" if action.nargs == 0 else formatter._format_args(action, str(action.metavar or default))
    if action.choices is not None and not action.metavar:
        values = "" if not action.option_strings else (action.dest.rpartition(".")[2]).upper()
    # That of argparse: ours adds the choices, which follow here.
    text = plain(argparse.HelpFormatter._expand_help(formatter, action) if action.help else "")
    if action.choices is not None:
        text += f"{'; ' if text else ''}one of {', '.join(f'`{one}`' for one in action.choices)}"
    if action.required and action.option_strings:
        text += f"{'; ' if text else ''}required"
    if action.option_strings and action.default not in (None, False, argparse.SUPPRESS) and "default" not in text:
        shown = " ".join(map(str, action.default)) if isinstance(action.default, list | tuple) else action.default
        text += f"; default: `{shown}`" if str(shown) else ""
    yield from (f"`{' '.join(filter(None, (names, values)))}`", f":   {text or 'see above'}", "")


def plain(text: str) -> str:
    r"""Return a text for people as Markdown that shows the same letters; what is in backticks stays code.

    >>> plain("a*b of <x>, `c_d|e`")
    'a\\*b of \\<x>, `c_d|e`'
    """
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<|\[\]])", r"\\\1", part) for part in parts)


def folded(usage: str, width: int = 96) -> Iterator[str]:
    """Yield a usage in lines; an option in brackets stays whole."""
    line = ""
    for part in re.findall(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\S+", usage):
        if line and len(line) + len(part) > width:
            yield line
            line = "   "
        line += f" {part}" if line else part
    yield line
