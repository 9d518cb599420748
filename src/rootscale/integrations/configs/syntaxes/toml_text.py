"""TOML with the places of its values."""

from __future__ import annotations

import re
from typing import Any

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Path, Syntax, line_entry

__all__ = ["TOML"]

_HEADER = re.compile(r"[ \t]*\[([^\[\]\n]+)\][ \t]*(?:#.*)?\r?$", re.MULTILINE)
_TABLES = re.compile(r"[ \t]*\[\[.*", re.MULTILINE)
_PAIR = re.compile(
    r"""^(?P<head>[ \t]*)(?P<key>[A-Za-z0-9_.-]+)[ \t]*=[ \t]*"""
    r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\[\]\n]*\]|[^\s#,\["']+)[ \t]*(?P<rest>(?:\#[^\r\n]*)?)\r?$""",
    re.MULTILINE,
)


def _leaves(text: str) -> Found:
    import tomllib

    data = tomllib.loads(text)
    prefix: Path | None = ()
    for line in re.finditer(r".*(?:\n|$)", text):
        if header := _HEADER.match(text, line.start(), line.end()):
            prefix = tuple(part.strip(" \t\"'") for part in header[1].split("."))
        elif _TABLES.match(text, line.start(), line.end()):
            prefix = None  # one of several tables of the same name
        elif (pair := _PAIR.match(text, line.start(), line.end())) and prefix is not None:
            path = (*prefix, *pair["key"].split("."))
            try:
                value = tomllib.loads(f"x = {pair['value']}")["x"]
                meant = data
                for part in path:
                    meant = meant[part]
            except (KeyError, TypeError, tomllib.TOMLDecodeError):
                continue  # the line belongs to a longer string
            if value == meant:
                yield path, Leaf(value, *pair.span("value"), path[-1], pair.start("key"), pair.end("rest"))
                yield from _items(text, path, value, *pair.span("value"))


def _items(text: str, path: Path, value: Any, start: int, end: int) -> Found:
    """The numbers of a list on one line."""
    if isinstance(value, list):
        for i, (item, m) in enumerate(zip(value, re.finditer(r"[^\s,\[\]]+", text[start:end]), strict=False)):
            yield (*path, str(i)), Leaf(item, start + m.start(), start + m.end())


TOML = Syntax(
    "TOML", _leaves, lambda text, leaf, key, value: line_entry(text, leaf, key, value, " = "), suffixes=(".toml",)
)
