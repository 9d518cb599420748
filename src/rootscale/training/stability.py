"""Measure how close a run is to the largest step that Adam can take.

Adam and RMSprop move along ``m / D`` with ``D = sqrt(v_hat) + eps``. On a loss with the Hessian ``H`` their steps stay
stable while

    eta h < 2 (1 + beta1) / (1 - beta1),        h = the largest eigenvalue of D^(-1/2) H D^(-1/2),

(Cohen et al. 2022, arXiv 2207.14484). The square root rule multiplies ``eta h`` by ``kappa``: ``eta`` grows by
``sqrt(kappa)``, and ``D`` falls by as much. The paper's ``1 - kappa (1 - beta1)`` divides the bound by about the same
factor. So two numbers say how far the batch can grow before a step is too long: the measured ``eta h``, and beta1.

A product of the Hessian with a vector costs a few gradients (`COST`), and a dozen products find the eigenvalue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rootscale.averagings import STABLE_SHARE, stability_bound
from rootscale.format import few_digits, show
from rootscale.hparams import average, number, positive
from rootscale.noise import Noise, noise_of
from rootscale.training.adapters import families_of
from rootscale.training.gradient_hooks import is_sharded
from rootscale.training.metric import Metric
from rootscale.training.optimizers import RuledOptimizer
from rootscale.units import AVERAGE

Batch = TypeVar("Batch")
Products = Literal["double backward", "gradient differences"]

#: What a product with the Hessian costs on one batch, in gradients. Double backward takes a gradient and a backward
#: pass through it, which is about twice as long; a difference takes a gradient on either side.
COST = {"double backward": 3, "gradient differences": 2}
#: The families whose stability is measured.
MEASURABLE = ("adam", "adamw", "rmsprop")
#: A difference of gradients moves the parameters by this share of their norm, which balances rounding and curvature.
_MOVE = {torch.float32: 1e-3, torch.float64: 1e-5}

#: A gradient that is smaller than the largest one by so many times the precision of its type is taken for rounding.
_ROUNDING = 64


@dataclass(frozen=True)
class Stability:
    """The largest preconditioned curvature of a run, times its learning rate.

    Args:
        eta_h: over all batches together.
        per_batch: of each batch, along the same direction; their mean is ``eta_h``.
        residual: how far the direction is from an eigenvector, in units of ``eta_h``; the eigenvalue is wrong by at
            most that share, and usually by its square.
        gradients: what it cost, in gradients of one batch (`COST`).
        products: how products with the Hessian were taken.
        noise: of the gradient over these batches; None where their samples were not given.
    """

    eta_h: float
    per_batch: tuple[float, ...]
    residual: float
    gradients: int
    products: Products
    noise: Noise | None = None

    def doubts(self, kappa: float, beta1: float, batch_size: float) -> list[str]:
        """Return what was measured that is beyond what a change of batch size keeps.

        Args:
            kappa: new batch size over the one at which it was measured.
            beta1: after the change.
            batch_size: the new one.
        """
        messages, bound = [], stability_bound(beta1)
        if kappa * self.eta_h > STABLE_SHARE * bound * (1 + 1e-6):
            messages.append(
                f"kappa eta h = {few_digits(kappa * self.eta_h)} is above {STABLE_SHARE:g} of its bound of "
                f"{few_digits(bound)} at beta1 = {show(round(beta1, 3))}: steps may become unstable; grow the batch by "
                "less, or later"
            )
        if self.noise is not None and batch_size > self.noise.scale.high:
            messages.append(
                f"a batch of {show(batch_size)} is beyond the noise scale, at most {few_digits(self.noise.scale.high)} "
                "samples here: a run at the larger batch is another run"
            )
        return messages

    @property
    def error(self) -> float:
        """Return the standard error over the batches; NaN where there is only one."""
        n = len(self.per_batch)
        if n < 2:
            return math.nan
        mean = sum(self.per_batch) / n
        return math.sqrt(sum((x - mean) ** 2 for x in self.per_batch) / (n - 1) / n)

    def beta1(self, beta1: float, kappa: float, share: float = STABLE_SHARE) -> float:
        """Return `stable_beta1` for this run."""
        return stable_beta1(beta1, kappa, self.eta_h, share)

    def times(self, factor: float) -> Stability:
        """Return what it is at so many times the learning rate."""
        return replace(self, eta_h=self.eta_h * factor, per_batch=tuple(one * factor for one in self.per_batch))

    def largest_kappa(self, beta1: float) -> float:
        """Return the ``kappa`` at which ``kappa eta h`` reaches the bound of a beta1 that is kept.

        >>> round(Stability(2.0, (2.0,), 0.0, 30, "double backward").largest_kappa(0.9), 6)
        19.0
        """
        return stability_bound(beta1) / self.eta_h if self.eta_h > 0 else math.inf


def check_measured(optimizers: Sequence[RuledOptimizer]) -> None:
    """Refuse what beta1 cannot be chosen for by measurement: several optimizers, other families, other floors."""
    families = [name for one in optimizers for name in one.rules]
    if len(families) != 1 or families[0] not in MEASURABLE:
        raise ValueError(
            f"measure chooses beta1 of one Adam, AdamW or RMSprop; this run has {', '.join(families)}: leave it out"
        )
    ((_, rule),) = optimizers[0].rules.items()
    if rule.averaging != "floor" or "beta2" not in rule.units:
        raise ValueError(
            f"measure chooses the floor of beta1, and the rule {rule.name!r} has its own way with betas: leave out "
            "measure, or what follows the rule's name"
        )


def stable_beta1(beta1: float, kappa: float, eta_h: float, share: float = STABLE_SHARE) -> float:
    """Return ``max(1 - kappa (1 - beta1), (s kappa - 1) / (s kappa + 1))`` with ``s = share * eta_h``.

    The second term is the beta1 whose bound is ``2 share kappa eta_h``. It depends on what was measured at the batch
    size before the change and on ``kappa``, not on the path to it.

    >>> stable_beta1(0.9, 4, eta_h=0.24)  # the paper's value is stable
    0.6000000000000001
    >>> round(stable_beta1(0.9, 16, eta_h=0.24), 3)  # the paper's value would be -0.6
    0.485

    Args:
        beta1: at the batch size of now.
        kappa: new batch size over old one.
        eta_h: measured at the batch size of now.
        share: the part of the bound that is used; below 1/2 the value would not be stable.
    """
    average("beta1", beta1)
    positive("kappa", kappa)
    number("eta_h", eta_h, "a finite number", math.isfinite)
    positive("share", share)
    if kappa == 1 or not beta1:
        return beta1
    least = share * eta_h * kappa
    return max(float(AVERAGE(beta1, kappa)), (least - 1) / (least + 1) if least > 1 else 0.0)


def measure_stability(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, Batch], Tensor],
    batches: Sequence[Batch],
    *,
    iterations: int = 16,
    tolerance: float = 1e-3,
    products: Products | None = None,
    roots: Sequence[Tensor] | None = None,
    samples: float | None = None,
    seed: int = 0,
) -> Stability:
    """Return ``eta h`` of a run as it is, by Lanczos iterations; nothing of the run is changed.

    The model is measured in training mode, as its steps see it: BatchNorm uses the statistics of each batch, and its
    running averages are put back afterwards. Dropout draws the same numbers for every product with the same batch.
    Memory: a vector of the size of the model for each iteration.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> x = torch.randn(64, 3)
    >>> for _ in range(50):
    ...     optimizer.zero_grad()
    ...     model(x).square().mean().backward()
    ...     optimizer.step()
    >>> found = measure_stability(model, optimizer, lambda model, x: model(x).square().mean(), [x[:32], x[32:]])
    >>> found.products, 0 < found.eta_h < 2
    ('double backward', True)

    Args:
        model: whose loss it is.
        optimizer: Adam, AdamW or RMSprop of torch, or of one of the libraries that are known, after some steps.
        loss: ``loss(model, batch)`` returns the mean loss of a batch, as it is trained.
        batches: a few that are large beside those of training: the Hessian of few samples has a larger eigenvalue.
        iterations: at most.
        tolerance: where an iteration changes the eigenvalue by a smaller share, it is accepted.
        products: how products with the Hessian are taken; None takes double backward where the model allows it.
        roots: ``D`` of each parameter of the optimizer in its order, in place of what its state holds now.
        samples: of each batch; the noise of the gradient is then measured too, at a gradient a batch. It needs four
            batches or more, an even number of them, of independent samples.
        seed: of the first direction, and of dropout.

    Raises:
        TypeError: the optimizer divides by no ``sqrt(v)``, or its parameters are sharded, complex or of half precision.
        ValueError: there is no second moment yet, no batch, or the loss is not finite.
    """
    _check(optimizer, batches, iterations, products)
    positive("tolerance", tolerance)
    if samples is not None and (positive("samples", samples) < 1 or len(batches) < 4 or len(batches) % 2):
        raise ValueError(
            f"the noise needs an even number of batches, four or more, of a sample or more each; got {len(batches)} of "
            f"{samples:g}: give more batches, or leave samples out"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    found = Metric(optimizer).roots(parameters) if roots is None else list(roots)
    curvature = _Curvature(model, loss, batches, parameters, _scales(optimizer, parameters, found), seed)
    curvature.decay = _decay(optimizer, parameters)
    with _in_training(model):
        curvature.products = products or curvature.able()
        value, direction, residual = _lanczos(curvature.apply, curvature.first(), iterations, tolerance)
        each = [_dot(direction, part) for part in curvature.parts(direction)]
        noise = None if samples is None else curvature.noise(samples)
    total = sum(each) / len(each)
    share = residual / max(abs(value), 1e-300)
    return Stability(total, tuple(each), share, curvature.gradients, curvature.products, noise)


class _Curvature:
    """The operator ``v -> S H S v`` with ``S = sqrt(eta / D)``, on lists of tensors."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        batches: Sequence[Any],
        parameters: Sequence[Tensor],
        scales: Sequence[Tensor],
        seed: int,
    ) -> None:
        self.model, self.loss, self.batches, self.seed = model, loss, batches, seed
        self.parameters, self.scales = list(parameters), list(scales)
        self.decay: Sequence[float] = [0.0] * len(self.parameters)
        self.products: Products = "double backward"
        self.gradients = 0

    def first(self) -> list[Tensor]:
        """Return a random direction in which the parameters can move."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in self.parameters]
        return [v * (scale > 0) for v, scale in zip(drawn, self.scales, strict=True)]

    def apply(self, vector: list[Tensor]) -> list[Tensor]:
        """Return the product, its mean over the batches."""
        total = [torch.zeros_like(v) for v in vector]
        for part in self.parts(vector):
            torch._foreach_add_(total, part, alpha=1 / len(self.batches))
        return total

    def parts(self, vector: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the product with the Hessian of each batch."""
        inner = list(torch._foreach_mul(vector, self.scales))
        product = self._by_double_backward if self.products == "double backward" else self._by_difference
        for batch in range(len(self.batches)):
            outer = product(batch, inner)
            self.gradients += COST[self.products]
            for out, direction, decay in zip(outer, inner, self.decay, strict=True):
                out.add_(direction, alpha=decay)
            yield list(torch._foreach_mul(outer, self.scales))

    def noise(self, samples: float) -> Noise:
        """Return the noise of the gradient, from pairs of batches: their product has no noise, their difference no
        gradient.
        """
        pairs = []
        for batch in range(0, len(self.batches), 2):
            one, other = self._gradient(batch), self._gradient(batch + 1)
            self.gradients += 2
            apart = _norm(list(torch._foreach_sub(one, other)))
            pairs.append((samples * apart**2 / 2, _dot(one, other)))
        return noise_of(np.array(pairs))

    def able(self) -> Products:
        """Return how products can be taken: not every operation can be differentiated twice.

        The graph of a gradient has a node in the place of what cannot. It is looked for by name: torch raises there
        only if it passes that node, and leaves it out without a word where it thinks that nothing follows.
        """
        self.gradients += 1
        seen, left = set(), [g.grad_fn for g in self._gradient(0, twice=True)]
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            if node.name().rpartition("::")[2] in ("Error", "NotImplemented"):
                return "gradient differences"
            seen.add(node)
            left += [parent for parent, _ in node.next_functions]
        return "double backward"

    def _gradient(self, batch: int, twice: bool = False) -> list[Tensor]:
        """Return the gradient of a batch; random numbers are those of the batch each time."""
        devices = sorted({p.device.index or 0 for p in self.parameters if p.device.type == "cuda"})
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            torch.manual_seed(self.seed + batch)
            loss = _mean(self.loss(self.model, self.batches[batch]))
            if not bool(loss.isfinite()):
                raise ValueError(
                    f"the loss of batch {batch} is {float(loss.detach())}; a run that has diverged has no eta h"
                )
            if not loss.requires_grad:
                raise ValueError("the loss does not depend on the model's parameters: was it made under no_grad?")
            found: Sequence[Tensor | None] = torch.autograd.grad(
                loss, self.parameters, create_graph=twice, allow_unused=True
            )
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    def _by_double_backward(self, batch: int, vector: list[Tensor]) -> list[Tensor]:
        gradient = self._gradient(batch, twice=True)
        linked = [(g, v) for g, v in zip(gradient, vector, strict=True) if g.requires_grad]
        if not linked:  # the loss is linear
            return [torch.zeros_like(v) for v in vector]
        outputs, directions = zip(*linked, strict=True)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            outputs, self.parameters, grad_outputs=directions, allow_unused=True
        )
        return [torch.zeros_like(v) if g is None else g.detach() for g, v in zip(found, vector, strict=True)]

    def _by_difference(self, batch: int, vector: list[Tensor]) -> list[Tensor]:
        length, size = _norm(vector), _norm([p.detach() for p in self.parameters])
        step = _MOVE[self.parameters[0].dtype] * (size or 1.0) / max(length, 1e-300)
        before = [p.detach().clone() for p in self.parameters]
        sides = []
        try:
            for sign in (1, -1):
                with torch.no_grad():
                    for p, start, v in zip(self.parameters, before, vector, strict=True):
                        p.copy_(start + sign * step * v)
                sides.append(self._gradient(batch))
        finally:
            with torch.no_grad():
                for p, start in zip(self.parameters, before, strict=True):
                    p.copy_(start)
        return [(plus - minus) / (2 * step) for plus, minus in zip(*sides, strict=True)]


