"""Batches of 1 to 32 samples: `Run` keeps the trajectory of the constant batch, with a new size before every step.

All runs go on from the state that a run with the constant batch has reached. Numbers are largest gaps of the mean loss.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rootscale.gap import gaps
from rootscale.training import Run, rescale_
from rootscale.trajectory import Trajectory

LARGEST = 32
MEAN = (1 + LARGEST) / 2
LOSS = "loss"


class Quadratic:
    """A noisy quadratic with eight coordinates of other curvatures and noises; replicas are rows of the parameter."""

    base, warm, samples = 4, 6_000, 9_000

    def __init__(self, make, replicas, seed=0):
        self.theta = nn.Parameter(torch.full((replicas, 8), 2.0, dtype=torch.float64))
        self.parameters = [self.theta]
        self.generator = torch.Generator().manual_seed(seed)
        self.curvature = torch.logspace(-1.7, -0.3, 8, dtype=torch.float64)
        self.noise = torch.linspace(1, 3, 8, dtype=torch.float64)
        self.optimizer = make(self.parameters)

    def backward(self, batch):
        xi = torch.randn(self.theta.shape, dtype=torch.float64, generator=self.generator)
        self.theta.grad = self.curvature * self.theta.detach() + self.noise * xi / math.sqrt(batch)

    def losses(self):
        return ((self.curvature * self.theta.detach().square()).sum(1) / 2).numpy()


class SmallBase(Quadratic):
    """The same with a constant batch of one: nearly all batches are beyond the floors."""

    base = 1


class Digits:
    """A small net on the images of digits, in float32; replicas are slices of the parameters."""

    base, warm, samples = 4, 12_000, 30_000

    def __init__(self, make, replicas, seed=0):
        from digits_replicas import Net, data

        torch.manual_seed(seed)
        self.net, (self.x, self.y) = Net(replicas, None), data()
        self.parameters = list(self.net.parameters())
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = make(self.parameters)

    def backward(self, batch):
        i = torch.randint(len(self.x), (self.net.replicas, batch), generator=self.generator)
        self.net.zero_grad()
        self._losses(self.x[i], self.y[i]).sum().backward()

    def _losses(self, x, y):
        return F.cross_entropy(self.net(x).transpose(1, 2), y, reduction="none").mean(1)

    @torch.no_grad()
    def losses(self):
        replicas = self.net.replicas
        return self._losses(self.x.expand(replicas, -1, -1), self.y.expand(replicas, -1)).double().numpy()


def plainly(run, batch):
    run.optimizer.step()


def by_root(run, batch):
    (group,) = run.optimizer.param_groups
    rate = group["lr"]
    group["lr"] = rate * math.sqrt(batch / run.base)
    run.optimizer.step()
    group["lr"] = rate


def at_its_size(run, batch):
    run.live.batch_size = batch
    run.optimizer.step()


def keep(run):
    pass


def convert_for_mean(run):
    rescale_(run.optimizer, MEAN / run.base)


def make_run(rule=None):
    def once(run):
        run.live = Run(run.optimizer, tuned_at=run.base, rule=rule)

    return once


#: What is done once, and at each step.
METHODS = {
    "Run": (make_run(), at_its_size),
    "Run, lower floors": (make_run("sqrt with floor:0.8,0.9"), at_its_size),
    "converted for the mean batch": (convert_for_mean, plainly),
    "learning rate by the root": (keep, by_root),
    "nothing": (keep, plainly),
}


def losses(start, method, sizes, seed, points=40):
    """Return the loss of each replica at equal numbers of samples, ``[R, points]``."""
    run = copy.deepcopy(start)
    run.generator.manual_seed(seed)
    once, each = method
    once(run)
    times = np.linspace(0, start.samples, points + 1)[1:]
    seen, before, found = 0, run.losses(), []
    while len(found) < points:
        batch = sizes()
        run.backward(batch)
        each(run, batch)
        seen += batch
        if seen >= times[len(found)]:
            after = run.losses()
            share = 1 - (seen - times[len(found)]) / batch
            found.append(before + share * (after - before))
        if len(found) < points and seen + LARGEST >= times[len(found)]:
            before = run.losses()  # the next step may reach the time
    return np.stack(found, 1)


def trajectory(start, method, seeds, sizes=None):
    """Return the runs of some sequences of batch sizes, the constant one without ``sizes``."""
    rows = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows.append(losses(start, method, (lambda r=rng: sizes(r)) if sizes else lambda: start.base, seed))
    points = rows[0].shape[1]
    return Trajectory(np.linspace(0, start.samples, points + 1)[1:], {LOSS: np.concatenate(rows)})


def uniform(rng):
    return int(rng.integers(1, LARGEST + 1))


def found_gaps(problem, make, replicas, sequences):
    """Return the largest gap of each method with varying batches, and of the constant batch with other seeds."""
    start = problem(make, replicas)
    for _ in range(start.warm // start.base):
        start.backward(start.base)
        start.optimizer.step()
    base, null = (trajectory(start, METHODS["nothing"], [seed]) for seed in (100, 200))
    runs = {name: trajectory(start, method, range(sequences), uniform) for name, method in METHODS.items()}
    return {name: gaps(base, run)[LOSS].largest for name, run in {"null": null, **runs}.items()}


#: The largest gap of each method that keeps the run: with floors of .9 averages are longer than those of the constant
#: batch wherever a batch is large, and lower floors come nearer. Measured, with standard errors of .004 to .009: .008
#: (long averages) to .039 (digits) in a run, .006 to .029 with lower floors; .012 is added for the next seeds.
LARGEST_GAPS = {"null": 0.03, "Run": 0.051, "Run, lower floors": 0.041}
#: From a batch of one nearly all batches are beyond the floors: .055 and .044, both +- .004.
BEYOND_THE_FLOORS = {"null": 0.03, "Run": 0.067, "Run, lower floors": 0.056}


def assert_only_a_run_keeps_it(found, largest=None):
    """Where two runs differ by nothing but their seeds, gaps are .004 to .014, with standard errors of .007 to .015."""
    for name, gap in found.items():
        if name in LARGEST_GAPS:
            assert abs(gap.gap) < (largest or LARGEST_GAPS)[name], name
        else:
            assert abs(gap.gap) > max(10 * gap.se, 0.08), name


@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
def test_batches_of_1_to_32_keep_the_trajectory_in_a_run_alone():
    found = found_gaps(Quadratic, lambda ps: torch.optim.Adam(ps, lr=0.004, betas=(0.9, 0.999)), 384, 1)
    assert_only_a_run_keeps_it(found)


SLOW = {
    "long averages": (Quadratic, lambda ps: torch.optim.Adam(ps, lr=0.004, betas=(0.98, 0.999)), 512, 4),
    "short averages": (Quadratic, lambda ps: torch.optim.Adam(ps, lr=0.004, betas=(0.9, 0.95)), 512, 4),
    "beyond the floors": (SmallBase, lambda ps: torch.optim.Adam(ps, lr=0.002, betas=(0.9, 0.999)), 512, 4),
    "RMSprop": (Quadratic, lambda ps: torch.optim.RMSprop(ps, lr=0.004, alpha=0.999), 512, 4),
    "digits": (Digits, lambda ps: torch.optim.Adam(ps, lr=5e-4, betas=(0.9, 0.999)), 32, 2),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")
@pytest.mark.parametrize("case", SLOW.values(), ids=SLOW)
def test_other_runs_are_kept_by_a_run_alone(case):
    if case[0] is Digits:
        pytest.importorskip("sklearn")
    largest = BEYOND_THE_FLOORS if case[0] is SmallBase else None
    assert_only_a_run_keeps_it(found_gaps(*case), largest)
