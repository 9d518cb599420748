"""Small tasks for the tests of the lab, in float64: what should be equal is, to rounding."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from rootscale import Adam, AdamW, Plan, RMSprop, Schedule
from rootscale.lab import Task


def clouds(n=240, features=6, classes=3):
    """Three overlapping clouds of points."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, features, generator=generator)
    return (centres[y] + torch.randn(n, features, generator=generator)).double(), y


def accuracy(outputs, y):
    return (outputs.argmax(-1) == y).float()


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def mlp_batchnorm():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


class Residual(nn.Module):
    """Not a Sequential: goes through vmap."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.last(x + self.norm(self.first(x)).relu())


def jitter(x, u):
    return x + 0.1 * (u[:, :1] - 0.5)


PLANS = {
    "adam": Plan(Adam(2e-3, 0.98, 0.998), batch_size=4, steps=150),
    "rmsprop": Plan(RMSprop(1e-3, 0.99), batch_size=4, steps=150),
    "everything": Plan(
        AdamW(2e-3, 0.98, 0.998, weight_decay=0.1),
        batch_size=4,
        steps=150,
        schedule=Schedule("cosine", warmup=20),
        ema=0.99,
        batchnorm_momentum=0.05,
        clip=0.5,
    ),
}


def make(plan="adam", model=mlp, **options):
    x, y = clouds()
    return Task(
        "clouds",
        plan=PLANS[plan] if isinstance(plan, str) else plan,
        model=model,
        loss=partial(F.cross_entropy, reduction="none"),
        train=(x[:200], y[:200]),
        test=(x[200:], y[200:]),
        metrics={"accuracy": accuracy},
        **options,
    )


task = make()
