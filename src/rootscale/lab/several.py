"""Several optimizers of one run, such as Muon for the matrices and AdamW for the rest, handled as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rootscale.rules import Rule


class Several:
    """Optimizers that take their steps together; the first is the one that the plan of the task has.

    Args:
        optimizers: of parameters that do not overlap.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of all of them, in order."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Take a step of each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all of them."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from states."""
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)


def parts_of(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers that one stands for: itself, or each of `Several`."""
    return optimizer.optimizers if isinstance(optimizer, Several) else [optimizer]


def rules_of(optimizer: Any, rule: Rule) -> Sequence[Rule | str | None]:
    """Return the rule of each: the first has the one that is given, and the others have their own.

    Where nothing is converted (the rule ``none``), that goes for all.
    """
    beside = "none" if rule.key == "none" else None
    return [rule, *(beside for _ in parts_of(optimizer)[1:])]
