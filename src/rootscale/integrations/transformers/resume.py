"""A `Trainer` that goes on from a checkpoint at another batch size."""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings as python_warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from rootscale.changes import Changes, ScalingWarning
from rootscale.format import show
from rootscale.integrations.transformers.arguments import OPTIMIZERS, check_arguments, global_batch_size, name_of
from rootscale.integrations.transformers.noise import NoiseLog
from rootscale.plan import BatchSize
from rootscale.rules import Rule, get_rule
from rootscale.training import rescale_
from rootscale.training.schedulers import write

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error

__all__ = ["RescaleCallback", "resume"]


class RescaleCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Remembers the batch size in every checkpoint, converts a run that is resumed at another one, logs the noise.

    Give it to the Trainer from the start. To go on with another batch size, make the Trainer anew with
    `scale_training_arguments` and call `resume` instead of ``trainer.train``. A checkpoint that is resumed at another
    batch size without that is refused.

    Args:
        rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
            optimizer's own, as it was for the arguments.
        batchnorm: whether to convert the momentum of the model's BatchNorm layers, which no checkpoint holds: from the
            samples of a forward pass, over all devices, when the run was begun, for which the model's code is written.
            Accumulation alone leaves it as it is.
        ema: averages of the parameters (see `rescale_`), whose decay is converted in the same way, by the global batch
            size.
        noise_every: measure the noise of the gradient at every so many steps, and log ``noise_scale`` with the loss; 0
            is never. It needs accumulation or several processes.
        noise_window: how many of the latest measurements to average over.

    Attributes:
        changes: what was converted when training began; None if nothing was.
    """

    def __init__(
        self,
        *,
        rule: str | None = None,
        batchnorm: bool = False,
        ema: Any = None,
        noise_every: int = 0,
        noise_window: int = 32,
    ) -> None:
        self.rule, self.batchnorm, self.ema = rule, batchnorm, ema
        self.noise_every, self.noise_window = noise_every, noise_window
        self.changes: Changes | None = None
        # In the units of which batch size: the optimizer's state, the step counter, the model as it is written.
        self.batch_size: int | str | None = None
        self.steps_at: int | str | None = None
        self.begun_at: int | str | None = None
        self._own_optimizer = False  # whether the arguments do not describe the optimizer
        self._averages_of: Any = None
        self._noise: NoiseLog | None = None

    def state(self) -> dict[str, Any]:
        """What every checkpoint keeps, in ``trainer_state.json``."""
        names = ("rule", "batchnorm", "noise_every", "noise_window")
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {name: getattr(self, name) for name in ("batch_size", "steps_at", "begun_at")},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has loaded the checkpoint, if there is one, and has made no step yet."""
        size, name = global_batch_size(args), type(self).__name__
        entry = state.stateful_callbacks.get(name, {})
        saved = (entry[0] if isinstance(entry, list) else entry).get("attributes", {})  # a list: there are two
        if not (state.global_step or saved.get("resumed")):
            saved = {}  # no checkpoint: what is there is this callback's own, maybe of an earlier training
        before = BatchSize.of(saved.get("batch_size") or size)
        if state.global_step and not saved.get("batch_size"):
            python_warnings.warn(
                f"the checkpoint does not say its batch size; taken as {size}, as it is now. If it was another, use "
                "rootscale.integrations.transformers.resume(trainer, checkpoint, batch_size=...)",
                ScalingWarning,
                stacklevel=2,
            )
        self.changes = None
        if before.total != size.total:
            if BatchSize.of(saved["steps_at"]).total != size.total:
                raise ValueError(
                    f"the checkpoint was written at batch size {before} and is resumed at {size}: use "
                    "rootscale.integrations.transformers.resume(trainer, checkpoint) instead of trainer.train, with "
                    "arguments from scale_training_arguments"
                )
            check_arguments(args)
            self.changes = self._convert(args, state, float(size.total / Fraction(before.total)), **kwargs)
        begun = BatchSize.of(saved.get("begun_at") or before)
        self._convert_averages(kwargs["model"], begun, size)
        self.batch_size = self.steps_at = size.to_json()
        self.begun_at = begun.to_json()
        state.stateful_callbacks[name] = self.state()  # a checkpoint from before this callback has none
        if self.noise_every:
            self._noise = NoiseLog(args, kwargs["model"], _bare(kwargs["optimizer"]), self.noise_window)

    def _convert(self, args: Any, state: Any, kappa: float, **kwargs: Any) -> Changes:
        optimizer, scheduler = _bare(kwargs["optimizer"]), kwargs["lr_scheduler"]
        record = OPTIMIZERS[name_of(args.optim)](args)
        if not self._own_optimizer:
            self._check_arguments(record, optimizer, kappa)
        rule = get_rule(self.rule, record.name)
        commit = _scheduler_at(scheduler, state.global_step, rule, kappa)
        changes = rescale_(optimizer, kappa, rule=self.rule)
        commit()
        return changes

    def _check_arguments(self, wanted: Any, optimizer: Any, kappa: float) -> None:
        """Whether the checkpoint's hyperparameters, converted, are those of the arguments."""
        group = optimizer.param_groups[0]
        betas = group.get("betas", (0, 0))
        has = {"eta": group.get("initial_lr"), "beta1": betas[0], "beta2": betas[1], "beta": group.get("alpha")}
        has |= {"eps": group.get("eps"), "weight_decay": max(g["weight_decay"] for g in optimizer.param_groups)}
        names = [name for name in has if hasattr(wanted, name) and has[name] is not None]
        rule = get_rule(self.rule, wanted.name)
        converted = rule.convert_record(replace(wanted, **{name: float(has[name]) for name in names}), kappa)
        for name in names:
            old, got, should = float(has[name]), getattr(converted, name), getattr(wanted, name)
            if not math.isclose(got, should, rel_tol=1e-6, abs_tol=1e-15):
                raise ValueError(
                    f"the checkpoint's {name}={show(old)} becomes {show(got)} at kappa = {show(kappa)}, but the "
                    f"arguments have {show(should)}: take them from scale_training_arguments(the old ones, to=...)"
                )

    def _convert_averages(self, model: Any, begun: BatchSize, size: BatchSize) -> None:
        kappa = float(size.total / Fraction(begun.total))
        forward = float(size.forward / Fraction(begun.forward))
        norms = self.batchnorm and forward != 1
        averages = self.ema is not None and kappa != 1
        if not (norms or averages) or self._averages_of is model:
            return
        nobody = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # these rows are those of every rule
        rescale_(
            nobody, kappa, model=model if norms else None, ema=self.ema if averages else None, forward_kappa=forward
        )
        self._averages_of = model

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first backward of a step is next."""
        if self._noise is not None and state.global_step % self.noise_every == 0:
            self._noise.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last backward of a step is over."""
        if self._noise is not None:
            self._noise.end()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Put the noise scale beside the loss."""
        if self._noise is not None and logs is not None and "loss" in logs and self._noise.steps >= 8:
            values = self._noise.values()
            logs.update(values)
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks off the model."""
        if self._noise is not None:
            self._noise.remove()
            self._noise = None


