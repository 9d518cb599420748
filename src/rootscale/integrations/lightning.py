"""Lightning: a callback that keeps a run's dynamics when its global batch size changes.

    global batch size = batch size of the data loader * accumulate_grad_batches * data-parallel devices

The callback compares it with what the optimizers' numbers are for, before the first batch of every optimizer step: at
the start of a fit, after a checkpoint of another batch size was resumed (Lightning has restored optimizers and
schedulers by then; ``on_train_start`` would be too early, as callbacks such as ``GradientAccumulationScheduler`` have
yet to set the accumulation), and whenever somebody changes it in mid-run. Where it differs by ``kappa``, everything is
converted with `rootscale.training.rescale_`.

The numbers in the script (the module's, the callbacks', the Trainer's) are those of the first batch size of the run,
in every script that resumes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rootscale.changes import Change, Changes
from rootscale.format import show
from rootscale.hparams import positive
from rootscale.noise import Noise
from rootscale.rules import Rule, get_rule, rule_text
from rootscale.training import NoiseMeter, rescale_
from rootscale.units import UNITS

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities import rank_zero_info
    from lightning.pytorch.utilities.data import extract_batch_size
except ImportError as error:
    raise ImportError(
        "rootscale.integrations.lightning needs Lightning 2.6 or newer: pip install 'rootscale[lightning]'"
    ) from error

__all__ = ["RescaleCallback", "global_batch_size"]

_KEY = "rootscale"  # of the record in a checkpoint


@dataclass(frozen=True)
class _Frame:
    """One change of batch size in the life of a run, as it stands in checkpoints."""

    kappa: float
    rule: str | None
    step: int  # of the Trainer, at which it was made
    every: tuple[int, int]  # accumulate_grad_batches before and after

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> _Frame:
        """The frame of a checkpoint; those of version 0.0 have the form of averaging apart from the rule."""
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
            every ``log_every_n_steps`` steps; needs accumulation or DDP, and automatic optimization.
        noise_window: how many steps that is measured over.

    Attributes:
        changes: what was converted, one `rootscale.Changes` for each change of batch size; with several optimizers its
            rows say which of them they are about, by their position (``optimizer 1: lr``).
    """

    def __init__(
        self,
        rule: str | None = None,
        *,
        batch_size: int | Callable[[Trainer], int] | None = None,
        saved_batch_size: int | None = None,
        ema: str | tuple[str, ...] = (),
        interval: Literal["step", "epoch"] | None = None,
        trainer_settings: bool = True,
        noise: bool = False,
        noise_window: int = 100,
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
        self.noise_wanted, self.noise_window = noise, noise_window
        self.changes: list[Changes] = []
        self._forget()

    def _forget(self) -> None:
        self._frames: list[_Frame] = []
        self._size: int | None = None  # the global batch size that the optimizers' numbers are for
        self._every = 1  # the accumulate_grad_batches that goes with it
        self._wanted: int | None = None  # an accumulate_grad_batches that was asked for
        self._replay = False
        self._script: list[tuple[Any, str, Any]] = []  # what the script said: object, attribute, value
        self._meter: NoiseMeter | None = None
        self._part: AbstractContextManager[None] | None = None
        self._parts, self._samples = 0, 1

    # The life of a fit, in Lightning's order.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Each fit begins with the script's numbers."""
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
            self._frames = [_Frame.of(frame) for frame in record["frames"]]
        self._replay = bool(self._frames)
        if trainer.strategy.restore_checkpoint_after_setup:  # on_fit_start is over
            self._repeat(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before Lightning loads the states of optimizers and schedulers: bring fresh objects to where they were."""
        self._repeat(trainer, pl_module)

    def _repeat(self, trainer: Trainer, module: LightningModule) -> None:
        if self._replay:
            self._replay = False
            for frame in self._frames:
                self._convert(trainer, module, frame)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Where an optimizer step begins, follow the global batch size, and for BatchNorm the accumulation."""
        wanted, every = self._wanted, int(trainer.accumulate_grad_batches)
        if wanted is not None and batch_idx % math.lcm(wanted, every) == 0:
            self._note(trainer, "accumulate_grad_batches")
            trainer.accumulate_grad_batches, self._wanted, every = wanted, None, wanted
        if batch_idx % every == 0:
            size = global_batch_size(trainer, self.batch_size)
            if self._size is not None and (size, every) != (self._size, self._every):
                frame = self._frame(trainer, size / self._size, every)
                changes = self._convert(trainer, pl_module, frame)
                if changes is not None:
                    self.changes.append(changes)
                    what = f"global batch size {show(self._size)} -> {show(size)}"
                    if size == self._size:
                        what = f"global batch size {show(size)}, accumulated from {self._every} -> {every} batches"
                    rank_zero_info(f"{what}: {changes}")
                self._frames.append(frame)
            self._size, self._every = size, every
        if self.noise_wanted:
            self._measure(trainer, pl_module, batch)

    def _frame(self, trainer: Trainer, kappa: float, every: int) -> _Frame:
        return _Frame(kappa, self.rule, trainer.global_step, (self._every, every))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Record the global batch size, and the changes since the script's numbers."""
        if self._size is not None:
            frames = [asdict(frame) for frame in self._frames]
            checkpoint[_KEY] = {"batch_size": self._size, "accumulation": self._every, "frames": frames}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The module and the Trainer get the script's numbers back: the next fit starts from them."""
        if stage == "fit":
            self._put_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As at the end of a fit."""
        self._put_back()

    def _put_back(self) -> None:
        for thing, name, value in reversed(self._script):
            setattr(thing, name, value)
        self._script = []
        if self._meter is not None:
            self._meter.remove()

    def _note(self, thing: Any, *names: str) -> None:
        self._script += [(thing, name, getattr(thing, name)) for name in names]

    # The change.

    def rescale(self, trainer: Trainer, kappa: float) -> None:
        """Go on with ``kappa`` times the batch size, by accumulating ``kappa`` times as many batches.

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
        module = trainer.lightning_module
        self._rescale(trainer, module, self._frame(trainer, float(kappa), int(every)), dry_run=True)
        self._wanted = int(every)

    def _rescale(self, trainer: Trainer, module: LightningModule, frame: _Frame, dry_run: bool = False) -> Changes:
        """All optimizers with all that belongs to them, or an error before anything is touched."""
        configs = trainer.lr_scheduler_configs
        return rescale_(
            trainer.optimizers,
            frame.kappa,
            scheduler=[config.scheduler for config in configs],
            interval=self._intervals(trainer, module, frame),
            model=module,
            forward_kappa=frame.forward,
            ema=self._averages(trainer, module),
            rule=frame.rule,
            dry_run=dry_run,
        )

    def _intervals(self, trainer: Trainer, module: LightningModule, frame: _Frame) -> list[Literal["step", "epoch"]]:
        """Of the schedulers that Lightning knows, which must be all there are."""
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
            return [self._interval(config, frame) for config in configs]
        if configs and self.interval is None:
            raise ValueError(
                "under manual optimization the module steps its schedulers: give RescaleCallback(interval='step') "
                "or 'epoch'"
            )
        return [self.interval or "step" for _ in configs]

    def _interval(self, config: Any, frame: _Frame) -> Literal["step", "epoch"]:
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

    def _averages(self, trainer: Trainer, module: LightningModule) -> list[Any]:
        found = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, StochasticWeightAveraging):
                raise TypeError(
                    "StochasticWeightAveraging makes a schedule of its own later, in the old units; use WeightAveraging"
                )
            average = callback._average_model if isinstance(callback, WeightAveraging) else None
            if average is not None and (average.avg_fn or average.multi_avg_fn):  # equal weights need no conversion
                found.append(average)
        for name in self.ema:
            thing: Any = module
            for part in name.split("."):
                if not hasattr(thing, part):
                    raise ValueError(f"ema={name!r}: {type(module).__name__} has no such attribute")
                thing = getattr(thing, part)
            found.append(thing)
        return found

    def _convert(self, trainer: Trainer, module: LightningModule, frame: _Frame) -> Changes | None:
        if not trainer.optimizers:
            return None
        script = [(one, "momentum", one.momentum) for one in module.modules() if isinstance(one, _NormBase)]
        for average in self._averages(trainer, module):
            names = [name for name in ("avg_fn", "multi_avg_fn", "decay") if hasattr(average, name)]
            script += [(average, name, getattr(average, name)) for name in names]
        changes = self._rescale(trainer, module, frame)
        self._script += script
        rows = self._convert_trainer(trainer, changes.rule, frame) if self.trainer_settings else ()
        return replace(changes, rows=(*changes.rows, *rows))

    def _convert_trainer(self, trainer: Trainer, rule: Rule, frame: _Frame) -> Iterator[Change]:
        """The gradient clip, and the steps that are still to come."""
        later = [one for one in trainer.callbacks if isinstance(one, EMAWeightAveraging)]  # type: ignore[attr-defined]
        settings: list[tuple[Any, str]] = [(trainer.fit_loop.epoch_loop, "max_steps")]
        settings += [(callback, "update_starting_at_step") for callback in later]
        for thing, name in settings:
            before = getattr(thing, name) or 0
            if before > frame.step:
                left = Fraction(before - frame.step) / Fraction(frame.kappa).limit_denominator(10**6)
                after = frame.step + left
                self._note(thing, name)
                setattr(thing, name, math.ceil(after))
                yield Change(name, before, after, UNITS["steps"], math.ceil(after), f"counted from step {frame.step:,}")
        if trainer.gradient_clip_val:
            clip = float(trainer.gradient_clip_val)
            self._note(trainer, "gradient_clip_val")
            trainer.gradient_clip_val = float(rule.convert("clip", clip, frame.kappa, "gradient_clip_val"))
            yield Change("gradient_clip_val", clip, trainer.gradient_clip_val, rule.units.get("clip"))

    # The noise of the gradient.

    def _measure(self, trainer: Trainer, module: LightningModule, batch: Any) -> None:
        if self._meter is None:
            ranks = _ranks(trainer)
            if not module.automatic_optimization:
                raise ValueError("noise=True needs automatic optimization: the parts of a step are its batches")
            if getattr(trainer.precision_plugin, "scaler", None) is not None:
                raise ValueError("noise=True does not work with a GradScaler (precision='16-mixed'); bf16-mixed does")
            if ranks > 1 and not isinstance(trainer.strategy, DDPStrategy):
                raise ValueError(f"noise=True needs one device or DDP, got {type(trainer.strategy).__name__}")
            group = torch.distributed.group.WORLD if ranks > 1 else None
            self._meter = NoiseMeter(trainer.optimizers[0], self.noise_window, process_group=group)
        self._samples = extract_batch_size(batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """A batch is a part of the step, with the weight that Lightning gives it."""
        if self._meter is not None:
            self._part = self._meter.part(self._samples, 1 / trainer.accumulate_grad_batches)
            self._part.__enter__()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The part is complete."""
        if self._part is not None:
            self._part.__exit__(None, None, None)
            self._part, self._parts = None, self._parts + 1

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """The gradient is complete, and not yet clipped."""
        if self._meter is None:
            return
        parts, self._parts = self._parts, 0
        if parts * _ranks(trainer) < 2:  # no accumulation, or the last batch of an epoch by itself
            self._meter.discard()
            return
        self._meter.update()
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            with suppress(ValueError):  # too few steps yet
                scale = self._meter.estimate().scale
                values = {"": scale.value, "_low": scale.low, "_high": scale.high}
                pl_module.log_dict({f"noise_scale{end}": value for end, value in values.items()}, batch_size=1)

    def noise(self) -> Noise:
        """The noise of the gradient over the latest steps."""
        if self._meter is None:
            raise ValueError("nothing was measured: make the callback with noise=True and train")
        return self._meter.estimate()


def _ranks(trainer: Trainer) -> int:
    """How many devices take batches of their own."""
    sampler: Mapping[str, int] = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return int(sampler.get("num_replicas", 1))


def global_batch_size(trainer: Trainer, batch_size: int | Callable[[Trainer], int] | None = None) -> int:
    """Samples per optimizer step over all devices of a fit under way.

    Args:
        trainer: its Trainer.
        batch_size: that number, or a function that returns it, where it cannot be found.
    """
    if batch_size is not None:
        return int(positive("batch_size", batch_size(trainer) if callable(batch_size) else batch_size))
    loader: Any = trainer.train_dataloader
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"the batch size cannot be told from the train_dataloader, a {type(loader).__name__}; give "
            "RescaleCallback(batch_size=...), samples per optimizer step over all devices"
        )
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(
            "under manual optimization only the module knows how many batches make a step; give "
            "RescaleCallback(batch_size=...), samples per optimizer step over all devices"
        )
    return size * int(trainer.accumulate_grad_batches) * _ranks(trainer)
