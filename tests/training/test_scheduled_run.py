"""Runs that follow a schedule: conversions, checkpoints, growth, accumulation."""

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
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from rootscale.noise import Interval, Noise
from rootscale.training import (
    BatchSchedule,
    NoiseMeter,
    ScheduledRun,
    ScheduledSampler,
    ScheduledStream,
    rescale_,
    track_,
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
        self.model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 1)).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, betas=(0.98, 0.99), weight_decay=0.1)
        self.scheduler = LinearLR(self.optimizer, 0.1, total_iters=60)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.sampler = ScheduledSampler(N, schedule, micro=micro)
        self.loader = DataLoader(self.data, batch_sampler=self.sampler, num_workers=workers)
        self.run = ScheduledRun(
            self.sampler, self.optimizer, scheduler=self.scheduler, model=self.model, ema=self.ema, clip=5.0, **options
        )
        self.log = []

    def train(self, samples, every_step=lambda: None):
        """Until so many samples are seen in all, and not a batch further."""
        while self.run.seen < samples:
            for i, x, y in self.run.batches(self.loader):
                self.log.append((self.run.size, self.optimizer.param_groups[0]["lr"], i.tolist()))
                (F.mse_loss(self.model(x), y) * self.run.weight).backward()
                if self.run.complete:
                    self.step()
                    every_step()
                if self.run.seen >= samples:
                    break
        return self

    def step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.run.clip)
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

    def weights(self):
        return torch.cat([p.detach().flatten() for p in (*self.model.state_dict().values(), *self.ema.parameters())])


def test_a_run_that_follows_is_one_that_is_rescaled_by_hand():
    job = Job(BatchSchedule(STAGES)).train(200)
    hand = Job(BatchSchedule(STAGES))
    alone = ScheduledSampler(N, BatchSchedule(STAGES))
    flat = itertools.chain.from_iterable(alone for _ in range(9))
    clip, position = 5.0, 0
    while position < job.run.seen:
        kappa = {60: 2, 132: 3}.get(position, 1)
        if kappa > 1:
            rescale_(hand.optimizer, kappa, scheduler=hand.scheduler, model=hand.model, ema=hand.ema)
            clip *= kappa**-0.5
        _, x, y = hand.data[next(flat)]
        F.mse_loss(hand.model(x), y).backward()
        nn.utils.clip_grad_norm_(hand.model.parameters(), clip)
        for part in (hand.optimizer, hand.scheduler):
            part.step()
        hand.optimizer.zero_grad()
        hand.ema.update_parameters(hand.model)
        position += len(x)
    assert position == job.run.seen
    assert torch.allclose(job.weights(), hand.weights(), rtol=1e-12, atol=0)
    assert job.model[1].momentum == pytest.approx(1 - 0.9**6, rel=1e-12)
    assert [(at, float(changes.kappa)) for at, changes in job.run.changes] == [(60, 2), (132, 3)]


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
    assert second.run.clip == steady.run.clip


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_growth_is_decided_ahead_of_what_workers_have_read(workers):
    job = Job(BatchSchedule.from_noise(4, share=0.5, most=16), workers=workers)
    lows, decided = {20: 15, 60: 64, 188: 640}, {}

    def grow():
        if job.run.seen in lows:
            decided[job.run.seen] = job.run.grow(noise(lows[job.run.seen]))

    job.train(240, grow)
    assert decided == {20: None, 60: 16, 188: None}
    ahead = {0: 0, 2: 4}[workers]  # two batches a worker are on their way
    assert [at for at, _ in job.run.changes] == [60 + 4 * ahead]
    assert all(len(i) == size for size, _, i in job.log)
    flat = [i for _, _, samples in job.log for i in samples]
    assert sorted(flat[:N]) == sorted(flat[N : 2 * N]) == list(range(N))
    resumed = Job(BatchSchedule.from_noise(4, share=0.5, most=16)).load(job.save())
    assert resumed.run.size == 16
    assert resumed.sampler.schedule.stages == job.sampler.schedule.stages


def test_growth_stops_where_the_averages_would_be_too_short():
    """beta1 = 0.98 at batch size 4: kappa (1 - beta1) < 1/2 up to kappa = 25."""
    job = Job(BatchSchedule.from_noise(4), rule="with paper").train(4)
    assert job.run.grow(noise(1e9)) == 64
    assert job.run.grow(noise(1e9)) is None  # decided, and not yet reached
    with pytest.warns(match="averages over less than two steps"):
        rescale_(job.optimizer, 32, scheduler=job.scheduler, rule="with paper")
    free = Job(BatchSchedule.from_noise(4)).train(4)
    assert free.run.grow(noise(4096)) == 2048  # floors see to the averages


def test_a_checkpoint_goes_on_at_the_batch_size_of_another_schedule():
    first = Job(BatchSchedule([(0, 4)])).train(80)
    second = Job(BatchSchedule([(0, 16)]), made_for=4).load(first.save())
    before = second.optimizer.param_groups[0]["lr"]
    v = [state["exp_avg_sq"].clone() for state in second.optimizer.state.values()]
    batches = second.run.batches(second.loader)
    next(batches)
    assert second.run.size == 16
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(2 * before, rel=1e-12)
    for old, state in zip(v, second.optimizer.state.values(), strict=True):
        assert torch.allclose(state["exp_avg_sq"], old / 4, rtol=1e-12)


def test_settings_made_for_another_batch_size_are_converted_before_the_first_batch():
    job = Job(BatchSchedule([(0, 4)]), made_for=16).train(4)
    assert job.optimizer.param_groups[0]["betas"] == pytest.approx((0.995, 0.9975))
    assert job.run.clip == 10.0


