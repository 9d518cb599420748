"""Runs that follow a schedule: changes, checkpoints, growth, accumulation."""

import copy
import itertools
import math
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from rootscale.noise import Interval, Noise
from rootscale.training import (
    BatchSchedule,
    ScheduledRun,
    ScheduledSampler,
    ScheduledStream,
)

ROOT = Path(__file__).parents[2]
N = 50
STAGES = [(0, 4), (60, 8), (130, 24)]


def noise(low):
    """An estimate whose noise scale has this lower end."""
    some = Interval(1.0, 0.5, 2.0)
    return Noise(some, some, Interval(3 * low, low, math.inf), 100)


class Job:
    """A small training job with all that a run may have."""

    def __init__(self, schedule, workers=0, micro=None, batchnorm=True, **options):
        torch.manual_seed(0)
        x = torch.randn(N, 3, dtype=torch.float64)
        self.data = TensorDataset(torch.arange(N), x, x.sum(1, keepdim=True) + torch.randn(N, 1, dtype=torch.float64))
        norm = nn.BatchNorm1d(4) if batchnorm else nn.Tanh()
        # A bias before BatchNorm has no gradient but rounding, which Adam makes large.
        self.model = nn.Sequential(nn.Linear(3, 4, bias=not batchnorm), norm, nn.Linear(4, 1)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.99), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.1, total_iters=60)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.sampler = ScheduledSampler(N, schedule, micro=micro)
        self.loader = DataLoader(self.data, batch_sampler=self.sampler, num_workers=workers)
        self.run = ScheduledRun(
            self.sampler, self.optimizer, scheduler=self.scheduler, model=self.model, ema=self.ema, **options
        )
        self.log = []

    def train(self, samples, every_step=lambda: None):
        """Until so many samples are seen in all, and not a batch further."""
        while self.run.seen < samples:
            for i, x, y in self.run.batches(self.loader):
                self.log.append((self.run.batch_size, self.run.values()["lr"], i.tolist()))
                (F.mse_loss(self.model(x), y) * self.run.weight).backward()
                if self.run.complete:
                    self.step()
                    every_step()
                if self.run.seen >= samples:
                    break
        return self

    def step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.run.clip(5.0))
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.ema.update_parameters(self.model)

    PARTS = ("run", "model", "optimizer", "scheduler", "ema")

    def save(self):
        return copy.deepcopy({name: getattr(self, name).state_dict() for name in self.PARTS})

    def load(self, saved):
        for name in self.PARTS:
            getattr(self, name).load_state_dict(saved[name])
        return self

    def changes(self):
        """Where the batch size changed, in samples, and what it became."""
        found, position, before = [], 0, self.log[0][0]
        for size, _, i in self.log:
            if size != before:
                found.append((position, size))
            position, before = position + len(i), size
        return found

    def weights(self):
        return torch.cat([p.detach().flatten() for p in (*self.model.state_dict().values(), *self.ema.parameters())])


def change_by_hand(job, kappa, more):
    """Write down a change to kappa times the first batch size, which is ``more`` times that of before."""
    (group,) = job.optimizer.param_groups
    beta1 = max(1 - kappa * 0.02, 0.9)
    for state in job.optimizer.state.values():
        state["exp_avg"] *= math.sqrt((1 - beta1) / (more * (1 - group["betas"][0])))
        state["exp_avg_sq"] /= more
        state["step"] /= more
    group.update(betas=(beta1, 1 - kappa * 0.01), eps=1e-8 / kappa**0.5, weight_decay=0.1 * kappa**0.5)
    job.model[1].momentum = 1 - 0.9**kappa
    job.ema.multi_avg_fn = get_ema_multi_avg_fn(0.99**kappa)


def test_a_run_that_follows_is_one_that_is_changed_by_hand():
    job = Job(BatchSchedule(STAGES)).train(200)
    hand = Job(BatchSchedule(STAGES))
    hand.run.detach()
    alone = ScheduledSampler(N, BatchSchedule(STAGES))
    flat = itertools.chain.from_iterable(alone for _ in range(9))
    kappa, position = 1, 0
    while position < job.run.seen:
        more = {60: 2, 132: 3}.get(position, 1)
        if more > 1:
            kappa *= more
            change_by_hand(hand, kappa, more)
        hand.optimizer.param_groups[0]["lr"] = 1e-2 * kappa**0.5 * min(1, 0.1 + 0.9 * position / 4 / 60)
        _, x, y = hand.data[next(flat)]
        F.mse_loss(hand.model(x), y).backward()
        nn.utils.clip_grad_norm_(hand.model.parameters(), 5.0 * kappa**-0.5)
        hand.optimizer.step()
        hand.optimizer.zero_grad()
        hand.ema.update_parameters(hand.model)
        position += len(x)
    assert (position, kappa) == (job.run.seen, 6)
    assert torch.allclose(job.weights(), hand.weights(), rtol=1e-12, atol=0)
    assert job.model[1].momentum == pytest.approx(1 - 0.9**6, rel=1e-12)
    assert job.changes() == [(60, 8), (132, 24)]
    assert job.run.clock == pytest.approx(position / 4)
    (group,) = job.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.98, 0.99), 1e-8, 0.1), "the script's, always"


