"""The callback of a `Trainer` that keeps the batch size in checkpoints and converts a run resumed at another one."""

from __future__ import annotations

import inspect
import math
import warnings as python_warnings
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from rootscale.batch_size import BatchSize
from rootscale.changes import Changes, ScalingWarning
from rootscale.configs.reading import Reading
from rootscale.format import show
from rootscale.integrations.transformers.arguments import global_batch_size, read_arguments
from rootscale.integrations.transformers.noise import NoiseLog
from rootscale.integrations.transformers.scheduler import scheduler_at
from rootscale.noise import Noise
from rootscale.optimizers import FAMILIES
from rootscale.rules import AVERAGINGS, get_rule
from rootscale.tracking import SAMPLES, above_noise, numbers
from rootscale.training import rescale_, restore_
from rootscale.training.edits import units_edit
from rootscale.training.markers import units_of
from rootscale.training.watch import settle

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error

__all__ = ["RescaleCallback", "check_live"]


def check_live(args: Any) -> Reading:
    """Return what the arguments say, if a run with them can also be converted in the middle.

    Raises:
        ValueError: it cannot; the message names the argument.
    """
    reading = read_arguments(args)
    if not reading.row.live:
        usable = [name for name, row in reading.format.optimizers.items() if row.live]
        raise ValueError(
            f"optim={reading.source['optim']!r} keeps its state in a form of its own, which is not converted: only its "
            f"arguments can be, for a run from the start; the state can be of {', '.join(usable)}"
        )
    return reading


class RescaleCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps the batch size in every checkpoint, converts a run that is resumed at another one, logs the noise.

    Give it to the Trainer from the start. To resume at another batch size, make the Trainer anew with
    `scale_training_arguments` and call `resume` instead of ``trainer.train``. A checkpoint that is resumed at another
    batch size without that is refused.

    Args:
        rule: a rule or its text, such as ``"sqrt"``, ``"with power"`` or ``"sqrt without batchnorm"``; None is the
            optimizer's own, as it was for the arguments.
        batchnorm: whether to convert the momentum of the model's BatchNorm layers, which no checkpoint holds. It is
            converted from the batch size at which the run started, for which the model's code is written, by the
            samples of a forward pass over all devices: accumulation alone leaves it as it is.
        ema: averages of the parameters (see `rescale_`), whose decay is converted in the same way, by the global batch
            size.
        noise_every: measure the noise of the gradient at every so many steps, and log ``noise_scale`` with the loss; 0
            is never. It needs accumulation or several processes. A batch that exceeds it is a warning.
        noise_window: how many of the latest measurements to average over.

    Attributes:
        changes: what was converted when training began; None if nothing was.
        batch_size: the batch size in whose units the optimizer's state is.
        steps_at: that of the step counter.
        started_at: that of the run's start, for which the model's code is written.
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
        self.batch_size: int | str | None = None
        self.steps_at: int | str | None = None
        self.started_at: int | str | None = None
        self._own_optimizer = False  # whether the arguments do not describe the optimizer
        self._averages_of: Any = None
        self._noise: NoiseLog | None = None
        self._unlogged: Changes | None = None  # what no tracker has been given yet
        self._warned = False

    def state(self) -> dict[str, Any]:
        """Return what every checkpoint keeps, in ``trainer_state.json``."""
        names = ("rule", "batchnorm", "noise_every", "noise_window")
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {name: getattr(self, name) for name in ("batch_size", "steps_at", "started_at")},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Convert what the Trainer has loaded, before it makes a step."""
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
        _put_first(self)
        self.changes, self._warned = None, False
        if before.total != size.total:
            if BatchSize.of(saved["steps_at"]).total != size.total:
                raise ValueError(
                    f"the checkpoint was written at batch size {before} and is resumed at {size}: use "
                    "rootscale.integrations.transformers.resume(trainer, checkpoint) instead of trainer.train, with "
                    "arguments from scale_training_arguments"
                )
            self.changes = self._unlogged = self._convert(args, state, before, size, **kwargs)
        start = BatchSize.of(started_at(saved) or before)
        self._convert_averages(kwargs["model"], _bare(kwargs["optimizer"]), start, size)
        self.batch_size = self.steps_at = size.to_json()
        self.started_at = start.to_json()
        state.stateful_callbacks[name] = self.state()  # a checkpoint from before this callback has none
        if self.noise_every:
            self._noise = NoiseLog(args, kwargs["model"], _bare(kwargs["optimizer"]), self.noise_window)

    def _convert(self, args: Any, state: Any, before: BatchSize, size: BatchSize, **kwargs: Any) -> Changes:
        optimizer, scheduler = _bare(kwargs["optimizer"]), kwargs["lr_scheduler"]
        kappa = float(size.total / Fraction(before.total))
        record = check_live(args).record()
        if not self._own_optimizer:
            self._check_arguments(record, optimizer, kappa)
        move = scheduler_at(scheduler, state.global_step, get_rule(self.rule, record.name), kappa)
        settle(optimizer, {})  # the state has been loaded, and what it says was converted is converted below
        with python_warnings.catch_warnings():  # the scheduler is moved below; in some versions it drives the bare one
            python_warnings.filterwarnings("ignore", "a scheduler drives this optimizer but was not given")
            changes = rescale_(optimizer, batch_size=(before, size), rule=self.rule)
        move()
        return replace(changes, remaining=self._left())

    def _left(self) -> tuple[str, ...]:
        """What neither the arguments nor this callback have converted."""
        options = {"BatchNorm, if there is any": "batchnorm", "average of the parameters (EMA), if there is one": "ema"}
        return tuple(
            f"{what}: RescaleCallback({name}=...) converts it"
            for what, name in options.items()
            if not getattr(self, name)
        )

    def _check_arguments(self, wanted: Any, optimizer: Any, kappa: float) -> None:
        """Check that the checkpoint's hyperparameters, converted, are those of the arguments."""
        group = optimizer.param_groups[0]
        decay = max(one["weight_decay"] for one in optimizer.param_groups)  # some groups have none
        loaded = {**group, "lr": group.get("initial_lr"), "weight_decay": decay}
        has: dict[str, Any] = {}
        for name, held in FAMILIES[wanted.name].torch.values.items():
            values = {held: loaded.get(name)} if isinstance(held, str) else dict(zip(held, loaded[name], strict=True))
            has |= {field: float(value) for field, value in values.items() if value is not None}
        loaded_record = replace(wanted, **has)
        found = _difference(get_rule(self.rule, wanted.name).convert_record(loaded_record, kappa), wanted, has)
        if found is None:
            return
        name, got, should = found
        message = (
            f"the checkpoint's {name}={show(has[name])} becomes {show(got)} at kappa = {show(kappa)}, but the "
            f"arguments have {show(should)}: "
        )
        for averaging in AVERAGINGS:
            rule = get_rule(self.rule, wanted.name).averaged(averaging)
            if _difference(rule.convert_record(loaded_record, kappa), wanted, has) is None:
                raise ValueError(
                    f"{message}they were converted with rule={rule.name!r} and RescaleCallback has rule={self.rule!r}; "
                    f"give both the same, RescaleCallback(rule={rule.name!r})"
                )
        raise ValueError(f"{message}take them from scale_training_arguments(the old ones, to=...)")

    def _convert_averages(self, model: Any, optimizer: Any, start: BatchSize, size: BatchSize) -> None:
        """Bring averages to the batch size of now, and note in the optimizer that they, and its schedule, have to be.

        So a script that resumes the run without this callback, maybe with the arguments of its start, makes no step.
        """
        kappa, forward = float(size.total / Fraction(start.total)), float(size.forward / Fraction(start.forward))
        carried, decays = units_of(optimizer.param_groups), None
        parts = {"scheduler": carried.kappa}
        parts |= {"model": forward} if self.batchnorm else {}
        parts |= {} if self.ema is None else {"ema": kappa}
        norms, averages = parts.get("model", 1) != 1, parts.get("ema", 1) != 1 or carried.decays
        if (norms or averages) and self._averages_of is not model:
            live: dict[str, Any] = {"model": model if norms else None, "ema": self.ema if averages else None}
            held = {name: carried.parts.get(name, 1.0) if live[name] is not None else 1.0 for name in live}
            nobody = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # these rows are those of every rule
            units_edit(nobody, held["ema"], None, held, carried.decays).apply()
            restore_(nobody, **live)  # an average may have loaded a decay of the checkpoint's units, with its own state
            rescale_(nobody, kappa / held["ema"], forward_kappa=forward / held["model"], **live)
            self._averages_of, decays = model, units_of(nobody.param_groups).decays
        units_edit(optimizer, 1.0, None, parts, decays).apply()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the step whose first backward is next, if it is its turn."""
        if self._noise is not None and state.global_step % self.noise_every == 0:
            self._noise.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the measurement after the last backward of a step."""
        if self._noise is not None:
            self._noise.end()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Put the samples seen into every log, and what was converted and the noise scale beside the loss."""
        if logs is None or self.batch_size is None:
            return
        size = float(BatchSize.of(self.batch_size).total)
        values = {SAMPLES: state.global_step * size}
        if "loss" in logs:
            found: list[Any] = [
                one for one in (self._unlogged, self._noise and self._noise.estimate()) if one is not None
            ]
            values |= numbers(*found)
            self._unlogged = None
            self._warn(found[-1] if found else None, size)
        logs.update(values)
        state.log_history[-1].update(values)

    def _warn(self, found: Any, size: float) -> None:
        """Say once in a training that the batch exceeds the noise scale."""
        message = above_noise(found, size) if isinstance(found, Noise) and not self._warned else ""
        if message:
            self._warned = True
            python_warnings.warn(message, ScalingWarning, stacklevel=2)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the hooks off the model."""
        if self._noise is not None:
            self._noise.remove()
            self._noise = None


def _put_first(callback: Any) -> None:
    """Move a callback to the front of its Trainer's: trackers come before the callbacks that users give.

    They read the same dictionary of logs one after the other. No event has the list of callbacks as an argument, so it
    is taken from who calls the event.
    """
    frame = inspect.currentframe()
    while frame is not None:
        held = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(held, list) and any(one is callback for one in held):
            held[:] = [callback, *(one for one in held if one is not callback)]
            return
        frame = frame.f_back


def _difference(converted: Any, wanted: Any, fields: Iterable[str]) -> tuple[str, float, float] | None:
    """The first field in which two records differ, with both values; None if there is none."""
    for name in fields:
        got, should = getattr(converted, name), getattr(wanted, name)
        if not math.isclose(got, should, rel_tol=1e-6, abs_tol=1e-15):
            return name, got, should
    return None


def started_at(attributes: dict[str, Any]) -> int | str | None:
    """Return the batch size of the run's start from what a checkpoint keeps; version 0.0 calls it ``begun_at``."""
    found: int | str | None = attributes.get("started_at", attributes.get("begun_at"))
    return found


def _bare(optimizer: Any) -> Any:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
