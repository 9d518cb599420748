"""The training arguments of Hugging Face's Trainer: one table for files of them and for live `TrainingArguments`.

`rootscale.integrations.transformers` reads it for live arguments and `rootscale convert` for files, so both convert the
same values and refuse the same ones. Nothing here imports transformers.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from rootscale.changes import Change
from rootscale.integrations.configs.formats.names import LIVE, NO_MOMENTUM, TRAINER
from rootscale.integrations.configs.formats.row import (
    Field,
    Refusal,
    ScheduleRow,
    Source,
    When,
    optimizer,
)
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["LIVE_REFUSALS", "TRANSFORMERS", "named_deepspeed"]

#: The text in which the Trainer takes further options of an optimizer: ``"alpha=0.99, eps=1e-8"``.
_TEXT = "optim_args"
_KWARGS = "lr_scheduler_kwargs"

_ADAMW = {
    "eta": ("learning_rate", 5e-5),
    "beta1": ("adam_beta1", 0.9),
    "beta2": ("adam_beta2", 0.999),
    "eps": ("adam_epsilon", 1e-8),
    "weight_decay": ("weight_decay", 0.0),
}
_RATE = {"eta": ("learning_rate", 5e-5)}
_DECAY = {"weight_decay": ("weight_decay", 0.0)}
#: The rows of the families. The Trainer gives every AdamW the ``adam_*`` arguments and ignores ``optim_args``.
_ROWS = {
    "adamw": optimizer("adamw", _ADAMW),
    "rmsprop": optimizer(
        "rmsprop",
        {**_RATE, "beta": (f"{_TEXT}.alpha", 0.99), "eps": (f"{_TEXT}.eps", 1e-8), **_DECAY},
        not_in_files=f"its alpha and eps are in the text of {_TEXT}, which is not written in files; convert live "
        "arguments with rootscale.integrations.transformers.scale_training_arguments",
    ),
    "sgd": optimizer("sgd", {**_RATE, "momentum": f"{_TEXT}.momentum", **_DECAY}),
    "lion": optimizer("lion", {name: path for name, path in _ADAMW.items() if name != "eps"}),
}
#: The values of ``optim``.
_OPTIMIZERS = {name: replace(_ROWS[family], live=library in LIVE) for name, (family, library) in TRAINER.items()}

_MIN_LR = Field(f"{_KWARGS}.min_lr", "min_eta")
_PLATEAU = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown")
#: The values of ``lr_scheduler_type``, with the units of ``lr_scheduler_kwargs``.
_SCHEDULES = {
    **dict.fromkeys(("linear", "constant", "constant_with_warmup"), ScheduleRow()),
    **dict.fromkeys(("cosine", "cosine_with_restarts"), ScheduleRow(others=("num_cycles",))),
    "polynomial": ScheduleRow((Field(f"{_KWARGS}.lr_end", "min_eta", 1e-7),), ("power",)),
    "inverse_sqrt": ScheduleRow(
        (Field(f"{_KWARGS}.timescale", "schedule", 10_000, unless=("warmup_steps", "warmup_ratio")),)
    ),
    "cosine_with_min_lr": ScheduleRow((_MIN_LR,), ("num_cycles", "min_lr_rate")),
    "cosine_warmup_with_min_lr": ScheduleRow((_MIN_LR,), ("num_cycles", "min_lr_rate", "warmup_lr_rate")),
    "warmup_stable_decay": ScheduleRow(
        (Field(f"{_KWARGS}.num_decay_steps", "schedule"), Field(f"{_KWARGS}.num_stable_steps", "schedule")),
        ("warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
    # Its clock is the evaluations, which stay where they are in samples.
    "reduce_lr_on_plateau": ScheduleRow((_MIN_LR, Field(f"{_KWARGS}.eps", "min_eta", 1e-8)), _PLATEAU),
    "greedy": ScheduleRow(refused="it has no clock: it raises and lowers the learning rate by a metric"),
}

_BY_STEPS = ("steps",)
_FIELDS = (
    Field("max_grad_norm", "clip", 1.0),
    Field("max_steps", "steps"),
    Field("warmup_steps", "warmup"),
    Field("logging_steps", "intervals", 500),  # also the interval of evaluations that have none
    Field("eval_steps", "intervals", when=(When("eval_strategy", (*_BY_STEPS, None)),)),
    Field("save_steps", "intervals", 500, when=(When("save_strategy", _BY_STEPS, "steps"),)),
    Field("eval_delay", "intervals", when=(When("eval_strategy", _BY_STEPS),)),  # else in epochs
    Field("ref_model_sync_steps", "intervals", 512, when=(When("sync_ref_model"),)),  # of TRL
)
_RMSPROP = When("optim", ("rmsprop",))
_REFUSALS = (
    Refusal(
        "auto_find_batch_size",
        "the Trainer then chooses the batch size by itself and converts nothing; switch it off",
    ),
    Refusal(
        "accelerator_config.split_batches",
        "per_device_train_batch_size then is the batch of all devices together; switch it off",
    ),
    Refusal(
        "(program)",
        "a script without a Trainer makes its own optimizer and schedule, whose options are not these",
        matching="no_trainer",
    ),
    Refusal(f"{_TEXT}.momentum", NO_MOMENTUM, (None, 0), _RMSPROP),
    Refusal(f"{_TEXT}.centered", NO_MOMENTUM, (None, False, 0, "false", "no"), _RMSPROP),
)
#: What only live arguments have done already.
LIVE_REFUSALS = (
    Refusal(
        "deepspeed",
        "the arguments have read the DeepSpeed configuration already; convert that file with rootscale convert, and "
        "make the TrainingArguments anew",
        (None, False, ""),
    ),
)


def named_deepspeed(source: Source, kappa: float) -> str:
    """Say that there is a DeepSpeed configuration too."""
    if not (source["deepspeed"] or source.under("deepspeed")):
        return ""
    return 'a DeepSpeed configuration is named too: convert it as well, unless all it has is "auto"'


def _step_ahead(source: Source, kappa: float) -> str:
    if source["lr_scheduler_type"] != "cosine_warmup_with_min_lr" or kappa == 1:
        return ""
    return (
        "cosine_warmup_with_min_lr is a step ahead of its formula, and that step is now another one: at equal samples "
        "its learning rate is the rule's multiple only to within a step"
    )


def _keep_multiple(source: Source, rows: dict[str, Change]) -> dict[str, Change]:
    """The best model can be loaded at the end only if checkpoints are made at evaluations."""
    evaluations, saves = rows.get("eval_steps"), rows.get("save_steps")
    if not source["load_best_model_at_end"] or evaluations is None or saves is None:
        return rows
    times = Fraction(saves.before or 0) / Fraction(evaluations.before or 1)
    every = Fraction(evaluations.value or 1) * times
    if times.denominator != 1 or every == saves.value:
        return rows
    return {**rows, "save_steps": replace(saves, used=int(every), note="a multiple of the evaluations")}


TRANSFORMERS = Format(
    "transformers",
    "the training arguments of Hugging Face's Trainer",
    ("JSON", "YAML", "arguments"),
    ("per_device_train_batch_size",),
    Layout("", "per_device_train_batch_size", "gradient_accumulation_steps"),
    optimizer="optim",
    optimizers=_OPTIMIZERS,
    default_optimizer="adamw_torch",
    schedule="lr_scheduler_type",
    schedules=_SCHEDULES,
    default_schedule="linear",
    schedule_values=_KWARGS,
    fields=_FIELDS,
    epochs="num_train_epochs",
    refusals=_REFUSALS,
    remarks=(named_deepspeed, _step_ahead),
    adjust=_keep_multiple,
    tables=("",),
    others=(
        "warmup_ratio",
        "optim_args",
        "eval_accumulation_steps",
        "torch_empty_cache_steps",  # not about training
        "beta",  # the last of TRL's losses
    ),
)
