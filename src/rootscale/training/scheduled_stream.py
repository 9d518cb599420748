"""The batches of a schedule from data without indices: samples that come one after the other, each of them once."""

from __future__ import annotations

import math
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import default_collate

from rootscale.changes import ScalingWarning
from rootscale.training.batch_schedule import BatchSchedule, whole
from rootscale.training.sampler import Layouts

_END = object()


class ScheduledStream(Layouts):
    """Cut a stream of samples into the batches of a schedule; both the sampler and the loader of a `ScheduledRun`.

    >>> stream = ScheduledStream(range(10), BatchSchedule([(0, 2), (4, 4)]))
    >>> list(stream), list(stream)
    ([tensor([0, 1]), tensor([2, 3]), tensor([4, 5, 6, 7])], [tensor([8, 9, 0, 1]), ...])

    - **No batch is short**, so that each counts as a whole step of every clock. What is left at the end of a pass is
      not dropped but begins the next pass; at the end of the last one it is not trained on.
    - **One pass** ends with the stream, or has the batches that begin in ``epoch`` samples; the stream then starts anew
      where it ends. Several ranks need ``epoch``: their streams may end at different places.
    - **Ranks** have a stream each, of other samples: that is for the stream to see to (``split_dataset_by_node``, say).
      Each takes its share of a batch.
    - **A checkpoint** has the position. `load_state_dict` reads that many samples again and leaves them out; a stream
      that was itself brought to its place needs ``skip=False``.

    Args:
        samples: the stream: an `IterableDataset`, or a ``DataLoader(dataset, batch_size=None)`` with workers, or any
            iterable that gives single samples and can be iterated anew.
        schedule: of the batch size over all ranks; a number is one size, from which `Grow` may go on.
        micro: the most samples in one backward on one rank; None for no limit.
        collate: makes a micro-batch of a list of samples.
        rank, world_size: by default those of `torch.distributed` where it is initialized, or 0 and 1.
        epoch: samples in one pass, over all ranks; None is all of the stream.
        skip: whether a resumed stream starts at its beginning.
    """

    def __init__(
        self,
        samples: Iterable[Any],
        schedule: BatchSchedule | int,
        *,
        micro: int | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int | None = None,
        skip: bool = True,
    ) -> None:
        super().__init__(schedule, micro, rank, world_size)
        if epoch is None and self.world_size > 1:
            raise ValueError(
                f"the streams of {self.world_size} ranks may end at different places, and a rank would wait for ever: "
                "give epoch=, the samples of one pass over all ranks"
            )
        self.samples, self.collate, self.skip = samples, collate, skip
        self.epoch: float = math.inf if epoch is None else whole("epoch", epoch)
        self._position, self._passes, self._skipped = 0, 0, 0
        self._items: Iterator[Any] | None = None
        self._ended = 0  # how often the stream has
        self._left: list[Any] = []  # taken from the stream and not handed out
        self._last: list[Any] = []  # handed out in the latest batch

    @property
    def position(self) -> int:
        """Return the number of samples handed out, over all ranks."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        back = self._position - position
        if back and back != len(self._last) * self.world_size:
            raise ValueError(
                f"a stream cannot go from sample {self._position} to {position}: make it anew and load a checkpoint"
            )
        if back:  # a batch that was handed out in part
            self._left, self._last, self._position = [*self._last, *self._left], [], position

    def pass_number(self, position: int) -> int:
        """Return the number of the pass that comes now, from 0."""
        return self._passes if self.epoch == math.inf else int(position // self.epoch)

    def pass_end(self, position: int) -> float:
        """Return the position at which the present pass ends; infinity where that is the end of the stream."""
        return math.inf if self.epoch == math.inf else (position // self.epoch + 1) * self.epoch

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        end = self.pass_end(self._position)
        while self._position < end:
            size = self.schedule.size(self._position)
            share, micro = size // self.world_size, int(self.layout_at(self._position).micro)
            if not self._fill(share):
                self._passes += 1
                return
            self._last, self._left = self._left[:share], self._left[share:]
            self._position += size
            for start in range(0, share, micro):
                yield self.collate(self._last[start : start + micro])

    def _fill(self, share: int) -> bool:
        """Take a rank's share of a batch from the stream; return whether there is enough before the pass ends."""
        fresh = False
        while len(self._left) < share:
            if self._items is None:
                fresh, self._items = True, iter(self.samples)
            item = next(self._items, _END)
            if item is _END and fresh:
                raise ValueError(
                    "the stream has no samples, or cannot be iterated anew: give a list or an IterableDataset"
                )
            if item is _END:
                self._items, self._ended = None, self._ended + 1
                if self.epoch == math.inf and self._ended > self._passes:
                    return False
                continue
            fresh = False
            if self._skipped:
                self._skipped -= 1
            else:
                self._left.append(item)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the position of what was handed out; `ScheduledRun.state_dict` has that of what was trained on."""
        return {"position": self._position, "passes": self._passes, "order": "stream"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume: a fresh stream reads the samples that were seen and leaves them out, unless ``skip=False``."""
        if state_dict["order"] != "stream":
            raise ValueError("the checkpoint is of a ScheduledSampler, whose samples have indices; this is a stream")
        self._position, self._passes = state_dict["position"], state_dict["passes"]
        self._items, self._left, self._last = None, [], []
        self._ended = 0 if self.skip else self._passes
        self._skipped, again = divmod(self._position, self.world_size) if self.skip else (0, 0)
        if again:
            python_warnings.warn(
                f"{self._position} samples cannot be shared equally by {self.world_size} ranks: {again} of them are "
                "seen again",
                ScalingWarning,
                stacklevel=2,
            )
