"""The YAML of NeMo, and configurations of Hydra whose optimizer has a ``_target_``."""

from __future__ import annotations

from dataclasses import replace

from rootscale.changes import Change
from rootscale.integrations.configs.formats.names import class_refusals, class_rows
from rootscale.integrations.configs.formats.row import Field, OptimizerRow, Refusal, ScheduleRow, Source, When
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["HYDRA", "NEMO", "NEMO_MEGATRON"]

_O, _S = "model.optim", "model.optim.sched"
#: Schedules whose peak is ``lr / sqrt(d_model * warm-up steps)``.
_NOAM = When(f"{_S}.name", ("noamannealing",))


def _rate(row: OptimizerRow) -> OptimizerRow:
    """A row whose learning rate is a factor of Noam's schedule, where there is one: that rises by itself."""
    rate, *others = row.fields
    noam = Field(rate.path, "eta", rate.default, when=(_NOAM,), scaled=lambda source: ("Noam's 1/sqrt(step)", 0.5))
    return replace(row, fields=(replace(rate, when=(replace(_NOAM, negate=True),)), noam, *others))


_ROWS = {name: _rate(row) for name, row in class_rows(_O).items()}
_ADAMW, _ADAM, _SGD = (_ROWS[f"torch.optim.{name}"] for name in ("adamw", "adam", "sgd"))
_FUSED = replace(  # apex' FusedAdam decays as AdamW does, and not at all if nothing is given
    _ADAMW,
    fields=tuple(replace(one, default=0.0) if one.path.endswith("weight_decay") else one for one in _ADAMW.fields),
)
_NAMES = {
    "adamw": _ADAMW, "adam": _ADAM, "sgd": _SGD, "rmsprop": _ROWS["torch.optim.rmsprop"],
    **dict.fromkeys(("fused_adam", "distributed_fused_adam", "megatron_fused_adam"), _FUSED),
}  # fmt: skip
_ENDS = (Field(f"{_S}.min_lr", "min_eta"), Field(f"{_S}.max_steps", "schedule"))
_WARMUP = (Field(f"{_S}.warmup_steps", "warmup"), *_ENDS)
_SHARES = ("name", "warmup_ratio", "hold_ratio", "constant_ratio", "last_epoch", "monitor", "reduce_on_plateau",
           "power", "cycle", "d_model", "decay_rate", "t_max", "iters_per_batch")  # fmt: skip
_HOLD = Field(f"{_S}.hold_steps", "schedule")
_EXPONENTIAL = "its gamma is a factor for each step or epoch, and the file does not say which"
_SCHEDULES = {
    "": ScheduleRow(),
    **dict.fromkeys(
        ("noamannealing", "warmupannealing", "inversesquarerootannealing", "polynomialdecayannealing",
         "squareannealing", "squarerootannealing"),
        ScheduleRow(_WARMUP, _SHARES),
    ),
    "cosineannealing": ScheduleRow((*_WARMUP, Field(f"{_S}.constant_steps", "schedule")), _SHARES),
    **dict.fromkeys(("noamholdannealing", "polynomialholddecayannealing"), ScheduleRow((*_WARMUP, _HOLD), _SHARES)),
    **dict.fromkeys(("exponentiallr", "exp_decay", "steplr"), ScheduleRow(refused=_EXPONENTIAL)),
    "reducelronplateau": ScheduleRow(refused="it has no clock: it waits for a metric"),
}  # fmt: skip
_TRAINER = (
    Field("trainer.gradient_clip_val", "clip"),
    Field("trainer.max_steps", "steps"),
    Field("trainer.log_every_n_steps", "intervals"),
    Field("exp_manager.ema.decay", "ema", 0.999, when=(When("exp_manager.ema.enable"),)),
)
_CLIP = Refusal(
    "trainer.gradient_clip_algorithm", "only a clip by norm has a row in the table of units", (None, "norm")
)


def _ema(source: Source, rows: dict[str, Change]) -> dict[str, Change]:
    """Refuse an average of the parameters that is not taken at every step."""
    every = source["exp_manager.ema.every_n_steps"]
    row = rows.get("exp_manager.ema.decay")
    if row is None or every in (None, 1):
        return rows
    raise ValueError(
        f"exp_manager.ema.every_n_steps={every!r}: an average that is not taken at every step is not converted; write 1"
    )


