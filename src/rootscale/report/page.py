"""A check as one HTML page that needs no network: the verdict first, then the curves, then how it came about.

The page is ``page.html`` with ``page.css``, ``page.js`` and plotly.js put into it. What is text is written here, so
that it can be read without scripts; what is drawn is drawn by ``page.js`` from the JSON of `rootscale.report.payload`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import math
import os
from collections.abc import Callable, Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rootscale._version import __version__
from rootscale.changes import PROMISE
from rootscale.files import whole
from rootscale.format import listed, ranges, show, typeset
from rootscale.gap import Gap, Largest
from rootscale.lab import Arm, Check
from rootscale.lab.recommendation import recommend
from rootscale.report import words
from rootscale.report.glossary import TERMS, list_terms, mark_terms
from rootscale.report.payload import make_payload, script_json
from rootscale.report.styles import STYLES, style_of
from rootscale.tolerance import tolerance_text
from rootscale.verdict import Comparison

__all__ = ["need_plotly", "render_page", "write_page"]


class Html(str):
    """Text that is HTML already; all other text is escaped when it is put into some."""


def fill(template: str, **values: Any) -> Html:
    """The template with every ``$name`` replaced: by HTML as it is, by many pieces of it in a row, by text escaped.

    ``[[term]]`` in the template gets a tip that explains it; in what replaces a name it is text.

    >>> fill("<b title='$title'>$text</b>", title="'", text="<i>")
    "<b title='&#x27;'>&lt;i&gt;</b>"
    """
    return Html(Template(mark_terms(template)).substitute({name: _escaped(value) for name, value in values.items()}))


def _escaped(value: Any) -> str:
    if isinstance(value, Html):
        return value
    if isinstance(value, list | tuple):
        return "".join(map(_escaped, value))
    return escape(str(value))


def need_plotly() -> str:
    """plotly.js; a `ValueError` that says how to install it where it is missing."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise ValueError("a report needs plotly, which is not installed; pip install 'rootscale[report]'") from None
    return str(offline.get_plotlyjs())


def write_page(check: Check, path: str | os.PathLike[str]) -> Path:
    """Writes the page to ``path``: all of it or, on any failure, nothing."""
    path = Path(path)
    text = render_page(check)
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render_page(check: Check) -> str:
    """The page, about 5 MB with plotly.js in it.

    Its content security policy lets the browser run the page's own two scripts, known by their hashes, and load
    nothing from anywhere.
    """
    count = 1 + len(check.others)
    # The text of a script may not hold what ends it; in JavaScript the backslash changes nothing.
    plotly, script = (Html(text.replace("</script", "<\\/script")) for text in (need_plotly(), _own("page.js")))
    data = make_payload(check) | {"colours": len(STYLES), "dashes": [style_of(i).plotly for i in range(count)]}
    return fill(
        _own("page.html"),
        hashes=" ".join(f"'sha256-{_hash(text)}'" for text in (plotly, script)),
        css=Html(_own("page.css")),
        plotly=plotly,
        script=script,
        data=Html(script_json(data)),
        task=check.task,
        verdicts=_verdicts(check),
        advice=_advice(check),
        setting=_setting(check),
        reading=_reading(check),
        glossary=Html(list_terms()),
        cards=[_card(i, arm, check) for i, arm in enumerate(check.others, 1)],
        choices=[_choice(i, name) for i, name in enumerate(words.functions(check))],
        legend=[_toggle(i, arm) for i, arm in enumerate((check.base, *check.others))] + _before(check),
        base=check.base.label,
        clock=words.clock_name(check.base.trajectory),
        gaps="Gap against tolerance" if _first(check) else "Gap",
        bands=_bands(check),
        numbers=[_numbers(i, name, check) for i, name in enumerate(words.functions(check))],
        noise=_noise(check),
        plans=[_plan(i, arm) for i, arm in enumerate(check.others, 1)],
        made=_made(check),
        promise=PROMISE,
        version=__version__,
    )


