"""Dividing by the second moment before the step or after it: v_k, as in the paper's theory, or v_{k+1}, as in torch.

Claim. With v_k "we observe a small drop (about 1 %) in test accuracies. However, the behavior of the trajectories
across different batch sizes [...] stays the same, i.e. we observe a maximum of 3 % test accuracy gap between training
batch size 256 and 8192" (appendix, "Using v_k instead of v_{k+1} in the update rule"). Fixed before: contradicted if
the drop exceeds 2 points or the gap 3, each by more than its error; with ``--recipe authors --epochs 500 --sizes 8192``
3 seeds.

Protocol. VGG-16, Adam, 60 epochs of the recipe ``house``, both forms at B = 256, 1,024 and 4,096, one seed. Judged is
the test accuracy at the end, within 3 points of torch's form at 256.

Cost. About 4 minutes on one H200.

Finding. One seed, so nothing is judged: no drop beyond the error of a single run at 256 (results/README.md).

    rootscale study experiments/cifar10_vk.py --device cuda --data FOLDER
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import cifar10

from rootscale.lab import Arm, Judge, Study, Variant
from rootscale.verdict import Absolute

GROUP = "paper"
#: The forms of Adam, and the factors by which they change the recipe.
FORMS: dict[str, tuple[str, ...]] = {"v_{k+1} (torch)": (), "v_k (paper)": ("v_k",)}


def study(
    net: str = "vgg16", recipe: str = "house", epochs: float = 60, sizes: tuple[int, ...] = (1024, 4096),
    data: str = "", device: str = "cpu", smoke: bool = False,
) -> Study:  # fmt: skip
    """Return both forms of Adam at all batch sizes; torch's at 256 is the base."""
    scale, arms = cifar10.SMOKE if smoke else 1, []
    for form, factors in FORMS.items():
        task = cifar10.task(net, "adam", 4 if smoke else epochs, kind=recipe, data=data, smoke=smoke, factors=factors)
        task = replace(task, name=task.name.replace("v_k", "previous-moment"))  # as in the stored runs
        for size in (cifar10.BASE, *sizes):
            variant = Variant(Fraction(size, cifar10.BASE))
            arms.append(Arm(f"{form}, B = {size // scale:,}", task, variant, {"form": form}))
    settings = cifar10.settings(task, [size // scale for size in (cifar10.BASE, *sizes)], 30, device=device)
    claim = f"{cifar10.TITLES[net]}, Adam: v_k costs about a point of test accuracy, and the rule holds as well"
    name = "cifar10-vk" + "".join(f"-{one}" for one in (net, recipe) if one not in ("vgg16", "house"))
    judge = Judge(Absolute(0.03), decide_by=("test accuracy",), over="end")
    return Study(name, arms, f"{claim}; {epochs:g} epochs", 1, settings, judge=judge)


STUDY = study
