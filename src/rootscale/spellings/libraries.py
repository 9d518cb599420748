"""How torch libraries spell the families: classes of optimizers by name, with the names of their groups and state.

None of the libraries is imported. A class is known by its name, the package it comes from and what its groups hold. A
class whose groups may be of several families has a row for each. Without ``values`` a row has torch's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rootscale.optimizers import FAMILIES, Family
from rootscale.spellings import Fields, Options, Spelling, decoupled_or_not, only

#: What containers call the option that says which optimizer a group has, with the families of its values.
_KINDS: Mapping[str, Mapping[object, str]] = MappingProxyType(
    {
        "use_muon": {True: "muon", False: "adamw"},
        "use_fallback": {True: "adamw", False: "muon"},
        "kind": {"muon": "muon", "adamw": "adamw"},
        "algorithm": {"muon": "muon", "adamw": "adamw", "lion": "lion"},
    }
)


def kind_of_group(optimizer: Any, group: Options) -> str:
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


def _lamb_or_adam(optimizer: Any, group: Options) -> str:
    """Return LAMB where the layer's norms are used; groups without decay often are left to Adam."""
    normed = group["weight_decay"] or group.get("always_adapt", getattr(optimizer, "use_nvlamb", True))
    return "lamb" if normed else "adam"


def _in_bits(*names: str) -> tuple[str, ...]:
    """Return the names of classes of bitsandbytes: in 8 or 32 bits, and paged."""
    return tuple(f"{page}{name}{size}" for name in names for page in ("", "Paged") for size in ("", "8bit", "32bit"))


def _values(family: str, **changed: Fields) -> Mapping[str, Fields]:
    """Return torch's names of a family's hyperparameters, with some of them changed or added."""
    return MappingProxyType({**FAMILIES[family].torch.values, **changed})


def _bitsandbytes(family: str, *names: str, values: Mapping[str, Fields], **state: str) -> Spelling:
    """Return a row of bitsandbytes: ``state1`` and ``state2`` hold floats, or codes whose scales are ``absmax``.

    Beside them is the table of the codes, what every step computes anew, and a counter that Lion and SGD do not use.
    """
    return Spelling(
        _in_bits(*names), family, values, state, "bitsandbytes", unchanged=("qmap1", "qmap2", "unorm_vec", "step")
    )


_ADAM_STATE = {**FAMILIES["adamw"].torch.state, "group.step": "step"}  # the counter is in the state, or in the group


def _fused(names: tuple[str, ...], *families: str, **columns: Any) -> Iterator[Spelling]:
    """Yield the rows of classes with fused kernels, which may keep a master copy of the parameters."""
    for family in families:
        if family in ("adam", "adamw"):
            yield Spelling(names, family, _values("adamw"), _ADAM_STATE, unchanged=("master_param",), **columns)
        else:
            yield Spelling(names, family, **columns)


_SUM_OR_AVERAGE = (
    "it is not known whether its momentum averages gradients, (1 - mu) g, or sums them, and that matters where the "
    "rule changes mu: register(cls, like='muon') if it averages them, register(cls, like='muon', sums=True) if it "
    "sums them, or take the rule 'normalized-sqrt', which keeps mu"
)


def _muon(names: tuple[str, ...], package: str = "", *, unsure: str = "", **columns: Any) -> Iterator[Spelling]:
    """Yield the rows of Muon alone, and of the Adam in other groups of the same optimizer."""
    yield Spelling(
        names, "muon", _values("muon", beta2="beta2", wd="weight_decay"), FAMILIES["muon"].torch.state, package,
        family_of=kind_of_group, foreign=("exp_avg", "moment1"), unsure=unsure,
        unchanged=("second_momentum_buffer",),  # of steps that are normalised already
        **columns,
    )  # fmt: skip
    yield from _fused(names, "adamw", package=package, family_of=kind_of_group, **columns)


_FREE = only(
    "the sum of its weights is known to scale only where step k weighs lr^2", r=(0,), weight_lr_power=(2,)
)  # fmt: skip


