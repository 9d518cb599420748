"""How libraries spell the families: classes of optimizers by name, with the names of their groups and state.

None of the libraries is imported. A class is known by its name, the package it comes from and what its groups hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from rootscale.optimizers import FAMILIES, Family, Spelling
from rootscale.spelling import Fields, kind_of_rmsprop

__all__ = ["LIBRARIES", "REFUSED", "Adapter", "kind_of_adam", "kind_of_group", "kind_of_rmsprop"]

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Adapter:
    """A class of optimizers, and the family whose update it makes.

    Args:
        cls: whose ``step`` it has; or the names of classes, whose groups then must have a learning rate and what the
            spelling calls ``needs``.
        family: the name of the row.
        spelling: the library's, where it is not that of the row; by family, where groups have several.
        package: that a class known by name comes from; empty is any.
        needs: keys that every group must have; a class that is known by name is another one without them.
        kind: gives the name for a group of an optimizer, where groups may be of several families.
        requires: options that must have these values; with others the update is another one.
        why: what the requirements are for.
        refused: why there is nothing to convert, where that is so.
    """

    cls: type[torch.optim.Optimizer] | tuple[str, ...]
    family: str
    spelling: Spelling | Mapping[str, Spelling] | None = None
    package: str = ""
    needs: tuple[str, ...] = ("lr",)
    kind: Callable[[Any, Group], str] | None = None
    requires: Mapping[str, object] = field(default_factory=dict)
    why: str = ""
    refused: str = ""

    def family_of_group(self, optimizer: Any, group: Group) -> str:
        """Return the name of the family of a group."""
        return self.family if self.kind is None else self.kind(optimizer, group)

    def spelled(self, family: str) -> Family:
        """Return the row of a family as the library spells it."""
        row = FAMILIES[family]
        spelling = self.spelling.get(family) if isinstance(self.spelling, Mapping) else self.spelling
        return replace(row, torch=spelling) if spelling is not None else row

    def named_like(self, optimizer: Any) -> bool:
        """Return whether the class of an optimizer has one of the names, comes from the package and has the keys."""
        cls = type(optimizer)
        return (
            isinstance(self.cls, tuple)
            and cls.__name__ in self.cls
            and (not self.package or cls.__module__.split(".")[0] == self.package)
            and all(key in group for group in optimizer.param_groups for key in self.needs)
        )


#: What containers call the option that says which optimizer a group has, with the families of its values.
_KINDS: Mapping[str, Mapping[object, str]] = MappingProxyType(
    {
        "use_muon": {True: "muon", False: "adamw"},
        "use_fallback": {True: "adamw", False: "muon"},
        "kind": {"muon": "muon", "adamw": "adamw"},
        "algorithm": {"muon": "muon", "adamw": "adamw", "lion": "lion"},
    }
)


def kind_of_group(optimizer: Any, group: Group) -> str:
    """Return the family of a group that says itself which optimizer it has, as MuonWithAuxAdam's do.

    >>> kind_of_group(None, {"use_muon": True}), kind_of_group(None, {"kind": "adamw"})
    ('muon', 'adamw')
    """
    for key, families in _KINDS.items():
        if key in group:
            if group[key] not in families:
                known = ", ".join(map(repr, families))
                raise ValueError(f"{type(optimizer).__name__} has a group with {key}={group[key]!r}; known are {known}")
            return families[group[key]]
    return "muon"


def kind_of_adam(optimizer: Any, group: Group) -> str:
    """Return Adam or AdamW, by what the optimizer or the group says of its decay."""
    decoupled = group.get("decoupled_weight_decay", getattr(optimizer, "adam_w_mode", False))
    return "adamw" if decoupled else "adam"


def _lamb(optimizer: Any, group: Group) -> str:
    """Return LAMB where the layer's norms are used; groups without decay often are left to Adam."""
    normed = group["weight_decay"] or group.get("always_adapt", getattr(optimizer, "use_nvlamb", True))
    return "lamb" if normed else "adam"


def _named(*names: str, bits: bool = False) -> tuple[str, ...]:
    """Return names of classes; with ``bits``, those of bitsandbytes: in 8 or 32 bits, and paged."""
    if not bits:
        return names
    return tuple(f"{page}{name}{size}" for name in names for page in ("", "Paged") for size in ("", "8bit", "32bit"))


def _values(family: str, **changed: Fields) -> Mapping[str, Fields]:
    """Return torch's names of a family's hyperparameters, with some of them changed or added."""
    return MappingProxyType({**FAMILIES[family].torch.values, **changed})


