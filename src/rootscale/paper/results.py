"""Draws every figure and writes every table of results/ from the stored data: ``make results``.

For each experiment of ``rootscale reproduce --list`` whose results are stored: ``results/NAME/README.md`` and
``curves.png``. For all of them: the table in ``results/README.md`` (what is not stored is listed as missing, with the
command that would make it), ``results/cifar10-switch/switch.png`` and ``results/noise.png``. The interactive pages and
the figures for papers of `rootscale.report` are large and go to a folder outside of the repository's files.

    python -m rootscale.paper.results --results results --pages build/results
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.files import whole
from rootscale.lab import Arm, Check, Measure, Variant
from rootscale.paper.experiment import Experiment, Options, Stored
from rootscale.paper.experiments import experiments
from rootscale.paper.finals import ACCURACY, MEASURES, Final, percent, starts_high, told, told_gap
from rootscale.paper.parts import TITLES, kept
from rootscale.paper.stored import finals_of, record_of
from rootscale.report.orders import need_matplotlib
from rootscale.report.words import NO_GRADIENT, NOISE_SCALE
from rootscale.rules import default_rule
from rootscale.trajectory import Trajectory

BEGIN, END = "<!-- experiments: begin -->", "<!-- experiments: end -->"
#: Colours that colour-blind readers can tell apart (Okabe and Ito), and dashes for those who print in grey.
STYLES: tuple[tuple[str, Any], ...] = (
    ("#1d2126", "-"),
    ("#0072b2", (0, (5, 1.5))),
    ("#d55e00", (0, (3, 1, 1, 1))),
    ("#e69f00", (0, (6, 2, 1, 2))),
    ("#cc79a7", (0, (1, 1.2))),
    ("#56b4e9", (0, (8, 2))),
    ("#009e73", "-"),
    ("#7f3c8d", (0, (2, 1))),
    ("#8c564b", (0, (7, 1, 1, 1, 1, 1))),
    ("#9a8c00", (0, (4, 1))),
)
#: Test functions in the order of the panels; the noise scale has a figure of its own.
PANELS = ("train loss", "train accuracy", "test loss", "test accuracy", "gradient norm", "Tr Sigma", "noise scale")
PERCENT = ("train accuracy", "test accuracy")
LOGARITHMIC = ("gradient norm", "Tr Sigma", "noise scale")
#: How the noise scale was measured.
NOISE_MEASURED = (
    f"It is measured on {Measure.noise_samples:,} training samples and rough beyond that number: where no gradient is "
    "seen in their noise (its line leaves the figure), it is above about that many, and of two shares the second "
    "counts it as above the batch size."
)


@dataclass(frozen=True)
class Entry:
    """An experiment under some options, and the folder where its results would be."""

    experiment: Experiment
    options: Options
    folder: Path

    @property
    def title(self) -> str:
        """That of the experiment, with what is other than its default."""
        options, defaults = self.options, self.experiment.defaults
        parts = [self.experiment.title]
        parts += [f"ε = {options.eps:g}"] if options.eps != defaults.eps else []
        parts += [f"recipe {options.recipe}"] if options.recipe != defaults.recipe else []
        parts += [options.model] if options.model != defaults.model else []
        parts += ["BatchNorm as in the paper"] if options.paper_batchnorm else []
        return ", ".join(parts)

    @property
    def there(self) -> bool:
        """Whether runs of it are stored."""
        return (self.folder / "experiment.json").exists()

    # What is stored is read once, for all figures and tables.

    @cached_property
    def check(self) -> Check:
        """The trajectories."""
        return Check.load(self.folder)

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """What made them."""
        return record_of(self.folder)

    @cached_property
    def finals(self) -> Sequence[Final]:
        """What they came to."""
        return finals_of(self.folder)

    def stored(self) -> Stored | None:
        """What a reader is told."""
        if self.experiment.stored is not None:
            return self.experiment.stored(self.folder)
        if not self.there:
            return None
        seeds = max(final.seeds for final in self.finals)
        return Stored(self.words(), seeds, self.record["hardware"], self.folder / "curves.png")

    def words(self) -> str:
        """What came out, and what there is not yet, with the command that makes it."""
        assert self.experiment.words is not None
        record, words = self.record, self.experiment.words(self.finals)
        made = record["options"]
        if made["smoke"]:
            return f"a smoke test on generated data, which says nothing about the claim: {words}"
        missing = record["missing"]
        runs = f"{len(missing)} {'runs' if len(missing) > 1 else 'run'}"
        unfinished = f". *Missing:* {runs}, `{record['command']}`" if missing else ""
        return words + unfinished + self.short_of(made)

    def short_of(self, made: Mapping[str, Any]) -> str:
        """What was made with other options than planned, and the command for the plan; nothing if it is the plan."""
        planned = self.options.to_dict()
        other = [name for name in ("epochs", "batch_sizes", "ells", "seeds") if made[name] != planned[name]]
        if not other:
            return ""
        instead = "; ".join(
            f"{name.replace('_', ' ')} {_told(made[name])} instead of {_told(planned[name])}" for name in other
        )
        return f". Made with {instead}; *missing:* `{self.command}`"

    @property
    def command(self) -> str:
        """What makes it as planned."""
        return self.experiment.command(replace(self.options, device="cuda"))


def entries(results: Path) -> Iterator[Entry]:
    """Every experiment with its default options, with the further ones it names, and any other that is stored."""
    known = set()
    for experiment in experiments().values():
        for change in ({}, *experiment.also):
            options = replace(experiment.options(), **change)
            entry = Entry(experiment, options, results / experiment.folder(options))
            known.add(entry.folder)
            yield entry
    for place in sorted(results.glob("*/experiment.json")):
        if place.parent not in known:
            record = record_of(place.parent)
            given: dict[str, Any] = {
                name: tuple(x) if isinstance(x, list) else x for name, x in record["options"].items()
            }
            yield Entry(experiments()[record["name"]], Options(**given), place.parent)


# -- words -----------------------------------------------------------------------------------------------------------


def overview(results: Path) -> str:
    """The table "paper says / we measured" in Markdown."""
    lines = ["| | the paper says | we measured | n | hardware | figure |", "|---|---|---|---|---|---|"]
    for entry in entries(results):
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


def _told(option: Any) -> str:
    return ", ".join(f"{value:,g}" for value in (option if isinstance(option, list) else [option]))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def page(entry: Entry) -> str:
    """An experiment's own page in Markdown."""
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
        values = [told(name, final.end(name)) for name in shown]
        gap = told_gap(experiment.measure, final.end(experiment.measure)) if i else "base"
        verdict = final.verdict or ("" if not i else "none: fewer than 4 seeds")
        counts = str(final.seeds), str(final.diverged)
        rows.append(_row(final.label, *counts, *values, gap, verdict, f"{final.seconds:.0f}"))
    parts.append("\n".join(rows))
    parts.append(_error(experiment, finals))
    names = [name for name in PANELS if any(name in final.curves for final in finals)]
    rows = [_row("largest gap to the base, over the range of its curve", *names), _row(*["---"] * (len(names) + 1))]
    rows += [_row(final.label, *(percent(final.curves.get(name)) for name in names)) for final in finals[1:]]
    parts.append("\n".join(rows))
    parts.append(_start_words(check))
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
    """Names of runs, those that differ in their seed only together.

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
    """What the axes of the figure are."""
    n, epochs = record["test_samples"], record["name"].startswith("cifar10")
    text = "Epochs are samples seen over the training set. " if epochs else ""
    if experiment.measure == ACCURACY:
        return f"{text}Test accuracy is measured on {n:,} samples."
    return f"{text}Losses are log-perplexities (nats a token); those of the test are measured on {n:,} sequences."


def _error(experiment: Experiment, finals: Sequence[Final]) -> str:
    """What ± is."""
    if max(final.seeds for final in finals) > 1:
        return "± is one standard error, over the seeds."
    if experiment.measure == ACCURACY:
        return "± is one standard error, binomial: one seed, so not that of a rerun."
    return "One seed: what a rerun would change is not known."


def _start_words(check: Check) -> str:
    """Where the loss before the first step is far above all others."""
    trajectory = check.base.trajectory
    loss = trajectory["train loss"].mean
    if not starts_high(trajectory, loss):
        return ""
    return (
        f"Before the first step, with BatchNorm's averages as they begin, the train loss is {loss[0]:,.0f}: it leaves "
        "the figure, and the range of the losses is taken without it."
    )


def _noise_words(check: Check, left_alone: Sequence[str]) -> str:
    """In which share of the run the noise dominates the gradient: the base, and what is all converted but for that."""
    shares = [(arm.label, dominated(arm)) for arm in (check.base, *check.others) if _under_the_rule(arm, left_alone)]
    parts = [f"{label}: {_share(share)}" for label, share in shares if share is not None]
    return (
        "Share of the run, after the first step, in which the noise scale exceeds the batch size: "
        f"{'; '.join(parts)}. {NOISE_MEASURED}"
        if parts
        else ""
    )


def _under_the_rule(arm: Arm, left_alone: Sequence[str]) -> bool:
    variant = Variant.from_dict(arm.trajectory.meta["variant"])
    rule, own = variant.the_rule(arm.plan), default_rule(arm.plan.optimizer.name)
    whole = (rule.key, rule.averaging) == (own.key, own.averaging) and set(rule.left_out) <= {*left_alone}
    return whole and not variant.zero_state and variant.ell == 1


def _share(share: tuple[float, float]) -> str:
    """In percent; two numbers where measurements say nothing.

    >>> _share((0.1, 0.39)), _share((0.96, 0.96))
    ('10 to 39 %', '96 %')
    """
    low, high = (f"{100 * value:.0f}" for value in share)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _dominated_words(scaling: Sequence[Entry]) -> str:
    """For each run under the rule: in which share of it the noise dominates, and what the rule gave there."""
    if not scaling:
        return ""
    cells: dict[str, dict[int, str]] = {}
    for entry in scaling:
        row = cells[f"{entry.title.partition(': ')[2]}, {entry.record['options']['epochs']:g} epochs"] = {}
        for arm, final in zip(entry.check.others, entry.finals[1:], strict=True):
            share, gap = dominated(arm), told_gap(ACCURACY, final.accuracy)
            row[_size(arm)] = gap if share is None else f"{_share(share)}: {gap}"
    sizes = sorted({size for row in cells.values() for size in row})
    table = [_row("", *(f"B = {size:,}" for size in sizes)), _row(*["---"] * (len(sizes) + 1))]
    table += [_row(title, *(row.get(size, "") for size in sizes)) for title, row in cells.items()]
    return (
        "\nWhere the noise dominates, and whether the rule holds: the share of the run, after the first step, in which "
        "the noise scale ([noise.png](noise.png)) exceeds the batch size, and the test accuracy at the end less that "
        f"of the base. {NOISE_MEASURED}\n\n" + "\n".join(table) + "\n"
    )


def dominated(arm: Arm) -> tuple[float, float] | None:
    """The share of the measured times at which the median over seeds of the noise scale exceeds the batch size.

    Where no gradient was seen, the noise scale is above the number of samples that measured it, and not known to be
    above larger batches: the second share counts these times, the first does not. The time before the first step does
    not count; None where there are fewer than three others.
    """
    if NOISE_SCALE not in arm.trajectory.names:
        return None
    values = arm.trajectory.values[NOISE_SCALE][:, np.array(arm.trajectory.meta["samples"]) > 0]
    alive = np.isfinite(values).any(0)
    if alive.sum() < 3:
        return None
    scale, size = np.nanmedian(values[:, alive], 0), _size(arm)
    above = scale > size
    known = above & ((scale < NO_GRADIENT) | (size <= Measure.noise_samples))
    return float(known.mean()), float(above.mean())


# -- figures ---------------------------------------------------------------------------------------------------------


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    figure = need_matplotlib().figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(which="both", labelsize=7)
        axis.grid(color="#e3e3e3", linewidth=0.6)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    with whole(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})


def _draw(axis: Any, trajectory: Trajectory, name: str, epoch: int, label: str, style: tuple[str, Any]) -> None:
    """Mean over the seeds that have not diverged, and their range."""
    factor = 100.0 if name in PERCENT else 1.0
    x = np.array(trajectory.meta["samples"]) / epoch
    values = np.where(trajectory.lost, np.nan, trajectory.values[name]) * factor
    alive = np.isfinite(values).any(0)
    x, values = x[alive], values[:, alive]
    if not len(x):
        return
    colour, dash = style
    axis.fill_between(x, np.nanmin(values, 0), np.nanmax(values, 0), color=colour, alpha=0.15, linewidth=0)
    axis.plot(x, np.nanmean(values, 0), color=colour, linestyle=dash, linewidth=1.4, label=label)


def _styles(count: int) -> list[tuple[str, Any]]:
    """As many as are needed: the colours again, with other dashes."""
    turns = range(-(-count // len(STYLES)))
    return [(colour, STYLES[(i + turn) % len(STYLES)][1]) for turn in turns for i, (colour, _) in enumerate(STYLES)]


def _unit(record: Mapping[str, Any], check: Check) -> tuple[int, str]:
    """How many samples are one on the axis of a figure, and its name: epochs of CIFAR-10, else round numbers."""
    samples = check.base.trajectory.meta["samples"][-1]
    if record["name"].startswith("cifar10"):
        return (512 if record["options"]["smoke"] else 50_000), "epochs"
    return (1_000_000, "million samples") if samples > 2_000_000 else (1000, "thousand samples")


def curves(entry: Entry, path: Path) -> None:
    """All test functions of an experiment over samples seen."""
    check, record = entry.check, entry.record
    names = [name for name in PANELS if name in check.base.trajectory.names]
    columns = min(4, -(-len(names) // 2))
    rows = -(-len(names) // columns)
    unit, time = _unit(record, check)
    blocks = _blocks(check)
    labels = dict.fromkeys(label for lines in blocks.values() for label in lines)
    styles = dict(zip(labels, _styles(len(labels)), strict=False))
    figure, axes = _figure(rows * len(blocks), columns, 4.2, 3.0)
    for number, (block, lines) in enumerate(blocks.items()):
        panels = list(axes[rows * number : rows * (number + 1)].flat)
        for axis, name in zip(panels, names, strict=False):
            if check.warm is not None:
                _draw(axis, check.warm, name, unit, "before the switch", ("#8a9099", "-"))
            for label, arm in lines.items():
                lost = ", diverged" if arm.trajectory.lost[:, -1].all() else ""
                _draw(axis, arm.trajectory, name, unit, label + lost, styles[label])
            title = f"{name} (%)" if name in PERCENT else name.replace("Sigma", "Σ")
            axis.set_title(f"{block}: {title}" if block else title, fontsize=9, loc="left")
            axis.set_yscale("log" if name in LOGARITHMIC else "linear")
            if name not in PERCENT:
                top = _top(axis, check.base.trajectory, name)
                low = axis.dataLim.y0  # a linear axis keeps its margin below when it is cut above
                axis.set_ylim(None if name in LOGARITHMIC else low - 0.05 * (top - low), top)
            if name == NOISE_SCALE:  # in the style of the first that has the size
                _lines_of_sizes(axis, {_size(arm): styles[label] for label, arm in reversed(lines.items())})
            axis.set_xlabel(time, fontsize=8)
        for axis in panels[len(names) :]:
            axis.set_visible(False)
    _legend(figure, axes[::rows, 0], columns)
    length = f"{record['options']['epochs']:g} epochs" + (
        "" if entry.experiment.measure == ACCURACY else " of the text"
    )
    n = max(arm.trajectory.replicas for arm in (check.base, *check.others))
    figure.suptitle(f"{entry.title} ({length}, n = {n})", fontsize=11)
    _save(figure, path)


def _blocks(check: Check) -> dict[str, dict[str, Arm]]:
    """The lines of each block of panels by their labels, the base first in all of them.

    One block, unless the labels are "this; that", as those of the ablations: then one for every "this".
    """
    base = {check.base.label: check.base}
    blocks: dict[str, dict[str, Arm]] = {}
    for arm in check.others:
        block, _, label = arm.label.rpartition("; ")
        blocks.setdefault(block, dict(base))[label] = arm
    return blocks or {"": base}


def _top(axis: Any, base: Trajectory, name: str) -> float:
    """The upper end of an axis: runs that leave the base far behind, and the start, do not flatten the others.

    Where no gradient was seen, the noise scale is beyond all measure, and its line leaves the figure.
    """
    if name in LOGARITHMIC:
        values = base.values[name]
        return float(min(axis.get_ylim()[1], 30 * np.nanmax(values[values < NO_GRADIENT], initial=1.0)))
    curve = base[name].mean
    first = 0.0 if starts_high(base, curve) else 1.1 * curve[0]
    usual = np.nanquantile(curve[1:], 0.9)  # nor does a spike of the base
    return float(min(axis.get_ylim()[1], max(first, 3 * usual)))


def _legend(figure: Any, axes: Any, columns: int) -> None:
    """Of all lines that are in one of the panels."""
    lines: dict[str, Any] = {}
    for axis in np.ravel(axes):
        handles, labels = axis.get_legend_handles_labels()
        lines = dict(zip(labels, handles, strict=True)) | lines
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)


def _size(arm: Arm) -> int:
    return int(arm.plan.batch_size.total)


def _lines_of_sizes(axis: Any, styles: Mapping[int, tuple[str, Any]]) -> None:
    for size, (colour, _) in styles.items():
        axis.axhline(size, color=colour, linewidth=0.8, alpha=0.6)


def switch(entry: Entry, path: Path) -> None:
    """The figure of the README's first screen: test loss and accuracy around and after the switch."""
    check, record = entry.check, entry.record
    epoch, _ = _unit(record, check)
    figure, axes = _figure(1, 2, 5.2, 3.6)
    arms = [check.base, *check.others]
    for axis, name in zip(axes.flat, ("test loss", "test accuracy"), strict=True):
        if check.warm is not None:
            _draw(axis, check.warm, name, epoch, "", ("#8a9099", "-"))
        for arm, style in zip(arms, _styles(len(arms)), strict=False):
            _draw(axis, arm.trajectory, name, epoch, arm.label, style)
        at = check.switch_at / epoch
        axis.axvline(at, color="#66707c", linewidth=0.8)
        axis.set_xlabel("epochs", fontsize=9)
        axis.set_title("test accuracy (%)" if name in PERCENT else name, fontsize=10, loc="left")
        start = max(0.0, at - 0.35 * (check.base.trajectory.meta["samples"][-1] / epoch - at))
        axis.set_xlim(left=start)
        axis.set_ylim(*_limits([*arms_of(check)], name, start * epoch))
    _legend(figure, axes[0, 0], 2)
    n = max(final.seeds for final in entry.finals)
    what = "generated images" if record["options"]["smoke"] else "CIFAR-10"
    net = TITLES[record["options"]["model"]]
    title = f"{net}, Adam, {what}: the batch size changes in mid-run (mean of {n} seeds, bands: their range)"
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def arms_of(check: Check) -> Iterator[Trajectory]:
    """All trajectories, the one before the switch included."""
    yield from (arm.trajectory for arm in (check.base, *check.others))
    if check.warm is not None:
        yield check.warm


