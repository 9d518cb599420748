"""One change of batch size in the life of a run, and what of the run it is about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rootscale.format import show
from rootscale.rules import rule_text

__all__ = ["Frame", "find_averages", "find_intervals", "samples_seen"]

Interval = Literal["step", "epoch"]


@dataclass(frozen=True)
class Frame:
    """One change of batch size, as it stands in checkpoints.

    Args:
        kappa: new global batch size over old one.
        rule: the text of the rule; None is each optimizer's own.
        step: of the Trainer, at which it was made.
        every: ``accumulate_grad_batches`` before and after.
    """

    kappa: float
    rule: str | None
    step: int
    every: tuple[int, int]

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Frame:
        """Return the frame of a checkpoint; those of version 0.0 have the form of averaging apart from the rule."""
        held = {**stored, "every": tuple(stored["every"])}
        averaging = held.pop("averaging", "paper")
        if averaging != "paper":
            held["rule"] = rule_text(held["rule"], averaging)
        return cls(**held)

    @property
    def forward(self) -> float:
        """By how much the samples per forward pass change, on all devices: accumulation is no part of it."""
        before, after = self.every
        return self.kappa * before / after


def samples_seen(frames: Sequence[Frame], size: float, step: int) -> float:
    """Return the samples of a run's steps, each of the batch size that it had; short last batches count as whole ones.

    >>> samples_seen([Frame(4, None, 100, (1, 4))], 64, 110)
    2240.0

    Args:
        frames: the changes so far.
        size: the global batch size of now.
        step: of the Trainer.
    """
    total, last = 0.0, step
    for frame in reversed(frames):
        total, last, size = total + (last - frame.step) * size, frame.step, size / frame.kappa
    return total + last * size


def find_intervals(trainer: Trainer, module: LightningModule, frame: Frame, manual: Interval | None) -> list[Interval]:
    """Return the clock of every scheduler that Lightning knows, which must be all there are.

    Args:
        trainer: of the fit.
        module: that is trained.
        frame: the change.
        manual: the clock under manual optimization.
    """
    configs = trainer.lr_scheduler_configs
    for optimizer in trainer.optimizers:
        known = any(config.scheduler.optimizer is optimizer for config in configs)
        if not known and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            raise ValueError(
                f"a scheduler drives this {type(optimizer).__name__} but Lightning does not know it; return it "
                "from configure_optimizers"
            )
    for config in configs:
        if isinstance(config.scheduler, ReduceLROnPlateau) and config.interval == "step":
            raise ValueError(  # once an epoch, or the batch size changes what its patience means
                "ReduceLROnPlateau with interval='step' counts reports, whose distance in samples would change; "
                "use 'epoch'"
            )
    if module.automatic_optimization:
        return [_interval(config, frame) for config in configs]
    if configs and manual is None:
        raise ValueError(
            "under manual optimization the module steps its schedulers: give RescaleCallback(interval='step') "
            "or 'epoch'"
        )
    return [manual or "step" for _ in configs]


def _interval(config: Any, frame: Frame) -> Interval:
    """Whether the scheduler's clock is the optimizer's or the data's.

    Lightning steps it after batches whose number in the epoch is a multiple of ``frequency`` and at which the
    optimizer steps: every ``lcm(accumulate_grad_batches, frequency)`` batches.
    """
    if config.interval == "epoch":
        return "epoch"
    before, after = (math.lcm(every, config.frequency) for every in frame.every)
    ticks = frame.forward * after / before
    if math.isclose(ticks, frame.kappa, rel_tol=1e-9):  # always so with frequency=1
        return "step"
    if math.isclose(ticks, 1.0, rel_tol=1e-9):
        return "epoch"
    raise ValueError(
        f"{type(config.scheduler).__name__} with frequency={config.frequency} would be stepped after "
        f"{show(ticks)} times as many samples, when the batch size changes by {show(frame.kappa)}; use "
        "frequency=1"
    )


def find_averages(trainer: Trainer, module: LightningModule, names: tuple[str, ...]) -> list[Any]:
    """Return the parameter averages of a run: those of Lightning's callbacks, and attributes of the module by name."""
    found = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StochasticWeightAveraging):
            raise TypeError(
                "StochasticWeightAveraging makes a schedule of its own later, in the old units; use WeightAveraging"
            )
        average = callback._average_model if isinstance(callback, WeightAveraging) else None
        if average is not None and (average.avg_fn or average.multi_avg_fn):  # equal weights need no conversion
            found.append(average)
    for name in names:
        thing: Any = module
        for part in name.split("."):
            if not hasattr(thing, part):
                raise ValueError(f"ema={name!r}: {type(module).__name__} has no such attribute")
            thing = getattr(thing, part)
        found.append(thing)
    return found
