"""How many seeds a check takes: so many, or more and more until all verdicts are decided.

Adding seeds until a verdict is decided is valid: verdicts hold however often one looks (`rootscale.looks.LOOKS`). A
variant that is decided gets no more seeds; the base and the others do. A gap that lies on the tolerance is not decided
by any number: none are added where, after the second round, more than the most would be needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rootscale.compare.result import Result
from rootscale.lab.stopping import Deadline, UnfinishedError
from rootscale.looks import TYPICAL

#: Seeds of the first look, and of the last.
FIRST, MOST = 4, 64

Made = TypeVar("Made")
Asked = TypeVar("Asked")
#: Runs and compares some arms with these seeds, until a deadline.
Compare = Callable[[Sequence[Asked], Sequence[int], Deadline], tuple[Made, list[Result]]]


@dataclass(frozen=True)
class Rounds:
    """The seeds of a check.

    Args:
        first: those of the first round.
        most: how many there may be in the last.
        budget: seconds after which no round is begun, and one that is under way is stopped.
    """

    first: tuple[int, ...]
    most: int
    budget: float | None = None

    @classmethod
    def of(cls, seeds: int | Sequence[int] | Literal["auto"], budget: float | None = None) -> Rounds:
        """Return the rounds that people ask for: a number of seeds, the seeds themselves, or ``"auto"``."""
        if seeds == "auto":
            if budget is not None and not 0 < budget < math.inf:
                raise ValueError(f"budget must be a number of seconds above 0, got {budget}")
            return cls(tuple(range(FIRST)), MOST, budget)
        if isinstance(seeds, str):
            raise ValueError(f"seeds must be a number, a list of seeds, or 'auto', got {seeds!r}")
        if budget is not None:
            raise ValueError("a budget is for seeds that are added until the verdict decides: give seeds='auto'")
        numbers = tuple(range(seeds) if isinstance(seeds, int) else seeds)
        return cls(numbers, len(numbers))

    def run(
        self, arms: Sequence[Asked], compare: Compare[Asked, Made], note: Callable[[str], object]
    ) -> tuple[Made, list[Result]]:
        """Return what the last round made, and the result of each arm when it was decided, or at the end."""
        deadline, seeds = Deadline.after(self.budget), self.first
        results: dict[int, Result] = {}
        left, begun = list(range(len(arms))), time.monotonic()
        swept, found = compare(arms, seeds, deadline)
        while True:
            results |= zip(left, found, strict=True)
            spent, left = time.monotonic() - begun, [i for i in results if results[i].verdict == "undecided"]
            more = self._next(len(seeds), [results[i] for i in left])
            if more is None:
                if left and len(seeds) < self.most:
                    several = f"{len(left)} of {len(arms)} undecided with {len(seeds)} seeds"
                    note(f"{several}, and not even {self.most} would decide: no more are taken")
                break
            needed = spent / len(seeds) * (more - len(seeds))
            if needed > deadline.left:
                note(f"{more - len(seeds)} more seeds take about {needed:.0f} s, more than is left of the budget")
                break
            note(f"{len(left)} of {len(arms)} undecided with {len(seeds)} seeds: taking {more}")
            seeds = tuple(range(more))
            try:
                swept, found = compare([arms[i] for i in left], seeds, deadline)
            except UnfinishedError:
                if not deadline.passed:  # it was not the budget that ended it
                    raise
                note(f"the budget was spent before {more} seeds were done; the same command goes on with them")
                break
        return swept, [results[i] for i in range(len(arms))]

    def _next(self, seeds: int, undecided: Sequence[Result]) -> int | None:
        """Return how many seeds to take next: what would decide the first arm, if that is 2 more to twice as many.

        It is one of the numbers at which looks may spend more (`rootscale.looks.TYPICAL`).

        None where all are decided, or, from the second round on, where none would be by the most there may be.
        """
        if not undecided or seeds >= self.most:
            return None
        needs = [arm.comparison.seeds_needed for arm in undecided if arm.comparison is not None]
        known = [need for need in needs if need is not None and need <= self.most]
        if not known and seeds > len(self.first):
            return None
        enough = max(seeds + 2, min([2 * seeds, *known]))
        return min(self.most, next((number for number in TYPICAL if number >= enough), enough))
