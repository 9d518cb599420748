"""A change of batch size in the middle of a run, with everything converted and with the half-measures in use.

The claim. From a state in mid-training, VGG-16 with Adam goes on at 16 times the batch size as if nothing had changed
(test loss and accuracy after equal numbers of samples), if hyperparameters, second moment, step counter and BatchNorm's
momentum are all converted; a ramp 256 -> 1,024 -> 4,096 -> 16,384 does so too. Each half-measure departs: converting
hyperparameters but not the state, the learning rate alone (what most tools do), starting with a state of zeros (what
elastic training tools do), or leaving BatchNorm alone. The paper trains from scratch at each batch size and has nothing
of the kind; its theorem for Adam does ask for a warm start (t0 > 0).

Setting. CIFAR-10, the paper's Adam (lr 1e-3, betas .999, eps 1e-8, L2 1e-4; warm-up 2 %, divided by 10 at 60 %) over 60
epochs; the switch is at 40 %, the ramp's further ones at 55 % and 70 %. 3 seeds; one warm start for each seed.

Cost. About 8 minutes on one H200.

    rootscale reproduce cifar10-switch --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from rootscale.lab import Settings, Variant
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import Final, format_curve
from rootscale.paper.parts import BASE, cifar10_task, kappa, kept, place_of, settings_for, size_of
from rootscale.paper.shown import Shown, tell_ends
from rootscale.rules import rule_text

#: Shares of the run at which the batch size changes.
SWITCHES = (Fraction(40, 100), Fraction(55, 100), Fraction(70, 100))
CONVERTED, RATE_ONLY = "everything converted", "learning rate only"


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The batch kept, converted to the largest but one of the sizes, the half-measures, and a ramp through all."""
    if len(options.batch_sizes) < 2 or sorted(options.batch_sizes)[0] <= BASE:
        raise ValueError(f"cifar10-switch needs two or more batch sizes above {BASE}, got {list(options.batch_sizes)}")
    ramp = sorted(options.batch_sizes)
    target = ramp[-2] if len(ramp) > 2 else ramp[-1]
    task = cifar10_task("adam", options)
    samples = task.plan.samples
    assert samples is not None
    sizes = [size_of(options, size) for size in (BASE, *ramp)]
    unit = lcm(*sizes)  # all places are whole numbers of steps at all batch sizes, counted from the switch
    start = place_of(task.plan, SWITCHES[0])
    last = [SWITCHES[1] + (SWITCHES[2] - SWITCHES[1]) * i for i in range(len(ramp) - 1)]
    places = [start + max(i + 1, round((samples * share - start) / unit)) * unit for i, share in enumerate(last)]
    stages = tuple(zip(places, (kappa(size) for size in ramp[1:]), strict=True))
    left, to = kept(options), kappa(target)
    own = rule_text(left_out=left)
    arrow = f"{sizes[0]:,} → {size_of(options, target):,}"
    return [
        Line(f"B = {sizes[0]:,} kept", task),
        Line(f"{arrow}, {CONVERTED}", task, Variant(to, own)),
        Line(f"{arrow}, hyperparameters only", task, Variant(to, rule_text(left_out=("v", "step_counter", *left)))),
        Line(f"{arrow}, {RATE_ONLY}", task, Variant(to, rule="sqrt-eta")),
        Line(f"{arrow}, state zeroed", task, Variant(to, own, zero_state=True)),
        Line(f"{arrow}, BatchNorm left alone", task, Variant(to, "without batchnorm")),
        Line(f"ramp {' → '.join(f'{size:,}' for size in sizes)}", task, Variant(kappa(ramp[0]), own, ramp=stages)),
    ], settings_for(options, task.plan, sizes, start)  # fmt: skip


def words(finals: Sequence[Final]) -> str:
    """The largest gap of the test loss to the run that keeps its batch size."""
    parts = [f"{final.label.split(', ', 1)[-1]} {format_curve(final, 'test loss')}" for final in finals[1:]]
    return "largest gap of the test loss to the kept batch, over that curve's range: " + "; ".join(parts)


def headline(finals: Sequence[Final]) -> str:
    """Return what the whole conversion and that of the learning rate alone come to."""
    found = {final.label.partition(", ")[2]: final.accuracy for final in finals[1:]}
    if not {CONVERTED, RATE_ONLY} <= set(found):
        return "A change of batch size in mid-run"
    times = finals[1].batch_size // finals[0].batch_size
    ends = {"with everything converted the run": found[CONVERTED], "with the learning rate alone": found[RATE_ONLY]}
    return f"{times} times the batch in mid-run: {tell_ends(ends)}"


EXPERIMENTS = [
    Experiment(
        name="cifar10-switch",
        title="Switching the batch size in mid-run",
        claim="Not in the paper. The run goes on as if the batch size had been kept if everything is converted, "
        "optimizer state and BatchNorm included, and not otherwise",
        source="extends the square root scaling rule (section 5); its theorem for Adam needs a warm start",
        minutes=8,
        defaults=Options(epochs=60, batch_sizes=(1024, 4096, 16384), seeds=3, points=30),
        lines=lines,
        words=words,
        models=("resnet56",),
        smoke={"epochs": 16, "batch_sizes": (1024, 4096, 8192)},
        shown=Shown(headline, "test loss"),
    )
]
