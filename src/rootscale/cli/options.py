"""Options that several commands share, and for what each option of `check`, `largest` and `compare` is.

`USES` is the table of the latter: an option that would do nothing for what is checked is an error, not ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rootscale.averagings import AVERAGINGS, get_averaging
from rootscale.looks import LOOKS
from rootscale.rules import RULES
from rootscale.sizes import read_size
from rootscale.tolerance import Tolerance, parse_tolerance


def averaging(text: str) -> str:
    """Return the name of a form of averaging, or raise what argparse shows."""
    try:
        get_averaging(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_rule(group: Any, several: bool = False) -> None:
    """Add by what rule is converted, and in what form averages are."""
    text = "see `rootscale rules`; default: the optimizer's own"
    if several:
        group.add_argument(
            "--rule", nargs="+", choices=tuple(RULES), default=[None], metavar="RULE",
            help=text.replace(";", "; several are each tried at each batch size;"),
        )  # fmt: skip
    else:
        group.add_argument("--rule", choices=tuple(RULES), metavar="RULE", help=text)
    group.add_argument(
        "--averaging", type=averaging, default="floor", metavar="FORM",
        help="of the betas: " + "; ".join(f"{name} ({row.text})" for name, row in AVERAGINGS.items()),
    )  # fmt: skip


def add_tolerance(how: Any) -> None:
    """Add what makes runs the same: the tolerance, the level, and how often one looks."""
    how.add_argument(
        "--tolerance", type=_tolerance, default="0.05", help="share of the base curve's range (0.05, 5%%), or a "
        "difference in its own units ('0.02 loss', '0.5 points' of an accuracy, '0.02 absolute'); default: %(default)s",
    )  # fmt: skip
    how.add_argument("--level", type=float, default=0.95, help="of the verdicts; default: %(default)s")
    how.add_argument(
        "--looks", choices=list(LOOKS), default="any", help="how often you will ask with more seeds: at any number of "
        "them, each time after doubling, or once, which has the narrowest bands; default: %(default)s",
    )  # fmt: skip


def _tolerance(text: str) -> Tolerance:
    try:
        return parse_tolerance(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# -- what each option is for -----------------------------------------------------------------------------------------

#: What is compared, as messages name it.
SUBJECTS: Mapping[str, str] = {
    "task": "a Task",
    "loop": "a training function",
    "command": "--command",
    "logs": "logs",
}


@dataclass(frozen=True)
class Use:
    """For what an option is.

    Args:
        check: the keys of `SUBJECTS` in whose comparison it does something.
        largest: the same in the search for the largest batch.
        needs: another option that it is of use with, with the value it must have (empty: any).
    """

    check: tuple[str, ...]
    largest: tuple[str, ...]
    needs: tuple[str, str] | None = None


_TASK, _LOGGED, _RUNS = ("task",), ("loop", "command"), ("task", "loop", "command")
_ALL = (*_RUNS, "logs")
_LOGS = ("logs",)
#: Every option of `rootscale check`, `rootscale largest` and `rootscale compare`.
USES: Mapping[str, Use] = {
    # what is compared
    "--to": Use(_ALL, _RUNS),
    "--rule": Use(_RUNS, _RUNS),
    "--averaging": Use(_RUNS, _RUNS),
    "--keep": Use(_RUNS, _RUNS),
    "--ell": Use(_TASK, ()),
    "--switch-at": Use(_RUNS, _RUNS),
    "--start": Use(_LOGS, ()),
    "--stop": Use(_ALL, _TASK),
    "--metric": Use(_LOGS, ()),
    "--paired": Use(_LOGS, ()),
    # a loop of the user's own
    "--command": Use(("command",), ("command",)),
    "--batch-size": Use((*_LOGGED, "logs"), _LOGGED),
    "--sequence-length": Use(_LOGS, ()),
    "--plan": Use(_LOGGED, _LOGGED),
    "--values": Use(_LOGGED, _LOGGED),
    "--log": Use(("command",), ("command",)),
    "--clock": Use((*_LOGGED, "logs"), _LOGGED),
    "--window": Use((*_LOGGED, "logs"), _LOGGED),
    # the verdict
    "--seeds": Use(_RUNS, _RUNS),
    "--budget": Use(_RUNS, _RUNS, ("--seeds", "auto")),
    "--tolerance": Use(_ALL, _RUNS),
    "--level": Use(_ALL, _RUNS),
    "--looks": Use(_ALL, _RUNS),
    "--quick": Use(_RUNS, _RUNS),
    "--measure-share": Use(_TASK, _TASK),
    "--points": Use(_ALL, _RUNS),
    "--eval-samples": Use(_TASK, _TASK),
    "--decide-by": Use(_RUNS, _RUNS),
    # the runs and the result
    "--out": Use(_ALL, _RUNS),
    "--depends": Use(_RUNS, _RUNS),
    "--fresh": Use(_RUNS, ()),
    "--only": Use(_RUNS, ()),
    "--seed": Use(_RUNS, ()),
    "--piece": Use(_RUNS, ()),
    "--collect": Use(_RUNS, ()),
    "--report": Use(_ALL, ()),
    "--png": Use(_LOGS, ()),
    "--pdf": Use(_LOGS, ()),
    "--json": Use(_LOGS, ()),
    "--names": Use(_LOGS, ()),
    "--device": Use(_TASK, _TASK),
    "--fast": Use(_TASK, _TASK),
    "--micro": Use(_TASK, _TASK),
    "--together": Use(_TASK, _TASK),
    "--workers": Use(_RUNS, _RUNS),
    "--engine": Use(_RUNS, _RUNS),
    "--address": Use(_RUNS, _RUNS, ("--engine", "ray")),
    "--gpus-per-run": Use(_RUNS, _RUNS, ("--engine", "ray")),
    "--epochs": Use(_TASK, _TASK),
    "--track": Use(_TASK, _TASK),
}


def refuse_unused(args: argparse.Namespace, words: Sequence[str], subject: str) -> None:
    """Refuse options that were given and would do nothing for what is checked.

    Args:
        args: what the words were parsed to.
        words: of the command line.
        subject: a key of `SUBJECTS`.
    """
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    for flag, use in USES.items():
        if flag not in given:
            continue
        largest = args.command == "largest"
        subjects = use.largest if largest else use.check
        if subject not in subjects:
            others = " or ".join(SUBJECTS[name] for name in subjects if name != "logs")
            raise ValueError(f"{flag} does nothing for {SUBJECTS[subject]}, only for {others}: leave it out")
        if use.needs is not None and not (largest and flag == "--budget"):
            name, value = use.needs
            if str(getattr(args, name[2:].replace("-", "_"))) != value:
                raise ValueError(f"{flag} does nothing without {name} {value}: leave it out, or add that")


def size(text: str) -> int:
    """Return a batch size in samples, such as 64 or 4K."""
    number = read_size(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"a batch size is a whole number such as 64 or 4K, got {text!r}")
    return number


def seeds(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"seeds are a number or auto, got {text!r}") from None


def duration(text: str) -> float:
    """Return the seconds of a time such as 90s, 30m or 2h.

    >>> duration("90s"), duration("30m"), duration("1.5h")
    (90.0, 1800.0, 5400.0)
    """
    try:
        seconds = float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1:]]
    except (KeyError, ValueError):
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"a time is given as 90s, 30m or 2h, got {text!r}")
    return seconds