def _bare(optimizer: Any) -> Any:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _scheduler_at(given: Any, step: int, rule: Rule, kappa: float) -> Callable[[], None]:
    """What takes a loaded scheduler, whose formula is the new run's, to that step of the new run."""
    scheduler, groups = given, given.optimizer.param_groups

    def convert(value: float) -> float:
        return float(rule.convert("eta", value, kappa))

    if isinstance(given, ReduceLROnPlateau):  # counts evaluations

        def move_plateau() -> None:
            scheduler.min_lrs = [convert(value) for value in scheduler.min_lrs]
            scheduler.eps = convert(scheduler.eps)
            scheduler._last_lr = [group["lr"] for group in groups]

        return move_plateau
    if type(given) is not LambdaLR:
        raise TypeError(
            f"the scheduler must be one that the Trainer makes (lr_scheduler_type), got {type(scheduler).__name__}, "
            "whose clock is not known"
        )
    bases = [convert(base) for base in scheduler.base_lrs]
    # Numbers of steps are rounded, and the last step of an epoch is a smaller one: by more, and it is another schedule.
    off = 1 + math.ceil(abs(step - scheduler.last_epoch / kappa))
    for base, factor, group in zip(bases, scheduler.lr_lambdas, groups, strict=True):
        around = [base * factor(max(0, k)) for k in range(step - off, step + off + 1)]
        now, slack = convert(float(group["lr"])), 1e-6 * base
        if not min(around) - slack <= now <= max(around) + slack:
            raise ValueError(
                f"the checkpoint's learning rate becomes {show(now)}, but the schedule of the arguments has "
                f"{show(around[off])} at step {show(step)}: take them from scale_training_arguments(the old ones, "
                "to=...)"
            )

    def move() -> None:
        scheduler.base_lrs, scheduler.last_epoch, scheduler._step_count = bases, step, step + 1
        for base, factor, group in zip(bases, scheduler.lr_lambdas, groups, strict=True):
            write(group, "lr", base * factor(step))
        scheduler._last_lr = [group["lr"] for group in groups]

    return move