def _limits(trajectories: Sequence[Trajectory], name: str, start: float) -> tuple[float, float]:
    """Of the mean curves from ``start`` samples on; a spike does not flatten the rest."""
    parts = [t[name].mean[np.array(t.meta["samples"]) >= start] for t in trajectories]
    accuracy = name in PERCENT
    low, high = np.nanquantile(np.concatenate(parts), (0.02, 1.0) if accuracy else (0.0, 0.98))
    room = 0.06 * (high - low)
    factor = 100.0 if accuracy else 1.0
    return factor * float(low - room), factor * float(high + room)


def noise(stored: Sequence[Entry], path: Path) -> None:
    """The noise scale along training at each batch size, for each net and optimizer."""
    sizes = sorted({_size(arm) for entry in stored for arm in (entry.check.base, *entry.check.others)})
    styles = dict(zip(sizes, _styles(len(sizes)), strict=False))  # a batch size looks the same in all panels
    columns = 2 if len(stored) > 3 else len(stored)
    figure, axes = _figure(-(-len(stored) // columns), columns, 5.4 if columns == 2 else 3.8, 3.0)
    for axis, entry in zip(axes.flat, stored, strict=False):
        check = entry.check
        arms = [check.base, *check.others]
        unit, time = _unit(entry.record, check)
        for arm in arms:
            _draw(axis, arm.trajectory, NOISE_SCALE, unit, arm.label, styles[_size(arm)])
        _lines_of_sizes(axis, {_size(arm): styles[_size(arm)] for arm in arms})
        axis.set_yscale("log")
        axis.set_ylim(top=_top(axis, check.base.trajectory, NOISE_SCALE))
        axis.set_xlabel(time, fontsize=8)
        axis.set_title(entry.title.partition(": ")[2], fontsize=9)
    for axis in list(axes.flat)[len(stored) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("noise scale Tr Σ / |∇f|² (samples)", fontsize=8)
    _legend(figure, axes, 4)
    figure.suptitle("Noise scale along training; straight lines: the batch sizes", fontsize=9)
    _save(figure, path)


# -- all of it -------------------------------------------------------------------------------------------------------


def reports(entry: Entry, folder: Path) -> None:
    """The interactive page and the figures for papers."""
    report = importlib.import_module("rootscale.report")
    report.figures(entry.check, folder, ("png", "pdf"))
    report.write(entry.check, folder / "report.html")


def build(results: Path, pages: Path | None) -> None:
    """Everything that can be made of what is stored."""
    there = [entry for entry in entries(results) if entry.there]
    for entry in there:
        curves(entry, entry.folder / "curves.png")
        if entry.experiment.name == "cifar10-switch":
            switch(entry, entry.folder / "switch.png")
        write(entry.folder / "README.md", page(entry))
        if pages is not None:
            reports(entry, pages / entry.folder.name)
        print(f"{entry.folder}: figures and page")
    scaling = [entry for entry in there if entry.experiment.title.startswith("The square root rule")]
    if scaling:
        noise(scaling, results / "noise.png")
    place = results / "README.md"
    text = place.read_text(encoding="utf-8") if place.exists() else "# Results\n"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write(place, f"{before}{BEGIN}\n{overview(results)}{_dominated_words(scaling)}{END}{after}")
    print(f"{place}: {len(there)} experiments")


def write(path: Path, text: str) -> None:
    """All of the file or nothing."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the stored results")
    parser.add_argument("--pages", type=Path, help="folder for interactive pages and figures for papers")
    args = parser.parse_args(argv)
    build(args.results, args.pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
