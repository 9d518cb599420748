"""A run that follows a batch-size schedule: it counts its samples, and sets its batch size before each batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from rootscale.batch_size import BatchSize
from rootscale.noise import Noise
from rootscale.training.batch_schedule import BatchSchedule, whole
from rootscale.training.guards import longest_kappa
from rootscale.training.run import Run
from rootscale.training.sampler import ScheduledSampler
from rootscale.training.scheduled_stream import ScheduledStream

__all__ = ["ScheduledRun"]

Item = TypeVar("Item")
_END = object()


class ScheduledRun(Run):
    """A `Run` whose batch size follows a schedule.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(1000, 4), torch.randn(1000, 1))
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=250)

    >>> sampler = ScheduledSampler(len(data), BatchSchedule([(0, 8), (600, 32)]), micro=16)
    >>> loader = DataLoader(data, batch_sampler=sampler)
    >>> run = ScheduledRun(sampler, optimizer, scheduler=scheduler, model=model)

    >>> for epoch in range(2):
    ...     for x, y in run.batches(loader):
    ...         (torch.nn.functional.mse_loss(model(x), y) * run.weight).backward()
    ...         if run.complete:  # with accumulation: the last micro-batch of the step
    ...             _ = torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip(1.0))
    ...             optimizer.step(); scheduler.step(); optimizer.zero_grad()
    >>> run.seen, run.batch_size, scheduler.last_epoch, run.clip(1.0)
    (2008, 32, 251, 0.5)

    Args:
        sampler: the loader's ``batch_sampler``, or a `ScheduledStream`, which is its own loader.
        optimizer: as for `Run`.
        tuned_at: the batch size that the script's numbers belong to; by default the schedule's first.
        process_group: of data-parallel ranks, for `grow`.
        options: the others of `Run`: ``scheduler``, ``model``, ``ema``, ``rule``, ``loss``, ``interval``.

    Raises:
        ValueError: one of the schedule's batch sizes is not possible; nothing has changed.

    Attributes:
        seen: samples trained on, over all ranks; a step counts as soon as its last micro-batch was handed to the loop.
        weight: of the present micro-batch in the mean over the batch of this rank.
        complete: whether the present micro-batch is the last one of its step.
    """

    def __init__(
        self,
        sampler: ScheduledSampler | ScheduledStream,
        optimizer: Any,
        *,
        tuned_at: int | None = None,
        process_group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        self.sampler, self._group = sampler, process_group
        schedule = sampler.schedule
        tuned = schedule.size(0) if tuned_at is None else whole("tuned_at", tuned_at)
        super().__init__(optimizer, tuned_at=self._layout(tuned), **options)
        for start, size in schedule.stages:
            try:
                self._checked(self._resolved(self._layout(size)))
            except ValueError as error:
                self.detach()
                raise ValueError(f"batch size {size} from sample {start} is not possible: {error}") from None
        self.seen, self.weight, self.complete = sampler.position, 1.0, True
        sampler.followed = True

    def _layout(self, size: int) -> BatchSize:
        """Return a batch as the ranks cut it; BatchNorm follows the samples of one forward."""
        try:
            return self.sampler.layout(size)
        except ValueError:  # the script's numbers may belong to a size that these ranks cannot share
            if size in {stage for _, stage in self.sampler.schedule.stages}:
                raise
            return BatchSize(size, 1, 1)

    @property
    def epoch(self) -> int:
        """The number of the pass of the loader that comes now, from 0; a resumed run loops from here on."""
        return self.sampler.pass_number(self.seen)

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield one pass over the loader, from where the run is, and set the batch size before each batch.

        A batch counts as seen when the loop has it: save checkpoints between its step and the next batch.
        """
        given = getattr(loader, "batch_sampler", loader)
        if given is not self.sampler:
            raise ValueError(
                f"the loader's batch_sampler must be the run's sampler, got {type(given).__name__}; "
                "make it as DataLoader(data, batch_sampler=sampler), or give a ScheduledStream itself"
            )
        self.sampler.asked = True
        self.sampler.position = self.seen  # what an interrupted pass had handed out ahead is handed out again
        end, items = self.sampler.pass_end(self.seen), iter(loader)
        while self.seen < end:
            size = self.sampler.schedule.size(self.seen)
            self.batch_size = self._layout(size)
            accumulation = self.sampler.layout(size).accumulation
            self.weight = 1 / accumulation
            for i in range(accumulation):
                item = next(items, _END)
                if item is _END:  # of a stream, which ends between two steps
                    return
                self.complete = i == accumulation - 1
                self.seen += size * self.complete
                yield item  # type: ignore[misc]
        next(items, None)  # lets the loader end its workers

    def grow(self, noise: Noise) -> int | None:
        """Raise the batch size as far as this noise scale allows; for schedules of `BatchSchedule.from_noise`.

        Three limits besides the schedule's own: the optimizer's averages last two steps or more, which floors see to by
        default; momentum that is normalised (Muon, Lion) is more noise than gradient; and ranks and micro-batches can
        share the batch. The change comes with the first batch that has not been handed out yet. With a process group
        every rank has to call this, and all take the smallest of their sizes at the latest of their positions.

        Args:
            noise: of a `NoiseMeter`, in the metric of your choice.

        Returns:
            The new size, or None where it stays.
        """
        schedule, start = self.sampler.schedule, self.sampler.position
        now = schedule.stages[-1][1]
        size = schedule.larger(noise, now)
        if now != self.batch_size:  # a change has been decided that training has not reached
            return None
        longest = min(longest_kappa(one, noise.scale.low / now) for one in self._optimizers)
        while size > now and (size / now >= longest or not self._possible(size)):
            size //= schedule.factor
        if self._group is not None:
            device = self._optimizers[0].optimizer.param_groups[0]["params"][0].device
            message = torch.tensor([start, -size], dtype=torch.int64, device=device)
            dist.all_reduce(message, dist.ReduceOp.MAX, group=self._group)
            start, size = int(message[0]), -int(message[1])
        if size == now or start <= schedule.stages[-1][0]:
            return None
        schedule.extend(start, size)
        return size

    def _possible(self, size: int) -> bool:
        try:
            self._checked(self._resolved(self.sampler.layout(size)))
        except ValueError:
            return False
        return True

    def _own_attributes(self) -> dict[str, Any]:
        names = ("sampler", "_group", "seen", "weight", "complete")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is; save it beside the states of the optimizer, the scheduler and the model."""
        schedule = self.sampler.schedule
        grown = None if schedule.share is None else [list(stage) for stage in schedule.stages]
        return {**self.sampler.state_dict(), "position": self.seen, "grown": grown, "tuned_at": self.tuned_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume a saved run, on any number of ranks, before or after the other states are loaded.

        Raises:
            ValueError: its numbers belong to another batch size than this run takes them for; nothing has changed.
        """
        tuned = state_dict.get("tuned_at", self.tuned_at)
        if tuned != self.tuned_at:
            raise ValueError(
                f"the checkpoint's numbers were tuned at batch size {tuned}, and this run takes them for those of "
                f"{self.tuned_at}: make it with ScheduledRun(..., tuned_at={tuned})"
            )
        self.sampler.load_state_dict(state_dict)
        self.seen = self.sampler.position
        if state_dict["grown"] is not None and self.sampler.schedule.share is not None:
            self.sampler.schedule.stages = BatchSchedule(state_dict["grown"]).stages
        self.batch_size = self._layout(self.sampler.schedule.size(self.seen))
