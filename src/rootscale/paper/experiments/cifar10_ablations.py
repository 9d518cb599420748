"""Which parts of the rule are needed: the paper's five subsets of it, and four linear rules.

The claim. Of (a) eta, (b) eta and eps, (c) eta, eps and beta1, (d) eta, eps and beta2, (e) all of them, scaled by the
square root rule, "(e) consistently beats others in terms of the test functions and the validation accuracies at all
batch sizes", and (c) is next (appendix, "Ablation study on the proposed scaling rule"). Of the linear rules, the one
that scales eta, 1 - beta1 and 1 - beta2 "seems to perform as well" in validation accuracy on CIFAR-10, but the square
root rule tracks the small batch's train accuracy better ("Ablation against linear scaling rules").

Setting. As for the square root rule with Adam, over 60 epochs at B = 2,048 and 8,192, with VGG-16 (the paper's ResNet,
``--model resnet56``, takes three times as long). BatchNorm's momentum is converted in all runs, so that only the
optimizer's hyperparameters differ: left alone, its running averages lag behind at large batches, which would cover the
differences; ``--paper-batchnorm`` leaves it alone.

Cost. About 8 minutes on one H200, less in several processes.

    rootscale reproduce cifar10-ablations --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

from rootscale.lab import Settings, Variant
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import ACCURACY, Final, format_curve, format_gap
from rootscale.paper.parts import BASE, cifar10_task, kappa, kept, label_of, settings_for, size_of
from rootscale.paper.shown import CONTRADICTED, UNDECIDED, Dot, Outcome, Planned, Shown
from rootscale.report.plotting import symbols
from rootscale.rules import rule_text

#: What each rule can scale besides the learning rate.
ROWS = {"sqrt": ("eps", "beta1", "beta2"), "linear": ("beta1", "beta2")}
#: What it does in the paper's two studies: five subsets of the square root rule, four linear rules.
SUBSETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("sqrt", ()),
    ("sqrt", ("eps",)),
    ("sqrt", ("eps", "beta1")),
    ("sqrt", ("eps", "beta2")),
    ("sqrt", ("eps", "beta1", "beta2")),
    ("linear", ()),
    ("linear", ("beta1",)),
    ("linear", ("beta2",)),
    ("linear", ("beta1", "beta2")),
)
#: The paper's rule among them, and those of which it says most: the next best, and one that is as good in the end.
WHOLE = "sqrt: eta, eps, beta1, beta2"
NAMED = ("sqrt: eta, eps, beta1", "linear: eta, beta1, beta2")


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The base, and every subset at every batch size."""
    task = cifar10_task("adam", options)
    others = [size for size in options.batch_sizes if size != BASE]
    made = []
    for size in others:
        for rule, scaled in SUBSETS:
            left = tuple(row for row in ROWS[rule] if row not in scaled)
            label = f"{label_of(options, size)}; {rule}: {', '.join(('eta', *scaled))}"
            made.append(Line(label, task, Variant(kappa(size), rule_text(rule, left_out=(*left, *kept(options))))))
    sizes = [size_of(options, size) for size in (BASE, *others)]
    return [Line(label_of(options, BASE), task), *made], settings_for(options, task.plan, sizes)


def words(finals: Sequence[Final]) -> str:
    """For each batch size, how well the whole rule follows the train loss, the paper's others, the best and worst."""
    sizes = sorted({final.batch_size for final in finals[1:]})
    parts = []
    for size in sizes:
        here = {final.label.split("; ")[1]: final for final in finals[1:] if final.batch_size == size}
        order = sorted(here, key=lambda label: _gap(here[label]))
        if WHOLE not in here:
            parts.append(f"B = {size:,}: " + ", ".join(_words(label, here[label]) for label in order))
            continue
        others = [label for label in order if label not in (WHOLE, *NAMED)]
        told = [f"the whole rule {_words(WHOLE, here[WHOLE])}, {order.index(WHOLE) + 1} of {len(order)}"]
        told += [_words(label, here[label]) for label in NAMED if label in here]
        ends = (("best", others[:1]), ("worst", others[-1:]))
        told += [f"{word} of the others: {_words(label, here[label])}" for word, end in ends for label in end]
        parts.append(f"B = {size:,}: {'; '.join(told)}")
    return "largest gap of the train loss over its range (and of the final test accuracy). " + ". ".join(parts)


