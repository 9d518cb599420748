"""SVAG on CIFAR-10: the discrete run and simulations of its SDE have the same test functions.

The claim. "SVAG on the Adam trajectory [...] matches the discrete trajectory (ell = 1) on various test functions"
(section 6, figure on SVAG), Tr Sigma, |g|, train and test accuracy; the same for RMSprop and for eps = 1e-30 (appendix
"SVAG Experiments"). Here k steps of the discrete run are k ell^2 steps of SVAG, each of two fresh batches; the authors'
code takes half as many.

Setting. As for the square root rule, B = 256, ell = 1, 2, 4. ell = 4 costs 32 times the base run, hence few epochs and
VGG-16 (the paper's figure has the ResNet and ell up to 8). 8 seeds, so that the bands are narrow enough for a verdict.

Cost. About 6 minutes on one H200 for each optimizer, less in several processes.

    rootscale reproduce cifar10-svag-adam --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rootscale.lab import Settings, Variant
from rootscale.reproduce import BASE, Experiment, Final, Line, Options, cifar10_task, percent, settings_for, size_of
from rootscale.units import show

FUNCTIONS = ("train loss", "test accuracy", "gradient norm", "Tr Sigma")


def lines(optimizer: str, options: Options) -> tuple[list[Line], Settings]:
    """The discrete run, and SVAG for each ell."""
    task = cifar10_task(optimizer, options)
    svag = [Line(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in options.ells if ell != 1]
    return [Line("discrete (ℓ = 1)", task), *svag], settings_for(options, task.plan, [size_of(options, BASE)])


def words(finals: Sequence[Final]) -> str:
    """The largest gap of each curve."""
    parts = [
        f"{final.label}: " + ", ".join(f"{name} {percent(final.curves.get(name))}" for name in FUNCTIONS)
        for final in finals[1:]
    ]
    return "largest gap to the discrete run, over the range of its curve: " + "; ".join(parts)


def _experiment(optimizer: str, title: str) -> Experiment:
    make: Callable[[Options], tuple[list[Line], Settings]] = partial(lines, optimizer)
    return Experiment(
        name=f"cifar10-svag-{optimizer}",
        title=f"SVAG: {title}",
        claim="SVAG matches the discrete trajectory on Tr Sigma, |g|, train and test accuracy",
        source="Section 6, figure on SVAG; appendix, SVAG Experiments",
        minutes=6,
        defaults=Options(epochs=2, batch_sizes=(256,), seeds=8, ells=(1.0, 2.0, 4.0), points=40),
        lines=make,
        words=words,
        models=("resnet56",),
        smoke={"epochs": 1, "ells": (1.0, 2.0)},
    )


EXPERIMENTS = [_experiment("adam", "Adam"), _experiment("rmsprop", "RMSprop")]
