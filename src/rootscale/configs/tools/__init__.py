"""The configurations of known tools, as tables: the path of each value, and which quantity it is.

A value that is in no table is not touched. What a tool scales by itself, and what is left alone because its meaning is
not certain, is in docs/integrations. To add a tool, write its `Format` and put it into `FORMATS`, and say in `SIGNS`
what only it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rootscale.configs.rows import Format
from rootscale.configs.tools.classes import HYDRA, LIGHTNING, LITGPT, NEMO, NEMO_MEGATRON
from rootscale.configs.tools.pretraining import (
    DEEPSPEED,
    MEGATRON,
    NANOGPT,
    OLMO,
    OLMO_CORE,
    TORCHTITAN,
    TORCHTITAN_PYTHON,
    TORCHTITAN_TOKENS,
)
from rootscale.configs.tools.timm import TIMM
from rootscale.configs.tools.trainer import AXOLOTL, LLAMAFACTORY, TRANSFORMERS

#: Every format by its name; the command line and the docs iterate this table.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        one.name: one
        for one in (
            DEEPSPEED, TRANSFORMERS, LLAMAFACTORY, AXOLOTL, TIMM, TORCHTITAN, TORCHTITAN_PYTHON, TORCHTITAN_TOKENS,
            MEGATRON, LITGPT,
            LIGHTNING, NEMO, NEMO_MEGATRON, HYDRA, OLMO, OLMO_CORE, NANOGPT,
        )
    }
)  # fmt: skip

_CLASSES, _TARGETS = ("litgpt", "lightning"), ("nemo", "nemo-megatron", "hydra")
#: Names that only some tools have, wherever they stand in a file: a file with one of them is of no other tool.
SIGNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "class_path": _CLASSES,
        "init_args": _CLASSES,
        "_target_": _TARGETS,
        "_partial_": _TARGETS,
        "_CLASS_": ("olmo-core",),
        "betas": ("deepspeed", *_CLASSES, *_TARGETS, "olmo", "olmo-core", "torchtitan-python", "torchtitan-tokens"),
        "base_model": ("axolotl",),
        "finetuning_type": ("llamafactory",),
        "per_device_train_batch_size": ("transformers", "llamafactory"),
        "train_micro_batch_size_per_gpu": ("deepspeed",),
        "lr_decay_style": ("megatron",),
        "global_train_batch_size": ("olmo",),
        "rank_microbatch_size": ("olmo-core",),
        "update_freq": (),  # of scripts that took timm's options over
        "unscale_lr": (),
    }
)