def _rows() -> Iterator[Spelling]:
    # this package's own, which have torch's names
    for family, name in (("adam", "Adam"), ("rmsprop", "RMSprop"), ("microbatchadam", "MicroBatchAdam")):
        yield Spelling((name,), family, package="rootscale", family_of=decoupled_or_not if family == "adam" else None)
    # bitsandbytes: Adam decays as AdamW does; states in 8 bits have a scale for each block of values
    moments = {"state1": "m", "absmax1": "m", "state2": "v", "absmax2": "v", "step": "step"}
    yield _bitsandbytes("adamw", "Adam", "AdamW", values=_values("adamw"), **moments)
    yield _bitsandbytes("lion", "Lion", values=_values("lion"), state1="m", absmax1="m")
    yield _bitsandbytes(
        "ademamix", "AdEMAMix",
        values={**_values("adamw"), "betas": ("beta1", "beta2", "beta3"), "t_alpha": "warmup", "t_beta3": "warmup"},
        **{"state1[0]": "m", "state1[1]": "m2", "absmax1[0]": "m", "absmax1[1]": "m2"},
        state2="v", absmax2="v", step="step",
    )  # fmt: skip
    yield _bitsandbytes(
        "rmsprop", "RMSprop", values=_values("rmsprop", betas=("beta", "")), state1="v", absmax1="v", step="step"
    )
    yield _bitsandbytes(
        "adagrad", "Adagrad", values={"lr": "eta", "eps": "eps", "weight_decay": "weight_decay"},
        state1="s", absmax1="s", step="step",
    )  # fmt: skip
    momentum: Mapping[str, Fields] = {"lr": "eta", "betas": ("momentum", ""), "weight_decay": "weight_decay"}
    yield _bitsandbytes("sgd", "SGD", values=momentum, state1="b", absmax1="b")
    # torchao: tensors of codes and scales under torch's names
    yield Spelling(("Adam8bit", "Adam4bit", "AdamFp8"), "adam", package="torchao")
    yield Spelling(("AdamW8bit", "AdamW4bit", "AdamWFp8", "_AdamW"), "adamw", package="torchao")
    # Apex and DeepSpeed: fused, and offloaded to the CPU
    adam = ("lr", "betas", "eps")
    yield from _fused(
        ("FusedAdam", "DeepSpeedCPUAdam", "CPUAdam"), "adamw", "adam", needs=adam, family_of=decoupled_or_not
    )
    lamb = (*adam, "weight_decay")
    yield from _fused(("FusedLAMB", "FusedLamb"), "lamb", "adam", needs=lamb, family_of=_lamb_or_adam)
    yield Spelling(("FusedSGD",), "sgd", needs=("lr", "momentum", "weight_decay"))
    why = "only steps that are normalised with their decay, and are not rectified, are known here"
    yield from _fused(
        ("Lamb", "LAMB"), "lamb", "adam", needs=(*lamb, "max_grad_norm"), family_of=_lamb_or_adam,
        check=only(why, decoupled_decay=(False,), adam=(False,), rectify=(False,)),
    )  # fmt: skip
    # Hugging Face
    why = "its relative step has constants of its own, which cannot be converted; give lr and relative_step=False"
    yield Spelling(
        ("Adafactor",), "adafactor",
        {"lr": "eta", "eps": ("eps1", "eps2"), "beta1": "beta1", "weight_decay": "weight_decay"},
        {"exp_avg_sq_row": "row", "exp_avg_sq_col": "column", "exp_avg_sq": "v", "exp_avg": "m", "step": "step"},
        needs=("lr", "relative_step", "decay_rate"), unchanged=("RMS",),
        check=only(why, relative_step=(False,), warmup_init=(False,)),
    )  # fmt: skip
    # Schedule-Free
    yield Spelling(
        ("AdamWScheduleFree", "ScheduleFreeAdamW", "RAdamScheduleFree"), "schedulefree-adamw",
        needs=("lr", "betas", "weight_sum"), check=_FREE,
    )  # fmt: skip
    yield Spelling(
        ("SGDScheduleFree", "ScheduleFreeSGD"), "schedulefree-sgd", needs=("lr", "momentum", "weight_sum"), check=_FREE
    )
    yield Spelling(("AdEMAMix",), "ademamix", needs=("lr", "betas", "alpha", "t_alpha_beta3"))
    yield Spelling(
        ("SOAP",), "soap", needs=("lr", "betas", "precondition_frequency", "shampoo_beta"),
        check=only("its steps are normalised", normalize_grads=(False,), normalize_gradient=(False,)),
    )  # fmt: skip
    # Muon: in packages where it is known to average gradients; in containers; and whose momentum is not known
    for package in ("muon", "nanochat", "timm", "pytorch_optimizer"):
        yield from _muon(("Muon", "DistMuon"), package)
    yield from _muon(
        ("SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam", "MuonAdamW", "DistMuonAdamW")
    )
    why = "it leaves some parameters of a group to Adam; give those an AdamW"
    yield from _muon(
        ("Muon", "DistMuon"), unsure=_SUM_OR_AVERAGE, needs=("lr", "momentum"), check=only(why, adamw_betas=(None,))
    )
    yield Spelling(("Lion",), "lion", needs=("lr", "betas"))
    yield Spelling(("Signum",), "signum", needs=("lr", "momentum"))


#: Classes that are known by name, those of one package before those of any.
LIBRARIES: tuple[Spelling, ...] = tuple(_rows())

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


def spelled(row: Spelling, family: str) -> Family:
    """Return a family as the class of a row spells it, which may have another row for that family."""
    for other in (row, *LIBRARIES):
        if (other.names, other.package, other.family) == (row.names, row.package, family):
            return replace(FAMILIES[family], torch=other) if other.values else FAMILIES[family]
    return FAMILIES[family]
