"""Builds what is said of the stored studies: the table of claims in results/README.md, a page and a figure for each.

    python experiments/results.py --pages build/results

Each study of the files beside this one has its data in ``results/NAME.npz``; everything here is made from these alone.
A file that says more of its data than the judge does defines ``claims(results)``, its own rows, and ``page(results)``,
its own tables; ``figures(results)`` gives figures by name; ``GROUP`` names the table of its rows. All of it is the same
every time: on a clean clone nothing changes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rootscale.files import load_file, whole
from rootscale.format import percent, plus_minus
from rootscale.lab import Result, Table
from rootscale.lab.study_file import StudyFile
from rootscale.verdict import Absolute

__all__ = ["Claim", "build", "claim_of", "claims_of", "ends", "files", "outcome", "page_of", "rows", "stored", "tables"]

HERE = Path(__file__).parent
BEGIN, END = "<!-- studies: begin -->", "<!-- studies: end -->"
#: Figures that pages of the repository show, and that are stored beside the data; the others are built with the pages.
TRACKED = ("sooner",)
#: The tables, by ``GROUP`` of a file.
GROUPS: Mapping[str, str] = {
    "paper": "The paper's claims",
    "beyond": "Beyond the paper",
}
#: Of a table with more arms only counts are shown, with the nearest and the farthest.
FEW = 4
VERDICTS = ("same", "undecided", "different", "not judged")


class Claim(NamedTuple):
    """A row of the table of claims.

    Args:
        claim: what is asked.
        outcome: computed from the data; empty or "not run" where there are none.
        n: how many runs of each arm.
        data: the file in ``results``; empty where there is none.
        command: what makes it, or the name or path of its file.
    """

    claim: str
    outcome: str
    n: str
    data: str
    command: str

    @property
    def done(self) -> bool:
        """Whether there is an outcome."""
        return bool(self.outcome) and "not run" not in self.outcome

    @property
    def made_by(self) -> str:
        """The command, with a link to the file."""
        text = self.command.strip("`")
        if " " not in text:
            path = HERE / f"{Path(text).stem}.py"
            program = "rootscale study" if "\nSTUDY" in path.read_text(encoding="utf-8") else "python"
            text = f"{program} experiments/{path.name}"
        (file,) = re.findall(r"experiments/\w+\.py", text)
        return f"[`{text}`](../{file})"

    @property
    def row(self) -> str:
        """The row in Markdown."""
        data = f"[{self.data}]({self.data})" if self.data else ""
        return f"| {self.claim} | {self.outcome} | {self.n} | {data} | {self.made_by} |"


# -- one study ---------------------------------------------------------------------------------------------------------


@cache
def stored(results: Path, name: str) -> Table | None:
    """Return the table of a study; None where nothing of it is stored."""
    path = results / f"{name}.npz"
    return Table.load(path) if path.exists() else None


def claim_of(claim: str, table: Table | None, name: str, command: str) -> Claim:
    """Return the row of a study: its outcome by its judge."""
    if table is None:
        return Claim(claim, "", "", "", command)
    if not table.others:
        return Claim(claim, lone(table), str(table.base.trajectory.replicas), f"{name}.npz", command)
    numbers = sorted({arm.trajectory.replicas for arm in (table.base, *table.others)})
    n = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    missing = [text for text in table.made.get("missing", ()) if text]
    more = f"<br>*missing*: {len(missing)} of the arms' runs" if missing else ""
    return Claim(claim, outcome(table) + more, n, f"{name}.npz", command)


def rows(file: str, claims: Mapping[str, str], results: Path) -> list[Claim]:
    """Return the rows of the studies of a file, given the claim of each by its name."""
    return [claim_of(claim, stored(results, name), name, file) for name, claim in claims.items()]


def outcome(table: Table) -> str:
    """Return the verdicts on the arms, each with the gap that it rests on; of many arms, how many of each."""
    groups: dict[str, list[Result]] = {}
    for arm in table.others:
        groups.setdefault(arm.verdict or "not judged", []).append(arm)
    parts = []
    for verdict in (verdict for verdict in VERDICTS if verdict in groups):
        arms = groups[verdict]
        if len(table.others) <= FEW or len(arms) < 3:
            parts.append(f"**{verdict}**: {'; '.join(f'{arm.label} ({_gap(arm)})' for arm in arms)}")
            continue
        ordered = sorted(arms, key=_size)
        ends = (f"{arm.label} ({_gap(arm)})" for arm in (ordered[0], ordered[-1]))
        parts.append(f"**{verdict}**: {len(arms)} arms, from {' to '.join(ends)}")
    return "<br>".join(parts)


def lone(table: Table) -> str:
    """Return what an arm is that nothing can be compared with yet: its accuracy or loss at the end."""
    runs = table.base.trajectory
    name = next(iter(table.judge.decide_by or runs.names))
    last = runs.values[name][:, -1] * (100 if name.endswith("accuracy") else 1)
    error = None if len(last) < 2 else float(last.std(ddof=1)) / len(last) ** 0.5
    unit = " %" if name.endswith("accuracy") else ""
    digits = 1 if unit else 4
    return f"**its base is missing**: {table.base.label}, {name} {plus_minus(float(last.mean()), error, digits)}{unit}"


def _size(arm: Result) -> float:
    """Return how large the gap of an arm is; infinite where it diverged."""
    worst = None if arm.comparison is None else arm.comparison.worst
    return np.inf if worst is None or not np.isfinite(worst.judged.gap) else abs(worst.judged.gap)


def _gap(arm: Result) -> str:
    """Return the gap of what the verdict rests on, in the unit of its tolerance."""
    comparison = arm.comparison
    assert comparison is not None
    worst = comparison.worst
    if any(comparison.diverged):
        return "diverged"
    if worst is None or not np.isfinite(worst.judged.gap):
        return "no gap"
    far = worst.judged
    gap, se = (float(worst.gap[-1]), float(worst.se[-1])) if comparison.over == "end" else (far.gap, far.se)
    error = se if np.isfinite(se) else None
    if not isinstance(comparison.tolerance, Absolute):
        return percent(gap, se) if error is not None else percent(gap)
    scale = worst.range * (100 if worst.name.endswith("accuracy") else 1)
    text = plus_minus(gap * scale, None if error is None else error * scale, 1 if scale > worst.range else 4, "+")
    return f"{text} points" if worst.name.endswith("accuracy") else text


def ends(table: Table, function: str) -> dict[str, float]:
    """Return the mean of a test function at the end of each arm, over the runs that have not diverged."""
    arms = (table.base, *table.others)
    values = {arm.label: arm.trajectory.values[function][:, -1] for arm in arms if function in arm.trajectory.names}
    return {
        label: float(value[np.isfinite(value)].mean()) for label, value in values.items() if np.isfinite(value).any()
    }


# -- all studies -------------------------------------------------------------------------------------------------------


def files() -> Iterator[tuple[Path, ModuleType]]:
    """Yield the files that have rows in the tables, as modules."""
    for path in sorted(HERE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != Path(__file__).name and ("\nSTUDY" in text or "\ndef claims(" in text):
            yield path, StudyFile(path).module if "\nSTUDY" in text else load_file(path, path.stem)


def claims_of(path: Path, module: ModuleType, results: Path) -> list[Claim]:
    """Return the rows of a file: its own, or one of each of its studies."""
    own = getattr(module, "claims", None)
    if own is not None:
        return list(own(results))
    try:
        studies = StudyFile(path).studies()
    except ValueError as error:  # it waits for another study, such as one that tunes its learning rate
        return [Claim((module.__doc__ or path.stem).splitlines()[0], f"*not run*: {error}", "", "", path.name)]
    return [claim_of(study.claim, stored(results, study.name), study.name, path.name) for study in studies]


def tables(results: Path) -> str:
    """Return the tables of all claims in Markdown; what was not run stands below, by command."""
    found: dict[str, list[Claim]] = {group: [] for group in GROUPS}
    for path, module in files():
        found[getattr(module, "GROUP", "beyond")] += claims_of(path, module, results)
    parts = []
    for group, title in GROUPS.items():
        lines = [f"## {title}", "", "| claim | outcome | n | data | made by |", "|---|---|---|---|---|"]
        parts.append("\n".join([*lines, *(claim.row for claim in found[group] if claim.done)]))
        waiting: dict[str, list[str]] = {}
        for claim in found[group]:
            if not claim.done:
                waiting.setdefault(claim.made_by, []).append(claim.claim)
        if waiting:
            items = (f"- {made_by}: {'; '.join(claims)}" for made_by, claims in waiting.items())
            parts.append("\n".join(["Not run yet:", "", *items]))
    return "\n\n".join(parts) + "\n"


def page_of(table: Table, name: str) -> str:
    """Return the page of a study in Markdown: its figure, and a row for each arm and judged function."""
    made = table.made
    how = ", ".join(str(made[key]) for key in ("hardware", "date") if key in made)
    lines = [
        f"# {name}", "", f"{str(made.get('claim', table.task)).rstrip('.')}.", "",
        f"![{name}]({name}.png)", ""
        "| arm | n | diverged | function | largest gap, of the base's range | at the end | verdict |", "|---" * 7 + "|",
    ]  # fmt: skip
    lines.append(f"| {table.base.label} | {table.base.trajectory.replicas} | {_lost(table.base)} | | base | | |")
    for arm in table.others:
        comparison = arm.comparison
        gaps = () if comparison is None else comparison.decisive
        for gap in gaps or (None,):
            cells = [arm.label, str(arm.trajectory.replicas), _lost(arm)]
            if gap is None or not np.isfinite(gap.largest.gap):
                cells += ["" if gap is None else gap.name, "", "", arm.verdict or ""]
            else:
                size, end = gap.largest, percent(float(gap.gap[-1]), _known(float(gap.se[-1])))
                cells += [gap.name, percent(size.gap, _known(size.se)), end, gap.verdict or "not judged"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Made by `{made.get('command', '')}`{': ' if how else ''}{how}.", ""])


def _lost(arm: Result) -> str:
    return str(int(arm.trajectory.diverged[-1]))


def _known(error: float) -> float | None:
    return error if np.isfinite(error) else None


def build(results: Path, pages: Path | None = None) -> None:
    """Write the tables of claims and the stored figures; all pages and figures too, if a folder is given for them."""
    from drawing import curves, save

    readme = results / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2] if begin else ""
    _write(readme, f"{before}{BEGIN}\n{tables(results)}{END}{after}")
    drawn: dict[str, Any] = {}
    if pages is not None:
        pages.mkdir(parents=True, exist_ok=True)
        for path in sorted(results.glob("*.npz")):
            table = _table(path)
            if table is not None and table.others:
                _write(pages / f"{path.stem}.md", page_of(table, path.stem))
                drawn[path.stem] = curves(table)
    for path, module in files():
        drawn |= getattr(module, "figures", lambda results: {})(results)
        own = getattr(module, "page", None)
        if own is not None and pages is not None:
            title = (module.__doc__ or path.stem).splitlines()[0]
            _write(pages / f"{path.stem.replace('_', '-')}-tables.md", f"# {title}\n\n{own(results)}")
    for name, figure in drawn.items():
        if name in TRACKED:
            _redraw(figure, results / f"{name}.png")
        if pages is not None:
            save(figure, pages / f"{name}.png")


def _redraw(figure: Any, path: Path) -> None:
    """Write a figure where its pixels are others; equal ones may be other bytes, by the version of the library."""
    from drawing import save
    from matplotlib.image import imread

    with tempfile.TemporaryDirectory() as folder:
        made = save(figure, Path(folder) / path.name)
        if not path.exists() or not np.array_equal(imread(made), imread(path)):
            shutil.copyfile(made, path)


def _write(path: Path, text: str) -> None:
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _table(path: Path) -> Table | None:
    """Return a stored table; None for data of another kind."""
    with np.load(path, allow_pickle=False) as file:
        return Table.load(path) if "table" in file.files else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    build(args.results, args.pages)
