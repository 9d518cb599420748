"""Pieces of HTML: text is escaped unless it is HTML already, terms have tips, and runs have their colours."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template
from typing import Any

from rootscale.report import words
from rootscale.report.glossary import mark_terms
from rootscale.report.styles import STYLES, style_of


class Html(str):
    """Text that is HTML already; all other text is escaped when it is put into some."""


def fill(template: str, **values: Any) -> Html:
    """The template with every ``$name`` replaced: by HTML as it is, by many pieces of it in a row, by text escaped.

    ``[[term]]`` in the template gets a tip that explains it; in what replaces a name it is text.

    >>> fill("<b title='$title'>$text</b>", title="'", text="<i>")
    "<b title='&#x27;'>&lt;i&gt;</b>"
    """
    return Html(Template(mark_terms(template)).substitute({name: _escaped(value) for name, value in values.items()}))


def _escaped(value: Any) -> str:
    if isinstance(value, Html):
        return value
    if isinstance(value, list | tuple):
        return "".join(map(_escaped, value))
    return escape(str(value))


def icon(name: str) -> Html:
    return fill('<svg class="mark" aria-hidden="true"><use href="#icon-$name"/></svg>', name=name)


def badge(verdict: str) -> Html:
    return fill(
        '<span class="badge $verdict">$icon$word</span>', verdict=verdict, icon=icon(verdict),
        word=words.VERDICTS[verdict],
    )  # fmt: skip


def swatch(arm: int) -> Html:
    return line(f"--arm-{arm % len(STYLES)}", style_of(arm).svg)


def line(colour: str, dash: str) -> Html:
    return fill(
        '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><line x1="1" y1="5" x2="29" y2="5" '
        'stroke="var($colour)" stroke-dasharray="$dash"/></svg>',
        colour=colour,
        dash=dash,
    )


def table(columns: Iterable[str], rows: Iterable[Html], caption: str, classes: str = "") -> Html:
    """A table in a box of its own that scrolls where the page is narrow."""
    return fill(
        '<div class="scroll" tabindex="0" role="region" aria-label="$caption"><table class="$classes">'
        "<caption>$caption</caption><thead><tr>$head</tr></thead><tbody>$rows</tbody></table></div>",
        caption=caption,
        classes=classes,
        head=[fill('<th scope="col">$name</th>', name=column) for column in columns],
        rows=list(rows),
    )
