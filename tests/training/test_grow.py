"""A batch that grows with the noise that its own steps show."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from rootscale import ScalingWarning
from rootscale.noise import Interval, Noise
from rootscale.training import BatchSchedule, Grow, NoiseMeter, Run, ScheduledRun, ScheduledSampler, ScheduledStream

N = 640
LIMITS = [(1e9, 8), (16.1, 8), (15.9, None), (0.0, None)]


def problem():
    torch.manual_seed(0)
    x = torch.randn(N, 6, dtype=torch.float64)
    return TensorDataset(torch.arange(N), x, x.sum(1, keepdim=True) + 24 * torch.randn(N, 1, dtype=torch.float64))


class Job:
    """A loop over a sampler or a stream, whose batch grows."""

    def __init__(self, workers=0, micro=None, stream=False, every=3, start=4, **options):
        self.data = problem()
        self.model = nn.Sequential(nn.Linear(6, 1)).double()
        nn.init.zeros_(self.model[0].weight)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.98, 0.99))
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=60)
        self.sampler = (
            ScheduledStream([self.data[i] for i in range(N)], start, micro=micro)
            if stream
            else ScheduledSampler(N, start, micro=micro)
        )
        self.run = ScheduledRun(self.sampler, self.optimizer, scheduler=self.scheduler)
        self.grow = Grow(self.run, most=64, every=every, **options)
        self.loader = self.sampler if stream else DataLoader(self.data, batch_sampler=self.sampler, num_workers=workers)
        self.log = []

    def train(self, samples):
        while self.run.seen < samples:
            for i, x, y in self.run.batches(self.loader):
                (F.mse_loss(self.model(x), y) * self.run.weight).backward()
                self.log.append((self.run.batch_size, i.tolist()))
                if self.run.complete:
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                if self.run.complete and self.run.seen >= samples:
                    break
        return self

    PARTS = ("run", "model", "optimizer", "scheduler")

    def save(self):
        return copy.deepcopy({name: getattr(self, name).state_dict() for name in self.PARTS})

    def load(self, saved):
        for name in self.PARTS:
            getattr(self, name).load_state_dict(saved[name])
        return self

    @property
    def sizes(self):
        return [size for _, size in self.sampler.schedule.stages]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_doubles_within_half_of_the_lower_end_and_no_sample_is_lost(workers):
    job = Job(workers).train(2 * N)
    assert job.sizes == [4 * 2**i for i in range(len(job.sizes))]
    assert 8 in job.sizes
    for start, size, noise in job.grow.history:
        assert size <= 0.5 * noise.scale.low
        assert job.sampler.schedule.size(start) == size
    flat = [i for _, samples in job.log for i in samples]
    assert sorted(flat[:N]) == sorted(flat[N : 2 * N]) == list(range(N))
    assert job.run.kappa == job.sizes[-1] / 4
    assert sum(len(samples) for _, samples in job.log) == job.run.seen


@pytest.mark.parametrize("stop", [100, 252, 400, 700])
def test_a_run_resumed_in_mid_epoch_grows_where_the_other_did(stop):
    steady = Job().train(2 * N)
    assert len(steady.sizes) > 2
    first = Job().train(stop)
    second = Job().load(first.save()).train(2 * N)
    assert first.log + second.log == steady.log
    assert second.sampler.schedule.stages == steady.sampler.schedule.stages
    assert torch.equal(second.model[0].weight, steady.model[0].weight)
    assert second.grow.reason.split("]")[0] == steady.grow.reason.split("]")[0]
    assert [(a, b) for a, b, _ in second.grow.history] == [(a, b) for a, b, _ in steady.grow.history]


def test_a_stream_grows_as_well():
    job = Job(stream=True).train(2 * N - 64)
    assert len(job.sizes) > 2
    flat = [i for _, samples in job.log for i in samples]
    assert flat[: N - 64] == list(range(N - 64))


def test_a_grown_checkpoint_that_goes_on_without_grow_is_a_warning():
    saved = Job().train(2 * N).save()
    job = Job()
    job.grow.remove()
    with pytest.warns(ScalingWarning, match=r"had grown to \d+, and goes on at 4, .* make Grow\(run\) before"):
        job.load(saved)
    assert job.run.batch_size == 4
    assert job.sampler.measured_every == 0, "nothing is halved any more"


def test_the_length_of_a_loader_counts_the_halves():
    job = Job(every=4)
    job.sampler.schedule.extend(202, 16)
    assert len(job.loader) == sum(1 for _ in job.run.batches(job.loader))


def accumulating(run, optimizer, model, data, micro=4, steps=200, grow=None, meter=None):
    """A loop that asks its run for the size of each batch, and accumulates."""
    place, sizes = 0, []
    for _ in range(steps):
        parts = int(run.batch_size) // micro
        for _ in range(parts):
            i = torch.arange(place, place + micro) % N
            place += micro
            loss = F.mse_loss(model(data.tensors[1][i]), data.tensors[2][i]) / parts
            if meter is None:
                loss.backward()
            else:
                with meter.part(micro, 1 / parts):
                    loss.backward()
        if meter is not None:
            meter.update()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before the optimizer sees the gradient
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(run.batch_size)
        if grow is not None:
            grow.step()
    return sizes


def linear(**options):
    model = nn.Linear(6, 1).double()
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, optimizer, Run(optimizer, tuned_at=8, **options)


@pytest.mark.filterwarnings("ignore:after the batch size has changed:rootscale.ScalingWarning")  # few, wild gradients
def test_a_loop_that_accumulates_grows_by_one_line():
    model, optimizer, run = linear()
    grow = Grow(run, most=32, every=4)
    sizes = accumulating(run, optimizer, model, problem(), grow=grow)
    assert sorted(set(sizes)) == [8, 16, 32]
    assert sizes == sorted(sizes)
    assert run.values()["lr"] == pytest.approx(2e-3)
    assert [size for _, size, _ in grow.history] == [16, 32]
    assert grow.reason.startswith("batch size 32: ")
    assert "above most = 32" in grow.reason or "at its lower end" in grow.reason


def test_the_noise_is_that_of_a_meter_in_the_metric_of_the_optimizer():
    """The same steps, one fourth of them."""
    model, optimizer, run = linear()
    grow = Grow(run, most=8, every=4, window=200)
    accumulating(run, optimizer, model, problem(), grow=grow)
    model, optimizer, run = linear()
    meter = NoiseMeter(optimizer, 400, preconditioned=True)
    accumulating(run, optimizer, model, problem(), meter=meter)
    steps = [pair for pair, _ in meter._steps][3::4]
    meter._steps.clear()
    meter._steps.extend((pair, 8.0) for pair in steps)
    expected = meter.estimate(preconditioned=True)
    assert grow.noise.steps == expected.steps == 50
    for name in ("trace", "gradient", "scale"):
        ours, theirs = getattr(grow.noise, name), getattr(expected, name)
        assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), rel=1e-9)


def test_a_change_of_the_batch_size_leaves_the_metric_as_it_was():
    """The state is divided by kappa, and the metric is taken back to the script's batch size."""
    found = []
    for size in (8, 32):
        torch.manual_seed(1)
        model, optimizer, run = linear()
        accumulating(run, optimizer, model, problem(), steps=20)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        run.batch_size = size
        grow = Grow(run, most=size, every=1)
        before = [p.detach().clone() for p in model.parameters()]
        for _ in range(3):
            for i in torch.arange(32).view(2, 16):
                (F.mse_loss(model(problem().tensors[1][i]), problem().tensors[2][i]) / 2).backward()
            saved = copy.deepcopy(optimizer.state_dict())
            grow.step()
            optimizer.load_state_dict(saved)
            optimizer.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        found.append(np.array(grow.state_dict()["rows"])[-1, 0])
    # The same gradients, taken for those of 32 samples instead of 8: four times the noise of one sample.
    assert found[0][0] * 4 == pytest.approx(found[1][0], rel=5e-3)


