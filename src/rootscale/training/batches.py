"""Batch-size schedules: a run whose batch size grows, its samples in one unbroken order, every change a `rescale_`.

Everything is a function of a single number, the **position**: how many samples the run has taken, over all ranks. The
batch that begins at position ``p`` has the size ``B(p)`` of the stage that ``p`` lies in, and takes the positions from
``p`` to ``p + B(p)`` of an order of samples that knows nothing of batches. So a change of batch size in the middle of
an epoch neither repeats nor skips a sample, a checkpoint is one number, and ``W`` ranks that take a slice each see what
one process would.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import distributed as dist
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from rootscale.changes import Changes
from rootscale.format import show
from rootscale.hparams import number, positive
from rootscale.noise import Noise
from rootscale.plan import BatchSize, Plan
from rootscale.rules import Rule, get_rule, shortest_average
from rootscale.training import schedulers
from rootscale.training.adapters import family_of
from rootscale.training.positions import BLOCK, Blocks, generator, samples
from rootscale.training.rescale import rescale_

__all__ = ["BatchSchedule", "ScheduledRun", "ScheduledSampler"]

Item = TypeVar("Item")
Stages = tuple[tuple[int, int], ...]


def _whole(name: str, value: Any, least: int = 1) -> int:
    return int(number(name, value, f"a whole number >= {least}", lambda x: x >= least and x == int(x)))


class BatchSchedule:
    """The batch size as a function of the samples seen.

    A batch has the size of the stage in which it **begins**: no batch is cut, so a change comes with the first batch
    that begins at or after the stage's sample.

    >>> schedule = BatchSchedule([(0, 256), (1_000_000, 1024)])
    >>> schedule.size(999_999), schedule.size(1_000_000)
    (256, 1024)
    >>> print(schedule)
    256 from the start, 1,024 from sample 1,000,000

    Args:
        stages: pairs of the sample from which a size holds, the first of them 0, and the size: samples per optimizer
            step, over all ranks and micro-batches.

    Attributes:
        share, factor, most: of `from_noise`; ``share`` is None where the stages are fixed.
    """

    def __init__(self, stages: Iterable[tuple[int, int]]) -> None:
        self.stages: Stages = tuple((_whole("a stage's start", a, 0), _whole("batch size", b)) for a, b in stages)
        starts = [start for start, _ in self.stages]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(
                "stages must be pairs (sample, batch size) that begin with sample 0 and increase, such as "
                f"[(0, 256), (1_000_000, 1024)]; got samples {', '.join(map(str, starts)) or 'none'}"
            )
        self.share: float | None = None
        self.factor = 2
        self.most: int | None = None

    @classmethod
    def from_noise(cls, start: int, *, share: float = 0.5, factor: int = 2, most: int | None = None) -> BatchSchedule:
        """A schedule without fixed stages, that `ScheduledRun.grow` extends from measured noise scales.

        The size is ``start * factor^i``, and never more than ``share`` of the noise scale: of the lower end of its
        interval, so that a poor measurement does not raise it.

        Args:
            start: the first batch size, which is kept where the noise scale is smaller.
            share: of the noise scale, in (0, 1]; at 1 the noise of a batch is as long as its gradient.
            factor: 2 or more, a whole number.
            most: the largest batch size.
        """
        schedule = cls([(0, start)])
        schedule.share = number("share", share, "in (0, 1]", lambda x: 0 < x <= 1)
        schedule.factor = _whole("factor", factor, 2)
        schedule.most = None if most is None else _whole("most", most, start)
        return schedule

    @classmethod
    def instead_of_decay(
        cls, plan: Plan, *, most: int, factor: int = 2, by_batch: float = 1.0, rule: str | Rule | None = None
    ) -> BatchSchedule:
        """The batch size raised where the plan lowers its learning rate; the trajectory is that of the plan.

        The run with its decaying learning rate, converted by the rule to ``kappa`` times its batch size, has the same
        SDE, whatever ``kappa`` is; its learning rate is ``sqrt(kappa)`` times the decayed one. This schedule chooses,
        where the learning rate has fallen to ``1/q`` of its peak, the largest ``kappa = factor^i`` with

            sqrt(kappa) <= q^by_batch      (``kappa <= q^by_batch`` by SGD's linear rule).

        So with ``by_batch=1`` the batch takes all of the decay: where the plan halves its learning rate, Adam's batch
        becomes four times as large and its learning rate stays. With ``by_batch=1/2`` both share it: the batch is
        doubled and the learning rate divided by ``sqrt(2)``. **Keep the scheduler that decays**: `ScheduledRun`
        converts it, with everything else (``docs/batch-schedules.md`` has the derivation).

        Args:
            plan: its batch size, schedule and length; the batch grows from the end of the warm-up on.
            most: the largest batch size; learning rates that fall to 0 would raise it without end.
            factor: by which the batch size grows, 2 or more, a whole number.
            by_batch: the share of the decay (of its logarithm) that the batch size takes, in (0, 1].
            rule: None is that of the plan's optimizer.

        >>> from rootscale import Adam, Plan, Schedule
        >>> plan = Plan(Adam(1e-3), 64, steps=300, schedule=Schedule("multistep", milestones=[100, 200], gamma=0.5))
        >>> print(BatchSchedule.instead_of_decay(plan, most=1024))
        64 from the start, 256 from sample 6,400, 1,024 from sample 12,800
        >>> print(BatchSchedule.instead_of_decay(plan, most=1024, by_batch=1 / 2))
        64 from the start, 128 from sample 6,400, 256 from sample 12,800
        """
        base = _whole("the plan's batch size", plan.batch_size.total)
        chosen = get_rule(rule, plan.optimizer.name)
        factor, most = _whole("factor", factor, 2), _whole("most", most, base)
        by_batch = number("by_batch", by_batch, "in (0, 1]", lambda x: 0 < x <= 1)
        peak, stages = plan.optimizer.eta, {0: base}
        for i in range(1, math.floor(math.log(most / base, factor) + 1e-9) + 1):
            raised = float(chosen.convert("eta", 1.0, float(factor) ** i))
            step = _first_step_below(plan, peak * raised ** (-1 / by_batch) * (1 + 1e-9))
            if step is not None:
                stages[step * base] = base * factor**i
        return cls(stages.items())

    def __str__(self) -> str:
        words = [
            f"{show(size)} from {f'sample {show(start)}' if start else 'the start'}" for start, size in self.stages
        ]
        if self.share is not None:
            most = "" if self.most is None else f", {show(self.most)} at most"
            words.append(f"then times {self.factor} up to a share {show(self.share)} of the noise scale{most}")
        return ", ".join(words)

    def size(self, position: int) -> int:
        """The size of the batch that begins at this position."""
        return self.stages[bisect_right(self.stages, position, key=lambda stage: stage[0]) - 1][1]

    def walk(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The batches that begin from ``position`` to before ``end``, as ``(position, size, number of batches)``."""
        while position < end:
            size = self.size(position)
            limit = min([end, *(start for start, _ in self.stages if start > position)])
            batches = -(-(limit - position) // size)
            yield position, size, batches
            position += batches * size

    def larger(self, noise: Noise, now: int) -> int:
        """The size that this noise scale allows, from the size ``now``: ``now * factor^i``."""
        if self.share is None:
            raise ValueError("this schedule has fixed stages; one that grows is made by BatchSchedule.from_noise")
        bound = min(self.share * noise.scale.low, math.inf if self.most is None else self.most)
        while now * self.factor <= bound:
            now *= self.factor
        return now

    def extend(self, start: int, size: int) -> None:
        """Add a stage after the others."""
        self.stages = BatchSchedule([*self.stages, (start, size)]).stages


def _first_step_below(plan: Plan, eta: float) -> int | None:
    """The first step after the warm-up whose learning rate is at most ``eta``; None where the plan has none."""
    low = math.ceil(plan.schedule.warmup)
    high = math.ceil(plan.total_steps) if plan.total_steps is not None else max(low, 1)
    if plan.total_steps is None:  # no end: look ahead until it is low enough, or for longer than any run
        while plan.learning_rate(high) > eta and high < 2**40:
            high *= 2
        high += 1
    if high <= low or plan.learning_rate(high - 1) > eta:
        return None
    return low + bisect_left(range(low, high), -eta, key=lambda step: -plan.learning_rate(step))


class _Order:
    """Sample numbers by position: a pure function of the seed, so that nothing has to be saved to resume."""

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


class ScheduledSampler(Sampler[list[int]]):
    """The ``batch_sampler`` of a `torch.utils.data.DataLoader` whose batch size follows a schedule.

    >>> sampler = ScheduledSampler(10, BatchSchedule([(0, 2), (4, 4)]), shuffle=False)
    >>> list(sampler), list(sampler)
    ([[0, 1], [2, 3], [4, 5, 6, 7], [8, 9, 0, 1]], [[2, 3, 4, 5], [6, 7, 8, 9]])

    - **One pass** of the loader has the batches that begin in the present epoch. No batch is short and no sample is
      dropped: the last batch of an epoch is filled up from the next one, which then goes on from there.
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
        schedule: of the batch size over all ranks.
        micro: the most samples in one backward on one rank; None for no limit.
        seed: of the order; the same on all ranks.
        shuffle, replacement: the order, as above.
        rank, world_size: by default those of `torch.distributed` where it is initialised, or 0 and 1.
        epoch: samples in one pass of the loader, if not ``n``.

    Attributes:
        position: of the next batch that has not been handed out.
    """

    def __init__(
        self,
        n: int,
        schedule: BatchSchedule,
        *,
        micro: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        replacement: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int | None = None,
    ) -> None:
        ready = dist.is_available() and dist.is_initialized()
        self.n, self.schedule = _whole("n", n), schedule
        self.micro = None if micro is None else _whole("micro", micro)
        self.world_size = _whole(
            "world_size", (dist.get_world_size() if ready else 1) if world_size is None else world_size
        )
        self.rank = _whole("rank", (dist.get_rank() if ready else 0) if rank is None else rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be below world_size={self.world_size}, got {self.rank}")
        self.epoch = self.n if epoch is None else _whole("epoch", epoch)
        self.position = 0
        self._order = _Order(self.n, _whole("seed", seed, 0), shuffle, replacement)
        for _, size in schedule.stages:
            self.layout(size)

    def layout(self, size: int) -> BatchSize:
        """How a batch of this size is cut: samples in a micro-batch, micro-batches (accumulation), ranks.

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

    def pass_end(self, position: int) -> int:
        """Before which position the last batch of the present pass begins."""
        return (position // self.epoch + 1) * self.epoch

    def __iter__(self) -> Iterator[list[int]]:
        position = self.position
        end = self.pass_end(position)
        while position < end:
            size = self.schedule.size(position)
            layout = self.layout(size)
            micro, share = int(layout.micro), size // self.world_size
            first = position + self.rank * share
            position = self.position = position + size  # from here on the size of this batch is settled
            for start in range(first, first + share, micro):
                yield self._order.indices(start, start + micro)

    def __len__(self) -> int:
        """Micro-batches in the pass that begins now, as far as the schedule is known."""
        walk = self.schedule.walk(self.position, self.pass_end(self.position))
        return sum(batches * self.layout(size).accumulation for _, size, batches in walk)

    def _identity(self) -> dict[str, Any]:
        order = self._order
        return {"n": order.n, "seed": order.seed, "shuffle": order.shuffle, "replacement": order.replacement}

    def state_dict(self) -> dict[str, Any]:
        """The position of what was **handed out**; with workers, save `ScheduledRun.state_dict` instead."""
        return {"position": self.position, "order": self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue; the data and the order must be the same, or samples would be repeated and others left out."""
        if state_dict["order"] != self._identity():
            raise ValueError(
                f"the checkpoint's samples are in another order: it has {state_dict['order']}, "
                f"this sampler {self._identity()}"
            )
        self.position = state_dict["position"]


class ScheduledRun:
    """A training loop that follows a schedule: counts its samples, and converts the run with each change of batch size.

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
        sampler: the loader's ``batch_sampler``.
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
        sampler: ScheduledSampler,
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
        self._options: dict[str, Any] = dict(scheduler=scheduler, model=model, ema=ema, rule=rule, interval=interval)
        self._clip = None if clip is None else positive("clip", clip)
        self._group = process_group
        self.made_for = sampler.schedule.size(0) if made_for is None else _whole("made_for", made_for)
        self._sizes = [self.made_for]  # all sizes that the run has had
        self.seen, self.weight, self.complete = sampler.position, 1.0, True
        self.changes: list[tuple[int, Changes]] = []
        rescale_(optimizer, 1, **self._options)  # changes nothing, refuses what it would refuse in mid-run
        for start, size in sampler.schedule.stages:
            try:
                self._check(size / self.made_for)
            except ValueError as error:
                raise ValueError(f"batch size {size} from sample {start} is not possible: {error}") from None

    @property
    def size(self) -> int:
        """The batch size that everything is converted to."""
        return self._sizes[-1]

    @property
    def clip(self) -> float | None:
        """The largest gradient norm at the present batch size."""
        kappa = self.size / self.made_for
        return None if self._clip is None else float(self._rule.convert("clip", self._clip, kappa))

    @property
    def epoch(self) -> int:
        """The pass of the loader that comes now, counted from 0; a resumed run loops from here on."""
        return self.seen // self.sampler.epoch

    def _check(self, kappa: float) -> None:
        several = self._options["scheduler"]
        for one in several if isinstance(several, Sequence) else [several] * (several is not None):
            schedulers.check(one, self.optimizer, self._rule, kappa)
        for group in self.optimizer.param_groups:
            for key, unit in self._family.torch_units().items():
                schedulers.convert(self._rule, unit, schedulers.read(group[key]), kappa, key)

    def _convert(self, size: int) -> None:
        if size != self.size:
            options = {**self._options, "forward_kappa": self._forward_kappa(size)}
            self.changes.append((self.seen, rescale_(self.optimizer, size / self.size, **options)))
            self._sizes.append(size)

    def _forward_kappa(self, size: int) -> float | None:
        """How many times as many samples a forward has, which is not ``kappa`` where micro-batches are accumulated."""
        new = self.sampler.layout(size)
        try:
            return float(new.forward / self.sampler.layout(self.size).forward)
        except ValueError:  # the settings are meant for a size that these ranks cannot share
            return None

    def batches(self, loader: Iterable[Item]) -> Iterator[Item]:
        """One pass over the loader, from where the run is; converts the run before the first batch of another size.

        A batch counts as seen when the loop has it: save checkpoints between its step and the next batch.
        """
        given = getattr(loader, "batch_sampler", loader)
        if given is not self.sampler:
            raise ValueError(
                f"the loader's batch_sampler must be the run's sampler, got {type(given).__name__}; "
                "make it as DataLoader(data, batch_sampler=sampler)"
            )
        self.sampler.position = self.seen  # what an interrupted pass had handed out ahead is handed out again
        end, items = self.sampler.pass_end(self.seen), iter(loader)
        while self.seen < end:
            size = self.sampler.schedule.size(self.seen)
            self._convert(size)
            accumulation = self.sampler.layout(size).accumulation
            self.weight = 1 / accumulation
            for i in range(accumulation):
                item = next(items)
                self.complete = i == accumulation - 1
                self.seen += size * self.complete
                yield item
        next(items, None)  # lets the loader end its workers

    def grow(self, noise: Noise) -> int | None:
        """Raise the batch size as far as this noise scale allows; for schedules of `BatchSchedule.from_noise`.

        Two limits besides the schedule's own: the optimizer's averages last two steps or more,
        ``kappa (1 - beta) < 1/2``, and ranks and micro-batches can share the batch. The change comes with the first
        batch that has not been handed out yet. With a process group every rank has to call this, and all take the
        smallest of their sizes at the latest of their positions.

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
        while size > now and (size / now >= self._longest_kappa() or not self._possible(size)):
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

    def _longest_kappa(self) -> float:
        names = [key for key in ("betas", "alpha") if key in self._family.torch.values]
        betas = [schedulers.read(group[key]) for group in self.optimizer.param_groups for key in names]
        flat = [beta for some in betas for beta in (some if isinstance(some, tuple) else (some,)) if beta]
        return min(map(shortest_average, flat), default=math.inf)

    def _possible(self, size: int) -> bool:
        try:
            self.sampler.layout(size)
            self._check(size / self.size)
        except ValueError:
            return False
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where the run is. Save it beside the optimizer's, the scheduler's and the model's."""
        schedule = self.sampler.schedule
        grown = None if schedule.share is None else [list(stage) for stage in schedule.stages]
        return {
            **self.sampler.state_dict(),
            "position": self.seen,
            "sizes": list(self._sizes),
            "grown": grown,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a saved run, on any number of ranks. **Load this first**, then the optimizer, scheduler and others.

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
