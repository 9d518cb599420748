"""The YAML of axolotl, which makes the training arguments of Hugging Face's Trainer from it."""

from __future__ import annotations

from collections.abc import Mapping

from rootscale.integrations.configs.formats.names import TRAINER
from rootscale.integrations.configs.formats.row import Field, Refusal, ScheduleRow, Source, When, optimizer
from rootscale.integrations.configs.formats.table import Format, Layout
from rootscale.integrations.configs.formats.transformers import TRANSFORMERS, named_deepspeed

__all__ = ["AXOLOTL"]

_VALUES: Mapping[str, str | tuple[str, float | None]] = {
    "eta": "learning_rate",
    "beta1": ("adam_beta1", 0.9),
    "beta2": ("adam_beta2", 0.999),
    "eps": ("adam_epsilon", 1e-8),
    "weight_decay": ("weight_decay", 0.0),
}
_ROWS = {
    "adamw": optimizer("adamw", _VALUES),
    "lion": optimizer("lion", {name: path for name, path in _VALUES.items() if name != "eps"}),
}
#: Of the Trainer's schedules those that axolotl hands on as they are.
_SCHEDULES = {name: row for name, row in TRANSFORMERS.schedules.items() if name != "greedy"}


def _shortest_warmup(source: Source, kappa: float) -> str:
    steps = source["warmup_steps"]
    if not isinstance(steps, int) or not 0 < round(steps / kappa) < 2:
        return ""
    return "axolotl makes a warm-up of 1 step one of 2 steps"


AXOLOTL = Format(
    "axolotl",
    "the YAML of axolotl",
    ("YAML",),
    ("base_model",),
    Layout("", "micro_batch_size", "gradient_accumulation_steps"),
    also=("micro_batch_size", "learning_rate"),
    optimizer="optimizer",
    optimizers={name: _ROWS[family] for name, (family, _) in TRAINER.items() if family in _ROWS},
    default_optimizer="adamw_torch_fused",
    schedule="lr_scheduler",
    schedules={**_SCHEDULES, "rex": ScheduleRow(), "one_cycle": ScheduleRow(refused="it cycles beta1 by itself")},
    default_schedule="cosine",
    schedule_values="lr_scheduler_kwargs",
    fields=(
        Field("max_grad_norm", "clip", 1.0),
        Field("max_steps", "steps"),
        Field("warmup_steps", "warmup"),
        Field("embedding_lr", "eta"),
        Field("loraplus_lr_embedding", "eta", 1e-6, when=(When("loraplus_lr_ratio"),)),
        Field("logging_steps", "intervals"),
        Field("eval_steps", "intervals"),
        Field("save_steps", "intervals"),
    ),
    epochs="num_epochs",
    refusals=(
        Refusal("auto_find_batch_size", "the batch size is then chosen while the run starts; switch it off"),
        Refusal(
            "batch_size",
            "write gradient_accumulation_steps instead (batch_size / micro_batch_size), as axolotl advises",
            (None,),
        ),
        Refusal(
            "warmup_steps",
            "is not in the file, and axolotl's default is 3 % of the run, but at most 100 steps; write warmup_steps or "
            "warmup_ratio",
            when=When("warmup_ratio", (None,)),
            missing=True,
        ),
        Refusal(
            "rl",
            "the batch size there also says how many answers are sampled at once, which no rule keeps",
            (None, False, "dpo", "ipo", "orpo", "kto", "simpo"),
        ),
        *(
            Refusal(name, "the optimizer's state is reset every so many steps; switch it off", (None, False, 0))
            for name in ("relora", "relora_steps", "jagged_restart_steps")
        ),
        Refusal("plugins", "it filters the gradients with averages of its own; take it out", matching="(?i)grokfast"),
    ),
    remarks=(named_deepspeed, _shortest_warmup),
    tables=("",),
    others=(
        "warmup_ratio", "optim_args", "loraplus_lr_ratio", "embedding_lr_scale", "cosine_min_lr_ratio",
        "cosine_constant_lr_ratio", "lr_quadratic_warmup", "rl_beta", "dpo_beta", "orpo_alpha", "torchdistx_path",
    ),
    left_alone="`num_epochs`, `warmup_ratio`, `saves_per_epoch`, `evals_per_epoch` and ratios (no steps)",
)  # fmt: skip
