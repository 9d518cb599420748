"""Standard normals by counter: each depends on (seed, path, step, coordinate) and on nothing else.

No state is advanced, so the numbers do not depend on how paths are split into chunks, on the number of threads, on the
device, or on whether the code runs eagerly or compiled (to rounding of ``log``, ``sin`` and ``cos``). All of it is
plain 32-bit integer and float arithmetic of torch, which ``torch.compile`` fuses into the step that uses the numbers.

A word of 32 random bits is a keyed hash of the path,

    x = mix(path) ^ k0;   x = (x ^ x >> 16) * M1 + k1;   x = (x ^ x >> 15) * M2;   x = x ^ x >> 15,

with 64 bits of key ``k0, k1`` that are themselves a hash (`keys`) of (seed, step, coordinate): made in bulk, they
cost next to nothing where there are many paths. Two words give two normals (Box-Muller),

    z = sqrt(-2 log U1) * (cos, sin)(pi U2),     U1 in (0, 1],   U2 in [-1, 1),

which belong to two consecutive steps, ``2 j`` and ``2 j + 1``: no shape has to be even, and a solver that takes steps
in pairs, or one step together with its two halves, uses both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

#: Odd multipliers of a 32-bit hash of low bias (C. Wellons, hash-prospector: 16 21f0aaad 15 735a2d97 15).
M1, M2 = 0x21F0AAAD, 0x735A2D97
#: splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers.
GOLDEN, S1, S2 = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return ``x ^ (x >> bits)``; the shift of signed integers copies the sign, hence the mask."""
    width = 8 * x.element_size()
    # In place from the second operation on: a third of the time when run eagerly, all the same when compiled.
    return (x >> bits).bitwise_and_((1 << (width - bits)) - 1).bitwise_xor_(x)


def _mix64(x: Tensor) -> Tensor:
    x = _shifted(x, 30) * S1
    x = _shifted(x, 27) * S2
    return _shifted(x, 31)


def _signed64(value: int) -> int:
    return (value & 0xFFFFFFFFFFFFFFFF) - ((value & 0x8000000000000000) << 1)


def checked_seed(seed: int) -> int:
    """Return ``seed`` if it is one."""
    if not (isinstance(seed, Integral) and 0 <= seed < 1 << 64):
        raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, got {seed!r}")
    return int(seed)


