"""The arguments of Megatron-LM."""

from __future__ import annotations

from rootscale.integrations.configs.formats.row import (
    Field,
    OptimizerRow,
    Refusal,
    ScheduleRow,
    optimizer,
)
from rootscale.integrations.configs.formats.table import Format, Layout

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
    ("train_iters", "train_samples", "lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters"),
    Layout(
        "global_batch_size", "micro_batch_size", "",
        stages=("rampup_batch_size.0", "rampup_batch_size.1", "step_batch_size_schedule.*"),
        last_stage="step_batch_size_schedule",
    ),
    also=(("global_batch_size", "micro_batch_size", "step_batch_size_schedule"), "lr"),
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
        Refusal(
            "decrease_batch_size_if_needed",
            "Megatron then lowers the batch size to what the workers divide; take it out",
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
    tables=("",),
    others=(
        "rampup_batch_size", "step_batch_size_schedule", "lr_warmup_fraction", "lr_warmup_samples", "lr_decay_samples",
        "lr_wsd_decay_samples", "lr_wsd_decay_style", "weight_decay_incr_style", "no_load_optim", "no_save_optim",
        "use_distributed_optimizer", "norm_epsilon", "layernorm_epsilon", "override_opt_param_scheduler",
        "use_checkpoint_opt_param_scheduler", "accumulate_allreduce_grads_in_fp32", "overlap_param_gather",
        "use_precision_aware_optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction",
        "num_distributed_optimizer_instances", "apply_layernorm_1p", "no_gradient_accumulation_fusion",
        "gradient_accumulation_fusion", "dist_ckpt_optim_fully_reshardable", "cuda_graph_warmup_steps",
        "overlap_param_gather_with_optimizer_step", "ckpt_fully_parallel_save_optimizer",
        "no_weight_decay_cond_type", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype",
        "eval_iters", "finetune", "log_learning_rate_to_tensorboard", "no_log_learning_rate_to_tensorboard",
    ),
    flat=True,
    left_alone="`train_samples`, `lr_decay_samples`, `lr_warmup_samples` (samples), `lr_warmup_fraction` (a share); "
    "`eval_iters` (batches of the evaluation)",
)  # fmt: skip
