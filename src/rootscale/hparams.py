"""The hyperparameters of optimizers as frozen records, and the constants of their SDEs where there are SDEs.

Names follow the paper: ``eta`` is torch's ``lr``, ``beta1, beta2`` are torch's ``betas`` and RMSprop's ``beta`` is
torch's ``alpha``. Each field that a scaling rule may convert names its row of `rootscale.units`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar

from rootscale.messages import say


def quantity(unit: str, label: str | None = None, **kwargs: Any) -> Any:
    """Make a dataclass field that is measured in a unit of the table; ``label`` is its name for users."""
    return field(metadata={"unit": unit, "label": label}, **kwargs)


def number(name: str, value: Any, expected: str, accept: Callable[[float], bool]) -> float:
    """Return ``value`` as a float that ``accept`` accepts, or raise a `ValueError` that says what was expected."""
    try:
        # bool is an int to Python, and a string of digits a number to float(): neither is meant.
        ok = not isinstance(value, bool | str | bytes) and math.isfinite(float(value)) and accept(float(value))
    except (TypeError, ValueError, OverflowError):
        ok = False
    if not ok:
        raise ValueError(say("value", name=name, expected=expected, value=repr(value)))
    return float(value)


@dataclass(frozen=True)
class Domain:
    """An interval of numbers; called with a name and a value, it returns the value as a float, or raises.

    Args:
        expected: the interval in words.
        low: its lower end.
        high: its upper end.
        ends: which ends belong to it, as brackets: ``[)`` has the lower one only.
    """

    expected: str
    low: float = 0.0
    high: float = math.inf
    ends: str = "[)"

    def __contains__(self, x: float) -> bool:
        above = x >= self.low if self.ends[0] == "[" else x > self.low
        return above and (x <= self.high if self.ends[1] == "]" else x < self.high)

    def __call__(self, name: str, value: Any) -> float:
        return number(name, value, self.expected, self.__contains__)


positive = Domain("a finite number > 0", ends="()")
nonnegative = Domain("a finite number >= 0")
#: The weight of the past in an average.
average = Domain("in [0, 1)", high=1)
share = Domain("in [0, 1]", high=1, ends="[]")
part = Domain("in (0, 1]", high=1, ends="(]")

#: What values each unit admits.
DOMAINS: dict[str, Domain] = {
    "eta": positive,
    "min_eta": nonnegative,
    "beta1": average,
    "beta2": average,
    "eps": nonnegative,
    "eps_root": nonnegative,
    "l2": nonnegative,
    "decoupled_decay": nonnegative,
    "momentum": average,
    "mu": average,
    "mix": average,
    "beta3": average,
    "interpolation": share,
    "eps_m": nonnegative,
    "eps_sum": nonnegative,
    "trust_decay": nonnegative,
    "step_decay": nonnegative,
    "momentum_decay": nonnegative,
    "lr_decay": nonnegative,
    "sum": nonnegative,
    "frequency": positive,
    "ema": average,
    "batchnorm": share,
    "clip": positive,
}


def validate(record: Any) -> None:
    """Check every field that has a unit against its domain and make it a float; None stays where it is allowed."""
    for f in fields(record):
        check = DOMAINS.get(f.metadata.get("unit", ""))
        value = getattr(record, f.name)
        if check is not None and not (value is None and f.default is None):
            object.__setattr__(record, f.name, check(f.name, value))


@dataclass(frozen=True)
class SDEConstants:
    """Holds what the SDE of a run depends on; two runs with equal constants follow the same SDE.

    Args:
        sigma0: ``sigma * eta`` (``sigma * sqrt(eta)`` for SGD), with ``sigma = 1 / sqrt(B)``: in units of the
            unknown noise of a single sample, which no hyperparameter changes.
        c1: ``(1 - beta1) / eta^2``; None where nothing averages the gradient over time.
        c2: ``(1 - beta2) / eta^2``; None for SGD and for signs.
        eps0: ``eps * eta``; None for SGD and for signs.
        eps_root0: ``eps_root * eta^2``, for an eps inside the root; None for SGD and for signs.
        decay: decoupled weight decay per unit of time, ``lambda / eta``.
        step: the continuous time that one step takes, ``eta^2`` (``eta`` for SGD).
    """

    sigma0: float
    c1: float | None
    c2: float | None
    eps0: float | None
    eps_root0: float | None
    decay: float
    step: float


@dataclass(frozen=True)
class Optimizer:
    """Holds the hyperparameters of an optimizer; a subclass for each family adds its own."""

    eta: float = quantity("eta", "lr")
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        validate(self)
        for f in fields(self):  # steps that were divided
            if isinstance(getattr(self, f.name), Fraction):
                object.__setattr__(self, f.name, float(getattr(self, f.name)))

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size.

        Raises:
            ValueError: no SDE is known for it.
        """
        raise ValueError(
            f"no SDE is known for {self.name}, so it has no constants; its rule is a calculation of scales"
        )


