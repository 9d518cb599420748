"""Hugging Face transformers: `TrainingArguments` for another batch size, and a `Trainer` that resumes at another one.

The policy is the same in both: **the run at the new batch size looks as if it had always had it.** Its arguments are
the old ones converted (`scale_training_arguments`), its steps are counted in the new unit, its checkpoints are ordinary
ones. So a switch in mid-run converts the checkpoint's step counter before the Trainer reads it (`resume`; the place in
the data follows from it) and the optimizer's state and schedule after it has been loaded (`RescaleCallback`).
"""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
import warnings as python_warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from rootscale.changes import Change, Changes, ScalingWarning
from rootscale.hparams import SGD, AdamW, Optimizer, RMSprop
from rootscale.plan import BatchSize, Plan
from rootscale.rules import Averaging, Rule, get_rule
from rootscale.schedule import Schedule
from rootscale.training import NoiseMeter, rescale_
from rootscale.training.schedulers import write
from rootscale.units import Number, show

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        f"rootscale.integrations.transformers needs transformers 5 or newer, with accelerate ({error}): "
        "pip install 'rootscale[transformers]'"
    ) from error

__all__ = ["RescaleCallback", "explain_training_arguments", "global_batch_size", "resume", "scale_training_arguments"]


# ---- What the arguments say


def _adamw(args: Any) -> AdamW:
    return AdamW(
        args.learning_rate, args.adam_beta1, args.adam_beta2, args.adam_epsilon, weight_decay=args.weight_decay
    )


def _optim_args(args: Any) -> dict[str, str]:
    """``optim_args`` as the Trainer reads it: ``"alpha=0.99, eps=1e-8"``."""
    parts = (args.optim_args or "").replace(" ", "").split(",")
    return dict(part.split("=", 1) for part in parts if part)


def _rmsprop(args: Any) -> RMSprop:
    given = _optim_args(args)
    if float(given.get("momentum", 0)) or given.get("centered", "false").lower() in ("true", "1", "yes"):
        raise ValueError("RMSprop with momentum or centered follows no known SDE, so no rule keeps its dynamics")
    alpha, eps = float(given.get("alpha", 0.99)), float(given.get("eps", 1e-8))
    return RMSprop(args.learning_rate, alpha, eps, weight_decay=args.weight_decay)


def _sgd(args: Any) -> SGD:
    return SGD(args.learning_rate, float(_optim_args(args).get("momentum", 0)), args.weight_decay)


#: The values of ``optim`` whose optimizers follow a known SDE.
_OPTIMIZERS: Mapping[str, Callable[[Any], Optimizer]] = MappingProxyType(
    {
        "adamw_torch": _adamw,
        "adamw_torch_fused": _adamw,
        "adamw_torch_xla": _adamw,
        "adamw_torch_npu_fused": _adamw,
        "rmsprop": _rmsprop,
        "sgd": _sgd,
    }
)


@dataclass(frozen=True)
class _Kind:
    """A value of ``lr_scheduler_type``: the units of its ``lr_scheduler_kwargs`` (None: a number without a unit).

    ``defaults`` are those that the library takes where none is given, although they have a unit.
    """

    units: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


_MIN_LR: dict[str, str | None] = {"num_cycles": None, "min_lr": "min_eta", "min_lr_rate": None}
_SCHEDULERS: Mapping[str, _Kind] = MappingProxyType(
    {
        "linear": _Kind(),
        "cosine": _Kind({"num_cycles": None}),
        "cosine_with_restarts": _Kind({"num_cycles": None}),
        "polynomial": _Kind({"lr_end": "min_eta", "power": None}, {"lr_end": 1e-7}),
        "constant": _Kind(),
        "constant_with_warmup": _Kind(),
        "inverse_sqrt": _Kind({"timescale": "steps"}),
        "cosine_with_min_lr": _Kind(_MIN_LR),
        "cosine_warmup_with_min_lr": _Kind(
            {**_MIN_LR, "warmup_lr_rate": None},
            note="cosine_warmup_with_min_lr is a step ahead of its formula, and that step is now another one: at equal "
            "samples its learning rate is the rule's multiple only to within a step",
        ),
        "warmup_stable_decay": _Kind(
            {"num_decay_steps": "steps", "num_stable_steps": "steps"}
            | dict.fromkeys(("warmup_type", "decay_type", "min_lr_ratio", "num_cycles"))
        ),
        # Its clock is the evaluations, which stay where they were in samples.
        "reduce_lr_on_plateau": _Kind(
            {"min_lr": "min_eta", "eps": "min_eta"}
            | dict.fromkeys(("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown")),
            {"eps": 1e-8},
        ),
    }
)


