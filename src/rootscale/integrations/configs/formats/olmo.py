"""The YAML of OLMo, and that of OLMo-core."""

from __future__ import annotations

from rootscale.integrations.configs.formats.row import Field, Refusal, ScheduleRow, When, optimizer
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["OLMO", "OLMO_CORE"]

_BY_STEPS = When("scheduler.units", ("steps",), "steps")

OLMO = Format(
    "olmo",
    "the YAML of OLMo",
    ("YAML",),
    ("global_train_batch_size", "device_train_microbatch_size"),
    Layout("global_train_batch_size", "device_train_microbatch_size", ""),
    also=("optimizer.learning_rate",),
    optimizer="optimizer.name",
    optimizers={
        "adamw": optimizer(
            "adamw",
            {
                "eta": ("optimizer.learning_rate", 1e-4),
                "beta1": ("optimizer.betas.0", 0.9),
                "beta2": ("optimizer.betas.1", 0.95),
                "eps": ("optimizer.eps", 1e-5),
                "weight_decay": ("optimizer.weight_decay", 0.01),
            },
        )
    },
    default_optimizer="lionw",
    schedule="scheduler.name",
    schedules={
        **dict.fromkeys(
            ("cosine_with_warmup", "linear_with_warmup", "inverse_sqrt_with_warmup", "constant",
             "constant_with_warmup", "cosine_linear_envelope"),
            ScheduleRow(),
        ),
        "max_scheduler": ScheduleRow(refused="it is made of others, whose counts are not read"),
    },
    default_schedule="cosine_with_warmup",
    fields=(
        Field("scheduler.t_warmup", "warmup", 100, when=(_BY_STEPS,)),
        Field("scheduler.t_max", "schedule", when=(_BY_STEPS,)),
        Field("scheduler.grad_clip_warmup_steps", "schedule", when=(_BY_STEPS,)),
        Field("scheduler.warmup_min_lr", "min_eta"),
        Field("max_grad_norm", "clip"),
        Field("max_duration", "steps", 10_000, text_is_other=True),
        Field("stop_at", "intervals"),
        Field("stop_after", "intervals"),
        Field("eval_interval", "intervals", text_is_other=True),
        Field("save_interval", "intervals", text_is_other=True),
        Field("save_interval_ephemeral", "intervals", text_is_other=True),
        Field("save_interval_unsharded", "intervals", text_is_other=True),
        Field("console_log_interval", "intervals", text_is_other=True),
    ),
    refusals=(
        Refusal(
            "max_grad_norm_ratio", "it clips against an average of past norms, which has no row in the table", (None, 0)
        ),
    ),
    tables=("", "scheduler"),
    strict=("optimizer",),
    others=(
        "optimizer.decay_norm_and_bias", "optimizer.decay_embeddings", "optimizer.no_decay_norm_and_bias",
        "optimizer.metrics_log_interval", "optimizer.record_update_metrics", "optimizer.selective_updates",
        "scheduler.units", "scheduler.alpha_f", "scheduler.grad_clip_warmup_factor", "reset_optimizer_state",
        "device_train_grad_accum",
    ),
    null=True,
    left_alone="what is in tokens or epochs (`max_duration: 5e12T`, `scheduler.units: tokens`), `scheduler.alpha_f` "
    "and `grad_clip_warmup_factor` (shares); the batch size counts sequences",
)  # fmt: skip

