"""The registry as tables: ``python website/registry.py`` writes that of docs/optimizers.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import places

from rootscale.optimizers import FAMILIES, Family

__all__ = ["PAGES", "renewed", "summary", "table", "toy_gap"]

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
            f"[{row.measured}](../experiments/{row.measured}.py)" if row.measured else "",
        )
        for row in FAMILIES.values()
    ]
    head = ("optimizer", "its rule (others that keep it)", "how sure", "toy gap, kappa 4 / 16", "in training")
    return table(head, rows) + "\n"


#: The pages that have a table, and what makes it.
PAGES: dict[str, Callable[[], str]] = {"docs/optimizers.md": summary}


def renewed(name: str) -> str:
    """Return the text of a page with its table made anew."""
    text = (places.ROOT / name).read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{name} must have the lines {START.strip()} and {END}")
    return before + START + PAGES[name]() + end + after


if __name__ == "__main__":
    for name in PAGES:
        (places.ROOT / name).write_text(renewed(name), encoding="utf-8")
