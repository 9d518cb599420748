"""The order in which a run sees its samples: a pure function of its seed, so that nothing has to be saved to resume.

Runs of one seed at different batch sizes see the same samples in the same order, cut into batches of different sizes.
Their gradients have the same noise, to first order, like two discretizations that are driven by one Brownian path. The
means over seeds are those of independent runs, and their differences have a much smaller error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rootscale.training.positions import BLOCK, Blocks, generator, samples


class Stream:
    """The sample numbers of a run, and the uniforms of its augmentation, by position.

    Args:
        n: samples in the data.
        seeds: one for each replica.
        replacement: whether each sample is drawn independently, as the theory wants, or all are shuffled every epoch.
        lane: streams of one seed that must differ have different lanes, such as SVAG's, which has more samples.
        device: where the numbers go; they are drawn on the CPU, so that they are the same everywhere.

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
        self._indices = self._blocks(0, lambda source: samples(n, replacement, source))
        self._uniforms: Blocks | None = None

    def indices(self, start: int, stop: int) -> Tensor:
        """Return the sample numbers at the positions from start to stop, ``[R, stop - start]``."""
        return self._indices.between(start, stop)

    def uniforms(self, start: int, stop: int, draws: int) -> Tensor:
        """Return ``draws`` numbers in [0, 1) for each position, ``[R, stop - start, draws]``; as many in every call."""
        if self._uniforms is None:
            self._uniforms = self._blocks(1, lambda source: torch.rand(self._length, draws, generator=source))
        return self._uniforms.between(start, stop)

    @property
    def _length(self) -> int:
        return BLOCK if self.replacement else self.n

    def _blocks(self, kind: int, draw: Callable[[torch.Generator], Tensor]) -> Blocks:
        def block(number: int) -> Tensor:
            rows = [draw(generator(seed, 2 * self.lane + kind, number)) for seed in self.seeds]
            return torch.stack(rows).to(self.device)

        return Blocks(self._length, block, dim=1)
