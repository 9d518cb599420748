"""The states of the SDEs: named tuples of tensors ``[P, d]``, a row for each path."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rootscale.theory.oracle import Oracle

__all__ = ["AdamState", "Kind", "RMSpropState", "SGDState", "SignumState", "Time", "need_later", "started"]

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


#: Up to so many coordinates of ``xi`` the noise is checked.
_FEW = 64
Kind = type[SGDState] | type[RMSpropState] | type[AdamState] | type[SignumState]


def started(x0: tuple[Tensor, ...], kind: Kind, oracle: Oracle) -> SGDState | RMSpropState | AdamState | SignumState:
    """Return an initial state as one of this kind, or raise where it does not suit the oracle.

    Tensors broadcast, so that a wrong width would go unnoticed: columns that an oracle does not have share one noise.

    Args:
        x0: as the user gave it; a plain tuple is read in the order of the kind.
        kind: of the states of the SDE.
        oracle: where the state is used; its variance must be that of its noise there.
    """
    fields, d = kind._fields, oracle.d
    if getattr(x0, "_fields", fields) != fields or len(x0) != len(fields) or not all(map(torch.is_tensor, x0)):
        parts = ", ".join(type(part).__name__ for part in x0)
        raise ValueError(
            f"x0 must be {kind.__name__}({', '.join(fields)}) of tensors, got {type(x0).__name__} of ({parts})"
        )
    for name, part in zip(fields, x0, strict=True):
        if part.ndim == 2 and part.shape[1] != d:
            raise ValueError(
                f"{name} of x0 must be [P, {d}] or [1, {d}], as the oracle has d={d}, got {list(part.shape)}"
            )
        if not bool(part.isfinite().all()):
            raise ValueError(f"{name} of x0 must be finite, got {int((~part.isfinite()).sum())} numbers that are not")
        if name == "u" and bool((part < 0).any()):
            raise ValueError(f"u of x0 must be >= 0, as a mean of squares is, got {float(part.min()):g}")
    if x0[0].ndim == 2 and x0[0].is_floating_point() and oracle.rank <= _FEW:
        _check_variance(oracle, x0[0][:1])
    return kind(*x0)


def _check_variance(oracle: Oracle, theta: Tensor) -> None:
    """Refuse an oracle whose ``variance`` is not the diagonal of what its ``noise`` gives, at ``theta`` ``[1, d]``."""
    units = torch.eye(oracle.rank, dtype=theta.dtype, device=theta.device)
    found = oracle.noise(theta.expand(oracle.rank, -1), units).square().sum(0)
    stated = oracle.variance(theta)[0]
    # a variance that is a mean square less a squared mean is exact to the roundings of those
    exact = 1e-6 * found.max() + 100 * torch.finfo(theta.dtype).eps * oracle.gradient(theta).square().max()
    if not torch.allclose(found, stated, rtol=1e-3, atol=float(exact)):
        worst = int((found - stated).abs().argmax())
        raise ValueError(
            f"variance(theta) of the oracle must be the diagonal of the covariance of noise(theta, xi) for standard "
            f"normal xi, without sigma; at x0 parameter {worst} has {stated[worst]:g}, its noise gives {found[worst]:g}"
        )


def need_later(kind: Kind, start: float) -> None:
    """Raise where the SDE of states of this kind cannot start at this time."""
    if kind is AdamState and not start > 0:
        raise ValueError(
            f"Adam's SDE needs start > 0 (its normalization is 0/0 at t = 0), got start={start}; give SaveAt a start"
        )