NEMO = Format(
    "nemo",
    "the YAML of NeMo (speech and others), with samples per device",
    ("YAML",),
    (_O,),
    Layout("", "model.train_ds.batch_size", "trainer.accumulate_grad_batches"),
    also=("model.train_ds.batch_size", "trainer"),
    optimizer=f"{_O}.name",
    optimizers={**_ROWS, **_NAMES},
    schedule=f"{_S}.name",
    schedules=_SCHEDULES,
    schedule_values=_S,
    fields=_TRAINER,
    epochs="trainer.max_epochs",
    refusals=(
        _CLIP,
        *class_refusals(f"{_O}.name", _O),
        Refusal("model.train_ds.batch_duration", "its batches are seconds of audio, not samples", (None,)),
        Refusal("model.train_ds.bucketing_batch_size", "each bucket has a batch size of its own", (None,)),
        Refusal("model.train_ds.bucket_batch_size", "each bucket has a batch size of its own", (None,)),
        *(
            Refusal(
                path, "the model has several optimizers or groups; only one that is model.optim is converted", (None,)
            )
            for path in ("model.optim_param_groups", "model.optim_generator", "model.optim_discriminator",
                         "model.optim_backbone", "model.optim_downstream", "model.optim_g", "model.optim_d")
        ),
    ),
    adjust=_ema,
    tables=("", "model"),
    strict=(_O,),
    others=(
        *(f"{_O}.{name}" for name in ("overlap_grad_sync", "overlap_param_sync", "bucket_cap_mb", "_target_",
                                      "contiguous_grad_buffer", "contiguous_param_buffer", "grad_sync_dtype",
                                      "capturable", "master_weights")),
        *(f"{_S}.{name}" for name in _SHARES),
        "model.gradient_accumulation_fusion", "trainer.val_check_interval",
    ),
    aliases=(
        (f"{_O}._target_", f"{_O}.name"),
        ("model.train_ds.dataloader_params.batch_size", "model.train_ds.batch_size"),
    ),
    null=True,
    left_alone="`trainer.max_epochs`, ratios (no steps); `trainer.val_check_interval` and "
    "`trainer.limit_train_batches` (they count micro-batches)",
)  # fmt: skip

NEMO_MEGATRON = replace(
    NEMO,
    name="nemo-megatron",
    summary="the YAML of NeMo's Megatron models, with a global batch size",
    layout=Layout(
        "model.global_batch_size", "model.micro_batch_size", "",
        stages=("model.rampup_batch_size.0", "model.rampup_batch_size.1"),
    ),
    also=("model.global_batch_size", "trainer"),
    fields=(
        *_TRAINER,
        Field("trainer.val_check_interval", "intervals", text_is_other=True),
    ),
    refusals=(
        *NEMO.refusals,
        Refusal("trainer.accumulate_grad_batches", "these models make their own micro-batches; write 1", (None, 1)),
    ),
    left_alone="`trainer.max_epochs`, ratios (no steps); `trainer.limit_val_batches` (batches of the evaluation)",
)  # fmt: skip

_H = "model.optimizer"
HYDRA = Format(
    "hydra",
    "a configuration of Hydra with a _target_ in model.optimizer, and Lightning's trainer",
    ("YAML",),
    (f"{_H}._target_",),
    Layout("", "data.batch_size", "trainer.accumulate_grad_batches"),
    also=(("data.batch_size",), "trainer"),
    optimizer=f"{_H}._target_",
    optimizers=class_rows(_H),
    schedule="model.scheduler._target_",
    schedules={
        "": ScheduleRow(),
        "torch.optim.lr_scheduler.reducelronplateau": ScheduleRow(
            (Field("model.scheduler.min_lr", "min_eta"), Field("model.scheduler.eps", "min_eta", 1e-8)),
            ("_target_", "_partial_", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
        ),
    },
    schedule_values="model.scheduler",
    fields=_TRAINER[:3],
    epochs="trainer.max_epochs",
    refusals=(_CLIP, *class_refusals(f"{_H}._target_", _H)),
    strict=(_H,),
    others=(f"{_H}._partial_", f"{_H}._convert_", f"{_H}._recursive_", "trainer.val_check_interval"),
    null=True,
    left_alone="`trainer.max_epochs`, patience (no steps); `trainer.val_check_interval` (it counts micro-batches)",
)