def _name(value: Any) -> str:
    return str(getattr(value, "value", value))


def _check(args: Any) -> None:
    """Refuse by name what could not be converted consistently."""
    if not isinstance(args, TrainingArguments):
        raise TypeError(f"args must be transformers.TrainingArguments, got {type(args).__name__}")
    optim, scheduler = _name(args.optim), _name(args.lr_scheduler_type)
    if optim not in _OPTIMIZERS:
        raise ValueError(
            f"optim={optim!r} follows no known SDE, so no rule keeps its dynamics; those that do: {_list(_OPTIMIZERS)}"
        )
    if scheduler not in _SCHEDULERS:
        raise ValueError(
            f"lr_scheduler_type={scheduler!r} has no known clock; those that have one: {_list(_SCHEDULERS)}"
        )
    for key in args.lr_scheduler_kwargs or {}:
        if key not in _SCHEDULERS[scheduler].units:
            raise ValueError(
                f"lr_scheduler_kwargs of {scheduler!r} has {key!r}, whose unit is not known; known are "
                f"{_list(_SCHEDULERS[scheduler].units) or 'none'}"
            )
    if args.deepspeed:
        raise ValueError(
            "deepspeed has read the arguments into a configuration of its own already: convert that file instead "
            "and make the TrainingArguments anew"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size changes the batch size and converts nothing: turn it off and state the batch size"
        )
    if getattr(args.accelerator_config, "split_batches", False):
        raise ValueError("split_batches makes per_device_train_batch_size mean another thing: turn it off")


def _list(names: Any) -> str:
    return ", ".join(names)


def global_batch_size(args: Any, world_size: int | None = None) -> BatchSize:
    """Samples per optimizer step: ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` x workers.

    Args:
        args: `transformers.TrainingArguments`.
        world_size: devices that see different samples; None is what the arguments see on this machine, now.
    """
    if world_size is None:
        world_size = args.world_size * max(1, args.n_gpu)
        parallel = args.parallelism_config
        if parallel is not None:  # these processes share their samples
            world_size //= parallel.tp_size * parallel.cp_size * getattr(parallel, "sp_size", 1)
    return BatchSize(args.per_device_train_batch_size, args.gradient_accumulation_steps, world_size)


def _layout(old: BatchSize, to: BatchSize | Number | str) -> BatchSize:
    """Another total: the workers stay, and the micro-batch too where it divides, else the largest below that does."""
    new = BatchSize.of(to)
    if isinstance(to, BatchSize) or (isinstance(to, str) and "x" in to.lower().replace("×", "x")):
        return new
    each = Fraction(new.total) / old.workers
    if each.denominator != 1:
        below = int(each) * old.workers
        near = f"{below} or {below + old.workers}" if below else f"{old.workers}"
        raise ValueError(f"to={show(new.total)} does not divide among {old.workers} workers; {near} would")
    micro = next(size for size in range(int(old.micro), 0, -1) if each % size == 0)
    return BatchSize(micro, int(each) // micro, old.workers)


# ---- Arguments to arguments


def scale_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
    averaging: Averaging = "paper",
) -> Any:
    """New `TrainingArguments` of the same run at another global batch size.

    Converted are the learning rate, Adam's betas and epsilon, decoupled weight decay, the gradient clip, the warm-up,
    ``max_steps``, the steps between logs, evaluations and checkpoints, and what ``lr_scheduler_kwargs`` holds of steps
    and learning rates. Shares (a warm-up of 0.1, say) and ``num_train_epochs`` mean the same at any batch size. All
    else stays; ``args`` itself is not changed. `explain_training_arguments` says what is changed and why.

    Args:
        args: the arguments of the run as it is; subclasses stay what they are.
        to: the new global batch size, counted over devices and accumulation: a number, for which the accumulation
            changes and the batch per device stays where it can; or ``"8x4x16"``, batch per device x accumulation x
            devices.
        world_size: devices that see different samples; None is what this process sees.
        dataset_size: samples in the training data, to check a run whose length is in epochs.
        rule: a name from `rootscale.RULES`; None is the optimizer's own, ``sqrt`` for AdamW.
        averaging: ``paper`` for ``1 - kappa (1 - beta)``, ``power`` for ``beta^kappa``.

    Raises:
        ValueError: there are no such arguments; the message says what would work.

    >>> from transformers import TrainingArguments
    >>> args = TrainingArguments("out", per_device_train_batch_size=8, learning_rate=3e-4, adam_beta1=0.95,
    ...                          max_steps=1000, warmup_steps=100, use_cpu=True)
    >>> new = scale_training_arguments(args, to=32)
    >>> new.per_device_train_batch_size, new.gradient_accumulation_steps, new.max_steps, new.warmup_steps
    (8, 4, 250, 25)
    >>> new.learning_rate, round(new.adam_beta1, 12), args.learning_rate
    (0.0006, 0.8, 0.0003)
    """
    values, changes = _converted(args, to, world_size, dataset_size, rule, averaging)
    for message in changes.warnings:
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    new = copy.copy(args)
    for key, value in vars(args).items():  # so that whoever changes a list of the new ones leaves the old ones alone
        if isinstance(value, dict | list):
            setattr(new, key, copy.copy(value))
    for key, value in values.items():
        setattr(new, key, value)
    return new


