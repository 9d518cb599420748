"""Default betas: what becomes of them where the batch size grows beyond the paper's form.

The question. Most people train with beta1 = .9 and beta2 = .999 or .95. The paper's ``1 - kappa (1 - beta)`` then ends
at kappa = 10, and is very short long before. Which form keeps the run: the paper's where it is defined, the power form
``beta^kappa``, the paper's form down to floors with the state converted to match, the betas kept with the state
converted, the learning rate alone, or nothing? And where should the floors be?

Setting. Three problems (`PROBLEMS`), each with betas .9, .999 and .9, .95, from a switch in mid-run and from scratch: a
GPT of 6 layers and width 512 on the bytes of enwik8, an MLP and a conv net with BatchNorm on scikit-learn's digits. A
run of the same batch size with other samples is the null: a form that keeps the run has a gap of that size. One
problem has an average of the weights (EMA), whose loss and accuracy are then what is measured.

Cost. 7 minutes on one H200 for the GPT with 8 processes; the others take about an hour on a core of a CPU.

    rootscale reproduce floors-gpt-999 floors-gpt-95 --together 4 --device cuda --data FOLDER
    rootscale reproduce floors-digits-999 floors-convnet-999 --together 16
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

from rootscale import hparams
from rootscale.format import show
from rootscale.lab import Settings, Task
from rootscale.lab.task import Tensors
from rootscale.paper import tasks
from rootscale.paper.experiment import Experiment, Line, Lines, Options
from rootscale.paper.experiments.switch_lines import KEEPS, Comparison, constant, digits_task, gpt_task, words
from rootscale.paper.models import convnet

__all__ = ["BETAS", "EXPERIMENTS", "FORMS", "PROBLEMS"]

BETAS: Mapping[str, tuple[float, float]] = MappingProxyType({"999": (0.9, 0.999), "95": (0.9, 0.95)})
#: What is done with the betas and the state, as rules; ``{}`` are the betas themselves, which are then kept.
FORMS: Mapping[str, str] = MappingProxyType(
    {
        "floors .8, .9": "sqrt with floor:0.8,0.9",
        "paper": "sqrt with paper",
        "power": "sqrt with power",
        "floors .5, .9": "sqrt with floor:0.5,0.9",
        "floors .7, .9": "sqrt with floor:0.7,0.9",
        "floors .9, .9": "sqrt with floor:0.9,0.9",
        "floors .8, .8": "sqrt with floor:0.8,0.8",
        "floors .8, .95": "sqrt with floor:0.8,0.95",
        "floor by kappa, .9": "sqrt with floor:kappa,0.9",
        "betas kept": "sqrt with floor:{},{}",
        "learning rate only": "sqrt-eta",
        "nothing": "none",
    }
)
#: The forms that are compared at every kappa, where the others would be dear.
FEW = ("floors .8, .9", "paper", "power", "betas kept", "learning rate only", "nothing")


@dataclass(frozen=True)
class Problem:
    """What is learned, and in which runs.

    Args:
        title: in words.
        task: makes it, from the betas and the options.
        measure: what is shown of the end of a run, a key of `rootscale.paper.finals.MEASURES`.
        judged: the test function whose gap is told.
        options: of its experiments; the first batch size is the base's.
        forms: that are compared in a switched run, by kappa; all of them at a kappa that is not named.
        forms_scratch: likewise, from scratch.
        before: the share of a switched run before the switch.
        eval_samples: of each part of the data that are measured.
        minutes: of one experiment.
    """

    title: str
    task: Callable[[tuple[float, float], Options], Task]
    measure: str
    judged: str
    options: Options
    forms: Mapping[int, Sequence[str]] = field(default_factory=dict)
    forms_scratch: Mapping[int, Sequence[str]] = field(default_factory=dict)
    before: Fraction = Fraction(4, 7)
    eval_samples: int = 2048
    minutes: float = 3

    def experiment(
        self, group: str, cell: str, lines: Lines, batch_sizes: Sequence[int] = (), **more: Any
    ) -> Experiment:
        """Return an experiment with this problem, in the folder of a group: its options, and what is shown of it.

        Args:
            group: of experiments that make one table.
            cell: its name in the group.
            lines: of it.
            batch_sizes: where they are not the problem's own.
            more: title, claim, source, minutes and smoke, as of `Experiment`.
        """
        return Experiment(
            name=f"{group}-{cell}",
            place=f"{group}/{cell}",
            defaults=replace(self.options, batch_sizes=tuple(batch_sizes) or self.options.batch_sizes),
            lines=lines,
            words=partial(words, self.judged),
            measure=self.measure,
            keeps=KEEPS,
            told=self.judged,
            **more,
        )


# -- the problems ------------------------------------------------------------------------------------------------------


def _gpt(betas: tuple[float, float], options: Options) -> Task:
    optimizer = hparams.AdamW(3e-3 if options.smoke else 3e-4, *betas, eps=options.eps, weight_decay=0.01)
    return gpt_task(f"floors-gpt-{show(betas[1])}", options, lambda n: constant(optimizer, options, n, warmup=256))


def _gpt_tiny(betas: tuple[float, float], options: Options) -> Task:
    optimizer = hparams.AdamW(3e-3 if options.smoke else 2e-3, *betas, eps=options.eps, weight_decay=0.01)
    plan = partial(constant, optimizer, options, warmup=256)
    return gpt_task(f"floors-gpt-tiny-{show(betas[1])}", options, plan, length=32)


def _digits(betas: tuple[float, float], options: Options) -> Task:
    optimizer = hparams.Adam(5e-4, *betas, eps=options.eps)
    return digits_task(f"floors-digits-{show(betas[1])}", options, lambda n: constant(optimizer, options, n))


def _convnet(betas: tuple[float, float], options: Options, ema: float | None = None) -> Task:
    """Return a conv net with BatchNorm on digits."""
    made = tasks.digits()
    train, test = (Tensors(part.inputs.view(-1, 1, 8, 8), part.targets) for part in (made.train, made.test))
    plan = constant(hparams.Adam(1e-3, *betas, eps=options.eps), options, len(train))
    return Task(
        f"floors-convnet-{show(betas[1])}{'-ema' if ema else ''}",
        replace(plan, batchnorm_momentum=0.1, ema=ema),
        partial(convnet, 10, 1, 4 if options.smoke else 8, 0.1),
        tasks.cross_entropy,
        train,
        test,
        {"accuracy": tasks.accuracy},
    )


_NINE = ("floors .8, .9", "floors .9, .9", "floor by kappa, .9")
_TINY = ("floors .9, .9", "paper", "learning rate only", "nothing")
_SMALL = {4: FEW, 8: ("floors .8, .9", "paper")}
PROBLEMS: Mapping[str, Problem] = MappingProxyType(
    {
        "gpt": Problem(
            "GPT on enwik8",
            _gpt,
            "test loss",
            "test loss",
            Options(epochs=1 / 12, batch_sizes=(8, 32, 64, 128, 512), seeds=4, model="gpt-6", points=16),
            {**_SMALL, 64: (*FEW, "floors .7, .9", "floors .9, .9")},
            {**_SMALL, 16: FEW, 64: ()},
            eval_samples=256,
            minutes=4,
        ),
        "gpt-kappa": Problem(
            "GPT on enwik8, more floors",
            _gpt,
            "test loss",
            "test loss",
            Options(epochs=1 / 12, batch_sizes=(8, 32, 64, 128, 512), seeds=4, model="gpt-6", points=16),
            {4: _NINE[1:], 8: _NINE, 16: _NINE, 64: _NINE},
            eval_samples=256,
            minutes=3,
        ),
        "gpt-tiny": Problem(
            "tiny GPT on enwik8",
            _gpt_tiny,
            "test loss",
            "test loss",
            Options(epochs=0.0228, batch_sizes=(8, 32, 128), seeds=8, model="gpt-tiny", points=16),
            {4: _TINY, 16: ("floors .8, .9", *_TINY)},
            before=Fraction(2, 5),
            eval_samples=512,
            minutes=3,
        ),
        "digits": Problem(
            "MLP on digits",
            _digits,
            "test accuracy",
            "train loss",
            Options(epochs=36, batch_sizes=(4, 16, 32, 64, 256), seeds=16, model="mlp", points=24),
            before=Fraction(1, 4),
            minutes=8,
        ),
        "convnet": Problem(
            "conv net on digits",
            _convnet,
            "test accuracy",
            "train loss",
            Options(epochs=12, batch_sizes=(16, 64, 256), seeds=8, model="convnet", points=16),
            before=Fraction(3, 10),
            minutes=20,
        ),
        "convnet-ema": Problem(
            "conv net on digits, weights averaged",
            partial(_convnet, ema=0.98),
            "test accuracy",
            "test loss",
            Options(epochs=12, batch_sizes=(16, 64, 256), seeds=8, model="convnet", points=16),
            dict.fromkeys((4, 16), (*FEW, *_NINE[1:])),
            before=Fraction(3, 10),
            minutes=15,
        ),
    }
)


# -- lines -------------------------------------------------------------------------------------------------------------


def lines(problem: str, betas: str, scratch: bool, options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null, and every form at every batch size."""
    chosen, values = PROBLEMS[problem], BETAS[betas]
    some = chosen.forms_scratch if scratch else chosen.forms

    def rules(kappa: int) -> dict[str, str]:
        asked = some.get(kappa, tuple(FORMS))
        return {form: text.format(*map(show, values)) for form, text in FORMS.items() if form in asked}

    before = Fraction(0) if scratch else chosen.before
    made = Comparison(rules, before, chosen.eval_samples, noise=scratch)
    return made.lines(chosen.task(values, options), options)


def _experiment(problem: str, betas: str, scratch: bool) -> Experiment:
    chosen, (_, beta2) = PROBLEMS[problem], BETAS[betas]
    cell = f"{problem}-{betas}{'-scratch' if scratch else ''}"
    start = "from scratch" if scratch else "a switch in mid-run"
    return chosen.experiment(
        "floors",
        cell,
        partial(lines, problem, betas, scratch),
        title=f"Default betas: {chosen.title}, .9 and {show(beta2).lstrip('0')}, {start}",
        claim="Not in the paper. Which form of the betas keeps the run at the level of other samples: floors (.9 is "
        "the default, .8 was the first hypothesis), the paper's, the power form, or none",
        source="section 5, where the paper's form ends at kappa = 1 / (1 - beta)",
        minutes=chosen.minutes,
        smoke={"epochs": 2 if problem.startswith("gpt") else 1, "batch_sizes": (1024, 4096)},
    )


EXPERIMENTS = [
    _experiment(problem, betas, scratch)
    for scratch in (False, True)
    for betas in BETAS
    for problem in PROBLEMS
    if not (
        (scratch and problem in ("convnet-ema", "gpt-kappa", "gpt-tiny"))
        or (problem == "convnet-ema" and betas != "999")
    )
]
