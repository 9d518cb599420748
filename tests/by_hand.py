"""Conversions that are written out by hand, in plain torch, for tests against the libraries that hold optimizers.

`convert` is the only call of rootscale here. Whatever converts a live run, the parameters of its next steps are
compared with those of `AdamByHand`; neither hyperparameters nor state of the converted optimizer are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import Run


def convert(optimizer, kappa: float, scheduler=None) -> None:
    """Convert a live run to kappa times its batch size."""
    Run(optimizer, tuned_at=1, batch_size=kappa, scheduler=scheduler)


#: What a conversion of Adam changes; each can be left out, to see that a test would notice.
QUANTITIES = ("eta", "beta1", "beta2", "eps", "weight_decay", "v", "step")


@dataclass
class AdamByHand:
    """Adam with decoupled weight decay, in the precision of its parameters.

    With ``g`` the gradient: ``m = beta1 m + (1 - beta1) g``, ``v = beta2 v + (1 - beta2) g^2``,
    ``theta = (1 - eta lambda) theta - eta m_hat / (sqrt(v_hat) + eps)``, ``m_hat = m / (1 - beta1^step)``.

    Args:
        theta: copies of the parameters.
        eta: the learning rate.
        beta1, beta2, eps: Adam's.
        weight_decay: lambda.
        step: steps so far.
        m, v: the averages; zeros where they are not given.
    """

    theta: list[Tensor]
    eta: float
    beta1: float = 0.98
    beta2: float = 0.995
    eps: float = 1e-3
    weight_decay: float = 0.1
    step: float = 0.0
    m: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.theta = [p.detach().clone() for p in self.theta]
        self.m = [p.clone() for p in self.m] or [torch.zeros_like(p) for p in self.theta]
        self.v = [p.clone() for p in self.v] or [torch.zeros_like(p) for p in self.theta]

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of `torch.optim.AdamW`, and of all that are called alike."""
        return dict(lr=self.eta, betas=(self.beta1, self.beta2), eps=self.eps, weight_decay=self.weight_decay)

    def update(self, gradients: Sequence[Tensor], of_rate: float = 1.0) -> None:
        """Make one step, with a share of the learning rate."""
        self.step += 1
        eta = of_rate * self.eta
        for p, m, v, g in zip(self.theta, self.m, self.v, gradients, strict=True):
            m.copy_(self.beta1 * m + (1 - self.beta1) * g)
            v.copy_(self.beta2 * v + (1 - self.beta2) * g**2)
            m_hat, v_hat = m / (1 - self.beta1**self.step), v / (1 - self.beta2**self.step)
            p.copy_((1 - eta * self.weight_decay) * p - eta * m_hat / (v_hat.sqrt() + self.eps))

    def converted(self, kappa: float, but: str | None = None) -> AdamByHand:
        """Return the run at kappa times the batch size, as the paper's rule has it; ``but`` leaves one quantity."""
        root = math.sqrt(kappa)
        new = {
            "eta": self.eta * root,
            "beta1": 1 - kappa * (1 - self.beta1),
            "beta2": 1 - kappa * (1 - self.beta2),
            "eps": self.eps / root,
            "weight_decay": self.weight_decay * root,
            "v": [v / kappa for v in self.v],
            "step": self.step / kappa,
        }
        assert tuple(new) == QUANTITIES
        assert new["beta1"] >= 0.9, "below, beta1 stops at its floor"
        new.pop(but, None)
        return replace(self, **new)


def assert_same(found: Iterable[Tensor], wanted: Iterable[Tensor], rtol: float = 1e-10) -> None:
    for a, b in zip(found, wanted, strict=True):
        b = b.detach()
        torch.testing.assert_close(a.detach(), b, rtol=rtol, atol=rtol * float(b.abs().max()))


def gap(found: Iterable[Tensor], wanted: Iterable[Tensor], start: Iterable[Tensor]) -> float:
    """Return the largest distance of two ends, as a share of the way from a start."""
    ends = [[p.detach() for p in values] for values in (found, wanted, start)]
    return max(float((a - b).abs().max() / (b - c).abs().max()) for a, b, c in zip(*ends, strict=True))


# ---- a small problem in float64


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def batches(number: int, size: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return points and their values."""
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(size, 6, dtype=torch.float64, generator=generator) for _ in range(number)]
    return [(x, (x.sum(1, keepdim=True) / 3).sin()) for x in points]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[tuple[Tensor, Tensor]]) -> None:
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def take_steps_by_hand(
    model: nn.Module,
    hands: Sequence[AdamByHand],
    parameters: Sequence[Sequence[Tensor]],
    data: Iterable[tuple[Tensor, Tensor]],
    rates: Iterable[float] | None = None,
) -> None:
    """Take the steps of several runs by hand, each of some parameters of one model.

    Args:
        model: the model; its parameters follow.
        hands: the runs.
        parameters: those of each run, in the model.
        data: a batch for each step.
        rates: the share of the learning rate at each step; ones where they are not given.
    """
    flat = [p for group in parameters for p in group]
    data = list(data)
    for batch, rate in zip(data, rates or [1.0] * len(data), strict=True):
        gradients = iter(torch.autograd.grad(loss_of(model, batch), flat))
        for hand, group in zip(hands, parameters, strict=True):
            hand.update([next(gradients) for _ in group], rate)
        with torch.no_grad():
            for p, theta in zip(flat, [theta for hand in hands for theta in hand.theta], strict=True):
                p.copy_(theta)
