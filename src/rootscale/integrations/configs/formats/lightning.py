"""The YAML of Lightning's command line (LightningCLI), with ``class_path`` and ``init_args``."""

from __future__ import annotations

from rootscale.integrations.configs.formats.names import class_refusals, class_rows
from rootscale.integrations.configs.formats.row import Field, Refusal, ScheduleRow, Source
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["LIGHTNING"]

_ARGS, _SCHED = "optimizer.init_args", "lr_scheduler.init_args"
_T = "torch.optim.lr_scheduler."
_MIN = Field(f"{_SCHED}.eta_min", "min_eta")
_PLATEAU = ScheduleRow(
    (Field(f"{_SCHED}.min_lr", "min_eta"), Field(f"{_SCHED}.eps", "min_eta", 1e-8)),
    ("monitor", "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown"),
)


def _epochs(source: Source, kappa: float) -> str:
    if not source["lr_scheduler.class_path"] or "plateau" in source["lr_scheduler.class_path"].lower():
        return ""
    return (
        "LightningCLI steps a scheduler once an epoch, so its counts are epochs and stay; if your module steps it "
        "every optimizer step, divide them by kappa"
    )


LIGHTNING = Format(
    "lightning",
    "the YAML of LightningCLI",
    ("YAML",),
    ("optimizer.class_path",),
    Layout("", "data.init_args.batch_size", "trainer.accumulate_grad_batches"),
    also=("trainer",),
    optimizer="optimizer.class_path",
    optimizers=class_rows(_ARGS),
    schedule="lr_scheduler.class_path",
    schedules={
        "": ScheduleRow(),
        f"{_T}steplr": ScheduleRow(others=("step_size", "gamma")),
        f"{_T}multisteplr": ScheduleRow(others=("milestones", "gamma")),
        f"{_T}exponentiallr": ScheduleRow(others=("gamma",)),
        f"{_T}linearlr": ScheduleRow(others=("start_factor", "end_factor", "total_iters")),
        f"{_T}constantlr": ScheduleRow(others=("factor", "total_iters")),
        f"{_T}polynomiallr": ScheduleRow(others=("power", "total_iters")),
        f"{_T}cosineannealinglr": ScheduleRow((_MIN,), ("T_max",)),
        f"{_T}cosineannealingwarmrestarts": ScheduleRow((_MIN,), ("T_0", "T_mult")),
        "lightning.pytorch.cli.reducelronplateau": _PLATEAU,
        "pytorch_lightning.cli.reducelronplateau": _PLATEAU,
        f"{_T}onecyclelr": ScheduleRow(refused="it cycles beta1 by itself"),
        f"{_T}cycliclr": ScheduleRow(refused="it cycles beta1 by itself"),
    },
    schedule_values=_SCHED,
    fields=(
        Field("trainer.gradient_clip_val", "clip"),
        Field("trainer.max_steps", "steps"),
        Field("trainer.min_steps", "intervals"),
        Field("trainer.log_every_n_steps", "intervals"),
    ),
    epochs="trainer.max_epochs",
    refusals=(
        Refusal(
            "trainer.gradient_clip_algorithm", "only a clip by norm has a row in the table of units", (None, "norm")
        ),
        *class_refusals("optimizer.class_path", _ARGS),
    ),
    remarks=(_epochs,),
    tables=("optimizer", "lr_scheduler"),
    strict=(_ARGS,),
    others=("trainer.val_check_interval",),
    null=True,
    aliases=(("data.batch_size", "data.init_args.batch_size"),),
    left_alone="`trainer.max_epochs`, the counts of `lr_scheduler` (epochs); `trainer.val_check_interval`, "
    "`trainer.limit_train_batches` (they count micro-batches); what the module makes of its own arguments",
)
