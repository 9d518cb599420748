"""Muon and Lion: which rule keeps a run whose optimizer normalises momentum itself.

The question. Adam divides momentum by ``sqrt(v)``, which carries the unit of the noise; Muon and Lion normalise
momentum. Counting powers of the batch size leaves a free choice ``a``: ``1 - mu`` by ``kappa^a``, the learning rate by
``kappa^((1+a)/2)``, the buffer by ``kappa^((a-1)/2)`` (`rootscale.rules`, ``normalized-*``). Which ``a`` keeps the run,
and how far off are Adam's rule, the learning rate alone and nothing?

Setting. A GPT of 6 layers and width 512 on the bytes of enwik8, B = 8, a switch in mid-run to 4 and 16 times that.
Muon is torch's, with Nesterov momentum and without, for the matrices of the layers; AdamW trains the rest, by its own
rule with floors. Lion trains everything. The same on a small net, an MLP on digits with B = 4 (``muon-digits``, ...).
Learning rates are tuned at the base batch first (``muon-lr``, ``lion-lr``, ...). A run of the same batch size with
other samples is the null, along which the noise is measured.

One step further, ``muon-ratio``: with the noise in momentum known, the learning rate takes kappa times the factor of
momentum's norm (``normalized:R``, R its noise over its gradient, both squared). Rates for several R are compared, and
the noise is measured along the null.

Cost. 7 minutes on one H200 with 8 processes for the GPT; half an hour on two cores of a CPU for digits.

    rootscale reproduce muon-lr lion-lr --device cuda --data FOLDER
    rootscale reproduce muon-switch muon-plain-switch lion-switch muon-ratio --together 4 --device cuda --data FOLDER
    rootscale reproduce muon-digits-switch muon-plain-digits-switch lion-digits-switch --processes 2 --device cpu
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rootscale import hparams, records
from rootscale.format import plus_minus, show
from rootscale.lab import Settings, Task
from rootscale.lab.several import Several
from rootscale.optimizers import FAMILIES
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.experiments.switch_lines import KEEPS, Comparison, constant, digits_task, gpt_task, rule_of, words
from rootscale.paper.finals import End, Final, format_curve, format_end
from rootscale.paper.shown import Point, Shown, Sweep
from rootscale.plan import Plan
from rootscale.training.adapters import make_optimizer

__all__ = ["EXPERIMENTS", "KINDS", "RULES", "Lion"]

#: What is done at the switch with the optimizer that normalises momentum.
RULES: Mapping[str, str] = MappingProxyType(
    {
        "a = 0": "normalized-sqrt",
        "a = 1/2": "normalized-half",
        "a = 1": "normalized-linear",
        "noise 10 times the gradient": "normalized:10",
        "Adam's rule": "sqrt with paper",
        "learning rate only, square root": "sqrt-eta",
        "learning rate only, linear": "linear-eta",
        "nothing": "none",
    }
)
#: Noise over gradient in momentum, both squared, by which the learning rate is converted in `muon-ratio`.
RATIOS = (1, 3, 10, 30)
#: AdamW beside Muon, for embeddings, biases and norms.
BESIDE = hparams.AdamW(3e-4, 0.9, 0.95, weight_decay=0.01)
WARMUP = 64


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023): ``theta -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay theta)``, then ``m``.

    Its learning rate may be a tensor, which a CUDA graph reads.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "capturable": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m: Tensor = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = torch.lerp(p.grad, m, beta1).sign_()
                p.mul_(1 - lr * group["weight_decay"]).sub_(update.mul_(lr))
                m.lerp_(p.grad, 1 - beta2)


def _muon(parameters: Iterable[Tensor], record: hparams.Optimizer) -> Several:
    """Return torch's Muon for the matrices of the layers, and AdamW for embeddings, biases and norms."""
    every = list(parameters)
    width = min(p.shape[0] for p in every if p.ndim == 1)  # embeddings are [tokens, width], with fewer tokens
    inner = [p for p in every if p.ndim == 2 and min(p.shape) >= width]
    others = [p for p in every if not any(p is one for one in inner)]
    capturable = others[0].device.type == "cuda"
    return Several(make_optimizer(inner, record), make_optimizer(others, BESIDE, capturable=capturable))


