"""A value of a text and its place, and what every syntax has to provide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Found", "Leaf", "Path", "Syntax", "line_entry", "number", "stages"]

#: The names that lead to a value, from the outermost one on; a number leads into a list.
Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """A value and its place in the text.

    Args:
        value: as the syntax reads it.
        start: of its text.
        end: of its text.
        key: its name, as written.
        head: where the entry (the key and the value) starts; a new entry is written like it.
        tail: where the entry ends and a new entry may follow; None if none may.
        fixed: why its text must not be changed; empty if it may.
        note: what to know about the value; empty if nothing.
        inline: whether a new entry stands in the same line, behind a comma.
    """

    value: Any
    start: int
    end: int
    key: str = ""
    head: int = 0
    tail: int | None = None
    fixed: str = ""
    note: str = ""
    inline: bool = False


Found = Iterator[tuple[Path, Leaf]]


@dataclass(frozen=True)
class Syntax:
    """How one kind of text is read and written.

    Args:
        name: as in messages.
        leaves: returns the values of a text with their paths; a `ValueError` says why it cannot be read.
        entry: returns the text of a new entry behind an existing one: ``(text, leaf, key, value)``.
        suffixes: of files that must be written in this syntax.
        number: returns a number as text.
        sequence: returns the text of a list of these texts.
    """

    name: str
    leaves: Callable[[str], Found]
    entry: Callable[[str, Leaf, str, str], str]
    suffixes: tuple[str, ...] = ()
    number: Callable[[int | float], str] = repr
    sequence: Callable[[Iterable[str]], str] = lambda items: f"[{', '.join(items)}]"


def line_entry(text: str, leaf: Leaf, key: str, value: str, equals: str) -> str:
    """Return a new entry on a line of its own, indented like that of the leaf; or behind a comma."""
    if leaf.inline:
        return f", {key}{equals.strip() if equals.strip() == '=' else equals}{value}"
    line = text.rfind("\n", 0, leaf.head) + 1
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{newline}{text[line : leaf.head]}{key}{equals}{value}"


def number(word: str) -> Any:
    """Return the number that a word is, or the word."""
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


_STAGES = re.compile(r"\s*\d[\w.]*:\d+(?:[\s,]+\d[\w.]*:\d+)*\s*")


def stages(word: str, start: int) -> Iterator[Leaf]:
    """Yield the batch sizes of a text such as ``"0:16 2.4B:320"``, which has pairs of a threshold and a batch size.

    >>> [leaf.value for leaf in stages("0:16 2.4B:320", 0)]
    [16, 320]
    """
    if _STAGES.fullmatch(word):
        for m in re.finditer(r":(\d+)", word):
            yield Leaf(int(m[1]), start + m.start(1), start + m.end(1))
