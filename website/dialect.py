"""Markdown as GitHub reads it, brought to the one of Python that builds the site."""

from __future__ import annotations

import re

import places

__all__ = ["stray_examples", "to_python_markdown"]

_ITEM = re.compile(r"^(?P<indent> *)(?:[-*+]|\d+[.)]) +")
_DOCTEST = re.compile(r"^( *```+)python\n(?= *>>> )", re.M)


def to_python_markdown(markdown: str) -> str:
    """Return the page with blank lines before lists, lists in lists indented by four, and sessions as such."""
    markdown = _DOCTEST.sub(r"\1pycon\n", markdown)
    return "".join(part if code else lists(part) for part, code in places.outside_code(markdown))


def stray_examples(markdown: str) -> list[str]:
    """Return the lines of sessions outside of blocks of code: they run, but are shown as quotations."""
    texts = [part for part, code in places.outside_code(markdown) if not code]
    return [line for text in texts for line in re.findall(r"^>>> .*$", text, re.M)]


def lists(text: str) -> str:
    r"""Return text whose lists need no blank line before them, and two spaces where one is inside another.

    >>> print(lists("Text:\n- one\n  - two\n    more\n- three\n"))
    Text:
    <BLANKLINE>
    - one
        - two
          more
    - three
    <BLANKLINE>
    """
    lines: list[str] = []
    shift = 0  # of the item that the line is in
    inside = False
    for line in text.split("\n"):
        found = _ITEM.match(line)
        if found:
            indent = len(found["indent"])
            shift = indent  # GitHub's two become four, four become eight
            if not inside and lines and lines[-1].strip():
                lines.append("")
            inside = True
            lines.append(" " * shift + line)
            continue
        if line.strip() and not line.startswith(" "):
            after_blank = bool(lines) and not lines[-1].strip()
            inside = inside and not after_blank
            shift = shift if inside else 0
        lines.append(" " * shift + line if line.strip() and line.startswith(" ") and inside else line)
    return "\n".join(lines)
