"""Numbers and tables as people write them: plain text, with ``-`` and ordinary spaces; HTML; frames of pandas."""

from __future__ import annotations

import importlib
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape
from typing import Any


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


def few_digits(value: float, digits: int = 3) -> str:
    """Return an estimate with the few significant digits it deserves.

    >>> few_digits(0.012345), few_digits(12345.6), few_digits(-2.5e-7), few_digits(float("nan"))
    ('0.0123', '12,300', '-2.5e-07', '–')
    """
    return show(float(f"{value:.{digits}g}")) if math.isfinite(value) else "–"


def plus_minus(value: float, error: float | None, places: int | None = None, sign: str = "") -> str:
    """Return a value and its error, to so many places; without them, to the two digits that the error leaves.

    Args:
        value: the estimate.
        error: of the value, of whatever kind the text around it says; None or NaN where it is not known.
        places: after the point.
        sign: ``+`` to write the sign of positive values too.

    >>> plus_minus(0.56, 0.0025), plus_minus(12345.6, 240.0), plus_minus(2.0, None), plus_minus(2.0, 0.0)
    ('0.5600 ± 0.0025', '12,350 ± 240', '2', '2 ± 0')
    >>> plus_minus(0.0094, 0.0004, 3, "+"), plus_minus(0.0094, None, 3, "+")
    ('+0.009 ± 0.000', '+0.009')
    """
    known = error is not None and math.isfinite(error) and math.isfinite(value)
    if places is None and (not known or not error):
        plus = sign if math.isfinite(value) and value > 0 else ""
        return plus + few_digits(value) + (" ± 0" if known else "")
    assert error is not None or places is not None
    if places is None:
        assert error is not None
        places = 1 - math.floor(math.log10(error))
        if places > 8:
            return f"{few_digits(value, 8)} ± {few_digits(error, 2)}"
    if not math.isfinite(value):
        return "–"
    numbers = [f"{round(value, places) + 0.0:{sign},.{max(places, 0)}f}"]  # + 0.0: no negative zero
    if known:
        assert error is not None
        numbers.append(f"{round(error, places):,.{max(places, 0)}f}")
    return " ± ".join(numbers)


def percent(share: float | None, error: float | None = None, sign: str = "") -> str:
    """Return a share in percent to a tenth (a hundredth where it is less than that), with its error if there is one.

    >>> percent(0.05), percent(-0.0163), percent(0.2071, sign="+"), percent(0.00001), percent(0.00038)
    ('5 %', '-1.6 %', '+20.7 %', '0 %', '0.04 %')
    >>> percent(0.0123, 0.004), percent(0.5, float("nan")), percent(1e5, 3.0), percent(-11.0), percent(None)
    ('1.2 ± 0.4 %', '50 %', '> 1000 %', '< -1000 %', '–')
    """
    if share is None or not math.isfinite(share):
        return "–"
    if abs(share) > 10:
        return "> 1000 %" if share > 0 else "< -1000 %"
    if error is not None and math.isfinite(error):
        return f"{plus_minus(100 * share, 100 * error, 1, sign)} %"
    value = 100 * share
    places = 2 if abs(value) < 0.05 else 1 if abs(value) < 100 else 0
    rounded = round(value, places) + 0.0  # + 0.0: no negative zero
    return f"{sign if rounded > 0 else ''}{rounded:.6g} %"


def listed(parts: Sequence[str]) -> str:
    """Return the parts as a sentence has them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def ranges(numbers: Iterable[Any]) -> str:
    """Return numbers such as seeds with their runs drawn together.

    >>> ranges([0, 1, 2, 3, 7, 9, 10]), ranges([]), ranges(["a", 1])
    ('0–3, 7, 9, 10', 'not recorded', 'a, 1')
    """
    values = list(numbers)
    if not all(isinstance(value, int) for value in values):
        return ", ".join(map(str, values))
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(texts) or "not recorded"


def typeset(text: str) -> str:
    r"""Return the text of these functions for HTML: minus signs, and spaces that do not break in a number.

    >>> typeset("-1.6 %"), typeset("> 1000 %"), typeset("1.2 ± 0.4 %"), typeset("B = 4, a-b")
    ('−1.6\xa0%', '>\xa01000\xa0%', '1.2\xa0±\xa00.4\xa0%', 'B\xa0=\xa04, a-b')
    """
    text = re.sub(r"(?<![\w)])-(?=\d)", "\N{MINUS SIGN}", text)
    return re.sub(r" (?=[%±=])|(?<=[±=<>]) ", "\N{NO-BREAK SPACE}", text)


def format_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), width: int = 120
) -> str:
    """Return rows under their columns, two spaces apart; the last column is folded to the width.

    Args:
        columns: their titles.
        rows: of cells, as many as there are columns.
        right: the titles of columns that are aligned to the right.
        width: of the whole table.

    >>> print(format_table(["name", "value"], [["lr", "0.001"], ["steps", "25"]], right=["value"]))
    name   value
    ------------
    lr     0.001
    steps     25
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    start = sum(widths[:-1]) + 2 * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(20, width - start))

    def lines(cells: Sequence[str]) -> list[str]:
        folded = textwrap.wrap(cells[-1], widths[-1]) or [""]
        aligned = [
            cell.rjust(size) if title in right else cell.ljust(size)
            for cell, size, title in zip((*cells[:-1], folded[0]), widths, columns, strict=True)
        ]
        return ["  ".join(aligned).rstrip(), *(f"{' ' * start}{rest}" for rest in folded[1:])]

    body = [line for row in rows for line in lines(row)]
    return "\n".join([*lines(columns), "-" * (start + widths[-1]), *body])


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """Return rows under their columns as HTML, for notebooks; everything is escaped.

    >>> html_table("a < b", ["name"], [["lr"]])
    '<table><caption>a &lt; b</caption><thead><tr><th>name</th></tr></thead><tbody><tr><td>lr</td></tr></tbody></table>'
    """

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head, body = line(columns, "th"), "".join(line(row, "td") for row in rows)
    table = f"<table><caption>{escape(title)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"
    return table + "".join(f"<p>{escape(note)}</p>" for note in notes)


#: The libraries that have frames, in the order of preference.
_FRAMES = ("pandas", "polars")


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Return columns as a DataFrame of pandas, or of polars where only that is installed."""
    for name in _FRAMES:
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return library.DataFrame(dict(columns))
    raise ImportError("a frame needs pandas or polars: pip install pandas")
