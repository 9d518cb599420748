"""A change of batch size in the middle of a run on CIFAR-10: everything converted, and the half-measures in use.

Claim. Not in the paper. From a state in mid-training, VGG-16 with Adam goes on at 16 times the batch size as if nothing
had changed if hyperparameters, second moment, step counter and BatchNorm's momentum are all converted; a ramp 256 ->
1,024 -> 4,096 -> 16,384 does so too. Each half-measure departs: the hyperparameters but not the state, the learning
rate alone (what most tools do), a state of zeros (what elastic training tools do), BatchNorm left alone.

Protocol. The paper's Adam (lr 1e-3, betas .999, eps 1e-8, L2 1e-4; warm-up 2 %, divided by 10 at 60 %) over 60 epochs;
the switch is at 40 %, the ramp's further ones at 55 % and 70 %. 3 seeds; one warm start for each seed.

Cost. About 8 minutes on one H200.

Finding. Converted the run ends within a point, with the learning rate alone it loses seven (n = 3): results/README.md.

    rootscale study experiments/cifar10_switch.py --device cuda --data FOLDER
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from pathlib import Path

import cifar10
from drawing import Figure, curves
from results import ends, stored

from rootscale.lab import Arm, Study, Variant

#: Shares of the run at which the batch size changes.
SWITCHES = (Fraction(40, 100), Fraction(55, 100), Fraction(70, 100))
SIZES = (1024, 4096, 16384)


def study(data: str = "", device: str = "cpu", smoke: bool = False) -> Study:
    """Return the batch kept, converted to 16 times, the half-measures, and a ramp to 64 times."""
    scale = cifar10.SMOKE if smoke else 1
    task = cifar10.task("vgg16", "adam", 60, kind="house", data=data, smoke=smoke)
    base, *sizes = (size // scale for size in (cifar10.BASE, *SIZES))
    samples, steps = task.plan.samples, task.plan.total_steps
    assert samples is not None and steps is not None  # noqa: PT018
    unit, start = lcm(base, *sizes), int(steps * SWITCHES[0]) * base  # whole steps at all batch sizes
    places = [start + max(i, round((samples * share - start) / unit)) * unit for i, share in enumerate(SWITCHES[1:], 1)]
    first, to, last = (Fraction(size, base) for size in sizes)
    ramp = Variant(first, ramp=tuple(zip(places, (to, last), strict=True)))
    arrow = f"{base:,} → {sizes[1]:,}"
    arms = [
        Arm(f"B = {base:,} kept", task),
        Arm(f"{arrow}, everything converted", task, Variant(to)),
        Arm(f"{arrow}, hyperparameters only", task, Variant(to, "without v, step_counter")),
        Arm(f"{arrow}, learning rate only", task, Variant(to, "sqrt-eta")),
        Arm(f"{arrow}, state zeroed", task, Variant(to, zero_state=True)),
        Arm(f"{arrow}, BatchNorm left alone", task, Variant(to, "without batchnorm")),
        Arm(f"ramp {' → '.join(f'{size:,}' for size in (base, *sizes))}", task, ramp),
    ]
    claim = "VGG-16, Adam, in mid-run: with everything converted the run goes on as if the batch had been kept"
    settings = cifar10.settings(task, [base, *sizes], 30, start, device=device)
    return Study("cifar10-switch", arms, claim, 3, settings)


def figures(results: Path) -> dict[str, Figure]:
    """Return the figure of the README: the kept batch, converted, and the learning rate alone."""
    table = stored(results, "cifar10-switch")
    if table is None:
        return {}
    labels = ("B = 256 kept", *(f"256 → 4,096, {way}" for way in ("everything converted", "learning rate only")))
    base, *lost = (ends(table, "test accuracy")[label] for label in labels)
    title = (
        "Sixteen times the batch in mid-run: converted, the run loses {:.1f} points; with the learning rate alone "
        "{:.1f} (n = {})"
    ).format(*(100 * (base - end) for end in lost), table.base.trajectory.replicas)
    return {"cifar10-switch": curves(table, "test accuracy", labels, title)}


STUDY = study
