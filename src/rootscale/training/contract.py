"""What a change of batch size assumes of the training loop, looked at in the steps after it.

Three things are outside of a `Run`: that the loss is a mean over the batch (or ``loss="sum"`` is given), that the
loader has followed, and that averages of the parameters are updated as often as before. All three leave a trace. After
a change by ``kappa`` the second moment ``v`` of the optimizer is ``1/kappa`` of what it was, and gradients should agree
with it: of a summed loss, ``g^2`` is ``kappa^2`` times as large, and with the old batch size ``kappa`` times. The look
takes a few hundred numbers of a few tensors in `STEPS` steps, and nothing after that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rootscale.changes import ScalingWarning
from rootscale.evidence import from_scratch
from rootscale.format import few_digits, show
from rootscale.training.metric import bias_correction
from rootscale.training.shards import local

if TYPE_CHECKING:
    from rootscale.training.averages import ParameterAverage
    from rootscale.training.projected import ProjectedOptimizer

#: Steps after a change that are looked at.
STEPS = 24
_VALUES, _TENSORS = 256, 16
#: Smaller changes of batch size cannot be told from the noise of so few steps.
_LEAST = 2.0


def sample(tensor: Tensor, size: int = _VALUES) -> Tensor:
    """Return some hundreds of a tensor's values, evenly spaced in memory, as a view: no copy of the tensor is made."""
    held = local(tensor).detach()
    if held.dim() > 1 and not held.is_contiguous():
        held = held.permute(sorted(range(held.dim()), key=held.stride, reverse=True))
    return held.reshape(-1)[:: max(1, held.numel() // size)]


class Contract:
    """Look at the steps after a change of batch size, and warn once where the loop has not followed.

    Args:
        optimizer: whose steps are looked at.
        averages: that follow it.
        summed: whether the loss is declared to be a sum over the batch.
    """

    def __init__(self, optimizer: ProjectedOptimizer, averages: Sequence[ParameterAverage], summed: bool) -> None:
        self._optimizer, self._averages, self._summed = optimizer, averages, summed
        self._start = self._counts()
        self._often: list[float | None] = []
        self._ratios: list[Tensor] = []
        self._moments: dict[Tensor, Tensor] | None = None  # v_hat at the change, as v follows any gradient
        self._change, self._size = 1.0, ""
        self._began = 0
        self._said: set[str] = set()
        optimizer.before_step = self._first

    def _counts(self) -> tuple[int, list[float | None]]:
        return self._optimizer.steps, [average.updates for average in self._averages]

    def _frequencies(self) -> list[float | None]:
        """Return the updates of each average in one step of the optimizer, since the last look."""
        (before, was), (after, now) = self._start, self._counts()
        steps = after - before
        return [
            None if a is None or b is None or steps < 4 or b <= a else (b - a) / steps
            for a, b in zip(was, now, strict=True)
        ]

    def begin(self, change: float, size: str) -> None:
        """Look at the steps from now on: the batch size has changed by this factor, to this size, in mid-run."""
        earlier = self._often or [None] * len(self._averages)
        self._often = [found or old for found, old in zip(self._frequencies(), earlier, strict=True)]
        self._start = self._counts()
        self._ratios, self._moments, self._change, self._size = [], None, change, size
        self._began = self._optimizer.steps
        watched = max(change, 1 / change) >= _LEAST and bool(self._optimizer.optimizer.state)
        began = bool(self._optimizer.optimizer.state)
        self._optimizer.before_step = self._look if watched else None if began else self._first

    def _first(self) -> None:
        """Say what was measured of runs that start at a larger batch; a state may be loaded until the first step."""
        self._optimizer.before_step = None
        if self._optimizer.optimizer.state or self._optimizer.kappa <= 1:
            return
        for family, rule in self._optimizer.families:
            for message in from_scratch(family, rule, self._optimizer.kappa):
                warnings.warn(f"{self._optimizer.prefix}{message}", ScalingWarning, stacklevel=2)

    @torch.no_grad()
    def _look(self) -> None:
        if self._optimizer.steps - self._began < STEPS:
            ratio = self._ratio()
            if ratio is not None:
                self._ratios.append(ratio)
            return
        self._optimizer.before_step = None
        for message in (self._gradients(), *self._updates()):
            kind = message.partition(": ")[2][:20]  # what comes before it has numbers
            if message and kind not in self._said:
                self._said.add(kind)
                warnings.warn(message, ScalingWarning, stacklevel=2)

    def _ratio(self) -> Tensor | None:
        """Return the mean of g^2 over that of v_hat at the change, of a few numbers."""
        if self._moments is None:
            self._moments = self._second_moments()
        squares, moments = [], []
        scale = getattr(self._optimizer.optimizer, "grad_scale", None)
        for parameter, moment in self._moments.items():
            grad = parameter.grad
            if grad is not None and grad.layout is torch.strided:
                values = sample(grad).float()
                squares.append((values if scale is None else values / scale.to(values.device)).square().mean())
                moments.append(moment)
        return torch.stack(squares).mean() / torch.stack(moments).mean() if squares else None

    def _second_moments(self) -> dict[Tensor, Tensor]:
        """Return the mean of v_hat of some parameters, in the units of now as the state is."""
        found = {}
        for _, group, projection in self._optimizer.groups():
            name = projection.family.torch.state_name("v")
            if name is None or name in projection.family.torch.codes:
                continue
            for parameter in group["params"][:: max(1, len(group["params"]) // _TENSORS)]:
                state = self._optimizer.optimizer.state.get(parameter, {})
                v = state.get(name)
                if not isinstance(v, Tensor) or v.shape != parameter.shape or not v.numel():
                    continue
                if not v.is_floating_point():
                    continue
                corrected = 1.0
                if projection.family.bias_corrected and "step" in state:
                    beta2 = projection.values(group, self._optimizer.kappa)["beta2"]
                    corrected = bias_correction(state["step"], beta2) ** 2
                found[parameter] = sample(v).float().mean() / corrected
        return found

    def _gradients(self) -> str:
        if len(self._ratios) < STEPS // 2:
            return ""
        values = [value for value in map(float, self._ratios) if math.isfinite(value)]
        if len(values) < STEPS // 2:
            return ""
        ratio = sum(values) / len(values)  # of the mean, not the mean of the logs: the gradients of few samples vary
        if not ratio:
            return ""
        error = math.sqrt(sum((x - ratio) ** 2 for x in values) / (len(values) - 1) / len(values)) / ratio
        mean, log = math.log(ratio), math.log(self._change)
        power = mean / log * (-1 if self._summed else 1)  # g^2 is kappa^power of what v says, of a sum the other way
        if abs(mean) - 2 * error < 0.6 * abs(log) or power < 0:
            return ""
        seen = (
            f"after the batch size has changed by {show(self._change)}, squared gradients are "
            f"{few_digits(ratio)} times what the optimizer's second moment says ({len(values)} steps)"
        )
        if power > 1.5 and not self._summed:
            return (
                f"{seen}: is the loss a sum over the batch? Divide it by the batch size, or make the run with "
                'Run(..., loss="sum")'
            )
        if power > 1.5:
            return f'{seen}: is the loss a mean over the batch? Then leave out loss="sum"'
        return (
            f"{seen}: does the data loader still have the old batch size? Give it {self._size} samples a step, and a "
            "clip run.clip(norm). If it has that, the gradient is not noise for the most part at this batch size, and "
            "the rule does not hold there: take a smaller one"
        )

    def _updates(self) -> list[str]:
        messages = []
        for average, before, now in zip(self._averages, self._often, self._frequencies(), strict=False):
            if before is None or now is None or abs(math.log(now / before)) < 0.5:
                continue
            every, was = show(round(1 / now, 2)), show(round(1 / before, 2))
            messages.append(
                f"{average.name} is updated every {every} steps and was every {was} before the batch size changed by "
                f"{show(self._change)}: its decay is set for the same number of steps between two updates. "
                f"Update it every {was} steps again; run.steps(n) is for what must come after equal samples"
            )
        return messages
