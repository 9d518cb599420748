"""Toy problems on which a row of the registry is checked: many replicas change their batch size in mid-run.

Both losses are quadratic, with noise that dominates the gradient. After ``before`` steps at batch size 1 the base goes
on for ``after`` steps, and a variant for ``after / kappa`` steps at batch size ``kappa``, converted by a rule. The gap
between the mean losses at equal samples is that of `rootscale.gap`; the null is the base with other noise.

`toy_gaps` simulates the plain update of a family, or any update that you write; `live_gaps` runs a live optimizer and
converts it by `rootscale.training.rescale_`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rootscale import records
from rootscale.gap import Largest, gaps
from rootscale.hparams import SGD, Adam, AdamW, Optimizer, RMSprop
from rootscale.optimizers import FAMILIES, Family
from rootscale.rules import Rule, get_rule
from rootscale.theory.updates import UPDATES, State, Update
from rootscale.training.rescale import rescale_
from rootscale.trajectory import Trajectory

__all__ = [
    "Setting",
    "live_gaps",
    "toy_gaps",
]

#: By the name of the row in tables; variants of a family follow it.
TOY_RECORDS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "adam": Adam(0.015, 0.98, 0.995),
        "adamw": AdamW(0.01, 0.98, 0.995, weight_decay=0.1),
        "rmsprop": RMSprop(0.01, 0.995),
        "rmsprop-momentum": records.RMSpropMomentum(0.002, 0.995, momentum=0.8),
        "rmsprop-centered": records.RMSpropCentered(0.01, 0.995),
        "nadam": records.NAdam(0.015, 0.98, 0.995, momentum_decay=1.0),
        "radam": records.RAdam(0.012, 0.98, 0.995),
        "adamax": records.Adamax(0.03, 0.98, 0.995),
        "adafactor": records.Adafactor(0.025),
        "ademamix": records.AdEMAMix(0.008, 0.98, 0.995, 0.996, alpha=2.0, warmup=400),
        "soap": records.SOAP(0.015, 0.98, 0.995, 0.995),
        "shampoo": records.Shampoo(0.02, 0.98, 0.995, eps=1.0),
        "schedulefree-adamw": records.ScheduleFreeAdamW(0.035, 0.9, 0.995),
        "adagrad": records.Adagrad(0.16),
        "lars": records.LARS(0.0045, 0.8),
        "muon": records.Muon(0.007, 0.95, weight_decay=0.1),
        "muon without Nesterov": records.Muon(0.007, 0.95, weight_decay=0.1, nesterov=False),
        "lion": records.Lion(0.006, 0.9, 0.95),
        "signum": records.Signum(0.005, 0.95),
        "lamb": records.LAMB(0.006, 0.95, 0.995),
        "sgd": SGD(0.0002, 0.9),
        "schedulefree-sgd": records.ScheduleFreeSGD(0.003, 0.9),
    }
)


@dataclass(frozen=True)
class Toy:
    """A quadratic loss of a matrix, ``tr(W^T A W C) / 2``, with noise ``P xi Q`` of a single sample.

    Args:
        name: for tables.
        left, right: ``A`` and ``C``, as their diagonals.
        noise_left, noise_right: ``P`` and ``Q``; full matrices, so that the noise has its own directions.
        start: entries of ``W`` at the start.
    """

    name: str
    left: Tensor
    right: Tensor
    noise_left: Tensor
    noise_right: Tensor
    start: float = 1.0

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the gradient of the loss at ``theta`` ``[R, n, m]``."""
        return self.left[:, None] * theta * self.right

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of ``W``."""
        return len(self.left), len(self.right)

    def sample(self, theta: Tensor, generator: torch.Generator, size: int = 1) -> Tensor:
        """Return the gradient of a batch of that size for each replica."""
        xi = torch.randn(theta.shape, generator=generator, dtype=torch.double)
        noise: Tensor = self.noise_left @ xi @ self.noise_right / size**0.5
        return self.gradient(theta) + noise

    def loss(self, theta: Tensor) -> Tensor:
        """Return the loss of each replica, ``[R]``."""
        loss: Tensor = (self.gradient(theta) * theta).sum((1, 2)) / (2 * theta[0].numel())
        return loss


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def _mixing(n: int, smallest: float) -> Tensor:
    """Return a matrix of full rank with unequal directions."""
    angles = torch.arange(n * n, dtype=torch.double).view(n, n).mul(0.7).sin()
    basis = torch.linalg.qr(angles + torch.eye(n, dtype=torch.double))[0]
    mixing: Tensor = basis @ torch.diag(torch.linspace(smallest, 1, n, dtype=torch.double)) @ basis.T
    return mixing


#: The toy problems by name: a vector with noise of its own size in each coordinate, and a matrix.
TOYS: Mapping[str, Toy] = MappingProxyType(
    {
        "quadratic": Toy(
            "quadratic", torch.linspace(0.4, 1.2, 8, dtype=torch.double), _double(1.0),
            torch.diag(torch.linspace(6, 14, 8, dtype=torch.double)), torch.eye(1, dtype=torch.double),
        ),
        "matrix": Toy(
            "matrix", _double(0.6, 1.0, 1.4), _double(0.7, 0.9, 1.1, 1.3), 16 * _mixing(3, 0.6), _mixing(4, 0.6),
        ),
    }
)  # fmt: skip


#: Losses are recorded after so many samples, the largest kappa.
_EVERY = 16


@dataclass(frozen=True)
class Setting:
    """How long and how often the toy problems are simulated.

    Args:
        replicas: of each run.
        before: steps at batch size 1 before the change.
        after: samples after it.
        seed: of the noise.
    """

    replicas: int = 2048
    before: int = 160
    after: int = 800
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("replicas", 2), ("before", 0), ("after", _EVERY)):
            value = getattr(self, name)
            if not (isinstance(value, Integral) and int(value) >= least):
                raise ValueError(f"{name} of Setting must be a whole number of at least {least}, got {value!r}")


Rules = Mapping[str, str | Rule | None]


def toy_gaps(
    record: Optimizer,
    rules: Rules,
    kappa: int,
    toy: str = "quadratic",
    setting: Setting | None = None,
    *,
    update: Update | None = None,
) -> dict[str, Largest]:
    """Return the largest gap of each rule on a toy problem, and of the ``null``.

    Args:
        record: the hyperparameters at batch size 1; its family says what its state is measured in.
        rules: by the names that the result has; None is the family's own.
        kappa: the batch size after the change; a power of 2 up to 16.
        toy: one of `TOYS`.
        setting: how long and how often; None is the default.
        update: of one step; None is that of the record's family in `rootscale.theory.updates`.
    """
    problem, setting = _toy(toy), setting or Setting()
    theta = torch.full((setting.replicas, *problem.shape), problem.start, dtype=torch.double)
    return _gaps(_Simulated(theta, update or UPDATES[record.name], record), problem, rules, kappa, setting)


def live_gaps(
    make: Callable[[Any], torch.optim.Optimizer],
    rules: Rules,
    kappa: int,
    toy: str = "quadratic",
    setting: Setting | None = None,
    *,
    elementwise: bool = True,
) -> dict[str, Largest]:
    """Return the largest gaps of a live optimizer that `rootscale.training.rescale_` converts; see `toy_gaps`.

    Args:
        make: makes the optimizer of a list of parameters.
        rules: by the names that the result has; None is the optimizer's own.
        kappa: the batch size after the change; a power of 2 up to 16.
        toy: one of `TOYS`.
        setting: how long and how often; None is the default.
        elementwise: whether the update moves each number by itself, as Adam does, so that all replicas fit into one
            parameter. Without it each replica is a parameter, which takes longer.
    """
    problem, setting = _toy(toy), setting or Setting()
    if elementwise:
        _check_elementwise(make, problem)
    return _gaps(_live(make, problem, setting.replicas, elementwise), problem, rules, kappa, setting)


def _live(make: Callable[[Any], torch.optim.Optimizer], toy: Toy, replicas: int, together: bool) -> _Live:
    """Return replicas of a live optimizer, in one parameter or each in its own."""
    shapes = [(replicas, *toy.shape)] if together else [toy.shape] * replicas
    parameters = [torch.nn.Parameter(torch.full(shape, toy.start, dtype=torch.double)) for shape in shapes]
    return _Live(parameters, make(parameters))


def _check_elementwise(make: Callable[[Any], torch.optim.Optimizer], toy: Toy) -> None:
    """Refuse an optimizer whose replicas would see each other in one parameter: two of them, for two steps."""
    one, apart = (_live(make, toy, 2, together) for together in (True, False))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        g = toy.sample(one.theta, generator)
        one.step(g)
        apart.step(g)
    if not torch.allclose(one.theta, apart.theta, rtol=1e-6):
        raise ValueError(
            f"{type(one.optimizer).__name__} does not move each number by itself, so that replicas in one parameter "
            "would see each other; give elementwise=False"
        )


def _toy(name: str) -> Toy:
    if name not in TOYS:
        raise ValueError(f"toy must be one of {', '.join(TOYS)}, got {name!r}")
    return TOYS[name]


class _Replicas(Protocol):
    """Replicas under training: their parameters ``[R, n, m]``, a step, and a conversion."""

    @property
    def theta(self) -> Tensor: ...

    def step(self, g: Tensor) -> None: ...

    def convert(self, kappa: int, rule: str | Rule | None) -> None: ...


class _Simulated:
    """Replicas of a plain update, converted by the units of its family's row."""

    def __init__(self, theta: Tensor, update: Update, record: Any) -> None:
        self.theta, self.update, self.record = theta, update, record
        self.state: State = {}

    def step(self, g: Tensor) -> None:
        self.theta = self.update(self.theta, g, self.state, self.record)

    def convert(self, kappa: int, rule: str | Rule | None) -> None:
        row = FAMILIES[self.record.name]
        chosen = get_rule(rule, row.name)
        after = chosen.convert_record(self.record, kappa)
        convert_state(self.state, row, chosen, kappa, self.record, after)
        self.record = after


