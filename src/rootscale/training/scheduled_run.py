"""A run that follows a batch-size schedule: it counts its samples, and sets its batch size before each batch."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from rootscale.batch_size import BatchSize
from rootscale.changes import ScalingWarning
from rootscale.training.batch_schedule import BatchSchedule, whole
from rootscale.training.run import Run
from rootscale.training.sampler import ScheduledSampler
from rootscale.training.scheduled_stream import ScheduledStream

Item = TypeVar("Item")
_END = object()


class Following(Protocol):
    """What ends the steps of a run and is saved with it, as `Grow` does."""

    def step(self) -> int | None:
        """End a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is saved."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there."""


class ScheduledRun(Run):
    """A `Run` whose batch size follows a schedule.

    >>> import torch
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
        **options: Any,
    ) -> None:
        self.sampler = sampler
        self._grow: Following | None = None
        self._unfinished = False  # whether a step was handed out whose end `Grow` has not heard of
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
        self._finish()
        self.sampler.asked = True
        self.sampler.position = self.seen  # what an interrupted pass had handed out ahead is handed out again
        end, items = self.sampler.pass_end(self.seen), iter(loader)
        while self.seen < end:
            size = self.sampler.schedule.size(self.seen)
            self.batch_size = self._layout(size)
            accumulation = self.sampler.layout_at(self.seen).accumulation
            self.weight = 1 / accumulation
            for i in range(accumulation):
                item = next(items, _END)
                if item is _END:  # of a stream, which ends between two steps
                    return
                self.complete = i == accumulation - 1
                self.seen += size * self.complete
                self._unfinished = self.complete
                yield item  # type: ignore[misc]
            self._finish()
        next(items, None)  # lets the loader end its workers

    def follow(self, grow: Following | None) -> None:
        """Let a `Grow` end the steps; None lets go of it."""
        self._grow = grow

    def _finish(self) -> None:
        """Let a `Grow` end a step; a loop that stops after it does not come back for the next batch."""
        if self._unfinished and self._grow is not None:
            self._grow.step()
        self._unfinished = False

    def _own_attributes(self) -> dict[str, Any]:
        names = ("sampler", "seen", "weight", "complete")
        return {
            **{name: getattr(self, name) for name in names},
            "_grow": None,
            "_unfinished": False,
        }  # its hooks are on the original

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is; save it beside the states of the optimizer, the scheduler and the model."""
        self._finish()
        schedule = self.sampler.schedule
        grown = [list(stage) for stage in schedule.stages] if schedule.grown else None
        state = {**self.sampler.state_dict(), "position": self.seen, "grown": grown, "tuned_at": self.tuned_at}
        return state if self._grow is None else {**state, "grow": self._grow.state_dict()}

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
        if state_dict["grown"] is not None:
            self._load_grown(BatchSchedule(state_dict["grown"]))
        self.batch_size = self._layout(self.sampler.schedule.size(self.seen))
        if self._grow is not None and "grow" in state_dict:
            self._grow.load_state_dict(state_dict["grow"])

    def _load_grown(self, saved: BatchSchedule) -> None:
        """Go on with the stages to which a `Grow` had come, or say that there is none to go on."""
        schedule, size = self.sampler.schedule, saved.size(self.seen)
        if self._grow is not None:
            schedule.stages, schedule.grown = saved.stages, True
        elif schedule.size(self.seen) != size:
            python_warnings.warn(
                f"the batch of the checkpoint had grown to {size}, and goes on at {schedule.size(self.seen)}, as the "
                "sampler says: make Grow(run) before the checkpoint is loaded to go on from there",
                ScalingWarning,
                stacklevel=3,
            )
