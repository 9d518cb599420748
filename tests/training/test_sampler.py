"""The samples of a schedule: one order, whatever the batches and the ranks."""

import itertools
import math

import numpy as np
import pytest

from rootscale.training import BatchSchedule, ScheduledSampler

N = 50
STAGES = [(0, 4), (60, 8), (130, 24)]


def positions(schedule, passes=4, **options):
    sampler = ScheduledSampler(N, schedule, **options)
    return [list(sampler) for _ in range(passes)]


@pytest.mark.parametrize("order", [{}, {"replacement": True}, {"shuffle": False}])
def test_the_samples_come_in_the_same_order_whatever_the_batches(order):
    flat = [i for one in positions(BatchSchedule([(0, 1)]), 6, **order) for (i,) in one]
    for stages in (STAGES, [(0, 7)], [(0, 24), (100, 3)]):
        batches = list(itertools.chain.from_iterable(positions(BatchSchedule(stages), **order)))
        seen = list(itertools.chain.from_iterable(batches))
        assert seen == flat[: len(seen)]
        assert len({len(batch) for batch in batches}) == len(stages)
    if "replacement" not in order:
        epochs = [flat[i : i + N] for i in range(0, len(flat), N)]
        assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
        assert (epochs[0] == epochs[1]) == (order == {"shuffle": False})


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_see_the_batches_of_one_process(world_size, replacement):
    schedule = BatchSchedule(STAGES)
    whole = positions(schedule, replacement=replacement)
    ranks = [
        positions(schedule, replacement=replacement, rank=rank, world_size=world_size, micro=3)
        for rank in range(world_size)
    ]
    for k, batches in enumerate(whole):
        parts = [list(itertools.chain.from_iterable(rank[k])) for rank in ranks]
        position = [0] * world_size
        for batch in batches:
            joined = []
            for rank, part in enumerate(parts):
                share = len(batch) // world_size
                joined += part[position[rank] : position[rank] + share]
                position[rank] += share
            assert joined == batch


def test_draws_with_replacement_are_uniform_and_independent():
    """20,000 draws: the chi-square of the counts, and that of pairs of neighbours, within 4 standard errors."""
    sampler = ScheduledSampler(10, BatchSchedule([(0, 100)]), replacement=True, epoch=20_000)
    draws = np.array(list(sampler)).ravel()
    for counts in (np.bincount(draws), np.bincount(draws[::2] * 10 + draws[1::2])):
        freedom, expected = len(counts) - 1, counts.mean()
        assert abs(((counts - expected) ** 2 / expected).sum() - freedom) < 4 * math.sqrt(2 * freedom)


def test_a_pass_has_as_many_micro_batches_as_len_says():
    sampler = ScheduledSampler(N, BatchSchedule(STAGES), micro=5)
    for _ in range(5):
        expected = len(sampler)
        assert len(list(sampler)) == expected


@pytest.mark.parametrize(
    ("size", "micro", "ranks", "expected"),
    [(64, None, 1, (64, 1)), (64, 64, 2, (32, 1)), (64, 16, 2, (16, 2)), (96, 64, 1, (48, 2)), (24, 32, 1, (24, 1))],
)
def test_the_layout_is_micro_batches_of_at_most_micro(size, micro, ranks, expected):
    layout = ScheduledSampler(N, BatchSchedule([(0, size)]), micro=micro, rank=0, world_size=ranks).layout(size)
    assert (layout.micro, layout.accumulation) == expected
    assert layout.total == size


def test_batches_that_cannot_be_shared_are_refused_with_sizes_that_can():
    with pytest.raises(ValueError, match="10 cannot be shared equally by 4 ranks; 8 or 12 can"):
        ScheduledSampler(N, BatchSchedule([(0, 8), (80, 10)]), rank=0, world_size=4)
    with pytest.raises(ValueError, match=r"97 samples on each of 1 ranks.*of 64 or a little less; 64 or 128 can"):
        ScheduledSampler(N, BatchSchedule([(0, 97)]), micro=64)
    with pytest.raises(ValueError, match="rank must be below world_size=2, got 2"):
        ScheduledSampler(N, BatchSchedule([(0, 4)]), rank=2, world_size=2)
