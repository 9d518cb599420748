"""Draws every figure and writes every table of results/ from the stored data: ``make results``.

For each experiment of ``rootscale reproduce --list`` whose results are stored: ``results/NAME/README.md`` and a figure.
For all of them: the tables in ``results/README.md`` (what is not stored is listed as not run, with the command that
would make it and its cost), ``results/cifar10-switch/switch.png``, ``results/noise.png`` and
``results/theory/digits.png``. Experiments that make one table (`rootscale.paper.groups`) have one page and figure
together. The interactive pages and the figures for papers of `rootscale.report` are large and go to a folder outside of
the repository's files. ``--only NAME ...`` makes the pages of some experiments anew, and the table of all.

    python -m rootscale.paper.results --results results --pages build/results
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rootscale.files import whole
from rootscale.lab import Table
from rootscale.paper.entries import Entry, entries_of
from rootscale.paper.experiments.glue_page import page as glue_page
from rootscale.paper.experiments.sde_digits import draw_stored
from rootscale.paper.figures.bars import draw_headline
from rootscale.paper.figures.curves import draw_curves
from rootscale.paper.figures.dots import draw_dots
from rootscale.paper.figures.gap_tables import draw_group
from rootscale.paper.figures.noise_scale import draw_noise
from rootscale.paper.figures.sweeps import draw_sweep
from rootscale.paper.figures.switched import draw_switch
from rootscale.paper.groups import GROUPS, cells_of
from rootscale.paper.headline import HEADLINES, ways_of
from rootscale.paper.overview import outcome_tables
from rootscale.paper.pages import dominated_words, page

BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"


def reports(entry: Entry, folder: Path) -> None:
    """Write the interactive page and the figures for papers."""
    report = importlib.import_module("rootscale.report")
    report.draw_figures(entry.check, folder, ("png", "pdf"))
    report.write_page(entry.check, folder / "report.html")


def build_headline(entry: Entry) -> None:
    """Draw and write an experiment whose rows are ways to one model."""
    headline = HEADLINES[entry.experiment.name]
    title = f"{entry.experiment.title} ({headline.subject})"
    draw_headline(title, ways_of(entry, headline.arms), entry.folder / "seconds.png", headline.memory)
    write(entry.folder / "README.md", headline.page(entry))
    print(f"{entry.folder}: figure and page")


def make_groups(results: Path, entries: Sequence[Entry], only: Sequence[str]) -> None:
    """Make figure and page of the experiments that make one table."""
    for group in GROUPS.values():
        cells = cells_of(entries, group.name)
        if cells and (not only or group.name in only):
            draw_group(group, cells, results / group.name / "gaps.png")
            own = [entry for entry in entries if entry.experiment.group == group.name and entry.there]
            write(results / group.name / "README.md", group.page(cells, own))
            print(f"{results / group.name}: figure and page")


def make_entry(entry: Entry, pages: Path | None) -> None:
    """Make figures and page of an experiment."""
    shown = entry.experiment.shown
    draw = draw_dots if shown.dots else draw_sweep if shown.sweep else draw_curves
    draw(entry, entry.figure)
    if entry.experiment.name == "cifar10-switch":
        draw_switch(entry, entry.folder / "switch.png")
    write(entry.folder / "README.md", page(entry))
    if pages is not None:
        reports(entry, pages / entry.folder.name)
    print(f"{entry.folder}: figures and page")


def build(results: Path, pages: Path | None, only: Sequence[str] = ()) -> None:
    """Make everything that can be made of what is stored, verdicts first; or some experiments, by their folders."""
    stored = [place.parent for place in sorted(results.glob("**/table.npz"))]
    checks = {place: judge_again(place) for place in stored if not only or place.name in only}
    entries = list(entries_of(results, checks))
    make_groups(results, entries, only)
    there = [entry for entry in entries if entry.there and not entry.experiment.group]
    for entry in there:
        if not only or entry.folder.name in only:
            build_headline(entry) if entry.experiment.name in HEADLINES else make_entry(entry, pages)
    scaling = [entry for entry in there if entry.experiment.title.startswith("The square root rule")]
    if scaling:
        draw_noise(scaling, results / "noise.png")
    if (results / "theory" / "digits.json").exists():
        draw_stored(results / "theory")
    for place in results.glob("glue*/glue.json"):
        write(place.parent / "README.md", glue_page(json.loads(place.read_text(encoding="utf-8"))))
    place = results / "README.md"
    text = place.read_text(encoding="utf-8") if place.exists() else "# Results\n"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write(place, f"{before}{BEGIN}\n{outcome_tables(results)}{dominated_words(scaling)}{END}{after}")
    print(f"{place}: {len(there)} experiments")


def judge_again(folder: Path) -> Table:
    """Write a stored table with the comparisons that its judge makes now, and return it."""
    table = Table.load(folder).judged()
    table.save(folder)
    return table


def write(path: Path, text: str) -> None:
    """Write all of the file or nothing."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the stored results")
    parser.add_argument("--pages", type=Path, help="folder for interactive pages and figures for papers")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="folders of experiments to make anew")
    args = parser.parse_args(argv)
    build(args.results, args.pages, args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
