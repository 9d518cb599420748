"""Let the batch grow with the noise that the run shows while it trains.

Early in a run the gradient is large and a small batch is enough; later the noise dominates and a larger batch costs no
more samples. `Grow` measures the noise scale in a few of the steps, from gradients that are computed anyway: of
micro-batches, of data-parallel ranks, or of the two halves of a batch. When the lower end of its interval allows a
larger batch, the batch grows, and the run is converted by `Run`.

A step has ``n`` backwards of equal size. A hook at the end of each closes a part of the `NoiseMeter`, so that a loop
needs no line for the measurement.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from rootscale.batch_size import BatchSize
from rootscale.changes import ScalingWarning
from rootscale.format import few_digits, show
from rootscale.hparams import number
from rootscale.noise import Interval, Noise, noise_of
from rootscale.tracking import SAMPLES, numbers
from rootscale.training.batch_schedule import whole
from rootscale.training.gradient_hooks import Backwards
from rootscale.training.guards import longest_kappa
from rootscale.training.metric import Metric
from rootscale.training.noise import NoiseMeter
from rootscale.training.run import Run
from rootscale.training.scheduled_run import ScheduledRun

_LOG = logging.getLogger("rootscale")
#: Measurements from which an interval is taken.
_FEWEST = 8


class StepNoise:
    """Measure the noise in the steps of a loop, from the backwards that the loop makes.

    Args:
        optimizers: whose parameters are watched.
        window: how many of the latest measured steps an estimate is of.
        process_group: of data-parallel ranks, whose gradients are parts of a step too.
        model: of FSDP2, as for `NoiseMeter`.

    Attributes:
        parts: the backwards of the latest complete step.
        metrics: whether the noise of each optimizer is measured in its own metric, ``g / (sqrt(v) + eps)``.
    """

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        window: int = 32,
        process_group: dist.ProcessGroup | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        self._ranks = 1 if process_group is None else dist.get_world_size(process_group)
        self._meters, self.metrics = [], []
        parameters = [p for one in optimizers for group in one.param_groups for p in group["params"] if p.requires_grad]
        self._backwards = Backwards(parameters, self._begun, self._ended)  # its hooks come before those of the meters
        for optimizer in optimizers:
            own = model is None and _has_metric(optimizer)
            self._meters.append(
                NoiseMeter(optimizer, 1, preconditioned=own, process_group=process_group, model=model, listen=False)
            )
            self.metrics.append(own)
        self.rows: deque[list[list[float]]] = deque(maxlen=window)  # [step][optimizer] -> (trace, gradient)
        self.parts, self._count = 0, 0
        self._plan: tuple[int, float] | None = None  # parts of the step that is measured, samples in each
        self._open: ExitStack | None = None
        self._new = False

    def count(self) -> None:
        """Count the backwards of the next step, without measuring it."""
        self._plan = None
        self._backwards.attach()

    def begin(self, parts: int, samples: float) -> None:
        """Measure the next step.

        Args:
            parts: how many backwards it has on this rank; all of them have the same number of samples.
            samples: of all of them, over all ranks.
        """
        self._plan = (parts, samples / (parts * self._ranks)) if parts * self._ranks > 1 else None
        self._backwards.attach()
        for meter in self._meters:
            meter.listen(self._plan is not None)

    def _begun(self) -> None:
        if self._plan is None or self._count >= self._plan[0]:
            return
        parts, samples = self._plan
        self._open = ExitStack()
        for meter in self._meters:
            self._open.enter_context(meter.part(samples, 1 / parts))

    def _ended(self) -> None:
        self._count += 1
        if self._open is None:
            return
        stack, self._open = self._open, None
        stack.close()
        if self._plan is not None and self._count == self._plan[0]:
            for meter in self._meters:
                meter.update()
            self._new = True

    def end(self, factor: float = 1.0, whole: bool = True) -> bool:
        """End a step that was counted or measured; return whether it gave a measurement.

        A step with fewer backwards than it was to have (the last one of an epoch) is left out.

        Args:
            factor: what the second moments of the optimizers were multiplied by since the first measurement, which is
                taken out of measurements in their metric.
            whole: whether the step had all of its samples; it is left out if not.
        """
        self._backwards.detach()
        if self._open is not None:
            self._open.close()
            self._open = None
        measured = whole and self._new and self._plan is not None and self._count == self._plan[0]
        if measured:
            row = [
                [x * (factor if own else 1.0) for x in meter.latest(preconditioned=own)]
                for meter, own in zip(self._meters, self.metrics, strict=True)
            ]
            measured = bool(np.isfinite(row).all())
            if measured:
                self.rows.append(row)
        for meter in self._meters:
            meter.discard()
            meter.listen(False)
        self.parts, self._count, self._plan, self._new = self._count, 0, None, False
        return measured

    def estimate(self, latest: int | None = None) -> Noise | None:
        """Return the noise over the window, or its latest steps; None where they are too few for an interval.

        Of several optimizers it is that with the lowest lower end.
        """
        values = np.array(self.rows)[-(latest or len(self.rows)) :] if self.rows else np.empty((0, 1, 2))
        if len(values) < _FEWEST:
            return None
        found = [noise_of(values[:, i]) for i in range(values.shape[1])]
        return min(found, key=lambda noise: noise.scale.low)

    def remove(self) -> None:
        """Take the hooks off."""
        self._backwards.detach()
        for meter in self._meters:
            meter.remove()


def _has_metric(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer divides by the root of a second moment that a meter can read."""
    try:
        Metric(optimizer)
    except TypeError:
        return False
    return True


