"""Random numbers by position: a pure function of a seed, so that nothing has to be saved to resume."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

#: Samples drawn with replacement are made in blocks of this many.
BLOCK = 8192


def generator(*key: int) -> torch.Generator:
    """Return the random numbers that belong to a key of whole numbers; those of different keys are independent."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state))


def samples(n: int, replacement: bool, source: torch.Generator) -> Tensor:
    """Return a block of sample numbers: each drawn independently, or all ``n`` in a random order."""
    if replacement:
        return torch.randint(n, (BLOCK,), generator=source)
    return torch.randperm(n, generator=source)


class Blocks:
    """A long sequence that is made block by block, where it is read.

    Args:
        length: of a block.
        draw: makes the block of a number.
        dim: along which blocks follow each other.
    """

    def __init__(self, length: int, draw: Callable[[int], Tensor], dim: int = 0) -> None:
        self.length, self.draw, self.dim = length, draw, dim
        self._held: dict[int, Tensor] = {}

    def between(self, start: int, stop: int) -> Tensor:
        """Return the part from position start to position stop."""
        numbers = range(start // self.length, (stop - 1) // self.length + 1)
        parts = [self._block(number) for number in numbers]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)
        return whole.narrow(self.dim, start - numbers[0] * self.length, stop - start)

    def _block(self, number: int) -> Tensor:
        if number not in self._held:
            self._held = {key: block for key, block in self._held.items() if abs(key - number) <= 1}
            self._held[number] = self.draw(number)
        return self._held[number]
