"""Adam, AdamW and RMSprop on the sample clock: every step may have another batch size.

Their hyperparameters and their state belong to a reference batch. Each ``step(samples=n)`` says how many samples its
gradient is the mean of; `rootscale.training.clock` has the equations. A change of batch size needs no conversion then.

``samples`` is any count in the unit of ``reference_batch``: sequences, images, tokens of packed sequences, transitions
of episodes. What matters is that the variance of the gradient falls as ``1 / samples``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rootscale.training.clock_base import FLOORS, SampleClock

__all__ = ["Adam", "AdamW", "RMSprop", "SampleClock"]


class Adam(SampleClock):
    """Adam whose steps say how many samples they have; `rootscale.training.clock` has the equations.

    With ``samples`` equal to ``reference_batch`` at every step it is `torch.optim.Adam`, to the bit.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = Adam(model.parameters(), lr=1e-3, reference_batch=256)
    >>> for n in (256, 31, 700):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(n, 2)).square().mean().backward()
    ...     optimizer.step(samples=n)

    Args:
        params: parameters, or groups of them.
        lr: ``eta`` of the reference batch.
        betas: ``beta1, beta2`` of the reference batch.
        eps: added to ``sqrt(v_hat)``, at the reference batch.
        weight_decay: an L2 term in the gradient.
        amsgrad: divide by the largest second moment so far; slower, as torch's fused kernel cannot do it here.
        reference_batch: the batch size that all these numbers are for, in the unit of ``samples``.
        floors: where ``1 - k (1 - beta)`` stops. A floor of 0 is the paper's form, which refuses ``k (1 - beta) >= 1``.
        maximize: climb instead of descending.
        capturable: keep the clock on the device, for CUDA graphs; ``samples`` may then be a tensor.
        fused: whether to use torch's fused kernel; None is wherever there is one.
    """

    _moments = ("exp_avg", "exp_avg_sq")
    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        reference_batch: float,
        floors: tuple[float, float] = FLOORS,
        maximize: bool = False,
        capturable: bool = False,
        fused: bool | None = None,
    ) -> None:
        values = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        options = {"maximize": maximize, "capturable": capturable, "fused": fused}
        clock = {"reference_batch": reference_batch, "floors": tuple(floors)}
        super().__init__(params, {**values, **options, **clock, "decoupled_weight_decay": self._decoupled})


class AdamW(Adam):
    """Adam with decoupled weight decay, ``theta -= k eta lambda theta``; the arguments are those of `Adam`.

    ``weight_decay`` has torch's default for AdamW, 0.01.
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


class RMSprop(SampleClock):
    """RMSprop whose steps say how many samples they have; it has no momentum and is not centered.

    With ``samples`` equal to ``reference_batch`` at every step it is `torch.optim.RMSprop`, to the bit. The arguments
    are those of `Adam`; ``alpha`` is the paper's ``beta``, and the second of ``floors`` is its floor.
    """

    _moments = ("", "square_avg")
    _refused: ClassVar[dict[str, Any]] = {"differentiable": False, "momentum": 0, "centered": False}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        reference_batch: float,
        floors: tuple[float, float] = FLOORS,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        values = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        clock = {"reference_batch": reference_batch, "floors": tuple(floors)}
        super().__init__(params, {**values, "maximize": maximize, "capturable": capturable, **clock})
