"""The configurations of torchtitan: TOML up to 0.2, and the Python functions of later versions."""

from __future__ import annotations

from dataclasses import replace

from rootscale.integrations.configs.formats.row import Field, OptimizerRow, Refusal, ScheduleRow, optimizer
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["TORCHTITAN", "TORCHTITAN_PYTHON", "TORCHTITAN_TOKENS"]


def _row(family: str, beta1: str = "beta1", beta2: str = "beta2") -> OptimizerRow:
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
    Field("checkpoint.interval", "intervals"),
    Field("validation.freq", "intervals"),
    Field("metrics.log_freq", "intervals"),
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
    Layout("training.global_batch_size", "training.local_batch_size", ""),
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
    fields=(*_FIELDS[:5], Field("validator.freq", "intervals"), Field("metrics.log_freq", "intervals")),
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
    layout=Layout(*_TOKENS, counts="tokens"),
)
