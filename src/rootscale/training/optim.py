"""The paper's RMSprop and Adam, and Adam with a second moment of micro-batches, as PyTorch optimizers.

torch's optimizers divide by the second moment *after* its update with the present gradient (``v_{k+1}``); the paper's
divide by the one before (``v_k``), which is independent of the present noise. The price: a coordinate whose gradient
was exactly zero so far (a pixel that is almost always empty) is divided by ``eps`` alone when it first moves, so an
``eps`` of 1e-8 can throw it far; take a larger one there, or torch's form. State and groups have torch's names, so that
`rootscale.training.Run` and stock schedulers work on them. A complex
parameter counts as its real and imaginary parts, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rootscale.hparams import average, nonnegative

__all__ = ["Adam", "MicroBatchAdam", "RMSprop"]


class _Bucket(NamedTuple):
    """The parameters of a group that have a gradient and share a device and a type, with their state."""

    params: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Tensor]]

    def state(self, key: str) -> list[Tensor]:
        return [state[key] for state in self.states]


class _Base(torch.optim.Optimizer):
    """Groups, state and the loop over them; a subclass updates one bucket."""

    _moments: tuple[str, ...]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(defaults["lr"], Tensor) and not defaults["capturable"]:
            raise ValueError("a tensor as lr needs capturable=True")
        nonnegative("lr", float(defaults["lr"]))
        nonnegative("eps", defaults["eps"])
        nonnegative("weight_decay", defaults["weight_decay"])
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; ``closure`` evaluates the loss again and is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for bucket in self._buckets(group):
                self._update(bucket, group)
        return loss

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        return parameter.grad

    def _buckets(self, group: dict[str, Any]) -> Iterator[_Bucket]:
        buckets: dict[tuple[torch.device, torch.dtype], _Bucket] = {}
        for parameter in group["params"]:
            grad = self._gradient(parameter)
            if grad is None:
                continue
            if grad.is_sparse:
                raise TypeError(f"{type(self).__name__} needs dense gradients, got a sparse one")
            state = self.state[parameter]
            if not state:
                device = parameter.device if group["capturable"] else "cpu"
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                for key in self._moments:
                    state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            bucket = buckets.setdefault((parameter.device, parameter.dtype), _Bucket([], [], []))
            bucket.params.append(_real(parameter))
            bucket.grads.append(_real(-grad if group["maximize"] else grad))
            bucket.states.append({key: _real(held) for key, held in state.items()})
        for bucket in buckets.values():
            decay = group["weight_decay"]
            if decay and not group.get("decoupled_weight_decay"):
                bucket = bucket._replace(grads=list(torch._foreach_add(bucket.grads, bucket.params, alpha=decay)))
            yield bucket

    def _update(self, bucket: _Bucket, group: dict[str, Any]) -> None:
        raise AssertionError("a subclass updates its buckets")


def _real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as a view of its real and imaginary parts, another one as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _denominator(
    v: list[Tensor], steps: list[Tensor], beta2: float | None, eps: float, capturable: bool
) -> list[Tensor]:
    """Return ``sqrt(v_k / (1 - beta2^k)) + eps`` (uncorrected where ``beta2`` is None), and infinity at k = 0.

    There ``v_hat_0`` is 0/0. The paper's own code makes no update of the parameters in that step and only fills the
    state; an infinite denominator does the same.
    """
    roots = list(torch._foreach_sqrt(v))
    if capturable:
        alive = torch._foreach_sign(steps)  # 0 at k = 0; steps may be fractions after a change of batch size
        if beta2 is not None:
            corrections = torch._foreach_pow(beta2, steps)
            torch._foreach_neg_(corrections)
            torch._foreach_add_(corrections, 1)
            torch._foreach_sqrt_(corrections)
            torch._foreach_maximum_(corrections, torch.finfo(torch.float32).tiny)
            torch._foreach_div_(roots, corrections)
        torch._foreach_add_(roots, eps)
        torch._foreach_maximum_(roots, torch.finfo(torch.float32).tiny)  # 0/0 must not come of 0 at k = 0
        torch._foreach_div_(roots, alive)
        return roots
    counts = [step.item() for step in steps]
    if beta2 is not None:
        torch._foreach_div_(roots, [(1 - beta2**k) ** 0.5 if k else 1.0 for k in counts])
    torch._foreach_add_(roots, [eps if k else float("inf") for k in counts])
    return roots


def _decay_(params: list[Tensor], group: dict[str, Any], steps: list[Tensor] | None = None) -> None:
    """Make ``theta -= eta lambda theta`` where the group's decay is decoupled; parameters whose step is 0 stay."""
    if not group["weight_decay"] or not group["decoupled_weight_decay"]:
        return
    rate = group["lr"] * group["weight_decay"]
    if steps is None:
        torch._foreach_mul_(params, 1 - rate)
    elif group["capturable"]:
        torch._foreach_mul_(params, [1 - rate * alive for alive in torch._foreach_sign(steps)])
    else:
        torch._foreach_mul_(params, [1 - rate if step.item() else 1.0 for step in steps])


