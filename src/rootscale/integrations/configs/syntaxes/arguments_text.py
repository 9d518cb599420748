"""Options as in a shell script or a file of arguments, with the places of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rootscale.integrations.configs.syntaxes.leaf import Found, Leaf, Syntax, number, stages

__all__ = ["ARGUMENTS"]

_FLAG = re.compile(r"(?<![\w$./-])(?:--([A-Za-z][\w-]*)(?![\w:.-])|-([A-Za-z])(?=[ \t]+[^\s-]))")
_GAP = r"(?:=|[ \t]*(?:\\?\r?\n)?[ \t]*)"
#: A value: a quoted text without options in it, or a word that is no option.
_VALUE = re.compile(
    rf"""{_GAP}(?:"(?P<double>(?!-[^\d.])[^"\n\\]*)"|'(?P<single>(?!-[^\d.])[^'\n\\]*)'|"""
    r"""(?![-\\](?![\d.]))(?P<word>[^\s"'\\)]+))"""
)
#: A further value of the same option is a number.
_MORE = re.compile(r"[ \t]*(?:\\?\r?\n)?[ \t]+(?P<word>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?=[\s)]|$)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_PROGRAM = re.compile(r"(?<![\w$=-])(?:[\w.$}{-]*/)*([\w-]+\.(?:py|sh))(?![\w.])")


@dataclass(frozen=True)
class _Word:
    """A value as written, where it is, where its quotes end, why it must not be changed, what to know about it."""

    text: str
    start: int
    end: int
    behind: int
    fixed: str = ""
    note: str = ""

    @property
    def leaf(self) -> Leaf:
        """The value as an item of a list."""
        return Leaf(_read(self.text), self.start, self.end, fixed=self.fixed, note=self.note)


def _leaves(text: str) -> Found:
    """Find every option; ``$NAME`` is looked up where it is set, if that is one place."""
    code = re.sub(r"(?:^|(?<=\s))#[^\n]*", lambda m: " " * len(m[0]), text)
    flags = [(m, list(_words(code, m.end()))) for m in _FLAG.finditer(code)]
    names = [m.span() for m, _ in flags]
    words = [word for _, held in flags for word in held]
    uses = [*names, *((word.start, word.end) for word in words if _VARIABLE.fullmatch(word.text))]
    for m, held in flags:
        key = m[1] or m[2]
        path = (key.replace("-", "_"),)
        found = [_resolve(code, word, uses) for word in held]
        if not found:
            yield path, Leaf(True, m.end(), m.end(), key, m.start(), m.end())
            continue
        place = (found[0].start, found[-1].end, key, m.start(), held[-1].behind)
        items = [word.leaf for word in found] if len(found) > 1 else list(stages(found[0].text, found[0].start))
        if items:
            yield path, Leaf([*range(len(items))], *place)
            for i, item in enumerate(items):
                yield (*path, str(i)), item
        else:
            yield path, Leaf(_read(found[0].text), *place, found[0].fixed, found[0].note)
    for i, name in enumerate(_programs(code, [*names, *((word.start, word.end) for word in words)])):
        yield ("(program)", str(i)), Leaf(name, 0, 0)


def _programs(code: str, options: list[tuple[int, int]]) -> list[str]:
    """The scripts that are started, by their bare names."""
    found = (m for m in _PROGRAM.finditer(code) if not _inside(m.span(1), options))
    return list(dict.fromkeys(m[1] for m in found))


def _read(word: str) -> Any:
    return {"true": True, "false": False, "none": None}.get(word.lower(), number(word))


def _inside(span: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def _words(code: str, position: int) -> Iterator[_Word]:
    """The values behind an option: one of any kind, then numbers."""
    m = _VALUE.match(code, position)
    if m is None or m.lastgroup is None or (m.lastgroup != "word" and re.search(r"(?:^|\s)--\w", m[m.lastgroup])):
        return
    yield _Word(m[m.lastgroup], *m.span(m.lastgroup), m.end())
    is_number = m.lastgroup == "word" and not isinstance(number(m["word"]), str)
    while is_number and (m := _MORE.match(code, m.end())):
        yield _Word(m["word"], *m.span("word"), m.end())


def _resolve(code: str, word: _Word, uses: list[tuple[int, int]]) -> _Word:
    """The value of a word that is a variable, and the place where that is set; other words as they are."""
    m = _VARIABLE.fullmatch(word.text)
    if m is None:
        return word
    name, default = m[1] or m[3], m[2]
    places = re.finditer(rf"""^[ \t]*(?:export[ \t]+)?({name})=(["']?)([^\s"';]+)\2""", code, re.MULTILINE)
    set_at = list(places)
    if len(set_at) > 1 or (not set_at and default is None):
        return word
    note = f"the variable {name} may also be set from outside: what is converted is its value in this file"
    if not set_at:
        start = word.start + m.start(2)
        return _Word(m[2], start, start + len(m[2]), word.behind, note=note)
    fixed = _other_use(code, name, [*uses, set_at[0].span()])
    inner = _VARIABLE.fullmatch(set_at[0][3])
    if inner is None or inner[2] is None:
        return _Word(set_at[0][3], *set_at[0].span(3), word.behind, fixed)
    start = set_at[0].start(3) + inner.start(2)
    return _Word(inner[2], start, start + len(inner[2]), word.behind, fixed, note)


def _other_use(code: str, name: str, known: list[tuple[int, int]]) -> str:
    """Where a variable is used other than as the whole value of an option, in words; empty if nowhere."""
    for use in re.finditer(rf"(?<!\w){name}(?!\w)", code):
        if not _inside(use.span(), known):
            return f"it is the variable {name}, which line {code.count(chr(10), 0, use.start()) + 1} uses too"
    return ""


ARGUMENTS = Syntax(
    "arguments",
    _leaves,
    lambda text, leaf, key, value: f" --{key} {value}",
    suffixes=(".sh", ".bash", ".slurm"),
    sequence=" ".join,
)
