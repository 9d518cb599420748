"""Does the noise dominate the gradient, and does the rule keep the accuracy? Four panels of the paper, in small.

Claim. The paper (appendix "Noise Dominates the Gradient") measures that "for small batches, the noise in the gradient
dominates the signal", and "for larger batches [...] towards the end of training", with Adam and RMSprop, eps of 1e-8
and of 1e-30; and that accuracies differ by at most 3 points up to 64 times the batch. Fixed before the runs were made,
for each panel: (1) at B = 16 and 64 the noise scale exceeds the batch size at every point after the warm-up; (2) at B =
1,024 it does not at the first quarter of the run; (3) it does there over the last quarter; (4) the accuracy at the end
is within 3 points of that at B = 16 up to B = 256, and at B = 1,024 with Adam and not with RMSprop.

Protocol. A conv net with BatchNorm on 25,000 images of CIFAR-10 in 8 x 8 pixels, five epochs from scratch, the paper's
values at B = 16: eta 1e-3, betas .999, L2 of 1e-4, exponential warm-up over 2 % of the run, division by 10 after 60 %
(Adam) or 80 and 90 % (RMSprop, torch's form); the square root rule in the paper's form. The noise scale Tr Sigma /
|grad|^2 is that of 2,048 training samples. Seeds 0 to 7.

Cost. About ten minutes on a core of a CPU for each panel.

    rootscale study experiments/noise_dominates.py --optimizer rmsprop --eps 1e-30
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

from small_nets import NETS, base_and_null, paper_schedule

from rootscale import Adam, RMSprop
from rootscale.hparams import Optimizer
from rootscale.lab import Arm, Study, Variant
from rootscale.verdict import Absolute, Judge

#: The shares of the run after which the learning rate is divided by 10, as in the paper's appendix.
DECAYS = {"adam": (Fraction(3, 5),), "rmsprop": (Fraction(4, 5), Fraction(9, 10))}
EPS = (1e-8, 1e-30)
KEEPS = ("train loss", "test loss", "test accuracy", "noise scale", "gradient norm", "Tr Sigma")


def values(optimizer: str, eps: float) -> Optimizer:
    """Return the paper's values for CIFAR-10."""
    if optimizer == "adam":
        return Adam(1e-3, 0.999, 0.999, eps=eps, weight_decay=1e-4)
    return RMSprop(1e-3, 0.999, eps=eps, weight_decay=1e-4)


def study(optimizer: str, eps: float) -> Study:
    """Return one panel: the base, its null, and 4, 16 and 64 times the batch."""
    net = NETS["pictures"]
    schedule = partial(paper_schedule, decays=DECAYS[optimizer])
    task = net.task(f"pictures-{optimizer}-{eps:g}", optimizer=values(optimizer, eps), schedule=schedule)
    variants = {size: Variant(Fraction(size, net.sizes[0]), "sqrt with paper") for size in net.sizes[1:]}
    arms = [*base_and_null(task), *(Arm(f"B = {size}", task, variant) for size, variant in variants.items())]
    settings = net.settings(task, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=True, reestimate=False))
    claim = f"{net.title}, {optimizer}, eps {eps:g}, from scratch: does the noise dominate, and does the rule hold"
    judge = Judge(tolerance=Absolute(0.03), over="end", decide_by=("test accuracy",))
    return Study(f"noise-{optimizer}-{eps:g}", arms, claim, net.seeds, settings, judge=judge, keeps=KEEPS)


def studies(optimizer: str = "", eps: float = 0.0) -> list[Study]:
    """Return one panel, or all of them."""
    return [study(one, two) for one in ([optimizer] if optimizer else DECAYS) for two in ([eps] if eps else EPS)]


STUDY = studies
