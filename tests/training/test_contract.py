"""What a change of batch size assumes of the loop: one warning where the loop has not followed, none where it has."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale import ScalingWarning
from rootscale.training import Run
from rootscale.training.contract import STEPS

WARM = 150
BETAS = [(0.98, 0.99), (0.9, 0.999), (0.9, 0.95)]


class Loop:
    """A small problem with much noise, and a loop that draws fresh batches of any size."""

    def __init__(self, seed, betas=BETAS[0], sums=False, declared=False, size=8, every=1):
        torch.manual_seed(seed)
        self.generator, self.sums, self.every = torch.Generator().manual_seed(seed), sums, every
        self.regression = seed % 2 == 0
        if self.regression:
            self.model, self.truth = nn.Linear(10, 8), 0.3 * torch.randn(10, 8)
        else:
            self.model, self.truth = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(3, 6)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, betas=betas)
        self.run = Run(self.optimizer, tuned_at=size, ema=self.ema, loss="sum" if declared else "mean")
        self.made = 0

    def loss(self, size):
        reduction = "sum" if self.sums else "mean"
        if self.regression:
            x = torch.randn(size, 10, generator=self.generator)
            noise = 3 * torch.randn(size, 8, generator=self.generator)
            return F.mse_loss(self.model(x), x @ self.truth + noise, reduction=reduction)
        y = torch.randint(3, (size,), generator=self.generator)
        x = self.truth[y] + 2 * torch.randn(size, 6, generator=self.generator)
        return F.cross_entropy(self.model(x), y, reduction=reduction)

    def train(self, steps, size=None):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss(int(self.run.batch_size) if size is None else size).backward()
            self.optimizer.step()
            self.made += 1
            if self.made % self.every == 0:
                self.ema.update_parameters(self.model)
        return self


def said(follow):
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        follow()
    return [str(one.message) for one in caught if issubclass(one.category, ScalingWarning)]


def changed(loop, size, then, steps=2 * STEPS):
    """What is said after a change in mid-run; what is said at the change itself is no subject here."""
    loop.train(WARM)
    said(lambda: setattr(loop.run, "batch_size", size))
    return said(lambda: then(loop, steps))


def follow(loop, steps):
    loop.train(steps)


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("size", [4, 32, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_summed_loss_that_is_not_declared_is_said_once(seed, size, betas):
    (message,) = changed(Loop(seed, betas, sums=True), size, follow)
    assert "is the loss a sum over the batch?" in message
    assert 'Run(..., loss="sum")' in message


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mean_that_was_declared_a_sum_is_said_once(seed):
    (message,) = changed(Loop(seed, declared=True), 32, follow)
    assert 'is the loss a mean over the batch? Then leave out loss="sum"' in message


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("size", [2, 32, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_loader_of_the_old_batch_size_is_said_once(seed, size, betas):
    (message,) = changed(Loop(seed, betas), size, lambda loop, steps: loop.train(steps, 8))
    assert f"does the data loader still have the old batch size? Give it {size} samples a step" in message


@pytest.mark.parametrize(("before", "after"), [(8, 2), (2, 8)])
def test_an_average_that_is_updated_at_other_intervals_is_said_once(before, after):
    def at_another_interval(loop, steps):
        loop.every = after
        loop.train(steps)

    (message,) = changed(Loop(0, every=before), 32, at_another_interval)
    assert message.startswith(f"AveragedModel is updated every {after}")
    assert f"Update it every {before}" in message
    assert not changed(Loop(0, every=before), 32, follow)


def test_each_is_said_once_however_often_the_batch_size_changes():
    loop = Loop(0, sums=True)
    assert len(changed(loop, 32, follow)) == 1
    loop.train(WARM)

    def twice():
        for size in (128, 32):
            loop.run.batch_size = size
            loop.train(2 * STEPS)

    assert not [text for text in said(twice) if "is the loss a sum" in text]


def test_a_loop_that_has_followed_is_left_alone():
    """Of 64 seeds, with the means and the sums that were declared, none is warned of."""
    alarms = []
    for seed in range(64):
        sums = seed % 4 >= 2
        size = [32, 2, 16, 128, 4][seed % 5]
        loop = Loop(seed, BETAS[seed % 3], sums=sums, declared=sums)
        alarms += [(seed, size, text) for text in changed(loop, size, follow)]
    assert not alarms


def test_nothing_is_looked_at_any_more_after_some_steps():
    loop = Loop(0).train(WARM)
    (held,) = loop.run._optimizers
    assert held.before_step is None
    loop.run.batch_size = 32
    looked = []
    look = held.before_step
    held.before_step = lambda: (looked.append(loop.made), look())
    loop.train(STEPS)
    assert len(looked) == STEPS
    loop.train(1)
    assert held.before_step is None, "the verdict came with this step"
    assert len(looked) == STEPS + 1
    assert not said(lambda: loop.train(STEPS, 8)), "the loader may do what it likes"


def test_small_changes_and_fresh_runs_are_not_looked_at():
    loop = Loop(0)
    loop.run.batch_size = 32  # nothing has been averaged yet
    assert loop.run._optimizers[0].before_step.__name__ == "_first", "it only says what was measured from scratch"
    loop.train(WARM)
    assert loop.run._optimizers[0].before_step is None
    loop.run.batch_size = 40
    assert loop.run._optimizers[0].before_step is None


def test_the_correction_of_a_young_second_moment_is_that_of_now():
    """After 40 steps at beta2 = .999 the correction is most of v; in other units it would be off by kappa."""
    loop = Loop(0, (0.9, 0.999)).train(40)
    loop.run.batch_size = 32
    assert not said(lambda: loop.train(2 * STEPS))
    loop = Loop(0, (0.9, 0.999)).train(40)
    loop.run.batch_size = 32
    assert len(said(lambda: loop.train(2 * STEPS, 8))) == 1
