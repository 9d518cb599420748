"""The states of the SDEs: named tuples of tensors ``[P, d]``, a row for each path."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["AdamState", "RMSpropState", "SGDState", "SignumState", "Time"]

Time = float | Tensor


class SGDState(NamedTuple):
    """``theta``, as ``[P, d]``."""

    theta: Tensor


class RMSpropState(NamedTuple):
    """``theta`` and ``u = v / sigma^2``, each ``[P, d]``."""

    theta: Tensor
    u: Tensor


class AdamState(NamedTuple):
    """``theta``, ``m`` and ``u = v / sigma^2``, each ``[P, d]``."""

    theta: Tensor
    m: Tensor
    u: Tensor


class SignumState(NamedTuple):
    """``theta`` and the momentum ``m``, each ``[P, d]``."""

    theta: Tensor
    m: Tensor
