"""Batch-size schedules: the sizes, from stages, from noise and from the decay of a plan."""

import itertools
import math

import pytest

from rootscale import SGD, Adam, Plan, Schedule
from rootscale.noise import Interval, Noise
from rootscale.training import BatchSchedule

STAGES = [(0, 4), (60, 8), (130, 24)]


def noise(low):
    """An estimate whose noise scale has this lower end."""
    some = Interval(1.0, 0.5, 2.0)
    return Noise(some, some, Interval(3 * low, low, math.inf), 100)


def test_walk_and_len_count_the_batches_that_begin_in_a_span():
    schedule = BatchSchedule(STAGES)
    for start, length in itertools.product((0, 4, 61, 200), (1, 7, 100, 250)):
        position, sizes = start, []
        while position < start + length:
            sizes.append(schedule.size(position))
            position += sizes[-1]
        walked = [size for _, size, batches in schedule.walk(start, start + length) for _ in range(batches)]
        assert walked == sizes


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "begin with sample 0 and increase.*got samples none"),
        ([(5, 4)], "got samples 5"),
        ([(0, 4), (9, 8), (9, 16)], "got samples 0, 9, 9"),
        ([(0, 0)], "batch size must be a whole number >= 1, got 0"),
        ([(0, 4), (8.5, 8)], "start must be a whole number >= 0, got 8.5"),
        ([0, 8], r"stages must be pairs \(sample, batch size\), such as .*; got \[0, 8\]"),
        ("x", "stages must be pairs .*; got 'x'"),
        (None, "stages must be pairs .*; got None"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        BatchSchedule(stages)


DECAYS = {
    "cosine": (Schedule("cosine", warmup=50), Adam(1e-3)),
    "linear": (Schedule("linear", min_eta=1e-5), Adam(1e-3)),
    "exponential": (Schedule("exponential", warmup=50, every=100), Adam(1e-3)),
    "inverse-sqrt": (Schedule("inverse-sqrt", warmup=20), Adam(1e-3)),
    "multistep": (Schedule("multistep", milestones=[300, 600], gamma=0.1), Adam(1e-3)),
    "SGD": (Schedule("linear"), SGD(1e-1)),
}


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize(("factor", "by_batch"), [(2, 1.0), (2, 0.5), (3, 1.0)])
def test_instead_of_decay_the_batch_takes_its_share_and_no_more(name, factor, by_batch):
    """Where the plan's learning rate is peak / q, the rule's factor is q^by_batch, but for less than a growth step."""
    schedule, optimizer = DECAYS[name]
    plan, exponent = Plan(optimizer, 8, steps=1000, schedule=schedule), 1 if name == "SGD" else 0.5
    most = 8 * factor**4
    sizes = BatchSchedule.instead_of_decay(plan, most=most, factor=factor, by_batch=by_batch)
    assert len(sizes.stages) > 1
    for step in range(int(schedule.warmup), 1000):
        kappa = sizes.size(8 * step) / 8
        wanted = (optimizer.eta / plan.learning_rate(step)) ** by_batch
        assert kappa**exponent <= wanted * (1 + 1e-6)
        assert 8 * kappa == most or (kappa * factor) ** exponent > wanted * (1 - 1e-6)
    assert all(sizes.size(8 * step) == 8 for step in range(int(schedule.warmup)))


def test_a_plan_without_an_end_decays_as_well():
    plan = Plan(Adam(1e-3), 8, schedule=Schedule("step", every=1000, gamma=0.5))
    assert BatchSchedule.instead_of_decay(plan, most=600).stages == ((0, 8), (8000, 32), (16000, 128), (24000, 512))
    assert BatchSchedule.instead_of_decay(Plan(Adam(1e-3), 8), most=600).stages == ((0, 8),)


def test_a_noise_scale_without_upper_end_can_be_printed():
    assert "noise scale 96 [32, inf] samples" in str(noise(32))
