"""Muon and Lion: which rule keeps a run whose optimizer normalises momentum itself?

Claim. Adam divides momentum by ``sqrt(v)``, which carries the unit of the noise; Muon and Lion normalise momentum.
Counting powers of the batch size leaves a free choice ``a``: ``1 - mu`` by ``kappa^a``, the learning rate by
``kappa^((1+a)/2)``, the buffer by ``kappa^((a-1)/2)``. Fixed before the runs: one of a = 0, 1/2 and 1 has a gap like
the null's at kappa = 4 and 16, and Adam's rule, the learning rate alone and nothing have not; on digits a = 1/2 is the
nearest for Muon, and the rate for noise 10 times the gradient keeps it at 4; with the noise in momentum measured, the
rate ``normalized:R`` at that R keeps Muon's run (contradicted if the best R is more than 3 times off).

Protocol. A GPT of 6 layers on the bytes of enwik8, B = 8, a switch after half of 32,768 sequences to 4 and 16 times
that (4 seeds), and an MLP on digits, B = 4, a switch after a quarter (8 seeds). Muon is torch's, with Nesterov momentum
and without, for the matrices of the layers; AdamW (3e-4, .9, .95) trains the rest by its own rule. Learning rates are
tuned first at the base batch (2 and 4 seeds). The null has other samples; the noise is measured along it.

Cost. 7 minutes on one H200 for the GPT; half an hour on two cores of a CPU for digits.

Finding. On the GPT contradicted for Muon with Nesterov momentum and for Lion, held for Muon without at kappa = 4, where
the learning rate alone is as near; on digits both hypotheses held. The measured ratio is contradicted: the R that keeps
the run is more than 20 times the measured one (GPT n = 4, digits n = 8). results/README.md has the verdicts.

    rootscale study experiments/momentum.py --kind muon-digits
    rootscale study experiments/momentum.py --kind muon --tries --device cuda --data FOLDER
    rootscale study experiments/momentum.py --kind ratio --device cuda --data FOLDER
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from drawing import Figure, sweep
from language_models import enwik8_gpt
from results import Claim, rows, stored
from switches import KEEPS, Switch, constant
from torch import Tensor

from rootscale import Rule, hparams, records, rules
from rootscale.format import show
from rootscale.lab import Arm, Study, Task
from rootscale.lab.several import Several
from rootscale.lab.tasks import digits
from rootscale.optimizers import FAMILIES
from rootscale.training.adapters import make_optimizer
from rootscale.units import Form, Number

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
#: Noise over gradient in momentum, both squared, by which the learning rate is converted in ``ratio``.
RATIOS = (1, 3, 10, 30)
BESIDE = hparams.AdamW(3e-4, 0.9, 0.95, weight_decay=0.01)
WARMUP = 64


def by_noise(ratio: float) -> Rule:
    """Return the rule ``normalized:RATIO`` for momentum of which noise and gradient are known; ``mu`` is kept.

    ``eta / |m|`` is the learning rate of SGD with momentum, whose rule is linear. So ``eta`` takes ``kappa`` times the
    factor of ``|m|``, ``q = sqrt((1 + ratio / kappa) / (1 + ratio))``: noise shrinks with the batch, the gradient does
    not. Drift and diffusion per sample are both kept, however much of ``m`` is noise.

    Args:
        ratio: the noise scale over the samples that momentum averages, `averaged` times the batch size before.

    >>> [round(float(by_noise(ratio).convert("eta", 0.01, 4)), 4) for ratio in (0, 1.5, 1e6)]
    [0.04, 0.0297, 0.02]
    """

    def form(rate: int, size: int) -> Form:
        def apply(value: Number, kappa: Number) -> Number:
            return float(value) * float(kappa) ** rate * math.sqrt((1 + ratio / float(kappa)) / (1 + ratio)) ** size

        norm = f"sqrt((1 + {ratio:g} / kappa) / {1 + ratio:g})"
        return Form(f"x{' * kappa' * rate} {'*' if size > 0 else '/'} {norm}", apply, kind="factor")

    base = rules.RULES["normalized-sqrt"]
    powers = {"eta": (1, 1), "min_eta": (1, 1), "m": (0, 1), "m_sum": (0, 1), "eps_m": (0, 1)}
    forms = {key: form(*pair) for key, pair in {**powers, "decoupled_decay": (0, -1)}.items()}
    units = {**base.units, **{key: replace(base.units[key], form=own) for key, own in forms.items()}}
    summary = f"for Muon, Lion and Signum, momentum whose noise is {ratio:g} times its gradient, both squared"
    return replace(base, key=f"normalized:{ratio:g}", summary=summary, units=MappingProxyType(units))


for _ratio in RATIOS:
    if f"normalized:{_ratio}" not in rules.RULES:  # this file is read once as a study and once as a module
        rules.add_rule(by_noise(_ratio))


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


def muon(parameters: Iterable[Tensor], record: hparams.Optimizer) -> Several:
    """Return torch's Muon for the matrices of the layers, and AdamW for embeddings, biases and norms."""
    every = list(parameters)
    width = min(p.shape[0] for p in every if p.ndim == 1)  # embeddings are [tokens, width], with fewer tokens
    inner = [p for p in every if p.ndim == 2 and min(p.shape) >= width]
    others = [p for p in every if not any(p is matrix for matrix in inner)]
    return Several(
        make_optimizer(inner, record), make_optimizer(others, BESIDE, capturable=others[0].device.type == "cuda")
    )