_O, _S = "train_module.optim", "train_module.scheduler"
_STEPS = When(f"{_S}.units", ("steps",), "steps")
_ADAM = {
    "eta": (f"{_O}.lr", 1e-3),
    "beta1": (f"{_O}.betas.0", 0.9),
    "beta2": (f"{_O}.betas.1", 0.999),
    "eps": (f"{_O}.eps", 1e-8),
}
_ADAMW_ROW = optimizer("adamw", {**_ADAM, "weight_decay": (f"{_O}.weight_decay", 0.01)})
_ADAM_ROW = optimizer("adam", {**_ADAM, "weight_decay": (f"{_O}.weight_decay", 0.0)})
_NAMES = {
    "adamw": (_ADAMW_ROW, "AdamWConfig", "olmo_core.optim.adamw.AdamWConfig"),
    "skip_step_adamw": (_ADAMW_ROW, "SkipStepAdamWConfig", "olmo_core.optim.adamw.SkipStepAdamWConfig"),
    "adam": (_ADAM_ROW, "AdamConfig", "olmo_core.optim.adam.AdamConfig"),
}
_SCHEDULES = {
    "constant": "ConstantScheduler",
    "constant_with_warmup": "ConstantWithWarmup",
    "wsd": "WSD",
    "linear_with_warmup": "LinearWithWarmup",
    "inv_sqrt_with_warmup": "InvSqrtWithWarmup",
    "cos_with_warmup": "CosWithWarmup",
    "half_cos_with_warmup": "HalfCosWithWarmup",
    "cos_with_warmup_and_linear_decay": "CosWithWarmupAndLinearDecay",
}
_SPELLINGS = [
    spelling.lower()
    for name, cls in _SCHEDULES.items()
    for spelling in (name, cls, f"olmo_core.optim.{cls}", f"olmo_core.optim.scheduler.{cls}")
]

OLMO_CORE = Format(
    "olmo-core",
    "the YAML or JSON of OLMo-core",
    ("YAML", "JSON"),
    ("train_module.rank_microbatch_size", "data_loader.global_batch_size"),
    Layout("data_loader.global_batch_size", "train_module.rank_microbatch_size", "", counts="tokens"),
    also=(_O,),
    optimizer=f"{_O}._CLASS_",
    optimizers={
        spelling.lower(): row
        for name, (row, cls, path) in _NAMES.items()
        for spelling in (name, cls, path, f"olmo_core.optim.{cls}")
    },
    schedule=f"{_S}._CLASS_",
    schedules=dict.fromkeys(_SPELLINGS, ScheduleRow()),
    fields=(
        *(
            Field(f"{_S}.{name}", unit, when=(_STEPS,))
            for name, unit in (
                ("warmup", "warmup"), ("warmup_steps", "warmup"), ("decay", "schedule"), ("decay_steps", "schedule"),
                ("t_max", "schedule"),
            )
        ),
        Field(f"{_S}.warmup_min_lr", "min_eta"),
        Field(f"{_S}.decay_min_lr", "min_eta"),
        Field("train_module.max_grad_norm", "clip"),
        Field("trainer.max_duration.value", "steps", when=(When("trainer.max_duration.unit", ("steps",)),)),
        Field("trainer.hard_stop.value", "intervals", when=(When("trainer.hard_stop.unit", ("steps",)),)),
        Field("trainer.callbacks.checkpointer.save_interval", "intervals"),
        Field("trainer.callbacks.checkpointer.ephemeral_save_interval", "intervals"),
        *(
            Field(f"trainer.callbacks.{name}.eval_interval", "intervals")
            for name in ("lm_evaluator", "downstream_evaluator")
        ),
    ),
    refusals=(
        Refusal(
            "trainer.callbacks", "the run has several batch sizes, which are not read; convert each stage by itself",
            matching="BatchSizeScheduler",
        ),
        Refusal(f"{_S}.schedulers", "it is made of others, whose counts are not read", (None,)),
    ),
    tables=("train_module",),
    strict=(_O, _S),
    others=(
        f"{_O}.compile", f"{_O}.fixed_fields", f"{_O}.dtype", f"{_O}.step_increment_bugfix",
        f"{_O}.rolling_interval_length", f"{_O}.sigma_factor", f"{_O}.type", f"{_S}.type", f"{_S}.units",
        f"{_S}.alpha_f", f"{_S}.warmup_fraction", f"{_S}.decay_fraction", f"{_S}.lr_field", f"{_S}.initial_lr_field",
    ),
    aliases=((f"{_O}.type", f"{_O}._CLASS_"), (f"{_S}.type", f"{_S}._CLASS_")),
    null=True,
    left_alone="what is in tokens or epochs, fractions and `alpha_f` (shares); the batch size counts **tokens**",
)  # fmt: skip
