"""Tools whose configurations name the optimizer's class: LightningCLI, litgpt, NeMo and Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from rootscale.configs.rows import (
    Batch,
    Field,
    Format,
    Refusal,
    ScheduleRow,
    When,
    each,
    no_text,
    optimizer,
)
from rootscale.documents import Document
from rootscale.spellings import Spelling

NO_MOMENTUM = "RMSprop with momentum or centered is converted live, by rescale_, and not in files; switch it off"

#: Classes by their path in lower case: the family, and the weight decay that the class takes if none is given.
CLASSES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "torch.optim.adamw": ("adamw", 0.01),
        "torch.optim.adam": ("adam", 0.0),
        "torch.optim.sgd": ("sgd", 0.0),
        "torch.optim.rmsprop": ("rmsprop", 0.0),
        **dict.fromkeys(
            (
                "bitsandbytes.optim.adamw", "bitsandbytes.optim.adamw8bit", "bitsandbytes.optim.adamw32bit",
                "bitsandbytes.optim.pagedadamw", "bitsandbytes.optim.pagedadamw8bit",
                "bitsandbytes.optim.pagedadamw32bit", "torchao.optim.adamw8bit", "torchao.optim.adamw4bit",
                "torchao.optim.adamwfp8",
            ),
            ("adamw", 0.01),
        ),
    }
)  # fmt: skip
#: What the classes take if nothing is given, by family and by the fields of its record.
_DEFAULTS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "adamw": {"eta": ("lr", 1e-3), "beta1": ("betas.0", 0.9), "beta2": ("betas.1", 0.999), "eps": ("eps", 1e-8)},
    "adam": {"eta": ("lr", 1e-3), "beta1": ("betas.0", 0.9), "beta2": ("betas.1", 0.999), "eps": ("eps", 1e-8)},
    "sgd": {"eta": ("lr", 1e-3), "momentum": ("momentum", 0.0)},
    "rmsprop": {"eta": ("lr", 1e-2), "beta": ("alpha", 0.99), "eps": ("eps", 1e-8)},
}


def class_rows(table: str) -> dict[str, Spelling]:
    """Return the rows of all known classes, whose arguments are in this table of a configuration."""
    return {
        name: optimizer(
            family,
            {field: (f"{table}.{key}", default) for field, (key, default) in _DEFAULTS[family].items()}
            | {"weight_decay": (f"{table}.weight_decay", decay)},
        )
        for name, (family, decay) in CLASSES.items()
    }


def class_refusals(path: str, table: str) -> tuple[Refusal, ...]:
    """Return the options with which a class makes another update than its family's.

    Args:
        path: of the name of the class.
        table: of its arguments.
    """
    rmsprop = When(path, ("torch.optim.rmsprop", "rmsprop"))
    return (
        *(Refusal(f"{table}.{name}", NO_MOMENTUM, (None, False, 0), rmsprop) for name in ("momentum", "centered")),
        Refusal(f"{table}.decoupled_weight_decay", "name AdamW instead, which is the same"),
    )


_LIGHTNING_ARGS, _SCHED = "optimizer.init_args", "lr_scheduler.init_args"
_T = "torch.optim.lr_scheduler."
_MIN = Field(f"{_SCHED}.eta_min", "min_eta")
_PLATEAU = ScheduleRow(
    (Field(f"{_SCHED}.min_lr", "min_eta"), Field(f"{_SCHED}.eps", "min_eta", 1e-8)),
    ("monitor", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
)


def _epochs(source: Document, kappa: float) -> str:
    if not source["lr_scheduler.class_path"] or "plateau" in source["lr_scheduler.class_path"].lower():
        return ""
    return (
        "LightningCLI steps a scheduler once an epoch, so its counts are epochs and stay; if your module steps it "
        "every optimizer step, divide them by kappa"
    )


LIGHTNING = Format(
    "lightning",
    "the YAML of LightningCLI",
    ("YAML",),
    ("optimizer.class_path",),
    Batch("", "data.init_args.batch_size", "trainer.accumulate_grad_batches"),
    also=("trainer",),
    optimizer="optimizer.class_path",
    optimizers=class_rows(_LIGHTNING_ARGS),
    schedule="lr_scheduler.class_path",
    schedules={
        "": ScheduleRow(),
        f"{_T}steplr": ScheduleRow(others=("step_size", "gamma")),
        f"{_T}multisteplr": ScheduleRow(others=("milestones", "gamma")),
        f"{_T}exponentiallr": ScheduleRow(others=("gamma",)),
        f"{_T}linearlr": ScheduleRow(others=("start_factor", "end_factor", "total_iters")),
        f"{_T}constantlr": ScheduleRow(others=("factor", "total_iters")),
        f"{_T}polynomiallr": ScheduleRow(others=("power", "total_iters")),
        f"{_T}cosineannealinglr": ScheduleRow((_MIN,), ("T_max",)),
        f"{_T}cosineannealingwarmrestarts": ScheduleRow((_MIN,), ("T_0", "T_mult")),
        "lightning.pytorch.cli.reducelronplateau": _PLATEAU,
        "pytorch_lightning.cli.reducelronplateau": _PLATEAU,
        f"{_T}onecyclelr": ScheduleRow(refused="it cycles beta1 by itself"),
        f"{_T}cycliclr": ScheduleRow(refused="it cycles beta1 by itself"),
    },
    schedule_values=_SCHED,
    fields=(
        Field("trainer.gradient_clip_val", "clip"),
        Field("trainer.max_steps", "steps"),
        *each("intervals", "trainer.min_steps", "trainer.log_every_n_steps"),
    ),
    epochs="trainer.max_epochs",
    refusals=(
        Refusal(
            "trainer.gradient_clip_algorithm", "only a clip by norm has a row in the table of units", (None, "norm")
        ),
        *class_refusals("optimizer.class_path", _LIGHTNING_ARGS),
    ),
    remarks=(_epochs,),
    tables=("optimizer", "lr_scheduler"),
    strict=(_LIGHTNING_ARGS,),
    others=("trainer.val_check_interval",),
    null=True,
    aliases=(("data.batch_size", "data.init_args.batch_size"),),
    left_alone="`trainer.max_epochs`, the counts of `lr_scheduler` (epochs); `trainer.val_check_interval`, "
    "`trainer.limit_train_batches` (they count micro-batches); what the module makes of its own arguments",
)


_LITGPT_ARGS = "optimizer.init_args"
#: A recipe that starts from a checkpoint is a fine-tuning; the defaults of the two commands differ.
_PRETRAIN = When("checkpoint_dir", (None,))


def _warmup(source: Document) -> float | None:
    return None if source["train.lr_warmup_fraction"] else 100 if source["checkpoint_dir"] else 2000


LITGPT = Format(
    "litgpt",
    "the YAML of litgpt's recipes",
    ("YAML",),
    ("train.global_batch_size", "train.micro_batch_size"),
    Batch("train.global_batch_size", "train.micro_batch_size", ""),
    also=("optimizer",),
    optimizer="optimizer.class_path",
    optimizers=class_rows(_LITGPT_ARGS),
    fields=(
        Field("train.min_lr", "min_eta", 4e-5, when=(_PRETRAIN,)),  # not used in fine-tuning
        Field("train.max_norm", "clip", 1.0, when=(_PRETRAIN,)),
        Field("train.lr_warmup_steps", "warmup", _warmup),
        Field("train.max_steps", "steps"),
        *each("intervals", "train.save_interval", "eval.interval"),
    ),
    epochs="train.epochs",
    refusals=(*class_refusals("optimizer.class_path", _LITGPT_ARGS),),
    tables=("train", "optimizer"),
    strict=(_LITGPT_ARGS,),
    others=("train.lr_warmup_fraction", "train.log_interval", "eval.max_iters"),
    null=True,
    left_alone="`train.max_tokens`, `train.epochs`, `train.lr_warmup_fraction` (no steps); `train.log_interval` and "
    "`eval.max_iters` (they count micro-batches)",
)


_O, _S = "model.optim", "model.optim.sched"
#: Schedules whose peak is ``lr / sqrt(d_model * warm-up steps)``.
_NOAM = When(f"{_S}.name", ("noamannealing",))


def _rate(source: Document) -> float:
    """The learning rate that a class takes if none is given."""
    return 1e-2 if "rmsprop" in str(source[f"{_O}.name"]).lower() else 1e-3


#: A learning rate that is a factor of Noam's schedule, which rises by itself.
_NOAM_RATE = Field(f"{_O}.lr", "eta", _rate, when=(_NOAM,), scaled=lambda source: ("Noam's 1/sqrt(step)", 0.5))
_ROWS = class_rows(_O)
_ADAMW, _ADAM, _SGD = (_ROWS[f"torch.optim.{name}"] for name in ("adamw", "adam", "sgd"))
# apex' FusedAdam decays as AdamW does, and not at all if nothing is given
_FUSED = replace(_ADAMW, defaults={**_ADAMW.defaults, f"{_O}.weight_decay": 0.0})
_NAMES = {
    "adamw": _ADAMW, "adam": _ADAM, "sgd": _SGD, "rmsprop": _ROWS["torch.optim.rmsprop"],
    **dict.fromkeys(("fused_adam", "distributed_fused_adam", "megatron_fused_adam"), _FUSED),
}  # fmt: skip
_ENDS = (Field(f"{_S}.min_lr", "min_eta"), Field(f"{_S}.max_steps", "schedule"))
_WARMUP = (Field(f"{_S}.warmup_steps", "warmup"), *_ENDS)
_SHARES = ("name", "warmup_ratio", "hold_ratio", "constant_ratio", "last_epoch", "monitor", "reduce_on_plateau",
           "power", "cycle", "d_model", "decay_rate", "t_max", "iters_per_batch")  # fmt: skip
_HOLD = Field(f"{_S}.hold_steps", "schedule")
_EXPONENTIAL = "its gamma is a factor for each step or epoch, and the file does not say which"
_SCHEDULES = {
    "": ScheduleRow(),
    **dict.fromkeys(
        ("noamannealing", "warmupannealing", "inversesquarerootannealing", "polynomialdecayannealing",
         "squareannealing", "squarerootannealing"),
        ScheduleRow(_WARMUP, _SHARES),
    ),
    "cosineannealing": ScheduleRow((*_WARMUP, Field(f"{_S}.constant_steps", "schedule")), _SHARES),
    **dict.fromkeys(("noamholdannealing", "polynomialholddecayannealing"), ScheduleRow((*_WARMUP, _HOLD), _SHARES)),
    **dict.fromkeys(("exponentiallr", "exp_decay", "steplr"), ScheduleRow(refused=_EXPONENTIAL)),
    "reducelronplateau": ScheduleRow(refused="it has no clock: it waits for a metric"),
}  # fmt: skip
_TRAINER = (
    Field("trainer.gradient_clip_val", "clip"),
    Field("trainer.max_steps", "steps"),
    Field("trainer.log_every_n_steps", "intervals"),
    Field("exp_manager.ema.decay", "ema", 0.999, when=(When("exp_manager.ema.enable"),)),
)
_CLIP = Refusal(
    "trainer.gradient_clip_algorithm", "only a clip by norm has a row in the table of units", (None, "norm")
)


_EMA_EVERY = Refusal(
    "exp_manager.ema.every_n_steps",
    "an average that is not taken at every step is not converted; write 1",
    (None, 1),
    When("exp_manager.ema.enable"),
)


NEMO = Format(
    "nemo",
    "the YAML of NeMo (speech and others), with samples per device",
    ("YAML",),
    (_O,),
    Batch("", "model.train_ds.batch_size", "trainer.accumulate_grad_batches"),
    also=("model.train_ds.batch_size", "trainer"),
    optimizer=f"{_O}.name",
    optimizers={**_ROWS, **_NAMES},
    schedule=f"{_S}.name",
    schedules=_SCHEDULES,
    schedule_values=_S,
    fields=(*_TRAINER, _NOAM_RATE),
    epochs="trainer.max_epochs",
    refusals=(
        _CLIP,
        _EMA_EVERY,
        *class_refusals(f"{_O}.name", _O),
        Refusal("model.train_ds.batch_duration", "its batches are seconds of audio, not samples", (None,)),
        Refusal("model.train_ds.bucketing_batch_size", "each bucket has a batch size of its own", (None,)),
        Refusal("model.train_ds.bucket_batch_size", "each bucket has a batch size of its own", (None,)),
        *(
            Refusal(
                path, "the model has several optimizers or groups; only one that is model.optim is converted", (None,)
            )
            for path in ("model.optim_param_groups", "model.optim_generator", "model.optim_discriminator",
                         "model.optim_backbone", "model.optim_downstream", "model.optim_g", "model.optim_d")
        ),
    ),
    tables=("", "model"),
    strict=(_O,),
    others=(
        *(f"{_O}.{name}" for name in ("overlap_grad_sync", "overlap_param_sync", "bucket_cap_mb", "_target_",
                                      "contiguous_grad_buffer", "contiguous_param_buffer", "grad_sync_dtype",
                                      "capturable", "master_weights")),
        *(f"{_S}.{name}" for name in _SHARES),
        "model.gradient_accumulation_fusion", "trainer.val_check_interval",
    ),
    aliases=(
        (f"{_O}._target_", f"{_O}.name"),
        ("model.train_ds.dataloader_params.batch_size", "model.train_ds.batch_size"),
    ),
    null=True,
    left_alone="`trainer.max_epochs`, ratios (no steps); `trainer.val_check_interval` and "
    "`trainer.limit_train_batches` (they count micro-batches)",
)  # fmt: skip

NEMO_MEGATRON = replace(
    NEMO,
    name="nemo-megatron",
    summary="the YAML of NeMo's Megatron models, with a global batch size",
    batch=Batch(
        "model.global_batch_size", "model.micro_batch_size", "",
        stages=("model.rampup_batch_size.0", "model.rampup_batch_size.1"),
    ),
    also=("model.global_batch_size", "trainer"),
    fields=(
        *_TRAINER,
        _NOAM_RATE,
        Field("trainer.val_check_interval", "intervals", when=(When("trainer.val_check_interval", no_text),)),
    ),
    refusals=(
        *NEMO.refusals,
        Refusal("trainer.accumulate_grad_batches", "these models make their own micro-batches; write 1", (None, 1)),
    ),
    left_alone="`trainer.max_epochs`, ratios (no steps); `trainer.limit_val_batches` (batches of the evaluation)",
)  # fmt: skip

_H = "model.optimizer"
HYDRA = Format(
    "hydra",
    "a configuration of Hydra with a _target_ in model.optimizer, and Lightning's trainer",
    ("YAML",),
    (f"{_H}._target_",),
    Batch("", "data.batch_size", "trainer.accumulate_grad_batches"),
    also=(("data.batch_size",), "trainer"),
    optimizer=f"{_H}._target_",
    optimizers=class_rows(_H),
    schedule="model.scheduler._target_",
    schedules={
        "": ScheduleRow(),
        "torch.optim.lr_scheduler.reducelronplateau": ScheduleRow(
            (Field("model.scheduler.min_lr", "min_eta"), Field("model.scheduler.eps", "min_eta", 1e-8)),
            ("_target_", "_partial_", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
        ),
    },
    schedule_values="model.scheduler",
    fields=_TRAINER[:3],
    epochs="trainer.max_epochs",
    refusals=(_CLIP, *class_refusals(f"{_H}._target_", _H)),
    strict=(_H,),
    others=(f"{_H}._partial_", f"{_H}._convert_", f"{_H}._recursive_", "trainer.val_check_interval"),
    null=True,
    left_alone="`trainer.max_epochs`, patience (no steps); `trainer.val_check_interval` (it counts micro-batches)",
)