def _average_squares_(v: list[Tensor], grads: list[Tensor], beta2: float) -> None:
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, grads, grads, 1 - beta2)


class RMSprop(_Base):
    """The paper's RMSprop (Def. 2.1).

        theta_{k+1} = theta_k - eta g_k / (sqrt(v_k) + eps),     v_{k+1} = beta v_k + (1 - beta) g_k^2

    Its first step only fills ``v``, which starts at 0.

    Args:
        params: parameters, or groups of them.
        lr: ``eta``.
        alpha: ``beta``.
        eps: added to ``sqrt(v)``.
        weight_decay: an L2 term in the gradient.
        maximize: climb instead of descending.
        capturable: keep everything on the device, for CUDA graphs.
    """

    _moments = ("square_avg",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        alpha: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        average("alpha", alpha)
        options = {"maximize": maximize, "capturable": capturable}
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, **options})

    def _update(self, bucket: _Bucket, group: dict[str, Any]) -> None:
        v, steps = bucket.state("square_avg"), bucket.state("step")
        roots = _denominator(v, steps, None, group["eps"], group["capturable"])
        _descend(bucket.params, bucket.grads, roots, group["lr"])
        _average_squares_(v, bucket.grads, group["alpha"])
        torch._foreach_add_(steps, 1)


def _descend(params: list[Tensor], directions: list[Tensor], roots: list[Tensor], lr: float | Tensor) -> None:
    if isinstance(lr, Tensor):
        torch._foreach_div_(roots, -lr)
        torch._foreach_addcdiv_(params, directions, roots)
    else:
        torch._foreach_addcdiv_(params, directions, roots, -lr)