def test_one_backward_a_step_is_a_clear_cannot_say():
    model, optimizer, run = linear()
    grow = Grow(run, every=4)
    with pytest.warns(ScalingWarning, match=r"cannot say: the steps have one backward each.*Accumulate") as warned:
        accumulating(run, optimizer, model, problem(), micro=8, steps=100, grow=grow)
    assert sum("cannot say" in str(one.message) for one in warned) == 1
    assert (grow.noise, run.batch_size, grow.history) == (None, 8, [])


def test_too_few_measurements_are_said():
    model, optimizer, run = linear()
    grow = Grow(run, every=4)
    assert "no step was measured yet" in grow.reason
    accumulating(run, optimizer, model, problem(), steps=40, grow=grow)
    assert grow.reason == "batch size 8: cannot say yet: 10 measurements of the 16 that are needed"


def test_hooks_are_on_the_parameters_only_around_steps_that_are_measured():
    model, optimizer, run = linear()
    grow, hooked = Grow(run, every=5, most=8), []
    for _ in range(10):
        hooked.append(bool(model.weight._backward_hooks))
        accumulating(run, optimizer, model, problem(), steps=1, grow=grow)
    assert hooked == [False, False, False, True, True] * 2
    grow.remove()
    assert not model.weight._backward_hooks


