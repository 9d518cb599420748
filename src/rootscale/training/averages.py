"""BatchNorm and averages of the parameters in a `Run`: their numbers are set for the batch size of now.

The momentum of BatchNorm and the decay of an average (EMA) are weights of one forward or one update. Both are projected
from the script's number whenever the batch size changes: ``1 - (1 - p)^kappa`` and ``rho^kappa``. An average keeps its
interval in steps: an update covers ``kappa`` times the samples, whether it comes every step or every tenth.

`KINDS` has a row for each class of averages; any other object with a ``decay`` counts too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from rootscale.changes import Change
from rootscale.format import show
from rootscale.hparams import DOMAINS
from rootscale.rules import Rule
from rootscale.training.attachment import Attachment
from rootscale.training.norms import foreign_norms, norm_layers


@dataclass(frozen=True)
class AverageKind:
    """Where a class of parameter averages keeps what matters.

    Args:
        cls: the name of the class, or the class itself.
        decay: the attribute with its decay.
        updates: the attribute that counts its updates; empty where there is none.
        package: that the class comes from; empty is any.
        saves: whether its ``state_dict`` holds the decay.
        warmup: attributes of a warm-up that is counted in its own updates, with the values that mean none.
    """

    cls: str | type
    decay: str = "decay"
    updates: str = ""
    package: str = ""
    saves: bool = False
    warmup: tuple[str, ...] = ()

    def fits(self, average: Any) -> bool:
        """Return whether an object is of this kind."""
        if isinstance(self.cls, type):
            return isinstance(average, self.cls)
        return any(
            cls.__name__ == self.cls and (not self.package or cls.__module__.partition(".")[0] == self.package)
            for cls in type(average).__mro__
        )


#: Kinds of averages, the users' own before the others.
KINDS: list[AverageKind] = [
    AverageKind("EMA", "beta", "step", "ema_pytorch", warmup=("update_after_step", "inv_gamma", "power")),
    AverageKind("EMAModel", "decay", "optimization_step", "diffusers", True, ("update_after_step", "inv_gamma")),
    AverageKind("ExponentialMovingAverage", "decay", "num_updates", "torch_ema", True, ("num_updates",)),
    AverageKind("ModelEmaV3", "decay", "", "timm", warmup=("update_after_step", "use_warmup")),
    AverageKind("ModelEmaV2", "decay", "", "timm"),
    AverageKind("ModelEma", "decay", "", "timm"),
]
#: torch's makers of exponential averages, by the attribute of AveragedModel that holds what they make.
_MAKERS: dict[str, Callable[[float], Any]] = {"multi_avg_fn": get_ema_multi_avg_fn, "avg_fn": get_ema_avg_fn}


def add_kind(kind: AverageKind) -> None:
    """Add a user's own class of averages, before all others."""
    KINDS.insert(0, kind)


