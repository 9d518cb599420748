"""Draws every figure and writes every table of results/ from the stored data: ``make results``.

For each experiment of ``rootscale reproduce --list`` whose results are stored: ``results/NAME/README.md`` and
``curves.png``. For all of them: the table in ``results/README.md`` (what is not stored is listed as missing, with the
command that would make it), ``results/cifar10-switch/switch.png`` and ``results/noise.png``. Experiments that make one
table (`rootscale.paper.groups`) have one page and figure together. The interactive pages and
the figures for papers of `rootscale.report` are large and go to a folder outside of the repository's files.

    python -m rootscale.paper.results --results results --pages build/results
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rootscale.files import whole
from rootscale.format import show
from rootscale.lab import Arm, Check, Measure, Variant
from rootscale.noise import Dominance, scale_curve
from rootscale.pairing import window
from rootscale.paper.drawing import PANELS, batch_size, draw_curves, draw_noise, draw_switch, starts_off_the_figure
from rootscale.paper.entries import Entry, entries_of
from rootscale.paper.experiment import Experiment
from rootscale.paper.finals import ACCURACY, MEASURES, Final, format_curve, format_end, format_gap
from rootscale.paper.group_figures import draw_group
from rootscale.paper.groups import GROUPS, Group, cells_of
from rootscale.paper.parts import kept
from rootscale.paper.stored import judge_again
from rootscale.rules import default_rule

BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"
#: How the noise scale was measured.
NOISE_MEASURED = (
    f"It is measured on {Measure.noise_samples:,} training samples and rough beyond that number: where no gradient is "
    "seen in their noise (its line leaves the figure), it is above about that many, and of two shares the second "
    "counts it as above the batch size."
)


# -- words -----------------------------------------------------------------------------------------------------------


def overview(results: Path) -> str:
    """Return the table "paper says / we measured" in Markdown."""
    lines = ["| | the paper says | we measured | n | hardware | figure |", "|---|---|---|---|---|---|"]
    entries, groups = list(entries_of(results)), set[str]()
    for entry in entries:
        if entry.experiment.group:
            if entry.experiment.group not in groups:
                groups.add(entry.experiment.group)
                lines.append(_group_row(GROUPS[entry.experiment.group], entries))
            continue
        experiment, found = entry.experiment, entry.stored()
        claim = f"{experiment.claim} ({experiment.source})"
        if found is None:
            lines.append(_row(entry.title, claim, f"*missing:* `{entry.command}`", "", "", ""))
            continue
        page = entry.folder / "README.md"
        linked = f"[{entry.title}]({page.relative_to(results)})" if entry.there or page.exists() else entry.title
        figure = f"[{found.figure.name}]({found.figure.relative_to(results)})"
        lines.append(_row(linked, claim, found.words, str(found.seeds), found.hardware, figure))
    return "\n".join(lines) + "\n"


def _group_row(group: Group, entries: Sequence[Entry]) -> str:
    """Return the row of experiments that make one table."""
    cells, own = cells_of(entries, group.name), [e for e in entries if e.experiment.group == group.name]
    missing = [f"`{entry.command}`" for entry in own if not entry.there]
    words = [group.words(cells)] if cells else []
    words += [f"*missing:* {', '.join(missing)}"] if missing else []
    there = [entry for entry in own if entry.there]
    seeds = sorted({max(final.seeds for final in entry.finals) for entry in there})
    hardware = dict.fromkeys(entry.record["hardware"] for entry in there)
    title, figure = group.title, ""
    if cells:
        title, figure = f"[{title}]({group.name}/README.md)", f"[gaps.png]({group.name}/gaps.png)"
    claim = f"{group.claim} ({group.source})"
    return _row(title, claim, ". ".join(words), ", ".join(map(str, seeds)), "; ".join(hardware), figure)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def page(entry: Entry) -> str:
    """Return an experiment's own page in Markdown."""
    experiment, record, check, finals = entry.experiment, entry.record, entry.check, entry.finals
    parts = [
        f"# {entry.title}",
        f"**The paper** ({experiment.source}): {experiment.claim}.",
        f"**We measured:** {entry.words()}.",
        "![curves](curves.png)\n\nLines are means over seeds, bands their range; losses far above the base's are cut "
        f"off. {_what(experiment, record)}",
    ]
    if experiment.name == "cifar10-switch":
        parts.insert(3, "![the switch](switch.png)")
    shown = MEASURES[experiment.measure]
    ends = [f"{title} at the end" for title in shown.values()]
    head = ["run", "seeds", "diverged", *ends, "less the base's", "verdict", "seconds"]
    rows = [_row(*head), _row(*["---"] * len(head))]
    for i, final in enumerate(finals):
        values = [format_end(name, final.end(name)) for name in shown]
        gap = format_gap(experiment.measure, final.end(experiment.measure)) if i else "base"
        verdict = final.verdict or ("" if not i else "none: one seed")
        counts = str(final.seeds), str(final.diverged)
        rows.append(_row(final.label, *counts, *values, gap, verdict, f"{final.seconds:.0f}"))
    parts.append("\n".join(rows))
    parts.append(_error(experiment, finals))
    names = [name for name in PANELS if any(name in final.curves for final in finals)]
    rows = [_row("largest gap to the base's curve, in % of its range", *names), _row(*["---"] * (len(names) + 1))]
    rows += [_row(final.label, *(format_curve(final, name) for name in names)) for final in finals[1:]]
    parts.append("\n".join(rows))
    parts.append(_window_words(check))
    parts.append(_noise_words(check, kept(entry.options)))
    if record["missing"]:
        parts.append(f"**Missing:** {_gathered(record['missing'])}.")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    parts.append(
        f"Made by `{record['command']}` on {record['date']}: {record['hardware']}, {record['seconds'] / 60:.1f} "
        f"minutes, summed over runs that may have shared it; {versions}."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _gathered(runs: Sequence[str]) -> str:
    """Return names of runs, those that differ in their seed only together.

    >>> _gathered(["B = 256, seed 3", "B = 1,024, seed 3", "B = 256, seed 4"])
    'B = 256, seeds 3, 4; B = 1,024, seed 3'
    """
    seeds: dict[str, list[str]] = {}
    for run in runs:
        label, _, some = run.rpartition(", seed")
        seeds.setdefault(label, []).append(some.removeprefix("s").strip())
    return "; ".join(
        f"{label}, {'seeds' if len(some) > 1 or ' ' in some[0] else 'seed'} {', '.join(some)}"
        for label, some in seeds.items()
    )


def _what(experiment: Experiment, record: Mapping[str, Any]) -> str:
    """Return what the axes of the figure are."""
    n, epochs = record["test_samples"], record["name"].startswith("cifar10")
    text = "Epochs are samples seen over the training set. " if epochs else ""
    if experiment.measure == ACCURACY:
        return f"{text}Test accuracy is measured on {n:,} samples."
    return f"{text}Losses are log-perplexities (nats a token); those of the test are measured on {n:,} sequences."


def _error(experiment: Experiment, finals: Sequence[Final]) -> str:
    """Return what ± is."""
    if max(final.seeds for final in finals) > 1:
        return "± is one standard error, over the seeds."
    if experiment.measure == ACCURACY:
        return "± is one standard error, binomial: one seed, so not that of a rerun."
    return "One seed: what a rerun would change is not known."


def _window_words(check: Check) -> str:
    """Return over what the gaps are taken, and what the figure leaves out."""
    trajectory = check.base.trajectory
    first, last = (show(trajectory.meta["samples"][i]) for i in (window(trajectory).start, -1))
    text = f"Gaps and ranges are those of the {len(trajectory.times[window(trajectory)])} times from {first} to {last}"
    text += " samples."
    if starts_off_the_figure(trajectory, "train loss"):
        text += (
            f" Before the first step, with BatchNorm's averages as they begin, the train loss is "
            f"{trajectory['train loss'].mean[0]:,.0f}: it leaves the figure."
        )
    return text


def _noise_words(check: Check, left_alone: Sequence[str]) -> str:
    """Return in which share of the run the noise dominates: of the base, and of what is all converted but for that."""
    arms = [arm for arm in (check.base, *check.others) if _under_the_rule(arm, left_alone)]
    parts = [f"{arm.label}: {share}" for arm in arms if (share := _share(arm))]
    return (
        "Share of the run in which the noise dominates the gradient (the noise scale exceeds the batch size): "
        f"{'; '.join(parts)}. {NOISE_MEASURED}"
        if parts
        else ""
    )


def _under_the_rule(arm: Arm, left_alone: Sequence[str]) -> bool:
    variant = Variant.from_dict(arm.trajectory.meta["variant"])
    rule, own = variant.the_rule(arm.the_plan), default_rule(arm.the_plan.optimizer.name)
    # The paper's betas are far above the floors: there both forms of averaging are one.
    whole = rule.key == own.key and rule.averaging in (own.averaging, "paper") and set(rule.left_out) <= {*left_alone}
    return whole and not variant.zero_state and variant.ell == 1


def _dominated_words(scaling: Sequence[Entry]) -> str:
    """Return for each run under the rule in which share of it the noise dominates, and what the rule gave there."""
    if not scaling:
        return ""
    cells: dict[str, dict[int, str]] = {}
    for entry in scaling:
        row = cells[f"{entry.title.partition(': ')[2]}, {entry.record['options']['epochs']:g} epochs"] = {}
        for arm, final in zip(entry.check.others, entry.finals[1:], strict=True):
            share, gap = _share(arm), format_gap(ACCURACY, final.accuracy)
            row[batch_size(arm)] = f"{share}: {gap}" if share else gap
    sizes = sorted({size for row in cells.values() for size in row})
    table = [_row("", *(f"B = {size:,}" for size in sizes)), _row(*["---"] * (len(sizes) + 1))]
    table += [_row(title, *(row.get(size, "") for size in sizes)) for title, row in cells.items()]
    return (
        "\nWhere the noise dominates, and whether the rule holds: the share of the run in which the noise scale "
        "([noise.png](noise.png)) exceeds the batch size, and the test accuracy at the end less that of the base. "
        f"{NOISE_MEASURED}\n\n" + "\n".join(table) + "\n"
    )


def dominance_of(arm: Arm) -> Dominance | None:
    """Return where the noise of an arm's batch size dominates along its own run; None where it was not measured."""
    curve = scale_curve(arm.trajectory)
    return None if curve is None else Dominance(curve, batch_size(arm), Measure.noise_samples)


def _share(arm: Arm) -> str:
    """Return in which share of the run the noise dominates; two numbers where some measurements say nothing."""
    found = dominance_of(arm)
    if found is None or found.share is None:
        return ""
    low, high = (f"{100 * value:.0f}" for value in found.share)
    return f"{low} %" if low == high else f"{low} to {high} %"


# -- all of it -------------------------------------------------------------------------------------------------------


def reports(entry: Entry, folder: Path) -> None:
    """Write the interactive page and the figures for papers."""
    report = importlib.import_module("rootscale.report")
    report.draw_figures(entry.check, folder, ("png", "pdf"))
    report.write_page(entry.check, folder / "report.html")


def build(results: Path, pages: Path | None) -> None:
    """Make everything that can be made of what is stored, verdicts first."""
    checks = {place.parent: judge_again(place.parent) for place in sorted(results.glob("**/check.json"))}
    entries = list(entries_of(results, checks))
    for group in GROUPS.values():
        cells = cells_of(entries, group.name)
        if cells:
            draw_group(group, cells, results / group.name / "gaps.png")
            own = [entry for entry in entries if entry.experiment.group == group.name and entry.there]
            write(results / group.name / "README.md", group.page(cells, own))
            print(f"{results / group.name}: figure and page")
    there = [entry for entry in entries if entry.there and not entry.experiment.group]
    for entry in there:
        draw_curves(entry, entry.folder / "curves.png")
        if entry.experiment.name == "cifar10-switch":
            draw_switch(entry, entry.folder / "switch.png")
        write(entry.folder / "README.md", page(entry))
        if pages is not None:
            reports(entry, pages / entry.folder.name)
        print(f"{entry.folder}: figures and page")
    scaling = [entry for entry in there if entry.experiment.title.startswith("The square root rule")]
    if scaling:
        draw_noise(scaling, results / "noise.png")
    place = results / "README.md"
    text = place.read_text(encoding="utf-8") if place.exists() else "# Results\n"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write(place, f"{before}{BEGIN}\n{overview(results)}{_dominated_words(scaling)}{END}{after}")
    print(f"{place}: {len(there)} experiments")


def write(path: Path, text: str) -> None:
    """Write all of the file or nothing."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the stored results")
    parser.add_argument("--pages", type=Path, help="folder for interactive pages and figures for papers")
    args = parser.parse_args(argv)
    build(args.results, args.pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
