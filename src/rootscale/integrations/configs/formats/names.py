"""The optimizers that tools name, with the family of `rootscale.optimizers` that each one is.

One table for all tools: what the Trainer of Hugging Face calls ``optim`` (axolotl and LLaMA-Factory take the same
names), and the classes that configurations with ``class_path`` or ``_target_`` name. Quantized and paged optimizers
make the update of the family they are of, and keep its state in a form of their own: each block of it relative to its
largest value, so a change of units leaves the codes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rootscale.integrations.configs.formats.row import OptimizerRow, Refusal, When, optimizer

__all__ = ["CLASSES", "LIVE", "NO_MOMENTUM", "TRAINER", "class_refusals", "class_rows"]

#: Names of the Trainer, with the family and the library that makes the optimizer.
TRAINER: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "adamw_torch": ("adamw", "torch"),
        "adamw_torch_fused": ("adamw", "torch"),
        "rmsprop": ("rmsprop", "torch"),
        "sgd": ("sgd", "torch"),
        "adamw_torch_xla": ("adamw", "torch_xla"),
        "adamw_torch_npu_fused": ("adamw", "torch_npu"),
        **dict.fromkeys(("adamw_torch_8bit", "adamw_torch_4bit"), ("adamw", "torchao")),
        **dict.fromkeys(
            ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"),
            ("adamw", "bitsandbytes"),
        ),
        **dict.fromkeys(("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"), ("lion", "bitsandbytes")),
        "adamw_hf": ("adamw", "transformers"),  # transformers 4 only, like the next; its files may still have them
        "adamw_apex_fused": ("adamw", "apex"),
    }
)
#: The libraries whose optimizers a live run can be converted with: their state is known to `rootscale.training`.
LIVE = ("torch", "torchao", "bitsandbytes")
NO_MOMENTUM = "RMSprop with momentum or centered is converted live, by rescale_, and not in files; switch it off"

#: Classes by their path in lower case: the family, and the weight decay that the class takes if none is given.
CLASSES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "torch.optim.adamw": ("adamw", 0.01),
        "torch.optim.adam": ("adam", 0.0),
        "torch.optim.sgd": ("sgd", 0.0),
        "torch.optim.rmsprop": ("rmsprop", 0.0),
        **dict.fromkeys(
            (
                "bitsandbytes.optim.adamw", "bitsandbytes.optim.adamw8bit", "bitsandbytes.optim.adamw32bit",
                "bitsandbytes.optim.pagedadamw", "bitsandbytes.optim.pagedadamw8bit",
                "bitsandbytes.optim.pagedadamw32bit", "torchao.optim.adamw8bit", "torchao.optim.adamw4bit",
                "torchao.optim.adamwfp8",
            ),
            ("adamw", 0.01),
        ),
    }
)  # fmt: skip
#: What the classes take if nothing is given, by family and by the fields of its record.
_DEFAULTS: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "adamw": {"eta": ("lr", 1e-3), "beta1": ("betas.0", 0.9), "beta2": ("betas.1", 0.999), "eps": ("eps", 1e-8)},
    "adam": {"eta": ("lr", 1e-3), "beta1": ("betas.0", 0.9), "beta2": ("betas.1", 0.999), "eps": ("eps", 1e-8)},
    "sgd": {"eta": ("lr", 1e-3), "momentum": ("momentum", 0.0)},
    "rmsprop": {"eta": ("lr", 1e-2), "beta": ("alpha", 0.99), "eps": ("eps", 1e-8)},
}


def class_rows(table: str) -> dict[str, OptimizerRow]:
    """Return the rows of all known classes, whose arguments are in this table of a configuration."""
    return {
        name: optimizer(
            family,
            {field: (f"{table}.{key}", default) for field, (key, default) in _DEFAULTS[family].items()}
            | {"weight_decay": (f"{table}.weight_decay", decay)},
        )
        for name, (family, decay) in CLASSES.items()
    }


def class_refusals(path: str, table: str) -> tuple[Refusal, ...]:
    """Return the options with which a class makes another update than its family's.

    Args:
        path: of the name of the class.
        table: of its arguments.
    """
    rmsprop = When(path, ("torch.optim.rmsprop", "rmsprop"))
    return (
        *(Refusal(f"{table}.{name}", NO_MOMENTUM, (None, False, 0), rmsprop) for name in ("momentum", "centered")),
        Refusal(f"{table}.decoupled_weight_decay", "name AdamW instead, which is the same"),
    )
