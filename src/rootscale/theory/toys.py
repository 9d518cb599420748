"""Toy problems on which a row of the registry is checked: many replicas change their batch size in mid-run.

Both losses are quadratic, with noise that dominates the gradient. After ``before`` steps at batch size 1 the base goes
on for ``after`` steps, and a variant for ``after / kappa`` steps at batch size ``kappa``, converted by a rule. The gap
between the mean losses at equal samples is that of `rootscale.gap`; the null is the base with other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootscale.gap import Largest, gaps
from rootscale.hparams import Optimizer
from rootscale.optimizers import FAMILIES, Family
from rootscale.rules import Rule, get_rule
from rootscale.theory.updates import UPDATES, State, Update
from rootscale.trajectory import Trajectory

__all__ = ["TOYS", "Setting", "Toy", "toy_gap", "toy_gaps"]


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

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the noise of one sample."""
        xi = torch.randn(*shape, generator=generator, dtype=torch.double)
        noise: Tensor = self.noise_left @ xi @ self.noise_right
        return noise

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
    return basis @ torch.diag(torch.linspace(smallest, 1, n, dtype=torch.double)) @ basis.T


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


def toy_gaps(
    record: Optimizer,
    rules: Mapping[str, str | Rule | None],
    kappa: int,
    toy: str = "quadratic",
    setting: Setting | None = None,
    *,
    update: Update | None = None,
) -> dict[str, Largest]:
    """Return the largest gap of each rule on a toy problem, and of the ``null``, the same batch with other seeds.

    Args:
        record: the hyperparameters at batch size 1.
        rules: by the names that the result has; None is the family's own.
        kappa: the batch size after the change; a power of 2 up to 16.
        toy: one of `TOYS`.
        setting: how long and how often; None is the default.
        update: of one step; None is that of the record's family in `rootscale.theory.updates`.
    """  # fmt: skip
    setting, step = setting or Setting(), update or UPDATES[record.name]
    row, problem = FAMILIES[record.name], TOYS[toy]
    base = _run(step, row, record, problem, setting, 1, None, 0)
    found = {"null": toy_gap(base, _run(step, row, record, problem, setting, 1, None, 1))}
    for i, (name, rule) in enumerate(rules.items()):
        found[name] = toy_gap(base, _run(step, row, record, problem, setting, kappa, get_rule(rule, row.name), 2 + i))
    return found


def toy_gap(base: Trajectory, other: Trajectory) -> Largest:
    """Return the largest gap of the loss between two sets of runs."""
    return gaps(base, other)["loss"].largest


#: Losses are recorded after so many samples, the largest kappa.
_EVERY = 16


def _run(
    update: Update, row: Family, record: Any, toy: Toy, setting: Setting, kappa: int, rule: Rule | None, stream: int
) -> Trajectory:
    """Simulate one set of runs; losses are recorded from the change on."""
    generator = torch.Generator().manual_seed(1000 * setting.seed + stream)
    shape = (setting.replicas, len(toy.left), len(toy.right))
    theta = torch.full(shape, toy.start, dtype=torch.double)
    state: State = {}
    for _ in range(setting.before):
        theta = update(theta, toy.gradient(theta) + toy.noise(shape, generator), state, record)
    if rule is not None:
        after = rule.convert_record(record, kappa)
        convert_state(state, row, rule, kappa, record, after)
        record = after
    losses, times = [toy.loss(theta)], [setting.before]
    for k in range(1, setting.after // kappa + 1):
        noise = toy.noise(shape, generator) / kappa**0.5
        theta = update(theta, toy.gradient(theta) + noise, state, record)
        if k * kappa % _EVERY == 0:
            losses.append(toy.loss(theta))
            times.append(setting.before + k * kappa)
    values = torch.stack(losses, 1).numpy()
    seeds = [stream * setting.replicas + r for r in range(setting.replicas)]
    return Trajectory(np.array(times, dtype=np.float64), {"loss": values}, meta={"seeds": seeds})


def convert_state(state: State, row: Family, rule: Rule, kappa: float, before: Any, after: Any) -> None:
    """Convert the state of replicas, piece by piece, by the units of a row."""
    values = [
        {f.metadata["unit"]: getattr(one, f.name) for f in fields(one) if "unit" in f.metadata}
        for one in (before, after)
    ]
    for name, unit in row.state.items():
        if name in state:
            factor = rule.factor(unit, kappa, *values)
            if row.name == "rmsprop-centered" and name == "v":
                mean = state["a"] ** 2
                state[name] = mean + (state[name] - mean) * factor
            else:
                state[name] = state[name] * factor