def dots(finals: Sequence[Final]) -> list[Dot]:
    """Return what every rule loses, the whole rule first and the others by what they lose at the smallest batch."""
    made = [
        Dot(
            _symbols(final.label.partition("; ")[2]),
            f"B = {final.batch_size:,}",
            final.accuracy,
            final.curve("train loss"),
        )
        for final in finals[1:]
    ]
    first = {dot.row: dot.end.gap for dot in reversed(made)}
    return sorted(made, key=lambda dot: -float("-inf" if first[dot.row] is None else first[dot.row] or 0.0))


def _symbols(label: str) -> str:
    """Return the name of a rule as figures write it.

    >>> _symbols("sqrt: eta, eps, beta1")
    'square root: η, ε, β₁'
    """
    kind, _, scaled = label.partition(": ")
    kind = "the whole rule" if label == WHOLE else kind.replace("sqrt", "square root")
    return f"{kind}: {symbols(scaled)}"


def _at(finals: Sequence[Final], size: int) -> dict[str, Final]:
    return {final.label.partition("; ")[2]: final for final in finals[1:] if final.batch_size == size}


def headline(finals: Sequence[Final]) -> str:
    """Return what the whole rule, the learning rate alone and the best linear rule come to at the smallest batch."""
    size = min((final.batch_size for final in finals[1:]), default=0)
    here, times = _at(finals, size), size // finals[0].batch_size
    if not {WHOLE, "sqrt: eta", NAMED[1]} <= set(here):
        return "Subsets of the rule, and linear rules"
    ends = [here[label].accuracy.gap for label in (WHOLE, "sqrt: eta", NAMED[1])]
    whole, rate, linear = (f"{100 * (end or 0):+.1f}" for end in ends)
    return (
        f"{times} times the batch: {whole} points under the whole rule, {rate} with η alone, {linear} with all linear"
    )


def brief(finals: Sequence[Final]) -> str:
    """Return what the whole rule, the paper's others and the learning rate alone come to."""
    parts = []
    for size in sorted({final.batch_size for final in finals[1:]}):
        here = _at(finals, size)
        told = [label for label in (WHOLE, *NAMED, "sqrt: eta") if label in here]
        texts = [f"{_symbols(label)} {_words('', here[label]).strip()}" for label in told]
        parts.append(f"B = {size:,}: {', '.join(texts)}")
    return f"largest gap of the train loss over its range, and final test accuracy less the base's. {'. '.join(parts)}"


def judge(finals: Sequence[Final]) -> Outcome:
    """Return "contradicted" where a rule ends closer to the base than the whole one, by more than twice the error."""
    for size in {final.batch_size for final in finals[1:]}:
        here = _at(finals, size)
        ends = {label: final.accuracy for label, final in here.items() if final.accuracy.gap is not None}
        whole = ends.get(WHOLE)
        for end in ends.values():
            if whole is not None and whole.gap is not None and end.gap is not None and end.gap_se is not None:
                closer = abs(whole.gap) - abs(end.gap)
                if closer > 2 * end.gap_se:
                    return CONTRADICTED
    return UNDECIDED


def _gap(final: Final) -> float:
    found = final.curve("train loss")
    return float("inf") if found is None else abs(found.gap)


def _words(label: str, final: Final) -> str:
    return f"{label} {format_curve(final, 'train loss')} ({format_gap(ACCURACY, final.accuracy)})"


EXPERIMENTS = [
    Experiment(
        name="cifar10-ablations",
        title="Subsets of the rule, and linear rules",
        claim="Scaling eta, eps, beta1 and beta2 beats every subset; (eta, eps, beta1) is next; linear scaling of eta "
        "and both 1 - beta is as good in validation accuracy, but tracks the small batch's training less well",
        source="Appendix, Ablation study on the proposed scaling rule; Ablation against linear scaling rules",
        minutes=8,
        defaults=Options(epochs=60, batch_sizes=(2048, 8192), model="vgg16", points=30),
        lines=lines,
        words=words,
        models=("resnet56",),
        smoke={"batch_sizes": (1024,)},
        shown=Shown(
            headline,
            dots=dots,
            brief=brief,
            judge=judge,
            differs="VGG-16 (the paper has ResNet)",
            paper_setting=False,
            decided_by=Planned({"recipe": "authors", "epochs": 500, "batch_sizes": (8192,)}, 34),
        ),
    )
]
