"""A training loop that follows a batch-size schedule: it counts its samples, and every change is a `rescale_`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from rootscale.changes import Changes
from rootscale.hparams import positive
from rootscale.noise import Noise
from rootscale.rules import Rule, get_rule
from rootscale.training.adapters import family_of
from rootscale.training.batch_schedule import BatchSchedule, whole
from rootscale.training.guards import longest_kappa
from rootscale.training.live import Live, Switch
from rootscale.training.markers import same, units_of
from rootscale.training.prepared import prepare
from rootscale.training.rescale import rescale_
from rootscale.training.sampler import ScheduledSampler
from rootscale.training.scheduled_stream import ScheduledStream

__all__ = ["ScheduledRun"]

Item = TypeVar("Item")
_END = object()


class ScheduledRun:
    """Follow a batch-size schedule in a training loop: count samples, and convert the run with each change of size.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.randn(1000, 4), torch.randn(1000, 1))
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=250)

    >>> sampler = ScheduledSampler(len(data), BatchSchedule([(0, 8), (600, 32)]), micro=16)
    >>> loader = DataLoader(data, batch_sampler=sampler)
    >>> run = ScheduledRun(sampler, optimizer, scheduler=scheduler, model=model, clip=1.0)

    >>> for epoch in range(2):
    ...     for x, y in run.batches(loader):
    ...         (torch.nn.functional.mse_loss(model(x), y) * run.weight).backward()
    ...         if run.complete:  # with accumulation: the last micro-batch of the step
    ...             _ = torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
    ...             optimizer.step(); scheduler.step(); optimizer.zero_grad()
    >>> run.seen, run.size, scheduler.last_epoch, run.clip
    (2008, 32, 251, 0.5)

    Args:
        sampler: the loader's ``batch_sampler``, or a `ScheduledStream`, which is its own loader.
        optimizer, scheduler, model, ema, rule, interval: as for `rescale_`.
        clip: the largest gradient norm at the batch size ``made_for``; `clip` is the one for now.
        made_for: the batch size that the settings of these objects are meant for; by default the schedule's first.
            Where the first batch has another size, they are converted before it.
        process_group: of data-parallel ranks, for `grow`.

    Raises:
        ValueError: the settings cannot be converted to one of the schedule's batch sizes; nothing has changed.

    Attributes:
        seen: samples trained on, over all ranks; a step counts as soon as its last micro-batch was handed to the loop.
        size: the batch size that everything is converted to.
        weight: of the present micro-batch in the mean over the batch of this rank.
        complete: whether the present micro-batch is the last one of its step.
        changes: what `rescale_` did, with the position, change by change.
    """

    def __init__(
        self,
        sampler: ScheduledSampler | ScheduledStream,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        model: torch.nn.Module | None = None,
        ema: Any = None,
        clip: float | None = None,
        made_for: int | None = None,
        rule: str | Rule | None = None,
        interval: Literal["step", "epoch"] = "step",
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.sampler, self.optimizer = sampler, optimizer
        self._family = family_of(optimizer)
        self._rule = get_rule(rule, self._family.name)
        self._live: dict[str, Any] = dict(scheduler=scheduler, model=model, ema=ema, interval=interval)
        self._clip = None if clip is None else positive("clip", clip)
        self._group = process_group
        self.made_for = sampler.schedule.size(0) if made_for is None else whole("made_for", made_for)
        self._check_tracked()
        self._sizes = [self.made_for]  # all sizes that the run has had
        self.seen, self.weight, self.complete = sampler.position, 1.0, True
        self.changes: list[tuple[int, Changes]] = []
        rescale_(optimizer, 1, rule=rule, **self._live)  # changes nothing, refuses what it would refuse in mid-run
        for start, size in sampler.schedule.stages:
            try:
                self._prepare(size)
            except ValueError as error:
                raise ValueError(f"batch size {size} from sample {start} is not possible: {error}") from None
        sampler.followed = True

    def _check_tracked(self) -> None:
        """Refuse an optimizer that says it is at another batch size: the first change would find it in mid-run."""
        size = units_of(self.optimizer.param_groups).batch_size
        if size is not None and not same(size, self.made_for):
            raise ValueError(
                f"the optimizer says that it is at batch size {size:.15g}, and the run is taken to be made for "
                f"{self.made_for}, the first of the schedule unless made_for says another: give made_for={size:.15g}"
            )

    @property
    def size(self) -> int:
        """Return the batch size that everything is converted to."""
        return self._sizes[-1]

    @property
    def clip(self) -> float | None:
        """Return the largest gradient norm at the present batch size."""
        kappa = self.size / self.made_for
        return None if self._clip is None else float(self._rule.convert("clip", self._clip, kappa))

    @property
    def epoch(self) -> int:
        """Return the number of the pass of the loader that comes now, from 0; a resumed run loops from here on."""
        return self.sampler.pass_number(self.seen)

    def _prepare(self, size: int) -> None:
        """Check the change to a batch size."""
        switch = Switch.of(size / self.size, forward_kappa=self._forward_kappa(size))
        prepare(Live(self.optimizer, **self._live), switch, rule=self._rule)

    def _convert(self, size: int) -> None:
        if size != self.size:
            options = {**self._live, "rule": self._rule, "forward_kappa": self._forward_kappa(size)}
            changes = rescale_(self.optimizer, batch_size=(self.size, size), **options)
            self.changes.append((self.seen, changes))
            self._sizes.append(size)

    def _forward_kappa(self, size: int) -> float | None:
        """Return the change of the samples in one forward: not ``kappa`` where micro-batches are accumulated."""
        new = self.sampler.layout(size)
        try:
            return float(new.forward / self.sampler.layout(self.size).forward)
        except ValueError:  # the settings are meant for a size that these ranks cannot share
            return None

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """Yield one pass over the loader, from where the run is, and convert the run before each batch of a new size.

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
            self._convert(size)
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
        if now != self.size:  # a change has been decided that training has not reached
            return None
        longest = longest_kappa(self.optimizer, self._family, self._rule, noise.scale.low / now)
        while size > now and (size / now >= longest or not self._possible(size)):
            size //= schedule.factor
        if self._group is not None:
            device = self.optimizer.param_groups[0]["params"][0].device
            message = torch.tensor([start, -size], dtype=torch.int64, device=device)
            dist.all_reduce(message, dist.ReduceOp.MAX, group=self._group)
            start, size = int(message[0]), -int(message[1])
        if size == now or start <= schedule.stages[-1][0]:
            return None
        schedule.extend(start, size)
        return size

    def _possible(self, size: int) -> bool:
        try:
            self.sampler.layout(size)
            self._prepare(size)
        except ValueError:
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is; save it beside the states of the optimizer, the scheduler and the model."""
        schedule = self.sampler.schedule
        grown = None if schedule.share is None else [list(stage) for stage in schedule.stages]
        return {
            **self.sampler.state_dict(),
            "position": self.seen,
            "sizes": list(self._sizes),
            "grown": grown,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume a saved run, on any number of ranks. **Load this first**, then the optimizer, scheduler and others.

        The objects are fresh: they are converted to the batch size of the checkpoint, as they were in the run that
        saved it, so that the others' ``load_state_dict`` finds them as they were saved. If the schedule given now says
        another batch size from here on, the next batch converts them to it.
        """
        sizes = state_dict["sizes"]
        if self._sizes != [sizes[0]]:
            raise ValueError(
                f"the checkpoint is of a run whose settings were made for batch size {sizes[0]}: load it into a fresh "
                f"run with made_for={sizes[0]}; this one has had the batch sizes {', '.join(map(str, self._sizes))}"
            )
        if len(sizes) > 1 and self.optimizer.state:
            raise ValueError("the optimizer has a state already: load the run before the optimizer and the scheduler")
        self.sampler.load_state_dict(state_dict)
        self.seen = self.sampler.position
        if state_dict["grown"] is not None and self.sampler.schedule.share is not None:
            self.sampler.schedule.stages = BatchSchedule(state_dict["grown"]).stages
        for size in sizes[1:]:
            self._convert(size)
