"""The tables of results/README.md: every experiment of the paper with its outcome, and what goes beyond it.

The outcome of a row is that of its runs at the paper's length, on its net and data: *reproduced* where all final values
are within the paper's limit by twice their errors, *contradicted* where one exceeds it by as much, *undecided*
otherwise. Runs of another length, net or data do not decide: the row says *not run*, what was run instead, and what the
experiment costs, or that nothing here has the paper's setting (`rootscale.paper.shown.Shown.paper_setting`). So the
words follow from the stored data and from `rootscale.paper.shown.Shown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rootscale.paper.entries import Entry, entries_of
from rootscale.paper.experiment import Stored, question_of
from rootscale.paper.figures.canvas import short_labels
from rootscale.paper.finals import ACCURACY, End, Final, format_curve, format_gap
from rootscale.paper.groups import GROUPS, Group, cells_of
from rootscale.paper.headline import HEADLINES, ways_of
from rootscale.paper.pages import row
from rootscale.paper.shown import CONTRADICTED, judge_ends

__all__ = ["Claim", "claims_of", "outcome_tables"]


def outcome_tables(results: Path) -> str:
    """Return the tables in Markdown."""
    entries = list(entries_of(results))
    lines = [
        "| the paper says | outcome | measured | n | like for like? | what decides it |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_paper_row(claim, results) for claim in claims_of(entries)]
    lines += [
        "",
        "### Beyond the paper",
        "",
        "| question | finding | n | figure | made by |",
        "|---|---|---|---|---|",
        *_beyond(entries, results),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Claim:
    """A row of the paper: the experiment that decides it, and what is stored of it, there or in another setting.

    Args:
        title: of the row.
        planned: what decides.
        stored: what is there, the nearest to that first.
    """

    title: str
    planned: Entry
    stored: tuple[Entry, ...]

    def decides(self, entry: Entry) -> bool:
        """Return whether runs are of the net, data and length that decide."""
        shown = entry.experiment.shown
        if shown.stands_for or not shown.paper_setting:
            return False
        if not entry.there:
            return True
        options = entry.record["options"]
        return not options["smoke"] and bool(options["epochs"] == self.planned.options.epochs)

    @property
    def told(self) -> Entry | None:
        """What decides and is there; None where nothing is."""
        return next((entry for entry in self.stored if self.decides(entry) and entry.there), None)

    @property
    def outcome(self) -> str:
        """The outcome in a word; "not run" where nothing is there that decides."""
        judge = None if self.told is None else self.told.experiment.shown.judge
        return "not run" if self.told is None or judge is None else judge(self.told.finals)

    @property
    def qualified(self) -> str:
        """What belongs beside the outcome: where a limit is exceeded, and that one seed alone says so."""
        if self.told is None or self.outcome == "not run":
            return ""
        finals, shown = self.told.finals, self.told.experiment.shown
        far = [
            final.label
            for final in finals[1:]
            if shown.limit and _exceeds(final.end(self.told.experiment.drawn), shown.limit)
        ]
        where = f" at {', '.join(far)}" if far and not shown.dots and self.outcome == CONTRADICTED else ""
        return where + (" (one seed)" if max(final.seeds for final in finals) == 1 else "")

    def differences(self, entry: Entry) -> str:
        """Return how runs differ from the paper's."""
        shown = entry.experiment.shown
        parts = [shown.differs] if shown.differs else []
        if entry.there and not shown.stands_for:
            parts += _other_options(entry.record["options"], self.planned.options.to_dict())
        return "; ".join(parts) or "yes"


def _exceeds(end: End, limit: float) -> bool:
    return judge_ends([end], limit) == CONTRADICTED


