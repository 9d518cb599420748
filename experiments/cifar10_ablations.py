"""Which parts of the rule are needed? The paper's five subsets of it, and four linear rules, on CIFAR-10.

Claim. Of eta, eps, beta1 and beta2 by the square root rule, scaling all of them "consistently beats others in terms of
the test functions and the validation accuracies at all batch sizes", and (eta, eps, beta1) is next (appendix, "Ablation
study on the proposed scaling rule"). Of the linear rules, the one that scales eta and both 1 - beta "seems to perform
as well" in validation accuracy, but tracks the small batch's training less well ("Ablation against linear scaling
rules"). Fixed before: at B = 8,192 over 500 epochs with the authors' recipe (``--epochs 500 --recipe authors --sizes
8192``) the whole rule has the smallest gap of the train loss; 1 seed for nine rules, 3 for the closest four.

Protocol. VGG-16 (the paper's ResNet: ``--net resnet56``, three times as long) with Adam, 60 epochs of the recipe
``house``, B = 2,048 and 8,192, one seed. BatchNorm's momentum is converted in all runs, so that only the optimizer's
hyperparameters differ: left alone, its running averages lag behind at large batches, which would cover the differences.

Cost. About 8 minutes on one H200.

Finding. One seed, so nothing is judged. The whole rule has the smallest gap of the train loss; all linear ends higher
in test accuracy. ablations.py asks the same of small nets with many seeds.

    rootscale study experiments/cifar10_ablations.py --device cuda --data FOLDER
"""

from __future__ import annotations

from fractions import Fraction

import cifar10
from ablations import ROWS, SUBSETS

from rootscale.lab import Arm, Study, Variant
from rootscale.rules import rule_text

GROUP = "paper"


def study(
    net: str = "vgg16", recipe: str = "house", epochs: float = 60, sizes: tuple[int, ...] = (2048, 8192),
    data: str = "", device: str = "cpu", smoke: bool = False,
) -> Study:  # fmt: skip
    """Return the base, and every subset at every batch size."""
    scale = cifar10.SMOKE if smoke else 1
    task = cifar10.task(net, "adam", 4 if smoke else epochs, kind=recipe, data=data, smoke=smoke)
    arms = [Arm(f"B = {cifar10.BASE // scale:,}", task)]
    for size in sizes:
        for rule, scaled in reversed(SUBSETS):
            text = rule_text(rule, left_out=[row for row in ROWS[rule] if row not in scaled])
            form = f"{rule}: {', '.join(('eta', *scaled))}"
            label = f"B = {size // scale:,}; {form}"
            arms.append(Arm(label, task, Variant(Fraction(size, cifar10.BASE), text), {"form": form}))
    settings = cifar10.settings(task, [size // scale for size in (cifar10.BASE, *sizes)], 30, device=device)
    claim = f"{cifar10.TITLES[net]}, Adam: the whole rule beats each subset of it; linear scaling is as good at the end"
    name = "cifar10-ablations" + "".join(f"-{one}" for one in (net, recipe) if one not in ("vgg16", "house"))
    return Study(name, arms, f"{claim}; {epochs:g} epochs", 1, settings)


STUDY = study