def test_accumulation_gives_the_same_run():
    whole, cut = (Job(BatchSchedule(STAGES), micro=micro, batchnorm=False).train(250) for micro in (None, 6))
    assert {len(i) for _, _, i in cut.log} == {4, 6}
    assert torch.allclose(whole.weights(), cut.weights(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_is_the_run_that_went_on(workers):
    """Saved in mid-epoch, in mid-stage, after one change and before another; with workers that read ahead."""
    steady = Job(BatchSchedule(STAGES)).train(220)
    first = Job(BatchSchedule(STAGES), workers=workers).train(92)
    assert workers == 0 or first.sampler.position > first.run.seen == 92
    second = Job(BatchSchedule(STAGES), workers=workers).load(first.save()).train(220)
    assert first.log + second.log == steady.log
    assert torch.equal(second.weights(), steady.weights())
    assert second.model[1].momentum == steady.model[1].momentum
    assert second.run.clip(5.0) == steady.run.clip(5.0)
    assert second.run.clock == steady.run.clock


def test_a_checkpoint_goes_on_at_the_batch_size_of_another_schedule():
    first = Job(BatchSchedule([(0, 4)])).train(80)
    second = Job(BatchSchedule([(0, 16)]), tuned_at=4).load(first.save())
    v = [state["exp_avg_sq"].clone() for state in first.optimizer.state.values()]
    batches = second.run.batches(second.loader)
    next(batches)
    assert (second.run.batch_size, second.run.clock) == (16, 20)
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"]
    assert second.run.values()["lr"] == pytest.approx(2 * first.run.values()["lr"], rel=1e-12)
    for old, state in zip(v, second.optimizer.state.values(), strict=True):
        assert torch.allclose(state["exp_avg_sq"], old / 4, rtol=1e-12)


@pytest.mark.parametrize("order", [*itertools.permutations(("run", "optimizer", "scheduler"))], ids=", ".join)
def test_a_checkpoint_is_loaded_in_any_order(order):
    """Saved after one change and before another, in mid-epoch."""
    steady = Job(BatchSchedule(STAGES)).train(220)
    saved = Job(BatchSchedule(STAGES)).train(92).save()
    resumed = Job(BatchSchedule(STAGES))
    for name in (*order, "model", "ema"):
        getattr(resumed, name).load_state_dict(saved[name])
    assert torch.allclose(resumed.train(220).weights(), steady.weights(), rtol=1e-12, atol=0)
    assert resumed.run.clock == steady.run.clock


def test_numbers_tuned_at_another_batch_size_are_converted_before_the_first_batch():
    job = Job(BatchSchedule([(0, 4)]), tuned_at=16).train(4)
    assert job.optimizer.param_groups[0]["betas"] == (0.98, 0.99)
    values = job.run.values()
    assert (values["beta1"], values["beta2"]) == pytest.approx((0.995, 0.9975))
    assert job.run.clip(5.0) == 10.0


def test_an_optimizer_that_is_in_a_run_is_refused_until_it_is_detached():
    job = Job(BatchSchedule([(0, 4)]), tuned_at=16).train(40)
    sampler = ScheduledSampler(N, BatchSchedule([(0, 4), (60, 8)]))
    with pytest.raises(ValueError, match=r"this AdamW is in a Run already: set its batch_size, or call detach\(\)"):
        ScheduledRun(sampler, job.optimizer, scheduler=job.scheduler)
    assert not sampler.followed
    job.run.detach()
    run = ScheduledRun(sampler, job.optimizer, scheduler=job.scheduler, tuned_at=16)
    assert (run.tuned_at, run.batch_size, run.clock) == (16, 16, 10 / 4)


def test_what_is_impossible_later_is_refused_at_the_start():
    before = Job(BatchSchedule([(0, 4)]))
    before.run.detach()
    settings = copy.deepcopy((before.optimizer.state_dict(), before.scheduler.state_dict(), before.model[1].momentum))
    late = ScheduledSampler(N, BatchSchedule([(0, 4), (1000, 400)]))
    parts = dict(scheduler=before.scheduler, model=before.model, ema=before.ema)
    with pytest.raises(
        ValueError, match=r"batch size 400 from sample 1000 is not possible: kappa=100.*need kappa < 50"
    ):
        ScheduledRun(late, before.optimizer, rule="with paper", **parts)
    assert not late.followed
    with pytest.raises(TypeError, match="ema must be an AveragedModel"):
        ScheduledRun(before.sampler, before.optimizer, scheduler=before.scheduler, ema="average")
    after = before.optimizer.state_dict(), before.scheduler.state_dict(), before.model[1].momentum
    assert after == settings
    assert ScheduledRun(before.sampler, before.optimizer, **parts).batch_size == 4, "nothing holds them"


def test_a_loader_of_other_batches_is_refused():
    job = Job(BatchSchedule(STAGES))
    with pytest.raises(ValueError, match=r"must be the run's sampler, got BatchSampler.*batch_sampler=sampler"):
        next(job.run.batches(DataLoader(job.data, batch_size=4)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_over_the_loader_itself_is_refused(workers):
    """Its batches would change their size, and nothing would be converted."""
    job = Job(BatchSchedule(STAGES), workers=workers)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"write `for x, y in run.batches\(loader\)`"):
            next(iter(job.loader))
        job.train(job.run.seen + 20)
    assert job.sampler.followed
    stream = ScheduledStream(range(100), BatchSchedule([(0, 4)]))
    assert len(next(iter(stream))) == 4, "alone it may be iterated"
    stream = ScheduledStream(range(100), BatchSchedule([(0, 4)]))
    ScheduledRun(stream, torch.optim.AdamW(job.model.parameters()))
    with pytest.raises(RuntimeError, match="a ScheduledRun follows these batches"):
        next(iter(stream))


def test_checkpoints_that_do_not_belong_are_refused():
    saved = Job(BatchSchedule(STAGES)).train(80).save()
    with pytest.raises(ValueError, match=r"tuned at batch size 4, and this run .* those of 8: .*tuned_at=4\)"):
        Job(BatchSchedule([(0, 8)])).run.load_state_dict(saved["run"])
    saved["run"]["order"]["seed"] = 1
    other = Job(BatchSchedule(STAGES))
    with pytest.raises(ValueError, match="samples are in another order"):
        other.run.load_state_dict(saved["run"])
    assert (other.run.seen, other.run.batch_size) == (0, 4)


def test_batchnorm_follows_the_micro_batch_and_not_the_batch():
    data = TensorDataset(torch.randn(256, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.98, 0.999))
    sampler = ScheduledSampler(256, BatchSchedule([(0, 8), (64, 16), (128, 64)]), micro=16)
    run, seen = ScheduledRun(sampler, optimizer, model=model), {}
    for (x,) in run.batches(DataLoader(data, batch_sampler=sampler)):
        seen.setdefault((run.batch_size, len(x)), model[1].momentum)
        (model(x).square().mean() * run.weight).backward()
        if run.complete:
            optimizer.step()
            optimizer.zero_grad()
    assert seen == {(8, 8): 0.1, (16, 16): pytest.approx(0.19), (64, 16): pytest.approx(0.19)}


def cycled():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.98, 0.999))
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=1000)  # to .85


