"""Numbers as people write them."""

from __future__ import annotations

import math
from fractions import Fraction

__all__ = ["show"]


def show(value: int | float | Fraction | None) -> str:
    """Return a number as people write it: six significant digits, thousands separated.

    >>> show(25600000), show(Fraction(5120, 3)), show(9.9996e-5), show(math.inf)
    ('25,600,000', '1,706.67', '9.9996e-05', 'inf')
    """
    if value is None:
        return "-"
    if isinstance(value, Fraction | float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}"
    x = float(value)
    return f"{x:,.2f}" if 1000 <= abs(x) < 1e15 else f"{x:.6g}"
