"""One step of what an optimizer on the sample clock stores, for parameters that share a clock.

`rootscale.training.clock.Move` makes of it a step of plain Adam, so torch's fused kernel can do it. Where there is none
(other devices, AMSGrad, RMSprop) torch's foreach functions do the same, and in the order of torch's own optimizers.
Inside a CUDA graph the numbers are tensors, one for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rootscale.training.clock import Clock, Move

__all__ = ["Bucket", "can_fuse", "foreach_", "fused_", "graphed_"]

_FUSED_DEVICES = ("cpu", "cuda")
_FUSED_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Bucket(NamedTuple):
    """Parameters of a group that share a device, a type and a clock, with their gradients and state, as real tensors.

    Args:
        params: what is moved.
        grads: their gradients; of ascent, with their signs changed.
        m: averages of the gradient; empty where there is no momentum.
        v: averages of its square.
        largest: the largest second moments so far, in units of the reference batch; empty without AMSGrad.
    """

    params: list[Tensor]
    grads: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    largest: list[Tensor]


def can_fuse(parameter: Tensor) -> bool:
    """Whether torch has a fused kernel for it."""
    return parameter.device.type in _FUSED_DEVICES and parameter.dtype in _FUSED_TYPES


def fused_(bucket: Bucket, group: dict[str, Any], clock: Clock, move: Move, k: float) -> None:
    """Make the step with torch's fused Adam.

    The kernel corrects the bias itself, by its own betas and one step counter. Its learning rate and ``eps`` are given
    such that the wanted corrections come out.
    """
    step = torch.full((), float(clock.steps), dtype=torch.float32, device=bucket.params[0].device)
    count = float(torch.tensor(float(clock.steps)))  # as the kernel sees it
    beta1, beta2 = float(move.beta1), float(move.beta2)
    corrected = (1 - beta2**count) ** 0.5 / float(move.root)
    rate = float(move.lr) * ((1 - beta1**count) / float(move.bias)) / corrected
    decoupled = group["decoupled_weight_decay"]
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        bucket.params, bucket.grads, bucket.m, bucket.v, [], [step] * len(bucket.params),
        lr=float(group["lr"]) * rate, beta1=beta1, beta2=beta2,
        weight_decay=group["weight_decay"] * (k / rate) if decoupled else group["weight_decay"],
        eps=group["eps"] / corrected, amsgrad=False, maximize=False,
    )  # fmt: skip


def foreach_(bucket: Bucket, group: dict[str, Any], clock: Clock, move: Move, k: float) -> None:
    """Make the step with foreach functions, in torch's order."""
    params, grads, lr = bucket.params, bucket.grads, float(group["lr"])
    if group["weight_decay"]:
        if group.get("decoupled_weight_decay"):
            torch._foreach_mul_(params, 1 - k * lr * group["weight_decay"])
        else:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
    if bucket.m:
        torch._foreach_lerp_(bucket.m, grads, 1 - float(move.beta1))
    torch._foreach_mul_(bucket.v, float(move.beta2))
    torch._foreach_addcmul_(bucket.v, grads, grads, 1 - float(move.beta2))
    root = float(move.root)
    if bucket.largest:
        torch._foreach_maximum_(bucket.largest, torch._foreach_mul(bucket.v, float(clock.v)))
        root *= float(clock.v) ** 0.5
    roots = torch._foreach_sqrt(bucket.largest or bucket.v)
    if root != 1:
        torch._foreach_div_(roots, root)
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(params, bucket.m or grads, roots, -(lr * float(move.lr) / float(move.bias)))


def graphed_(bucket: Bucket, group: dict[str, Any], clock: Clock, move: Move, k: Tensor) -> None:
    """Make the step with numbers that are tensors: vectors with an entry for each parameter, on its device."""
    params, grads, lr = bucket.params, bucket.grads, group["lr"]
    if group["weight_decay"]:
        if group.get("decoupled_weight_decay"):
            torch._foreach_mul_(params, _each(1 - k * lr * group["weight_decay"], params))
        else:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
    if bucket.m:
        torch._foreach_lerp_(bucket.m, grads, _each(1 - move.beta1, params, params[0].dtype))
    torch._foreach_lerp_(bucket.v, torch._foreach_mul(grads, grads), _each(1 - move.beta2, params, params[0].dtype))
    root = move.root
    if bucket.largest:
        torch._foreach_maximum_(bucket.largest, torch._foreach_mul(bucket.v, _each(clock.v, params)))
        root = root * clock.v**0.5
    roots = torch._foreach_sqrt(bucket.largest or bucket.v)
    torch._foreach_div_(roots, _each(root, params))
    torch._foreach_add_(roots, group["eps"])
    moves = torch._foreach_div(bucket.m or grads, roots)
    torch._foreach_mul_(moves, _each(-lr * move.lr / move.bias, params))
    torch._foreach_add_(params, moves)


def _each(numbers: Any, params: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return one scalar for each parameter; a scalar of another type leaves the type of a product alone."""
    vector = torch.as_tensor(numbers, device=params[0].device).to(dtype)
    return list(vector.expand(len(params)).unbind())