def _lion(parameters: Iterable[Tensor], record: hparams.Optimizer) -> Lion:
    return Lion(parameters, **FAMILIES["lion"].torch.arguments(record))


@dataclass(frozen=True)
class Net:
    """What is trained.

    Args:
        task: makes it, from a name, the options and the plan by the number of samples.
        judged: the test function whose gap is told.
        before: the share of a switched run before the switch.
        options: of a switch; the first batch size is the base's.
        tries: of the learning rates at the base batch.
        minutes: of a switch.
        eval_samples: of each part of the data that are measured.
    """

    task: Callable[[str, Options, Callable[[int], Plan]], Task]
    judged: str
    before: Fraction
    options: Options
    tries: Options
    minutes: float
    eval_samples: int


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "a GPT": Net(
            gpt_task,
            "test loss",
            Fraction(1, 2),
            Options(epochs=7 / 150, batch_sizes=(8, 32, 128), seeds=4, model="gpt-6", points=16),
            Options(epochs=7 / 300, batch_sizes=(8,), seeds=2, model="gpt-6", points=4),
            3,
            256,
        ),
        "digits": Net(
            lambda name, options, plan: digits_task(f"{name}-digits", options, plan),
            "train loss",
            Fraction(1, 4),
            Options(epochs=36, batch_sizes=(4, 16, 64), seeds=8, model="mlp", points=24),
            Options(epochs=36, batch_sizes=(4,), seeds=4, model="mlp", points=6),
            15,
            2048,
        ),
    }
)


@dataclass(frozen=True)
class Kind:
    """An optimizer whose runs are switched.

    Args:
        title: in words.
        record: its hyperparameters at B = 8, with the learning rate that was the best of those that were tried.
        make: makes it.
        tried: the learning rates.
        where: the net, a key of `NETS`.
    """

    title: str
    record: hparams.Optimizer
    make: Any
    tried: tuple[float, ...]
    where: str = "a GPT"

    @property
    def net(self) -> Net:
        """What is trained."""
        return NETS[self.where]

    def task(self, options: Options) -> Task:
        """Return the net with this optimizer."""
        if options.eps != Options.eps:
            raise ValueError(f"{self.title} is not run with another eps: drop --eps")
        task = self.net.task(
            f"momentum-{self.record.name}", options, lambda n: constant(self.record, options, n, WARMUP)
        )
        return replace(task, optimizer=self.make)

    def tries(self, options: Options) -> dict[float, Task]:
        """Return the net with each learning rate; the chosen one, which the plan has for all of them, is the first."""
        task, eta = self.task(options), self.record.eta

        def with_rate(rate: float) -> Task:
            make = lambda parameters, record: self.make(parameters, replace(record, eta=rate))  # noqa: E731
            return replace(task, name=f"{task.name}-lr-{show(rate)}", optimizer=make)

        return {rate: with_rate(rate) for rate in sorted(self.tried, key=lambda rate: rate != eta)}


_MUON_TRIED, _LION_TRIED = (0.005, 0.01, 0.02, 0.04), (3e-5, 1e-4, 2e-4, 4e-4)
_SMALL_TRIED = (0.0005, 0.001, 0.002, 0.004)
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "muon": Kind("Muon", records.Muon(0.01, 0.95, weight_decay=0.01), _muon, _MUON_TRIED),
        "muon-plain": Kind(
            "Muon without Nesterov momentum",
            records.Muon(0.01, 0.95, weight_decay=0.01, nesterov=False),
            _muon,
            _MUON_TRIED,
        ),
        "lion": Kind("Lion", records.Lion(1e-4, 0.9, 0.99, weight_decay=0.01), _lion, _LION_TRIED),
        "muon-digits": Kind("Muon", records.Muon(0.001, 0.95, weight_decay=0.01), _muon, _SMALL_TRIED, "digits"),
        "muon-plain-digits": Kind(
            "Muon without Nesterov momentum",
            records.Muon(0.001, 0.95, weight_decay=0.01, nesterov=False),
            _muon,
            _SMALL_TRIED,
            "digits",
        ),
        "lion-digits": Kind("Lion", records.Lion(1e-4, 0.9, 0.99, weight_decay=0.01), _lion, _LION_TRIED, "digits"),
    }
)


