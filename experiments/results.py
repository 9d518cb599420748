"""Builds what is said of the stored studies: the table of claims in results/README.md, and a page for each of them.

    python experiments/results.py --pages build/results

Each study of the files beside this one has its data in ``results/NAME.npz``; everything here is made from these alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rootscale.files import load_file, whole
from rootscale.format import percent
from rootscale.lab import Result, Study, Table
from rootscale.lab.study_file import StudyFile

HERE = Path(__file__).parent
BEGIN, END = "<!-- studies: begin -->", "<!-- studies: end -->"
#: The files of studies whose data are stored, in the order of the table.
FILES = ("stages", "ablations")
#: Files that say themselves what is claimed, as their studies cannot be made without data, or are no studies.
CLAIMS = ("language_scaling", "language_switch", "language_svag", "glue", "sooner", "one_gpu", "weak_orders")


class Claim(NamedTuple):
    """A row of the table of claims; ``data`` is a file in the folder of results, or empty where nothing is stored."""

    claim: str
    outcome: str
    n: str
    data: str
    command: str


def rows(file: str, claims: Mapping[str, str], results: Path) -> list[Claim]:
    """Return the rows of the studies of a file, made of what is stored alone.

    Args:
        file: the name of the file, without its suffix.
        claims: of its studies, by their names.
        results: the folder of the stored tables.
    """
    command, found = f"`rootscale study experiments/{file}.py`", []
    for name, claim in claims.items():
        if not (results / f"{name}.npz").exists():
            found.append(Claim(claim, "**not run**", "", "", command))
            continue
        table = Table.load(results / f"{name}.npz")
        counts = sorted({arm.trajectory.replicas for arm in (table.base, *table.others)})
        n = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        found.append(Claim(claim, outcome(table), n, f"{name}.npz", command))
    return found


def stored(results: Path) -> Iterator[tuple[str, Study, Table]]:
    """Yield each study with its data, and the name of its file."""
    for name in FILES:
        for study in StudyFile(HERE / f"{name}.py").studies():
            if (results / f"{study.name}.npz").is_file():
                yield name, study, Table.load(results / f"{study.name}.npz")


def outcome(table: Table) -> str:
    """Return the verdicts on the arms, each with the largest gap of what it rests on."""
    said: dict[str, list[str]] = {}
    for arm in table.others:
        said.setdefault(arm.verdict or "not judged", []).append(f"{arm.label} ({_gap(arm)})")
    order = [verdict for verdict in ("same", "undecided", "different", "not judged") if verdict in said]
    return "<br>".join(f"**{verdict}**: {'; '.join(said[verdict])}" for verdict in order)


def _gap(arm: Result) -> str:
    assert arm.comparison is not None
    worst = arm.comparison.worst
    if worst is None or any(arm.comparison.diverged):
        return "diverged" if any(arm.comparison.diverged) else "no gap"
    return percent(worst.judged.gap, worst.judged.se)


def claims(found: Sequence[tuple[str, Study, Table]], results: Path = HERE.parent / "results") -> str:
    """Return the table of all claims in Markdown."""
    lines = ["| study | outcome, with the largest gap | n | data | command |", "|---|---|---|---|---|"]
    for name, study, table in found:
        n = min(arm.trajectory.replicas for arm in (table.base, *table.others))
        data, command = f"[{study.name}.npz]({study.name}.npz)", f"`rootscale study experiments/{name}.py`"
        lines.append(f"| {study.claim} | {outcome(table)} | {n} | {data} | {command} |")
    for file in CLAIMS:
        for claim, result, count, data, made_by in load_file(HERE / f"{file}.py", file).claims(results):
            link = f"[{data}]({data})" if data else ""
            lines.append(f"| {claim} | {result} | {count} | {link} | {made_by} |")
    return "\n".join([*lines, "", f"{found[0][2].others[0].comparison.definition}", ""])  # type: ignore[union-attr]


def build(results: Path, pages: Path | None = None) -> None:
    """Write the table of claims, and the pages if a folder is given for them."""
    found = list(stored(results))
    readme = results / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2] if begin else ""
    with whole(readme) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n{claims(found, results)}{END}{after}", encoding="utf-8")
    if pages is not None:
        from rootscale.report import write_page

        pages.mkdir(parents=True, exist_ok=True)
        for _, study, table in found:
            write_page(table, pages / f"{study.name}.html")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    build(args.results, args.pages)
