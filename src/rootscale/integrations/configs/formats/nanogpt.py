"""The Python configurations of nanoGPT's ``train.py``; they are parsed, and never executed."""

from __future__ import annotations

from rootscale.integrations.configs.formats.row import Field, OptimizerRow, When, optimizer
from rootscale.integrations.configs.formats.table import Format, Layout

__all__ = ["NANOGPT"]

_DECAYS = When("decay_lr", (True,), True)
_ROW: OptimizerRow = optimizer(
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
    Layout(
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