#: The table of bitsandbytes' codes, what it computes anew in every step, and a counter that Lion and SGD do not use.
_BNB_KEPT = ("qmap1", "qmap2", "unorm_vec", "step")


def _blockwise(name: str, values: Mapping[str, Fields], *held: str) -> Spelling:
    """Return a spelling of bitsandbytes: ``state1`` and ``state2`` hold floats, or codes with scales ``absmax``."""
    names = [(f"state{i}", f"absmax{i}", key) for i, key in enumerate(held, 1)]
    state = {name: key for state, scale, key in names for name in (state, scale)}
    return Spelling(
        name, values, {**state, "step": "step"} if name != "Lion" else state,
        codes=MappingProxyType({state: scale for state, scale, _ in names}), kept=_BNB_KEPT,
    )  # fmt: skip


_SLOW = ("state1[0]", "state1[1]")
_BNB_SGD: Mapping[str, Fields] = MappingProxyType(
    {"lr": "eta", "betas": ("momentum", ""), "weight_decay": "weight_decay"}
)
_FUSED = Spelling(
    "FusedAdam", _values("adamw"), FAMILIES["adamw"].torch.state, group_state={"step": "step"}, kept=("master_param",),
)  # fmt: skip
_ADAMS = MappingProxyType({"adam": _FUSED, "adamw": _FUSED})  # the step counter is in the state, or in the group
_SUM_OR_AVERAGE = (
    "it is not known whether its momentum averages gradients, (1 - mu) g, or sums them, and that matters where the "
    "rule changes mu: register(cls, like='muon') if it averages them, register(cls, like='muon', sums=True) if it "
    "sums them, or take the rule 'normalized-sqrt', which keeps mu"
)
_MUON = Spelling(
    "Muon", _values("muon", beta2="beta2", wd="weight_decay"), FAMILIES["muon"].torch.state,
    foreign=("exp_avg", "moment1"), kept=("second_momentum_buffer",),  # of steps that are normalised already
)  # fmt: skip
_MUONS = MappingProxyType({"muon": _MUON, "adamw": _FUSED})
_ANY_MUONS = MappingProxyType({"muon": replace(_MUON, unsure=_SUM_OR_AVERAGE), "adamw": _FUSED})
#: Packages whose Muon is known to average gradients.
_AVERAGING = ("muon", "nanochat", "timm", "pytorch_optimizer")
_ROWS = {"exp_avg_sq_row": "row", "exp_avg_sq_col": "column", "exp_avg_sq": "v", "exp_avg": "m", "step": "step"}
_FREE = {"r": 0, "weight_lr_power": 2}
_OWN_RATE = "its relative step has constants of its own, which cannot be converted; give lr and relative_step=False"
_WEIGHTS = "the sum of its weights is known to scale only where step k weighs lr^2"

