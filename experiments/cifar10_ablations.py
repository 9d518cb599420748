"""Which parts of the rule are needed: the paper's five subsets of it, and four linear rules.

The claim. Of (a) eta, (b) eta and eps, (c) eta, eps and beta1, (d) eta, eps and beta2, (e) all of them, scaled by the
square root rule, "(e) consistently beats others in terms of the test functions and the validation accuracies at all
batch sizes", and (c) is next (appendix, "Ablation study on the proposed scaling rule"). Of the linear rules, the one
that scales eta, 1 - beta1 and 1 - beta2 "seems to perform as well" in validation accuracy on CIFAR-10, but the square
root rule tracks the small batch's train accuracy better ("Ablation against linear scaling rules").

Setting. As for the square root rule with Adam, over 60 epochs at B = 2,048 and 8,192; `sqrt` besides the paper's (e)
also converts BatchNorm's momentum. The paper has the ResNet: ``--model resnet56``, half as fast as VGG-16, is the
default.

Cost. About 17 minutes on one H200.

    rootscale reproduce cifar10-ablations --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence

from rootscale.lab import Settings, Variant
from rootscale.reproduce import (
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
    points_of,
    settings_for,
    size_of,
)
from rootscale.rules import RULES

#: The rules of the paper's two ablation studies, and the whole rule.
TRIED = ("sqrt", *(name for name in RULES if name.startswith(("sqrt-", "linear-"))))


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The base, and every rule at every batch size."""
    task = cifar10_task("adam", options)
    others = [size for size in options.batch_sizes if size != BASE]
    made = [
        Line(
            f"{label_of(options, size)}, {rule}",
            task,
            Variant(kappa(size), rule=rule, keep=kept(options) if rule == "sqrt" else ()),
        )
        for size in others
        for rule in TRIED
    ]
    sizes = [size_of(options, size) for size in (BASE, *others)]
    return [Line(label_of(options, BASE), task), *made], settings_for(options, task.plan, sizes)


def words(finals: Sequence[Final]) -> str:
    """For each batch size, the rules in the order of how well they follow the train loss."""
    sizes = sorted({final.batch_size for final in finals[1:]})
    parts = []
    for size in sizes:
        here = [final for final in finals[1:] if final.batch_size == size]
        here.sort(key=lambda final: final.curves.get("train loss", (float("inf"), None))[0])
        rules = [
            f"{final.label.split(', ')[1]} {percent(final.curves.get('train loss'))} ({points_of(final.gap, None)})"
            for final in here
        ]
        parts.append(f"B = {size:,}: {', '.join(rules)}")
    return "largest gap of the train loss over its range (and of the final test accuracy), best first; " + "; ".join(
        parts
    )


EXPERIMENTS = [
    Experiment(
        name="cifar10-ablations",
        title="Subsets of the rule, and linear rules",
        claim="Scaling eta, eps, beta1 and beta2 beats every subset; (eta, eps, beta1) is next; linear scaling of eta "
        "and both 1 - beta is as good in validation accuracy, but tracks the small batch's training less well",
        source="Appendix, Ablation study on the proposed scaling rule; Ablation against linear scaling rules",
        minutes=17,
        defaults=Options(epochs=60, batch_sizes=(2048, 8192), model="resnet56", points=30),
        lines=lines,
        words=words,
        models=("vgg16",),
        smoke={"batch_sizes": (1024,)},
    )
]
