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

import torch
from torch import Tensor

__all__ = ["bridge", "keys", "normal", "pair", "paths"]

#: Odd multipliers of a 32-bit hash of low bias (C. Wellons, hash-prospector: 16 21f0aaad 15 735a2d97 15).
M1, M2 = 0x21F0AAAD, 0x735A2D97
#: splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers.
GOLDEN, S1, S2 = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """``x ^ (x >> bits)``; the shift of signed integers copies the sign, hence the mask."""
    width = 8 * x.element_size()
    # In place from the second operation on: a third of the time when run eagerly, all the same when compiled.
    return (x >> bits).bitwise_and_((1 << (width - bits)) - 1).bitwise_xor_(x)


def _mix64(x: Tensor) -> Tensor:
    x = _shifted(x, 30) * S1
    x = _shifted(x, 27) * S2
    return _shifted(x, 31)


def _signed64(value: int) -> int:
    return (value & 0xFFFFFFFFFFFFFFFF) - ((value & 0x8000000000000000) << 1)


def keys(seed: int, first: int, count: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """The keys of ``count`` pairs of steps from pair ``first`` on (steps ``2 first, 2 first + 1, ...``).

    Args:
        seed: any integer from 0 to ``2^64 - 1``; neighbouring seeds are as unrelated as others.
        first: the index of the first pair, at least 0.
        count: how many pairs.
        width: how many normals a path takes per step.

    Returns:
        ``[count, 4, width]`` of int32, to be handed to `pair` one row at a time.
    """
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, got {seed!r}")
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
    """The hashed indices of the paths ``first, ..., first + count - 1``, as int32 ``[count]``; all differ."""
    if not 0 <= first <= first + count <= 1 << 32:
        raise ValueError(f"path indices must be in [0, 2^32), got {first} to {first + count - 1}")
    index = torch.arange(first, first + count, dtype=torch.int64, device=device).to(torch.int32)
    return _word(index, 0, 0)


def _word(path: Tensor, k0: Tensor | int, k1: Tensor | int) -> Tensor:
    x = _shifted(path ^ k0, 16).mul_(M1).add_(k1)
    x = _shifted(x, 15).mul_(M2)
    return _shifted(x, 15)


def pair(path: Tensor, key: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The standard normals of two consecutive steps, for all paths and coordinates.

    float32 and float64 use the same bits and agree to the rounding of the uniform numbers in float32.

    Args:
        path: from `paths`, shaped to broadcast with ``key[0]``: ``[P, 1]``.
        key: one row of `keys`, shaped likewise: ``[4, 1, width]``. Where the last two dimensions are swapped
            (``[1, P]`` and ``[4, width, 1]``) the numbers are the same, laid out path by path.
    """
    # |U1| of a signed word has 31 bits and is never 0, so |z| < 6.7; its sign is not used.
    u1 = _word(path, key[0], key[1]).to(dtype).add_(0.5).mul_(2.0**-31)
    angle = _word(path, key[2], key[3]).to(dtype).mul_(math.pi * 2.0**-31)
    radius = u1.square_().log_().neg_().sqrt_()
    return torch.cos(angle).mul_(radius), torch.sin(angle).mul_(radius)


def normal(
    seed: int,
    step: int,
    shape: Sequence[int],
    *,
    first_path: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Standard normals ``[P, width]`` of one step; path ``i`` of the result is the path ``first_path + i``.

    >>> z = normal(seed=1, step=7, shape=(100, 3))
    >>> torch.equal(normal(seed=1, step=7, shape=(40, 3), first_path=60), z[60:])
    True
    """
    count, width = shape
    if step < 0:
        raise ValueError(f"steps are counted from 0, got step={step}")
    key = keys(seed, step // 2, 1, width, device)[0]
    return pair(paths(first_path, count, device)[:, None], key[:, None, :], dtype)[step % 2]


def bridge(dw: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of a Brownian increment: ``dW1, dW2 = (dW + dW') / 2, (dW - dW') / 2``.

    For ``dw`` and ``other`` independent and of variance ``h``, the halves are independent, of variance ``h / 2``, and
    sum to ``dw``: one path at two step sizes.
    """
    return (dw + other) / 2, (dw - other) / 2