def _lanczos(
    apply: Callable[[list[Tensor]], list[Tensor]], start: list[Tensor], iterations: int, tolerance: float
) -> tuple[float, list[Tensor], float]:
    """Return the largest eigenvalue of a symmetric operator, its direction, and the norm of the residual.

    All directions are kept and made orthogonal to each other twice, so that no eigenvalue is found a second time.
    """
    basis, diagonal, off = [_scaled(start, 1 / _norm(start))], list[float](), list[float]()
    value, last = math.nan, torch.ones(1, dtype=torch.float64)
    for _ in range(iterations):
        new = apply(basis[-1])
        diagonal.append(_dot(basis[-1], new))
        for _ in range(2):
            for old in basis:
                torch._foreach_add_(new, torch._foreach_mul(old, -_dot(old, new)))
        off.append(_norm(new))
        matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        for i, x in enumerate(off[:-1]):
            matrix[i, i + 1] = matrix[i + 1, i] = x
        values, vectors = torch.linalg.eigh(matrix)
        before, value, last = value, float(values[-1]), vectors[:, -1]
        residual = off[-1] * abs(float(last[-1]))
        exhausted = off[-1] <= 1e-9 * max(abs(x) for x in (*diagonal, *off[:-1]))
        settled = abs(value - before) <= tolerance * abs(value) and residual <= math.sqrt(tolerance) * abs(value)
        if exhausted or settled:
            break
        basis.append(_scaled(new, 1 / off[-1]))
    direction = [torch.zeros_like(v) for v in start]
    for weight, vector in zip(last.tolist(), basis, strict=False):
        torch._foreach_add_(direction, vector, alpha=weight)
    return value, direction, residual


