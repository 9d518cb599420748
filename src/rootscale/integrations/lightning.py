"""Lightning: a callback that makes the steps of a fit at its global batch size of now.

    global batch size = batch size of the data loader * accumulate_grad_batches * data-parallel devices

All numbers in the script (the module's, the callbacks' and the Trainer's) are those of one batch size, ``tuned_at``,
and stay so: a `rootscale.training.Run` makes the steps. Checkpoints hold the script's numbers and state in the script's
units, so that every script resumes every checkpoint, at any batch size.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.noise import Noise
from rootscale.tracking import SAMPLES, above_noise, numbers, step_values
from rootscale.training.grow import Grow
from rootscale.training.noise import NoiseMeter
from rootscale.training.optimizers import Rules
from rootscale.training.run import Run, Size
from rootscale.training.schedulers import Interval, check_interval

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
    from lightning.pytorch.utilities.data import extract_batch_size
except ImportError as error:
    raise ImportError(
        "rootscale.integrations.lightning needs Lightning 2.6 or newer: pip install 'rootscale[lightning]'"
    ) from error

__all__ = ["RunCallback", "global_batch_size"]

_STEP = "step"  # the name that Lightning takes for the step of all that is logged with it


def device_count(trainer: Trainer) -> int:
    """Return how many devices take batches of their own."""
    sampler: Mapping[str, int] = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return int(sampler.get("num_replicas", 1))


def global_batch_size(trainer: Trainer, batch_size: Size | Callable[[Trainer], Size] | None = None) -> BatchSize:
    """Return the samples per optimizer step of a fit under way: per device x accumulation x devices.

    Args:
        trainer: its Trainer.
        batch_size: that number or layout, or a function that returns it, where it cannot be found.
    """
    if batch_size is not None:
        return BatchSize.of(batch_size(trainer) if callable(batch_size) else batch_size)
    loader: Any = trainer.train_dataloader
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"the batch size cannot be found in the train_dataloader, a {type(loader).__name__}; give "
            "RunCallback(batch_size=...), samples per optimizer step over all devices"
        )
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(
            "under manual optimization only the module knows how many batches make a step; give "
            "RunCallback(batch_size=...), samples per optimizer step over all devices"
        )
    return BatchSize(size, int(trainer.accumulate_grad_batches), device_count(trainer))


class RunCallback(Callback):
    """Makes the steps of a fit at the global batch size of now, with a script that was tuned at another one.

    Optimizers, schedulers, weight averages and BatchNorm follow, and of the Trainer ``gradient_clip_val`` and
    ``max_steps``, which are those of ``tuned_at``. After the fit everything is as the script made it.

    Args:
        tuned_at: the batch size that the script's numbers belong to, a number or ``"8x4x2"``, per device x accumulation
            x devices. A model with BatchNorm needs the latter where accumulation or devices differ.
        batch_size: samples per optimizer step over all devices, or a function of the Trainer that returns it; only
            where they cannot be found from the data loader (iterables without ``batch_size``, several loaders) or the
            steps are made by hand (manual optimization).
        ema: names of attributes of the module that are parameter averages, dotted where nested (see
            `rootscale.training.Run`). Lightning's ``WeightAveraging`` callbacks are found without it.
        rule, loss: as for `rootscale.training.Run`.
        interval: under manual optimization, whether the module steps its schedulers with every optimizer ``step`` or
            once an ``epoch``; None is found from the calls.
        noise: log the noise scale as ``noise_scale``, ``noise_scale_low`` and ``noise_scale_high`` (95 % interval),
            every ``log_every_n_steps`` steps. It is measured over the latest 100 steps, or as many as the number given;
            it needs accumulation or DDP, and automatic optimization. A batch that exceeds it is a warning.
        grow: let the batch grow with the noise that the run shows: the arguments of `rootscale.training.Grow`, as in
            ``grow={"share": 0.5, "most": 256}``. It grows by ``accumulate_grad_batches``, so that the data loader stays
            as it is, is saved with every checkpoint, and goes on from there. It needs accumulation or DDP.
        by_samples: let the loggers' step be the samples seen, so that curves of different batch sizes continue each
            other. Without it they are logged as ``samples_seen``.

    Attributes:
        run: made when a fit starts, and detached when it ends.
        grow: the `Grow` of this fit; its ``reason`` says why the batch has its size.
        changes: the script's numbers and those of a step, one `rootscale.Changes` for each batch size of the fit.
    """

    def __init__(
        self,
        tuned_at: Size,
        *,
        batch_size: Size | Callable[[Trainer], Size] | None = None,
        ema: str | tuple[str, ...] = (),
        rule: Rules = None,
        loss: Literal["mean", "sum"] = "mean",
        interval: Interval | None = None,
        noise: bool | int = False,
        grow: Mapping[str, Any] | None = None,
        by_samples: bool = False,
    ) -> None:
        self.tuned_at, self.batch_size = BatchSize.of(tuned_at), batch_size
        self.ema = (ema,) if isinstance(ema, str) else tuple(ema)
        self.rule, self.loss, self.interval = rule, loss, check_interval(interval)
        self.by_samples = by_samples
        self._growth = None if grow is None else dict(grow)
        self.noise_window = 100 if noise is True else int(noise)
        self.run: Run | None = None
        self.changes: list[Changes] = []
        self._forget()

    def _forget(self) -> None:
        self._size: BatchSize | None = None
        self._script: dict[tuple[int, str], tuple[Any, str, Any]] = {}  # the Trainer's numbers, as the script has them
        self._noise: NoiseLog | None = None
        self.grow: _Grow | None = None
        self._saved: Mapping[str, Any] | None = None

    # ---- the life of a fit, in Lightning's order

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start each fit anew."""
        if stage == "fit":
            self.run, self.changes = None, []
            self._forget()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the run; states are loaded later, and in the script's units."""
        if not trainer.optimizers:
            return
        configs = trainer.lr_scheduler_configs
        for config in configs:
            if isinstance(config.scheduler, ReduceLROnPlateau) and config.interval == "step":
                raise ValueError(  # once an epoch, or the batch size changes what its patience means
                    "ReduceLROnPlateau with interval='step' counts reports, whose distance in samples changes with "
                    "the batch size; use 'epoch'"
                )
        self.run = Run(
            trainer.optimizers,
            tuned_at=self.tuned_at,
            scheduler=[config.scheduler for config in configs] or None,
            model=pl_module,
            ema=list(_averages(trainer, pl_module, self.ema)),
            rule=self.rule,
            loss=self.loss,
            interval=self.interval,
        )
        if trainer.fit_loop.epoch_loop.max_steps > 0:  # until the steps that were made are loaded: they are of any size
            self._set(trainer.fit_loop.epoch_loop, "max_steps", sys.maxsize)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the batch size, before the Trainer asks whether the fit is over."""
        if self._growth is not None and self._saved is not None:
            size = BatchSize.of(self._saved["batch_size"])
            self._accumulate(trainer, _accumulation(trainer, int(size.total), self.batch_size))
        self._follow(trainer, pl_module)
        if self._growth is not None and self.run is not None:
            self.grow = _Grow(self.run, trainer, self._accumulate, self._growth)
            if self._saved is not None:
                self.grow.load_state_dict(self._saved["grow"])

    def _accumulate(self, trainer: Trainer, number: int) -> None:
        self._set(trainer, "accumulate_grad_batches", number)

    def state_dict(self) -> dict[str, Any]:
        """Return where a batch that grows is; a checkpoint has it."""
        if self.grow is None or self._size is None:
            return {}
        return {"batch_size": self._size.to_json(), "grow": self.grow.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when the fit begins."""
        self._saved = state_dict or None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Follow the batch size where an optimizer step begins: a loader or the accumulation may have changed."""
        if batch_idx % int(trainer.accumulate_grad_batches) == 0:
            self._follow(trainer, pl_module)
        if self.noise_window:
            if self._noise is None:
                self._noise = NoiseLog(trainer, pl_module, self.noise_window)
            self._noise.start_batch(batch)

    def _follow(self, trainer: Trainer, module: LightningModule) -> None:
        if self.run is None:
            return
        size = global_batch_size(trainer, self.batch_size)
        if self._size == size:
            return
        self.run.batch_size = size.total if size.plain and not self.tuned_at.laid_out else size
        self._size = size
        if module.automatic_optimization:
            for held, config in zip(self.run.schedulers, trainer.lr_scheduler_configs, strict=True):
                held.interval = "epoch" if config.interval == "epoch" else "step"
                # Lightning counts the frequency in batches, and steps where an optimizer step ends too.
                held.per_step, steps = 1 / _steps_of_call(self.tuned_at, config), _steps_of_call(size, config)
                held.per_call = steps * held.per_step
        self._set_trainer(trainer)
        self.changes.append(self.run.changes)
        rank_zero_info(str(self.run))
        step = int(self.run.samples) if self.by_samples else trainer.fit_loop.epoch_loop._batches_that_stepped
        for logger in trainer.loggers:
            logger.log_metrics(numbers(self.run), step=step)

    def _set_trainer(self, trainer: Trainer) -> None:
        """Set what the Trainer and its callbacks count in steps, and the clip, for the batch size of now."""
        assert self.run is not None
        later = [one for one in trainer.callbacks if isinstance(one, EMAWeightAveraging)]  # type: ignore[attr-defined]
        held: list[tuple[Any, str]] = [(trainer.fit_loop.epoch_loop, "max_steps")]
        held += [(callback, "update_starting_at_step") for callback in later]
        done, kappa = sum(self.run.clocks), self.run.kappa
        for thing, name in held:
            script = self._number(thing, name)
            if script is not None and script > 0:
                left = math.ceil((script - done) / kappa - 1e-6)
                self._set(thing, name, max(0, trainer.global_step + left))
        clip = self._number(trainer, "gradient_clip_val")
        if clip:
            self._set(trainer, "gradient_clip_val", self.run.clip(float(clip)))

    def _number(self, thing: Any, name: str) -> Any:
        """Return a number as the script has it."""
        return self._script[id(thing), name][2] if (id(thing), name) in self._script else getattr(thing, name)

    def _set(self, thing: Any, name: str, value: Any) -> None:
        self._script.setdefault((id(thing), name), (thing, name, getattr(thing, name)))
        setattr(thing, name, value)

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
        """Log what the step uses, and the noise, while the gradient is complete and not yet clipped."""
        if self._noise is not None and self.run is not None:
            self._noise.end_step(trainer, pl_module, float(self.run.batch_size))
        due = (trainer.global_step + 1) % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        if self.run is not None and trainer.loggers and due:
            pl_module.log_dict(step_values(self.run.values()), batch_size=1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the samples seen, and let the batch grow where a step ends."""
        self._log_samples(trainer, pl_module)
        last = batch_idx + 1 == trainer.num_training_batches
        if self.grow is not None and (last or (batch_idx + 1) % int(trainer.accumulate_grad_batches) == 0):
            if self.grow.end_step(batch_idx + 1, extract_batch_size(batch)):
                self._follow(trainer, pl_module)
            if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
                for logger in trainer.loggers:
                    step = int(self.run.samples) if self.by_samples and self.run is not None else trainer.global_step
                    logger.log_metrics(self.grow.values(), step=step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let them be the step of what is logged of the epoch."""
        self._log_samples(trainer, pl_module, epoch=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let them be the step of what is logged of the validation."""
        self._log_samples(trainer, pl_module, epoch=True)

    def _log_samples(self, trainer: Trainer, module: LightningModule, epoch: bool = False) -> None:
        if self.run is None or not trainer.loggers or trainer.sanity_checking:
            return
        value = torch.tensor(self.run.samples, dtype=torch.float64)  # in float32 the 16,777,217th would be lost
        for name in (SAMPLES, _STEP) if self.by_samples else (SAMPLES,):
            if name == _STEP or not epoch:
                module.log(name, value, on_step=not epoch, on_epoch=epoch, batch_size=1)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module and the Trainer as the script made them: the next fit starts from there."""
        if stage == "fit":
            self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Do as at the end of a fit."""
        self._end()

    def _end(self) -> None:
        for thing, name, value in self._script.values():
            setattr(thing, name, value)
        self._script = {}
        if self._noise is not None:
            self._noise.remove()
        if self.grow is not None:
            self.grow.remove()
        if self.run is not None:
            self.run.detach()

    # ---- what users call

    def noise(self) -> Noise:
        """Return the noise of the gradient over the latest steps."""
        if self._noise is None:
            raise ValueError("nothing was measured: make the callback with noise=True and train")
        return self._noise.estimate()


def _steps_of_call(size: BatchSize, config: Any) -> float:
    """Return the optimizer steps between two calls of a scheduler.

    Lightning steps it after batches whose number in the epoch is a multiple of ``frequency`` and at which the optimizer
    steps: every ``lcm(accumulation, frequency)`` batches.
    """
    return math.lcm(size.accumulation, config.frequency) / size.accumulation


def _averages(trainer: Trainer, module: LightningModule, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the parameter averages of a fit: those of Lightning's callbacks, and attributes of the module by name."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, StochasticWeightAveraging):
            raise TypeError(
                "StochasticWeightAveraging makes a schedule of its own later, in steps of now; use WeightAveraging"
            )
        average = callback._average_model if isinstance(callback, WeightAveraging) else None
        if average is not None and (average.avg_fn or average.multi_avg_fn):  # equal weights stay equal
            yield average
    for name in names:
        thing: Any = module
        for part in name.split("."):
            if not hasattr(thing, part):
                raise ValueError(f"ema={name!r}: {type(module).__name__} has no such attribute")
            thing = getattr(thing, part)
        yield thing


def _accumulation(trainer: Trainer, size: int, given: Any = None) -> int:
    """Return the batches of the data loader that make so many samples, on the devices of now."""
    forward = int(global_batch_size(trainer, given).forward)
    if size % forward:
        raise ValueError(
            f"the batch of the checkpoint had grown to {size}, which {forward} samples over all devices cannot make: "
            f"choose a loader whose batch size x devices divides {size}"
        )
    return size // forward


class _Grow(Grow):
    """A `Grow` by accumulation, which begins where Lightning's count of batches divides.

    Args:
        run: of the fit.
        trainer: whose accumulation grows.
        accumulate: sets it until the fit ends.
        options: of `Grow`.
    """

    def __init__(
        self, run: Run, trainer: Trainer, accumulate: Callable[[Trainer, int], None], options: Mapping[str, Any]
    ) -> None:
        devices = _devices_measured("grow=", trainer)
        if trainer.accumulate_grad_batches < 2 and devices == 1:
            raise ValueError(
                "grow= needs accumulate_grad_batches >= 2 or DDP to tell noise from gradient: with half the batch size "
                "in the data loader and accumulate_grad_batches=2 the batch is as it was"
            )
        self._trainer, self._accumulate = trainer, accumulate
        self._forward = int(run.batch_size) // int(trainer.accumulate_grad_batches)
        self._batches = 0  # of the epoch until now
        group = torch.distributed.group.WORLD if devices > 1 else None
        super().__init__(run, process_group=group, **options)

    def end_step(self, batches: int, samples: int) -> bool:
        """End a step after so many batches of the epoch, the last with so many samples; return whether it has grown."""
        self._batches = batches
        whole = batches % int(self._trainer.accumulate_grad_batches) == 0 and samples * self._ranks == self._forward
        return self.step(whole) is not None

    def can_begin(self, size: int) -> bool:
        """Return whether Lightning, which counts batches from the beginning of an epoch, can end such a step whole."""
        left = self._batches % (size // self._forward)
        return left == 0 or self._batches == self._trainer.num_training_batches

    def went_to(self, size: int) -> None:
        """Accumulate that much."""
        self._accumulate(self._trainer, size // self._forward)


def _devices_measured(name: str, trainer: Trainer) -> int:
    """Return the devices whose gradients are seen, or refuse a fit in which they cannot be."""
    devices = device_count(trainer)
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(f"{name} needs automatic optimization: the parts of a step are its batches")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ValueError(f"{name} does not work with a GradScaler (precision='16-mixed'); bf16-mixed does")
    if devices > 1 and not isinstance(trainer.strategy, DDPStrategy):
        raise ValueError(f"{name} needs one device or DDP, got {type(trainer.strategy).__name__}")
    return devices


class NoiseLog:
    """A `NoiseMeter` fed by the Trainer's own backwards: each batch is a part of its step.

    Args:
        trainer: of the fit.
        module: that is trained.
        window: how many steps to measure over.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, window: int) -> None:
        devices = _devices_measured("noise=True", trainer)
        group = torch.distributed.group.WORLD if devices > 1 else None
        self._meter = NoiseMeter(trainer.optimizers[0], window, process_group=group)
        self._devices, self._parts, self._samples = devices, 0, 1
        self._part: AbstractContextManager[None] | None = None
        self._warned = False

    def start_batch(self, batch: Any) -> None:
        """Take the number of samples of the next batch."""
        self._samples = extract_batch_size(batch)

    def start_backward(self, trainer: Trainer) -> None:
        """Start a part of the step, with the weight that Lightning gives it."""
        self._part = self._meter.part(self._samples, 1 / trainer.accumulate_grad_batches)
        self._part.__enter__()

    def end_backward(self) -> None:
        """End the part."""
        if self._part is not None:
            self._part.__exit__(None, None, None)
            self._part, self._parts = None, self._parts + 1

    def end_step(self, trainer: Trainer, module: LightningModule, size: float) -> None:
        """Take in a complete gradient, not yet clipped, and log the noise scale where it is time to log.

        Args:
            trainer, module: of the fit.
            size: the global batch size.
        """
        parts, self._parts = self._parts, 0
        if parts * self._devices < 2:  # no accumulation, or the last batch of an epoch by itself
            self._meter.discard()
            return
        self._meter.update()
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            with suppress(ValueError):  # too few steps yet
                noise = self.estimate()
                module.log_dict(numbers(noise), batch_size=1)
                self._warn(noise, size)

    def _warn(self, noise: Noise, size: float) -> None:
        """Say once in a fit that the batch exceeds the noise scale."""
        message = "" if self._warned else above_noise(noise, size)
        if message:
            self._warned = True
            rank_zero_warn(message, category=ScalingWarning)

    def estimate(self) -> Noise:
        """Return the noise over the latest steps."""
        return self._meter.estimate()

    def remove(self) -> None:
        """Take the hooks off."""
        self._meter.remove()