def keys(seed: int, first: int, count: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the keys of ``count`` pairs of steps from pair ``first`` on (steps ``2 first, 2 first + 1, ...``).

    Args:
        seed: any integer from 0 to ``2^64 - 1``; neighbouring seeds are as unrelated as others.
        first: the index of the first pair, at least 0.
        count: how many pairs.
        width: how many normals a path takes per step.

    Returns:
        ``[count, 4, width]`` of int32, to be handed to `pair` one row at a time.
    """
    seed = checked_seed(seed)
    if first < 0:
        raise ValueError(f"steps are counted from 0, got the pair {first}")
    # Always made on the CPU: a few integers for each step, the same for every device.
    pairs = torch.arange(first, first + count, dtype=torch.int64)
    words = 1 + torch.arange(2)[:, None] + 2 * torch.arange(width)  # [2, width]: a coordinate has two words
    root = _mix64(torch.tensor(_signed64(seed), dtype=torch.int64) + GOLDEN)
    row = _mix64(root + (pairs + 1) * GOLDEN)
    key = _mix64(_mix64(row)[:, None, None] + words * GOLDEN)
    return torch.stack((key, key >> 32), 2).to(torch.int32).view(count, 4, width).to(device)


def paths(first: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the hashed indices of the paths ``first, ..., first + count - 1``, as int32 ``[count]``; all differ."""
    if not 0 <= first <= first + count <= 1 << 32:
        raise ValueError(f"path indices must be in [0, 2^32), got {first} to {first + count - 1}")
    index = torch.arange(first, first + count, dtype=torch.int64, device=device).to(torch.int32)
    return _word(index, 0, 0)


def _word(path: Tensor, k0: Tensor | int, k1: Tensor | int) -> Tensor:
    x = _shifted(path ^ k0, 16).mul_(M1).add_(k1)
    x = _shifted(x, 15).mul_(M2)
    return _shifted(x, 15)


def pair(path: Tensor, key: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return the standard normals of two consecutive steps, for all paths and coordinates.

    float32 and float64 use the same bits and agree to the rounding of the uniform numbers in float32.

    Args:
        path: from `paths`, shaped to broadcast with ``key[0]``: ``[P, 1]``.
        key: one row of `keys`, shaped likewise: ``[4, 1, width]``. Where the last two dimensions are swapped
            (``[1, P]`` and ``[4, width, 1]``) the numbers are the same, laid out path by path.
    """
    # |U1| of a signed word has 31 bits and is never 0, so |z| < 6.7; its sign is not used.
    u1 = _word(path, key[0], key[1]).to(dtype).add_(0.5).mul_(2.0**-31)
    u2 = _word(path, key[2], key[3]).to(dtype)
    if torch.compiler.is_compiling() and dtype == torch.float32:
        radius = torch.sqrt(-2 * _log(u1.abs()))
        cos, sin = _cos_sin(u2 * 2.0**-31)
        return radius * cos, radius * sin
    radius = u1.square_().log_().neg_().sqrt_()
    angle = u2.mul_(math.pi * 2.0**-31)
    return torch.cos(angle).mul_(radius), torch.sin(angle).mul_(radius)


#: sin(pi y / 2) / y and cos(pi y / 2) / (1 - y^2) as polynomials in y^2 on [0, 1], minimax to 7e-9 and 9e-10.
SIN = (1.51678532e-04, -4.67415750e-03, 7.96899269e-02, -6.45963761e-01, 1.57079632e00)
COS = (2.36015043e-05, -8.93537118e-04, 1.99686072e-02, -2.33700506e-01, 9.99999999e-01)
#: (log(1 + t) - t + t^2 / 2) / t^3 on [sqrt(1/2) - 1, sqrt(2) - 1] (Cephes' logf).
LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
       2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
#: The bits of sqrt(1/2) in float32.
ROOT_HALF = 0x3F3504F3


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    result = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        result = result * x + c
    return result


def _cos_sin(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``cos(pi x), sin(pi x)`` for ``x`` in [-1, 1], from those of the half angle: no reduction of the range.

    Compiled into a step, this and `_log` take half the time of torch's functions; both are exact to a few roundings.
    """
    square = x * x
    sin, cos = x * _polynomial(square, SIN), (1 - square) * _polynomial(square, COS)
    return 1 - 2 * sin * sin, 2 * sin * cos


def _log(x: Tensor) -> Tensor:
    """Return ``log(x)`` of float32 in (0, 1]: exponent and mantissa apart, the mantissa in [sqrt(1/2), sqrt(2))."""
    bits = x.view(torch.int32) - ROOT_HALF
    exponent = (bits >> 23).to(torch.float32)
    t = ((bits & 0x7FFFFF) + ROOT_HALF).view(torch.float32) - 1
    square = t * t
    return exponent * math.log(2) + (t * square * _polynomial(t, LOG) - 0.5 * square + t)


def normal(
    seed: int,
    step: int,
    shape: Sequence[int],
    *,
    first_path: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return standard normals ``[P, width]`` of one step; path ``i`` of the result is the path ``first_path + i``.

    >>> z = normal(seed=1, step=7, shape=(100, 3))
    >>> torch.equal(normal(seed=1, step=7, shape=(40, 3), first_path=60), z[60:])
    True
    """
    count, width = shape
    if step < 0:
        raise ValueError(f"steps are counted from 0, got step={step}")
    key = keys(seed, step // 2, 1, width, device)[0]
    return pair(paths(first_path, count, device)[:, None], key[:, None, :], dtype)[step % 2]
