"""The square root scaling rule on CIFAR-10: batch sizes 256 to 16,384, from scratch.

The claim. "The performance gap between B = 256 and B = 8192 is at most 3 % in all cases" (section 5, caption of the
figure on CIFAR-10: VGG-16 and ResNet, RMSprop and Adam, 3 seeds); "in all settings the test accuracies vary by at most
3 % across batch sizes" (appendix, whose batch sizes are 1,024, 4,096 and 16,384, over 500 epochs); and the test
functions Tr Sigma and |g| stay close over continuous time; the same for eps = 1e-30 as for 1e-8. Appendix "Noise
Dominates the Gradient": for small batches the noise dominates throughout, for larger ones towards the end of training;
the noise scale Tr Sigma / |grad f|^2 against the batch size says where, and is measured in every run, without the bias
of |g|^2.

Setting. The recipe of the authors' code (`rootscale.paper.recipes`): 500 epochs, batches drawn with replacement, lr
1e-3, beta(s) .999, L2 1e-4, exponential warm-up over 10 epochs, lr divided by 10 at epoch 300 (Adam) or at 300 and 400
(RMSprop, which is Adam with beta1 = 0); VGG's last layer fixed at small random weights, ResNet's trained. The paper's
text has RMSprop's decays at 400 and 450 and fixes the last layer of both: ``--recipe house`` does that, with torch's
RMSprop, and is what this project ran first. BatchNorm's momentum is converted too; ``--paper-batchnorm`` leaves it at
.1, as the paper does; ``--recipe authors+groups`` takes BatchNorm's statistics over 256 samples at every batch size.

Cost. On one H200, four processes that share it (MPS on) train VGG-16 at 206,000 images a second in all: 15 runs of 500
epochs in 30 minutes, for each optimizer. ResNet-56 takes three times as long.

    rootscale reproduce cifar10-vgg16-adam --processes 4 --device cuda --data FOLDER
    rootscale reproduce cifar10-resnet56-rmsprop --batch-sizes 256 8192 16384 --seeds 1 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from rootscale.lab import Settings, Variant
from rootscale.paper.experiment import Experiment, Line, Lines, Options
from rootscale.paper.finals import ACCURACY, Final, accuracies, format_gap
from rootscale.paper.parts import BASE, TITLES, cifar10_task, kappa, kept, label_of, settings_for, size_of
from rootscale.paper.shown import Outcome, Shown, judge_ends, tell_ends
from rootscale.rules import rule_text

#: The figure's caption speaks of batch sizes up to this one, the appendix of all, with 16,384 as the largest.
CLAIMED = 8192
#: How far test accuracies may lie apart.
LIMIT = 0.03


def lines(optimizer: str, options: Options) -> tuple[list[Line], Settings]:
    """The base, and each batch size under the rule."""
    task = cifar10_task(optimizer, options)
    others = [size for size in options.batch_sizes if size != BASE]
    rule = rule_text(left_out=kept(options))
    made = [Line(label_of(options, size), task, Variant(kappa(size), rule)) for size in others]
    sizes = [size_of(options, size) for size in (BASE, *others)]
    return [Line(label_of(options, BASE), task), *made], settings_for(options, task.plan, sizes)


def words(finals: Sequence[Final]) -> str:
    """Accuracies, the largest difference to the base up to the batch size of the caption, and those beyond."""
    text = "test accuracy " + accuracies(finals)
    claimed = [final for final in finals[1:] if final.batch_size <= CLAIMED]
    known = [(final.accuracy.gap, final) for final in claimed if final.accuracy.gap is not None]
    if not known:
        return text
    _, worst = max(known, key=lambda pair: abs(pair[0]))
    verdict = "within" if all(abs(gap) <= LIMIT for gap, _ in known) and len(known) == len(claimed) else "beyond"
    text += f"; gap at {worst.label}: {format_gap(ACCURACY, worst.accuracy)}, {verdict} the paper's 3 points"
    beyond = [
        f"{final.label} {format_gap(ACCURACY, final.accuracy)}" for final in finals[1:] if final.batch_size > CLAIMED
    ]
    return text + (f"; its appendix claims them beyond {CLAIMED:,} too: {', '.join(beyond)}" if beyond else "")


def judge(finals: Sequence[Final]) -> Outcome:
    """Return whether all batch sizes are within the 3 points of the paper's appendix."""
    return judge_ends([final.accuracy for final in finals[1:]], LIMIT)


def headline(title: str, finals: Sequence[Final]) -> str:
    """Return what the two largest batches come to."""
    base, *others = finals
    ends = {f"{final.batch_size // base.batch_size} times": final.accuracy for final in others[-2:]}
    return f"{title}: {tell_ends(ends).replace(' times', ' times the batch', 1)}"


#: What was run first, and is stored: another recipe, fewer batch sizes, one seed.
FIRST = MappingProxyType({"recipe": "house", "batch_sizes": (256, 1024, 4096, 16384), "seeds": 1})


def _experiment(model: str, optimizer: str, minutes: float, *also: Mapping[str, Any]) -> Experiment:
    make: Lines = partial(lines, optimizer)
    sizes = (256, 1024, 4096, 8192, 16384)
    return Experiment(
        name=f"cifar10-{model}-{optimizer}",
        title=f"The square root rule: {TITLES[model]}, {TITLES[optimizer]}",
        claim="Test accuracies differ by at most 3 points up to B = 8,192 (the appendix: up to 16,384); the test "
        "functions stay close",
        source="Section 5, figure on CIFAR-10; appendix, Square Root Scaling Experiments",
        minutes=minutes,
        defaults=Options(epochs=500, batch_sizes=sizes, seeds=3, model=model, points=50, recipe="authors"),
        lines=make,
        words=words,
        also=({"eps": 1e-30}, *also),
        smoke={"recipe": "house"},  # which learns something in 4 epochs
        shown=Shown(partial(headline, f"{TITLES[model]}, {TITLES[optimizer]}"), limit=LIMIT, judge=judge),
    )


EXPERIMENTS = [
    _experiment("vgg16", "adam", 30, FIRST, {**FIRST, "eps": 1e-30, "epochs": 100}),
    _experiment("vgg16", "rmsprop", 30, FIRST, {**FIRST, "eps": 1e-30, "epochs": 100}),
    _experiment("resnet56", "adam", 90, {**FIRST, "epochs": 100}),
    _experiment("resnet56", "rmsprop", 90, {**FIRST, "epochs": 100}),
]
