"""Tools that train language models from the start: DeepSpeed, Megatron-LM, nanoGPT, OLMo and torchtitan."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from rootscale.configs.rows import (
    Batch,
    Field,
    Format,
    Refusal,
    ScheduleRow,
    When,
    each,
    given,
    no_text,
    optimizer,
    without,
)
from rootscale.documents import Document
from rootscale.spellings import Options, Spelling

_P, _DEEPSPEED_S = "optimizer.params.", "scheduler.params."
_DEEPSPEED_ADAM = {
    "eta": (f"{_P}lr", 1e-3),
    "beta1": (f"{_P}betas.0", 0.9),
    "beta2": (f"{_P}betas.1", 0.999),
    "eps": (f"{_P}eps", 1e-8),
    "weight_decay": (f"{_P}weight_decay", 0.0),
}
_WARMUP = Field(f"{_DEEPSPEED_S}warmup_num_steps", "warmup", 1000)
_PEAK = (
    Field(f"{_DEEPSPEED_S}warmup_max_lr", "eta"),
    Field(f"{_DEEPSPEED_S}warmup_min_lr", "min_eta"),
)
_RMSPROP = When("optimizer.type", ("rmsprop",))


def _adam_or_adamw(optimizer: Any, options: Options) -> str:
    return "adam" if options.get(f"{_P}adam_w_mode") is False else "adamw"


def _log_warmup(source: Document, kappa: float) -> str:
    steps = source[f"{_DEEPSPEED_S}warmup_num_steps"] or 1000
    kinds = ("warmuplr", "warmupdecaylr", "warmupcosinelr")
    if str(source["scheduler.type"]).lower() not in kinds or source[f"{_DEEPSPEED_S}warmup_type"] == "linear":
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
    ("train_micro_batch_size_per_gpu", "zero_optimization", "optimizer.type", "scheduler.type"),
    Batch("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    also=(("train_batch_size", "train_micro_batch_size_per_gpu"),),
    optimizer="optimizer.type",
    optimizers={
        # DeepSpeed's Adam decays as AdamW does, unless adam_w_mode is false.
        "adam": optimizer("adamw", _DEEPSPEED_ADAM, family_of=_adam_or_adamw),
        "adamw": optimizer("adamw", _DEEPSPEED_ADAM),
        "sgd": optimizer(
            "sgd", {"eta": (f"{_P}lr", 1e-3), "momentum": f"{_P}momentum", "weight_decay": f"{_P}weight_decay"}
        ),
        "rmsprop": optimizer(
            "rmsprop",
            {
                "eta": (f"{_P}lr", 1e-2),
                "beta": (f"{_P}alpha", 0.99),
                "eps": (f"{_P}eps", 1e-8),
                "weight_decay": f"{_P}weight_decay",
            },
        ),
    },
    schedule="scheduler.type",
    schedules={
        "warmuplr": ScheduleRow((*_PEAK, _WARMUP)),
        "warmupdecaylr": ScheduleRow((*_PEAK, _WARMUP, Field(f"{_DEEPSPEED_S}total_num_steps", "steps"))),
        "warmupcosinelr": ScheduleRow((_WARMUP, Field(f"{_DEEPSPEED_S}total_num_steps", "steps"))),
        "onecycle": ScheduleRow(
            (
                Field(f"{_DEEPSPEED_S}cycle_max_lr", "eta"),
                Field(f"{_DEEPSPEED_S}cycle_min_lr", "min_eta"),
                Field(f"{_DEEPSPEED_S}cycle_first_step_size", "schedule", 2000),
                Field(f"{_DEEPSPEED_S}cycle_second_step_size", "schedule"),
                Field(f"{_DEEPSPEED_S}decay_step_size", "schedule"),
            )
        ),
        "lrrangetest": ScheduleRow(refused="it is a test of learning rates, not a run to be kept"),
    },
    fields=(Field("gradient_clipping", "clip"), Field("steps_per_print", "intervals")),
    refusals=(
        Refusal(
            f"{_DEEPSPEED_S}warmup_max_lr",
            "its default differs between versions of DeepSpeed; write it there",
            given,
            When("scheduler.type", ("warmuplr", "warmupdecaylr")),
        ),
        *(
            Refusal(f"{path}.enabled", "DeepSpeed then chooses the batch size by itself; switch it off")
            for path in ("elasticity", "data_efficiency.data_sampling.dynamic_batching")
        ),
        *(
            Refusal(
                f"{_P}{name}", "RMSprop with momentum or centered has no rule; switch both off", (None, 0), _RMSPROP
            )
            for name in ("momentum", "centered")
        ),
        Refusal(
            f"{_DEEPSPEED_S}cycle_momentum",
            "scheduler OneCycle sets beta1 to its cycle and beta2 to 0.99 itself, at any batch size; "
            'set "cycle_momentum": false',
            (False,),
            When("scheduler.type", ("onecycle",)),
        ),
    ),
    remarks=(_log_warmup,),
    strict=("optimizer.params",),
    others=tuple(
        f"{_P}{name}"
        for name in ("torch_adam", "adam_w_mode", "bias_correction", "set_grad_none", "fp32_optimizer_states")
    ),
    left_alone="`warmup_min_ratio`, `cos_min_ratio` and the stair counts (shares); a `gradient_clipping` that is not "
    "there: write it down if you rely on a default",
)  # fmt: skip


_MEGATRON_ADAM = optimizer(
    "adamw",
    {
        "eta": "lr",
        "beta1": ("adam_beta1", 0.9),
        "beta2": ("adam_beta2", 0.999),
        "eps": ("adam_eps", 1e-8),
        "weight_decay": ("weight_decay", 0.01),
    },
)
_ADAM = When("optimizer", ("adam",), "adam")

MEGATRON = Format(
    "megatron",
    "the arguments of Megatron-LM, in a shell script, an arguments file or YAML",
    ("arguments", "YAML"),
    ("train_iters", "train_samples", "lr_decay_style", "lr_decay_iters", "lr_decay_samples", "lr_warmup_iters"),
    Batch(
        "global_batch_size", "micro_batch_size", "",
        stages=("rampup_batch_size.0", "rampup_batch_size.1", "step_batch_size_schedule.*"),
        last_stage="step_batch_size_schedule",
    ),
    also=(("global_batch_size", "micro_batch_size", "step_batch_size_schedule"), "lr"),
    optimizer="optimizer",
    optimizers={
        "adam": _MEGATRON_ADAM,
        "sgd": optimizer("sgd", {"eta": "lr", "momentum": ("sgd_momentum", 0.9), "weight_decay": "weight_decay"}),
    },
    default_optimizer="adam",
    schedule="lr_decay_style",
    schedules=dict.fromkeys(("constant", "linear", "cosine", "inverse-square-root", "wsd"), ScheduleRow()),
    fields=(
        *each("decoupled_decay", "start_weight_decay", "end_weight_decay", when=(_ADAM,)),
        Field("min_lr", "min_eta"),
        Field("lr_warmup_init", "min_eta"),
        Field("decoupled_lr", "eta"),
        Field("decoupled_min_lr", "min_eta"),
        Field("clip_grad", "clip", 1.0),
        Field("train_iters", "steps"),
        Field("lr_decay_iters", "schedule"),
        Field("lr_warmup_iters", "warmup"),
        Field("lr_wsd_decay_iters", "schedule"),
        *each("intervals", "eval_interval", "save_interval", "log_interval", "exit_interval"),
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


_DECAYS = When("decay_lr", (True,), True)
_ROW: Spelling = optimizer(
    "adamw",
    {
        "eta": ("learning_rate", 6e-4),
        "beta1": ("beta1", 0.9),
        "beta2": ("beta2", 0.95),
        "weight_decay": ("weight_decay", 0.1),
    },
)

NANOGPT = Format(
    "nanogpt",
    "a Python configuration of nanoGPT",
    ("Python",),
    ("max_iters", "lr_decay_iters", "block_size", "gradient_accumulation_steps"),
    # gradient_accumulation_steps is divided among the processes
    Batch(
        "", "batch_size", "gradient_accumulation_steps",
        defaults={"batch_size": 12, "gradient_accumulation_steps": 40}, all_workers=True,
    ),
    also=(("batch_size", "gradient_accumulation_steps"),),
    optimizer="(optimizer)",
    optimizers={"adamw": _ROW},
    default_optimizer="adamw",
    fields=(
        Field("min_lr", "min_eta", 6e-5, when=(_DECAYS,)),
        Field("grad_clip", "clip", 1.0),
        Field("max_iters", "steps", 600_000),
        Field("warmup_iters", "warmup", 2000, when=(_DECAYS,)),
        Field("lr_decay_iters", "schedule", 600_000, when=(_DECAYS,)),
        Field("eval_interval", "intervals", 2000),
        Field("log_interval", "intervals"),
    ),
    remarks=(
        lambda source, kappa: (
            "nanoGPT has torch's eps of 1e-8 in its code (model.py), not in its configuration: set it there to "
            f"{1e-8 * kappa**-0.5:.3g}"
            if kappa != 1
            else ""
        ),
    ),
    tables=("",),
    others=("eval_iters",),
    left_alone="`eval_iters` (batches of the evaluation); eps is in nanoGPT's code, and a warning says what it becomes",
)  # fmt: skip


_BY_STEPS = When("scheduler.units", ("steps",), "steps")

OLMO = Format(
    "olmo",
    "the YAML of OLMo",
    ("YAML",),
    ("global_train_batch_size", "device_train_microbatch_size"),
    Batch("global_train_batch_size", "device_train_microbatch_size", ""),
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
        Field("max_duration", "steps", 10_000, when=(When("max_duration", no_text),)),
        *each("intervals", "stop_at", "stop_after"),
        *(
            Field(path, "intervals", when=(When(path, no_text),))
            for path in ("eval_interval", "save_interval", "save_interval_ephemeral", "save_interval_unsharded",
                         "console_log_interval")
        ),
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

_O, _OLMO_S = "train_module.optim", "train_module.scheduler"
_STEPS = When(f"{_OLMO_S}.units", ("steps",), "steps")
_OLMO_ADAM = {
    "eta": (f"{_O}.lr", 1e-3),
    "beta1": (f"{_O}.betas.0", 0.9),
    "beta2": (f"{_O}.betas.1", 0.999),
    "eps": (f"{_O}.eps", 1e-8),
}
_ADAMW_ROW = optimizer("adamw", {**_OLMO_ADAM, "weight_decay": (f"{_O}.weight_decay", 0.01)})
_ADAM_ROW = optimizer("adam", {**_OLMO_ADAM, "weight_decay": (f"{_O}.weight_decay", 0.0)})
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
    Batch("data_loader.global_batch_size", "train_module.rank_microbatch_size", "", counts="tokens"),
    also=(_O,),
    optimizer=f"{_O}._CLASS_",
    optimizers={
        spelling.lower(): row
        for name, (row, cls, path) in _NAMES.items()
        for spelling in (name, cls, path, f"olmo_core.optim.{cls}")
    },
    schedule=f"{_OLMO_S}._CLASS_",
    schedules=dict.fromkeys(_SPELLINGS, ScheduleRow()),
    fields=(
        *(
            Field(f"{_OLMO_S}.{name}", unit, when=(_STEPS,))
            for name, unit in (
                ("warmup", "warmup"), ("warmup_steps", "warmup"), ("decay", "schedule"), ("decay_steps", "schedule"),
                ("t_max", "schedule"),
            )
        ),
        Field(f"{_OLMO_S}.warmup_min_lr", "min_eta"),
        Field(f"{_OLMO_S}.decay_min_lr", "min_eta"),
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
            without("BatchSizeScheduler"),
        ),
        Refusal(f"{_OLMO_S}.schedulers", "it is made of others, whose counts are not read", (None,)),
    ),
    tables=("train_module",),
    strict=(_O, _OLMO_S),
    others=(
        f"{_O}.compile", f"{_O}.fixed_fields", f"{_O}.dtype", f"{_O}.step_increment_bugfix",
        f"{_O}.rolling_interval_length", f"{_O}.sigma_factor", f"{_O}.type", f"{_OLMO_S}.type", f"{_OLMO_S}.units",
        f"{_OLMO_S}.alpha_f", f"{_OLMO_S}.warmup_fraction", f"{_OLMO_S}.decay_fraction",
        f"{_OLMO_S}.lr_field", f"{_OLMO_S}.initial_lr_field",
    ),
    aliases=((f"{_O}.type", f"{_O}._CLASS_"), (f"{_OLMO_S}.type", f"{_OLMO_S}._CLASS_")),
    null=True,
    left_alone="what is in tokens or epochs, fractions and `alpha_f` (shares); the batch size counts **tokens**",
)  # fmt: skip


def _row(family: str, beta1: str = "beta1", beta2: str = "beta2") -> Spelling:
    """Adam or AdamW, with betas that are spelled as two values or as one list."""
    return optimizer(
        family,
        {
            "eta": ("optimizer.lr", 8e-4),
            "beta1": (f"optimizer.{beta1}", 0.9),
            "beta2": (f"optimizer.{beta2}", 0.95),
            "eps": ("optimizer.eps", 1e-8),
            "weight_decay": ("optimizer.weight_decay", 0.1),
        },
    )


_FIELDS = (
    Field("training.max_norm", "clip", 1.0),
    Field("training.steps", "steps", 10_000),
    Field("lr_scheduler.warmup_steps", "warmup", 200),
    Field("lr_scheduler.total_steps", "schedule"),
    *each("intervals", "checkpoint.interval", "validation.freq", "metrics.log_freq"),
)
_LEFT_ALONE = (
    "`lr_scheduler.decay_ratio`, `lr_min`, `min_lr_factor` (shares); `validation.steps` (batches of the evaluation); "
    "`profiling.profile_freq`, `training.gc_freq` (not about training)"
)

TORCHTITAN = Format(
    "torchtitan",
    "the TOML of torchtitan up to 0.2",
    ("TOML",),
    ("training.local_batch_size", "training.global_batch_size", "training.batch_size"),
    Batch("training.global_batch_size", "training.local_batch_size", ""),
    optimizer="optimizer.name",
    optimizers={"adam": _row("adam"), "adamw": _row("adamw")},
    default_optimizer="adamw",
    schedule="lr_scheduler.decay_type",
    schedules=dict.fromkeys(("linear", "sqrt", "cosine"), ScheduleRow()),
    fields=_FIELDS,
    refusals=(
        Refusal("checkpoint.interval_type", "the checkpoint interval must be in steps", (None, "steps", "step")),
        *(
            Refusal(
                f"training.{name}",
                "torchtitan of that time (before June 2025) has the betas 0.9 and 0.95 and the weight decay 0.1 in its "
                "code, where they cannot be converted; write the file for 0.1 or later, with "
                f"{newer} and the betas and the weight decay in [optimizer]",
                (None,),
            )
            for name, newer in (
                ("batch_size", "training.local_batch_size"), ("warmup_steps", "lr_scheduler.warmup_steps")
            )
        ),
        Refusal("optimizer.early_step_in_backward", "gradients are then not clipped; switch it off"),
    ),
    tables=("training", "lr_scheduler"),
    strict=("optimizer",),
    others=(
        "optimizer.implementation", "lr_scheduler.decay_ratio", "lr_scheduler.min_lr_factor", "lr_scheduler.lr_min",
        "lr_scheduler.decay_type", "validation.steps", "validator.steps", "profiling.profile_freq",
        "training.gc_freq",
    ),
    left_alone=_LEFT_ALONE,
)  # fmt: skip

TORCHTITAN_PYTHON = replace(
    TORCHTITAN,
    name="torchtitan-python",
    summary="a function of torchtitan's config_registry.py that returns a Trainer.Config",
    syntaxes=("Python",),
    markers=("training.local_batch_size",),
    also=("optimizer.()",),
    optimizer="optimizer.()",
    optimizers={"default_adamw": _row("adamw", "betas.0", "betas.1"), "optimizerscontainer.config": _row("adamw")},
    default_optimizer="",
    fields=(*_FIELDS[:5], *each("intervals", "validator.freq", "metrics.log_freq")),
    refusals=(
        Refusal(
            "optimizer.param_groups", "it has several groups, which are not read; write default_adamw(...)", (None,)
        ),
        Refusal("optimizer.name", "there is a rule for AdamW only", (None, "adamw")),
    ),
    sections=True,
    left_alone=_LEFT_ALONE,
)
_TOKENS = ("training.num_tokens_per_train_step", "training.num_tokens_per_microbatch_per_dp_rank")

TORCHTITAN_TOKENS = replace(
    TORCHTITAN_PYTHON,
    name="torchtitan-tokens",
    summary="the same of later versions, which count tokens in a batch",
    markers=_TOKENS,
    batch=Batch(*_TOKENS, counts="tokens"),
)