def test_a_stage_where_a_cycled_beta1_would_have_no_value_is_refused_at_the_start():
    _, optimizer, scheduler = cycled()
    optimizer.param_groups[0]["betas"] = (0.98, 0.999)  # as late in the cycle: of now is not the worst
    sampler = ScheduledSampler(2000, BatchSchedule([(0, 8), (1000, 64)]))
    with pytest.raises(ValueError, match=r"batch size 64 from sample 1000 is not possible: kappa=8 gives beta1=-0\.2"):
        ScheduledRun(sampler, optimizer, scheduler=scheduler, rule="with paper")
    assert ScheduledRun(sampler, optimizer, scheduler=scheduler).batch_size == 8, "floors see to it"


def test_the_example_shows_equal_losses_with_fewer_steps(capsys):
    example = runpy.run_path(str(ROOT / "examples/batch_schedule.py"))
    for name in ("kept", "noise", "decay"):
        example["train"](name, example["make_data"]())
    printed = capsys.readouterr().out
    steps = [int(n) for n in re.findall(r"(\d+) steps", printed)]
    kept, *others = [[float(x) for x in line.split()] for line in re.findall(r"each epoch (.*)", printed)]
    assert max(steps[1:]) < 0.8 * steps[0]
    assert all(losses == pytest.approx(kept, abs=0.03) for losses in others)