def _other_options(made: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[str]:
    """Yield how options differ from those that decide."""
    recipe = made.get("recipe", "house")
    if made["epochs"] != planned["epochs"]:
        yield f"{made['epochs']:g} epochs instead of {planned['epochs']:g}"
    if missing := [size for size in planned["batch_sizes"] if size not in made["batch_sizes"]]:
        yield f"no B = {', '.join(f'{size:,}' for size in missing)}"
    if recipe != planned["recipe"]:
        yield f"recipe `{recipe}` instead of `{planned['recipe']}`"
    if made["seeds"] < planned["seeds"]:
        yield f"{made['seeds']} of {planned['seeds']} seeds"


def claims_of(entries: Sequence[Entry]) -> Iterator[Claim]:
    """Yield the rows of the paper: an experiment that decides, with what is stored of the same eps and net."""
    rows: dict[tuple[str, float, str], list[Entry]] = {}
    for entry in entries:
        experiment, options = entry.experiment, entry.options
        if experiment.group or experiment.beyond or experiment.shown.stands_for:
            continue
        rows.setdefault((experiment.name, options.eps, options.model), []).append(entry)
    for (name, _, _), same in rows.items():
        first, decided = same[0], same[0].experiment.shown.decided_by
        planned = replace(first, options=replace(first.options, **({} if decided is None else decided.options)))
        others = [entry for entry in entries if entry.experiment.shown.stands_for == name]
        yield Claim(first.title, planned, tuple(entry for entry in (*same, *others) if entry.stored() is not None))


def _paper_row(claim: Claim, results: Path) -> str:
    planned, outcome = claim.planned, claim.outcome
    words = f"**{claim.title}.** {planned.experiment.claim}"
    command = f"`{planned.command}`, {_cost(planned)}"
    if not planned.experiment.shown.paper_setting:
        command = f"nothing here has the paper's setting; the nearest is {command}"
    measured, seeds, like = [], [], []
    for entry in claim.stored:
        found, page = entry.stored(), entry.folder / "README.md"
        assert found is not None
        link = f" ([page]({page.relative_to(results)}))" if entry.there or page.exists() else ""
        instead = "" if claim.decides(entry) else "*in another setting:* "
        measured.append(f"{instead}{_measured(entry)}{link}")
        seeds.append(_seeds(entry, found))
        like.append(claim.differences(entry))
    return row(
        words, f"**{outcome}**{claim.qualified}", *("<br>".join(cells) for cells in (measured, seeds, like)), command
    )


def _cost(entry: Entry) -> str:
    decided = entry.experiment.shown.decided_by
    minutes = entry.experiment.minutes if decided is None else decided.minutes
    return f"{minutes / 60:.0f} h of one H200" if minutes > 180 else f"{minutes:.0f} min of one H200"


def _measured(entry: Entry) -> str:
    """Return the gaps of an experiment's runs with their errors, and what is missing."""
    found = entry.stored()
    assert found is not None
    if not entry.there or entry.record["options"]["smoke"]:
        return found.words
    shown, finals, function = entry.experiment.shown, entry.finals, entry.experiment.drawn
    headline = HEADLINES.get(entry.experiment.name)
    if headline is not None:
        text = headline.words(ways_of(entry, headline.arms))
    elif shown.brief is not None:
        text = shown.brief(finals)
    elif shown.limit is None:
        gaps = [f"{label} {format_curve(final, function)}" for label, final in _named(finals)]
        verdicts = sorted({final.verdict for final in finals[1:] if final.verdict})
        text = f"largest gap of the {function}, of its range: {', '.join(gaps)}"
        text += f"; verdict of the check: {' or '.join(verdicts)}" if verdicts else ""
    else:
        unit = "points of test accuracy" if function == ACCURACY else "nats of validation loss"
        gaps = [f"{label} {_short(format_gap(function, final.end(function)))}" for label, final in _named(finals)]
        text = f"{unit} less the base's: {', '.join(gaps)}"
        told = [f"{label} {final.verdict}" for label, final in _named(finals) if final.verdict]
        text += f"; verdict of the check: {', '.join(told)}" if told else ""
    missing = len(entry.record["missing"])
    runs = f"{missing} {'runs' if missing > 1 else 'run'}"
    return text + (f". *Missing:* {runs}, `{entry.record['command']}`" if missing else "")


def _seeds(entry: Entry, found: Stored) -> str:
    """Return how many seeds there are; of runs that have fewer than others, from how many on."""
    fewest = min(final.seeds for final in entry.finals) if entry.there else found.seeds
    return str(found.seeds) if fewest == found.seeds else f"{fewest} to {found.seeds}"


def _named(finals: Sequence[Final]) -> list[tuple[str, Final]]:
    others = finals[1:]
    return list(zip(short_labels([final.label for final in others]), others, strict=True))


def _short(gap: str) -> str:
    """Return a gap without its unit and without what the column of seeds says."""
    return gap.removesuffix(", one seed").removesuffix(" points")


def _beyond(entries: Sequence[Entry], results: Path) -> Iterator[str]:
    """Yield the rows of what is not in the paper."""
    groups = set[str]()
    for entry in entries:
        experiment = entry.experiment
        if experiment.group and experiment.group not in groups:
            groups.add(experiment.group)
            yield _group_row(GROUPS[experiment.group], entries)
        elif not experiment.group and experiment.beyond:
            question = f"**{entry.title}.** {question_of(experiment.claim)}"
            found = entry.stored()
            if found is None:
                yield row(question, "**not run**", "", "", f"`{entry.command}`, {_cost(entry)}")
                continue
            figure = f"[{found.figure.name}]({found.figure.relative_to(results)})"
            shown = experiment.shown
            told = f"{shown.headline(entry.finals)}. " if shown.headline is not None and shown.compares else ""
            finding = f"{told}{_measured(entry)} ([page]({(entry.folder / 'README.md').relative_to(results)}))"
            made_by = entry.record["command"] if entry.there else entry.command
            yield row(question, finding, _seeds(entry, found), figure, f"`{made_by}`")


def _group_row(group: Group, entries: Sequence[Entry]) -> str:
    """Return the row of experiments that make one table."""
    cells, own = cells_of(entries, group.name), [e for e in entries if e.experiment.group == group.name]
    missing = [f"`{entry.command}`" for entry in own if not entry.there]
    question = f"**{group.title}.** {question_of(group.claim)}"
    if not cells:
        return row(question, "**not run**", "", "", "; ".join(missing))
    there = [entry for entry in own if entry.there]
    seeds = ", ".join(map(str, sorted({max(final.seeds for final in entry.finals) for entry in there})))
    finding = f"{group.words(cells)} ([page]({group.name}/README.md))"
    if missing:
        finding += f". Not run: {', '.join(missing)}"
    return row(question, finding, seeds, f"[gaps.png]({group.name}/gaps.png)", "commands on the page")
