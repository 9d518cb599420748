"""SVAG on CIFAR-10: the discrete run and simulations of its SDE have the same test functions.

The claim. "SVAG on the Adam trajectory [...] matches the discrete trajectory (ell = 1) on various test functions"
(section 6, figure on SVAG), Tr Sigma, |g|, train and test accuracy; the same for RMSprop and for eps = 1e-30 (appendix
"SVAG Experiments"). Here k steps of the discrete run are k ell^2 steps of SVAG, each of two fresh batches; the authors'
code takes half as many.

Setting. As for the square root rule, B = 256, ell = 1, 2, 4, with VGG-16 (the paper's figure has the ResNet and ell up
to 8). ell = 4 costs 32 times the base run, hence few epochs. ``cifar10-svag-adam`` and ``-rmsprop`` start at the
beginning, as the paper's figures do, but run for 2 epochs with a warm-up of 8 steps instead of 2,000: torch's RMSprop,
unlike the authors' (Adam with beta1 = 0), does not correct for a second moment that starts at zero, and then takes
steps of 11 times its learning rate. The theorem fixes a second moment above zero to start from: those named ``-warm``
are the authors' run of 500 epochs from epoch 30 to 32, after its warm-up, with 8 seeds. ``digits_svag_start.py`` shows
both starts on a small net.

Cost. About 4 minutes on one H200 for each, less in several processes.

    rootscale reproduce cifar10-svag-adam --device cuda --data FOLDER
    rootscale reproduce cifar10-svag-rmsprop-warm --processes 4 --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from rootscale.format import show
from rootscale.lab import Settings, Variant
from rootscale.paper.experiment import Experiment, Line, Lines, Options
from rootscale.paper.finals import Final, accuracies, format_curve
from rootscale.paper.parts import BASE, TITLES, cifar10_task, place_of, settings_for, size_of
from rootscale.paper.shown import CONTRADICTED, REPRODUCED, UNDECIDED, Outcome, Shown

FUNCTIONS = ("train loss", "test accuracy", "gradient norm", "Tr Sigma")


#: Of a warm start: the epoch at which SVAG begins, and how many epochs are compared.
START, WINDOW = 30, 2


def lines(optimizer: str, warm: bool, options: Options) -> tuple[list[Line], Settings]:
    """Return the discrete run, and SVAG for each ell, from the beginning or from a state in mid-run on."""
    task = cifar10_task(optimizer, options)
    svag = [Line(f"SVAG, ℓ = {show(ell)}", task, Variant(ell=ell)) for ell in options.ells if ell != 1]
    start, stop = Fraction(0), Fraction(1)
    if warm:
        start = min(START / Fraction(options.epochs), Fraction(3, 4))
        stop = min(start + WINDOW / Fraction(options.epochs), Fraction(1))
    start_at, stop_at = (place_of(task.plan, share) for share in (start, stop))
    settings = settings_for(options, task.plan, [size_of(options, BASE)], start_at, stop=stop_at)
    return [Line("discrete (ℓ = 1)", task), *svag], settings


def words(finals: Sequence[Final]) -> str:
    """Accuracies, and the largest gap of each curve."""
    parts = [
        f"{final.label}: " + ", ".join(f"{name} {format_curve(final, name)}" for name in FUNCTIONS)
        for final in finals[1:]
    ]
    verdicts = [f"{final.label} {final.verdict}" for final in finals[1:] if final.verdict]
    if verdicts:
        parts.append(f"verdict of the check: {', '.join(verdicts)}")
    text = f"test accuracy {accuracies(finals)}"
    return (
        f"{text}; largest gap to the discrete run, over the range of its curve: {'; '.join(parts)}" if parts else text
    )


def judge(finals: Sequence[Final]) -> Outcome:
    """Return what the check's verdicts say of the claim."""
    verdicts = {final.verdict for final in finals[1:]}
    return CONTRADICTED if "different" in verdicts else REPRODUCED if verdicts == {"same"} else UNDECIDED


def headline(name: str, function: str, finals: Sequence[Final]) -> str:
    """Return how far SVAG with the largest ell departs, and the verdict."""
    last = finals[-1]
    verdict = f"{last.verdict} with {last.seeds} seeds" if last.verdict else "one seed"
    label, title = last.label.replace("SVAG, ", "SVAG with "), function.replace("test", "validation")
    return f"{name}, {label}: largest gap of the {title} {format_curve(last, function)} of its range, {verdict}"


def _experiment(optimizer: str, defaults: Options, warm: bool = False) -> Experiment:
    make: Lines = partial(lines, optimizer, warm)
    return Experiment(
        name=f"cifar10-svag-{optimizer}" + ("-warm" if warm else ""),
        title=f"SVAG{' from a warm start' if warm else ''}: {TITLES[optimizer]}",
        claim="SVAG matches the discrete trajectory on Tr Sigma, |g|, train and test accuracy",
        source="Section 6, figure on SVAG; appendix, SVAG Experiments",
        minutes=4,
        defaults=defaults,
        lines=make,
        words=words,
        models=("resnet56",),
        smoke={"epochs": 4 if warm else 1, "ells": (1.0, 2.0)},
        shown=Shown(
            partial(headline, TITLES[optimizer], "train loss"),
            "train loss",
            judge=judge,
            differs="VGG-16 (the paper: ResNet, ℓ up to 8); 2 epochs, from epoch 30 of 500 on or the last of fewer"
            if warm
            else "VGG-16, epochs 0 to 2",
            paper_setting=False,
            stands_for="" if warm else f"cifar10-svag-{optimizer}-warm",
        ),
    )


COLD = Options(epochs=2, batch_sizes=(256,), seeds=4, ells=(1.0, 2.0, 4.0), points=40)
WARM = replace(COLD, epochs=500, seeds=8, recipe="authors")
EXPERIMENTS = [
    _experiment("adam", COLD),
    _experiment("rmsprop", COLD),
    _experiment("adam", WARM, warm=True),
    _experiment("rmsprop", WARM, warm=True),
]
