"""Counts of steps, samples and tokens, exact, as people write them: ``0.5M``, ``2**19``, ``10B tokens``, ``512/3``.

The letters K, M, B and T are powers of 1000. A number may name its unit: steps, samples (sequences) or tokens. Tokens
become samples where the length of a sequence is known, and are refused where it is not.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from rootscale.format import show
from rootscale.messages import say

#: A number of steps; a fraction after a change of batch size that does not divide it.
Count = int | Fraction

#: Larger numbers of samples or tokens in a file are mistakes.
LARGEST = 10**15
_LARGEST = 2**53  # beyond it a float no longer tells one step from the next
_SMALLEST = Fraction(1, 10**12)
_TEXT = re.compile(r"\d{1,4000}(/\d{1,4000}|\.\d{1,40})?")  # no exponents: "1e999999999" would take forever
_FACTOR = re.compile(r"(?P<base>\d+(?:\.\d+)?)(?P<unit>[kmbt]?)(?:\^(?P<power>\d{1,2}))?", re.IGNORECASE)
_LETTERS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_EXPONENT = re.compile(r"\d{1,20}(?:\.\d{1,20})?e\+?\d{1,2}", re.IGNORECASE)
_UNITS = {
    **dict.fromkeys(("steps", "step"), "steps"),
    **dict.fromkeys(("samples", "sample", "sequences", "sequence"), "samples"),
    **dict.fromkeys(("tokens", "token"), "tokens"),
}
_AMOUNT = re.compile(rf"(?P<number>.*?)\s*\b(?P<unit>{'|'.join(_UNITS)})", re.IGNORECASE | re.DOTALL)


def count(name: str, value: Any, zero: bool = False, written: Any = None) -> Count:
    """Return ``value`` as an exact number of steps or samples, above 0 (or 0 too); ``"512/3"`` is a number.

    Args:
        name: what it is, for the message.
        value: the number.
        zero: whether 0 is one.
        written: what stood there, for the message, where the value was read from that.

    Raises:
        ValueError: it is no such number; the message says what was expected and what came.
    """
    try:
        if isinstance(value, bool) or (isinstance(value, str) and not _TEXT.fullmatch(value)):
            raise TypeError
        exact = Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        exact = Fraction(-1)
    if not (_SMALLEST <= exact <= _LARGEST or (exact == 0 and zero)):
        expected = say("count or 0" if zero else "count")
        if exact > _LARGEST:
            expected = say("count, largest", largest=show(_LARGEST))
        elif 0 < exact < _SMALLEST:
            expected = say("count, smallest")
        raise ValueError(say("value", name=name, expected=expected, value=repr(value if written is None else written)))
    return exact.numerator if exact.denominator == 1 else exact


def read_size(text: str) -> int | None:
    """Return the whole number of samples or tokens that a text says, such as ``0.5M`` or ``2**19``; None if it is none.

    >>> [read_size(text) for text in ("0.5M", "2**19", "512 * 1024", "4_096", "2**x")]
    [500000, 524288, 524288, 4096, None]
    """
    size = _number(text)
    return int(size) if size is not None and size.denominator == 1 and 0 < size <= LARGEST else None


def _number(text: str) -> Fraction | None:
    """Return the number that a text says: a product of powers with letters, or one with an exponent such as 1e9."""
    if _EXPONENT.fullmatch(text.strip()):
        return Fraction(text.strip())
    product = Fraction(1)
    for factor in text.replace("_", "").replace(" ", "").replace("**", "^").split("*"):
        m = _FACTOR.fullmatch(factor)
        if m is None:
            return None
        product *= (Fraction(m["base"]) * _LETTERS[m["unit"].lower()]) ** int(m["power"] or 1)
    return product


class Amount(NamedTuple):
    """A number as it was written.

    Args:
        number: what `count` reads, or what was written where that is no number.
        unit: ``steps``, ``samples`` or ``tokens``; empty where none was named.
        plain: whether it is digits alone, without a letter or a power.
    """

    number: Any
    unit: str
    plain: bool


def read_amount(value: Any) -> Amount:
    """Return a number with its unit; what is no text is a plain number.

    >>> read_amount("10B tokens"), read_amount("256")
    (Amount(number=Fraction(10000000000, 1), unit='tokens', plain=False), Amount(number='256', unit='', plain=True))
    """
    if not isinstance(value, str):
        return Amount(value, "", plain=True)
    m = _AMOUNT.fullmatch(value.strip())
    text, unit = (m["number"], _UNITS[m["unit"].lower()]) if m else (value.strip(), "")
    if _TEXT.fullmatch(text):
        return Amount(text, unit, plain=True)
    number = _number(text)
    return Amount(value if number is None else number, unit, plain=False)


def samples_of(name: str, value: Any, sequence_length: int | None = None) -> Count:
    """Return a size in samples: of a batch, of the data, a noise scale.

    With a sequence length, a text with a letter or a power counts tokens, as such sizes of batches do (``0.5M``), and a
    plain number that is less than one sequence counts samples. A larger plain text may be either, and is refused; a
    number that is no text counts samples.

    >>> samples_of("batch_size", "2**19", 2048), samples_of("batch_size", "2**19"), samples_of("batch_size", "8", 2048)
    (256, 524288, 8)
    """
    amount = read_amount(value)
    if amount.unit == "steps":
        raise ValueError(say("no steps", name=name, value=repr(value)))
    number = count(name, amount.number, written=value)
    if amount.unit == "tokens":
        return _sequences(name, number, value, sequence_length)
    if amount.unit or sequence_length is None or not isinstance(value, str) or "/" in value:
        return number
    if not amount.plain:
        return _sequences(name, number, value, sequence_length)
    if number >= sequence_length:
        raise ValueError(say("samples or tokens", name=name, value=value, length=show(sequence_length)))
    return number


def steps_of(name: str, value: Any, batch_size: Count, sequence_length: int | None = None, zero: bool = False) -> Count:
    """Return a length in steps of a batch size in samples: ``2000``, ``5M samples``, ``10B tokens``.

    >>> steps_of("steps", "10B tokens", 256, 2048)
    Fraction(9765625, 512)
    """
    amount = read_amount(value)
    number = count(name, amount.number, zero, written=value)
    if amount.unit == "tokens":
        number = _sequences(name, number, value, sequence_length)
    if amount.unit in ("samples", "tokens"):
        return count(name, Fraction(number) / Fraction(batch_size), zero, written=value)
    return number


def _sequences(name: str, tokens: Count, value: Any, length: int | None) -> Count:
    if length is None:
        raise ValueError(say("sequence length", name=name, value=repr(value)))
    return count(name, Fraction(tokens) / length, zero=True, written=value)


def show_samples(samples: Count | float, sequence_length: int | None) -> str:
    """Return a number of samples as people write it, and as tokens where the length of a sequence is known.

    >>> show_samples(256, 2048), show_samples(256, None)
    ('256 = 524,288 tokens', '256')
    """
    if sequence_length is None:
        return show(samples)
    return say("and tokens", samples=show(samples), tokens=show(samples * sequence_length))