@dataclass(frozen=True)
class _Adaptive(Optimizer):
    def _constants(
        self, batch_size: float, *, beta1: float, beta2: float, eps: float, eps_root: float, decay: float
    ) -> SDEConstants:
        eta = self.eta
        return SDEConstants(
            sigma0=eta / math.sqrt(batch_size),
            c1=(1 - beta1) / eta**2 if beta1 else None,
            c2=(1 - beta2) / eta**2,
            eps0=eps * eta,
            eps_root0=eps_root * eta**2,
            decay=decay / eta,
            step=eta**2,
        )


@dataclass(frozen=True)
class _Moments(_Adaptive):
    """Holds what Adam and AdamW share: everything but the weight decay."""

    beta1: float = quantity("beta1", default=0.9)
    beta2: float = quantity("beta2", default=0.999)
    eps: float = quantity("eps", default=1e-8)
    eps_root: float = quantity("eps_root", default=0.0)

    def _decoupled(self) -> float:
        return 0.0

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size."""
        return self._constants(
            batch_size, beta1=self.beta1, beta2=self.beta2, eps=self.eps, eps_root=self.eps_root,
            decay=self._decoupled(),
        )  # fmt: skip


@dataclass(frozen=True)
class Adam(_Moments):
    """Adam: ``theta -= eta * m_hat / (sqrt(v_hat + eps_root) + eps)``; ``weight_decay`` is an L2 term in the gradient.

    >>> Adam(eta=1e-3, beta2=0.98).constants(batch_size=256).c2
    20000.00000000002
    >>> Adam(eta=1e-3, beta2=1.5)
    Traceback (most recent call last):
    ...
    ValueError: beta2 must be in [0, 1), got 1.5
    """

    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "adam"


@dataclass(frozen=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay: each step also does ``theta -= eta * weight_decay * theta``."""

    weight_decay: float = quantity("decoupled_decay", default=0.01)
    name: ClassVar[str] = "adamw"

    def _decoupled(self) -> float:
        return self.weight_decay


@dataclass(frozen=True)
class RMSprop(_Adaptive):
    """RMSprop: ``theta -= eta * g / (sqrt(v + eps_root) + eps)``; ``weight_decay`` is an L2 term in the gradient."""

    beta: float = quantity("beta2", "beta (alpha)", default=0.99)
    eps: float = quantity("eps", default=1e-8)
    eps_root: float = quantity("eps_root", default=0.0)
    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "rmsprop"

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size."""
        return self._constants(batch_size, beta1=0.0, beta2=self.beta, eps=self.eps, eps_root=self.eps_root, decay=0.0)


@dataclass(frozen=True)
class SGD(Optimizer):
    """SGD, with momentum or without; ``weight_decay`` is an L2 term in the gradient."""

    momentum: float = quantity("momentum", default=0.0)
    weight_decay: float = quantity("l2", default=0.0)
    name: ClassVar[str] = "sgd"

    def constants(self, batch_size: float = 1) -> SDEConstants:
        """Return the constants of the SDE that this optimizer follows at this batch size."""
        return SDEConstants(math.sqrt(self.eta / batch_size), None, None, None, None, decay=0.0, step=self.eta)
