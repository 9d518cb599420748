"""The arguments of timm's ``train.py``."""

from __future__ import annotations

from rootscale.configs.rows import (
    Batch,
    Field,
    Format,
    Refusal,
    ScheduleRow,
    When,
    optimizer,
    without,
)
from rootscale.documents import Document
from rootscale.spellings import Spelling


def _own_scaling(source: Document) -> tuple[str, float]:
    """``lr = lr_base * (batch / lr_base_size)^p``, with p = 1/2 for ``sqrt`` and 1 for ``linear``."""
    name = source["lr_base_scale"] or (
        "sqrt" if any(part in str(source["opt"]).lower() for part in ("ada", "lamb")) else "linear"
    )
    return name, 0.5 if name == "sqrt" else 1.0


#: Used where ``lr`` is not given.
_BASE = Field("lr_base", "eta", 0.1, when=(When("lr", (None, 0)),), scaled=_own_scaling)


def _row(family: str, values: dict[str, str | tuple[str, float | None]]) -> Spelling:
    return optimizer(family, {"eta": "lr", **values, "weight_decay": ("weight_decay", 2e-5)})


_ADAM: dict[str, str | tuple[str, float | None]] = {
    "beta1": ("opt_betas.0", 0.9),
    "beta2": ("opt_betas.1", 0.999),
    "eps": ("opt_eps", 1e-8),
}
_SGD = _row("sgd", {"momentum": ("momentum", 0.9)})
_EMA = When("model_ema")

TIMM = Format(
    "timm",
    "args.yaml of timm's train.py, a file for its --config, or a script that starts it",
    ("YAML", "arguments"),
    ("opt", "lr_base"),
    Batch("", "batch_size", "grad_accum_steps"),
    also=("batch_size",),
    optimizer="opt",
    optimizers={"adam": _row("adam", _ADAM), "adamw": _row("adamw", _ADAM), "sgd": _SGD, "momentum": _SGD},
    default_optimizer="sgd",
    schedule="sched",
    schedules={
        **dict.fromkeys(("cosine", "tanh", "step", "multistep", "poly", "none", ""), ScheduleRow()),
        "plateau": ScheduleRow(refused="it has no clock: it waits for a metric"),
    },
    fields=(
        _BASE,
        Field("warmup_lr", "min_eta", 1e-5),
        Field("min_lr", "min_eta"),
        Field("clip_grad", "clip"),
        Field("model_ema_decay", "ema", 0.9998, when=(_EMA,)),
        Field("bn_momentum", "batchnorm_momentum"),
    ),
    epochs="epochs",
    refusals=(
        Refusal("clip_mode", "only a clip by norm has a row in the table of units", (None, "norm"), When("clip_grad")),
        Refusal(
            "opt_kwargs", "options of the optimizer that this file's other fields do not show; remove them", (None, {})
        ),
        Refusal("sched_on_updates", "the schedule is then stepped by updates, whose number is not in this file"),
        Refusal("layer_decay_no_opt_scale", "layers below it are not trained by the optimizer; take it out", (None,)),
        Refusal(
            "(program)", "of timm's scripts only train.py is known; others scale the learning rate by themselves",
            without(r"^(?!train\.py$|distributed_train\.sh$|legacy_distributed_train\.sh$).*\.py$"),
        ),
        Refusal("model_ema_warmup", "its ramp counts steps and cannot be converted; switch it off", when=_EMA),
    ),
    remarks=(
        lambda source, kappa: (
            "bn_momentum is not set: a model with BatchNorm keeps its own momentum, which this file does not have"
            if source["bn_momentum"] is None
            else ""
        ),
    ),
    tables=("",),
    others=(
        "opt_betas", "lr_base_size", "lr_base_scale", "sched", "warmup_epochs", "warmup_prefix", "decay_epochs",
        "decay_milestones", "decay_rate", "lr_cycle_mul", "lr_cycle_decay", "lr_cycle_limit", "lr_k_decay",
        "lr_noise", "lr_noise_pct", "lr_noise_std", "layer_decay", "layer_decay_min_scale", "model_ema_force_cpu",
        "bn_eps", "opt_foreach", "clip_mode", "corrected_weight_decay",
    ),
    aliases=(("b", "batch_size"),),
    left_alone="everything in epochs (`epochs`, `warmup_epochs`, `decay_epochs` …); `log_interval`, "
    "`recovery_interval` (batches or updates, by version)",
)  # fmt: skip
