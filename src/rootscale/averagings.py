"""Forms of averaging: how the weights of averages over steps, beta1 and beta2, are converted.

The default follows the paper down to floors, below which an average would be too short to damp single steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from rootscale.hparams import average
from rootscale.units import AVERAGE, AVERAGE_1, AVERAGE_2, AVERAGE_POWER, KEPT, MOMENT, Form, floored

#: The part of `stability_bound` that a measured run may use.
STABLE_SHARE = 0.75


@dataclass(frozen=True)
class Averaging:
    """A form in which averages over steps are converted.

    Args:
        text: what becomes of a weight ``beta``, in words.
        forms: of the weights of the past, and of the first moment, by their keys.
        why: added to the reason of each row that takes this form; such a row is derived, not a theorem.
    """

    text: str
    forms: Mapping[str, Form]
    why: str = ""


def _averaging(text: str, beta1: Form, beta2: Form, m: Form, why: str = "") -> Averaging:
    return Averaging(
        text, MappingProxyType({"beta1": beta1, "beta2": beta2, "m": m, "beta3": beta2, "mu": beta1, "mix": beta1}), why
    )


_AVERAGINGS: dict[str, Averaging] = {
    "floor": _averaging("1 - kappa (1 - beta) down to floors of .9", AVERAGE_1, AVERAGE_2, MOMENT),
    "paper": _averaging("1 - kappa (1 - beta) as in the paper, up to its largest kappa", AVERAGE, AVERAGE, KEPT),
    "power": _averaging(
        "beta^kappa", AVERAGE_POWER, AVERAGE_POWER, KEPT,
        "agrees with 1 - kappa (1 - beta) to first order and stays in (0, 1)",
    ),
}  # fmt: skip
#: The forms of averaging by name; the first is the default.
AVERAGINGS: Mapping[str, Averaging] = MappingProxyType(_AVERAGINGS)
_FLOORS = re.compile(r"floor:(?P<beta1>[\d.]+),(?P<beta2>[\d.]+)")


def add_averaging(name: str, text: str, beta1: Form, beta2: Form) -> None:
    """Add a form of averaging of a user's own, for the weights of both averages; ``m`` gets the noise level of beta1.

    >>> from rootscale.units import Form
    >>> add_averaging("halfway", "(1 + beta) / 2", *[Form("(1 + x) / 2", lambda x, kappa: (1 + x) / 2)] * 2)
    >>> get_averaging("halfway").forms["beta1"](0.5, 4)
    0.75
    >>> del _AVERAGINGS["halfway"]
    """
    if name in AVERAGINGS:
        raise ValueError(f"there is a form of averaging {name!r} already; choose another name")
    _AVERAGINGS[name] = _averaging(text, beta1, beta2, MOMENT)


def stability_bound(beta1: float) -> float:
    """Return ``2 (1 + beta1) / (1 - beta1)``, below which ``eta h`` has to stay; beta1 = 0 is RMSprop.

    >>> stability_bound(0), round(stability_bound(0.9), 6)
    (2.0, 38.0)
    """
    average("beta1", beta1)
    return 2 * (1 + beta1) / (1 - beta1)


@cache
def get_averaging(name: str) -> Averaging:
    """Return the form of averaging of that name; ``floor:0.7,0.9`` has other floors for beta1 and beta2.

    >>> get_averaging("floor:0.7,0.95").forms["beta1"](0.9, 16)
    0.7
    """
    if name in AVERAGINGS:
        return AVERAGINGS[name]
    match = _FLOORS.fullmatch(name)
    if not match:
        texts = ", ".join(f"{key!r} ({row.text})" for key, row in AVERAGINGS.items())
        raise ValueError(f"averaging must be {texts} or floors of your own, such as 'floor:0.7,0.9'; got {name!r}")
    two = average("the floor of beta2", float(match["beta2"]))
    one = average("the floor of beta1", float(match["beta1"]))
    return _averaging(f"1 - kappa (1 - beta) down to floors of {one:g} and {two:g}", floored(one), floored(two), MOMENT)