def _own(name: str) -> str:
    return resources.files("rootscale.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _icon(name: str) -> Html:
    return fill('<svg class="mark" aria-hidden="true"><use href="#icon-$name"/></svg>', name=name)


def _badge(verdict: str) -> Html:
    return fill(
        '<span class="badge $verdict">$icon$word</span>', verdict=verdict, icon=_icon(verdict),
        word=words.VERDICTS[verdict],
    )  # fmt: skip


def _swatch(arm: int) -> Html:
    return _line(f"--arm-{arm % len(STYLES)}", style_of(arm).svg)


def _line(colour: str, dash: str) -> Html:
    return fill(
        '<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true"><line x1="1" y1="5" x2="29" y2="5" '
        'stroke="var($colour)" stroke-dasharray="$dash"/></svg>',
        colour=colour,
        dash=dash,
    )


def _table(columns: Iterable[str], rows: Iterable[Html], caption: str, classes: str = "") -> Html:
    """A table in a box of its own that scrolls where the page is narrow."""
    return fill(
        '<div class="scroll" tabindex="0" role="region" aria-label="$caption"><table class="$classes">'
        "<caption>$caption</caption><thead><tr>$head</tr></thead><tbody>$rows</tbody></table></div>",
        caption=caption,
        classes=classes,
        head=[fill('<th scope="col">$name</th>', name=column) for column in columns],
        rows=list(rows),
    )


def _verdicts(check: Check) -> list[Html]:
    nothing = f": {typeset(check.base.label)} was compared with nothing"
    found = words.sentences(check) or [words.Sentence("unjudged", nothing, ())]
    return [
        fill(
            '<div class="verdict $verdict">$icon<div><p><strong>$word</strong>$text$end</p><ul>$arms</ul></div></div>',
            verdict=sentence.verdict,
            icon=_icon(sentence.verdict),
            word=words.VERDICTS[sentence.verdict],
            text=sentence.text,
            end=":" if sentence.arms else ".",
            arms=[
                fill("<li>$swatch<span><b>$label</b>$said</span></li>", swatch=_swatch(i), label=label,
                     said=f", {said}" if said else "")
                for i, label, said in sentence.arms
            ],
        )
        for sentence in found
    ]  # fmt: skip


def _advice(check: Check) -> Html:
    """What to do, where there is a verdict."""
    found = recommend(check)
    if not found:
        return Html("")
    items = [fill("<li>$sentence</li>", sentence=typeset(sentence)) for sentence in found]
    return fill(
        '<section class="advice" aria-labelledby="advice"><h2 id="advice">What to do</h2><ul>$items</ul></section>',
        items=items,
    )


def _reading(check: Check) -> list[Html]:
    """What was compared and what the verdict means, for readers who have not read the paper."""
    return [
        fill("<dt>$question</dt><dd>$answer</dd>", question=question, answer=answer)
        for question, answer in (
            ("What was compared?", _runs(check)),
            ("What does “same” mean?", _meaning(check)),
            ("What does it not say?", "Which run is better, or what happens at batch sizes that are not on this page."),
        )
    ]


def _runs(check: Check) -> Html:
    seeds, count = check.base.trajectory.replicas, len(check.others)
    start = "is changed at the [[switch]]" if check.switch_at else "is changed from its start"
    what = "was read from a log" if check.base.plan is None else start
    return fill(
        "$base is the run as it is, the [[base]]. It was made with $seeds [[seed|$unit]]. "
        f"Each of the $count below {what}.",
        base=typeset(check.base.label),
        seeds=seeds,
        unit="seed" if seeds == 1 else "seeds",
        count=f"{count} runs" if count != 1 else "one run",
    )


def _meaning(check: Check) -> Html:
    """What was held against what, and how sure the verdict is; where there is none, what it would need."""
    comparison = _first(check)
    if comparison is None:
        return fill("Nothing yet: $why.", why=words.too_few(check.others or (check.base,)))
    text = (
        "The mean curve of a run is held against that of the base at equal $clock. The distance, as a share of the "
        "[[range]] of the base's curve, is the [[gap]]. [[same|Same]]: we are $level sure that it is nowhere larger "
        "than the [[tolerance]]. [[different|Different]]: as sure that somewhere it is. [[undecided|Undecided]]: these "
        "seeds cannot tell."
    )
    return fill(text, clock=words.clock_name(check.base.trajectory), level=words.percent(comparison.level))


def _first(check: Check) -> Comparison | None:
    """Return a comparison that has a verdict."""
    return next((arm.comparison for arm in check.others if arm.comparison and arm.verdict), None)


def _bands(check: Check) -> Html:
    """What the bands of the gaps are."""
    comparison = _first(check)
    alone = "The gap of runs that were not judged is that of their means, without a band."
    if comparison is None:
        return Html(alone if check.others else "")
    return fill(
        "The wide [[band]] holds the true gap at all times and of all test functions that decide at once; the narrow "
        "one at each time by itself. <b>Different</b>: the wide band leaves the tolerance entirely at some time. "
        "<b>Same</b>: the narrow band lies within the tolerance at all times. <b>Undecided</b>: neither. A verdict is "
        "wrong in at most $error of such comparisons$often. $alone",
        error=words.percent(1 - comparison.level),
        often=""
        if comparison.looks == "once"
        else ", however often seeds are added and the verdict is asked for again",
        alone=alone if any(arm.verdict is None for arm in check.others) else "",
    )


def _setting(check: Check) -> list[Html]:
    comparison = _first(check)
    seeds = check.base.trajectory.replicas
    facts = [f"base: {typeset(check.base.label)}", f"{seeds} seed{'s' * (seeds != 1)}"]
    places = [show(at) for at, _ in words.switches(check)] if check.switch_at else []
    if places and words.clock_unit(check.base.trajectory) is None:
        places = [show(check.switch_at)]
    if check.base.plan is None:
        facts.append(f"read from logs, aligned on {words.clock_unit(check.base.trajectory)}")
    else:
        facts.append(f"switch after {listed(places)} samples" if places else "runs from scratch")
    if comparison is not None:
        facts.append(f"decided by {listed(words.deciding(check))}")
        facts.append(f"tolerance {typeset(tolerance_text(comparison.tolerance))}")
        facts.append(f"verdicts at {words.percent(comparison.level)}")
    if words.diverged(check.base):
        facts.append(f"base: {words.diverged(check.base)}")
    return [fill("<li>$fact</li>", fact=fact) for fact in facts]


def _card(i: int, arm: Arm, check: Check) -> Html:
    verdict = words.judged(arm)
    remarks = arm.comparison.notes if arm.comparison else ()
    notes = [("cause", "Likely cause", text) for text in arm.causes]
    if words.diverged(arm) and not any("diverged" in note for note in remarks):
        notes.append(("warning", "Diverged", words.diverged(arm)))
    # Causes are likelier than what a guard feared; all guards stand with the plan.
    notes += [("warning", "Guard", text) for text in arm.guards if not arm.causes]
    notes += [("note", "Note", text) for text in remarks]
    notes += [("note", "Parting", text) for text in [words.parts(arm)] if text]
    notes += [("note", "Later", text) for text in [words.settles(arm)] if text]
    if arm.comparison is not None and verdict == "undecided":
        notes.insert(0, ("seeds", "To decide", words.decide(arm.comparison)))
    return fill(
        '<article class="card $verdict"><header><h3>$swatch<span>$label</span></h3>$badge</header>'
        '$gap<ul class="notes">$notes</ul>$all</article>',
        verdict=verdict,
        swatch=_swatch(i),
        label=typeset(arm.label),
        badge=_badge(verdict),
        gap=_worst(arm, arm.comparison) if arm.comparison and arm.verdict else _unjudged(arm, check),
        notes=[
            fill('<li class="$kind"><b>$name:</b> $text</li>', kind=kind, name=name, text=text)
            for kind, name, text in notes
        ],
        all="" if arm.comparison is None else _all_functions(arm, arm.comparison, check),
    )


def _worst(arm: Arm, comparison: Comparison) -> Html:
    found = words.worst(comparison)
    return Html("") if found is None else _gap(found, comparison.limit(found), arm)


def _unjudged(arm: Arm, check: Check) -> Html:
    """Return, in place of a gap with its band: the gaps, and where the curves end, with their errors."""
    rows = []
    for name in words.deciding(check):
        if name in arm.trajectory.names:
            ends = [[float(part[-1]) for part in run.trajectory[name]] for run in (arm, check.base)]
            gap = arm.comparison.gaps.get(name) if arm.comparison else None
            rows.append(
                fill("<li>$name at the end <b>$here</b>, of the base $there$gap</li>", name=name,
                     here=words.with_error(*ends[0]), there=words.with_error(*ends[1]),
                     gap=f"; largest gap {words.with_se(gap.largest)}" if gap else "")
            )  # fmt: skip
    return fill(
        '<p class="gap">$why.</p><ul class="ends">$rows</ul>', rows=rows,
        why=words.too_few([arm]).capitalize(),
    )  # fmt: skip


def _all_functions(arm: Arm, comparison: Comparison, check: Check) -> Html:
    """Those that decide, and those that are followed, with verdicts of their own."""
    first = words.deciding(check)
    gaps = sorted(comparison.gaps.values(), key=lambda gap: gap.name not in first)
    other, base = comparison.seeds
    runs = f"{other} pairs of runs with equal seeds" if comparison.paired else f"{other} runs against {base}"
    width = f", wide bands of ± {words.number(comparison.critical)} standard errors" if comparison.critical else ""
    caption = f"Gaps to {typeset(check.base.label)}, as shares of the range of its curve: {runs}{width}"
    rows = [_gap_row(gap, gap.name in first) for gap in gaps]
    table = _table(("test function", "largest gap, band", "verdict"), rows, caption)
    return fill("<details><summary>All test functions</summary>$table</details>", table=table)


def _gap(gap: Gap, tolerance: float, arm: Arm) -> Html:
    largest = gap.largest
    if math.isnan(largest.gap):
        return fill('<p class="gap">no gap of $name could be measured</p>', name=gap.name)
    return fill(
        '<p class="gap"><b>$gap</b> largest gap: $name, at $at</p>$gauge'
        '<p class="band">band $low to $high; tolerance ±$tolerance</p>',
        gap=words.percent(largest.gap),
        name=gap.name,
        at=words.place(largest.time, arm.trajectory),
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
    largest = gap.largest
    needed = f"{gap.seeds_needed:,} seeds would decide" if gap.seeds_needed is not None else ""
    return fill(
        '<tr class="$role"><th scope="row">$name<small>$role</small></th><td class="n">$gap<small>$band</small></td>'
        "<td>$badge<small>$seeds</small></td></tr>",
        role="decides" if decides else "followed",
        name=gap.name,
        gap=words.percent(largest.gap),
        band=f"{words.percent(largest.low)} to\N{NO-BREAK SPACE}{words.percent(largest.high)}" if gap.verdict else "",
        badge=_badge(gap.verdict or "unjudged"),
        seeds=needed,
    )


def _choice(i: int, name: str) -> Html:
    return fill(
        '<label><input type="radio" name="function" value="$i" autocomplete="off"$checked><span>$name</span></label>',
        i=i,
        name=name,
        checked=Html(" checked" if i == 0 else ""),
    )


def _toggle(i: int, arm: Arm) -> Html:
    return fill(
        '<button type="button" data-arm="$i" aria-pressed="true">$swatch$label</button>', i=i, swatch=_swatch(i),
        label=arm.label,
    )  # fmt: skip


def _before(check: Check) -> list[Html]:
    if check.warm is None:
        return []
    button = '<button type="button" data-arm="warm" aria-pressed="false">$swatch before the switch</button>'
    return [fill(button, swatch=_line("--warm", "none"))]


def _numbers(i: int, name: str, check: Check) -> Html:
    """The plots of a test function as a table, which the page shows with them."""
    rows = []
    for number, arm in enumerate((check.base, *check.others)):
        if name not in arm.trajectory.names:
            continue
        mean, se = arm.trajectory[name]
        gap = arm.comparison.gaps.get(name) if arm.comparison else None
        without = "base" if number == 0 else "not compared"
        rows.append(
            fill(
                '<tr><th scope="row">$swatch$label</th><td class="n">$start</td><td class="n">$end</td>'
                '<td class="n">$gap</td><td>$badge</td></tr>',
                swatch=_swatch(number),
                label=arm.label,
                start=words.with_error(float(mean[0]), float(se[0])),
                end=words.with_error(float(mean[-1]), float(se[-1])),
                gap=words.with_band(gap.largest) if gap else "–",
                badge=_badge(gap.verdict or "unjudged") if gap else without,
            )
        )
    columns = ("run", "at the start", "at the end (± 2 se)", "largest gap (band)", "verdict")
    role = " (the verdict rests on it)" if name in words.deciding(check) and _first(check) else ""
    table = _table(columns, rows, f"{name}, in numbers{role}")
    return fill('<div data-function="$i">$table</div>', i=i, table=table)


def _noise(check: Check) -> Html:
    lines = words.noise_dominates(check)
    if not lines:
        return Html('<p class="empty">The noise scale was not measured.</p>')
    return fill(
        '<figure><div class="plot" id="noise-plot" role="img" aria-label="Noise scale of $base against $clock, with '
        'the batch sizes as horizontal lines; where it lies above them is listed below"></div><figcaption>'
        "The [[noise scale]] Tr&nbsp;Σ&nbsp;/&nbsp;|∇f|² of $base, in samples: median of the seeds, and where "
        "90&nbsp;% of them lie. Where the curve lies above the line of a batch size, noise dominates the gradient "
        "there, which is what the rule needs; where it leaves the figure, no gradient was seen in the noise of its "
        "measurement. The "
        "list below is of the times that were compared."
        "</figcaption>"
        '<ul class="where">$lines</ul></figure>',
        base=check.base.label,
        clock=words.clock_name(check.base.trajectory),
        lines=[fill("<li>$swatch$line</li>", swatch=_swatch(arm), line=line) for arm, line in lines],
    )


def _plan(i: int, arm: Arm) -> Html:
    changes = arm.changes or {}
    rows = []
    for change in changes.get("changes", ()):
        kept = change["before"] == change["used"]
        rows.append(
            fill(
                '<tr$kept><th scope="row">$name</th><td class="n">$before</td><td class="n"><b>$after</b></td>'
                '<td><code>$form</code></td><td><span class="status $status">$term</span></td>'
                '<td class="why">$why<small>$source</small></td></tr>',
                kept=Html(' class="kept"' if kept else ""),
                name=change["name"],
                before=show(change["before"]),
                after=show(change["used"]),
                form=change["form"],
                status=change["status"],
                term=fill(f"[[{change['status']}]]") if change["status"] in TERMS else change["status"],
                why=change["why"],
                source=change["source"],
            )
        )
    unchanged = {
        "svag": "the plan of the base, under SVAG",
        "log": "read from logs, which say nothing of its plan",
    }.get(arm.kind, "no changes were recorded")
    columns = ("quantity", "before", "after", "how", "status", "why")
    return fill(
        "<details$open><summary>$swatch<span><b>$label</b>: $what</span></summary>"
        '<ul class="notes">$guards</ul>$table</details>',
        open=Html(" open" if i == 1 else ""),
        swatch=_swatch(i),
        label=arm.label,
        what=f"rule {changes['rule']}, κ = {show(changes['kappa'])}{_ramp(arm)}" if changes else unchanged,
        guards=[fill('<li class="warning"><b>Guard:</b> $text</li>', text=text) for text in arm.guards],
        table=_table(columns, rows, f"The plan of {arm.label}, before and after", "plan") if rows else "",
    )


def _ramp(arm: Arm) -> str:
    """The batch sizes on the way, where there are several."""
    stages = words.stages(arm)
    ways = [f"B = {words.number(size, 6)} from {words.number(at, 6)} samples on" for at, size in stages]
    return f"; {listed(ways)}" if len(ways) > 1 else ""


def _made(check: Check) -> list[Html]:
    made = dict(check.made)
    parts = []
    if "command" in made:
        parts.append(fill('<pre class="scroll" tabindex="0"><code>$text</code></pre>', text=made.pop("command")))
    as_text: dict[str, Callable[[Any], str]] = {"seconds": _duration, "seeds": lambda seeds: ranges(_many(seeds))}
    facts = {name: as_text.get(name, words.described)(value) for name, value in made.items()}
    if facts:
        items = [fill("<dt>$name</dt><dd>$text</dd>", name=name, text=text) for name, text in facts.items()]
        parts.append(fill("<dl>$items</dl>", items=items))
    rows = [
        fill(
            '<tr><th scope="row">$swatch$label</th><td class="n">$size</td><td class="n">$steps</td>'
            '<td class="n">$runs</td><td>$seeds</td></tr>',
            swatch=_swatch(i),
            label=arm.label,
            size="–" if arm.plan is None else f"{arm.plan.batch_size}" + " (nominal)" * (arm.kind == "svag"),
            steps="–" if arm.plan is None else show(arm.plan.total_steps),
            runs=f"{arm.trajectory.replicas}" + (f" ({words.diverged(arm)})" if words.diverged(arm) else ""),
            seeds=ranges(_many(arm.trajectory.meta.get("seeds", []))),
        )
        for i, arm in enumerate((check.base, *check.others))
    ]
    return [*parts, _table(("run", "batch size", "steps of the plan", "runs", "seeds"), rows, "The runs")]


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _duration(seconds: Any) -> str:
    """Seconds as people say them; anything else as it is.

    >>> _duration(83.4), _duration(7), _duration("a while")
    ('83.4 s (1 min 23 s)', '7 s', 'a while')
    """
    if not isinstance(seconds, int | float):
        return words.described(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    long = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return f"{seconds:.4g} s" + (f" ({long})" if seconds >= 60 else "")
