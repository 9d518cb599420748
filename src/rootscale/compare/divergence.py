"""When a replica counts as diverged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

#: A train-mode loss is far above the start where it exceeds this many times the first one.
FAR = 100.0
#: It stays there where it is far above the start at this many successive points of the grid.
STAYS = 2


class Divergence:
    """Decides which replicas have diverged, from what is measured at the points of a run's grid.

    A replica has diverged at a point of the grid where

    - a parameter or the train-mode loss is not finite, or
    - the train-mode loss is far above the start, and stays there: it exceeds its bound at that point and at the next
      one (`STAYS` successive points), or at the last point of the run.

    The bound is ``max_loss``, or else `FAR` times the first loss: ``first + (FAR - 1) |first|``, so that a loss below
    zero has one too. The train-mode loss is measured on fixed training samples with the parameters that are trained,
    where BatchNorm takes the statistics of those samples. The eval-mode loss does not count: in the first steps of a
    net with BatchNorm the running statistics lag behind the parameters, and it may be thousands of times as high as the
    loss that is trained.

    Args:
        replicas: how many there are.
        max_loss: the bound; None takes it from the first loss of each replica.

    Attributes:
        places: for each replica, the point of the grid (in samples) from which on it had diverged, or None.
    """

    def __init__(self, replicas: int, max_loss: float | None = None) -> None:
        self.max_loss = max_loss
        self.places: list[int | None] = [None] * replicas
        self._bounds: list[float] = []
        self._above: list[list[int]] = [[] for _ in range(replicas)]

    @property
    def everywhere(self) -> bool:
        """Return whether all replicas have diverged."""
        return None not in self.places

    def watch(self, place: int, losses: Sequence[float], norms: Sequence[float], last: bool) -> None:
        """Take note of the train-mode losses and the norms of the parameters at a point of the grid.

        Args:
            place: the point, in samples.
            losses: of each replica.
            norms: of each replica.
            last: whether it is the last point of the run.
        """
        if not self._bounds:
            self._bounds = [self.max_loss or loss + (FAR - 1) * abs(loss) for loss in losses]
        for r, (loss, norm, bound) in enumerate(zip(losses, norms, self._bounds, strict=True)):
            self._above[r] = [*self._above[r], place] if loss > bound else []
            if self.places[r] is not None:
                continue
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self.places[r] = place
            elif len(self._above[r]) >= STAYS or (last and self._above[r]):
                self.places[r] = self._above[r][0]

    def after(self, warm: Mapping[str, Any], start: int) -> None:
        """Continue from the state of a run that ended at ``start``: what diverged in it had diverged at the start."""
        self.load_state_dict(warm)
        self.places = [None if place is None else start for place in self.places]
        self._above = [[] for _ in self.places]

    def state_dict(self) -> dict[str, Any]:
        """Return what has been seen so far."""
        return {"diverged": self.places, "bounds": self._bounds, "above": self._above}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.places, self._bounds = list(state["diverged"]), list(state["bounds"])
        self._above = [list(places) for places in state.get("above", [[]] * len(self.places))]
