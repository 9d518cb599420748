"""Which part of the recipe decides how much RMSprop loses at the largest batch on CIFAR-10?

Claim. Test accuracies vary by at most 3 points across batch sizes, up to 16,384 (the paper's appendix). With the first
recipe VGG-16 lost 5 with RMSprop. Fixed before the runs: one of decays, head and bias correction, or all three, brings
the loss to 3 points or less; a factor counts where it changes the gap by more than 2 points; contradicted if "all
three", groups and fp32 all leave more than 3.7.

Protocol. VGG-16 at B = 256 and 16,384 under the rule, 500 epochs, one seed. The first recipe differs from the authors'
code in when the learning rate falls, how the frozen last layer is drawn, and whether the second moment is corrected for
starting at zero; the code may also take BatchNorm's statistics over parts of a large batch, and runs in float32. Each
factor is changed alone, and the first three together. A factor that changes the run at B = 256 has a base of its own.

Cost. 13 runs of 25 million images: about 28 minutes on one H200 with four processes.

Finding. Contradicted, with one seed: no factor brings the loss to 3 points, and decays and bias correction make it
worse (results/README.md). Deviations: the runs of ``house`` are those of cifar10_scaling.py; fp32 at 256 was not run,
as it cannot change that fp32 is the worst.

    rootscale study experiments/cifar10_factors.py --workers 4 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import cifar10
from results import Claim, ends, stored

from rootscale.lab import Arm, Study, Variant

GROUP = "paper"
#: By the name of an arm: the factors of `recipes.FACTORS` that change the recipe ``house``.
CHANGED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "house": (),
        "decays": ("decays",),
        "head": ("head",),
        "bias correction": ("bias-correction",),
        "all three": ("decays", "head", "bias-correction"),
        "BatchNorm groups": ("groups",),
        "fp32": ("fp32",),
    }
)
LARGEST = 16_384
CLAIM = "VGG-16, RMSprop: a factor of the recipe brings the loss at B = 16,384 to the paper's 3 points"


def study(epochs: float = 500, data: str = "", device: str = "cpu", smoke: bool = False) -> Study:
    """Return every recipe at both batch sizes; the batch of 256 with groups of 256 is the first run itself."""
    scale, arms = cifar10.SMOKE if smoke else 1, []
    for name, factors in CHANGED.items():
        task = cifar10.task(
            "vgg16", "rmsprop", 16 if smoke else epochs, kind="house", data=data, smoke=smoke, factors=factors
        )
        settings = cifar10.settings(
            task, [cifar10.BASE // scale, LARGEST // scale], 50, device=device, bfloat16=name != "fp32"
        )
        for size in (cifar10.BASE, LARGEST):
            if size != cifar10.BASE or name != "BatchNorm groups":
                variant = Variant(Fraction(size, cifar10.BASE))
                arms.append(Arm(f"{name}, B = {size // scale:,}", task, variant, {"recipe": name}, settings))
    return Study("cifar10-rmsprop-factors", arms, CLAIM, 1, arms[0].settings or settings)


def claims(results: Path) -> list[Claim]:
    """Return the row: each recipe's accuracy at the largest batch less that of its own base."""
    table, parts = stored(results, "cifar10-rmsprop-factors"), []
    every = {} if table is None else ends(table, "test accuracy")
    for name in CHANGED:
        base = every.get(f"{'house' if name == 'BatchNorm groups' else name}, B = 256")
        end = every.get(f"{name}, B = 16,384")
        if base is not None and end is not None:
            parts.append(f"{name} {100 * (end - base):+.1f}")
    outcome = f"not judged (one seed): points of test accuracy less its own base's {', '.join(parts)}"
    file = "cifar10-rmsprop-factors.npz" if parts else ""
    return [Claim(CLAIM, outcome if parts else "not run", "1" if parts else "", file, __file__)]


STUDY = study
