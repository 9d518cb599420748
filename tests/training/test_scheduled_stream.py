"""Batch schedules over data without indices, and short last batches."""

import copy
import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, IterableDataset

from rootscale import ScalingWarning
from rootscale.training import BatchSchedule, Run, ScheduledRun, ScheduledSampler, ScheduledStream

STAGES = [(0, 4), (8, 8)]


class Numbers(IterableDataset):
    def __init__(self, n, start=0, step=1):
        self.n, self.start, self.step = n, start, step

    def __iter__(self):
        return iter(range(self.start, self.n, self.step))


def adam():
    return torch.optim.Adam(torch.nn.Linear(1, 1).parameters(), lr=1e-3, betas=(0.98, 0.999))


def passed(run, stream):
    return [(run.batch_size, batch.tolist(), run.weight, run.complete) for batch in run.batches(stream)]


def test_a_stream_is_cut_into_the_batches_of_the_schedule_and_the_run_is_converted():
    stream = ScheduledStream(DataLoader(Numbers(27), batch_size=None), BatchSchedule(STAGES), micro=4)
    run = ScheduledRun(stream, optimizer := adam())
    assert passed(run, stream) == [
        (4, [0, 1, 2, 3], 1.0, True),
        (4, [4, 5, 6, 7], 1.0, True),
        (8, [8, 9, 10, 11], 0.5, False),
        (8, [12, 13, 14, 15], 0.5, True),
        (8, [16, 17, 18, 19], 0.5, False),
        (8, [20, 21, 22, 23], 0.5, True),
    ]
    assert (run.seen, run.epoch, run.clip(1.0)) == (24, 1, pytest.approx(2**-0.5))
    assert (optimizer.param_groups[0]["lr"], run.values()["lr"]) == (1e-3, pytest.approx(1e-3 * 2**0.5))
    # What was left is not dropped: it begins the next pass.
    assert [batch for _, batch, *_ in passed(run, stream)][:2] == [[24, 25, 26, 0], [1, 2, 3, 4]]
    assert run.epoch == 2


def test_ranks_take_their_shares_of_their_own_streams():
    with pytest.raises(ValueError, match=r"the streams of 2 ranks may end at different places.*give epoch="):
        ScheduledStream(Numbers(20), BatchSchedule([(0, 4)]), rank=0, world_size=2)
    found = []
    for rank in (0, 1):
        shard = Numbers(20 - rank, rank, 2)  # the second ends before the first
        stream = ScheduledStream(shard, BatchSchedule([(0, 8)]), rank=rank, world_size=2, epoch=24)
        run = ScheduledRun(stream, adam())
        found.append([batch for _, batch, *_ in passed(run, stream)])
        assert (run.seen, run.epoch) == (24, 1)
    assert found == [[[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 0, 2]], [[1, 3, 5, 7], [9, 11, 13, 15], [17, 1, 3, 5]]]


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6])
def test_a_resumed_stream_goes_on_where_it_was(stop):
    def fresh():
        stream = ScheduledStream(Numbers(21), BatchSchedule(STAGES))
        return stream, ScheduledRun(stream, adam())

    def follow(stream, run, number):
        taken = []
        while len(taken) < number:
            for batch in run.batches(stream):
                taken.append((run.epoch, run.batch_size, batch.tolist()))
                if len(taken) == number:
                    break
        return taken

    whole = follow(*fresh(), 8)
    stream, run = fresh()
    assert follow(stream, run, stop) == whole[:stop]
    saved = copy.deepcopy(run.state_dict())
    stream, run = fresh()
    run.load_state_dict(saved)
    assert follow(stream, run, 8 - stop) == whole[stop:]


def test_a_step_that_was_broken_off_is_handed_out_again():
    stream = ScheduledStream(Numbers(16), BatchSchedule([(0, 8)]), micro=4)
    run = ScheduledRun(stream, adam())
    for batch in run.batches(stream):
        assert batch.tolist() == [0, 1, 2, 3]
        break
    assert run.seen == 0
    assert next(batch for _, batch, *_ in passed(run, stream)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="a stream cannot go from sample 16 to 3"):
        stream.position = 3


def test_what_is_no_stream_is_refused():
    empty = ScheduledStream([], BatchSchedule([(0, 2)]))
    with pytest.raises(ValueError, match="the stream has no samples, or cannot be iterated anew"):
        list(empty)
    once = ScheduledStream(iter(range(4)), BatchSchedule([(0, 2)]))
    assert len(list(once)) == 2
    with pytest.raises(ValueError, match="cannot be iterated anew"):
        list(once)
    stream = ScheduledStream(Numbers(8), BatchSchedule([(0, 2)]))
    with pytest.raises(ValueError, match="of a ScheduledSampler, whose samples have indices"):
        stream.load_state_dict(ScheduledSampler(8, BatchSchedule([(0, 2)])).state_dict())
    with pytest.raises(ValueError, match="or give a ScheduledStream itself"):
        next(ScheduledRun(stream, adam()).batches(DataLoader(Numbers(8), batch_size=2)))
    shared = ScheduledStream(Numbers(8), BatchSchedule([(0, 3)]), rank=0, world_size=3, epoch=9)
    with pytest.warns(ScalingWarning, match="4 samples cannot be shared equally by 3 ranks: 1 of them are seen again"):
        shared.load_state_dict({"position": 4, "passes": 0, "order": "stream"})


def epochs(run, loader, optimizer, scheduler, number):
    """What a step uses as its learning rate, by samples seen."""
    rates, seen = {}, 0
    for _ in range(number):
        for batch in loader:
            rates[seen] = run.values()["lr"]
            seen += len(batch)
            optimizer.step()
            scheduler.step()
    return rates


@pytest.mark.parametrize("drop", [True, False])
def test_a_short_last_batch_counts_as_a_whole_step_and_none_keeps_the_clock(drop):
    """100 samples in batches of 32: three and a short one."""
    optimizer = adam()
    scheduler = CosineAnnealingLR(optimizer, T_max=100)
    run = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler)
    rates = epochs(run, DataLoader(range(100), 32, drop_last=drop), optimizer, scheduler, 2)
    exact = {seen: 2e-3 * (1 + math.cos(math.pi * seen / 800)) / 2 for seen in rates}
    off = [abs(rates[seen] / exact[seen] - 1) for seen in rates]
    assert max(off) < 1e-12 if drop else max(off) > 1e-3


def test_a_short_last_batch_that_is_announced_keeps_the_clock():
    optimizer = adam()
    scheduler = CosineAnnealingLR(optimizer, T_max=100)
    run, seen = Run(optimizer, tuned_at=8, batch_size=32, scheduler=scheduler), 0
    for _ in range(4):
        for batch in DataLoader(range(100), 32):
            run.batch_size = len(batch)
            assert run.clock == seen / 8
            assert scheduler.last_epoch == seen // 8
            seen += len(batch)
            optimizer.step()
            scheduler.step()
    assert (scheduler.last_epoch, run.samples) == (50, 400)
