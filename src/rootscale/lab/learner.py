"""What trains the replicas of a run: the protocol, and which learner a setup asks for.

| learner | replicas | how |
|---|---|---|
| `EagerLearner` over `Single` | one | the model as it is, one operation at a time |
| `EagerLearner` over `Stack` | several | stacked parameters, all replicas in one program |
| `GraphLearner` | one | the whole step as a CUDA graph, which records an `EagerLearner` |
| `SideBySide` | several | a `GraphLearner` for each, on streams of their own |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rootscale.lab.learner_eager import EagerLearner
from rootscale.lab.learner_graph import GraphLearner, SideBySide
from rootscale.lab.objective import Batches, Objective, PerSample
from rootscale.lab.replicas import make_replicas

if TYPE_CHECKING:
    from rootscale.changes import Changes
    from rootscale.lab.settings import Setup
    from rootscale.lab.task import Task
    from rootscale.rules import Rule


class Learner(Protocol):
    """R replicas under training, as `rootscale.lab.Trial` uses them. Values of replicas are ``[R]``."""

    @property
    def replicas(self) -> int:
        """Return how many there are, R."""
        ...

    @property
    def passes(self) -> int:
        """Return how many batches a step takes: two for SVAG."""
        ...

    @property
    def trained(self) -> Sequence[Tensor]:
        """Return the parameters that are trained, ``[R, ...]`` each where there are several replicas."""
        ...

    def rescale(self, kappa: float, rule: Rule, ell: float = 1.0, forward_kappa: float | None = None) -> Changes:
        """Convert to ``kappa`` times the batch size, and then to SVAG's steps; warnings are in what it returns.

        ``forward_kappa`` is the same for the samples of one forward pass, by which BatchNorm is converted.
        """
        ...

    def zero_state(self) -> None:
        """Forget the optimizer's state."""
        ...

    def step(self, batches: Batches, eta: float, clip: float | None = None) -> None:
        """Take one step on a batch for each pass."""
        ...

    def step_loss(self) -> Tensor | None:
        """Return the mean loss of the steps since this was last called; None where there were none."""
        ...

    def means(
        self,
        x: Tensor,
        y: Tensor,
        functions: Mapping[str, PerSample],
        train: bool = False,
        statistics: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return the means over samples of functions of outputs and targets, in eval mode or in train mode.

        BatchNorm's statistics in eval mode are its running ones, or those of the inputs ``statistics``.
        """
        ...

    def gradient(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss of these samples, in train mode."""
        ...

    def roots(self) -> list[Tensor] | None:
        """Return ``sqrt(v_hat) + eps`` for each trained parameter: empty before a step, None for optimizers without."""
        ...

    def replica(self, r: int) -> nn.Module:
        """Return a copy of the model of one replica (of its average, where the plan has an EMA), in eval mode."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a step changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which is copied."""
        ...


def make_learner(task: Task, seeds: Sequence[int], setup: Setup) -> Learner:
    """Return the learner of freshly initialized replicas, one for each seed."""
    device = torch.device(setup.device)
    if setup.fast and device.type == "cuda" and seeds:
        learners = [GraphLearner(task, seed, replace(setup, amp=setup.amp is not False)) for seed in seeds]
        return learners[0] if len(learners) == 1 else SideBySide(learners)
    replicas = make_replicas(task, seeds, device)
    return EagerLearner(Objective(task, replicas, device, bool(setup.amp)), setup.micro)
