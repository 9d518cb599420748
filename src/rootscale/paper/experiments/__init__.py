"""The experiments, a module each; those in `FILES` declare what ``rootscale reproduce`` runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from rootscale.paper.experiment import Experiment

__all__ = ["FILES", "experiments"]

#: The modules that declare experiments, the most important first.
FILES = (
    "cifar10_switch",
    "cifar10_scaling",
    "cifar10_factors",
    "cifar10_svag",
    "cifar10_ablations",
    "cifar10_vk",
    "mlp_sde",
    "floors",
    "momentum_switch",
    "sooner",
    "gpt_wikitext",
    "roberta_mlm",
    "glue",
    "imagenet_resnet50",
)


@lru_cache(maxsize=1)
def experiments() -> Mapping[str, Experiment]:
    """Return all experiments by name, the most important first."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in FILES)
    found = {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}
    return MappingProxyType(found)
