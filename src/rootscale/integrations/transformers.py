"""Hugging Face transformers: a `Trainer` whose arguments stay those of the batch size that they were tuned at.

    trainer = Trainer(model, args, train_dataset=data)
    RunCallback(trainer, tuned_at=256)
    trainer.train(resume_from_checkpoint=...)

The learning rate, betas, warm-up, ``max_steps``, intervals and the clip in ``args`` are counted in steps of
``tuned_at``; the batch size of now is per device x accumulation x devices. A `rootscale.training.Run` makes the steps,
so that ``optimizer.pt`` and ``scheduler.pt`` are those of the script and are resumed at any batch size. The Trainer's
own counter, ``global_step``, counts steps of now: a resumed run finds its place in the data by the samples seen.

New arguments for a run that is to be written anew are made by `scale_training_arguments`.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.format import show
from rootscale.integrations.training_arguments import (
    explain_training_arguments,
    global_batch_size,
    scale_training_arguments,
)
from rootscale.noise import Noise
from rootscale.tracking import SAMPLES, above_noise, numbers, step_values
from rootscale.training.attachment import Attachment
from rootscale.training.grow import Grow
from rootscale.training.noise import NoiseMeter
from rootscale.training.optimizers import Rules
from rootscale.training.run import Run, Size

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer, TrainerCallback, get_scheduler
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error

__all__ = ["RunCallback", "explain_training_arguments", "global_batch_size", "scale_training_arguments"]

_RECORD = "rootscale"  # in trainer_state.json, beside the states of callbacks
_INTERVALS = ("logging_steps", "eval_steps", "save_steps")


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Make the steps of a `Trainer` at its batch size of now, with arguments that were tuned at another one.

    It adds itself to the Trainer. ``trainer.train(resume_from_checkpoint=...)`` takes the checkpoints of every batch
    size and number of devices, also those of a plain Trainer, which are taken to be of ``tuned_at``.

    Args:
        trainer: the Trainer; its arguments are not changed.
        tuned_at: the batch size that the arguments belong to, a number or ``"8x4x2"``, per device x accumulation x
            devices. A model with BatchNorm needs the latter where accumulation or devices differ.
        rule, loss: as for `rootscale.training.Run`.
        ema: averages of the parameters that your callbacks update, as for `rootscale.training.Run`.
        noise_every: measure the noise of the gradient at every so many steps, and log ``noise_scale`` with the loss; 0
            is never. It needs accumulation or several processes. A batch that exceeds it is a warning.
        noise_window: how many of the latest measurements to average over.
        grow: let the batch grow with the noise that the run shows: the arguments of `rootscale.training.Grow`, as in
            ``grow={"share": 0.5, "most": 256}``. It grows by accumulation, so that the data loader stays as it is, is
            saved with every checkpoint, and goes on from there. It needs accumulation or several processes.

    Attributes:
        run: made when training begins, and detached when it ends.
        grow: the `Grow` of this training; its ``reason`` says why the batch has its size.
        changes: the script's numbers and those of a step, when training began; print it.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        tuned_at: Size,
        rule: Rules = None,
        loss: Literal["mean", "sum"] = "mean",
        ema: Any = None,
        noise_every: int = 0,
        noise_window: int = 32,
        grow: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise TypeError(
                f"RunCallback takes the Trainer itself, got {type(trainer).__name__}: make it after the Trainer, as "
                "RunCallback(trainer, tuned_at=...), which adds it to the Trainer's callbacks"
            )
        callbacks = trainer.callback_handler.callbacks
        if any(isinstance(callback, RunCallback) for callback in callbacks):
            raise ValueError("this Trainer has a RunCallback already: make one for each Trainer")
        _check_arguments(trainer.args)
        self._tuned = BatchSize.of(tuned_at)
        self._options: dict[str, Any] = {"rule": rule, "loss": loss, "ema": ema}
        self.noise_every, self.noise_window = noise_every, noise_window
        self._growth = None if grow is None else dict(grow)
        self.grow: _Grow | None = None
        self._saved_growth: Mapping[str, Any] | None = None
        self.run: Run | None = None
        self.changes: Changes | None = None
        self._values: dict[str, float] = {}  # what the latest step used, where it is to be logged
        self._trainer = trainer
        self._noise: NoiseLog | None = None
        self._script: dict[str, Any] = {}  # arguments whose value is that of now for a while
        self._warned = False
        callbacks.insert(0, self)  # before the progress bar, which reads max_steps
        Attachment(trainer, {"train": self._train, "log": self._log})

    # ---- the batch size, and steps of now

    @property
    def _size(self) -> BatchSize:
        return global_batch_size(self._trainer.args)

    def _steps(self, count: float) -> int:
        """Return how many steps of now cover so many steps of ``tuned_at``."""
        return math.ceil(Fraction(count) * Fraction(self._tuned.total) / Fraction(self._size.total))

    # ---- the Trainer's events

    def _train(
        self, original: Callable[..., Any], resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        handler = self._trainer.callback_handler
        handler.callbacks = [self, *(held for held in handler.callbacks if held is not self)]
        self._warned = False
        try:
            with self._at_size_of_now(resume_from_checkpoint) as checkpoint:
                return original(checkpoint, *args, **kwargs)
        finally:
            self._end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the run of what the Trainer has made and loaded."""
        size, scheduler = self._size, kwargs["lr_scheduler"]
        updates = _updates(self._trainer, size)
        if args.max_steps > 0:
            state.max_steps = self._steps(args.max_steps)
            if updates:
                state.num_train_epochs = math.ceil(state.max_steps / updates)
        else:
            length = math.ceil(args.num_train_epochs * (_updates(self._trainer, self._tuned) or 0))
            _stretch(scheduler, args, state.max_steps, length)
        given = scheduler if isinstance(scheduler, LRScheduler) else None  # others are stepped with metrics
        plain = size.plain and not self._tuned.laid_out
        self.run = Run(
            _bare(kwargs["optimizer"]),
            tuned_at=self._tuned,
            batch_size=size.total if plain else size,
            scheduler=given,
            interval="step",
            model=kwargs["model"],
            **self._options,
        )
        self.changes = self.run.changes
        self._set_intervals(args, state)
        state.stateful_callbacks[_RECORD] = {"args": {}, "attributes": {"batch_size": size.to_json()}}
        if self.noise_every:
            self._noise = NoiseLog(args, kwargs["model"], _bare(kwargs["optimizer"]), self.noise_window)
        if self._growth is not None:
            self.grow = _Grow(self.run, self._trainer, self._put, self._growth)
            if self._saved_growth is not None:
                self.grow.load_state_dict(self._saved_growth)

    def _set_intervals(self, args: Any, state: Any) -> None:
        """Set the Trainer's intervals, which are in steps of now; a share is of the length of the run."""
        assert self.run is not None
        for name in _INTERVALS:
            value = getattr(args, name)
            if value is not None:
                share = math.ceil(value * state.max_steps) if value < 1 else self.run.steps(value)
                setattr(state, name, max(1, share) if value else value)
        if args.load_best_model_at_end and args.save_strategy == args.eval_strategy == "steps":
            state.save_steps = state.eval_steps * max(1, round(args.save_steps / args.eval_steps))
        if args.eval_strategy == "steps" and args.eval_delay:
            self._put(eval_delay=self.run.steps(args.eval_delay))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the gradient be clipped as a step of now needs it, and measure its noise if it is time to."""
        if args.max_grad_norm and self.run is not None:
            self._put(max_grad_norm=self.run.clip(args.max_grad_norm))
        if self._noise is not None and state.global_step % self.noise_every == 0:
            self._noise.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the measurement after the last backward of a step; the gradient has been clipped."""
        self._put_back("max_grad_norm")
        if self._noise is not None:
            self._noise.end()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read what the step has used, before its scheduler goes on, where it will be logged."""
        if self.run is not None and (state.global_step + 1) % max(1, state.logging_steps) == 0:
            self._values = self.run.values()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the micro-batches of the epoch anew."""
        if self.grow is not None:
            self.grow.begin_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the batch grow, and what counts steps of now follow it."""
        if self.grow is None or self.run is None:
            return
        if self.grow.end_step(whole=self._whole()):
            state.max_steps = state.global_step + max(0, self._length(args) - self.grow.steps_of_now)
            self._set_intervals(args, state)
        state.stateful_callbacks[_RECORD]["attributes"] = {
            "batch_size": self._size.to_json(),
            "steps": self.grow.steps_of_now,
            "grow": self.grow.state_dict(),
        }

    def _length(self, args: Any) -> int:
        """Return the steps of a training all of whose steps are of now."""
        if args.max_steps > 0:
            return self._steps(args.max_steps)
        number: int = math.ceil(args.num_train_epochs * (_updates(self._trainer, self._size) or 0))
        return number

    def _whole(self) -> bool:
        """Return whether the step that ends had all of its samples: the last micro-batch of an epoch may have fewer."""
        assert self.grow is not None
        parts, updates = self._trainer.current_gradient_accumulation_steps, _updates(self._trainer, self._size)
        full = bool(parts == self._size.accumulation)
        if updates is None:
            return full
        samples = (self.grow.micro_batches + parts) * int(self._size.forward)
        return full and samples <= len(self._trainer.train_dataset)

    def _put(self, **values: Any) -> None:
        for name, value in values.items():
            self._script.setdefault(name, getattr(self._trainer.args, name))
            setattr(self._trainer.args, name, value)

    def _put_back(self, *names: str) -> None:
        for name in names:
            if name in self._script:
                setattr(self._trainer.args, name, self._script.pop(name))

    def _end(self) -> None:
        """Leave everything as the script made it."""
        self._put_back(*list(self._script))
        if self._noise is not None:
            self._noise.remove()
            self._noise = None
        if self.grow is not None:
            self.grow.remove()
        if self.run is not None:
            self.run.detach()

    # ---- what trackers get

    def _log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the samples seen to every log, and beside the loss what a step uses and the noise scale."""
        state, given = self._trainer.state, self._trainer.args.max_steps
        if self.run is not None:
            if "train_samples_per_second" in logs and given > 0:  # the Trainer has counted the script's steps
                for name in ("train_samples_per_second", "train_steps_per_second"):
                    logs[name] = logs[name] * (state.max_steps / given if "samples" in name else 1)
            logs.update(numbers(self.run, step_values(self._values)) if "loss" in logs else {SAMPLES: self.run.samples})
        if self.grow is not None and "loss" in logs:
            logs.update(self.grow.values())
        noise = self._noise.estimate() if self._noise is not None and "loss" in logs else None
        if noise is not None:
            logs.update(numbers(noise))
            self._warn_of_noise(noise)
        original(logs, *args, **kwargs)

    def _warn_of_noise(self, noise: Noise) -> None:
        """Say once in a training that the batch exceeds the noise scale."""
        message = "" if self._warned else above_noise(noise, float(self._size.total))
        if message:
            self._warned = True
            python_warnings.warn(message, ScalingWarning, stacklevel=2)

    # ---- checkpoints

    @contextmanager
    def _at_size_of_now(self, checkpoint: Any) -> Iterator[Any]:
        """Yield a checkpoint whose ``global_step`` counts steps of now: the folder itself, or links to its files."""
        path = self._latest() if checkpoint is True else Path(checkpoint) if checkpoint else None
        self._saved_growth = None
        if path is None or not (path / "trainer_state.json").is_file():
            yield checkpoint  # none, or one that the Trainer refuses itself
            return
        saved = json.loads((path / "trainer_state.json").read_text())
        args, record = self._trainer.args, _record(saved)
        if self._growth is not None and "grow" in record:
            self._saved_growth = record["grow"]
            self._put(gradient_accumulation_steps=self._accumulation(BatchSize.of(record["batch_size"])))
        state = {
            **saved,
            "train_batch_size": args.train_batch_size,
            **{name: getattr(args, name) for name in _INTERVALS},
        }
        old, new = self._written_at(saved), self._size
        if old.total != new.total or old.accumulation != new.accumulation or "steps" in record:
            state["global_step"] = self._position(_steps_done(saved), old, new)
            state["best_global_step"] = None
            self._warn_of_numbers(path, state["global_step"], new)
        if state == saved:
            yield str(path)
            return
        with tempfile.TemporaryDirectory(prefix="rootscale-") as folder:
            for item in path.resolve().iterdir():
                if item.name != "trainer_state.json":
                    os.symlink(item, Path(folder, item.name), target_is_directory=item.is_dir())
            Path(folder, "trainer_state.json").write_text(json.dumps(state))
            yield folder

    def _accumulation(self, saved: BatchSize) -> int:
        """Return the accumulation that makes the batch to which a saved run had grown, on the devices of now."""
        forward = int(self._size.forward)
        if saved.total % forward:
            raise ValueError(
                f"the batch of the checkpoint had grown to {show(saved.total)}, which {forward} samples over all "
                f"devices cannot make: choose per_device_train_batch_size x devices so that it divides {saved.total}"
            )
        return int(saved.total) // forward

    def _written_at(self, saved: dict[str, Any]) -> BatchSize:
        record = _record(saved)
        return BatchSize.of(record["batch_size"]) if record else self._tuned

    def _position(self, done: int, old: BatchSize, new: BatchSize) -> int:
        """Return the steps of now that have seen the samples of a checkpoint, with a warning where none has."""
        epochs, epochs_now = _updates(self._trainer, old), _updates(self._trainer, new)
        if epochs is None or epochs_now is None:  # a stream is one long epoch
            epoch, within, before = 0, done, 0
        else:
            epoch, within = divmod(done, epochs)
            before = epoch * epochs_now
        steps, again = divmod(within * int(old.total), int(new.total))
        if again:
            python_warnings.warn(
                f"{again} samples are seen again: after {done} steps of batch size {show(old.total)} the run would be "
                f"in the middle of a step of {show(new.total)}",
                ScalingWarning,
                stacklevel=6,
            )
        if within and _sorts_by_length(self._trainer.args):
            python_warnings.warn(
                "group_by_length orders the data by the batch size: until the end of this epoch, some samples are seen "
                "again and others not at all. A checkpoint from the end of an epoch goes on without that",
                ScalingWarning,
                stacklevel=6,
            )
        return before + steps

    def _latest(self) -> Path:
        """Return the checkpoint in the output folder that has seen most samples; numbers are in steps of their sizes.

        Raises:
            ValueError: there is none.
        """
        folder = Path(self._trainer.args.output_dir)
        found = {path: self._samples(path) for path in folder.glob("checkpoint-*")}
        seen = {path: samples for path, samples in found.items() if samples is not None}
        if not seen:
            raise ValueError(f"resume_from_checkpoint=True needs a checkpoint in {folder}, and there is none")
        return max(seen, key=lambda path: seen[path])

    def _samples(self, path: Path) -> float | None:
        file = path / "trainer_state.json"
        if not file.is_file():
            return None
        saved = json.loads(file.read_text())
        return float(_steps_done(saved) * self._written_at(saved).total)

    def _warn_of_numbers(self, path: Path, step: int, size: BatchSize) -> None:
        """Say that checkpoints of two batch sizes are numbered in one folder."""
        folder = Path(self._trainer.args.output_dir)
        if path.resolve().parent != folder.resolve() or self._trainer.args.save_strategy == "no":
            return
        later = [
            one.name for one in folder.glob("checkpoint-*") if one.name[11:].isdigit() and int(one.name[11:]) > step
        ]
        if later:
            python_warnings.warn(
                f"checkpoints are numbered in steps of {show(size.total)} from here on, from {step}, and may replace "
                f"{', '.join(sorted(later, key=len))} of another batch size: give another output_dir to keep those. "
                "resume_from_checkpoint=True takes the one with most samples, not the highest number",
                ScalingWarning,
                stacklevel=6,
            )