class Adam(_Base):
    """The paper's Adam (Def. 2.2).

        m_{k+1} = beta1 m_k + (1 - beta1) g_k,     v_{k+1} = beta2 v_k + (1 - beta2) g_k^2,
        theta_{k+1} = theta_k - eta m_hat_{k+1} / (sqrt(v_hat_k) + eps)

    with ``m_hat_k = m_k / (1 - beta1^k)`` and ``v_hat_k = v_k / (1 - beta2^k)``.

    Its first step fills ``m`` and ``v`` and leaves the parameters alone, decoupled decay included: ``v_hat_0`` is 0/0.

    Args:
        params: parameters, or groups of them.
        lr: ``eta``.
        betas: ``beta1, beta2``.
        eps: added to ``sqrt(v_hat)``.
        weight_decay: an L2 term in the gradient, or decoupled.
        decoupled_weight_decay: ``theta -= eta * weight_decay * theta`` instead of the L2 term, as AdamW does.
        maximize: climb instead of descending.
        capturable: keep everything on the device, for CUDA graphs.
    """

    _moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        average("beta1", betas[0])
        average("beta2", betas[1])
        options = {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "capturable": capturable}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **options})

    def _update(self, bucket: _Bucket, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        m, v, steps = bucket.state("exp_avg"), bucket.state("exp_avg_sq"), bucket.state("step")
        _decay_(bucket.params, group, steps)
        roots = _denominator(v, steps, beta2, group["eps"], group["capturable"])
        torch._foreach_lerp_(m, bucket.grads, 1 - beta1)
        _average_squares_(v, bucket.grads, beta2)
        torch._foreach_add_(steps, 1)
        self._move(bucket.params, m, roots, steps, group)

    def _move(
        self, params: list[Tensor], m: list[Tensor], roots: list[Tensor], steps: list[Tensor], group: dict[str, Any]
    ) -> None:
        """Make ``theta -= eta m_hat / roots`` with ``m_hat = m / (1 - beta1^k)``."""
        beta1, lr = group["betas"][0], group["lr"]
        if group["capturable"]:
            corrections = torch._foreach_pow(beta1, steps)
            torch._foreach_neg_(corrections)
            torch._foreach_add_(corrections, 1)
            torch._foreach_mul_(roots, corrections)
            _descend(params, m, roots, lr)
        else:
            torch._foreach_addcdiv_(params, m, roots, [-lr / (1 - beta1 ** step.item()) for step in steps])


class MicroBatchAdam(Adam):
    """Adam whose second moment averages the squared gradients of micro-batches of a fixed size (arXiv 2402.18824).

    Its preconditioner does not depend on the batch size, so its dynamics are kept by the rule ``invariant``: the
    learning rate and ``1 - beta`` scale with ``kappa``, and nothing else. ``v`` is used after its update, as in torch.

    Call `micro_step` after the backward of each micro-batch (of the *mean* loss of that micro-batch, not divided by
    their number), then `step`, which divides by the number of micro-batches itself:

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = MicroBatchAdam(model.parameters(), lr=1e-2)
    >>> for x in torch.randn(4, 8, 2):  # four micro-batches of eight samples
    ...     model(x).square().mean().backward()
    ...     optimizer.micro_step()
    >>> optimizer.step()
    """

    _held: dict[Tensor, tuple[Tensor, Tensor]]  # sums over micro-batches: of the gradient, of its square
    _micro_batches: int

    @torch.no_grad()
    def micro_step(self) -> None:
        """Take the gradient of a micro-batch and clear it; where a parameter has none, it counts as zero."""
        self._micro_batches = self._micro_batches + 1 if self._held else 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.is_complex():
                    raise TypeError("MicroBatchAdam needs real parameters, got a complex one; use torch.view_as_real")
                held = self._held.get(parameter)
                if held is None:
                    self._held[parameter] = parameter.grad.clone(), parameter.grad.square()
                else:
                    held[0].add_(parameter.grad)
                    held[1].addcmul_(parameter.grad, parameter.grad)
                parameter.grad = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy, or in load_state_dict
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        self._held, self._micro_batches = {}, 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, those of micro-batches too."""
        self._forget()
        super().zero_grad(set_to_none)

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        if parameter.grad is not None:
            raise RuntimeError("call micro_step() after the backward of each micro-batch, before step()")
        held = self._held.get(parameter)
        return None if held is None else held[0] / self._micro_batches

    def _update(self, bucket: _Bucket, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        m, v, steps = bucket.state("exp_avg"), bucket.state("exp_avg_sq"), bucket.state("step")
        _decay_(bucket.params, group)  # v is used after its update, so the first step moves the parameters too
        squares = torch._foreach_div([self._held.pop(parameter)[1] for parameter in bucket.params], self._micro_batches)
        torch._foreach_lerp_(m, bucket.grads, 1 - beta1)
        torch._foreach_lerp_(v, list(squares), 1 - beta2)
        torch._foreach_add_(steps, 1)
        roots = _denominator(v, steps, beta2, group["eps"], group["capturable"])
        self._move(bucket.params, m, roots, steps, group)