class ParameterAverage:
    """An average of the parameters: its decay as the script has it, and as it is set for now.

    Args:
        average: an `AveragedModel` with an exponential average of torch's, one of `KINDS`, or anything with a number as
            its attribute ``decay``.

    Raises:
        TypeError: it has no decay that can be read and set.
    """

    def __init__(self, average: Any) -> None:
        self.average = average
        self.name = type(average).__name__
        self.kind = next((kind for kind in KINDS if kind.fits(average)), AverageKind(self.name))
        if isinstance(average, AveragedModel):
            self._maker = _maker_of(average)
        else:
            _check_settable(average, self.kind.decay)
        self.script = DOMAINS["ema"]("EMA decay", self._read())
        self._set = self.script
        self._attachment: Attachment | None = None

    def attach(self) -> None:
        """Let a state that holds the decay hold that of the script."""
        if self._saves:
            methods = {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}
            self._attachment = Attachment(self.average, methods, self._copy)

    def detach(self) -> None:
        """Give the average its own number back."""
        self.write(self.script)
        if self._attachment is not None:
            self._attachment.remove()

    @property
    def _saves(self) -> bool:
        """Whether its ``state_dict`` may hold the decay: of a user's own class, nobody knows."""
        known = isinstance(self.average, AveragedModel) or (isinstance(self.kind.cls, str) and self.kind in KINDS)
        own = hasattr(self.average, "state_dict") and hasattr(self.average, "load_state_dict")
        return self.kind.saves if known else own and hasattr(self.average, "__dict__")

    def _read(self) -> float:
        if isinstance(self.average, AveragedModel):
            # torch keeps the decay only in the closure of the function that its maker returned.
            function = inspect.unwrap(getattr(self.average, self._maker))
            return float(inspect.getclosurevars(function).nonlocals["decay"])
        return float(getattr(self.average, self.kind.decay))

    def write(self, decay: float) -> None:
        """Set the decay."""
        if isinstance(self.average, AveragedModel):
            setattr(self.average, self._maker, _MAKERS[self._maker](decay))
        else:
            setattr(self.average, self.kind.decay, decay)
        self._set = self._read()

    def at(self, rule: Rule, kappa: float) -> float:
        """Return the decay at ``kappa`` times the script's batch size; a number that was set since is the script's."""
        now = self._read()
        script = self.script if now == self._set else DOMAINS["ema"]("EMA decay", now)
        return float(rule.convert("ema", script, kappa, "EMA decay"))

    def arrive(self, rule: Rule, kappa: float) -> None:
        """Set the decay for ``kappa`` times the script's batch size."""
        after = self.at(rule, kappa)
        if self._read() != self._set:
            self.script = self._read()
        self.write(after)
        self._at = rule, kappa

    def change(self, rule: Rule, kappa: float) -> Change:
        """Return the row to report."""
        return Change("EMA decay", self.script, self.at(rule, kappa), rule.units.get("ema"), note=self.name)

    @property
    def updates(self) -> float | None:
        """The updates so far, where the average counts them."""
        name = "n_averaged" if isinstance(self.average, AveragedModel) else self.kind.updates
        held = getattr(self.average, name, None) if name else None
        return None if held is None else float(held)

    @property
    def warmup(self) -> str:
        """What the average counts in its own updates, which stays as it is; empty where there is nothing."""
        held = {name: getattr(self.average, name, None) for name in self.kind.warmup}
        return ", ".join(f"{name} = {value}" for name, value in held.items() if value)

    def _state_dict(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self._read()
        self.write(self.script)
        try:
            return original(*args, **kwargs)
        finally:
            self.write(now)

    def _load_state_dict(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.write(self.script)  # a state may come without a decay
        try:
            return original(*args, **kwargs)
        finally:
            self.script = self._set = self._read()
            self.arrive(*self._at)

    def _copy(self) -> dict[str, Any]:
        assert self._attachment is not None
        return self._attachment.plain() | {self.kind.decay: self.script}


def _maker_of(average: AveragedModel) -> str:
    """Return the attribute that holds what one of torch's makers of exponential averages made."""
    for attribute, maker in _MAKERS.items():
        if getattr(getattr(average, attribute, None), "__qualname__", "").startswith(f"{maker.__name__}.<locals>."):
            return attribute
    raise TypeError(
        "ema must be an AveragedModel with an exponential average of torch's (torch.optim.swa_utils."
        "get_ema_multi_avg_fn or get_ema_avg_fn): an average of equal weights needs no conversion; leave it out. For "
        "a function of your own, set its decay to decay ** run.kappa"
    )


def _check_settable(average: Any, attribute: str) -> None:
    """Refuse an average whose decay cannot be read or set, as far as that can be seen without setting it."""
    name, held = type(average).__name__, inspect.getattr_static(type(average), attribute, None)
    if not isinstance(getattr(average, attribute, None), float | int):
        known = ", ".join(str(kind.cls) for kind in KINDS)
        raise TypeError(
            f"ema must be an AveragedModel, one of {known}, or have a number as its attribute decay, got {name}; "
            f"rootscale.training.register({name}, decay='...') names the attribute of yours"
        )
    frozen = getattr(getattr(average, "__dataclass_params__", None), "frozen", False)
    computed = isinstance(held, property) and held.fset is None
    if frozen or isinstance(average, tuple) or computed:
        raise TypeError(f"the {attribute} of {name} cannot be set; set what it is made from to that ** run.kappa")
    decay = getattr(average, attribute)
    if isinstance(held, property) and not _holds(average, decay):
        raise TypeError(
            f"the {attribute} of {name} is a property that computes {show(decay)}, which is none of the numbers that "
            "it holds (a warm-up?); set the number that it computes it from to that ** run.kappa"
        )


def _holds(average: Any, value: float) -> bool:
    """Return whether a number is among the attributes and buffers of an object."""
    held = [*getattr(average, "__dict__", {}).values(), *getattr(average, "_buffers", {}).values()]
    single = [one for one in held if isinstance(one, torch.Tensor) and one.numel() == 1]
    return value in [*(one for one in held if isinstance(one, float | int)), *(one.item() for one in single)]


class NormLayers:
    """The layers of models that average statistics over forward passes, with the momenta of the script.

    Args:
        models: searched with all that they hold; each layer counts once.
        refuse_scripted: whether a layer compiled by TorchScript, whose momentum is a constant, is an error.
    """

    def __init__(self, models: Sequence[Any], refuse_scripted: bool = False) -> None:
        for model in models:
            if not isinstance(model, torch.nn.Module):
                raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        together = models[0] if len(models) == 1 else torch.nn.ModuleList(models)
        found = norm_layers(together, refuse_scripted=refuse_scripted) if models else {}
        self.layers: list[Any] = [layer for layer in found.values() if layer.momentum is not None]
        self._script = [float(layer.momentum) for layer in self.layers]
        self._set = list(self._script)
        for momentum in self._script:
            DOMAINS["batchnorm"]("BatchNorm momentum", momentum)
        self._foreign = foreign_norms(together) if models else {}

    def left(self, rule: Rule, kappa: float) -> Iterator[str]:
        """Yield what is left to the user: layers of other kinds, of which nobody knows what their momentum weighs."""
        if kappa == 1 or "batchnorm" not in rule.units:
            return
        kinds: dict[tuple[str, Any], list[str]] = {}
        for name, layer in self._foreign.items():
            kinds.setdefault((type(layer).__name__, layer.momentum), []).append(name or "the model itself")
        for (kind, momentum), names in kinds.items():
            if isinstance(momentum, float | int) and 0 <= momentum < 1:
                new, old = (float(rule.convert(unit, float(momentum), kappa)) for unit in ("batchnorm", "ema"))
                advice = f"{show(new)} if it weighs the new batch, as torch's does, {show(old)} if the old statistics"
            else:
                advice = "convert it yourself"
            yield (
                f"momentum of {kind} ({', '.join(names[:3])}{f' and {len(names) - 3} more' * (len(names) > 3)}), "
                f"which is not torch's and was kept: {advice}"
            )

    @property
    def script(self) -> list[float]:
        """The script's momenta; one that was set since counts as the script's."""
        each = zip(self.layers, self._script, self._set, strict=True)
        return [script if layer.momentum == now else float(layer.momentum) for layer, script, now in each]

    def at(self, rule: Rule, kappa: float) -> list[float]:
        """Return the momenta for ``kappa`` times the samples of a forward pass."""
        return [float(rule.convert("batchnorm", p, kappa, "BatchNorm momentum")) for p in self.script]

    def arrive(self, rule: Rule, kappa: float) -> None:
        """Set the momenta."""
        after = self.at(rule, kappa)
        self._script = self.script
        for layer, momentum in zip(self.layers, after, strict=True):
            layer.momentum = momentum
        self._set = after

    def changes(self, rule: Rule, kappa: float) -> list[Change]:
        """Return the rows to report, one for each momentum."""
        counts: dict[tuple[float, float], int] = {}
        for pair in zip(self.script, self.at(rule, kappa), strict=True):
            counts[pair] = counts.get(pair, 0) + 1
        return [
            Change("BatchNorm momentum", before, after, rule.units.get("batchnorm"), note=f"{n} layer{'s' * (n > 1)}")
            for (before, after), n in counts.items()
        ]
