"""A check as one HTML page that needs no network: the verdict first, then the curves, then how it came about.

The page is ``page.html`` with ``page.css``, ``page.js`` and plotly.js put into it. What is text is written here, so
that it can be read without scripts; what is drawn is drawn by ``page.js`` from the JSON of `rootscale.report.payload`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
from importlib import resources
from pathlib import Path

from rootscale._version import __version__
from rootscale.compare.result import Table
from rootscale.files import whole
from rootscale.report import words
from rootscale.report.cards import card
from rootscale.report.glossary import list_terms
from rootscale.report.head import about_bands, advice, first_comparison, reading, setting, verdict_boxes
from rootscale.report.html import Html, fill
from rootscale.report.payload import make_payload, script_json
from rootscale.report.sections import (
    before_toggle,
    function_choice,
    made_section,
    noise_section,
    numbers_table,
    plans_section,
    run_toggle,
)
from rootscale.report.styles import STYLES, style_of


def need_plotly() -> str:
    """plotly.js; a `ValueError` that says how to install it where it is missing."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise ValueError("a report needs plotly, which is not installed; pip install 'rootscale[report]'") from None
    return str(offline.get_plotlyjs())


def write_page(check: Table, path: str | os.PathLike[str]) -> Path:
    """Writes the page to ``path``: all of it or, on any failure, nothing."""
    path = Path(path)
    text = render_page(check)
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render_page(check: Table) -> str:
    """The page, about 5 MB with plotly.js in it.

    Its content security policy lets the browser run the page's own two scripts, known by their hashes, and load
    nothing from anywhere.
    """
    count = 1 + len(check.others)
    # The text of a script may not hold what ends it; in JavaScript the backslash changes nothing.
    plotly, script = (Html(text.replace("</script", "<\\/script")) for text in (need_plotly(), _own("page.js")))
    data = make_payload(check) | {"colours": len(STYLES), "dashes": [style_of(i).plotly for i in range(count)]}
    return fill(
        _own("page.html"),
        hashes=" ".join(f"'sha256-{_hash(text)}'" for text in (plotly, script)),
        css=Html(_own("page.css")),
        plotly=plotly,
        script=script,
        data=Html(script_json(data)),
        task=check.task,
        verdicts=verdict_boxes(check),
        advice=advice(check),
        setting=setting(check),
        reading=reading(check),
        glossary=Html(list_terms()),
        cards=[card(i, arm, check) for i, arm in enumerate(check.others, 1)],
        choices=[function_choice(i, name) for i, name in enumerate(words.functions(check))],
        legend=[run_toggle(i, arm) for i, arm in enumerate((check.base, *check.others))] + before_toggle(check),
        base=check.base.label,
        clock=words.clock_name(check.base.trajectory),
        gaps="Gap against tolerance" if first_comparison(check) else "Gap",
        bands=about_bands(check),
        numbers=[numbers_table(i, name, check) for i, name in enumerate(words.functions(check))],
        noise=noise_section(check),
        plans=plans_section(check),
        made=made_section(check),
        version=__version__,
    )


def _own(name: str) -> str:
    return resources.files("rootscale.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