def lion(parameters: Iterable[Tensor], record: hparams.Optimizer) -> Lion:
    """Return Lion for all parameters."""
    return Lion(parameters, **FAMILIES["lion"].torch.arguments(record))


@dataclass(frozen=True)
class Kind:
    """An optimizer whose runs are switched: its hyperparameters with the best of the rates that were tried."""

    title: str
    record: hparams.Optimizer
    make: Any
    tried: tuple[float, ...] = ()
    small: bool = False


def _muon(eta: float, nesterov: bool = True) -> hparams.Optimizer:
    return records.Muon(eta, 0.95, weight_decay=0.01, nesterov=nesterov)


_LION, _RATES = records.Lion(1e-4, 0.9, 0.99, weight_decay=0.01), (3e-5, 1e-4, 2e-4, 4e-4)
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "muon": Kind("Muon on a GPT", _muon(0.01), muon, (0.005, 0.01, 0.02, 0.04)),
        "muon-plain": Kind("Muon without Nesterov momentum on a GPT", _muon(0.01, False), muon),
        "lion": Kind("Lion on a GPT", _LION, lion, _RATES),
        "muon-digits": Kind("Muon on digits", _muon(0.001), muon, (0.0005, 0.001, 0.002, 0.004), True),
        "muon-plain-digits": Kind("Muon without Nesterov momentum on digits", _muon(0.001, False), muon, (), True),
        "lion-digits": Kind("Lion on digits", _LION, lion, _RATES, True),
    }
)


def switch_of(kind: Kind, rules: Mapping[str, str], tries: bool = False) -> Switch:
    """Return the runs of a kind: a switch, or the base batch alone over half of it, or all of it on digits."""
    if kind.small:
        sizes, before = ((4,), Fraction(0)) if tries else ((4, 16, 64), Fraction(1, 4))
        return Switch(sizes, lambda kappa: rules, before, 6 if tries else 24, 4 if tries else 8, null_noise=True)
    sizes, before = ((8,), Fraction(0)) if tries else ((8, 32, 128), Fraction(1, 2))
    return Switch(
        sizes, lambda kappa: rules, before, 4 if tries else 16, 2 if tries else 4, "test loss", 256, null_noise=True
    )


def task_of(kind: Kind, tries: bool, data: str, smoke: bool) -> Task:
    """Return the net with the optimizer."""
    sizes, name, record = switch_of(kind, {}, tries).sizes, f"momentum-{kind.record.name}", kind.record
    if tries and kind is KINDS["muon"]:
        record = replace(record, eta=0.02)  # what its plan says, as it was made before the best rate was known
    if kind.small:
        made = digits()
        plan = constant(record, sizes, 36, len(made.train), WARMUP)
        return replace(made, name=f"{name}-digits", plan=plan, optimizer=kind.make)
    epochs = 2 if smoke else 7 / 300 if tries else 7 / 150
    plan_of = partial(constant, record, sizes, epochs, warmup=4 if smoke else WARMUP)
    return replace(enwik8_gpt(name, plan_of, data=data, smoke=smoke), optimizer=kind.make)


