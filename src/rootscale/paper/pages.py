"""The page of an experiment in Markdown: its claim, what was measured, its figure, tables and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rootscale.format import show
from rootscale.lab import Measure, Result, Table, Variant
from rootscale.pairing import window
from rootscale.paper.entries import Entry, gathered
from rootscale.paper.experiment import Experiment, question_of
from rootscale.paper.figures.curves import starts_off_the_figure
from rootscale.paper.figures.noise_scale import batch_size, dominance_of
from rootscale.paper.finals import ACCURACY, MEASURES, Final, format_curve, format_end, format_gap
from rootscale.paper.parts import kept
from rootscale.rules import default_rule

__all__ = ["FUNCTIONS", "dominated_words", "page", "row", "window_words"]

#: Test functions in the order of the tables; the noise scale has a figure of its own.
FUNCTIONS = ("train loss", "train accuracy", "test loss", "test accuracy", "gradient norm", "Tr Sigma", "noise scale")
#: How the noise scale was measured.
NOISE_MEASURED = (
    f"It is measured on {Measure.noise_samples:,} training samples and rough beyond that number: where no gradient is "
    "seen in their noise, it is above about that many, and of two shares the second counts it as above the batch size."
)


def row(*cells: str) -> str:
    """Return a row of a table in Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def page(entry: Entry) -> str:
    """Return an experiment's own page in Markdown."""
    experiment, record, check, finals = entry.experiment, entry.record, entry.check, entry.finals
    said, claim = (
        ("Not in the paper", question_of(experiment.claim)) if experiment.beyond else ("The paper", experiment.claim)
    )
    parts = [
        f"# {entry.title}",
        f"**{said}** ({experiment.source}): {claim}.",
        f"**We measured:** {entry.words()}.",
        f"![{_drawn(experiment)}]({entry.figure.name})\n\n{_what(experiment, record)}",
    ]
    if experiment.name == "cifar10-switch":
        parts.insert(3, "![the switch](switch.png)")
    parts += [_ends(experiment, finals), _error(experiment, finals)]
    if experiment.shown.compares:
        parts += [
            _gaps(finals),
            window_words(check, batchnorm=_has_batchnorm(entry)),
            _noise_words(check, kept(entry.options)),
        ]
    if record["missing"]:
        parts.append(f"**Missing:** {gathered(record['missing'])}.")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    parts.append(
        f"Made by `{record['command']}` on {record['date']}: {record['hardware']}, {record['seconds'] / 60:.1f} "
        f"minutes, summed over runs that may have shared it; {versions}."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _ends(experiment: Experiment, finals: Sequence[Final]) -> str:
    """Return the table of final values; less the base's, and with verdicts, where the runs are compared."""
    shown, compares = MEASURES[experiment.measure], experiment.shown.compares
    ends = [f"{title} at the end" for title in shown.values()]
    head = ["run", "seeds", "diverged", *ends, *(["less the base's", "verdict"] if compares else []), "seconds"]
    rows = [row(*head), row(*["---"] * len(head))]
    for i, final in enumerate(finals):
        cells = [final.label, str(final.seeds), str(final.diverged)]
        cells += [format_end(name, final.end(name)) for name in shown]
        if compares:
            cells.append(format_gap(experiment.measure, final.end(experiment.measure)) if i else "base")
            cells.append(final.verdict or ("" if not i else "none: one seed"))
        rows.append(row(*cells, f"{final.seconds:.0f}"))
    return "\n".join(rows)


def _gaps(finals: Sequence[Final]) -> str:
    """Return the table of largest gaps."""
    names = [name for name in FUNCTIONS if any(name in final.curves for final in finals)]
    rows = [row("largest gap to the base's curve, in % of its range", *names), row(*["---"] * (len(names) + 1))]
    return "\n".join(
        [*rows, *(row(final.label, *(format_curve(final, name) for name in names)) for final in finals[1:])]
    )


def _drawn(experiment: Experiment) -> str:
    """Return what the figure shows, for those who do not see it."""
    shown = experiment.shown
    return "final values" if shown.dots else "values over what was tried" if shown.sweep else "gap and losses"


def _has_batchnorm(entry: Entry) -> bool:
    return not entry.options.model.startswith(("gpt", "roberta"))


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
    if any(final.accuracy.se is not None for final in finals):
        return (
            "± is the standard deviation over seeds, measured with VGG-16: the error of a single run; of a difference "
            "it is that of two."
        )
    return "One seed: what a rerun would change is not known."


def window_words(check: Table, *, batchnorm: bool = False) -> str:
    """Return over what the gaps are taken, and what the figure leaves out; `batchnorm`: whether the net has it."""
    trajectory = check.base.trajectory
    first, last = (show(trajectory.meta["samples"][i]) for i in (window(trajectory).start, -1))
    text = f"Gaps and ranges are those of the {len(trajectory.times[window(trajectory)])} times from {first} to {last}"
    text += " samples."
    if starts_off_the_figure(trajectory, "train loss"):
        averages = ", with BatchNorm's averages as they begin," if batchnorm else ""
        text += (
            f" Before the first step{averages} the train loss is {trajectory['train loss'].mean[0]:,.0f}: it leaves "
            "the figure."
        )
    return text


def _noise_words(check: Table, left_alone: Sequence[str]) -> str:
    """Return in which share of the run the noise dominates: of the base, and of what is all converted but for that."""
    arms = [arm for arm in (check.base, *check.others) if _under_the_rule(arm, left_alone)]
    parts = [f"{arm.label}: {share}" for arm in arms if (share := _share(arm))]
    return (
        "Share of the run in which the noise dominates the gradient (the noise scale exceeds the batch size): "
        f"{'; '.join(parts)}. {NOISE_MEASURED}"
        if parts
        else ""
    )


def _under_the_rule(arm: Result, left_alone: Sequence[str]) -> bool:
    variant = Variant.from_dict(arm.trajectory.meta["variant"])
    rule, own = variant.the_rule(arm.the_plan), default_rule(arm.the_plan.optimizer.name)
    # The paper's betas are far above the floors: there both forms of averaging are one.
    whole = rule.key == own.key and rule.averaging in (own.averaging, "paper") and set(rule.left_out) <= {*left_alone}
    return whole and not variant.zero_state and variant.ell == 1


def dominated_words(scaling: Sequence[Entry]) -> str:
    """Return for each run under the rule in which share of it the noise dominates, and what the rule gave there."""
    if not scaling:
        return ""
    cells: dict[str, dict[int, str]] = {}
    for entry in scaling:
        here = cells[f"{entry.title.partition(': ')[2]}, {entry.record['options']['epochs']:g} epochs"] = {}
        for arm, final in zip(entry.check.others, entry.finals[1:], strict=True):
            share, gap = _share(arm), format_gap(ACCURACY, final.accuracy)
            here[batch_size(arm)] = f"{share}: {gap}" if share else gap
    sizes = sorted({size for here in cells.values() for size in here})
    table = [row("", *(f"B = {size:,}" for size in sizes)), row(*["---"] * (len(sizes) + 1))]
    table += [row(title, *(here.get(size, "") for size in sizes)) for title, here in cells.items()]
    return (
        "\nWhere the noise dominates, and whether the rule holds: the share of the run in which the noise scale "
        "([noise.png](noise.png)) exceeds the batch size, and the test accuracy at the end less that of the base. "
        f"{NOISE_MEASURED}\n\n" + "\n".join(table) + "\n"
    )


def _share(arm: Result) -> str:
    """Return in which share of the run the noise dominates; two numbers where some measurements say nothing."""
    found = dominance_of(arm)
    if found is None or found.share is None:
        return ""
    low, high = (f"{100 * value:.0f}" for value in found.share)
    return f"{low} %" if low == high else f"{low} to {high} %"
