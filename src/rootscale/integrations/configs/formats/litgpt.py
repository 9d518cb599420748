"""The YAML of litgpt's recipes."""

from __future__ import annotations

from rootscale.integrations.configs.formats.names import class_refusals, class_rows
from rootscale.integrations.configs.formats.row import Field, When
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["LITGPT"]

_ARGS = "optimizer.init_args"
#: A recipe that starts from a checkpoint is a fine-tuning; the defaults of the two commands differ.
_FINETUNE, _PRETRAIN = When("checkpoint_dir"), When("checkpoint_dir", (None,))

LITGPT = Format(
    "litgpt",
    "the YAML of litgpt's recipes",
    ("YAML",),
    ("train.global_batch_size", "train.micro_batch_size"),
    Layout("train.global_batch_size", "train.micro_batch_size", ""),
    also=("optimizer",),
    optimizer="optimizer.class_path",
    optimizers=class_rows(_ARGS),
    fields=(
        Field("train.min_lr", "min_eta", 4e-5, when=(_PRETRAIN,)),  # not used in fine-tuning
        Field("train.max_norm", "clip", 1.0, when=(_PRETRAIN,)),
        Field("train.lr_warmup_steps", "warmup", 2000, when=(_PRETRAIN,), unless=("train.lr_warmup_fraction",)),
        Field("train.lr_warmup_steps", "warmup", 100, when=(_FINETUNE,), unless=("train.lr_warmup_fraction",)),
        Field("train.max_steps", "steps"),
        Field("train.save_interval", "intervals"),
        Field("eval.interval", "intervals"),
    ),
    epochs="train.epochs",
    refusals=(*class_refusals("optimizer.class_path", _ARGS),),
    tables=("train", "optimizer"),
    strict=(_ARGS,),
    others=("train.lr_warmup_fraction", "train.log_interval", "eval.max_iters"),
    null=True,
    left_alone="`train.max_tokens`, `train.epochs`, `train.lr_warmup_fraction` (no steps); `train.log_interval` and "
    "`eval.max_iters` (they count micro-batches)",
)
