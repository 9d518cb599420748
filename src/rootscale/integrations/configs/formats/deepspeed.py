"""DeepSpeed's JSON."""

from __future__ import annotations

import math

from rootscale.integrations.configs.formats.row import (
    Field,
    Refusal,
    ScheduleRow,
    Source,
    When,
    optimizer,
)
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["DEEPSPEED"]

_P, _S = "optimizer.params.", "scheduler.params."
_ADAM = {
    "eta": (f"{_P}lr", 1e-3),
    "beta1": (f"{_P}betas.0", 0.9),
    "beta2": (f"{_P}betas.1", 0.999),
    "eps": (f"{_P}eps", 1e-8),
    "weight_decay": (f"{_P}weight_decay", 0.0),
}
_WARMUP = Field(f"{_S}warmup_num_steps", "warmup", 1000)
_PEAK = (
    Field(f"{_S}warmup_max_lr", "eta", needed="its default differs between versions of DeepSpeed"),
    Field(f"{_S}warmup_min_lr", "min_eta"),
)
_RMSPROP = When("optimizer.type", ("rmsprop",))


def _log_warmup(source: Source, kappa: float) -> str:
    steps = source[f"{_S}warmup_num_steps"] or 1000
    kinds = ("warmuplr", "warmupdecaylr", "warmupcosinelr")
    if str(source["scheduler.type"]).lower() not in kinds or source[f"{_S}warmup_type"] == "linear":
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
    Layout("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    also=(("train_batch_size", "train_micro_batch_size_per_gpu"),),
    optimizer="optimizer.type",
    optimizers={
        # DeepSpeed's Adam decays as AdamW does, unless adam_w_mode is false.
        "adam": optimizer("adamw", _ADAM, switch=(f"{_P}adam_w_mode", False, "adam")),
        "adamw": optimizer("adamw", _ADAM),
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
        "warmupdecaylr": ScheduleRow((*_PEAK, _WARMUP, Field(f"{_S}total_num_steps", "steps"))),
        "warmupcosinelr": ScheduleRow((_WARMUP, Field(f"{_S}total_num_steps", "steps"))),
        "onecycle": ScheduleRow(
            (
                Field(f"{_S}cycle_max_lr", "eta"),
                Field(f"{_S}cycle_min_lr", "min_eta"),
                Field(f"{_S}cycle_first_step_size", "schedule", 2000),
                Field(f"{_S}cycle_second_step_size", "schedule"),
                Field(f"{_S}decay_step_size", "schedule"),
            )
        ),
        "lrrangetest": ScheduleRow(refused="it is a test of learning rates, not a run to be kept"),
    },
    fields=(Field("gradient_clipping", "clip"), Field("steps_per_print", "intervals")),
    refusals=(
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
            f"{_S}cycle_momentum",
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
