"""The arguments of Megatron-LM."""

from __future__ import annotations

from rootscale.integrations.configs.formats.row import (
    Field,
    Format,
    Layout,
    OptimizerRow,
    Refusal,
    ScheduleRow,
    optimizer,
)

__all__ = ["MEGATRON"]

_ADAM = optimizer(
    "adamw",
    {
        "eta": "lr",
        "beta1": ("adam_beta1", 0.9),
        "beta2": ("adam_beta2", 0.999),
        "eps": ("adam_eps", 1e-8),
        "weight_decay": ("weight_decay", 0.01),
    },
)
_DECAY_SCHEDULE = (Field("start_weight_decay", "decoupled_decay"), Field("end_weight_decay", "decoupled_decay"))

MEGATRON = Format(
    "megatron",
    "the arguments of Megatron-LM, in a shell script, an arguments file or YAML",
    ("arguments", "YAML"),
    ("global_batch_size", "micro_batch_size"),
    Layout("global_batch_size", "micro_batch_size", ""),
    also=("lr",),
    optimizer="optimizer",
    optimizers={
        "adam": OptimizerRow("adamw", (*_ADAM.fields, *_DECAY_SCHEDULE)),
        "sgd": optimizer("sgd", {"eta": "lr", "momentum": ("sgd_momentum", 0.9), "weight_decay": "weight_decay"}),
    },
    default_optimizer="adam",
    schedule="lr_decay_style",
    schedules=dict.fromkeys(("constant", "linear", "cosine", "inverse-square-root", "wsd"), ScheduleRow()),
    fields=(
        Field("min_lr", "min_eta"),
        Field("lr_warmup_init", "min_eta"),
        Field("decoupled_lr", "eta"),
        Field("decoupled_min_lr", "min_eta"),
        Field("clip_grad", "clip", 1.0),
        Field("train_iters", "steps"),
        Field("lr_decay_iters", "schedule"),
        Field("lr_warmup_iters", "warmup"),
        Field("lr_wsd_decay_iters", "schedule"),
        Field("eval_interval", "intervals"),
        Field("save_interval", "intervals"),
        Field("log_interval", "intervals"),
        Field("exit_interval", "intervals"),
    ),
    refusals=(
        *(
            Refusal(path, "the run has several batch sizes; there is no one kappa", (None,))
            for path in ("rampup_batch_size", "step_batch_size_schedule")
        ),
        *(
            Refusal(
                path,
                "decoupled decay and L2 scale differently, and this option says which; remove it (decoupled)",
                (None,),
            )
            for path in ("decoupled_weight_decay", "no_decoupled_weight_decay")
        ),
    ),
    flat=True,
)
