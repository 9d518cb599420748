"""What the configuration files of known tools say, as tables: the path of each field, and which quantity it is.

A field that is in no table is not touched. What a tool scales by itself, and which fields are left alone because their
meaning is not certain, is in docs/integrations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rootscale.integrations.configs.documents import Document

#: What a field can be. These are fields of a `rootscale.Plan`, by which its changes are known.
PLAN_ROLES: Mapping[str, str] = MappingProxyType(
    {
        "lr": "optimizer.eta",
        "beta1": "optimizer.beta1",
        "beta2": "optimizer.beta2",
        "alpha": "optimizer.beta",
        "eps": "optimizer.eps",
        "weight_decay": "optimizer.weight_decay",
        "momentum": "optimizer.momentum",
        "steps": "steps",
        "clip": "clip",
        "ema": "ema",
    }
)
#: A number of steps of the schedule; one that would become 0 is refused.
SCHEDULE = "schedule"
#: Anything done every so many steps; a step is the least.
EVERY = "every"
#: Quantities of which a file may have several, by their row of `rootscale.units`.
UNIT_ROLES: Mapping[str, str] = MappingProxyType({"peak lr": "eta", "lowest lr": "min_eta", "decay": "decoupled_decay"})
#: BatchNorm's momentum counts forward passes of a worker, not optimizer steps.
BATCHNORM = "batchnorm"
#: A learning rate that the tool itself multiplies with a power of the batch size.
BASE_LR = "base lr"


@dataclass(frozen=True)
class Field:
    """A known field of a file.

    Args:
        path: dotted; a number leads into a list.
        role: what it is: a key of `PLAN_ROLES` or `UNIT_ROLES`, or one of the other roles of this module.
        default: what the tool takes where the file has nothing; written into the file where the rule changes it.
        when: a path that must hold something other than None, False, 0 and the empty text.
        needed: why the file must have it, where the tool's own default is not certain.
        unless: paths of which one that holds something takes the place of the default.
    """

    path: str
    role: str
    default: float | None = None
    when: str = ""
    needed: str = ""
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """An optimizer: its name in `rootscale.hparams.OPTIMIZERS` and its fields.

    Args:
        name: the record.
        fields: of the file.
        switch: ``(path, value, name)``: where the file has this value there, it is the record of that other name.
    """

    name: str
    fields: tuple[Field, ...]
    switch: tuple[str, Any, str] | None = None


@dataclass(frozen=True)
class Layout:
    """Where the batch size is: samples per step (``total``), per backward of a worker (``micro``), accumulation."""

    total: str = ""
    micro: str = ""
    accumulation: str = ""


@dataclass(frozen=True)
class Format:
    """A tool's configuration file.

    Args:
        name: as on the command line.
        summary: what it is.
        syntaxes: what it is written in; names of `rootscale.integrations.configs.documents.SYNTAXES`.
        markers: it is this format if one of these paths is there, and all of ``also``.
        also: see ``markers``.
        layout: where the batch size is.
        optimizer: the path of the optimizer's name.
        optimizers: by name in lower case.
        default_optimizer: where the file names none; empty if it must.
        schedule: the path of the schedule's name.
        schedules: the fields of each schedule by name in lower case, or why it is refused; empty if all are alike.
        fields: of every file of this format.
        epochs: the path of the length of the run in passes over the data, which does not change.
        guards: each says why a file cannot be converted, or nothing.
        remarks: each says what else to know about a file, or nothing.
        flat: whether fields go by bare names, with ``_`` for ``-``.
    """

    name: str
    summary: str
    syntaxes: tuple[str, ...]
    markers: tuple[str, ...]
    layout: Layout
    optimizer: str
    optimizers: Mapping[str, Kind]
    also: tuple[str, ...] = ()
    default_optimizer: str = ""
    schedule: str = ""
    schedules: Mapping[str, tuple[Field, ...] | str] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    epochs: str = ""
    guards: tuple[Callable[[Document], str], ...] = ()
    remarks: tuple[Callable[[Document, float], str], ...] = ()
    flat: bool = False

    def matches(self, document: Document) -> bool:
        """Whether a file is of this format."""
        return any(path in document for path in self.markers) and all(path in document for path in self.also)

    @property
    def looked_for(self) -> str:
        """What makes a file of this format, in words."""
        also = f" and {', '.join(self.also)}" if self.also else ""
        return f"{self.name} ({' or '.join(self.syntaxes)} with {' or '.join(self.markers)}{also})"


def forbid(
    path: str, reason: str, allowed: tuple[Any, ...] = (None, False), when: str = ""
) -> Callable[[Document], str]:
    """A guard: the file must not have anything but these values there."""

    def guard(document: Document) -> str:
        value = document[path]
        return "" if value in allowed or (when and not document[when]) else f"{path}={value!r}: {reason}"

    return guard


def _adam(prefix: str, decay: float | None, beta2: float = 0.999) -> tuple[Field, ...]:
    return (
        Field(f"{prefix}lr", "lr"),
        Field(f"{prefix}beta1", "beta1", 0.9),
        Field(f"{prefix}beta2", "beta2", beta2),
        Field(f"{prefix}eps", "eps", 1e-8),
        Field(f"{prefix}weight_decay", "weight_decay", decay),
    )


# DeepSpeed ------------------------------------------------------------------------------------------------------------
_P, _S = "optimizer.params.", "scheduler.params."
_DS_ADAM = (
    Field(f"{_P}lr", "lr", 1e-3),
    Field(f"{_P}betas.0", "beta1", 0.9),
    Field(f"{_P}betas.1", "beta2", 0.999),
    Field(f"{_P}eps", "eps", 1e-8),
    Field(f"{_P}weight_decay", "weight_decay", 0.0),
)
_DS_WARMUP = Field(f"{_S}warmup_num_steps", SCHEDULE, 1000)
_DS_PEAK = (
    Field(f"{_S}warmup_max_lr", "peak lr", needed="its default differs between versions of DeepSpeed"),
    Field(f"{_S}warmup_min_lr", "lowest lr"),
)


def _log_warmup(document: Document, kappa: float) -> str:
    steps = document[f"{_S}warmup_num_steps"] or 1000
    kinds = ("warmuplr", "warmupdecaylr", "warmupcosinelr")
    if str(document["scheduler.type"]).lower() not in kinds or document[f"{_S}warmup_type"] == "linear":
        return ""
    if not isinstance(steps, int) or steps < 4 or steps / kappa < 4 or kappa == 1:
        return ""
    before, after = (math.log(n / 2 + 1) / math.log(n) for n in (steps, steps / kappa))
    return (
        f"warmup_type 'log' (DeepSpeed's default) is another curve over fewer steps, log(k + 1) / log(steps): in the "
        f"middle of the warm-up the learning rate is {after:.3f} of its peak, where it was {before:.3f}; "
        "'linear' stays the same curve"
    )


DEEPSPEED = Format(
    "deepspeed",
    "DeepSpeed's JSON",
    ("JSON",),
    ("train_batch_size", "train_micro_batch_size_per_gpu"),
    Layout("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    optimizer="optimizer.type",
    optimizers={
        # DeepSpeed's Adam decays as AdamW does unless it is told not to
        "adam": Kind("adamw", _DS_ADAM, (f"{_P}adam_w_mode", False, "adam")),
        "adamw": Kind("adamw", _DS_ADAM),
        "sgd": Kind(
            "sgd",
            (
                Field(f"{_P}lr", "lr", 1e-3),
                Field(f"{_P}momentum", "momentum"),
                Field(f"{_P}weight_decay", "weight_decay"),
            ),
        ),
        "rmsprop": Kind(
            "rmsprop",
            (
                Field(f"{_P}lr", "lr", 1e-2),
                Field(f"{_P}alpha", "alpha", 0.99),
                Field(f"{_P}eps", "eps", 1e-8),
                Field(f"{_P}weight_decay", "weight_decay"),
            ),
        ),
    },
    schedule="scheduler.type",
    schedules={
        "warmuplr": (*_DS_PEAK, _DS_WARMUP),
        "warmupdecaylr": (*_DS_PEAK, _DS_WARMUP, Field(f"{_S}total_num_steps", "steps")),
        "warmupcosinelr": (_DS_WARMUP, Field(f"{_S}total_num_steps", "steps")),
        "onecycle": (
            Field(f"{_S}cycle_max_lr", "peak lr"),
            Field(f"{_S}cycle_min_lr", "lowest lr"),
            Field(f"{_S}cycle_first_step_size", SCHEDULE, 2000),
            Field(f"{_S}cycle_second_step_size", SCHEDULE),
            Field(f"{_S}decay_step_size", SCHEDULE),
        ),
        "lrrangetest": "it is a test of learning rates, not a run to be kept",
    },
    fields=(Field("gradient_clipping", "clip"), Field("steps_per_print", EVERY)),
    guards=(
        *(
            forbid(f"{path}.enabled", "DeepSpeed then chooses the batch size by itself; switch it off")
            for path in ("elasticity", "data_efficiency.data_sampling.dynamic_batching")
        ),
        lambda document: (
            "RMSprop with momentum or centered=true has no row in the table of units; switch both off"
            if str(document["optimizer.type"]).lower() == "rmsprop"
            and (document[f"{_P}momentum"] or document[f"{_P}centered"])
            else ""
        ),
        lambda document: (
            "scheduler OneCycle sets beta1 to its cycle and beta2 to 0.99 itself, at any batch size; "
            'set "cycle_momentum": false'
            if str(document["scheduler.type"]).lower() == "onecycle" and document[f"{_S}cycle_momentum"] is not False
            else ""
        ),
    ),
    remarks=(_log_warmup,),
)

# transformers ---------------------------------------------------------------------------------------------------------
_HF_ADAMW = Kind(
    "adamw",
    (
        Field("learning_rate", "lr", 5e-5),
        Field("adam_beta1", "beta1", 0.9),
        Field("adam_beta2", "beta2", 0.999),
        Field("adam_epsilon", "eps", 1e-8),
        Field("weight_decay", "weight_decay", 0.0),
    ),
)
_K = "lr_scheduler_kwargs."
TRANSFORMERS = Format(
    "transformers",
    "the training arguments of Hugging Face's Trainer",
    ("JSON", "YAML"),
    ("per_device_train_batch_size",),
    Layout("", "per_device_train_batch_size", "gradient_accumulation_steps"),
    optimizer="optim",
    optimizers={
        **dict.fromkeys(
            (
                "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_hf",
                "adamw_apex_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit",
            ),
            _HF_ADAMW,
        ),
        "sgd": Kind("sgd", (Field("learning_rate", "lr", 5e-5), Field("weight_decay", "weight_decay", 0.0))),
    },
    default_optimizer="adamw_torch",
    schedule="lr_scheduler_type",
    schedules={
        **dict.fromkeys(("linear", "cosine", "cosine_with_restarts", "constant", "constant_with_warmup"), ()),
        "polynomial": (Field(f"{_K}lr_end", "lowest lr", 1e-7),),
        **dict.fromkeys(("cosine_with_min_lr", "cosine_warmup_with_min_lr"), (Field(f"{_K}min_lr", "lowest lr"),)),
        "inverse_sqrt": (Field(f"{_K}timescale", SCHEDULE, 10_000, unless=("warmup_steps", "warmup_ratio")),),
        "warmup_stable_decay": (
            Field(f"{_K}num_decay_steps", SCHEDULE),
            Field(f"{_K}num_stable_steps", SCHEDULE),
        ),
        "reduce_lr_on_plateau": "it has no clock: it waits for a metric",
        "greedy": "it has no clock: it waits for a metric",
    },
    fields=(
        Field("max_grad_norm", "clip", 1.0),
        Field("max_steps", "steps"),
        Field("warmup_steps", SCHEDULE),
        Field("logging_steps", EVERY),
        Field("eval_steps", EVERY),
        Field("save_steps", EVERY),
    ),
    epochs="num_train_epochs",
    guards=(
        forbid("auto_find_batch_size", "the Trainer then chooses the batch size by itself; switch it off"),
        forbid("optim_args", "these change the optimizer in ways this file does not show", (None, "", False)),
    ),
    remarks=(
        lambda document, kappa: (
            "a DeepSpeed configuration is named too: convert it as well, unless all it has is \"auto\""
            if document["deepspeed"] or "deepspeed.zero_optimization.stage" in document
            else ""
        ),
    ),
)  # fmt: skip

# timm -----------------------------------------------------------------------------------------------------------------
_TIMM_LR = (Field("lr", "lr"), Field("lr_base", BASE_LR, 0.1))
_TIMM_ADAM = (
    *_TIMM_LR,
    Field("opt_betas.0", "beta1", 0.9),
    Field("opt_betas.1", "beta2", 0.999),
    Field("opt_eps", "eps", 1e-8),
    Field("weight_decay", "weight_decay", 2e-5),
)
_TIMM_SGD = Kind("sgd", (*_TIMM_LR, Field("momentum", "momentum", 0.9), Field("weight_decay", "weight_decay", 2e-5)))
TIMM = Format(
    "timm",
    "args.yaml of timm's train.py, or a file for its --config",
    ("YAML",),
    ("opt", "lr_base"),
    Layout("", "batch_size", "grad_accum_steps"),
    also=("batch_size",),
    optimizer="opt",
    optimizers={
        "adam": Kind("adam", _TIMM_ADAM),
        "adamw": Kind("adamw", _TIMM_ADAM),
        "sgd": _TIMM_SGD,
        "momentum": _TIMM_SGD,
    },
    default_optimizer="sgd",
    schedule="sched",
    schedules={
        **dict.fromkeys(("cosine", "tanh", "step", "multistep", "poly", "none", ""), ()),
        "plateau": "it has no clock: it waits for a metric",
    },
    fields=(
        Field("warmup_lr", "lowest lr", 1e-5),
        Field("min_lr", "lowest lr"),
        Field("clip_grad", "clip"),
        Field("model_ema_decay", "ema", 0.9998, when="model_ema"),
        Field("bn_momentum", BATCHNORM),
    ),
    epochs="epochs",
    guards=(
        forbid("clip_mode", "only a clip by norm has a row in the table of units", (None, "norm"), when="clip_grad"),
        lambda document: next(
            (
                f"{path}: options of the optimizer that this file's other fields do not show; remove them"
                for path in document.leaves
                if path.startswith("opt_kwargs.")
            ),
            "",
        ),
        forbid("model_ema_warmup", "its ramp counts steps and cannot be converted; switch it off", when="model_ema"),
    ),
    remarks=(
        lambda document, kappa: (
            "bn_momentum is not set: a model with BatchNorm keeps its own momentum, which this file does not have"
            if document["bn_momentum"] is None
            else ""
        ),
    ),
)

# torchtitan -----------------------------------------------------------------------------------------------------------
_TT_ADAM = tuple(
    Field("optimizer.lr", "lr", 8e-4) if f.role == "lr" else f for f in _adam("optimizer.", 0.1, beta2=0.95)
)
TORCHTITAN = Format(
    "torchtitan",
    "the TOML of torchtitan before 0.3",
    ("TOML",),
    ("training.local_batch_size", "training.global_batch_size"),
    Layout("training.global_batch_size", "training.local_batch_size", ""),
    optimizer="optimizer.name",
    optimizers={"adam": Kind("adam", _TT_ADAM), "adamw": Kind("adamw", _TT_ADAM)},
    default_optimizer="adamw",
    schedule="lr_scheduler.decay_type",
    schedules=dict.fromkeys(("linear", "sqrt", "cosine"), ()),
    fields=(
        Field("training.max_norm", "clip", 1.0),
        Field("training.steps", "steps", 10_000),
        Field("lr_scheduler.warmup_steps", SCHEDULE, 200),
        Field("lr_scheduler.total_steps", SCHEDULE),
        Field("checkpoint.interval", EVERY),
        Field("validation.freq", EVERY),
        Field("metrics.log_freq", EVERY),
    ),
    guards=(forbid("checkpoint.interval_type", "the checkpoint interval must be in steps", (None, "steps", "step")),),
)

# Megatron-LM ----------------------------------------------------------------------------------------------------------
_MG_DECAY = (
    Field("weight_decay", "weight_decay", 0.01),
    Field("start_weight_decay", "decay"),
    Field("end_weight_decay", "decay"),
)
MEGATRON = Format(
    "megatron",
    "the arguments of Megatron-LM, in a shell script, an arguments file or YAML",
    ("arguments", "YAML"),
    ("global_batch_size", "micro_batch_size"),
    Layout("global_batch_size", "micro_batch_size", ""),
    also=("lr",),
    optimizer="optimizer",
    optimizers={
        "adam": Kind(
            "adamw",
            (
                Field("lr", "lr"),
                Field("adam_beta1", "beta1", 0.9),
                Field("adam_beta2", "beta2", 0.999),
                Field("adam_eps", "eps", 1e-8),
                *_MG_DECAY,
            ),
        ),
        "sgd": Kind(
            "sgd", (Field("lr", "lr"), Field("sgd_momentum", "momentum", 0.9), Field("weight_decay", "weight_decay"))
        ),
    },
    default_optimizer="adam",
    schedule="lr_decay_style",
    schedules=dict.fromkeys(("constant", "linear", "cosine", "inverse-square-root", "wsd"), ()),
    fields=(
        Field("min_lr", "lowest lr"),
        Field("lr_warmup_init", "lowest lr"),
        Field("decoupled_lr", "peak lr"),
        Field("decoupled_min_lr", "lowest lr"),
        Field("clip_grad", "clip", 1.0),
        Field("train_iters", "steps"),
        Field("lr_decay_iters", SCHEDULE),
        Field("lr_warmup_iters", SCHEDULE),
        Field("lr_wsd_decay_iters", SCHEDULE),
        Field("eval_interval", EVERY),
        Field("save_interval", EVERY),
        Field("log_interval", EVERY),
        Field("exit_interval", EVERY),
    ),
    guards=(
        *(
            forbid(path, "the run has several batch sizes; there is no one kappa", (None,))
            for path in ("rampup_batch_size", "step_batch_size_schedule")
        ),
        lambda document: next(
            (
                f"{path}: decoupled decay and L2 scale differently, and this option says which; remove it (decoupled)"
                for path in document.leaves
                if path.endswith("decoupled_weight_decay")
            ),
            "",
        ),
    ),
    flat=True,
)

#: Every format by its name; the command line and the docs iterate this table.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {f.name: f for f in (DEEPSPEED, TRANSFORMERS, TIMM, TORCHTITAN, MEGATRON)}
)
