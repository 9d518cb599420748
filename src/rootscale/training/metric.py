"""The metric in which an adaptive optimizer moves.

Adam and RMSprop move along ``g / D`` with ``D = sqrt(v_hat) + eps``, coordinate by coordinate. Lengths of gradients and
of their noise that matter for such a run are therefore those of ``g / D``: ``sum_i g_i^2 / D_i^2`` and
``sum_i Sigma_ii / D_i^2``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rootscale.optimizers import FAMILIES
from rootscale.training.adapters import family_of
from rootscale.training.projected import projected_of


class Metric:
    """Give ``D = sqrt(v_hat) + eps`` of an optimizer, from the second moment it has at the time.

    ``v_hat = v / (1 - beta2^k)`` for Adam (the maximum so far, with AMSGrad), ``v`` for RMSprop.

    Args:
        optimizer: ``torch.optim.Adam``, ``AdamW`` or ``RMSprop``, or one of `rootscale.training.optim`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        family = family_of(optimizer)
        key = family.torch.state_name("v")
        if key is None or not family.elementwise:
            known = ", ".join(row.name for row in FAMILIES.values() if row.elementwise)
            raise TypeError(
                f"expected Adam, AdamW or RMSprop, which divide by sqrt(v), got {type(optimizer).__name__} "
                f"({family.name}); known are {known}"
            )
        if key in family.torch.codes or "step" not in family.torch.parameter_state:
            raise TypeError(
                f"the metric needs a second moment of floats and a step counter in the optimizer's state, which "
                f"{type(optimizer).__name__} does not have; give the meter the parameters instead"
            )
        self._optimizer, self._key, self._corrected = optimizer, key, family.bias_corrected
        self._groups = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}

    def _numbers(self, group: dict[str, Any]) -> tuple[Any, float]:
        """Return beta2 (None for RMSprop) and eps as a step uses them: a `Run` shows the script's between two steps."""
        run = projected_of(self._optimizer)
        values = {} if run is None else run.projection(group).values(group, run.kappa)
        beta2 = values.get("beta2", group["betas"][1]) if self._corrected else None
        return beta2, float(values.get("eps", group["eps"]))

    @torch.no_grad()
    def roots(self, parameters: Iterable[Tensor]) -> list[Tensor | None]:
        """Return ``D`` of each parameter; None where the optimizer has no second moment yet."""
        parameters = list(parameters)
        states = [self._optimizer.state.get(p, {}) for p in parameters]
        known = [k for k, state in enumerate(states) if self._key in state]
        if not known:
            return [None] * len(parameters)
        groups = [self._optimizer.param_groups[self._groups[parameters[k]]] for k in known]
        numbers = {id(group): self._numbers(group) for group in groups}
        keys = [f"max_{self._key}" if group.get("amsgrad") else self._key for group in groups]
        roots = list(torch._foreach_sqrt([states[k][key] for k, key in zip(known, keys, strict=True)]))
        if self._corrected:
            for k, root, group in zip(known, roots, groups, strict=True):
                root.div_(bias_correction(states[k]["step"], numbers[id(group)][0]))
        torch._foreach_add_(roots, [numbers[id(group)][1] for group in groups])
        found: list[Tensor | None] = [None] * len(parameters)
        for k, root in zip(known, roots, strict=True):
            found[k] = root
        return found


def bias_correction(step: Any, beta2: Any) -> Any:
    """Return ``sqrt(1 - beta2^k)``: a number, or a tensor where the step is on a GPU and reading it would wait."""
    if isinstance(step, Tensor) and step.device.type != "cpu":
        return (1 - beta2**step).sqrt()
    return (1 - float(beta2) ** float(step)) ** 0.5