class _Live:
    """Replicas of a live optimizer."""

    def __init__(self, parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self.parameters, self.optimizer = parameters, optimizer

    @property
    def theta(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1, *p.shape[-2:]) for p in self.parameters])

    def step(self, g: Tensor) -> None:
        for p, part in zip(self.parameters, g.chunk(len(self.parameters)), strict=True):
            p.grad = part.reshape(p.shape).clone()
        self.optimizer.step()

    def convert(self, kappa: int, rule: str | Rule | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rules that are wrong on purpose say so
            rescale_(self.optimizer, kappa, rule=rule)


def convert_state(state: State, row: Family, rule: Rule, kappa: float, before: Any, after: Any) -> None:
    """Convert the state of replicas, piece by piece, by the units of a row.

    Args:
        state: by the letters of the row.
        row: of the family.
        rule: of the conversion.
        kappa: new batch size over old one.
        before, after: the hyperparameters.
    """
    values = [
        {f.metadata["unit"]: getattr(one, f.name) for f in fields(one) if "unit" in f.metadata}
        for one in (before, after)
    ]
    for name, unit in row.state.items():
        if name in state:
            factor = rule.factor(unit, kappa, *values)
            mean = state["a"] ** 2 if row.name == "rmsprop-centered" and name == "v" else 0.0
            state[name] = mean + (state[name] - mean) * factor


def _gaps(replicas: _Replicas, toy: Toy, rules: Rules, kappa: int, setting: Setting) -> dict[str, Largest]:
    """Train, change the batch size by each rule, and compare; all variants start from the same replicas."""
    if kappa not in (1, 2, 4, 8, 16):
        raise ValueError(f"kappa must be 1, 2, 4, 8 or 16, got {kappa!r}")
    kappa = int(kappa)
    if taken := {"base", "null"} & set(rules):
        raise ValueError(f"rules must have other names than base and null, got {taken.pop()!r}")
    generator = torch.Generator().manual_seed(setting.seed)
    for _ in range(setting.before):
        replicas.step(toy.sample(replicas.theta, generator))
    runs = {}
    for i, name in enumerate(["base", "null", *rules]):
        one = copy.deepcopy(replicas)
        size = 1 if name in ("base", "null") else kappa
        if name in rules:
            one.convert(kappa, rules[name])
        runs[name] = _go_on(one, toy, size, setting, setting.seed + 1000 * (i + 1))
    base = runs.pop("base")
    found = {name: gaps(base, run) for name, run in runs.items()}
    if lost := [name for name, gap in found.items() if "loss" not in gap]:
        raise ValueError(f"the losses of {lost[0]!r} and of the base have no finite mean; use a smaller learning rate")
    return {name: gap["loss"].largest for name, gap in found.items()}


def _go_on(replicas: _Replicas, toy: Toy, size: int, setting: Setting, seed: int) -> Trajectory:
    """Train on and return the losses at equal samples."""
    generator = torch.Generator().manual_seed(seed)
    losses, times = [toy.loss(replicas.theta)], [setting.before]
    for k in range(1, setting.after // size + 1):
        replicas.step(toy.sample(replicas.theta, generator, size))
        if k * size % _EVERY == 0:
            losses.append(toy.loss(replicas.theta))
            times.append(setting.before + k * size)
    meta = {"seeds": list(range(setting.replicas))}
    return Trajectory(np.array(times, dtype=np.float64), {"loss": torch.stack(losses, 1).numpy()}, meta=meta)
