"""SVAG in any training loop: the SDE of a run, simulated by discrete steps with more noise and less learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from typing import Any

import torch

from rootscale.rules import svag_weights
from rootscale.training.norms import norm_layers
from rootscale.training.optimizers import Rules
from rootscale.training.run import Run


class SVAG:
    """Run the paper's SVAG algorithm (Def. 6.2) around an optimizer; as ``ell`` grows its runs approach the SDE.

    A step uses the gradient ``r1(ell) g1 + r2(ell) g2`` of two fresh batches, whose noise is ``ell`` times that of one,
    and the hyperparameters of the square root rule at ``kappa = ell^-2``: ``eta / ell``, ``1 - (1 - beta) / ell^2``,
    ``eps ell``. ``k`` steps of the run it simulates are ``k ell^2`` steps of SVAG.

    The two gradients are two scaled backwards into the same ``.grad``, so no memory is added:

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    >>> svag = SVAG(optimizer, ell=2, model=model)
    >>> for step in range(svag.steps(10)):
    ...     optimizer.zero_grad()
    ...     for r in svag.passes():
    ...         x = torch.randn(8, 2)  # a fresh batch for each pass
    ...         (r * model(x).square().mean()).backward()
    ...     optimizer.step()
    >>> svag.steps(10), svag.discrete_steps
    (40, Fraction(10, 1))

    - **ell = 1** is the run itself, bit for bit: ``r1 = 0``, so there is one pass and one batch a step.
    - **Accumulation**: several backwards in a pass, each of ``r * loss / n``. **GradScaler**: scale ``r * loss``.
      **DDP**: give the wrapped model; the first pass does not communicate.
    - **BatchNorm**: the batch statistics are those of each pass; the running ones are updated in the second pass only,
      once a step, with a momentum converted like everything else. **Dropout** is drawn afresh in each pass: it is part
      of the gradient's noise.
    - **Checkpoints**: save `state_dict` beside the optimizer's and the scheduler's, which are in the units of the run
      that is simulated, as those of every `Run` are.

    Args:
        optimizer: as for `Run`.
        ell: 1 or more, any real number.
        scheduler, model, ema, rule: as for `Run`; the model also for BatchNorm's running statistics.

    Attributes:
        weights: ``r1, r2``.
        run: at ``ell^-2`` times the batch size.
        done: SVAG steps started so far.
    """

    def __init__(
        self,
        optimizer: Any,
        ell: float,
        *,
        scheduler: Any = None,
        model: torch.nn.Module | None = None,
        ema: Any = None,
        rule: Rules = None,
    ) -> None:
        self.weights = svag_weights(ell)
        self.ell = ell
        self.model = model
        self.done = 0
        size = 1 / Fraction(ell) ** 2
        self.run = Run(
            optimizer,
            tuned_at=1,
            batch_size=size,
            scheduler=scheduler,
            model=model,
            ema=ema,
            rule=rule,
            interval="step",
        )

    @property
    def discrete_steps(self) -> Fraction:
        """Return how many steps of the simulated run the SVAG steps so far amount to."""
        return self.done / Fraction(self.ell) ** 2

    def steps(self, discrete: int) -> int:
        """Return how many SVAG steps cover the time of that many steps of the simulated run."""
        return round(discrete * self.ell**2)

    def passes(self) -> Iterator[float]:
        """Yield the passes of one step: the factor of the loss in each of them."""
        self.done += 1
        r1, r2 = self.weights
        if r1:
            with getattr(self.model, "no_sync", nullcontext)(), self._held_statistics():
                yield r1
        yield r2

    @contextmanager
    def _held_statistics(self) -> Iterator[None]:
        """Freeze BatchNorm's running statistics, by a momentum of 0, and its count of batches."""
        layers: list[Any] = [] if self.model is None else list(norm_layers(self.model).values())
        before = [
            (layer, layer.momentum, None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone())
            for layer in layers
        ]
        for layer in layers:
            layer.momentum = 0.0
        try:
            yield
        finally:
            for layer, momentum, count in before:
                layer.momentum = momentum
                if count is not None:
                    layer.num_batches_tracked.copy_(count)

    def state_dict(self) -> dict[str, Any]:
        """Return ``ell`` and the steps so far; everything else is in the states of the optimizer and the scheduler."""
        return {"ell": self.ell, "done": self.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume; the checkpoint must be of the same ``ell``."""
        if state_dict["ell"] != self.ell:
            raise ValueError(f"the checkpoint is of SVAG with ell={state_dict['ell']}, this one has ell={self.ell}")
        self.done = state_dict["done"]