def switched(name: str, options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null, and every rule at every batch size."""
    return _lines(KINDS[name], RULES, options)


def _lines(kind: Kind, rules: Mapping[str, str], options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null, along which the noise is measured, and some rules at every batch size."""
    comparison = Comparison(lambda kappa: rules, before=kind.net.before, eval_samples=kind.net.eval_samples)
    (base, null, *others), settings = comparison.lines(kind.task(options), options)
    return [base, replace(null, measure=replace(settings.measure, noise=True)), *others], settings


def by_ratio(options: Options) -> tuple[list[Line], Settings]:
    """Return the base, the null with its noise, and Muon's learning rate by each ratio of noise and gradient."""
    rules = {"a = 0": RULES["a = 0"], **{f"noise {r} times the gradient": f"normalized:{r}" for r in RATIOS}}
    return _lines(KINDS["muon"], rules, options)


def averaged(mu: float) -> float:
    """Return how many batches Nesterov momentum averages: 1 over the sum of the squares of its weights.

    >>> round(averaged(0.95))
    33
    """
    first, others = (1 - mu) * (1 + mu), (1 - mu) ** 2 * mu**4 / (1 - mu**2)
    return 1 / (first**2 + others)


def measured(finals: Sequence[Final]) -> tuple[float, float | None] | None:
    """Return noise over gradient in momentum at the switch, by the noise scale of the null, and its standard error."""
    base, null, *_ = finals
    record, noise = KINDS["muon"].record, null.starts.get("noise scale", End())
    assert isinstance(record, records.Muon)
    samples = averaged(record.mu) * base.batch_size
    if noise.value is None:
        return None
    return noise.value / samples, None if noise.se is None else noise.se / samples


def nearest(finals: Sequence[Final]) -> list[tuple[int, Final]]:
    """Return the line with the smallest gap at each kappa."""
    base, _, *others = finals
    found: dict[int, tuple[float, Final]] = {}
    for final in others:
        far, kappa = final.curve("test loss"), final.batch_size // base.batch_size
        if far is not None and abs(far.gap) < found.get(kappa, (math.inf,))[0]:
            found[kappa] = abs(far.gap), final
    return [(kappa, final) for kappa, (_, final) in sorted(found.items())]


def ratio_headline(finals: Sequence[Final]) -> str:
    """Return the ratio that was measured, and which of those that were tried is nearest to the kept batch."""
    known, sweep = measured(finals), ratio_sweep(finals)
    ratio = "not known" if known is None else f"{plus_minus(*known, 2)} times its gradient"
    best = {series: sweep.best(series).number for series in sweep.series}
    near = [f"{show(r) if math.isfinite(r) else 'infinite'} at {series}" for series, r in best.items()]
    return f"Muon's noise is {ratio}; the run is kept best as if it were {', '.join(near)}"


def ratio_sweep(finals: Sequence[Final]) -> Sweep:
    """Return the largest gap over the ratios that were tried; a = 0 is the limit of noise alone."""
    base, null, *others = finals
    points = []
    for final in others:
        far, ratio = final.curve("test loss"), re.match(r"noise (\S+) times", rule_of(final))
        if far is not None:
            series = f"{final.batch_size // base.batch_size} times the batch"
            number = float(ratio[1]) if ratio else math.inf
            points.append(Point(series, number, 100 * far.gap, 100 * far.se))
    own, known = null.curve("test loss"), measured(finals)
    reach = 0.0 if own is None else 100 * (abs(own.gap) + 2 * own.se)
    return Sweep(
        points,
        "R of the rule: noise over gradient in momentum, squared (∞: a = 0)",
        "largest gap of the validation loss, % of its range (grey: a rerun with other samples, with two errors)",
        (-reach, reach),
        {} if known is None else {known[0]: f"measured: {show(round(known[0], 2))}"},
    )


def ratio_brief(finals: Sequence[Final]) -> str:
    """Return the gaps of the nearest, and of other samples."""
    near = [f"{format_curve(final, 'test loss')} at {kappa} times" for kappa, final in nearest(finals)]
    other = f"other samples {format_curve(finals[1], 'test loss')}"
    return f"largest gaps of the nearest, over the range: {', '.join(near)} ({other})"


def ratio_words(finals: Sequence[Final]) -> str:
    """Return the finding with all gaps."""
    gaps = words("test loss", finals)
    return f"{ratio_headline(finals)}. {gaps[0].upper()}{gaps[1:]}"


def tried(name: str, options: Options) -> tuple[list[Line], Settings]:
    """Return the base batch with each learning rate, the chosen one first."""
    made = [Line(f"learning rate {show(rate)}", task) for rate, task in KINDS[name].tries(options).items()]
    eval_samples = KINDS[name].net.eval_samples
    _, settings = Comparison(lambda kappa: {}, eval_samples=eval_samples).lines(made[0].task, options)
    return made, settings


def told(finals: Sequence[Final]) -> str:
    """Return where each learning rate ends."""
    ends = [f"{final.label} {format_end('test loss', final.end('test loss'))}" for final in finals]
    known = [(value, final.label) for final in finals if (value := final.end("test loss").value) is not None]
    return f"validation loss at the end: {', '.join(ends)}; the lowest is that of {min(known)[1]}"


_SOURCE = "Counting powers of the batch size in drift and noise"
EXPERIMENTS = [
    *(
        Experiment(
            name=f"{name}-lr",
            title=f"{KINDS[name].title} on {KINDS[name].where}: the learning rate at the base batch",
            claim="Not in the paper. Which of some learning rates is the best before anything is switched",
            source=_SOURCE,
            minutes=1,
            defaults=KINDS[name].net.tries,
            lines=partial(tried, name),
            words=told,
            place=f"momentum/{name}-lr",
            smoke={"epochs": 1, "batch_sizes": (1024,)},
            measure="test loss",
            keeps=KEEPS,
            told="test loss",
        )
        for name in ("muon", "lion", "muon-digits", "lion-digits")
    ),
    *(
        Experiment(
            name=f"{name}-switch",
            title=f"{kind.title} on {kind.where}: a switch in mid-run",
            claim="Not in the paper. The learning rate by kappa^((1+a)/2), 1 - mu by kappa^a and the buffer by "
            "kappa^((a-1)/2) keep a run whose momentum is normalised; Adam's rule does not",
            source=_SOURCE,
            minutes=kind.net.minutes,
            defaults=kind.net.options,
            lines=partial(switched, name),
            words=partial(words, kind.net.judged),
            place=f"momentum/{name}",
            smoke={"epochs": 2, "batch_sizes": (1024, 4096)},
            measure="test loss",
            keeps=KEEPS,
            told=kind.net.judged,
        )
        for name, kind in KINDS.items()
    ),
    Experiment(
        name="muon-ratio",
        title="Muon on a GPT: the learning rate by the noise in momentum",
        claim="Not in the paper. A learning rate by kappa times the factor of momentum's norm, at the ratio of noise "
        "and gradient that is measured, keeps a run of Muon",
        source=_SOURCE,
        minutes=2,
        defaults=KINDS["muon"].net.options,
        lines=by_ratio,
        words=ratio_words,
        shown=Shown(ratio_headline, sweep=ratio_sweep, brief=ratio_brief),
        smoke={"epochs": 2, "batch_sizes": (1024, 4096)},
        measure="test loss",
        keeps=(*KEEPS, "Tr Sigma"),
        told="test loss",
    ),
]
