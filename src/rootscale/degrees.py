"""Degree counting: the powers of kappa that keep an optimizer's dynamics, from how its update is put together.

An optimizer moves by ``theta -= eta * U``, where ``U`` is a product of powers of a gradient and of averages of it. When
the batch size is multiplied by ``kappa``, three things happen: the mean of the gradient stays, its noise scales as
``kappa^(-1/2)``, and there are ``1 / kappa`` times the steps. Each piece of ``U`` therefore scales as a power of
``kappa``, and the learning rate has to make up for the rest, so that the drift per sample, ``eta U / B``, stays:

    eta ~ kappa^(1 - r),    r = the power of kappa in what U makes of a mean gradient.

This is a calculation of scales where noise dominates. It is no theorem; check it with `rootscale.theory.toys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

__all__ = [
    "Piece",
    "count_degrees",
]


@dataclass(frozen=True)
class Piece:
    """Something that an optimizer keeps: an average or a sum over steps of a power of the gradient.

    Args:
        degree: the power of the gradient in it: 1 for momentum, 2 for Adam's ``v``.
        by: whether its ``mean`` matters in the update, as of momentum, or the size of its ``noise``, as of ``v`` and of
            a momentum that the update divides by.
        kind: whether it is an ``average``, with weights ``1 - beta``, or a ``sum``.
        window: the power of kappa that ``1 - beta`` is multiplied by: 1 keeps the window in samples, 0 in steps.
    """

    degree: int = 1
    by: Literal["mean", "noise"] = "mean"
    kind: Literal["average", "sum"] = "average"
    window: Fraction | int = 1

    @property
    def exponent(self) -> Fraction:
        """Return the power of kappa that it scales with.

        An average of noise of odd degree falls with the square root of the number of its steps; squares do not
        average out.

        >>> Piece(2, "noise").exponent, Piece(2, "noise", "sum").exponent
        (Fraction(-1, 1), Fraction(-2, 1))
        """
        window = Fraction(self.window)
        size = Fraction(0) if self.by == "mean" else Fraction(-self.degree, 2) + (window / 2 if self.degree % 2 else 0)
        return size - (window if self.kind == "sum" else 0)


@dataclass(frozen=True)
class Exponents:
    """Powers of kappa that keep the dynamics.

    Args:
        eta: of the learning rate.
        state: of each piece.
        windows: of ``1 - beta`` of each piece.
        decoupled_decay: of weight decay that is multiplied by the learning rate.
        eps: of what is added to the root or norm that the update divides by, by piece.
    """

    eta: Fraction
    state: Mapping[str, Fraction]
    windows: Mapping[str, Fraction]
    decoupled_decay: Fraction
    eps: Mapping[str, Fraction]


def count_degrees(pieces: Mapping[str, Piece], update: Mapping[str, Fraction | float]) -> Exponents:
    """Return the powers of kappa of an optimizer whose update is a product of powers of its pieces.

    Args:
        pieces: what it keeps, by name. The name ``g`` is the present gradient and need not be listed.
        update: the power of each piece in the update; a momentum that is normalised by its own size is there twice, by
            its mean and by its noise.

    Adam moves by ``m v^(-1/2)``, and SGD with momentum in samples by a sum of gradients:

    >>> adam = count_degrees({"m": Piece(), "v": Piece(2, "noise")}, {"m": 1, "v": Fraction(-1, 2)})
    >>> adam.eta, adam.state["v"], adam.eps["v"], adam.decoupled_decay
    (Fraction(1, 2), Fraction(-1, 1), Fraction(-1, 2), Fraction(1, 2))
    >>> count_degrees({"b": Piece(kind="sum")}, {"b": 1}).eta
    Fraction(2, 1)
    """
    known = {"g": Piece(), **pieces}
    powers = {name: Fraction(power).limit_denominator(64) for name, power in update.items()}
    for name in powers:
        if name not in known:
            raise ValueError(f"the update has {name!r}, which is not among the pieces {', '.join(known)}")
    response = sum((power * known[name].exponent for name, power in powers.items()), Fraction(0))
    eta = 1 - response
    return Exponents(
        eta,
        {name: piece.exponent for name, piece in pieces.items()},
        {name: Fraction(piece.window) for name, piece in pieces.items()},
        1 - eta,
        {name: -power * known[name].exponent for name, power in powers.items() if power < 0},
    )
