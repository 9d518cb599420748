"""A card for each run: its verdict, its largest gap, and why."""

from __future__ import annotations

import math

from rootscale.compare.result import Result, Table, parts, place, settles
from rootscale.format import typeset
from rootscale.gap import Gap, Largest
from rootscale.report import words
from rootscale.report.html import Html, badge, fill, swatch, table
from rootscale.verdict import Comparison

_SVAG = (
    "a simulation, at the batch size of the base, of the equation that the rule is derived from. It tests that theory, "
    "and no change of the batch size."
)


def card(i: int, arm: Result, check: Table) -> Html:
    verdict = words.judged(arm)
    remarks = arm.comparison.notes if arm.comparison else ()
    notes = [("cause", "Likely cause", text) for text in arm.causes]
    if words.diverged(arm) and not any("diverged" in note for note in remarks):
        notes.append(("warning", "Diverged", words.diverged(arm)))
    # Causes are likelier than what a guard feared; all guards stand with the plan.
    notes += [("warning", "Guard", text) for text in arm.guards if not arm.causes]
    notes += [("note", "Note", text) for text in remarks]
    notes += [("note", "What this is", _SVAG)] if arm.kind == "svag" else []
    notes += [("note", "Separation", text) for text in [parts(arm)] if text]
    notes += [("note", "Later", text) for text in [settles(arm)] if text]
    if arm.comparison is not None and verdict == "undecided":
        notes.insert(0, ("seeds", "To decide", words.decide(arm.comparison)))
    return fill(
        '<article class="card $verdict"><header><h3>$swatch<span>$label</span></h3>$badge</header>'
        '$gap<ul class="notes">$notes</ul>$all</article>',
        verdict=verdict,
        swatch=swatch(i),
        label=typeset(arm.label),
        badge=badge(verdict),
        gap=_worst(arm, arm.comparison) if arm.comparison and arm.verdict else _unjudged(arm, check),
        notes=[
            fill('<li class="$kind"><b>$name:</b> $text</li>', kind=kind, name=name, text=text)
            for kind, name, text in notes
        ],
        all="" if arm.comparison is None else _all_functions(arm, arm.comparison, check),
    )


def _worst(arm: Result, comparison: Comparison) -> Html:
    found = comparison.worst
    return Html("") if found is None else _gap(found, comparison.limit(found), arm)


def _unjudged(arm: Result, check: Table) -> Html:
    """Return, in place of a gap with its band: the gaps, and where the curves end, with their errors."""
    rows = []
    for name in words.deciding(check):
        if name in arm.trajectory.names:
            ends = [[float(part[-1]) for part in run.trajectory[name]] for run in (arm, check.base)]
            gap = arm.comparison.gaps.get(name) if arm.comparison else None
            rows.append(
                fill("<li>$name at the end <b>$here</b>, of the base $there$gap</li>", name=name,
                     here=words.with_error(*ends[0]), there=words.with_error(*ends[1]),
                     gap=f"; largest gap {words.with_se(gap.judged)}" if gap else "")
            )  # fmt: skip
    return fill(
        '<p class="gap">$why.</p><ul class="ends">$rows</ul>', rows=rows,
        why=words.too_few([arm]).capitalize(),
    )  # fmt: skip


def _all_functions(arm: Result, comparison: Comparison, check: Table) -> Html:
    """Those that decide, and those that are followed, with verdicts of their own."""
    first = words.deciding(check)
    gaps = sorted(comparison.gaps.values(), key=lambda gap: gap.name not in first)
    other, base = comparison.seeds
    runs = f"{other} pairs of runs with equal seeds" if comparison.paired else f"{other} runs against {base}"
    width = f", wide bands of ± {words.number(comparison.critical)} standard errors" if comparison.critical else ""
    caption = f"Gaps to {typeset(check.base.label)}, as shares of the range of its curve: {runs}{width}"
    rows = [_gap_row(gap, gap.name in first) for gap in gaps]
    rendered = table(("test function", "largest gap, band", "verdict"), rows, caption)
    return fill("<details><summary>All test functions</summary>$table</details>", table=rendered)


def _gap(gap: Gap, tolerance: float, arm: Result) -> Html:
    largest = gap.judged
    if math.isnan(largest.gap):
        return fill('<p class="gap">no gap of $name could be measured</p>', name=gap.name)
    return fill(
        '<p class="gap"><b>$gap</b> ($own) largest gap: $name, at $at</p>$gauge'
        '<p class="band">band $low to $high; tolerance ±$tolerance</p>',
        gap=words.percent(largest.gap),
        own=typeset(gap.in_own_unit(largest.gap)),
        name=gap.name,
        at=place(largest.time, arm.trajectory),
        gauge=_gauge(largest, tolerance),
        low=words.percent(largest.low),
        high=words.percent(largest.high),
        tolerance=words.percent(tolerance),
    )


def _gauge(largest: Largest, tolerance: float) -> Html:
    """The gap and its band next to the tolerance, drawn to scale; what it shows is said beside it."""
    ends = [x for x in (largest.gap, largest.low, largest.high) if abs(x) < float("inf")]
    reach = 1.15 * max(1.6 * tolerance, *map(abs, ends))

    def place(x: float) -> float:
        return round(50 + 50 * min(1.0, max(-1.0, x / reach)), 2)

    low, high = min(ends), max(ends)
    return fill(
        '<div class="gauge" aria-hidden="true"><i class="strip" style="left:$left%;width:$width%"></i>'
        '<i class="zero"></i><i class="range" style="left:$low%;width:$span%"></i>'
        '<i class="point" style="left:$point%"></i></div>',
        left=place(-tolerance),
        width=round(place(tolerance) - place(-tolerance), 2),
        low=place(low),
        span=round(place(high) - place(low), 2),
        point=place(largest.gap),
    )


def _gap_row(gap: Gap, decides: bool) -> Html:
    largest = gap.judged
    needed = f"{gap.seeds_needed:,} seeds would decide" if gap.seeds_needed is not None else ""
    return fill(
        '<tr class="$role"><th scope="row">$name<small>$role</small></th><td class="n">$gap<small>$band</small></td>'
        "<td>$badge<small>$seeds</small></td></tr>",
        role="decides" if decides else "followed",
        name=gap.name,
        gap=words.percent(largest.gap),
        band=f"{words.percent(largest.low)} to\N{NO-BREAK SPACE}{words.percent(largest.high)}" if gap.verdict else "",
        badge=badge(gap.verdict or "unjudged"),
        seeds=needed,
    )
