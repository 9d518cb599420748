"""The hyperparameters of the toy runs: in each family the loss falls to a quarter or less in the window."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rootscale import records
from rootscale.hparams import SGD, Adam, AdamW, Optimizer, RMSprop

__all__ = ["TOY_RECORDS"]

#: By the name of the row in tables; variants of a family follow it.
TOY_RECORDS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "adam": Adam(0.015, 0.98, 0.995),
        "adamw": AdamW(0.01, 0.98, 0.995, weight_decay=0.1),
        "rmsprop": RMSprop(0.01, 0.995),
        "rmsprop-momentum": records.RMSpropMomentum(0.002, 0.995, momentum=0.8),
        "rmsprop-centered": records.RMSpropCentered(0.01, 0.995),
        "nadam": records.NAdam(0.015, 0.98, 0.995, momentum_decay=1.0),
        "radam": records.RAdam(0.012, 0.98, 0.995),
        "adamax": records.Adamax(0.03, 0.98, 0.995),
        "adafactor": records.Adafactor(0.025),
        "ademamix": records.AdEMAMix(0.008, 0.98, 0.995, 0.996, alpha=2.0, warmup=400),
        "soap": records.SOAP(0.015, 0.98, 0.995, 0.995),
        "shampoo": records.Shampoo(0.02, 0.98, 0.995, eps=1.0),
        "schedulefree-adamw": records.ScheduleFreeAdamW(0.035, 0.9, 0.995),
        "adagrad": records.Adagrad(0.16),
        "lars": records.LARS(0.0045, 0.8),
        "muon": records.Muon(0.007, 0.95, weight_decay=0.1),
        "muon without Nesterov": records.Muon(0.007, 0.95, weight_decay=0.1, nesterov=False),
        "lion": records.Lion(0.006, 0.9, 0.95),
        "signum": records.Signum(0.005, 0.95),
        "lamb": records.LAMB(0.006, 0.95, 0.995),
        "sgd": SGD(0.0002, 0.9),
        "schedulefree-sgd": records.ScheduleFreeSGD(0.003, 0.9),
    }
)
