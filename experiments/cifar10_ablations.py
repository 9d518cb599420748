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
from rootscale.reproduce import (
    ACCURACY,
    BASE,
    Experiment,
    Final,
    Line,
    Options,
    cifar10_task,
    kappa,
    kept,
    label_of,
    percent,
    settings_for,
    size_of,
    told_gap,
)

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
#: The paper's rule among them.
WHOLE = "sqrt: eta, eps, beta1, beta2"


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The base, and every subset at every batch size."""
    task = cifar10_task("adam", options)
    others = [size for size in options.batch_sizes if size != BASE]
    made = []
    for size in others:
        for rule, scaled in SUBSETS:
            left = tuple(row for row in ROWS[rule] if row not in scaled)
            label = f"{label_of(options, size)}; {rule}: {', '.join(('eta', *scaled))}"
            made.append(Line(label, task, Variant(kappa(size), rule=rule, keep=(*left, *kept(options)))))
    sizes = [size_of(options, size) for size in (BASE, *others)]
    return [Line(label_of(options, BASE), task), *made], settings_for(options, task.plan, sizes)


def words(finals: Sequence[Final]) -> str:
    """For each batch size, how well the whole rule follows the train loss, and which subsets come first and last."""
    sizes = sorted({final.batch_size for final in finals[1:]})
    parts = []
    for size in sizes:
        here = [final for final in finals[1:] if final.batch_size == size]
        here.sort(key=_gap)
        whole = next((i for i, final in enumerate(here) if final.label.endswith("; " + WHOLE)), None)
        if whole is None:
            parts.append(f"B = {size:,}: " + ", ".join(_words([final]) for final in here))
            continue
        others = [final for final in here if final is not here[whole]]
        ends = [f"{word}: {_words(final)}" for word, final in (("best", others[:1]), ("worst", others[-1:])) if final]
        parts.append(
            f"B = {size:,}: the whole rule {_words([here[whole]])}, {whole + 1} of {len(here)}; of the others, "
            + ", ".join(ends)
        )
    return "; ".join(["largest gap of the train loss over its range (and of the final test accuracy)", *parts])


def _gap(final: Final) -> float:
    return final.curves.get("train loss", (float("inf"), None))[0]


def _words(finals: Sequence[Final]) -> str:
    (final,) = finals
    gap = told_gap(ACCURACY, final.accuracy)
    return f"{final.label.split('; ')[1]} {percent(final.curves.get('train loss'))} ({gap})"


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
    )
]
