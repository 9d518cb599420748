"""The batches of a schedule, as a sampler of torch: samples in one unbroken order, whatever the batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import Sampler

from rootscale.batch_size import BatchSize
from rootscale.training.batch_schedule import BatchSchedule, whole
from rootscale.training.positions import BLOCK, Blocks, generator, samples


class _Order:
    """Give sample numbers by position, as a pure function of the seed: nothing has to be saved to resume."""

    def __init__(self, n: int, seed: int, shuffle: bool, replacement: bool) -> None:
        self.n, self.seed, self.shuffle, self.replacement = n, seed, shuffle, replacement
        self._blocks = Blocks(BLOCK if replacement else n, self._draw)

    def indices(self, start: int, stop: int) -> list[int]:
        found: list[int] = self._blocks.between(start, stop).tolist()
        return found

    def _draw(self, block: int) -> torch.Tensor:
        if not self.shuffle and not self.replacement:
            return torch.arange(self.n)
        return samples(self.n, self.replacement, generator(self.seed, int(self.replacement), block))


class Layouts:
    """Say how the batches of a schedule are cut for ranks and accumulation.

    Args:
        schedule, micro, rank, world_size: as for `ScheduledSampler`.

    Attributes:
        followed: whether a `ScheduledRun` converts a run for these batches.
        asked: whether it asks for the pass that comes now.
        measured_every: one batch in so many comes in two halves or more, for `Grow` to compare; 0 is none.
    """

    def __init__(
        self, schedule: BatchSchedule | int, micro: int | None, rank: int | None, world_size: int | None
    ) -> None:
        ready = dist.is_available() and dist.is_initialized()
        self.schedule = schedule if isinstance(schedule, BatchSchedule) else BatchSchedule([(0, schedule)])
        self.followed, self.asked, self.measured_every = False, False, 0
        self.micro = None if micro is None else whole("micro", micro)
        self.world_size = whole(
            "world_size", (dist.get_world_size() if ready else 1) if world_size is None else world_size
        )
        self.rank = whole("rank", (dist.get_rank() if ready else 0) if rank is None else rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size={self.world_size}, got {self.rank}")
        for _, size in self.schedule.stages:
            self.layout(size)

    def layout(self, size: int) -> BatchSize:
        """Return how a batch of this size is cut: samples in a micro-batch, micro-batches (accumulation), ranks.

        >>> print(ScheduledSampler(100, BatchSchedule([(0, 64)]), micro=16, rank=0, world_size=2).layout(64))
        64 (16 micro x 2 accumulation x 2 workers)
        """
        share, rest = divmod(size, self.world_size)
        if rest:
            raise ValueError(
                f"batch size {size} cannot be shared equally by {self.world_size} ranks; "
                f"{share * self.world_size or self.world_size} or {(share + 1) * self.world_size} can"
            )
        if self.micro is None or share <= self.micro:
            return BatchSize(share, 1, self.world_size)
        accumulation = next(a for a in range(-(-share // self.micro), share + 1) if share % a == 0)
        if 2 * (share // accumulation) <= self.micro:
            step = self.micro * self.world_size
            raise ValueError(
                f"batch size {size} is {share} samples on each of {self.world_size} ranks, which cannot be cut into "
                f"equal micro-batches of {self.micro} or a little less; "
                f"{size // step * step} or {(size // step + 1) * step} can"
            )
        return BatchSize(share // accumulation, accumulation, self.world_size)

    def is_measured(self, position: int) -> bool:
        """Return whether the noise is measured in the batch that begins here: a pure function of the position."""
        every = self.measured_every
        return bool(every) and position // self.schedule.size(position) % every == every - 1

    def layout_at(self, position: int) -> BatchSize:
        """Return how the batch that begins here is cut: one that is measured is halved, if it is in one piece."""
        layout = self.layout(self.schedule.size(position))
        if layout.accumulation * layout.workers > 1 or layout.micro % 2 or not self.is_measured(position):
            return layout
        return BatchSize(layout.micro // 2, 2, 1)

    def begin(self) -> None:
        """Refuse a pass that a `ScheduledRun` does not see: batches would change their size, and the run stay as it is.

        Raises:
            RuntimeError: the loader is iterated, and not ``run.batches(loader)``.
        """
        if self.followed and not self.asked:
            raise RuntimeError(
                "a ScheduledRun follows these batches, and converts the run only where it hands them out: write "
                "`for x, y in run.batches(loader)` instead of `for x, y in loader`"
            )
        self.asked = False


class ScheduledSampler(Layouts, Sampler[list[int]]):
    """Serve as the ``batch_sampler`` of a `torch.utils.data.DataLoader` whose batch size follows a schedule.

    >>> sampler = ScheduledSampler(10, BatchSchedule([(0, 2), (4, 4)]), shuffle=False)
    >>> list(sampler), list(sampler)
    ([[0, 1], [2, 3], [4, 5, 6, 7], [8, 9, 0, 1]], [[2, 3, 4, 5], [6, 7, 8, 9]])

    - **One pass** of the loader has the batches that begin in the present epoch. No batch is short and no sample is
      dropped: the last batch of an epoch is filled up from the next epoch, which continues from there.
    - **Order**: shuffled anew for every epoch, or in order (``shuffle=False``), or each sample drawn independently
      (``replacement=True``, as the theory wants it). It depends on the seed and on the position alone, not on batch
      sizes, ranks or workers.
    - **Ranks** take slices of the same positions: ``W`` ranks see exactly what one process with the same batch sees. So
      draws with replacement are independent across ranks and equal in law to those of one process, because they are the
      same draws.
    - **Accumulation**: a rank's share of a batch that is larger than ``micro`` comes in several equal micro-batches.
    - **Workers and prefetching**: batches are handed out ahead of training. `ScheduledRun` keeps count of those that
      were trained on, and decides changes only for batches that were not handed out yet.

    Args:
        n: samples in the data.
        schedule: of the batch size over all ranks; a number is one size, from which `Grow` may go on.
        micro: the most samples in one backward on one rank; None for no limit.
        seed: of the order; the same on all ranks.
        shuffle, replacement: the order, as above.
        rank, world_size: by default those of `torch.distributed` where it is initialized, or 0 and 1.
        epoch: samples in one pass of the loader, if not ``n``.

    Attributes:
        position: of the next batch that has not been handed out.
    """

    def __init__(
        self,
        n: int,
        schedule: BatchSchedule | int,
        *,
        micro: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        replacement: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(schedule, micro, rank, world_size)
        self.n = whole("n", n)
        self.epoch = self.n if epoch is None else whole("epoch", epoch)
        self.position = 0
        self._order = _Order(self.n, whole("seed", seed, 0), shuffle, replacement)

    def pass_number(self, position: int) -> int:
        """Return the number of the pass that a position is in, from 0."""
        return position // self.epoch

    def pass_end(self, position: int) -> int:
        """Return the position at which the present pass ends: its last batch begins before it."""
        return (position // self.epoch + 1) * self.epoch

    def __iter__(self) -> Iterator[list[int]]:
        self.begin()
        position = self.position
        end = self.pass_end(position)
        while position < end:
            size = self.schedule.size(position)
            micro, share = int(self.layout_at(position).micro), size // self.world_size
            first = position + self.rank * share
            position = self.position = position + size  # from here on the size of this batch is settled
            for start in range(first, first + share, micro):
                yield self._order.indices(start, start + micro)

    def __len__(self) -> int:
        """Return the number of micro-batches in the pass that begins now, as far as the schedule is known."""
        walk = self.schedule.walk(self.position, self.pass_end(self.position))
        return sum(self._micro_batches(start, size, batches) for start, size, batches in walk)

    def _micro_batches(self, start: int, size: int, batches: int) -> int:
        """Return in how many parts so many batches of a stage come."""
        whole_ones, every = batches * self.layout(size).accumulation, self.measured_every
        if not every:
            return whole_ones
        first = start // size
        halved = (first + batches) // every - first // every  # those whose number ends a period
        place = (first // every * every + every - 1) * size + start % size
        return whole_ones + halved * (self.layout_at(place).accumulation - self.layout(size).accumulation)

    def _identity(self) -> dict[str, Any]:
        order = self._order
        return {"n": order.n, "seed": order.seed, "shuffle": order.shuffle, "replacement": order.replacement}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of what was **handed out**; with workers, save `ScheduledRun.state_dict` instead."""
        return {"position": self.position, "order": self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume; the data and the order must be the same, or samples would be repeated and others left out."""
        if state_dict["order"] != self._identity():
            raise ValueError(
                f"the checkpoint's samples are in another order: it has {state_dict['order']}, "
                f"this sampler {self._identity()}"
            )
        self.position = state_dict["position"]
