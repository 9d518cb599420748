"""How far apart two mean curves may lie and still be the same: a share of a range, or a number in the user's terms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rootscale.format import percent, show

_POINTS = ("point", "points")


@dataclass(frozen=True)
class Absolute:
    """A tolerance in the units of a test function: ``Absolute(0.02)`` is a loss of 0.02, or 2 points of an accuracy.

    Args:
        value: the largest difference that is still the same.
        of: a word that the names of the test functions must have, such as ``loss``: others have no verdict, and one
            that decides is refused. Empty is any.
    """

    value: float
    of: str = ""

    def __str__(self) -> str:
        return show(self.value) + (f" {self.of}" if self.of else "")


Tolerance = float | Absolute


def share_of_range(tolerance: Tolerance, name: str, unit: float) -> float:
    """Return a tolerance as a share of the range of a test function; NaN where it says nothing about that function."""
    if not isinstance(tolerance, Absolute):
        return tolerance
    return tolerance.value / unit if not tolerance.of or tolerance.of in re.split(r"[\W_]+", name) else math.nan


def tolerance_text(tolerance: Tolerance) -> str:
    """Return a tolerance in words.

    >>> tolerance_text(0.05), tolerance_text(Absolute(0.02, "loss"))
    ("5 % of the base curve's range", '0.02 (loss)')
    """
    if not isinstance(tolerance, Absolute):
        return f"{percent(tolerance)} of the base curve's range"
    return show(tolerance.value) + (f" ({tolerance.of})" if tolerance.of else " in the units of the test function")


def parse_tolerance(text: str) -> Tolerance:
    """Return a tolerance from text: a share of the range, or a number and what it is of.

    >>> parse_tolerance("0.05"), parse_tolerance("5%"), parse_tolerance("0.02 loss")
    (0.05, 0.05, Absolute(value=0.02, of='loss'))
    >>> parse_tolerance("0.5 points"), parse_tolerance("0.02 absolute")
    (Absolute(value=0.005, of='accuracy'), Absolute(value=0.02, of=''))
    """
    number, *words = text.replace("%", " %").split() or [""]
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or len(words) > 1:
        raise ValueError(
            "a tolerance is a share of the base curve's range (0.05, or 5%), or a number and what it is of "
            f"('0.02 loss', '0.5 points' of an accuracy, '0.02 absolute'); got {text!r}"
        )
    if not words or words[0] == "%":
        return value / 100 if words else value
    if words[0] in _POINTS:
        return Absolute(value / 100, "accuracy")
    return Absolute(value, "" if words[0] == "absolute" else words[0])


def tolerance_to_json(tolerance: Tolerance) -> Any:
    """Return a tolerance in JSON's types."""
    return {"absolute": tolerance.value, "of": tolerance.of} if isinstance(tolerance, Absolute) else tolerance


def tolerance_from_json(data: Any) -> Tolerance:
    """Read what `tolerance_to_json` gave."""
    if isinstance(data, Mapping):
        return Absolute(float(data["absolute"]), str(data.get("of", "")))
    return float(data)
