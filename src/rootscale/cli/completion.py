"""`rootscale completion`: scripts for bash, zsh and fish, made from the parsers.

A script knows the commands, their options, the words that an option takes and where files are meant. It starts no
Python when the Tab key is pressed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootscale.cli.lab import TASKS
from rootscale.rules import AVERAGINGS

__all__ = ["SHELLS", "add_parsers"]

#: Words for arguments that also take others, by where argparse keeps them.
_WORDS: Mapping[str, tuple[str, ...]] = {"averaging": tuple(AVERAGINGS), "task": TASKS}
#: Arguments of these names are files or folders, whatever type they are read as.
_FILES = ("FILE", "FOLDER", "LOG", "PATH", "IN", "OUT", "RUNS", "TASK")


@dataclass(frozen=True)
class Argument:
    """An option, or a positional argument, which has no names.

    Args:
        names: such as ``-o`` and ``--output``.
        summary: its help, in one line.
        words: that it takes.
        files: whether it takes files or folders.
        values: how many values: ``0``, ``1`` or ``+``.
    """

    names: tuple[str, ...]
    summary: str
    words: tuple[str, ...]
    files: bool
    values: str


@dataclass(frozen=True)
class Command:
    """A command with its summary and its arguments."""

    name: str
    summary: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> tuple[Argument, ...]:
        """The arguments that have names."""
        return tuple(one for one in self.arguments if one.names)

    @property
    def positionals(self) -> tuple[Argument, ...]:
        """The arguments that have none."""
        return tuple(one for one in self.arguments if not one.names)


def _argument(action: argparse.Action, parser: argparse.ArgumentParser) -> Argument:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    words = tuple(map(str, action.choices or _WORDS.get(action.dest, ())))
    files = action.type is Path or str(action.metavar) in _FILES
    values = "0" if action.nargs == 0 else "+" if action.nargs in ("+", "*") or isinstance(action.nargs, int) else "1"
    return Argument(tuple(action.option_strings), text.partition(";")[0], words, files, values)


def _commands(parser: argparse.ArgumentParser) -> Iterator[Command]:
    """Yield every command of a parser; the first has no name and is the parser itself."""
    subparsers = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    own = [_argument(one, parser) for one in parser._actions if one is not subparsers]
    yield Command("", parser.description or "", tuple(own))
    for choice in subparsers._choices_actions:
        inner = subparsers.choices[choice.dest]
        yield Command(choice.dest, choice.help or "", tuple(_argument(one, inner) for one in inner._actions))


# ---- bash


def _bash(parser: argparse.ArgumentParser) -> str:
    first, *commands = _commands(parser)
    names = " ".join(one.name for one in commands)
    cases = [line for one in commands for line in _bash_command(one)]
    top = " ".join(name for one in first.options for name in one.names)
    return "\n".join(
        [
            "# bash completion of rootscale, made by `rootscale completion bash`",
            "_rootscale() {",
            '    local current="${COMP_WORDS[COMP_CWORD]}" command="" option="" values=0 i',
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            '        case "${COMP_WORDS[i]}" in',
            '            -*) option="${COMP_WORDS[i]}" values=0 ;;',
            '            *) if [[ -z $command ]]; then command="${COMP_WORDS[i]}"; else ((values++)); fi ;;',
            "        esac",
            "    done",
            '    local words="" files=no options=""',
            '    case "$command" in',
            f'        "") words="{names}" options="{top}" ;;',
            *cases,
            "    esac",
            "    COMPREPLY=()",
            '    [[ $current == -* ]] && words="$options" files=no',
            '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "    if [[ $files == yes ]]; then",
            "        compopt -o filenames 2>/dev/null",
            "        local IFS=$'\\n'",
            '        COMPREPLY+=($(compgen -f -- "$current"))',
            "    fi",
            "}",
            "complete -F _rootscale rootscale",
        ]
    )


def _bash_command(command: Command) -> Iterator[str]:
    """Yield what a command takes: its options, and words or files behind an option or without one."""
    yield f"        {command.name})"
    yield f'            options="{" ".join(name for one in command.options for name in one.names)}"'
    yield '            case "$option:$values" in'
    for one in command.options:
        if one.values == "0":
            continue
        places = "|".join(f"{name}:{'*' if one.values == '+' else '0'}" for name in one.names)
        yield f"                {places}) {_bash_takes([one])} ;;"
    yield f"                *) {_bash_takes(command.positionals)} ;;"
    yield "            esac ;;"


def _bash_takes(arguments: tuple[Argument, ...] | list[Argument]) -> str:
    words = " ".join(word for one in arguments for word in one.words)
    return f'words="{words}" files={"yes" if any(one.files for one in arguments) else "no"}'


# ---- zsh


def _zsh(parser: argparse.ArgumentParser) -> str:
    first, *commands = _commands(parser)
    described = [f"        {shlex.quote(f'{one.name}:{_plain(one.summary)}')}" for one in commands]
    cases = []
    for one in commands:
        specs = [*_zsh_specs(one)]
        cases += [f"        {one.name}) _arguments -s \\", *(f"            {spec} \\" for spec in specs[:-1])]
        cases += [f"            {specs[-1]} ;;"]
    top = " ".join(spec for argument in first.options for spec in _zsh_option(argument))
    return "\n".join(
        [
            "#compdef rootscale",
            "# zsh completion of rootscale, made by `rootscale completion zsh`",
            "_rootscale() {",
            "    local state line",
            "    local -a commands=(",
            *described,
            "    )",
            f"    _arguments -C {top} '1: :->command' '*:: :->arguments'",
            "    case $state in",
            "        command) _describe command commands; return ;;",
            "    esac",
            "    case $line[1] in",
            *cases,
            "    esac",
            "}",
            'if [[ $funcstack[1] == _rootscale ]]; then _rootscale "$@"; else compdef _rootscale rootscale; fi',
        ]
    )


def _zsh_specs(command: Command) -> Iterator[str]:
    for one in command.options:
        yield from _zsh_option(one)
    for one in command.positionals:
        yield shlex.quote(f"*:{_plain(one.summary)}:{_zsh_takes(one)}")


def _zsh_option(one: Argument) -> Iterator[str]:
    for name in one.names:
        takes = "" if one.values == "0" else f":value:{_zsh_takes(one)}"
        many = f":*-*{takes}" if one.values == "+" else takes
        yield shlex.quote(f"*{name}[{_plain(one.summary)}]{many}")


def _zsh_takes(one: Argument) -> str:
    if one.files:
        return "_files"
    return f"({' '.join(word.replace(':', chr(92) + ':') for word in one.words)})" if one.words else " "


def _plain(text: str) -> str:
    """Return a text without what zsh and fish would take for their own signs."""
    return " ".join("".join(" " if sign in "[]:'\"\\`$" else sign for sign in text).split())


# ---- fish


def _fish(parser: argparse.ArgumentParser) -> str:
    first, *commands = _commands(parser)
    lines = ["# fish completion of rootscale, made by `rootscale completion fish`", "complete -c rootscale -f"]
    lines += [_fish_option("__fish_use_subcommand", one) for one in first.options]
    for command in commands:
        lines.append(f"complete -c rootscale -n __fish_use_subcommand -a {command.name} -d '{_plain(command.summary)}'")
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines += [_fish_option(seen, one) for one in command.options]
        for one in command.positionals:
            takes = " -F" if one.files else ""
            words = f" -a '{' '.join(one.words)}'" if one.words else ""
            if takes or words:
                lines.append(f"complete -c rootscale -n '{seen}'{takes}{words}")
    return "\n".join(lines)


def _fish_option(condition: str, one: Argument) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in one.names)
    takes = "" if one.values == "0" else " -r -F" if one.files else " -x"
    words = f" -a '{' '.join(one.words)}'" if one.words else ""
    return f"complete -c rootscale -n '{condition}' {names}{takes}{words} -d '{_plain(one.summary)}'"


#: What writes the script of each shell.
SHELLS: Mapping[str, Callable[[argparse.ArgumentParser], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def add_parsers(subparsers: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``; ``args.handler(args)`` runs it."""
    parser = subparsers.add_parser(
        "completion",
        help="a script that lets your shell complete commands, options and files",
        description="Print a script for your shell, which then completes commands, options, their words and files. "
        "For zsh and fish, write it where the shell looks: a folder of $fpath as _rootscale, or "
        "~/.config/fish/completions/rootscale.fish.",
        epilog="example: rootscale completion bash > ~/.local/share/bash-completion/completions/rootscale",
    )
    parser.add_argument("shell", choices=list(SHELLS), help="the shell")
    parser.set_defaults(handler=_completion)


def _completion(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell](args.parser))
    return 0