def explain_training_arguments(
    args: Any,
    *,
    to: BatchSize | Number | str,
    world_size: int | None = None,
    dataset_size: int | None = None,
    rule: str | Rule | None = None,
    averaging: Averaging = "paper",
) -> Changes:
    """What `scale_training_arguments` changes, each row with its status and its reason; print it."""
    return _converted(args, to, world_size, dataset_size, rule, averaging)[1]


def _intervals(args: Any) -> dict[str, int]:
    """What is done every so many steps; shares of the run (below 1) stay."""
    return {
        name: int(getattr(args, f"{name}_steps"))
        for name in ("logging", "eval", "save")
        if _name(getattr(args, f"{name}_strategy")) == "steps" and (getattr(args, f"{name}_steps") or 0) >= 1
    }


def _converted(
    args: Any,
    to: BatchSize | Number | str,
    world_size: int | None,
    dataset_size: int | None,
    rule: str | Rule | None,
    averaging: Averaging,
) -> tuple[dict[str, Any], Changes]:
    """The values that change, by the names of the arguments, and the table of changes."""
    _check(args)
    old = global_batch_size(args, world_size)
    new = _layout(old, to)
    optimizer = _OPTIMIZERS[_name(args.optim)](args)
    chosen = get_rule(rule, optimizer.name, averaging)
    long = args.max_steps > 0
    epochs = Fraction(args.num_train_epochs) if dataset_size is not None and not long else None
    plan = Plan(
        optimizer,
        old.total,  # type: ignore[arg-type]
        steps=args.max_steps if long else None,
        epochs=epochs,
        dataset_size=dataset_size,
        schedule=Schedule(warmup=int(args.warmup_steps) if args.warmup_steps >= 1 else 0),
        clip=args.max_grad_norm or None,
        intervals=_intervals(args),
    )
    changes = plan.explain(new.total, chosen, averaging)
    rows = {row.name: row for row in changes}
    warnings = list(changes.warnings)

    if args.eval_delay and _name(args.eval_strategy) == "steps":
        rows["eval_delay"] = _row(chosen, "eval_delay", "steps", args.eval_delay, changes.kappa, whole=True)
    if args.load_best_model_at_end and {"every eval", "every save"} <= set(rows):
        every = _used(rows["every eval"]) * Fraction(args.save_steps) / Fraction(args.eval_steps)
        if every != _used(rows["every save"]):
            rows["every save"] = replace(rows["every save"], used=int(every), note="a multiple of the evaluations")
    kwargs = dict(args.lr_scheduler_kwargs or {})
    for key, row in _scheduler_rows(args, chosen, changes.kappa).items():
        rows[f"lr_scheduler_kwargs {key}"] = row
        kwargs[key] = _plain(_used(row))

    names = {
        "learning_rate": "lr",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
        "adam_epsilon": "eps",
        "weight_decay": "weight_decay",
        "max_steps": "steps" if long else "",
        "warmup_steps": "warm-up steps",
        "max_grad_norm": "clip norm",
        "logging_steps": "every logging",
        "eval_steps": "every eval",
        "save_steps": "every save",
        "eval_delay": "eval_delay",
    }
    if optimizer.name == "rmsprop":
        del names["adam_epsilon"]
    values: dict[str, Any] = {key: _plain(_used(rows[name])) for key, name in names.items() if name in rows}
    values |= {"per_device_train_batch_size": new.micro, "gradient_accumulation_steps": new.accumulation}
    if kwargs:
        values["lr_scheduler_kwargs"] = kwargs
    if isinstance(optimizer, RMSprop):
        own = {"alpha": rows["beta (alpha)"], "eps": rows["eps"]}
        texts = _optim_args(args) | {key: repr(float(_used(row))) for key, row in own.items()}
        values["optim_args"] = ",".join(f"{key}={value}" for key, value in texts.items())
    note = _SCHEDULERS[_name(args.lr_scheduler_type)].note
    if note and changes.kappa != 1:
        warnings.append(note)
    title = f"{changes.title}, {_text(old)} -> {_text(new)} (per device x accumulation x devices)"
    return values, replace(changes, rows=tuple(rows.values()), warnings=tuple(warnings), title=title)


