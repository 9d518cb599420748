"""Experiments that make one table: default betas, and optimizers that normalise momentum.

Each has a base, a null (the same batch size with other samples), and lines ``8 → 128, FORM``. What is told of a line is
the largest gap of its mean curve to the base's (`rootscale.gap`). A form *keeps the run* where that gap exceeds the
null's by no more than `TOLERANCE` of the range, or by no more than twice the error of the difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from rootscale.format import percent
from rootscale.paper.entries import Entry
from rootscale.paper.experiments.switch_lines import NULL, rule_of
from rootscale.paper.finals import Final, format_end, format_gap

__all__ = ["GROUPS", "TOLERANCE", "Cell", "Group", "Measured", "Shared", "cells_of"]

#: The share of the range by which a gap may exceed that of the null.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Measured:
    """What a form came to at a batch size.

    Args:
        kappa: the batch size over the base's.
        form: what was done.
        final: of its line.
        gap, se: the largest gap and its error; infinite where runs diverged.
    """

    kappa: int
    form: str
    final: Final
    gap: float
    se: float

    def keeps(self, null: Measured) -> bool:
        """Return whether the run was kept, as far as can be told."""
        more = abs(self.gap) - abs(null.gap)
        return more <= max(TOLERANCE, 2 * math.hypot(self.se, null.se))

    def text(self, null: Measured | None = None) -> str:
        """Return the gap in percent; in bold where the run was kept."""
        text = "diverged" if math.isinf(self.gap) else percent(self.gap, self.se)
        return f"**{text}**" if null is not None and self.keeps(null) else text


@dataclass(frozen=True)
class Cell:
    """A stored experiment of a group."""

    entry: Entry

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.entry.folder.name

    @property
    def title(self) -> str:
        """What it is about, without what all of the group share."""
        first, _, rest = self.entry.title.partition(": ")
        return rest.rpartition(", ")[0] or first

    @property
    def scratch(self) -> bool:
        """Whether it compares from scratch."""
        return not self.entry.check.switch_at

    @cached_property
    def found(self) -> Mapping[tuple[int, str], Measured]:
        """All lines but the base, by kappa and form."""
        base, *others = self.entry.finals
        made = [self._measured(final, final.batch_size // base.batch_size) for final in others]
        return {(one.kappa, one.form): one for one in made}

    def _measured(self, final: Final, kappa: int) -> Measured:
        far = final.curve(self.entry.experiment.told)
        gap, se = (math.inf, 0.0) if far is None else (far.gap, far.se)
        return Measured(kappa, rule_of(final), final, gap, se)

    @property
    def null(self) -> Measured:
        """The same batch size with other samples."""
        return self.found[1, NULL]

    def gaps(self, forms: Sequence[str]) -> str:
        """Return the gaps of some forms at all batch sizes, and that of the null."""
        parts = []
        for form in forms:
            texts = [self.found[kappa, form].text() if (kappa, form) in self.found else "none" for kappa in self.kappas]
            parts.append(f"{form} {' / '.join(texts)}")
        sizes = " / ".join(map(str, self.kappas))
        return f"at {sizes} times the batch: {', '.join(parts)} (null {self.null.text()})"

    @property
    def kappas(self) -> list[int]:
        """The batch sizes over the base's, but for the base's own."""
        return sorted({kappa for kappa, _ in self.found} - {1})


def cells_of(entries: Sequence[Entry], group: str) -> list[Cell]:
    """Return what is stored of a group and has a null."""
    return [
        cell
        for entry in entries
        if entry.experiment.group == group and entry.there
        for cell in [Cell(entry)]
        if any(NULL in final.label for final in entry.finals)
    ]


@dataclass(frozen=True)
class Shared:
    """How many runs were kept where both a form and the first one were run.

    Args:
        cases: where both were run.
        kept: by the form, of these.
        first: by the first one, of these.
    """

    cases: int
    kept: int
    first: int


@dataclass(frozen=True)
class Group:
    """Several experiments with one page.

    Args:
        name: of the folder.
        title, claim, source: for the table of all results.
        told: the forms whose gaps are told there.
        shown: the forms of the figure, which are most of the page's first table.
        most: the largest kappa of the switches that are counted.
    """

    name: str
    title: str
    claim: str
    source: str
    told: tuple[str, ...]
    shown: tuple[str, ...]
    most: int = 16

    def words(self, cells: Sequence[Cell]) -> str:
        """Return what the switched runs came to: of few cells the gaps, of many in how many a form kept the run.

        Forms were not all run in the same cases, so each is compared with the first one where both were run.
        """
        switched = [cell for cell in cells if not cell.scratch]
        if len(switched) <= 4:
            return "; ".join(f"{cell.title} {cell.gaps(self.told)}" for cell in switched)
        first, *others = self.told
        own, cases = self.shared(cells, first), self._cases(cells, first)
        parts = []
        for form in others:
            both = self.shared(cells, form)
            parts.append(
                f"{form}: {both.kept} of {both.cases} ({both.first}){_worst(self._cases(cells, form), both.cases)}"
            )
        return (
            f"of the switches to at most {self.most} times the batch, {first} kept the run in {own.kept} of {own.cases}"
            f"{_verdicts(cases)}{_worst(cases, own.cases)}. Other forms, in the cases where {first} was run too (in "
            f"brackets, how many of these {first} kept): {'; '.join(parts)}"
        )

    def shared(self, cells: Sequence[Cell], form: str) -> Shared:
        """Return how many runs a form kept in the switches that count, where the first was run too."""
        cases, first = self._cases(cells, form), self._cases(cells, self.told[0])
        both = [key for key in cases if key in first]
        kept, kept_first = (sum(found[key][1] for key in both) for found in (cases, first))
        return Shared(len(both), kept, kept_first)

    def _cases(self, cells: Sequence[Cell], form: str) -> dict[tuple[str, int], tuple[Measured, bool]]:
        """Return what a form came to in switches that count, by cell and kappa, and whether it kept the run."""
        return {
            (cell.name, kappa): (one, one.keeps(cell.null))
            for cell in cells
            for (kappa, name), one in cell.found.items()
            if not cell.scratch and name == form and kappa <= self.most
        }

    def headline(self, cells: Sequence[Cell]) -> str:
        """Return how many runs the first and the last form kept where both were run, or which form comes closest."""
        told = {form: self._cases(cells, form) for form in self.told}
        if any(kept for every in told.values() for _, kept in every.values()):
            first, last = self.told[0], self.told[-1]
            both = self.shared(cells, last)
            counts = f"{first} kept {both.first} runs; {last} kept {both.kept}"
            return f"Of {both.cases} switches to at most {self.most} times the batch that both made, {counts}"
        worst = {form: max(abs(one.gap) for one, _ in every.values()) for form, every in told.items() if every}
        closest = min(worst, key=lambda form: worst[form])
        off = f"off by {100 * worst[closest]:.0f} % at most"
        return f"No rule keeps the run of Muon or Lion as a rerun would; {closest} comes closest, {off}"

    def table(self, cells: Sequence[Cell]) -> str:
        """Return the gaps of all forms as Markdown: a row for each cell and kappa."""
        forms = list(dict.fromkeys(form for cell in cells for _, form in cell.found if form != NULL))
        first = [form for form in self.shown if form in forms]
        columns = [*first, *(form for form in forms if form not in self.shown)]
        lines = [_row("", "κ", "null", *columns), _row(*["---"] * (len(columns) + 3))]
        for cell in cells:
            for kappa in cell.kappas:
                found = [cell.found.get((kappa, form)) for form in columns]
                texts = ["" if one is None else one.text(cell.null) for one in found]
                lines.append(_row(cell.title, str(kappa), cell.null.text(), *texts))
        return "\n".join(lines)

    def page(self, cells: Sequence[Cell], entries: Sequence[Entry]) -> str:
        """Return its page in Markdown."""
        parts = [
            f"# {self.title}",
            f"{self.claim}.",
            f"**We measured:** {self.words(cells)}.",
            "![gaps](gaps.png)\n\nA row for each net and change of batch size, a column for each form: the largest gap "
            "to the run that keeps its batch size, in % of the range of that run's curve. Green: the run was kept, as "
            "far as a rerun would keep it; the darker, the further off. A rerun is the null, the same batch size with "
            "other samples.",
        ]
        for title, scratch in (("A switch in mid-run", False), ("From scratch", True)):
            some = [cell for cell in cells if cell.scratch is scratch]
            if some:
                parts += [f"## {title}", self.table(some)]
        parts.append(
            "Largest gap of the mean curves over the range of the base's, ± one standard error over seeds: validation "
            "loss of a GPT, train loss of other nets, test loss where weights are averaged. Bold: at most "
            f"{percent(TOLERANCE)} (or two errors) more than the null's, whatever their signs; the verdict of the "
            "check asks for more. A negative gap is a lower loss than that of the kept batch: another run, if a "
            "welcome one. Empty: the form does not exist, comes to the same run as one that is shown, or was not run."
        )
        parts += list(self._more(cells))
        parts += ["## Runs", "\n".join(_made(entry) for entry in entries)]
        return "\n\n".join(parts) + "\n"

    def _more(self, cells: Sequence[Cell]) -> Iterator[str]:
        """Yield the ends of cells whose weights are averaged."""
        for cell in (cell for cell in cells if "ema" in cell.name):
            base = cell.entry.finals[0].accuracy
            lines = [_row("κ", "form", "accuracy of the average, less the base's"), _row("---", "---", "---")]
            lines += [
                _row(str(one.kappa), one.form, format_gap("test accuracy", one.final.accuracy))
                for one in cell.found.values()
            ]
            yield f"## {cell.title}"
            yield f"The base ends at {format_end('test accuracy', base)}."
            yield "\n".join(lines)


def _verdicts(cases: Mapping[tuple[str, int], tuple[Measured, bool]]) -> str:
    """Return what the check says of the runs that were kept: its verdict asks for more."""
    found = Counter(one.final.verdict for one, kept in cases.values() if kept and one.final.verdict)
    told = ", ".join(f"{count} *{verdict}*" for verdict, count in sorted(found.items(), key=lambda pair: pair[0]))
    return f" (by the verdict of the check, which asks for more, {told})" if told else ""


def _worst(cases: Mapping[tuple[str, int], tuple[Measured, bool]], told: int) -> str:
    """Return the largest gap of the runs that were not kept; of all cases, where these are more than those told."""
    lost = [one for one, kept in cases.values() if not kept]
    if not lost:
        return ""
    where = f", of all {len(cases)} that were run," if len(cases) > told else ""
    return f", at worst{where} {max(lost, key=lambda one: abs(one.gap)).text()} of the range"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _made(entry: Entry) -> str:
    record = entry.record
    seeds = max(final.seeds for final in entry.finals)
    missing = f"; missing: {', '.join(record['missing'])}" if record["missing"] else ""
    name, made = entry.folder.name, f"{record['hardware']}, {record['date']}"
    return f"- [{name}]({name}/table.npz): `{record['command']}`, n = {seeds}, {made}{missing}"


_FLOORS = (
    "floors .9, .9", "floors .8, .9", "floor by kappa, .9", "paper", "power", "betas kept", "learning rate only",
    "nothing",
)  # fmt: skip
_RULES = (
    "a = 0", "a = 1/2", "a = 1", "noise 10 times the gradient", "Adam's rule", "learning rate only, square root",
    "learning rate only, linear", "nothing",
)  # fmt: skip
GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "floors": Group(
            "floors",
            "Default betas: where the paper's form for them ends",
            "Not in the paper. With betas of .9 and .999 or .95, its `1 - kappa (1 - beta)` ends at kappa = 10. Which "
            "form keeps the run: the paper's, the power form, floors with the state converted to match, betas kept, "
            "the learning rate alone, or nothing",
            "section 5",
            ("floors .9, .9", "floors .8, .9", "floor by kappa, .9", "paper", "power", "learning rate only"),
            _FLOORS,
        ),
        "momentum": Group(
            "momentum",
            "Momentum that is normalised: Muon and Lion",
            "Not in the paper. Muon and Lion normalise momentum itself; counting powers of the batch size leaves a "
            "choice `a`: `lr * kappa^((1+a)/2)`, `(1-mu) * kappa^a`, `buffer * kappa^((a-1)/2)`",
            "no SDE",
            (
                "a = 1/2",
                "a = 0",
                "a = 1",
                "noise 10 times the gradient",
                "Adam's rule",
                "learning rate only, square root",
                "learning rate only, linear",
            ),
            _RULES,
        ),
    }
)
