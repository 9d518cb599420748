"""Tables of pages: ``python website/registry.py`` writes those of the registry and those of what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import places

from rootscale import evidence
from rootscale.evidence import Row, Seen, cases_of
from rootscale.optimizers import FAMILIES, Family

__all__ = ["MEASURED", "PAGES", "evidence_table", "renewed", "summary", "table", "toy_gap"]

#: What was measured of each family on toy problems, by ``experiments/optimizer_toys.py``.
TOYS = places.ROOT / "results" / "optimizer-toys.json"
KAPPAS = (4, 16)
START, END = "<!-- the registry, written by website/registry.py -->\n", "<!-- end -->"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines: list[tuple[str, ...]] = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def toy_gap(row: Family, found: dict[str, Any]) -> str:
    """Return the larger gap of a family's rule on the toy problems, for each kappa; empty where none was measured."""
    rule = row.rules[0]
    sizes = [
        [abs(gap[rule]["gap"]) for key, gap in found.items() if key.endswith(f"kappa={kappa}") and rule in gap]
        for kappa in KAPPAS
    ]
    return " / ".join(f"{max(size):.2f}" if size else "none" for size in sizes) if any(sizes) else ""


def summary() -> str:
    """Return the table of all families with what was measured."""
    found = json.loads(TOYS.read_text(encoding="utf-8"))
    rows = [
        (
            row.name,
            row.rules[0] + (f" ({', '.join(row.rules[1:])})" if row.rules[1:] else ""),
            row.status,
            toy_gap(row, found.get(row.name, {})),
            evidence.summary(row.name),
        )
        for row in FAMILIES.values()
    ]
    head = ("optimizer", "its rule (others that keep it)", "how sure", "toy gap, kappa 4 / 16", "switches in training")
    return table(head, rows) + "\n"


def evidence_table() -> str:
    """Return what was measured of switches and of runs from scratch, by what was converted."""
    columns = {"everything": "everything converted", "learning rate": "the learning rate alone", "nothing": "nothing"}
    families = {"adam": "Adam, AdamW", "muon": "Muon", "lion": "Lion"}
    rows = []
    for family, name in families.items():
        found = [row for row in cases_of(family) if row.verdict and row.where == "curve" and row.kappa > 1]
        switched = [row for row in found if row.switched and row.stages == 1 and not row.late]
        scratch = [row for row in found if not row.switched]
        for start, some in (("mid-run", switched), ("from scratch", scratch)):
            for kappa in sorted({row.kappa for row in some if row.what == "everything"}):
                cells = [_seen([row for row in some if (row.what, row.kappa) == (what, kappa)]) for what in columns]
                rows.append((f"{name}, {start}, {kappa:g} times", *cells))
    return table(("the change", *columns.values()), rows) + "\n"


def _seen(rows: Sequence[Row]) -> str:
    """Return the gaps and verdicts of some cases; a cell without data is empty."""
    seen = Seen(tuple(rows))
    return f"{seen.gaps}; {seen.verdicts}" if rows else ""


#: The pages that have a table of the registry, and what makes it.
PAGES: dict[str, Callable[[], str]] = {"docs/optimizers.md": summary}
#: What begins a table of evidence, on any page that has the line; it ends as the others do.
EVIDENCE = "<!-- what was measured, written by website/registry.py -->\n"
#: The pages that have one.
MEASURED = ("docs/how-far.md",)


def renewed(name: str) -> str:
    """Return the text of a page with its tables made anew."""
    text = (places.ROOT / name).read_text(encoding="utf-8")
    makers = {START: PAGES[name]} if name in PAGES else {}
    for start, make in (makers | ({EVIDENCE: evidence_table} if EVIDENCE in text else {})).items():
        before, _, rest = text.partition(start)
        _, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"{name} must have the lines {start.strip()} and {END}")
        text = before + start + make() + end + after
    return text


if __name__ == "__main__":
    for name in (*PAGES, *MEASURED):
        (places.ROOT / name).write_text(renewed(name), encoding="utf-8")
