"""The training arguments of Hugging Face's Trainer, and the YAML of axolotl and LLaMA-Factory that is made from them.

`rootscale.integrations.transformers` reads the same table for live `TrainingArguments`, so both convert the same values
and refuse the same ones. Nothing here imports transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

from rootscale.changes import Change
from rootscale.configs.rows import Batch, Field, Format, Refusal, ScheduleRow, When, each, given, optimizer, without
from rootscale.configs.tools.classes import NO_MOMENTUM
from rootscale.documents import Document, under
from rootscale.spellings import Options

#: Names of the Trainer, with the family of the optimizer.
TRAINER: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("adamw_torch", "adamw_torch_fused"), "adamw"),
        "rmsprop": "rmsprop",
        "sgd": "sgd",
        **dict.fromkeys(
            (
                "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_torch_8bit", "adamw_torch_4bit", "adamw_bnb_8bit",
                "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit",
            ),
            "adamw",
        ),
        **dict.fromkeys(("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"), "lion"),
        **dict.fromkeys(("adamw_hf", "adamw_apex_fused"), "adamw"),  # of transformers 4; its files may still have them
    }
)  # fmt: skip

#: The text in which the Trainer takes further options of an optimizer: ``"alpha=0.99, eps=1e-8"``.
_TEXT = "optim_args"
_KWARGS = "lr_scheduler_kwargs"

_ADAMW = {
    "eta": ("learning_rate", 5e-5),
    "beta1": ("adam_beta1", 0.9),
    "beta2": ("adam_beta2", 0.999),
    "eps": ("adam_epsilon", 1e-8),
    "weight_decay": ("weight_decay", 0.0),
}
_RATE = {"eta": ("learning_rate", 5e-5)}
_DECAY = {"weight_decay": ("weight_decay", 0.0)}


def _not_in_files(options: Options) -> None:
    raise ValueError(
        f"optim={options['optim']!r}: its alpha and eps are in the text of {_TEXT}, which is not written in files; "
        "convert live arguments with rootscale.integrations.transformers.scale_training_arguments"
    )


#: The rows of the families. The Trainer gives every AdamW the ``adam_*`` arguments and ignores ``optim_args``.
_TRAINER_ROWS = {
    "adamw": optimizer("adamw", _ADAMW),
    "rmsprop": optimizer(
        "rmsprop",
        {**_RATE, "beta": (f"{_TEXT}.alpha", 0.99), "eps": (f"{_TEXT}.eps", 1e-8), **_DECAY},
        check=_not_in_files,
    ),
    "sgd": optimizer("sgd", {**_RATE, "momentum": f"{_TEXT}.momentum", **_DECAY}),
    "lion": optimizer("lion", {name: path for name, path in _ADAMW.items() if name != "eps"}),
}
#: The values of ``optim``.
_OPTIMIZERS = {name: _TRAINER_ROWS[family] for name, family in TRAINER.items()}


def _timescale(source: Document) -> float | None:
    return None if source["warmup_steps"] or source["warmup_ratio"] else 10_000


_MIN_LR = Field(f"{_KWARGS}.min_lr", "min_eta")
_PLATEAU = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown")
#: The values of ``lr_scheduler_type``, with the units of ``lr_scheduler_kwargs``.
_TRANSFORMERS_SCHEDULES = {
    **dict.fromkeys(("linear", "constant", "constant_with_warmup"), ScheduleRow()),
    **dict.fromkeys(("cosine", "cosine_with_restarts"), ScheduleRow(others=("num_cycles",))),
    "polynomial": ScheduleRow((Field(f"{_KWARGS}.lr_end", "min_eta", 1e-7),), ("power",)),
    "inverse_sqrt": ScheduleRow((Field(f"{_KWARGS}.timescale", "schedule", _timescale),)),
    "cosine_with_min_lr": ScheduleRow((_MIN_LR,), ("num_cycles", "min_lr_rate")),
    "cosine_warmup_with_min_lr": ScheduleRow((_MIN_LR,), ("num_cycles", "min_lr_rate", "warmup_lr_rate")),
    "warmup_stable_decay": ScheduleRow(
        (Field(f"{_KWARGS}.num_decay_steps", "schedule"), Field(f"{_KWARGS}.num_stable_steps", "schedule")),
        ("warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
    # Its clock is the evaluations, which stay where they are in samples.
    "reduce_lr_on_plateau": ScheduleRow((_MIN_LR, Field(f"{_KWARGS}.eps", "min_eta", 1e-8)), _PLATEAU),
    "greedy": ScheduleRow(refused="it has no clock: it raises and lowers the learning rate by a metric"),
}

_BY_STEPS = ("steps",)
_FIELDS = (
    Field("max_grad_norm", "clip", 1.0),
    Field("max_steps", "steps"),
    Field("warmup_steps", "warmup"),
    Field("logging_steps", "intervals", 500),  # also the interval of evaluations that have none
    Field("eval_steps", "intervals", when=(When("eval_strategy", (*_BY_STEPS, None)),)),
    Field("save_steps", "intervals", 500, when=(When("save_strategy", _BY_STEPS, "steps"),)),
    Field("eval_delay", "intervals", when=(When("eval_strategy", _BY_STEPS),)),  # else in epochs
    Field("ref_model_sync_steps", "intervals", 512, when=(When("sync_ref_model"),)),  # of TRL
)
_RMSPROP = When("optim", ("rmsprop",))
_REFUSALS = (
    Refusal(
        "auto_find_batch_size",
        "the Trainer then chooses the batch size by itself and converts nothing; switch it off",
    ),
    Refusal(
        "accelerator_config.split_batches",
        "per_device_train_batch_size then is the batch of all devices together; switch it off",
    ),
    Refusal(
        "(program)",
        "a script without a Trainer makes its own optimizer and schedule, whose options are not these",
        without("no_trainer"),
    ),
    Refusal(f"{_TEXT}.momentum", NO_MOMENTUM, (None, 0), _RMSPROP),
    Refusal(f"{_TEXT}.centered", NO_MOMENTUM, (None, False, 0, "false", "no"), _RMSPROP),
)
#: What only live arguments have done already.
LIVE_REFUSALS = (
    Refusal(
        "deepspeed",
        "the arguments have read the DeepSpeed configuration already; convert that file with rootscale convert, and "
        "make the TrainingArguments anew",
        (None, False, ""),
    ),
)


def named_deepspeed(source: Document, kappa: float) -> str:
    """Say that there is a DeepSpeed configuration too."""
    if not (source["deepspeed"] or under(source, "deepspeed")):
        return ""
    return 'a DeepSpeed configuration is named too: convert it as well, unless all it has is "auto"'


def _step_ahead(source: Document, kappa: float) -> str:
    if source["lr_scheduler_type"] != "cosine_warmup_with_min_lr" or kappa == 1:
        return ""
    return (
        "cosine_warmup_with_min_lr is a step ahead of its formula, and that step is now another one: at equal samples "
        "its learning rate is the rule's multiple only to within a step"
    )


def _keep_multiple(source: Document, rows: dict[str, Change]) -> dict[str, Change]:
    """The best model can be loaded at the end only if checkpoints are made at evaluations."""
    evaluations, saves = rows.get("eval_steps"), rows.get("save_steps")
    if not source["load_best_model_at_end"] or evaluations is None or saves is None:
        return rows
    times = Fraction(saves.before or 0) / Fraction(evaluations.before or 1)
    every = Fraction(evaluations.value or 1) * times
    if times.denominator != 1 or every == saves.value:
        return rows
    return {**rows, "save_steps": replace(saves, used=int(every), note="a multiple of the evaluations")}


TRANSFORMERS = Format(
    "transformers",
    "the training arguments of Hugging Face's Trainer",
    ("JSON", "YAML", "arguments"),
    ("per_device_train_batch_size",),
    Batch("", "per_device_train_batch_size", "gradient_accumulation_steps"),
    optimizer="optim",
    optimizers=_OPTIMIZERS,
    default_optimizer="adamw_torch",
    schedule="lr_scheduler_type",
    schedules=_TRANSFORMERS_SCHEDULES,
    default_schedule="linear",
    schedule_values=_KWARGS,
    fields=_FIELDS,
    epochs="num_train_epochs",
    refusals=_REFUSALS,
    remarks=(named_deepspeed, _step_ahead),
    adjust=_keep_multiple,
    tables=("",),
    others=(
        "warmup_ratio",
        "optim_args",
        "eval_accumulation_steps",
        "torch_empty_cache_steps",  # not about training
        "beta",  # the last of TRL's losses
    ),
)


_OTHER_OPTIMIZERS = {
    "use_muon": "Muon", "use_galore": "GaLore", "use_apollo": "APOLLO", "use_badam": "BAdam",
    "use_adam_mini": "Adam-mini",
}  # fmt: skip
_OTHER_TRAINERS = (
    "use_mca", "use_megatron_bridge", "use_hyper_parallel", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "use_distributed_optimizer",
)  # fmt: skip

LLAMAFACTORY = replace(
    TRANSFORMERS,
    name="llamafactory",
    summary="the YAML of LLaMA-Factory",
    syntaxes=("YAML", "JSON", "arguments"),
    markers=("finetuning_type", "stage"),
    also=("per_device_train_batch_size",),
    fields=(*TRANSFORMERS.fields, Field("loraplus_lr_embedding", "eta", 1e-6, when=(When("loraplus_lr_ratio"),))),
    refusals=(
        *TRANSFORMERS.refusals,
        *(
            Refusal(path, f"the run is trained with {name}, for which there is no rule here; switch it off")
            for path, name in _OTHER_OPTIMIZERS.items()
        ),
        *(
            Refusal(
                path,
                "the run is trained by Megatron or another trainer, whose optimizer is not this file's",
                (None, False),
            )
            for path in _OTHER_TRAINERS
        ),
        Refusal(
            "stage",
            "PPO samples its own data, and its batch size says how many at once",
            (None, "pt", "sft", "rm", "dpo", "kto"),
        ),
    ),
    others=(*TRANSFORMERS.others, "loraplus_lr_ratio", "pref_beta", "ppo_epochs", "kto_chosen_weight"),
    left_alone="`num_train_epochs`, `warmup_ratio`, `loraplus_lr_ratio` (no steps)",
)


_VALUES: Mapping[str, str | tuple[str, float | None]] = {
    "eta": "learning_rate",
    "beta1": ("adam_beta1", 0.9),
    "beta2": ("adam_beta2", 0.999),
    "eps": ("adam_epsilon", 1e-8),
    "weight_decay": ("weight_decay", 0.0),
}
_AXOLOTL_ROWS = {
    "adamw": optimizer("adamw", _VALUES),
    "lion": optimizer("lion", {name: path for name, path in _VALUES.items() if name != "eps"}),
}
#: Of the Trainer's schedules those that axolotl hands on as they are.
_AXOLOTL_SCHEDULES = {name: row for name, row in TRANSFORMERS.schedules.items() if name != "greedy"}


def _shortest_warmup(source: Document, kappa: float) -> str:
    steps = source["warmup_steps"]
    if not isinstance(steps, int) or not 0 < round(steps / kappa) < 2:
        return ""
    return "axolotl makes a warm-up of 1 step one of 2 steps"


AXOLOTL = Format(
    "axolotl",
    "the YAML of axolotl",
    ("YAML",),
    ("base_model",),
    Batch("", "micro_batch_size", "gradient_accumulation_steps"),
    also=("micro_batch_size", "learning_rate"),
    optimizer="optimizer",
    optimizers={name: _AXOLOTL_ROWS[family] for name, family in TRAINER.items() if family in _AXOLOTL_ROWS},
    default_optimizer="adamw_torch_fused",
    schedule="lr_scheduler",
    schedules={
        **_AXOLOTL_SCHEDULES,
        "rex": ScheduleRow(),
        "one_cycle": ScheduleRow(refused="it cycles beta1 by itself"),
    },
    default_schedule="cosine",
    schedule_values="lr_scheduler_kwargs",
    fields=(
        Field("max_grad_norm", "clip", 1.0),
        Field("max_steps", "steps"),
        Field("warmup_steps", "warmup"),
        Field("embedding_lr", "eta"),
        Field("loraplus_lr_embedding", "eta", 1e-6, when=(When("loraplus_lr_ratio"),)),
        *each("intervals", "logging_steps", "eval_steps", "save_steps"),
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
            "axolotl's default is 3 % of the run, but at most 100 steps; write warmup_steps or "
            "warmup_ratio",
            given,
            When("warmup_ratio", (None,)),
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
        Refusal("plugins", "it filters the gradients with averages of its own; take it out", without("(?i)grokfast")),
    ),
    remarks=(named_deepspeed, _shortest_warmup),
    tables=("",),
    others=(
        "warmup_ratio", "optim_args", "loraplus_lr_ratio", "embedding_lr_scale", "cosine_min_lr_ratio",
        "cosine_constant_lr_ratio", "lr_quadratic_warmup", "rl_beta", "dpo_beta", "orpo_alpha", "torchdistx_path",
    ),
    left_alone="`num_epochs`, `warmup_ratio`, `saves_per_epoch`, `evals_per_epoch` and ratios (no steps)",
)  # fmt: skip