def resume(trainer: Any, checkpoint: str | os.PathLike[str], *, batch_size: BatchSize | int | str | None = None) -> Any:
    """``trainer.train(resume_from_checkpoint=checkpoint)``, also where the checkpoint has another global batch size.

    The Trainer reads from the checkpoint how many steps are done, and takes its place in the data from that: it gets a
    view of the checkpoint with that number in steps of the new batch size. The rest is `RescaleCallback`'s, which is
    added if it is missing. The folder of the checkpoint itself is not changed.

    Args:
        trainer: made for the new batch size, with arguments from `scale_training_arguments` and an ``output_dir`` other
            than the old one: its steps are numbered anew.
        checkpoint: the folder.
        batch_size: the global batch size at which the checkpoint was written, where it does not say.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")
    args, path = trainer.args, Path(checkpoint)
    found = [one for one in trainer.callback_handler.callbacks if isinstance(one, RescaleCallback)]
    callback = found[0] if found else RescaleCallback()
    state = json.loads((path / "trainer_state.json").read_text())
    entry = state["stateful_callbacks"].setdefault(type(callback).__name__, callback.state())
    saved = entry["attributes"]["batch_size"]
    if saved is None and batch_size is None:
        raise ValueError(
            f"{path.name} does not say at which global batch size it was written (it was saved without "
            "RescaleCallback): give batch_size="
        )
    old, new = BatchSize.of(saved or batch_size or 0), global_batch_size(args)
    if batch_size is not None and BatchSize.of(batch_size).total != old.total:
        raise ValueError(f"batch_size is {batch_size}, but {path.name} says that it was written at {old}")
    written = state.get("train_batch_size")  # per device, or more where one process has several
    if saved is None and callback.batchnorm and written and not old.laid_out and old.total != written:
        raise ValueError(
            f"batchnorm=True needs the samples per device: {path.name} was written at train_batch_size={written}, so "
            f'batch_size={batch_size} must say its layout, as batch_size="{written}xACCUMULATIONxDEVICES"'
        )
    if old.total != new.total:
        check_arguments(args)
        if path.resolve().parent == Path(args.output_dir).resolve():
            raise ValueError(
                f"output_dir must be another folder than that of {path.name}: steps of the new batch size are numbered "
                "anew, and old and new checkpoints would be taken for each other"
            )
    if not found:
        trainer.add_callback(callback)
    callback._own_optimizer = trainer.optimizer is not None
    entry["attributes"] |= {
        "batch_size": old.to_json(),
        "steps_at": new.to_json(),
        "begun_at": entry["attributes"]["begun_at"] or old.to_json(),
        "resumed": True,  # says that this is a checkpoint's, also where it is younger than one step of the new size
    }
    if old.total != new.total:
        state |= _state_at(trainer, state, old, new)
    with tempfile.TemporaryDirectory(prefix="rootscale-") as folder:
        for item in path.resolve().iterdir():
            if item.name != "trainer_state.json":
                os.symlink(item, Path(folder, item.name), target_is_directory=item.is_dir())
        Path(folder, "trainer_state.json").write_text(json.dumps(state))
        return trainer.train(resume_from_checkpoint=folder)


def _state_at(trainer: Any, state: dict[str, Any], old: BatchSize, new: BatchSize) -> dict[str, Any]:
    """What changes in ``trainer_state.json``: the steps made, counted in the new batch size, and what hangs on them."""
    args, epoch, samples = trainer.args, 0, state["global_step"] * int(old.total)
    try:
        number = len(trainer.train_dataset)
    except TypeError:  # a stream: one long epoch
        steps, again = divmod(samples, int(new.total))
    else:
        drop = args.dataloader_drop_last
        epoch, within = divmod(state["global_step"], _updates(number, old, drop))
        steps, again = divmod(within * int(old.total), int(new.total))
        steps += epoch * _updates(number, new, drop)
        if within and _by_length(args):
            python_warnings.warn(
                "group_by_length orders the data by the batch size: until the end of this epoch, some samples are seen "
                "again and others not at all. A checkpoint from the end of an epoch goes on without that",
                ScalingWarning,
                stacklevel=3,
            )
    if again:
        python_warnings.warn(
            f"{again} samples are seen again: after {state['global_step']} steps of batch size {show(old.total)} "
            f"the new run would be in the middle of a step of {show(new.total)}",
            ScalingWarning,
            stacklevel=3,
        )
    kappa = new.total / Fraction(old.total)
    changed: dict[str, Any] = {
        "global_step": steps,
        "train_batch_size": args.train_batch_size,
        "best_global_step": None,
    }
    for name in ("logging_steps", "eval_steps", "save_steps"):
        given = getattr(args, name) or 0
        changed[name] = given if given >= 1 else max(1, round(state[name] / kappa))
    return changed


def _by_length(args: Any) -> bool:
    """Whether samples of like length are put together: an argument of its own in the first versions of 5."""
    return getattr(args, "train_sampling_strategy", "") == "group_by_length" or getattr(args, "group_by_length", False)


def _updates(number: int, size: BatchSize, drop_last: bool) -> int:
    """Optimizer steps in an epoch, as the Trainer counts them."""
    batch = int(size.forward)
    batches = number // batch if drop_last else math.ceil(number / batch)
    return max(1, math.ceil(batches / size.accumulation))
