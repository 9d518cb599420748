"""SVAG on CIFAR-10: the discrete run and simulations of its SDE have the same test functions.

Claim. "SVAG on the Adam trajectory [...] matches the discrete trajectory (ell = 1) on various test functions" (section
6, figure on SVAG): Tr Sigma, |g|, train and test accuracy; the same for RMSprop (appendix "SVAG Experiments"). Fixed
before the runs from a warm start: ell = 2 and 4 are the same as the discrete run, 8 seeds; contradicted if the verdict
on ell = 4 is *different*.

Protocol. VGG-16 (the paper: ResNet, ell up to 8) at B = 256. k steps of the discrete run are k ell^2 steps of SVAG,
each of two fresh batches; the authors' code takes half as many. From the beginning, 2 epochs with a warm-up of 8 steps
and the recipe ``house``, 4 seeds: torch's RMSprop does not correct for a second moment that starts at zero, and then
takes steps of 11 times its learning rate. The theorem fixes a second moment above zero to start from: ``--warm`` is the
authors' run of 500 epochs from epoch 30 to 32, 8 seeds, paired; what is stored of it is a run of 8 epochs of ``house``
from epoch 6 on, 4 seeds. 40 points; the verdict rests on the losses. digits_svag_start.py has both starts on
a small net.

Cost. About 4 minutes on one H200 for each.

Finding. Undecided everywhere (n = 4): from the beginning the seeds differ by more than the tolerance.

    rootscale study experiments/cifar10_svag.py --device cuda --data FOLDER
    rootscale study experiments/cifar10_svag.py --warm --workers 4 --device cuda --data FOLDER
"""

from __future__ import annotations

from fractions import Fraction

import cifar10

from rootscale.format import show
from rootscale.lab import Arm, Study, Variant

GROUP = "paper"
#: Of a warm start: the epoch at which SVAG begins, and how many epochs are compared.
START, WINDOW = 30, 2


def study(
    optimizer: str, warm: bool, recipe: str, epochs: float, seeds: int, ells: tuple[float, ...] = (2.0, 4.0),
    data: str = "", device: str = "cpu", smoke: bool = False,
) -> Study:  # fmt: skip
    """Return the discrete run, and SVAG for each ell, from the beginning or from a state in mid-run on."""
    task = cifar10.task("vgg16", optimizer, epochs, kind=recipe, data=data, smoke=smoke)
    start, stop = Fraction(0), Fraction(1)
    if warm:
        start = min(START / Fraction(epochs), Fraction(3, 4))
        stop = min(start + WINDOW / Fraction(epochs), Fraction(1))
    size, steps = int(task.plan.batch_size.total), task.plan.total_steps
    assert steps is not None
    first, last = (int(steps * share) * size for share in (start, stop))
    settings = cifar10.settings(task, [size], 40, first, last, device)
    arms = [Arm("discrete (ℓ = 1)", task), *(Arm(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in ells)]
    name = f"cifar10-svag-{optimizer}{'-warm' if warm else ''}{'' if recipe == 'house' else f'-{recipe}'}"
    where = f"epoch {show(epochs * start)} of {epochs:g}" if warm else "the beginning"
    claim = f"VGG-16, {cifar10.TITLES[optimizer]}: SVAG has the test functions of the discrete run, from {where} on"
    return Study(name, arms, f"{claim}; recipe {recipe}", seeds, settings)


def studies(
    optimizer: str = "", warm: bool = False, data: str = "", device: str = "cpu", smoke: bool = False
) -> list[Study]:
    """Return what is stored, and the claim's own run from a warm start."""
    more = {"data": data, "device": device, "smoke": smoke}
    found = []
    for one in [optimizer] if optimizer else ["adam", "rmsprop"]:
        if not warm:
            found.append(study(one, False, "house", 2, 4, **more))  # type: ignore[arg-type]
        if one == "rmsprop" and not warm:
            found.append(study(one, True, "house", 8, 4, **more))  # type: ignore[arg-type]
        found.append(study(one, True, "authors", 8 if smoke else 500, 8, **more))  # type: ignore[arg-type]
    return found


STUDY = studies
