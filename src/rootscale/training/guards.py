"""Warnings about a change that is possible but doubtful, from a look at the optimizer's values and state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rootscale.evidence import doubts as beyond
from rootscale.format import few_digits, show
from rootscale.optimizers import FAMILIES
from rootscale.rules import averaged_batches, shortest_average
from rootscale.training.contract import sample
from rootscale.training.metric import bias_correction

if TYPE_CHECKING:
    from rootscale.training.projected import ProjectedOptimizer
    from rootscale.training.projection import GroupProjection

#: A look at the state takes values of so many tensors: few, so that it costs next to nothing.
_TENSORS = 16


def doubts(
    optimizer: ProjectedOptimizer, kappa: float, state: bool = True, *, eps: bool = True, batchnorm: bool = False
) -> list[str]:
    """Return what there is to warn about: a change beyond all that was measured, and what the state shows.

    That are short averages, a dominating eps, and a state that leaves its number format.

    Args:
        optimizer: before the change.
        kappa: that it is to be brought to.
        state: whether its state will be converted.
        eps: whether to look where eps dominates. Of a state in a file, that maps as much of it as there is.
        batchnorm: whether the model is known to have BatchNorm.
    """
    if kappa == 1:
        return []
    messages: dict[str, None] = {}
    for _, group, projection in optimizer.groups():
        values = projection.values(group)
        short = projection.rule.check_averages(kappa, values.get("beta1", 0.0), values.get("beta2"))
        messages |= dict.fromkeys((*short, *_adafactors_bound(group, projection, kappa)))
    for name, rule in optimizer.families:
        messages |= dict.fromkeys(beyond(name, rule, kappa / optimizer.kappa, batchnorm))
    looks = [*(_eps_dominates(optimizer) if eps else ()), *(_leaves_format(optimizer, kappa) if state else ())]
    return [f"{optimizer.prefix}{text}" for text in (*messages, *looks)]


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


def momentum_look(optimizer: ProjectedOptimizer, kappa: float, size: float | None) -> Iterator[str]:
    """Yield what a rule of normalised momentum rests on, which nobody sees in an optimizer: the noise scale.

    Args:
        optimizer: with the script's numbers.
        kappa: new batch size over old one.
        size: the larger of the two, where it is known.
    """
    weights: dict[str, tuple[float, GroupProjection]] = {}
    for _, group, projection in optimizer.groups():
        mu = projection.values(group, max(1.0, kappa)).get("mu", 0.0)
        if mu > weights.get(projection.family.name, (0.0, projection))[0]:
            weights[projection.family.name] = mu, projection
    for mu, projection in weights.values():
        rule = projection.rule
        if kappa == 1 or math.isinf(rule.longest_momentum(mu, 1.0)):
            continue
        batches = averaged_batches(mu)
        samples = "" if size is None else f", {few_digits(batches * size)} samples"
        nearer = "normalized-half" if rule.key == "normalized-sqrt" else "normalized-linear"
        yield (
            f"{optimizer.prefix}a look at the noise scale (NoiseMeter measures it): momentum averages "
            f"{few_digits(batches)} batches, and {rule.name} holds while the noise scale is far above that{samples}; "
            f"elsewhere {nearer} is nearer"
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
        now = projection.values(group, optimizer.kappa)  # the state is in those units
        states = (optimizer.optimizer.state.get(parameter, {}) for parameter in group["params"])
        held += [
            (state, state[key], now, corrected)
            for state in states
            if _is_readable(state.get(key)) and ("step" in state or not corrected)
        ]
    ratios = []
    for state, v, now, corrected in _some(held):
        eps = now["eps"]
        if corrected:  # sqrt(v_hat) > eps, where sqrt(v) > eps * correction
            eps = eps * bias_correction(state["step"], now["beta2"])
        values = sample(v)
        if values.element_size() >= 4:  # in half precision a v of 0 may be a small one
            values = values[values != 0]
        ratios.append(values.float().sqrt().div_(eps).cpu())
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


def _leaves_format(optimizer: ProjectedOptimizer, kappa: float) -> list[str]:
    """A warning for each piece of a half-precision state of which a tenth will become 0 or infinite."""
    changed: dict[str, list[tuple[Tensor, float]]] = {}
    for _, group, projection in optimizer.groups():
        for name, unit in projection.family.torch_state_units().items():
            if unit == "beta3":
                continue
            factor = projection.state_factor(unit, group, kappa)
            factor /= projection.state_factor(unit, group, optimizer.kappa)
            if factor == 1:
                continue
            for parameter in group["params"]:
                value = optimizer.optimizer.state.get(parameter, {}).get(name)
                if _is_readable(value) and value.element_size() < 4:
                    changed.setdefault(name, []).append((value, factor))
    messages = []
    for name, held in changed.items():
        lost, total, ends = 0, 0, set()
        for tensor, factor in _some(held):
            values = sample(tensor)
            values = values[(values != 0) & values.isfinite()]  # a number that never had a gradient is 0 and stays so
            after = values * factor
            for end, gone in (("0", after == 0), ("infinite", after.isinf())):
                count = int(gone.sum())
                lost += count
                ends |= {end} if count else set()
            total += len(values)
        if lost > total / 10:
            messages.append(
                f"{name} is kept in {str(held[0][0].dtype).removeprefix('torch.')}, and {_share(lost, total)} sampled "
                f"values other than 0 become {' or '.join(sorted(ends))} when multiplied by {show(held[0][1])}; keep "
                "parameters and state in float32 or bfloat16 (torch.autocast computes in half precision all the same)"
            )
    return messages


def _share(count: int, n: int) -> str:
    return f"{count} of {n} ({100 * count / n:.0f} %)"
