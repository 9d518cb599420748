"""Mathematics: what GitHub shows of TeX, as MathML, which browsers draw without a script."""

from __future__ import annotations

import re

from latex2mathml.converter import convert
from places import outside_code

__all__ = ["insert_mathematics", "take_mathematics"]

#: What GitHub reads as TeX: a block of the language ``math``, and dollars around a code span.
_BLOCK = re.compile(r"^( *)```math\n(.*?)\n *```$", re.M | re.S)
_INLINE = re.compile(r"(?<!`)\$`([^`\n]+)`\$(?!`)")
_PLACE = "MATHEMATICS{}PLACE"


def take_mathematics(markdown: str) -> tuple[str, list[str]]:
    r"""Return a page with places where there was TeX, and the MathML that belongs there.

    >>> text, found = take_mathematics(r"As $`\sqrt{\kappa}`$ grows.")
    >>> text, found[0].count("msqrt")
    ('As MATHEMATICS0PLACE grows.', 2)
    """
    found: list[str] = []

    def place(tex: str, display: str) -> str:
        found.append(convert(tex, display=display))
        return _PLACE.format(len(found) - 1)

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{place(match[2], 'block')}"

    markdown = _BLOCK.sub(block, markdown)
    parts = outside_code(markdown)
    inline = [part if code else _INLINE.sub(lambda match: place(match[1], "inline"), part) for part, code in parts]
    return "".join(inline), found


def insert_mathematics(html: str, found: list[str]) -> str:
    """Return a page with MathML in its places."""
    for index, mathml in enumerate(found):
        html = html.replace(_PLACE.format(index), mathml)
    return html