def switched(name: str, rules: Mapping[str, str], data: str, device: str, smoke: bool) -> Study:
    """Return the base, the null with its noise, and every rule at every batch size."""
    kind, keeps = KINDS["muon" if name == "ratio" else name], (*KEEPS, "Tr Sigma") if name == "ratio" else KEEPS
    task = task_of(kind, False, data, smoke)
    return switch_of(kind, rules).study(name_of(name), CLAIMS[name_of(name)], task, device, keeps)


def tried(name: str, data: str, device: str, smoke: bool) -> Study:
    """Return the base batch with each learning rate, the chosen one first."""
    kind = KINDS[name]
    task = task_of(kind, True, data, smoke)

    def with_rate(rate: float) -> Task:
        make = lambda parameters, record: kind.make(parameters, replace(record, eta=rate))  # noqa: E731
        return replace(task, name=f"{task.name}-lr-{show(rate)}", optimizer=make)

    rates = sorted(kind.tried, key=lambda rate: rate != kind.record.eta)
    arms = [Arm(f"learning rate {show(rate)}", with_rate(rate), factors={"learning rate": rate}) for rate in rates]
    made = switch_of(kind, {}, True).study(name_of(name, True), CLAIMS[name_of(name, True)], task, device)
    return replace(made, arms=arms)


def name_of(kind: str, tries: bool = False) -> str:
    """Return the name of a study."""
    return "muon-ratio" if kind == "ratio" else f"momentum-{kind}{'-lr' if tries else ''}"


CLAIMS: Mapping[str, str] = {
    **{name_of(name): f"{kind.title}, a switch in mid-run: which rule keeps it" for name, kind in KINDS.items()},
    **{
        name_of(name, True): f"{kind.title}: the learning rate at the base batch"
        for name, kind in KINDS.items()
        if kind.tried
    },
    name_of("ratio"): "Muon on a GPT: the learning rate by the measured noise in momentum keeps the run",
}


def studies(
    kind: str = "", tries: bool = False, data: str = "", device: str = "cpu", smoke: bool = False
) -> list[Study]:
    """Return the studies of one kind, of ``ratio``, or of all; with ``tries``, those of the learning rates."""
    more = (data, device, smoke)
    found = []
    for name in [kind] if kind else [*KINDS, "ratio"]:
        if name == "ratio":
            ratios = {"a = 0": RULES["a = 0"], **{f"noise {r} times the gradient": f"normalized:{r}" for r in RATIOS}}
            found.append(switched(name, ratios, *more))
            continue
        if KINDS[name].tried and (tries or not kind):
            found.append(tried(name, *more))
        if not tries:
            found.append(switched(name, RULES, *more))
    return found


def averaged(mu: float) -> float:
    """Return how many batches Nesterov momentum averages: 1 over the sum of the squares of its weights."""
    first, others = (1 - mu) * (1 + mu), (1 - mu) ** 2 * mu**4 / (1 - mu**2)
    return 1 / (first**2 + others)


def measured(results: Path) -> float | None:
    """Return noise over gradient in momentum at the switch, by the noise scale of the null."""
    table = stored(results, name_of("ratio"))
    if table is None:
        return None
    noise = table.others[0].trajectory.values["noise scale"][:, 0]
    return float(noise.mean()) / (averaged(0.95) * int(table.base.the_plan.batch_size.total))


def claims(results: Path) -> list[Claim]:
    """Return the rows of all studies; that of the ratio with what was measured."""
    found = rows(__file__, CLAIMS, results)
    ratio = measured(results)
    if ratio is not None:
        found[-1] = found[-1]._replace(outcome=f"{found[-1].outcome}<br>measured: noise {ratio:.2f} times the gradient")
    return found


def figures(results: Path) -> dict[str, Figure]:
    """Return the largest gap over the ratios that were tried."""
    table, points = stored(results, name_of("ratio")), []
    for arm in () if table is None else table.others:
        rule = str(arm.factors.get("rule", ""))
        if rule.startswith("normalized:") and arm.comparison is not None:
            far = arm.comparison.gaps["test loss"].largest
            times = f"{arm.factors['kappa']} times the batch"
            points.append((times, float(rule.partition(":")[2]), 100 * far.gap, 100 * far.se))
    if not points:
        return {}
    name = "noise over gradient in momentum, squared"
    return {"muon-ratio": sweep(points, name, "largest gap, % of the range", CLAIMS["muon-ratio"])}


STUDY = studies
