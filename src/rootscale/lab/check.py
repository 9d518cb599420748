"""The check: will this run survive a change of batch size?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rootscale.compare import Comparison, Verdict
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory

__all__ = ["Arm", "Check"]


@dataclass(frozen=True)
class Arm:
    """One way of running the task, and how it compares with the base.

    Args:
        label: such as ``B = 16``, ``B = 16, linear`` or ``SVAG ell = 2``; unique within a check.
        kind: ``base``, ``batch size`` or ``svag``.
        plan: the plan of this run.
        changes: from the base's plan, as `rootscale.changes.Changes.to_dict` gives them; None for the base.
        trajectory: of its replicas; ``meta`` has ``samples`` (the samples seen at each time) and ``seeds``.
        comparison: with the base; None for the base itself.
        guards: warnings that the conversion gave.
        causes: why it is different, likeliest first.
    """

    label: str
    kind: str
    plan: Plan
    changes: Mapping[str, Any] | None
    trajectory: Trajectory
    comparison: Comparison | None = None
    guards: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """None for the base."""
        return None if self.comparison is None else self.comparison.verdict


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        task: its name.
        base: the run as it is.
        others: what it was compared with.
        switch_at: samples seen before the switch; 0 for runs from scratch.
        made: how: command, versions, hardware, seconds.
        warm: the trajectory up to the switch, where there is one.
    """

    task: str
    base: Arm
    others: tuple[Arm, ...]
    switch_at: int
    made: Mapping[str, Any]
    warm: Trajectory | None = None