#: Classes that are known by name, those of one package before those of any.
LIBRARIES: tuple[Adapter, ...] = (
    # bitsandbytes: Adam decays as AdamW does; states in 8 bits have a scale for each block of values
    Adapter(
        _named("Adam", "AdamW", bits=True), "adamw", _blockwise("AdamW", _values("adamw"), "m", "v"), "bitsandbytes",
    ),
    Adapter(_named("Lion", bits=True), "lion", _blockwise("Lion", _values("lion"), "m"), "bitsandbytes"),
    Adapter(
        _named("AdEMAMix", bits=True), "ademamix",
        Spelling(
            "AdEMAMix",
            {**_values("adamw"), "betas": ("beta1", "beta2", "beta3"), "t_alpha": "warmup", "t_beta3": "warmup"},
            {
                "state1[0]": "m", "state1[1]": "m2", "absmax1[0]": "m", "absmax1[1]": "m2",
                "state2": "v", "absmax2": "v", "step": "step",
            },
            codes={"state1[0]": "absmax1", "state1[1]": "absmax1", "state2": "absmax2"}, kept=_BNB_KEPT,
        ),
        "bitsandbytes",
    ),
    Adapter(
        _named("RMSprop", bits=True), "rmsprop",
        _blockwise("RMSprop", _values("rmsprop", betas=("beta", "")), "v"), "bitsandbytes",
    ),
    Adapter(
        _named("Adagrad", bits=True), "adagrad",
        _blockwise("Adagrad", {"lr": "eta", "eps": "eps", "weight_decay": "weight_decay"}, "s"), "bitsandbytes",
    ),
    Adapter(_named("SGD", bits=True), "sgd", Spelling(
        "SGD", _BNB_SGD, {"state1": "b", "absmax1": "b"}, codes={"state1": "absmax1"}, kept=_BNB_KEPT), "bitsandbytes",
    ),
    # torchao: tensors of codes and scales under torch's names
    Adapter(_named("Adam8bit", "Adam4bit", "AdamFp8"), "adam", package="torchao"),
    Adapter(_named("AdamW8bit", "AdamW4bit", "AdamWFp8", "_AdamW"), "adamw", package="torchao"),
    # Apex and DeepSpeed: fused, and offloaded to the CPU
    Adapter(
        _named("FusedAdam", "DeepSpeedCPUAdam", "CPUAdam"), "adamw", _ADAMS, needs=("lr", "betas", "eps"),
        kind=kind_of_adam,
    ),
    Adapter(
        _named("FusedLAMB", "FusedLamb"), "lamb", _ADAMS, needs=("lr", "betas", "eps", "weight_decay"), kind=_lamb,
    ),
    Adapter(_named("FusedSGD"), "sgd", needs=("lr", "momentum", "weight_decay")),
    Adapter(
        _named("Lamb", "LAMB"), "lamb", _ADAMS, needs=("lr", "betas", "eps", "weight_decay", "max_grad_norm"),
        kind=_lamb,
        requires={"decoupled_decay": False, "adam": False, "rectify": False},
        why="only steps that are normalised with their decay, and are not rectified, are known here",
    ),
    # Hugging Face
    Adapter(
        _named("Adafactor"), "adafactor",
        Spelling(
            "Adafactor",
            {"lr": "eta", "eps": ("eps1", "eps2"), "beta1": "beta1", "weight_decay": "weight_decay"}, _ROWS,
            kept=("RMS",),
        ),
        needs=("lr", "relative_step", "decay_rate"),
        requires={"relative_step": False, "warmup_init": False}, why=_OWN_RATE,
    ),
    # Schedule-Free
    Adapter(_named("AdamWScheduleFree", "ScheduleFreeAdamW", "RAdamScheduleFree"), "schedulefree-adamw",
            needs=("lr", "betas", "weight_sum"), requires=_FREE, why=_WEIGHTS),
    Adapter(_named("SGDScheduleFree", "ScheduleFreeSGD"), "schedulefree-sgd", needs=("lr", "momentum", "weight_sum"),
            requires=_FREE, why=_WEIGHTS),
    Adapter(_named("AdEMAMix"), "ademamix", needs=("lr", "betas", "alpha", "t_alpha_beta3")),
    Adapter(_named("SOAP"), "soap", needs=("lr", "betas", "precondition_frequency", "shampoo_beta"),
            requires={"normalize_grads": False, "normalize_gradient": False}, why="its steps are normalised"),
    # Muon: alone, or with Adam in other groups of the same optimizer
    *(Adapter(_named("Muon", "DistMuon"), "muon", _MUONS, package, kind=kind_of_group) for package in _AVERAGING),
    Adapter(
        _named("SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam", "MuonAdamW", "DistMuonAdamW"),
        "muon", _MUONS, kind=kind_of_group,
    ),
    Adapter(
        _named("Muon", "DistMuon"), "muon", _ANY_MUONS, needs=("lr", "momentum"), kind=kind_of_group,
        requires={"adamw_betas": None}, why="it leaves some parameters of a group to Adam; give those an AdamW",
    ),
    Adapter(_named("Lion"), "lion", needs=("lr", "betas")),
    Adapter(_named("Signum"), "signum", needs=("lr", "momentum")),
)  # fmt: skip

#: Classes that no rule is known for, and why.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "LBFGS": "it fits a curvature to differences of gradients and has no SDE: noise must be small in it",
        "Rprop": "it compares signs of successive gradients, for batches without noise",
        "ASGD": "its learning rate decays on a clock of its own (t0, lambd, alpha)",
        "Adadelta": "it has one eps for two quantities, of which one scales as kappa and the other as 1/kappa",
        "SparseAdam": "its averages count how often a row occurs in batches, and not steps",
        "Prodigy": "it estimates its learning rate from the run, and that estimate has no known scaling",
        "DAdaptAdam": "it estimates its learning rate from the run, and that estimate has no known scaling",
        **dict.fromkeys(
            ("LAMB", "LAMB8bit", "LAMB32bit"),
            "it bounds the size of Adam's steps and does not normalise them (max_unorm)",
        ),
        "Shampoo": "libraries differ in the root and in the sum or average of its factors; register the one you have",
        "SignSGD": "libraries differ in what momentum it has; register(cls, like='signum') if it averages gradients",
    }
)