def _check(optimizer: torch.optim.Optimizer, batches: Any, iterations: int, products: str | None) -> None:
    if not isinstance(batches, Sequence) or not len(batches):
        raise ValueError(f"batches must be a list of one batch or more, got {_kind(batches)}")
    number("iterations", iterations, "a whole number >= 2", lambda x: x >= 2 and x == int(x))
    if products is not None and products not in COST:
        raise ValueError(f"products must be one of {', '.join(map(repr, COST))}, or None; got {products!r}")
    for i, group in enumerate(optimizer.param_groups):
        if group.get("maximize"):
            raise ValueError(f"group {i} maximises; measure a loss that is minimised, without maximize=True")
        for p in group["params"]:
            if p.requires_grad and is_sharded([p]):
                raise TypeError("the parameters are sharded over ranks, and products with the Hessian need whole ones")
            if p.requires_grad and p.dtype not in _MOVE:
                raise TypeError(
                    f"curvature needs parameters of float32 or float64, got {p.dtype}; measure a copy: model.float()"
                )
    dtypes = {p.dtype for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if len(dtypes) != 1:
        found = ", ".join(sorted(map(str, dtypes))) or "no parameter that requires a gradient"
        raise TypeError(f"curvature needs parameters of one type, float32 or float64; got {found}")


def _scales(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], roots: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return ``sqrt(eta / D)``; zero where a coordinate has no gradient but what rounding makes of zero.

    Such are biases before a normalisation, or those of attention's keys. ``D`` is then little more than eps, and their
    curvature is rounding too, multiplied by ``1 / D``.
    """
    if len(roots) != len(parameters):
        raise ValueError(f"roots must have a tensor for each of {len(parameters)} parameters, got {len(roots)}")
    rates = {p: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    eps = {p: float(group["eps"]) for group in optimizer.param_groups for p in group["params"]}
    sizes = [0.0 if root is None else float((root - eps[p]).max()) for p, root in zip(parameters, roots, strict=True)]
    if not max(sizes) > 0 and None not in roots:
        raise ValueError("every second moment is zero: the run has had no gradient yet, or its state was zeroed")
    scales = []
    for p, root in zip(parameters, roots, strict=True):
        if root is None:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} has no second moment yet: take some optimizer steps first (as "
                "many as beta2 averages, 1 / (1 - beta2)), or take requires_grad from what is not trained"
            )
        least = _ROUNDING * torch.finfo(root.dtype).eps * max(sizes)
        scales.append(torch.where(root - eps[p] > least, rates[p] / root, 0.0).sqrt())
    return scales


def _decay(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[float]:
    """Return the curvature that an L2 term in the gradient adds; decoupled decay adds none to it."""
    decays = dict.fromkeys(parameters, 0.0)
    for family, numbers in families_of(optimizer):
        for group in (optimizer.param_groups[i] for i in numbers):
            if family.group_units(group).get("weight_decay") == "l2":
                decays |= {p: float(group["weight_decay"]) for p in group["params"]}
    return [decays[p] for p in parameters]


@contextmanager
def _in_training(model: nn.Module) -> Iterator[None]:
    """Put the model into training mode, and back as it was, with its buffers."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _mean(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.ndim:
        raise TypeError(f"loss must return the mean loss of a batch, a tensor of one number; got {_kind(loss)}")
    return loss


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(torch.stack([(x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)]).sum())


def _norm(vector: Sequence[Tensor]) -> float:
    return math.sqrt(_dot(vector, vector))


def _scaled(vector: Sequence[Tensor], factor: float) -> list[Tensor]:
    return list(torch._foreach_mul(list(vector), factor))


def _kind(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