def _text(size: BatchSize) -> str:
    return f"{size.micro}x{size.accumulation}x{size.workers}"


def _used(row: Change) -> Any:
    return row.after if row.used is None else row.used


def _plain(value: Number) -> int | float:
    return value if isinstance(value, int) else float(value)


def _row(rule: Rule, name: str, unit: str, value: float, kappa: Number, whole: bool = False) -> Change:
    exact = Fraction(value) if whole else value
    after = rule.convert(unit, exact, kappa, name)
    used = max(1, round(after)) if whole else None
    note = f"rounded from {show(after)}" if whole and used != after else ""
    return Change(name, value, after, rule.units.get(unit), used, note)


def _scheduler_rows(args: Any, rule: Rule, kappa: Number) -> dict[str, Change]:
    kind = _SCHEDULERS[_name(args.lr_scheduler_type)]
    values = {**kind.defaults, **(args.lr_scheduler_kwargs or {})}
    if _name(args.lr_scheduler_type) == "inverse_sqrt" and not args.warmup_steps:
        values.setdefault("timescale", 10_000)  # what the library takes
    rows = {}
    for key, value in values.items():
        unit = kind.units[key]
        if unit is not None and value is not None:
            rows[key] = _row(rule, f"lr_scheduler_kwargs {key}", unit, value, kappa, whole=unit == "steps")
    return rows


# ---- A run that goes on


class RescaleCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Remembers the batch size in every checkpoint, converts a run that is resumed at another one, logs the noise.

    Give it to the Trainer from the start. To go on with another batch size, make the Trainer anew with
    `scale_training_arguments` and call `resume` instead of ``trainer.train``. A checkpoint that is resumed at another
    batch size without that is refused.

    Args:
        rule: a name from `rootscale.RULES`; None is the optimizer's own.
        averaging: ``paper`` or ``power``, as it was for the arguments.
        batchnorm: whether to convert the momentum of the model's BatchNorm layers, which no checkpoint holds: from the
            batch size at which the run was begun, for which the model's code is written.
        ema: averages of the parameters (see `rescale_`), whose decay is converted in the same way.
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
        averaging: Averaging = "paper",
        batchnorm: bool = False,
        ema: Any = None,
        noise_every: int = 0,
        noise_window: int = 32,
    ) -> None:
        self.rule, self.averaging, self.batchnorm, self.ema = rule, averaging, batchnorm, ema
        self.noise_every, self.noise_window = noise_every, noise_window
        self.changes: Changes | None = None
        # In the units of which batch size: the optimizer's state, the step counter, the model as it is written.
        self.batch_size: int | str | None = None
        self.steps_at: int | str | None = None
        self.begun_at: int | str | None = None
        self._own_optimizer = False  # whether the arguments do not describe the optimizer
        self._averages_of: Any = None
        self._noise: _NoiseLog | None = None

    def state(self) -> dict[str, Any]:
        """What every checkpoint keeps, in ``trainer_state.json``."""
        names = ("rule", "averaging", "batchnorm", "noise_every", "noise_window")
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {name: getattr(self, name) for name in ("batch_size", "steps_at", "begun_at")},
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has loaded the checkpoint, if there is one, and has made no step yet."""
        size, name = global_batch_size(args), type(self).__name__
        saved = state.stateful_callbacks.get(name, {}).get("attributes", {}) if state.global_step else {}
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
            _check(args)
            self.changes = self._convert(args, state, float(size.total / Fraction(before.total)), **kwargs)
        begun = BatchSize.of(saved.get("begun_at") or before)
        self._convert_averages(kwargs["model"], float(size.total / Fraction(begun.total)))
        self.batch_size = self.steps_at = size.to_json()
        self.begun_at = begun.to_json()
        state.stateful_callbacks.setdefault(name, self.state())  # a checkpoint from before this callback has none
        if self.noise_every:
            self._noise = _NoiseLog(args, kwargs["model"], _bare(kwargs["optimizer"]), self)

    def _convert(self, args: Any, state: Any, kappa: float, **kwargs: Any) -> Changes:
        optimizer, scheduler = _bare(kwargs["optimizer"]), kwargs["lr_scheduler"]
        record = _OPTIMIZERS[_name(args.optim)](args)
        if not self._own_optimizer:
            self._check_arguments(record, optimizer, kappa)
        rule = get_rule(self.rule, record.name, self.averaging)
        commit = _scheduler_at(scheduler, state.global_step, rule, kappa)
        changes = rescale_(optimizer, kappa, rule=self.rule, averaging=self.averaging)
        commit()
        return changes

    def _check_arguments(self, wanted: Any, optimizer: Any, kappa: float) -> None:
        """Whether the checkpoint's hyperparameters, converted, are those of the arguments."""
        group = optimizer.param_groups[0]
        betas = group.get("betas", (0, 0))
        has = {"eta": group.get("initial_lr"), "beta1": betas[0], "beta2": betas[1], "beta": group.get("alpha")}
        has |= {"eps": group.get("eps"), "weight_decay": max(g["weight_decay"] for g in optimizer.param_groups)}
        names = [name for name in has if hasattr(wanted, name) and has[name] is not None]
        rule = get_rule(self.rule, wanted.name, self.averaging)
        converted = rule.convert_record(replace(wanted, **{name: float(has[name]) for name in names}), kappa)
        for name in names:
            old, got, should = float(has[name]), getattr(converted, name), getattr(wanted, name)
            if not math.isclose(got, should, rel_tol=1e-6, abs_tol=1e-15):
                raise ValueError(
                    f"the checkpoint's {name}={show(old)} becomes {show(got)} at kappa = {show(kappa)}, but the "
                    f"arguments have {show(should)}: take them from scale_training_arguments(the old ones, to=...)"
                )

    def _convert_averages(self, model: Any, kappa: float) -> None:
        if kappa == 1 or not (self.batchnorm or self.ema is not None) or self._averages_of is model:
            return
        nobody = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # these rows are those of every rule
        rescale_(nobody, kappa, model=model if self.batchnorm else None, ema=self.ema)
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
    if old.total != new.total:
        _check(args)
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


