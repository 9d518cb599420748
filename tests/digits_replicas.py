"""The digits problem: R independent replicas of a small net trained at once, so that mean curves have little noise.

The parameters of all replicas are stacked, and Adam works coordinate by coordinate: one torch optimizer, scheduler,
BatchNorm layer and parameter average serve all of them, which is what a user's run has.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale.gap import gaps
from rootscale.training import rescale_
from rootscale.trajectory import Trajectory

LOSS = "train loss"


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """The training part: 1,437 images of 64 pixels in [0, 1], and their labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))[:1437]
    return torch.tensor(digits.data / 16, dtype=torch.float32)[order], torch.tensor(digits.target)[order]


class Net(torch.nn.Module):
    """R multilayer perceptrons 64-32-10, with BatchNorm (of that momentum) or without, over inputs [R, B, 64]."""

    def __init__(self, replicas: int, batchnorm: float | None) -> None:
        super().__init__()
        self.replicas = replicas
        self.w1, self.b1 = self._layer(64, 32)
        self.w2, self.b2 = self._layer(32, 10)
        self.norm = torch.nn.BatchNorm1d(replicas * 32, momentum=batchnorm) if batchnorm else None

    def _layer(self, inputs: int, outputs: int) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
        bound = inputs**-0.5
        shapes = (self.replicas, inputs, outputs), (self.replicas, 1, outputs)
        w, b = (torch.nn.Parameter(torch.empty(shape).uniform_(-bound, bound)) for shape in shapes)
        return w, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.baddbmm(self.b1, x, self.w1)
        if self.norm is not None:  # one feature of one replica is one channel
            h = self.norm(h.transpose(0, 1).flatten(1)).view(x.shape[1], self.replicas, 32).transpose(0, 1)
        return torch.baddbmm(self.b2, h.relu(), self.w2)


class Run:
    """Training with replacement that can be continued, copied and switched to another batch size."""

    def __init__(
        self,
        batch: int = 4,
        lr: float = 5e-4,
        betas: tuple[float, float] = (0.99, 0.999),
        batchnorm: float | None = None,
        ema: float | None = None,
        replicas: int = 16,
        warm: int = 12_000,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.x, self.y = data()
        self.net = Net(replicas, batchnorm)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr, betas=betas)
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(ema)) if ema else None  # type: ignore[no-untyped-call]
        self.batch, self.generator = batch, torch.Generator().manual_seed(seed)
        self.train(warm)

    def train(self, samples: int) -> None:
        for _ in range(samples // self.batch):
            i = torch.randint(len(self.x), (self.net.replicas, self.batch), generator=self.generator)
            logits = self.net(self.x[i])
            loss = F.cross_entropy(logits.flatten(0, 1), self.y[i].flatten(), reduction="sum") / self.batch
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update_parameters(self.net)

    def loss(self) -> float:
        """Mean over replicas of the loss on the training set, in eval mode, of the average where there is one."""
        net = self.net if self.ema is None else self.ema
        net.eval()
        with torch.no_grad():
            logits = net(self.x.expand(self.net.replicas, -1, -1))
            loss = F.cross_entropy(logits.flatten(0, 1), self.y.repeat(self.net.replicas)).item()
        net.train()
        return loss

    def copy(self, seed: int) -> Run:
        twin = copy.deepcopy(self)
        twin.generator.manual_seed(seed)
        return twin


def curve(start: Run, seed: int, kappas: list[float], samples: int, **options: object) -> Trajectory:
    """Return the train loss at 60 times over ``samples``, cut into as many stages as there are kappas.

    Each stage begins with what a user does: rescale_ with these options, and the new batch size.
    """
    run, losses = start.copy(seed), []
    for kappa in kappas:
        rescale_(run.optimizer, kappa, **{"model": run.net, "ema": run.ema, **options})  # type: ignore[arg-type]
        run.batch = round(run.batch * kappa)
        for _ in range(60 // len(kappas)):
            run.train(samples // 60)
            losses.append(run.loss())
    return Trajectory(np.arange(1.0, 61.0) * (samples // 60), {LOSS: np.array([losses])})


def largest_gap(base: Trajectory, other: Trajectory) -> float:
    """Return the largest gap of two curves (`rootscale.gap`), without its sign."""
    return abs(gaps(base, other)[LOSS].largest.gap)
