"""Dividing by the second moment before the step or after it: v_k, as in the paper's theory, or v_{k+1}, as in torch.

The claim. With v_k "we observe a small drop (about 1 %) in test accuracies. However, the behavior of the trajectories
across different batch sizes [...] stays the same, i.e. we observe a maximum of 3 % test accuracy gap between training
batch size 256 and 8192" (appendix, "Using v_k instead of v_{k+1} in the update rule").

Setting. As for the square root rule with Adam, VGG-16, 60 epochs, both forms at B = 256, 1,024 and 4,096.

Cost. About 4 minutes on one H200 with one seed.

    rootscale reproduce cifar10-vk --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

from rootscale.lab import Settings, Variant
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import ACCURACY, Final, accuracies, difference, format_gap
from rootscale.paper.parts import BASE, cifar10_task, kappa, kept, label_of, settings_for, size_of
from rootscale.paper.shown import CONTRADICTED, Dot, Outcome, Planned, Shown, judge_ends, tell_ends
from rootscale.rules import rule_text

#: The forms of Adam, and the factors by which they change the recipe.
FORMS: dict[str, tuple[str, ...]] = {"v_{k+1} (torch)": (), "v_k (paper)": ("v_k",)}
#: How figures write them.
FORM_TITLES = {"v_{k+1} (torch)": "$v_{k+1}$ (torch)", "v_k (paper)": "$v_k$ (paper)"}


def lines(options: Options) -> tuple[list[Line], Settings]:
    """Both forms of Adam at all batch sizes; torch's at 256 is the base."""
    tasks = {form: cifar10_task("adam", options, *factors) for form, factors in FORMS.items()}
    sizes = [BASE, *(size for size in options.batch_sizes if size != BASE)]
    made = [
        Line(
            f"{form}, {label_of(options, size)}",
            task,
            Variant(kappa(size), rule_text(left_out=kept(options)) if size != BASE else None),
        )
        for form, task in tasks.items()
        for size in sizes
    ]
    plan = tasks["v_{k+1} (torch)"].plan
    return made, settings_for(options, plan, [size_of(options, size) for size in sizes])


def words(finals: Sequence[Final]) -> str:
    """Accuracies, the drop of the paper's form at the base's batch size, and how it keeps its own under the rule."""
    text = "test accuracy " + accuracies(finals)
    paper = [final for final in finals if final.label.startswith("v_k (paper)")]
    base = next((final for final in paper if final.batch_size == finals[0].batch_size), None)
    if base is None:
        return text
    text += f"; v_k less v_{{k+1}}: {format_gap(ACCURACY, base.accuracy)}"
    largest = max(paper, key=lambda final: final.batch_size)
    if largest is base:
        return text
    gap = format_gap(ACCURACY, difference(base, largest))
    return f"{text}; under v_k, B = {largest.batch_size:,} less B = {base.batch_size:,}: {gap}"


def dots(finals: Sequence[Final]) -> list[Dot]:
    """Return what both forms lose at larger batches, each against its own base."""
    bases = {_form(final): final for final in finals if final.batch_size == finals[0].batch_size}
    return [
        Dot(FORM_TITLES.get(form, form), f"B = {final.batch_size:,}", difference(bases[form], final))
        for final in finals
        for form in [_form(final)]
        if form in bases and final is not bases[form]
    ]


def _form(final: Final) -> str:
    return final.label.partition(", ")[0]


def _paper(finals: Sequence[Final]) -> list[Final]:
    """Return the runs of the paper's form, the smallest batch first."""
    return sorted((final for final in finals if _form(final) == "v_k (paper)"), key=lambda final: final.batch_size)


def headline(finals: Sequence[Final]) -> str:
    """Return what the paper's form costs, and what it loses at the largest batch."""
    base, *others = _paper(finals)
    ends = {"$v_k$ instead of $v_{k+1}$": base.accuracy}
    for final in others[-1:]:
        ends[f"{final.batch_size // base.batch_size} times the batch under it"] = difference(base, final)
    return tell_ends(ends)


def brief(finals: Sequence[Final]) -> str:
    """Return what the paper's form costs, and what it loses at larger batches."""
    base, *others = _paper(finals)
    parts = [f"B = {final.batch_size:,} {format_gap(ACCURACY, difference(base, final))}" for final in others]
    cost = format_gap(ACCURACY, base.accuracy)
    return f"v_k less v_{{k+1}} {cost}; under v_k, less B = {base.batch_size:,}: {', '.join(parts)}"


def judge(finals: Sequence[Final]) -> Outcome:
    """Return whether the paper's form costs about a point, and keeps its accuracy within 3."""
    base, *others = _paper(finals)
    found = judge_ends([difference(base, final) for final in others], 0.03)
    return CONTRADICTED if CONTRADICTED in (found, judge_ends([base.accuracy], 0.02)) else found


EXPERIMENTS = [
    Experiment(
        name="cifar10-vk",
        title="v_k against v_{k+1}",
        claim="v_k instead of v_{k+1} costs about 1 % of test accuracy, and the rule holds as well",
        source="Appendix, Using v_k instead of v_{k+1} in the update rule",
        minutes=4,
        defaults=Options(epochs=60, batch_sizes=(256, 1024, 4096), points=30),
        lines=lines,
        words=words,
        models=("resnet56",),
        smoke={"batch_sizes": (256, 1024)},
        shown=Shown(
            headline,
            limit=0.03,
            dots=dots,
            brief=brief,
            judge=judge,
            decided_by=Planned({"recipe": "authors", "epochs": 500, "batch_sizes": (256, 8192)}, 12),
        ),
    )
]
