"""The callback that follows the global batch size of a fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from rootscale.changes import Changes
from rootscale.format import show
from rootscale.hparams import positive
from rootscale.integrations.lightning.batches import global_batch_size
from rootscale.integrations.lightning.frame import Frame, Interval, find_averages, find_intervals, samples_seen
from rootscale.integrations.lightning.loggers import log_changes, log_samples
from rootscale.integrations.lightning.noise import NoiseLog
from rootscale.integrations.lightning.settings import convert_settings, still_left
from rootscale.noise import Noise
from rootscale.rules import get_rule
from rootscale.training import rescale_
from rootscale.training.averages import tag_of
from rootscale.training.live import Live, Switch
from rootscale.training.markers import KAPPA, TAG, units_of
from rootscale.training.norms import norm_layers
from rootscale.training.prepared import prepare

__all__ = ["RescaleCallback"]

_KEY = "rootscale"  # of the record in a checkpoint


class RescaleCallback(Callback):
    """Converts optimizers, their states and schedulers, weight averages and BatchNorm when the batch size changes.

    Args:
        rule: the text of a rule, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is each
            optimizer's own.
        batch_size: samples per optimizer step over all devices, or a function of the Trainer that returns it; only
            where they cannot be found from the data loader (iterables without ``batch_size``, several loaders) or the
            steps are made by hand (manual optimization).
        saved_batch_size: the same of the checkpoint that is resumed, if it was saved without this callback; its run is
            taken to have had the accumulation of this one.
        ema: names of attributes of the module that are parameter averages, dotted where nested: an
            `torch.optim.swa_utils.AveragedModel`, or anything with a ``decay``. Lightning's ``WeightAveraging``
            callbacks are found without it.
        interval: under manual optimization, whether the module steps its schedulers with every optimizer ``step`` or
            once an ``epoch``.
        trainer_settings: also convert the Trainer's ``gradient_clip_val`` and ``max_steps``.
        noise: log the noise scale as ``noise_scale``, ``noise_scale_low`` and ``noise_scale_high`` (95 % interval),
            every ``log_every_n_steps`` steps. It is measured over the latest 100 steps, or as many as the number given;
            it needs accumulation or DDP, and automatic optimization. A batch that exceeds it is a warning.
        by_samples: let the loggers' step be the samples seen, so that curves before and after a change of batch size
            continue each other. Without it they are logged as ``samples_seen``.

    Attributes:
        changes: what was converted, one `rootscale.Changes` for each change of batch size; with several optimizers its
            rows name the optimizer that they are about, by its position (``optimizer 1: lr``).
    """

    def __init__(
        self,
        rule: str | None = None,
        *,
        batch_size: int | Callable[[Trainer], int] | None = None,
        saved_batch_size: int | None = None,
        ema: str | tuple[str, ...] = (),
        interval: Interval | None = None,
        trainer_settings: bool = True,
        noise: bool | int = False,
        by_samples: bool = False,
    ) -> None:
        get_rule(rule, "adam")  # checks its text
        if interval not in (None, "step", "epoch"):
            raise ValueError(f"interval must be 'step' or 'epoch', got {interval!r}")
        self.rule, self.batch_size = rule, batch_size
        self.saved_batch_size = saved_batch_size
        if saved_batch_size is not None:
            positive("saved_batch_size", saved_batch_size)
        self.ema = (ema,) if isinstance(ema, str) else tuple(ema)
        self.interval, self.trainer_settings = interval, trainer_settings
        self.by_samples = by_samples
        self.noise_window = 100 if noise is True else int(noise)
        self.changes: list[Changes] = []
        self._forget()

    def _forget(self) -> None:
        self._frames: list[Frame] = []
        self._size: int | None = None  # the global batch size that the optimizers' numbers are for
        self._every = 1  # the accumulate_grad_batches that goes with it
        self._wanted: int | None = None  # an accumulate_grad_batches that was asked for
        self._replay = False
        self._states: list[Any] = []  # of the optimizers, in the checkpoint that is resumed
        self._script: list[tuple[Any, str, Any]] = []  # the script's numbers: object, attribute, value
        self._noise: NoiseLog | None = None

    # The life of a fit, in Lightning's order.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start each fit with the script's numbers."""
        if stage == "fit":
            self._forget()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read what the saved run went through."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        record = checkpoint.get(_KEY)
        if record is None and self.saved_batch_size is None:
            raise ValueError(
                "the checkpoint does not say its global batch size, as it was saved without RescaleCallback; give "
                "RescaleCallback(saved_batch_size=...), samples per optimizer step over all devices"
            )
        if record is None:
            self._size = self.saved_batch_size
            self._every = int(trainer.accumulate_grad_batches)
        else:
            self._size, self._every = int(record["batch_size"]), int(record["accumulation"])
            self._frames = [Frame.of(frame) for frame in record["frames"]]
        self._replay = bool(self._frames)
        self._states = checkpoint.get("optimizer_states", [])
        if trainer.strategy.restore_checkpoint_after_setup:  # on_fit_start is over
            self._repeat(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring fresh objects to where they were, before Lightning loads the states of optimizers and schedulers."""
        self._repeat(trainer, pl_module)

    def _repeat(self, trainer: Trainer, module: LightningModule) -> None:
        if self._replay:
            self._replay = False
            for frame in self._frames:
                self._convert(trainer, module, frame)
            for optimizer, state in zip(trainer.optimizers, self._states, strict=False):
                if KAPPA not in state["param_groups"][0]:  # of a version whose runs did not carry their units
                    for group in state["param_groups"]:
                        units_of(optimizer.param_groups).write(group)
            self._states = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Follow the global batch size, and for BatchNorm the accumulation, where an optimizer step begins.

        ``on_train_start`` would be too early: callbacks such as ``GradientAccumulationScheduler`` have yet to set the
        accumulation.
        """
        wanted, every = self._wanted, int(trainer.accumulate_grad_batches)
        if wanted is not None and batch_idx % math.lcm(wanted, every) == 0:
            self._note(trainer, "accumulate_grad_batches")
            trainer.accumulate_grad_batches, self._wanted, every = wanted, None, wanted
        if batch_idx % every == 0:
            self._follow(trainer, pl_module, every)
        if self.noise_window:
            if self._noise is None:
                self._noise = NoiseLog(trainer, pl_module, self.noise_window)
            self._noise.start_batch(batch)

    def _follow(self, trainer: Trainer, module: LightningModule, every: int) -> None:
        size = global_batch_size(trainer, self.batch_size)
        if self._size is not None and (size, every) != (self._size, self._every):
            frame = self._frame(trainer, size / self._size, every)
            changes = self._convert(trainer, module, frame, (self._size, size))
            if changes is not None:
                self.changes.append(changes)
                what = f"global batch size {show(self._size)} -> {show(size)}"
                if size == self._size:
                    what = f"global batch size {show(size)}, accumulated from {self._every} -> {every} batches"
                rank_zero_info(f"{what}: {changes}")
                log_changes(trainer, changes, samples_seen(self._frames, self._size, frame.step), self.by_samples)
            self._frames.append(frame)
        self._size, self._every = size, every

    def _frame(self, trainer: Trainer, kappa: float, every: int) -> Frame:
        return Frame(kappa, self.rule, trainer.global_step, (self._every, every))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Measure the noise of the batch."""
        if self._noise is not None:
            self._noise.start_backward(trainer)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the batch's measurement."""
        if self._noise is not None:
            self._noise.end_backward()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Log the noise, while the gradient is complete and not yet clipped."""
        if self._noise is not None:
            self._noise.end_step(trainer, pl_module, float(self._size or 0))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the samples seen."""
        self._log_samples(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let them be the step of what is logged of the epoch."""
        self._log_samples(trainer, pl_module, epoch=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let them be the step of what is logged of the validation."""
        self._log_samples(trainer, pl_module, epoch=True)

    def _log_samples(self, trainer: Trainer, module: LightningModule, epoch: bool = False) -> None:
        if self._size is not None:
            samples = samples_seen(self._frames, self._size, trainer.global_step)
            log_samples(trainer, module, samples, self.by_samples, epoch)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Record the global batch size, and the changes since the script's numbers."""
        if self._size is not None:
            frames = [asdict(frame) for frame in self._frames]
            checkpoint[_KEY] = {"batch_size": self._size, "accumulation": self._every, "frames": frames}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module and the Trainer the script's numbers back: the next fit starts from them."""
        if stage == "fit":
            self._put_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Do as at the end of a fit."""
        self._put_back()

    def _put_back(self) -> None:
        for thing, name, value in reversed(self._script):
            setattr(thing, name, value)
        self._script = []
        if self._noise is not None:
            self._noise.remove()

    def _note(self, thing: Any, *names: str) -> None:
        self._script += [(thing, name, getattr(thing, name)) for name in names]

    # What users call.

    def rescale(self, trainer: Trainer, kappa: float) -> None:
        """Continue with ``kappa`` times the batch size, by accumulating ``kappa`` times as many batches.

        It is checked now, and done before the next batch at which a step begins in both countings (the first batch of
        the next epoch at the latest).
        """
        if not trainer.training or self._size is None:
            raise RuntimeError("rescale is for a fit under way: call it from a hook, such as on_train_epoch_end")
        if self.batch_size is not None:
            raise ValueError("batch_size was given to RescaleCallback: make the change there, and it will be followed")
        every = Fraction(positive("kappa", kappa)).limit_denominator(10**6) * trainer.accumulate_grad_batches
        if every.denominator != 1:
            raise ValueError(
                f"kappa={show(kappa)} would accumulate {show(every)} batches, which must be a whole number; change the "
                "batch size of the data loader instead (reload_dataloaders_every_n_epochs=1), which is followed"
            )
        frame = self._frame(trainer, float(kappa), int(every))
        live = Live(trainer.optimizers, **self._live(trainer, trainer.lightning_module, frame))
        prepare(live, Switch.of(frame.kappa, forward_kappa=frame.forward), rule=frame.rule)
        self._wanted = int(every)

    def noise(self) -> Noise:
        """Return the noise of the gradient over the latest steps."""
        if self._noise is None:
            raise ValueError("nothing was measured: make the callback with noise=True and train")
        return self._noise.estimate()

    # The change.

    def _live(self, trainer: Trainer, module: LightningModule, frame: Frame) -> dict[str, Any]:
        """The objects of the run besides its optimizers."""
        return {
            "scheduler": [config.scheduler for config in trainer.lr_scheduler_configs],
            "interval": find_intervals(trainer, module, frame, self.interval),
            "model": module,
            "ema": find_averages(trainer, module, self.ema),
        }

    def _convert(
        self, trainer: Trainer, module: LightningModule, frame: Frame, sizes: tuple[int, int] | None = None
    ) -> Changes | None:
        """Convert everything, or raise before anything is touched."""
        if not trainer.optimizers:
            return None
        live = self._live(trainer, module, frame)
        layers = norm_layers(module, refuse_scripted=False).values()
        script: list[tuple[Any, str, Any]] = [(one, "momentum", one.momentum) for one in layers]
        for average in live["ema"]:
            names = [name for name in ("avg_fn", "multi_avg_fn", "decay") if hasattr(average, name)]
            script += [(average, name, getattr(average, name)) for name in names]
        script += [(one, TAG, tag_of(one)) for one in (*layers, *live["ema"])]
        change: dict[str, Any] = {"kappa": frame.kappa} if sizes is None else {"batch_size": sizes}
        changes = rescale_(trainer.optimizers, **change, **live, rule=frame.rule, forward_kappa=frame.forward)
        self._script += script
        if not self.trainer_settings:
            return changes
        rows = tuple(convert_settings(trainer, changes.rule, frame, self._note))
        left = still_left(changes.remaining, rows, frame.kappa)
        return replace(changes, rows=(*changes.rows, *rows), remaining=left)
