"""The top of the page: the verdicts, what to do, and how to read the rest."""

from __future__ import annotations

from rootscale.compare.result import Table, clock_unit, range_sentence
from rootscale.format import listed, show, typeset
from rootscale.lab.recommendation import recommend
from rootscale.report import words
from rootscale.report.html import Html, fill, icon, swatch
from rootscale.tolerance import tolerance_text
from rootscale.verdict import Comparison


def verdict_boxes(check: Table) -> list[Html]:
    nothing = f": {typeset(check.base.label)} was compared with nothing"
    found = words.sentences(check) or [words.Sentence("unjudged", nothing, ())]
    return [
        fill(
            '<div class="verdict $verdict">$icon<div><p><strong>$word</strong>$text$end</p><ul>$arms</ul></div></div>',
            verdict=sentence.verdict,
            icon=icon(sentence.verdict),
            word=words.VERDICTS[sentence.verdict],
            text=sentence.text,
            end=":" if sentence.arms else ".",
            arms=[
                fill("<li>$swatch<span><b>$label</b>$said</span></li>", swatch=swatch(i), label=label,
                     said=f", {said}" if said else "")
                for i, label, said in sentence.arms
            ],
        )
        for sentence in found
    ]  # fmt: skip


def advice(check: Table) -> Html:
    """What to do, where there is a verdict."""
    found = recommend(check)
    if not found:
        return Html("")
    items = [fill("<li>$sentence</li>", sentence=typeset(sentence)) for sentence in found]
    return fill(
        '<section class="advice" aria-labelledby="advice"><h2 id="advice">What to do</h2><ul>$items</ul></section>',
        items=items,
    )


def reading(check: Table) -> list[Html]:
    """What was compared and what the verdict means, for readers who have not read the paper."""
    return [
        fill("<dt>$question</dt><dd>$answer</dd>", question=question, answer=answer)
        for question, answer in (
            ("What was compared?", _runs(check)),
            ("What does “same” mean?", _meaning(check)),
            ("What does it not say?", "Which run is better, or what happens at batch sizes that are not on this page."),
        )
    ]


def _runs(check: Table) -> Html:
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


def _meaning(check: Table) -> Html:
    """What was held against what, and how sure the verdict is; where there is none, what it would need."""
    comparison = first_comparison(check)
    if comparison is None:
        return fill("Nothing yet: $why.", why=words.too_few(check.others or (check.base,)))
    text = (
        "The mean curve of a run is held against that of the base at equal $clock. The distance, as a share of the "
        "[[range]] of the base's curve, is the [[gap]]. $definition [[different|Different]]: as sure that the gap is "
        "further off than the [[tolerance]] at some time. [[undecided|Undecided]]: these seeds cannot tell. $ranges"
    )
    definition = typeset(comparison.definition).replace("Same", "[[same|Same]]", 1)
    return fill(
        text.replace("$definition", definition), clock=words.clock_name(check.base.trajectory),
        ranges=typeset(range_sentence(check, comparison)),
    )  # fmt: skip


def first_comparison(check: Table) -> Comparison | None:
    """Return a comparison that has a verdict."""
    return next((arm.comparison for arm in check.others if arm.comparison and arm.verdict), None)


def about_bands(check: Table) -> Html:
    """What the bands of the gaps are."""
    comparison = first_comparison(check)
    alone = "The gap of runs that were not judged is that of their means, without a band."
    if comparison is None:
        return Html(alone if check.others else "")
    return fill(
        "The wide [[band]] holds the true gap at all times and of all test functions that decide at once; the narrow "
        "one, at each time by itself, that averaged over the times around it (a tenth of all on either side). "
        "<b>Different</b>: the wide band leaves the tolerance entirely at some time. <b>Same</b>: the narrow band lies "
        "within the tolerance at all times, no single time is beyond twice it, and the last is not beyond it. "
        "<b>Undecided</b>: neither. $reliability $alone",
        reliability=typeset(comparison.reliability),
        alone=alone if any(arm.verdict is None for arm in check.others) else "",
    )


def setting(check: Table) -> list[Html]:
    comparison = first_comparison(check)
    seeds = check.base.trajectory.replicas
    facts = [f"base: {typeset(check.base.label)}", f"{seeds} seed{'s' * (seeds != 1)}"]
    places = [show(at) for at, _ in words.switches(check)] if check.switch_at else []
    if places and clock_unit(check.base.trajectory) is None:
        places = [show(check.switch_at)]
    if check.base.plan is None:
        facts.append(f"read from logs, aligned on {clock_unit(check.base.trajectory)}")
    else:
        facts.append(f"switch after {listed(places)} samples" if places else "runs from scratch")
    if comparison is not None:
        facts.append(f"decided by {listed(words.deciding(check))}")
        facts.append(f"tolerance {typeset(tolerance_text(comparison.tolerance))}")
        facts.append(f"verdicts at {words.percent(comparison.level)}")
    if words.diverged(check.base):
        facts.append(f"base: {words.diverged(check.base)}")
    return [fill("<li>$fact</li>", fact=fact) for fact in facts]
