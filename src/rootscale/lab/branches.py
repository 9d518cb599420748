"""How a batch size is tried in the search for the largest: its runs beside those of the base, from one start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from rootscale.compare.result import Result
from rootscale.format import show
from rootscale.lab.early import at_the_end, watch_of
from rootscale.lab.execute import Execute
from rootscale.lab.observe import Observer
from rootscale.lab.rounds import Rounds
from rootscale.lab.stopping import ClearlyDifferentError, Deadline
from rootscale.lab.store import Store
from rootscale.lab.study import Arm, Study
from rootscale.lab.variant import Variant
from rootscale.verdict import Judge

#: The batch sizes that are tried, over that of the base.
KAPPAS = (2, 4, 8, 16, 32, 64)
#: Compares an arm with the base at some seeds, until a deadline: the result of the base, and that of the arm.
Look = Callable[[Sequence[Arm], Sequence[int], Deadline], tuple[Result, list[Result]]]


@dataclass(frozen=True)
class Search:
    """How the largest batch is looked for.

    Args:
        kappas: the batch sizes that are tried, over that of the base.
        rule: by which they are converted, as text; None is the optimizer's own.
        rounds: the seeds of an arm, first and most.
        judge: what makes runs the same.
    """

    kappas: Sequence[float | Fraction] = KAPPAS
    rule: str | None = None
    rounds: Rounds = field(default_factory=lambda: Rounds.of("auto"))
    judge: Judge = field(default_factory=Judge)

    @property
    def variants(self) -> list[Variant]:
        """The batch sizes, the smallest first."""
        return [Variant(kappa, self.rule) for kappa in sorted(Fraction(kappa) for kappa in self.kappas)]

    def __post_init__(self) -> None:
        if not self.kappas or min(self.kappas) <= 1:
            given = ", ".join(show(kappa) for kappa in self.kappas) or "none"
            raise ValueError(f"the batch sizes must be larger than that of the base; got {given} times as large")


def look_of(study: Study, execute: Execute | None, place: Store, observe: Observer) -> Look:
    """Return how an arm of a study is looked at: the base is run first, and the arm until it is clearly different."""
    ended = replace(study, judge=at_the_end(study.judge))

    def look(arms: Sequence[Arm], seeds: Sequence[int], within: Deadline) -> tuple[Result, list[Result]]:
        (arm,) = arms
        base = study.look([], seeds, place, execute, observe, within).base
        watch = watch_of(study, arm, seeds, base.trajectory, place, observe)
        result = watch.stopped()  # by an earlier start of this search
        if result is None:
            try:
                following = replace(observe, measured=watch.measured, logged=watch.logged)
                table = ended.look([arm], seeds, place, execute, following, within)
                return table.base, list(table.others)
            except ClearlyDifferentError:
                result = watch.stopped()
                assert result is not None
        return base, [result]

    return look
