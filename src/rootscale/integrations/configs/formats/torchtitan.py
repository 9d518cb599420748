"""The TOML of torchtitan before 0.3; later versions are configured in Python."""

from __future__ import annotations

from rootscale.integrations.configs.formats.row import Field, Format, Layout, Refusal, ScheduleRow, optimizer

__all__ = ["TORCHTITAN"]

_ADAM = {
    "eta": ("optimizer.lr", 8e-4),
    "beta1": ("optimizer.beta1", 0.9),
    "beta2": ("optimizer.beta2", 0.95),
    "eps": ("optimizer.eps", 1e-8),
    "weight_decay": ("optimizer.weight_decay", 0.1),
}

TORCHTITAN = Format(
    "torchtitan",
    "the TOML of torchtitan before 0.3",
    ("TOML",),
    ("training.local_batch_size", "training.global_batch_size"),
    Layout("training.global_batch_size", "training.local_batch_size", ""),
    optimizer="optimizer.name",
    optimizers={"adam": optimizer("adam", _ADAM), "adamw": optimizer("adamw", _ADAM)},
    default_optimizer="adamw",
    schedule="lr_scheduler.decay_type",
    schedules=dict.fromkeys(("linear", "sqrt", "cosine"), ScheduleRow()),
    fields=(
        Field("training.max_norm", "clip", 1.0),
        Field("training.steps", "steps", 10_000),
        Field("lr_scheduler.warmup_steps", "warmup", 200),
        Field("lr_scheduler.total_steps", "schedule"),
        Field("checkpoint.interval", "intervals"),
        Field("validation.freq", "intervals"),
        Field("metrics.log_freq", "intervals"),
    ),
    refusals=(
        Refusal("checkpoint.interval_type", "the checkpoint interval must be in steps", (None, "steps", "step")),
    ),
)
