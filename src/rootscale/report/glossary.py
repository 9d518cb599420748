"""The words of the report, explained: a tip where a term is used, and a list of all at the end of the page."""

from __future__ import annotations

import re
from html import escape

#: Each term of the page, for readers who know PyTorch and have not read the paper.
TERMS = {
    "base": "The run as it is, with the batch size it was made for. All others are held against it.",
    "seed": "One repetition of a run, with random numbers of its own. Means over seeds have less chance in them.",
    "test function": "A number that is followed along the run: a loss, an accuracy, the norm of the gradient.",
    "gap": "How far the mean curve of a run is from that of the base at equal samples seen, as a share of the range "
    "of the base's curve.",
    "range": "The highest minus the lowest value of the base's curve over the times that are compared.",
    "band": "Where the true gap lies, as far as the seeds can tell. More seeds make it narrower.",
    "tolerance": "The largest gap that still counts as the same.",
    "same": "The band of the gap, averaged over neighbouring times, lies within the tolerance at all times; that of "
    "the gap at the end does too.",
    "different": "The whole band lies outside the tolerance at some time, or more runs diverged than chance explains.",
    "undecided": "Neither: the seeds are too few to tell.",
    "diverged": "The loss became infinite, or stayed far above where it began.",
    "switch": "The moment in the run from which on it has another batch size.",
    "rule": "The table that says what becomes of each quantity when the batch size changes.",
    "kappa": "The new batch size over the old one, κ.",
    "noise scale": "The batch size at which the noise of a gradient is as large as the gradient itself. The rule needs "
    "batches well below it.",
    "SVAG": "A simulation of the differential equation behind the run, made of gradients of mini-batches. It tests the "
    "theory, not a change of the batch size.",
    "theorem": "Proven in a paper, under assumptions.",
    "derived": "Follows from the equation by a calculation.",
    "measured": "Decided by an experiment.",
    "heuristic": "A good guess with a known gap.",
    "guard": "A warning of the conversion: something lies outside of what the theory covers.",
}  # fmt: skip


def mark_terms(html: str) -> str:
    """Return the page's own text with a tip at each ``[[term]]`` or ``[[term|as it is written here]]``.

    The tip is the term's meaning in the list at the end of the page; ``page.js`` shows it.

    >>> mark_terms("the [[gap|gaps]]")
    'the <dfn class="term" tabindex="0" aria-describedby="term-gap">gaps</dfn>'
    """
    return re.sub(r"\[\[([^\]|]+)(?:\|([^\]]+))?\]\]", lambda found: _tip(found[1], found[2] or found[1]), html)


def list_terms() -> str:
    """Return all terms as the items of a description list."""
    return "".join(
        f'<dt>{escape(term)}</dt><dd id="{_anchor(term)}">{escape(meaning)}</dd>' for term, meaning in TERMS.items()
    )


def _tip(term: str, text: str) -> str:
    if term not in TERMS:
        raise KeyError(f"{term!r} is no term of the glossary")
    return f'<dfn class="term" tabindex="0" aria-describedby="{_anchor(term)}">{text}</dfn>'


def _anchor(term: str) -> str:
    return f"term-{term.replace(' ', '-')}"
