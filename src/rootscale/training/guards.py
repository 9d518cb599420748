"""Warnings about a conversion that is possible but doubtful, from a look at the optimizer's values and state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from rootscale.format import show
from rootscale.optimizers import FAMILIES, Family
from rootscale.rules import Rule, shortest_average
from rootscale.training.edits import group_values
from rootscale.training.metric import bias_correction
from rootscale.training.shards import local
from rootscale.training.state import Scaled

__all__ = ["conversion_warnings", "longest_kappa"]

Thing = TypeVar("Thing")

#: A look at the state takes so many values of so many tensors: few, so that it costs next to nothing.
_VALUES, _TENSORS = 256, 16


def conversion_warnings(optimizer: Any, family: Family, rule: Rule, kappa: float, state: Sequence[Scaled]) -> list[str]:
    """Return what there is to warn about: short averages, a dominating eps, a state that leaves its number format."""
    messages: dict[str, None] = {}
    for group in optimizer.param_groups:
        values = group_values(group, family)
        messages |= dict.fromkeys(rule.check_averages(kappa, values.get("beta1", 0.0), values.get("beta2")))
        messages |= dict.fromkeys(_adafactors_bound(group, family, rule, kappa))
    return [*messages, *_eps_dominates(optimizer, family), *_leaves_format(state)]


def _adafactors_bound(group: dict[str, Any], family: Family, rule: Rule, kappa: float) -> Iterator[str]:
    """Yield a warning where a group of torch's Adafactor has a lower bound of sqrt(v), which is no value of its row."""
    held = group.get("eps")
    if family.torch != FAMILIES["adafactor"].torch or not isinstance(held, tuple | list) or held[0] is None:
        return
    after = float(rule.convert("eps", float(held[0]), kappa))
    if after != held[0]:
        yield (
            f"eps[0] = {show(held[0])} of torch's Adafactor is a lower bound of sqrt(v) and stays as it is, while "
            f"sqrt(v) scales with the noise: set group['eps'] = ({after:.6g}, {held[1]:.6g})"
        )


def longest_kappa(optimizer: torch.optim.Optimizer, family: Family, rule: Rule, batches: float) -> float:
    """Return the kappa up to which all averages of the optimizer do what the rule takes them for.

    They last two steps or more, which floors see to, and normalised momentum is more noise than gradient, at a noise
    scale of so many batches.
    """
    values = [group_values(group, family) for group in optimizer.param_groups]
    betas = [group[unit] for group in values for unit in ("beta1", "beta2") if group.get(unit) and rule.shortens(unit)]
    longest = [rule.longest_momentum(group.get("mu", 0.0), batches) for group in values]
    return min([*map(shortest_average, betas), *longest])


def sample(tensor: Tensor, size: int = _VALUES) -> Tensor:
    """Return some hundreds of a tensor's values, evenly spaced in memory, as a view: no copy of the tensor is made."""
    held = local(tensor).detach()
    if held.dim() > 1 and not held.is_contiguous():
        held = held.permute(sorted(range(held.dim()), key=held.stride, reverse=True))
    return held.reshape(-1)[:: max(1, held.numel() // size)]


def _some(things: Sequence[Thing]) -> Sequence[Thing]:
    return things[:: max(1, -(-len(things) // _TENSORS))]


def _eps_dominates(optimizer: Any, family: Family) -> list[str]:
    """A warning where eps, not sqrt(v), sets the size of most steps; numbers that never had a gradient do not count."""
    key = family.torch.state_name("v")
    held = [
        (state, group)
        for group in optimizer.param_groups
        if group.get("eps") and family.group_units(group).get("eps") == "eps"
        for state in (optimizer.state.get(parameter, {}) for parameter in group["params"])
        if _is_readable(state.get(key)) and ("step" in state or not family.bias_corrected)
    ]
    ratios = []
    for state, group in _some(held):
        eps = group["eps"]
        if family.bias_corrected:  # sqrt(v_hat) > eps, where sqrt(v) > eps * correction
            eps = eps * bias_correction(state["step"], group["betas"][1])
        some = sample(state[key])
        if some.element_size() >= 4:  # in half precision a v of 0 may be a small one
            some = some[some != 0]
        ratios.append(some.float().sqrt().div_(eps).cpu())
    ratio = torch.cat(ratios) if ratios else torch.empty(0)  # the shards of a rank may be empty
    below = int((ratio < 1).sum())
    if below <= len(ratio) / 2:
        return []
    middle = ratio.median().item()
    remedy = (
        f"an eps {show(1 / middle)} times smaller would let v set the size of half of them"
        if middle
        else "most of v is 0 in half precision; keep parameters and state in float32 or bfloat16"
    )
    return [
        f"eps is larger than sqrt(v) in {_share(below, len(ratio))} sampled coordinates: there the steps are those "
        f"of SGD with learning rate lr / eps; {remedy}"
    ]


def _is_readable(value: object) -> bool:
    """Return whether a piece of state is a tensor of numbers, and not of codes."""
    return (
        isinstance(value, Tensor) and value.is_floating_point() and bool(value.numel()) and not hasattr(value, "codes")
    )


def _leaves_format(state: Sequence[Scaled]) -> list[str]:
    """A warning for each piece of a half-precision state whose values become 0 or infinite when they are converted."""
    messages = []
    for piece in state:
        short = [tensor for tensor in piece.tensors if tensor.element_size() < 4 and tensor.numel()]
        if not short or piece.factor == 1:
            continue
        values = torch.cat([sample(tensor).cpu() for tensor in _some(short)])
        values = values[(values != 0) & values.isfinite()]
        after = values * piece.factor
        for fate, lost in (("0", int((after == 0).sum())), ("infinite", int(after.isinf().sum()))):
            if lost:
                messages.append(
                    f"{piece.name} is kept in {str(values.dtype).removeprefix('torch.')}, and "
                    f"{_share(lost, len(values))} sampled values other than 0 become {fate} when multiplied by "
                    f"{show(piece.factor)}; keep parameters and state in float32 or bfloat16 (torch.autocast computes "
                    "in half precision all the same), or leave the state unconverted with state=False"
                )
    return messages


def _share(count: int, n: int) -> str:
    return f"{count} of {n} ({100 * count / n:.0f} %)"