def _record(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a callback has written into ``trainer_state.json``; nothing for that of a plain Trainer."""
    found: dict[str, Any] = (saved.get("stateful_callbacks") or {}).get(_RECORD, {}).get("attributes", {})
    return found


def _steps_done(saved: Mapping[str, Any]) -> int:
    """Return the steps of a checkpoint, all counted at its batch size: ``global_step`` counts those before a growth."""
    return int(_record(saved).get("steps", saved["global_step"]))


def _updates(trainer: Any, size: BatchSize) -> int | None:
    """Return the optimizer steps in an epoch, as the Trainer counts them; None for a stream."""
    try:
        number = len(trainer.train_dataset)
    except TypeError:
        return None
    batch = int(size.forward)
    batches = number // batch if trainer.args.dataloader_drop_last else math.ceil(number / batch)
    return max(1, math.ceil(batches / size.accumulation))


def _check_arguments(args: Any) -> None:
    """Refuse arguments under which the Trainer, or another library, decides on the batch size or makes the steps."""
    split = getattr(getattr(args, "accelerator_config", None), "split_batches", False)
    for name, held, why in (
        ("deepspeed", args.deepspeed, "DeepSpeed makes the steps itself; convert its file with rootscale convert"),
        ("auto_find_batch_size", args.auto_find_batch_size, "the Trainer then chooses the batch size; switch it off"),
        ("split_batches", split, "per_device_train_batch_size then is the batch of all devices; switch it off"),
    ):
        if held:
            raise ValueError(f"RunCallback does not work with {name}={held!r}: {why}")


def _sorts_by_length(args: Any) -> bool:
    """Return whether samples of similar length are put together: an argument of its own in the first versions of 5."""
    return getattr(args, "train_sampling_strategy", "") == "group_by_length" or getattr(args, "group_by_length", False)


def _bare(optimizer: Any) -> Any:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _stretch(scheduler: Any, args: Any, steps: int, length: int) -> None:
    """Let the schedule that the Trainer has made for epochs be of so many steps of ``tuned_at``, and not of now.

    A schedule of the user's own has a length that the script gave it, in steps of ``tuned_at``.
    """
    if type(scheduler) is not LambdaLR or steps == length:
        return

    def functions(count: int) -> list[Any]:
        stand_in = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        made = get_scheduler(
            args.lr_scheduler_type, stand_in, args.get_warmup_steps(count), count, args.lr_scheduler_kwargs
        )
        return list(getattr(made, "lr_lambdas", []))

    for own, function in zip(functions(steps), functions(length), strict=True):
        if any(not _same(held, own) for held in scheduler.lr_lambdas):
            return
        scheduler.lr_lambdas = [function] * len(scheduler.lr_lambdas)
    for group, base, function in zip(
        scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
    ):
        group["lr"] = base * function(scheduler.last_epoch)
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def _same(a: Any, b: Any) -> bool:
    """Return whether two functions of a schedule were made alike."""
    if not isinstance(a, partial) or not isinstance(b, partial):
        return False
    return a.func is b.func and a.args == b.args and a.keywords == b.keywords


class _Grow(Grow):
    """A `Grow` by accumulation, which begins where the Trainer's count of micro-batches divides.

    Args:
        run: of the training.
        trainer: whose accumulation grows.
        put: sets arguments of the Trainer until the training ends.
        options: of `Grow`.

    Attributes:
        micro_batches: of this epoch until now.
    """

    def __init__(self, run: Run, trainer: Any, put: Callable[..., None], options: Mapping[str, Any]) -> None:
        args = trainer.args
        size = global_batch_size(args)
        distributed = size.workers > 1
        for name, held, why in (
            ("fsdp", args.fsdp, "no device has a whole gradient"),
            ("fp16", args.fp16, "its GradScaler changes the lengths of gradients; bf16 does not"),
            ("group_by_length", _sorts_by_length(args), "the order of the data would depend on the batch size"),
        ):
            if held:
                raise ValueError(f"grow= does not work with {name}={held!r}: {why}")
        if size.accumulation < 2 and not distributed:
            raise ValueError(
                f"grow= needs gradient_accumulation_steps >= 2 or several processes to tell noise from gradient: with "
                f"per_device_train_batch_size={args.per_device_train_batch_size // 2 or 1} and "
                "gradient_accumulation_steps=2 the batch is as it was"
            )
        self._trainer, self._put = trainer, put
        steps, updates = int(trainer.state.global_step), _updates(trainer, size)
        self._epoch: int = steps // updates if updates else 0
        within = steps - self._epoch * (updates or 0)
        self.micro_batches: int = within * size.accumulation
        self._resumed = True  # the first epoch goes on where it was saved
        super().__init__(run, process_group=torch.distributed.group.WORLD if distributed else None, **options)

    def begin_epoch(self) -> None:
        """Count micro-batches anew, but for those of an epoch that is resumed."""
        if not self._resumed:
            self._epoch, self.micro_batches = self._epoch + 1, 0
        self._resumed = False

    def end_step(self, whole: bool) -> bool:
        """End a step; return whether the batch has grown."""
        self.micro_batches += self._trainer.current_gradient_accumulation_steps
        return self.step(whole) is not None

    @property
    def steps_of_now(self) -> int:
        """The steps that would have been made, had all been as large as the next one."""
        size = global_batch_size(self._trainer.args)
        updates: int | None = _updates(self._trainer, size)
        if updates is None:
            return round(self.run.samples / float(size.total))
        return self._epoch * updates + math.ceil(self.micro_batches / size.accumulation)

    def _accumulation(self, size: int) -> int:
        return size // int(global_batch_size(self._trainer.args).forward)

    def can_begin(self, size: int) -> bool:
        """Return whether the Trainer, which counts micro-batches from the beginning of an epoch, can end it whole."""
        return self.micro_batches % self._accumulation(size) == 0

    def went_to(self, size: int) -> None:
        """Accumulate that much."""
        self._put(gradient_accumulation_steps=self._accumulation(size))


class NoiseLog:
    """A `NoiseMeter` fed by the Trainer's own backwards: each micro-batch is a part of its step.

    The Trainer clips the gradient before it calls a callback at the end of a step. So the parts are taken where
    autograd ends each backward, not at the Trainer's events.

    Args:
        args: the `TrainingArguments`.
        model: that is trained.
        optimizer: that trains it.
        window: how many of the latest measurements to average over.
    """

    def __init__(self, args: Any, model: torch.nn.Module, optimizer: Any, window: int) -> None:
        size = global_batch_size(args)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized() and args.world_size > 1
        if args.fsdp or args.deepspeed:
            raise ValueError("noise_every needs whole gradients on every device: not with fsdp or deepspeed")
        if size.accumulation < 2 and not distributed:
            raise ValueError(
                "noise_every needs gradient_accumulation_steps >= 2 or several processes to tell noise from gradient"
            )
        group = torch.distributed.group.WORLD if distributed else None
        self._meter = NoiseMeter(optimizer, window, process_group=group)
        self._samples, self._parts = int(args.train_batch_size), size.accumulation
        self._seen, self.steps = 0, 0
        self._part: AbstractContextManager[None] | None = None
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._hook = register_multi_grad_hook(parameters, self._backward, mode="any")

    def begin(self) -> None:
        """Start the measurement of a step."""
        self._seen = 0
        self._open()

    def _open(self) -> None:
        self._part = self._meter.part(self._samples, 1 / self._parts)
        self._part.__enter__()

    def _backward(self, gradient: torch.Tensor) -> None:
        """Wait, at the first gradient of a backward, until all are there and DistributedDataParallel is done too."""
        if self._part is not None:
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._over))

    def _over(self) -> None:
        if self._part is not None:
            part, self._part = self._part, None
            part.__exit__(None, None, None)
            self._seen += 1
            if self._seen < self._parts:
                self._open()
            else:
                self._meter.update()
                self.steps += 1

    def end(self) -> None:
        """End the measurement; a last step of an epoch that had fewer parts, with other weights, is left out."""
        if self._part is not None:
            stop = RuntimeError("left out")
            self._part.__exit__(RuntimeError, stop, None)
            self._part = None
            self._meter.discard()

    def estimate(self) -> Noise | None:
        """Return the noise over the latest measurements; None while they are too few."""
        return self._meter.estimate() if self.steps >= 8 else None

    def remove(self) -> None:
        """Take the hooks off."""
        self._hook.remove()
        self._meter.remove()