def with_rows(grow, scales, spread=0.01):
    """Put measurements of these noise scales into the window, as a checkpoint has them."""
    random = np.random.default_rng(0)
    rows = [
        [[scale * (1 + spread * random.standard_normal()), 1.0 + spread * random.standard_normal()]] for scale in scales
    ]
    state = grow.state_dict()
    grow.load_state_dict({**state, "rows": rows})


def decided(scales, spread=0.0, size=4, rule=None, **options):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    run = Run(optimizer, tuned_at=size, rule=rule)
    grow = Grow(run, every=1, window=40, **options)
    with_rows(grow, scales, spread)
    for _ in range(3):
        for x in torch.randn(2, 2, 2):
            (model(x).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        if grow.step():
            break
    return grow


@pytest.mark.parametrize(("scale", "size"), LIMITS)
def test_share_of_the_lower_end_decides(monkeypatch, scale, size):
    some = Interval(1.0, 0.5, 2.0)
    noise = Noise(some, some, Interval(3 * scale, scale, math.inf), 40)
    monkeypatch.setattr("rootscale.training.grow.noise_of", lambda values: noise)
    grow = decided([scale] * 40)
    assert [one for _, one, _ in grow.history] == ([] if size is None else [size])
    assert grow.noise is noise


def test_a_noise_scale_that_falls_is_not_acted_upon():
    grow = decided([1000.0] * 20 + [10.0] * 20, 0.05)
    assert "the noise scale falls" in grow.reason
    assert grow.history == []


def test_limits_of_the_run_are_said():
    assert "above most = 4" in decided([1e6] * 40, 0.01, most=4).reason
    tight = decided([1e6] * 40, 0.01, factor=8, rule="with paper")
    assert "an average of the optimizer would be too short" in tight.reason


def test_the_run_with_a_layout_grows_by_accumulation():
    model = nn.Linear(2, 1)
    run = Run(torch.optim.Adam(model.parameters()), tuned_at="4x2x1")
    grow = Grow(run, every=1)
    with_rows(grow, [1e6] * 30)
    assert grow._layout(16).to_json() == "4x4x1"


def test_sgd_is_measured_in_lengths_as_they_are_and_adam_in_its_metric():
    for kind, own in ((torch.optim.SGD, False), (torch.optim.Adam, True), (torch.optim.AdamW, True)):
        model = nn.Linear(2, 1)
        grow = Grow(Run(kind(model.parameters(), lr=0.1), tuned_at=8))
        assert grow._noise.metrics == [own]


def test_what_trackers_log():
    grow = decided([100.0] * 40, 0.01)
    values = grow.values()
    assert values["rootscale/batch_size"] == grow.run.batch_size
    assert values["noise_scale_low"] < values["noise_scale"] < values["noise_scale_high"]


def test_bad_input_is_refused():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(TypeError, match=r"Grow takes the Run of the loop, got Adam: make Run\(optimizer"):
        Grow(optimizer)
    run = Run(optimizer, tuned_at=8)
    with pytest.raises(ValueError, match=r"share must be a number in \(0, 1\]|share must be in \(0, 1\]|share"):
        Grow(run, share=1.5)
    with pytest.raises(ValueError, match="factor"):
        Grow(run, factor=1)
    with pytest.raises(ValueError, match="most"):
        Grow(run, most=4)
    run.detach()
    odd = ScheduledRun(ScheduledSampler(100, 5), torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match=r"a batch of 5 on one device cannot be halved.*begin with 6"):
        Grow(odd)
    two = ScheduledRun(ScheduledSampler(100, 8, rank=0, world_size=2), torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match=r"2 ranks needs Grow\(\.\.\., process_group="):
        Grow(two)
    assert isinstance(two.sampler.schedule, BatchSchedule)
