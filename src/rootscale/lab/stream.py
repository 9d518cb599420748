"""The order in which a run sees its samples: a pure function of its seed, so that nothing has to be saved to resume.

Runs of one seed at different batch sizes see the same samples in the same order, cut into batches of different sizes:
their gradients have the same noise, to first order, as two discretisations that are driven by one Brownian path. Means
over seeds are what they would be otherwise, and differences between them have a much smaller error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["Stream"]

BLOCK = 8192


def generator(*key: int) -> torch.Generator:
    """Random numbers that belong to these whole numbers; streams of different keys are independent."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state))


class Stream:
    """Sample numbers (and numbers for augmentation) of a run, by position.

    Args:
        n: samples in the data.
        seeds: one for each replica.
        replacement: draw each sample independently, as the theory wants; otherwise shuffle anew for every epoch.
        lane: streams of one seed that shall differ (SVAG's, which has more samples) have different lanes.
        device: where the numbers go; they are drawn on the CPU, and so the same everywhere.

    >>> Stream(5, [0], replacement=False).indices(0, 5).sort().values
    tensor([[0, 1, 2, 3, 4]])
    """

    def __init__(
        self,
        n: int,
        seeds: Sequence[int],
        replacement: bool = True,
        lane: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n, self.seeds, self.replacement, self.lane = n, seeds, replacement, lane
        self.device = device
        self.length = BLOCK if replacement else n
        self._blocks: dict[tuple[int, int], Tensor] = {}

    def indices(self, start: int, stop: int) -> Tensor:
        """The sample numbers at the positions from start to stop, ``[R, stop - start]``."""
        return self._get(0, start, stop, self._draw)

    def uniforms(self, start: int, stop: int, draws: int) -> Tensor:
        """So many numbers in [0, 1) for each position, ``[R, stop - start, draws]``."""

        def draw(source: torch.Generator) -> Tensor:
            return torch.rand(self.length, draws, generator=source)

        return self._get(1, start, stop, draw)

    def _draw(self, source: torch.Generator) -> Tensor:
        if self.replacement:
            return torch.randint(self.n, (self.length,), generator=source)
        return torch.randperm(self.n, generator=source)

    def _get(self, kind: int, start: int, stop: int, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        blocks = range(start // self.length, (stop - 1) // self.length + 1)
        parts = [self._block(kind, block, draw) for block in blocks]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        first = start - blocks[0] * self.length
        return whole[:, first : first + stop - start]

    def _block(self, kind: int, block: int, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        if (kind, block) not in self._blocks:
            for old in [key for key in self._blocks if key[0] == kind and key[1] < block - 1]:
                del self._blocks[old]
            rows = [draw(generator(seed, 2 * self.lane + kind, block)) for seed in self.seeds]
            self._blocks[kind, block] = torch.stack(rows).to(self.device)
        return self._blocks[kind, block]
