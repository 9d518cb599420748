"""Options as in a shell script or a file of arguments, with the places of their values."""

from __future__ import annotations

import re

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Syntax, number

__all__ = ["ARGUMENTS"]

_FLAG = re.compile(
    r"""(?<![\w$./-])--([A-Za-z][\w-]*)(?![\w:.-])(?:(?:=|[ \t]*(?:\\?\r?\n)?[ \t]*)(["']?)(?![-\\])([^\s"'\\)]+)\2)?"""
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _leaves(text: str) -> Found:
    """Find every option; ``$NAME`` is looked up where it is set, if that is one place."""
    code = re.sub(r"(?:^|(?<=\s))#[^\n]*", lambda m: " " * len(m[0]), text)
    flags = list(_FLAG.finditer(code))
    for m in flags:
        path, word = (m[1],), m[3]
        if word is None:
            yield path, Leaf(True, m.end(), m.end(), m[1], m.start(), m.end())
            continue
        span, fixed = m.span(3), ""
        if variable := _VARIABLE.fullmatch(word):
            name = variable[1] or variable[2]
            set_at = list(re.finditer(rf"""^[ \t]*(?:export[ \t]+)?{name}=(["']?)([^\s"';]+)\1""", code, re.MULTILINE))
            if len(set_at) == 1:
                span, word = set_at[0].span(2), set_at[0][2]
                fixed = _other_use(code, name, set_at[0], flags)
        yield path, Leaf(number(word), *span, m[1], m.start(), m.end(), fixed)


def _other_use(code: str, name: str, set_at: re.Match[str], flags: list[re.Match[str]]) -> str:
    """Where a variable is used other than as the whole value of an option, in words; empty if nowhere."""
    known = [set_at.span(), *(m.span(1) for m in flags)]
    known += [m.span(3) for m in flags if m[3] is not None and _VARIABLE.fullmatch(m[3])]
    for use in re.finditer(rf"(?<!\w){name}(?!\w)", code):
        if not any(start <= use.start() and use.end() <= end for start, end in known):
            return f"it is the variable {name}, which line {code.count(chr(10), 0, use.start()) + 1} uses too"
    return ""


ARGUMENTS = Syntax("arguments", _leaves, lambda text, leaf, key, value: f" --{key} {value}")
