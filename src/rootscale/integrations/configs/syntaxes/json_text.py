"""JSON with the places of its values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Path, Syntax

__all__ = ["JSON"]

_SPACE = re.compile(r"[ \t\r\n]*")


def _leaves(text: str) -> Found:
    json.loads(text)  # for its messages: from here on the text is known to be valid
    decode = json.JSONDecoder().raw_decode

    def skip(i: int) -> int:
        return _SPACE.match(text, i).end()  # type: ignore[union-attr]

    def walk(i: int, path: Path, key: str, head: int) -> Iterator[tuple[Path, Leaf]]:
        value, end = decode(text, i)
        if path:
            yield path, Leaf(value, i, end, key, head, end if key else None)
        i = skip(i + 1)
        index = 0
        while isinstance(value, dict | list) and text[i] not in "}]":
            start, name = i, str(index)
            if isinstance(value, dict):
                name, i = decode(text, i)
                i = skip(skip(i) + 1)
            for found in walk(i, (*path, name), name if isinstance(value, dict) else "", start):
                yield found
                if found[0] == (*path, name):
                    after = found[1].end
            i = skip(after)
            i = skip(i + 1) if text[i] == "," else i
            index += 1

    yield from walk(skip(0), (), "", 0)


def _entry(text: str, leaf: Leaf, key: str, value: str) -> str:
    gap = text[len(text[: leaf.head].rstrip()) : leaf.head]
    return f",{gap or ' '}{json.dumps(key)}: {value}"


JSON = Syntax("JSON", _leaves, _entry, (".json",))
