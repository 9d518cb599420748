"""The rest of the page: choices and numbers of the curves, the noise, the plans, and how all was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rootscale.compare.result import Result, Table
from rootscale.format import listed, ranges, show
from rootscale.report import words
from rootscale.report.glossary import TERMS
from rootscale.report.head import first_comparison
from rootscale.report.html import Html, badge, fill, line, swatch, table


def function_choice(i: int, name: str) -> Html:
    return fill(
        '<label><input type="radio" name="function" value="$i" autocomplete="off"$checked><span>$name</span></label>',
        i=i,
        name=name,
        checked=Html(" checked" if i == 0 else ""),
    )


def run_toggle(i: int, arm: Result) -> Html:
    return fill(
        '<button type="button" data-arm="$i" aria-pressed="true">$swatch$label</button>', i=i, swatch=swatch(i),
        label=arm.label,
    )  # fmt: skip


def before_toggle(check: Table) -> list[Html]:
    if check.warm is None:
        return []
    button = '<button type="button" data-arm="warm" aria-pressed="false">$swatch before the switch</button>'
    return [fill(button, swatch=line("--warm", "none"))]


def numbers_table(i: int, name: str, check: Table) -> Html:
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
                '<tr><th scope="row">$swatch$label</th><td class="n" data-label="start">$start</td>'
                '<td class="n" data-label="end">$end</td><td class="n" data-label="gap">$gap</td><td>$badge</td></tr>',
                swatch=swatch(number),
                label=arm.label,
                start=words.with_error(float(mean[0]), float(se[0])),
                end=words.with_error(float(mean[-1]), float(se[-1])),
                gap=words.with_band(gap.judged) if gap else "–",
                badge=badge(gap.verdict or "unjudged") if gap else without,
            )
        )
    columns = ("run", "at the start", "at the end (± 2 se)", "largest gap (band)", "verdict")
    role = " (the verdict rests on it)" if name in words.deciding(check) and first_comparison(check) else ""
    rendered = table(columns, rows, f"{name}, in numbers{role}", "stacked")
    return fill('<div data-function="$i">$table</div>', i=i, table=rendered)


def noise_section(check: Table) -> Html:
    """The noise scale along the base's runs; nothing where it was not measured."""
    lines = words.noise_dominates(check)
    if not lines:
        return Html("")
    return fill(
        '<section aria-labelledby="noise"><h2 id="noise">Noise scale and batch size</h2>'
        '<figure><div class="plot" id="noise-plot" role="img" aria-label="Noise scale of $base against $clock, with '
        'the batch sizes as horizontal lines; where it lies above them is listed below"></div><figcaption>'
        "The [[noise scale]] Tr&nbsp;Σ&nbsp;/&nbsp;|∇f|² of $base, in samples: median of the seeds, and where "
        "90&nbsp;% of them lie. Where the curve lies above the line of a batch size, noise dominates the gradient "
        "there, which is what the rule needs; where it leaves the figure, no gradient was seen in the noise of its "
        "measurement. The "
        "list below is of the times that were compared."
        "</figcaption>"
        '<ul class="where">$lines</ul></figure></section>',
        base=check.base.label,
        clock=words.clock_name(check.base.trajectory),
        lines=[fill("<li>$swatch$line</li>", swatch=swatch(arm), line=line) for arm, line in lines],
    )


def plans_section(check: Table) -> Html:
    """What was changed in each run; nothing where all were read from logs, which say nothing of it."""
    told = [(i, arm) for i, arm in enumerate(check.others, 1) if arm.changes or arm.guards or arm.kind != "log"]
    if not told:
        return Html("")
    return fill(
        '<section aria-labelledby="plans"><h2 id="plans">What was changed, and why</h2>'
        '<div class="plans">$plans</div></section>',
        plans=[_plan(i, arm) for i, arm in told],
    )


def _plan(i: int, arm: Result) -> Html:
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
        swatch=swatch(i),
        label=arm.label,
        what=f"rule {changes['rule']}, κ = {show(changes['kappa'])}{_ramp(arm)}" if changes else unchanged,
        guards=[fill('<li class="warning"><b>Guard:</b> $text</li>', text=text) for text in arm.guards],
        table=table(columns, rows, f"The plan of {arm.label}, before and after", "plan") if rows else "",
    )


def _ramp(arm: Result) -> str:
    """The batch sizes on the way, where there are several."""
    stages = words.stages(arm)
    ways = [f"B = {words.number(size, 6)} from {words.number(at, 6)} samples on" for at, size in stages]
    return f"; {listed(ways)}" if len(ways) > 1 else ""


def made_section(check: Table) -> list[Html]:
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
            '<tr><th scope="row">$swatch$label</th><td class="n" data-label="batch size">$size</td>'
            '<td class="n" data-label="steps of the plan">$steps</td><td class="n" data-label="runs">$runs</td>'
            '<td data-label="seeds">$seeds</td></tr>',
            swatch=swatch(i),
            label=arm.label,
            size="–" if arm.plan is None else f"{arm.plan.batch_size}" + " (nominal)" * (arm.kind == "svag"),
            steps="–" if arm.plan is None else show(arm.plan.total_steps),
            runs=f"{arm.trajectory.replicas}" + (f" ({words.diverged(arm)})" if words.diverged(arm) else ""),
            seeds=ranges(_many(arm.trajectory.meta.get("seeds", []))),
        )
        for i, arm in enumerate((check.base, *check.others))
    ]
    return [*parts, table(("run", "batch size", "steps of the plan", "runs", "seeds"), rows, "The runs", "stacked")]


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
