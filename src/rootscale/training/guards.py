"""Warnings about a change that is possible but doubtful, from a look at the optimizer's values and state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rootscale.format import show
from rootscale.optimizers import FAMILIES
from rootscale.rules import shortest_average
from rootscale.training.contract import sample
from rootscale.training.metric import bias_correction
from rootscale.training.projected import ProjectedOptimizer
from rootscale.training.projection import GroupProjection

__all__ = ["doubts", "longest_kappa"]

#: A look at the state takes values of so many tensors: few, so that it costs next to nothing.
_TENSORS = 16


def doubts(optimizer: ProjectedOptimizer, kappa: float) -> list[str]:
    """Return what there is to warn about: short averages, a dominating eps, a state that leaves its number format."""
    if kappa == 1:
        return []
    messages: dict[str, None] = {}
    for _, group, projection in optimizer.groups():
        values = projection.values(group)
        short = projection.rule.check_averages(kappa, values.get("beta1", 0.0), values.get("beta2"))
        messages |= dict.fromkeys((*short, *_adafactors_bound(group, projection, kappa)))
    return [f"{optimizer.prefix}{text}" for text in (*messages, *_eps_dominates(optimizer), *_leaves_format(optimizer))]


def _adafactors_bound(group: dict[str, Any], projection: GroupProjection, kappa: float) -> Iterator[str]:
    """Yield a warning where a group of torch's Adafactor has a lower bound of sqrt(v), which is no value of its row."""
    held = group.get("eps")
    if projection.family.torch != FAMILIES["adafactor"].torch or not isinstance(held, tuple | list) or held[0] is None:
        return
    after = float(projection.rule.convert("eps", float(held[0]), kappa))
    if after != held[0]:
        yield (
            f"eps[0] = {show(held[0])} of torch's Adafactor is a lower bound of sqrt(v) and stays as it is, while "
            f"sqrt(v) scales with the noise: set group['eps'] = ({after:.6g}, {held[1]:.6g})"
        )


def longest_kappa(optimizer: ProjectedOptimizer, batches: float) -> float:
    """Return the kappa up to which all averages of the optimizer do what the rule takes them for.

    They last two steps or more, which floors see to, and normalised momentum is more noise than gradient, at a noise
    scale of so many batches of the present size.
    """
    longest = [math.inf]
    for _, group, projection in optimizer.groups():
        values = projection.values(group, optimizer.kappa)
        betas = [values[unit] for unit in ("beta1", "beta2") if values.get(unit) and projection.rule.shortens(unit)]
        longest += [*map(shortest_average, betas), projection.rule.longest_momentum(values.get("mu", 0.0), batches)]
    return min(longest)


def _some(things: Sequence[Any]) -> Sequence[Any]:
    return things[:: max(1, -(-len(things) // _TENSORS))]


def _eps_dominates(optimizer: ProjectedOptimizer) -> list[str]:
    """A warning where eps, not sqrt(v), sets the size of most steps; numbers that never had a gradient do not count."""
    held = []
    for _, group, projection in optimizer.groups():
        key, corrected = projection.family.torch.state_name("v"), projection.family.bias_corrected
        if not group.get("eps") or "eps" not in projection.units or projection.units["eps"] != ("eps",):
            continue
        states = (optimizer.optimizer.state.get(parameter, {}) for parameter in group["params"])
        held += [
            (state, state[key], projection.values(group, optimizer.kappa), corrected)
            for state in states
            if _is_readable(state.get(key)) and ("step" in state or not corrected)
        ]
    ratios = []
    for state, v, values, corrected in _some(held):
        eps = values["eps"]
        if corrected:  # sqrt(v_hat) > eps, where sqrt(v) > eps * correction
            eps = eps * bias_correction(state["step"], values["beta2"])
        some = sample(v)
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


def _leaves_format(optimizer: ProjectedOptimizer) -> list[str]:
    """A warning for each piece of a half-precision state whose values became 0 or infinite when they were converted."""
    lost: dict[str, list[Tensor]] = {}
    for _, group, projection in optimizer.groups():
        for name, unit in projection.family.torch_state_units().items():
            if projection.state_factor(unit, group, optimizer.kappa) == 1:
                continue
            for parameter in group["params"]:
                value = optimizer.optimizer.state.get(parameter, {}).get(name)
                if _is_readable(value) and value.element_size() < 4:
                    lost.setdefault(name, []).append(value)
    messages = []
    for name, tensors in lost.items():
        values = torch.cat([sample(tensor).cpu() for tensor in _some(tensors)])
        smallest, none = torch.finfo(values.dtype).tiny, int((values == 0).sum()) + int(values.isinf().sum())
        near = int(((values != 0) & (values.abs() < 16 * smallest)).sum())
        if near + none > len(values) / 10:
            messages.append(
                f"{name} is kept in {str(values.dtype).removeprefix('torch.')}, and {_share(near + none, len(values))} "
                "sampled values are at the ends of its range; keep parameters and state in float32 or bfloat16 "
                "(torch.autocast computes in half precision all the same)"
            )
    return messages


def _share(count: int, n: int) -> str:
    return f"{count} of {n} ({100 * count / n:.0f} %)"