class Grow:
    """Grow the batch of a run with the noise scale that it shows while it trains.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from rootscale.training import ScheduledSampler
    >>> _ = torch.manual_seed(0)
    >>> data = TensorDataset(x := torch.randn(2000, 4), x.sum(1, keepdim=True) + 100 * torch.randn(2000, 1))
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    >>> sampler = ScheduledSampler(len(data), 4)
    >>> run = ScheduledRun(sampler, optimizer, model=model)
    >>> grow = Grow(run, most=16, every=2)
    >>> for x, y in run.batches(DataLoader(data, batch_sampler=sampler)):
    ...     (torch.nn.functional.mse_loss(model(x), y) * run.weight).backward()
    ...     if run.complete:
    ...         optimizer.step(); optimizer.zero_grad()
    >>> [size for _, size in sampler.schedule.stages]
    [4, 8, 16]

    A loop that asks its `Run` for the size of each batch calls `step` at the end of every step, after those of the
    optimizer and the scheduler; a `ScheduledRun` does so itself.

    The batch grows by ``factor`` when ``share`` of the **lower end** of the noise scale's 95 % interval is as large as
    the new batch, and never shrinks. Each measurement is a look at an interval, and of many looks a few are too high;
    ``share`` is the margin for that. Where a measurement cannot be trusted the batch stays, and `reason` says why.

    Args:
        run: whose batch grows.
        share: of the noise scale, in (0, 1]; at 1 the noise of a batch is as long as its gradient.
        factor: of each growth, a whole number.
        most: the largest batch size.
        every: one in so many steps is measured.
        window: how many of the latest measurements are taken together.
        process_group: of data-parallel ranks; each of them has a `Grow`, and all decide alike.
        model: of FSDP2, as for `NoiseMeter`.

    Attributes:
        noise: the latest estimate, in the metric of the optimizer; None before there is one.
        reason: why the batch has its size now.
        history: ``(samples seen, batch size, noise)`` of each growth.
    """

    def __init__(
        self,
        run: Run,
        share: float = 0.5,
        factor: int = 2,
        most: int | None = None,
        *,
        every: int = 10,
        window: int = 32,
        process_group: dist.ProcessGroup | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        if not isinstance(run, Run):
            raise TypeError(f"Grow takes the Run of the loop, got {type(run).__name__}: make Run(optimizer, ...) first")
        self.run = run
        self.share = number("share", share, "in (0, 1]", lambda x: 0 < x <= 1)
        self.factor, self.every = whole("factor", factor, 2), whole("every", every)
        if run.batch_size != int(run.batch_size):
            raise ValueError(f"the run must have a whole batch size, got {show(run.batch_size)}")
        self.most = None if most is None else whole("most", most, int(run.batch_size))
        self._group = process_group
        self._ranks = 1 if process_group is None else dist.get_world_size(process_group)
        self._scheduled = run if isinstance(run, ScheduledRun) else None
        if self._scheduled is not None:
            self._check_parts(self._scheduled)
        optimizers = [one.optimizer for one in run.optimizers]
        self._noise = StepNoise(optimizers, whole("window", window, _FEWEST), process_group, model)
        self.noise: Noise | None = None
        self.reason = f"no step was measured yet; one in {self.every} is"
        self.history: list[tuple[float, int, Noise]] = []
        self._steps, self._single = 0, 0
        self._next: tuple[int, Noise] | None = None  # decided, where a step of that size cannot begin yet
        if self._scheduled is not None:
            self._scheduled.follow(self)
        self._prepare()

    def _check_parts(self, run: ScheduledRun) -> None:
        """Refuse a run of which no step could ever be measured; let the sampler halve those that would be alone."""
        if self._ranks == 1 and run.sampler.world_size > 1:
            raise ValueError(
                f"a run on {run.sampler.world_size} ranks needs Grow(..., process_group=torch.distributed.group.WORLD)"
            )
        size = int(run.batch_size)
        if self._ranks == 1 and size % 2:
            raise ValueError(
                f"a batch of {size} on one device cannot be halved, and without two parts nothing tells noise from "
                f"gradient: begin with {size + 1}, or accumulate"
            )
        run.sampler.measured_every = self.every

    # ---- steps

    def step(self, whole: bool = True) -> int | None:
        """End a step; return the new batch size if the batch grows now, or None.

        In a `ScheduledRun` it grows with the first batch that has not been handed out.

        Args:
            whole: whether the step had as many samples as the run's batch; the last of an epoch may have fewer, and
                tells nothing.
        """
        self._steps += 1
        measured = self._noise.end(self._factor(), whole)
        size = None
        if measured and self._next is None:
            self._decide()
        elif whole and self._noise.parts * self._ranks == 1:
            self._single += 1
            if self._single == 2:
                self._cannot()
        if self._next is not None and self.can_begin(self._next[0]):
            size, self._next = self._go(*self._next), None
        self._prepare()
        return size

    def can_begin(self, size: int) -> bool:
        """Return whether the next step can be the first of so many samples; a framework may have to wait for it."""
        return True

    def went_to(self, size: int) -> None:
        """Let whoever makes the batches follow to a batch size, after it has changed or was loaded."""

    def _prepare(self) -> None:
        """Let the next step be measured, or its backwards counted, if it is time to."""
        if self._scheduled is not None:
            sampler, seen = self._scheduled.sampler, self._scheduled.seen
            if sampler.is_measured(seen):
                size = sampler.schedule.size(seen)
                self._noise.begin(sampler.layout_at(seen).accumulation, size)
            return
        place = self._steps % self.every
        if place == self.every - 1:
            self._noise.begin(max(1, self._noise.parts), float(self.run.batch_size))
        elif place == self.every - 2 or self.every == 1:
            self._noise.count()

    def _factor(self) -> float:
        """Return what the second moments have been multiplied by since batches of ``tuned_at``."""
        for one in self.run.optimizers:
            for _, group, projection in one.groups():
                if projection.family.torch.state_name("v") is not None:
                    return projection.state_factor("v", group, one.kappa)
        return 1.0

    def _cannot(self) -> None:
        self.reason = (
            "cannot say: the steps have one backward each, and without two parts nothing tells noise from gradient. "
            "Accumulate two micro-batches or more, train on several ranks (process_group=), or let a ScheduledRun cut "
            "the batches"
        )
        warnings.warn(f"Grow: {self.reason}", ScalingWarning, stacklevel=4)

    # ---- decisions

    def _decide(self) -> None:
        """Decide on the next batch size, if the window of measurements allows one, or say why not."""
        now, count = self._now, len(self._noise.rows)
        self.noise = noise = self._noise.estimate()
        new = now * self.factor
        if noise is None or count < 2 * _FEWEST:
            return self._stay(f"cannot say yet: {count} measurements of the {2 * _FEWEST} that are needed")
        late = self._noise.estimate(count // 2)
        assert late is not None
        if late.scale.high < noise.scale.low:
            return self._stay(
                f"the noise scale falls: {late.scale} in the later half of the window, {noise.scale} in all of it"
            )
        bound = self.share * noise.scale.low
        if new > bound:
            return self._stay(
                f"{show(self.share)} of the noise scale, {noise.scale} samples, is {few_digits(max(bound, 0))} at its "
                f"lower end, less than {show(new)}"
            )
        if self.most is not None and new > self.most:
            return self._stay(f"{show(new)} is above most = {show(self.most)}")
        if self._scheduled is not None and now != self.run.batch_size:
            return self._stay(f"{show(now)} is decided, and begins with a batch that was not handed out yet")
        longest = min(longest_kappa(one, noise.scale.low / now) for one in self.run.optimizers)
        if self.factor >= longest:
            return self._stay(f"at {show(new)} an average of the optimizer would be too short for its rule")
        try:
            self.run.check(self._layout(new))
        except ValueError as error:
            return self._stay(f"{show(new)} is not possible: {error}")
        self._next = new, noise
        return self._stay(f"{show(new)} is decided, and begins with the first step that can have it")

    @property
    def _now(self) -> int:
        if self._scheduled is not None:
            return self._scheduled.sampler.schedule.stages[-1][1]
        return int(self.run.batch_size)

    def _layout(self, size: int) -> BatchSize | int:
        """Return a batch as it is cut: by the sampler; by accumulation where the run has a layout."""
        if self._scheduled is not None:
            return self._scheduled.sampler.layout(size)
        return self.run.layout.at(size) if self.run.layout.laid_out else size

    def _stay(self, reason: str) -> None:
        self.reason = f"batch size {show(self._now)}: {reason}"

    def _go(self, size: int, noise: Noise) -> int | None:
        start = self.run.samples
        if self._scheduled is not None:
            sampler = self._scheduled.sampler
            position = self._agreed(sampler.position)
            if position <= sampler.schedule.stages[-1][0]:
                self._stay("the latest growth begins with a batch that was not handed out yet")
                return None
            sampler.schedule.extend(position, size)
            start = position
        else:
            self.run.batch_size = self._layout(size)
        self.went_to(size)
        self.history.append((start, size, noise))
        self.reason = (
            f"batch size {show(size)} from sample {show(start)} on: {show(self.share)} of the noise scale, "
            f"{noise.scale} samples, is {few_digits(self.share * noise.scale.low)} at its lower end"
        )
        _LOG.info("Grow: %s", self.reason)
        return size

    def _agreed(self, position: int) -> int:
        """Return the latest of the positions of all ranks, whose workers may have read ahead differently."""
        if self._group is None:
            return position
        device = self.run.optimizers[0].optimizer.param_groups[0]["params"][0].device
        message = torch.tensor([position], dtype=torch.int64, device=device)
        dist.all_reduce(message, dist.ReduceOp.MAX, group=self._group)
        return int(message[0])

    # ---- trackers, checkpoints

    def values(self) -> dict[str, float]:
        """Return what trackers log: samples seen, the batch size, and the noise scale with its interval."""
        found: dict[str, float] = {SAMPLES: self.run.samples, "rootscale/batch_size": float(self.run.batch_size)}
        return numbers(found, *(() if self.noise is None else (self.noise,)))

    def __str__(self) -> str:
        grown = [f"{show(size)} from sample {show(start)}" for start, size, _ in self.history]
        return "; ".join([*(["grown to " + ", ".join(grown)] if grown else []), self.reason])

    def state_dict(self) -> dict[str, Any]:
        """Return the window of measurements and the batch size; a `ScheduledRun` saves it with its own."""
        return {
            "steps": self._steps,
            "parts": self._noise.parts,
            "rows": list(self._noise.rows),
            "history": [(start, size, _plain(noise)) for start, size, noise in self.history],
            "layout": self.run.layout.to_json(),
            "next": None if self._next is None else (self._next[0], _plain(self._next[1])),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a run was saved, at the batch size that it had grown to."""
        self._noise.rows.clear()
        self._noise.rows.extend(state_dict["rows"])
        self._steps = state_dict["steps"]
        self.history = [(start, size, _noise(values)) for start, size, values in state_dict["history"]]
        self.noise = self._noise.estimate()
        self._next = None if state_dict["next"] is None else (state_dict["next"][0], _noise(state_dict["next"][1]))
        if self._scheduled is None:
            self.run.batch_size = state_dict["layout"]
            self.went_to(int(self.run.batch_size))
        self._noise.end()
        self._noise.parts = state_dict["parts"]
        self._prepare()

    def remove(self) -> None:
        """Take the hooks off; the run stays as it is."""
        self._noise.remove()
        if self._scheduled is not None:
            self._scheduled.follow(None)
            self._scheduled.sampler.measured_every = 0


def _plain(noise: Noise) -> list[list[float]]:
    return [[part.value, part.low, part.high] for part in (noise.trace, noise.gradient, noise.scale)] + [[noise.steps]]


def _noise(values: list[list[float]]) -> Noise:
    trace, gradient, scale = (Interval(*ends) for ends in values[:3])
    return Noise(trace, gradient, scale, int(values[3][0]))