def _updates(number: int, size: BatchSize, drop_last: bool) -> int:
    """Optimizer steps in an epoch, as the Trainer counts them."""
    batch = int(size.micro) * size.workers
    batches = number // batch if drop_last else math.ceil(number / batch)
    return max(1, math.ceil(batches / size.accumulation))


# ---- The noise of the gradient


class _NoiseLog:
    """A `NoiseMeter` fed by the Trainer's own backwards: each micro-batch is a part.

    The Trainer clips the gradient before it tells a callback that the step is complete. So the parts are taken where
    autograd ends each backward, not at the Trainer's events.
    """

    def __init__(self, args: Any, model: torch.nn.Module, optimizer: Any, callback: RescaleCallback) -> None:
        size = global_batch_size(args)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized() and args.world_size > 1
        if args.fsdp or args.deepspeed:
            raise ValueError("noise_every needs whole gradients on every device: not with fsdp or deepspeed")
        if size.accumulation < 2 and not distributed:
            raise ValueError(
                "noise_every needs gradient_accumulation_steps >= 2 or several processes to tell noise from gradient"
            )
        group = torch.distributed.group.WORLD if distributed else None
        self._meter = NoiseMeter(optimizer, callback.noise_window, process_group=group)
        self._samples, self._parts = int(args.train_batch_size), size.accumulation
        self._seen, self.steps = 0, 0
        self._part: AbstractContextManager[None] | None = None
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._hook = register_multi_grad_hook(parameters, self._backward, mode="any")

    def begin(self) -> None:
        """A step begins."""
        self._seen = 0
        self._open()

    def _open(self) -> None:
        self._part = self._meter.part(self._samples, 1 / self._parts)
        self._part.__enter__()

    def _backward(self, gradient: torch.Tensor) -> None:
        """The first gradient of a backward: look again when all are there, and DistributedDataParallel is done too."""
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
        """A step is over; the last one of an epoch may have had fewer parts, with other weights: it is left out."""
        if self._part is not None:
            stop = RuntimeError("left out")
            self._part.__exit__(RuntimeError, stop, None)
            self._part = None
            self._meter._parts.clear()

    def values(self) -> dict[str, float]:
        """The noise scale with its interval; an end that is not finite is left out."""
        scale = self._meter.estimate().scale
        named = {"noise_scale": scale.value, "noise_scale_low": scale.low, "noise_scale_high": scale.high}
        return {name: value for name, value in named.items() if math.isfinite(value)}

    def remove(self) -> None:
        """Take the hooks off."""
        self._hook.remove()
        self._meter.remove()