def test_a_run_that_is_tracked_at_another_batch_size_is_refused_at_the_start():
    job = Job(BatchSchedule([(0, 4)]))
    track_(job.optimizer, 16)
    sampler = ScheduledSampler(N, BatchSchedule([(0, 4), (60, 8)]))
    with pytest.raises(ValueError, match=r"at batch size 16, and the run is taken to be made for 4.* give made_for=16"):
        ScheduledRun(sampler, job.optimizer, scheduler=job.scheduler)
    assert ScheduledRun(sampler, job.optimizer, scheduler=job.scheduler, made_for=16).size == 16


def test_what_is_impossible_later_is_refused_at_the_start():
    before = Job(BatchSchedule([(0, 4)]))
    with pytest.raises(
        ValueError, match=r"batch size 400 from sample 1000 is not possible: kappa=100.*need kappa < 50"
    ):
        Job(BatchSchedule([(0, 4), (1000, 400)]), rule="with paper")
    settings = before.optimizer.state_dict()
    with pytest.raises(TypeError, match="ema must be an AveragedModel"):
        ScheduledRun(before.sampler, before.optimizer, scheduler=before.scheduler, ema="average")
    assert before.optimizer.state_dict() == settings


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
    with pytest.raises(ValueError, match="made for batch size 4: load it into a fresh run with made_for=4"):
        Job(BatchSchedule([(0, 8)])).run.load_state_dict(saved["run"])
    late = Job(BatchSchedule(STAGES))
    late.optimizer.load_state_dict(saved["optimizer"])
    with pytest.raises(ValueError, match="load the run before the optimizer and the scheduler"):
        late.run.load_state_dict(saved["run"])
    saved["run"]["order"]["seed"] = 1
    with pytest.raises(ValueError, match="samples are in another order"):
        Job(BatchSchedule(STAGES)).run.load_state_dict(saved["run"])


def test_a_run_grows_with_the_noise_it_measures():
    """Linear regression with much noise: the batch grows by doublings, within a fourth of the noise scale."""
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    data = TensorDataset(x, x.sum(1, keepdim=True) + 20 * torch.randn(2000, 1))
    model = nn.Linear(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.99, 0.999))
    scheduler = CosineAnnealingLR(optimizer, 4000)
    sampler = ScheduledSampler(len(data), BatchSchedule.from_noise(4, share=0.25), micro=2)
    run = ScheduledRun(sampler, optimizer, scheduler=scheduler)
    meter, grown = NoiseMeter(optimizer, window=150), []
    loader = DataLoader(data, batch_sampler=sampler)
    for _ in range(2):
        for a, b in run.batches(loader):
            with meter.part(samples=len(a), weight=run.weight):
                (F.mse_loss(model(a), b) * run.weight).backward()
            if not run.complete:
                continue
            meter.update()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if len(meter._steps) == 150 and not run.seen % 400:
                low = meter.estimate().scale.low
                size = run.grow(meter.estimate())
                grown += [] if size is None else [(size, low)]
    assert grown
    assert all(size <= 0.25 * low for size, low in grown)
    assert [size for size, _ in grown] == sorted({4 * 2**i for i in range(1, 9)} & {size for size, _ in grown})
    assert [size for _, size in sampler.schedule.stages] == [4, *(size for size, _ in grown)]
    assert len(run.changes) >= len(grown) - 1


def test_batchnorm_follows_the_micro_batch_and_not_the_batch():
    data = TensorDataset(torch.randn(256, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.98, 0.999))
    sampler = ScheduledSampler(256, BatchSchedule([(0, 8), (64, 16), (128, 64)]), micro=16)
    run, seen = ScheduledRun(sampler, optimizer, model=model), {}
    for (x,) in run.batches(DataLoader(data, batch_sampler=sampler)):
        seen.setdefault((run.size, len(x)), model[1].momentum)
        (model(x).square().mean() * run.weight).backward()
        if run.complete:
            optimizer.step()
            optimizer.zero_grad()
    assert seen == {(8, 8): 0.1, (16, 16): pytest.approx(0.19), (64, 16): pytest.approx(0.19)}


def test_growth_stops_where_a_cycled_beta1_would_have_no_value():
    data = TensorDataset(torch.randn(2000, 4))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.98, 0.999))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=1000)  # beta1 falls to .85
    sampler = ScheduledSampler(2000, BatchSchedule.from_noise(8, share=1.0))
    run, grown = ScheduledRun(sampler, optimizer, scheduler=scheduler, rule="with paper"), None
    for step, (x,) in enumerate(run.batches(DataLoader(data, batch_sampler=sampler))):
        model(x).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step == 10:
            grown = run.grow(noise(1e6))
    assert grown == 32  # 64 would ask for 1 - 8 * .15
    assert run.size == 32


def test_the_example_shows_equal_losses_with_fewer_steps(capsys):
    example = runpy.run_path(str(ROOT / "examples/batch_schedule.py"))
    for name in ("kept", "noise", "decay"):
        example["train"](name, example["make_data"]())
    printed = capsys.readouterr().out
    steps = [int(n) for n in re.findall(r"(\d+) steps", printed)]
    kept, *others = [[float(x) for x in line.split()] for line in re.findall(r"each epoch (.*)", printed)]
    assert max(steps[1:]) < 0.8 * steps[0]
    assert all(losses == pytest.approx(kept, abs=0.03) for losses in others)
