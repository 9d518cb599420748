"""Docstrings as the reference needs them: examples as blocks of code, a line for each argument."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

__all__ = ["Docstrings", "apart", "default_of", "fenced"]

#: Names that share a line, and what it says of them, over as many lines as are indented further.
_TOGETHER = re.compile(r"^( +)(\*{0,2}\w+)((?:, \*{0,2}\w+)+): (.*(?:\n\1 +\S.*)*)", re.M)


def fenced(text: str) -> str:
    r"""Return a docstring whose sessions are fenced; Markdown would take ``>>>`` for a quotation.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nMore.").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
    """
    lines: list[str] = []
    inside = False
    for line in [*text.split("\n"), ""]:
        if not inside and line.lstrip().startswith(">>> "):
            inside = True
            lines.append(line[: len(line) - len(line.lstrip())] + "```pycon")
        elif inside and not line.strip():
            inside = False
            start = next(one for one in reversed(lines) if one.lstrip().startswith("```pycon"))
            lines.append(start.replace("pycon", ""))
        lines.append(line)
    return "\n".join(lines[:-1])


def apart(text: str) -> str:
    r"""Return a docstring in which arguments that share a line have one each; the others refer to the first.

    >>> apart("Args:\n    rank, world_size: of the process.").splitlines()
    ['Args:', '    rank: of the process.', '    world_size: see ``rank``.']
    """

    def one(found: re.Match[str]) -> str:
        indent, first, others, told = found.groups()
        rest = [f"\n{indent}{name}: see ``{first}``." for name in others.removeprefix(", ").split(", ")]
        return f"{indent}{first}: {told}{''.join(rest)}"

    head, mark, rest = text.partition("Args:\n")
    return head + mark + _TOGETHER.sub(one, rest)


def default_of(code: str) -> str | None:
    """Return the default of a record's field, which is declared by its unit; None where it has none.

    >>> default_of("quantity('momentum', default=0.0)"), default_of("quantity('eta', 'lr')")
    ('0.0', None)
    """
    call = ast.parse(code, mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return next((ast.unparse(one.value) for one in keywords if one.arg == "default"), None)


class Docstrings(griffe.Extension):  # type: ignore[misc,unused-ignore]
    """Change every docstring that the reference shows, and the defaults of records' fields."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = fenced(apart(obj.docstring.value))
        if isinstance(obj, griffe.Attribute) and str(obj.value).startswith("quantity("):
            obj.value = default_of(str(obj.value))
