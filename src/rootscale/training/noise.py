"""Measure how noisy the gradient is, from what training computes anyway.

The gradient of a batch of ``b`` samples has mean ``grad f`` and covariance ``Sigma / b``. A step that adds up several
parts (micro-batches of accumulation, the ranks of data-parallel training, SVAG's two batches) shows both: with ``G_i``
the gradients of the parts, ``b_i`` their sizes, ``w_i`` their weights, and ``T = sum_i w_i G_i`` their sum,

    E |G_i|^2 = |grad f|^2 + Tr Sigma / b_i,     E |T|^2 = (sum_i w_i)^2 |grad f|^2 + Tr Sigma sum_i w_i^2 / b_i,

two linear equations for ``Tr Sigma`` and ``|grad f|^2``: unbiased estimates from every step. The noise scale
``Tr Sigma / |grad f|^2`` is the batch size up to which the noise dominates the gradient. The same equations hold for
any sum of squares: of a parameter group, of ``G / (sqrt(v) + eps)``, of a single coordinate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from rootscale.hparams import nonnegative, number, positive
from rootscale.noise import Noise, dominated_share, noise_of
from rootscale.training.gradient_hooks import GradientHooks, check_sharded, is_sharded
from rootscale.training.metric import Metric

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Gradients of this many numbers are held back in a backward, to take their norms in one call.
_HELD = 2**23


@dataclass
class _Part:
    """The gradients of one part of a step: what is kept of each parameter's, by its number."""

    samples: float
    weight: float
    norms: dict[int, Tensor] = field(default_factory=dict)
    scaled: dict[int, Tensor] = field(default_factory=dict)
    points: dict[int, Tensor] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)


class NoiseMeter:
    """Measure the noise of the gradient during training.

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> meter = NoiseMeter(optimizer)
    >>> for step in range(20):
    ...     optimizer.zero_grad()
    ...     for x in torch.randn(4, 8, 3):  # four micro-batches of eight samples
    ...         with meter.part(samples=8, weight=1 / 4):
    ...             (model(x).square().mean() / 4).backward()
    ...     meter.update()  # before optimizer.step() and zero_grad()
    ...     optimizer.step()
    >>> meter.estimate().steps
    20

    ``.grad`` has to be clear before the first part, whose gradient it then holds; hooks on the parameters see the
    gradients of the other parts while they are computed. Nothing is stored but norms. Estimates are means over a window
    of steps; their intervals take the noise of different steps as independent, which it is, and the gradient as steady
    over the window, which it nearly is if the window is short against the training. Steps whose gradients were not
    finite (a ``GradScaler`` that looks for its scale) are left out.

    **Data-parallel ranks** are parts too. With ``process_group``, each rank opens its part (or several, with
    accumulation) around the backward of its own samples, and `update` adds up what the ranks saw: one all-reduce of a
    few numbers. The hooks see each rank's own gradient, before DistributedDataParallel averages them; ``weight`` is as
    without it, the division by the number of ranks is taken into account. Under DistributedDataParallel the group is
    needed even with accumulation: ``.grad`` is the average over the ranks in the end. Under FSDP2 (``fully_shard`` over
    one dimension) give the ``model`` as well: the gradients of a rank's own samples exist only on the gathered
    parameters, which the modules have while they compute.

    Args:
        parameters: an optimizer, for estimates by parameter group too; or parameters.
        window: how many of the latest steps to average over.
        preconditioned: also measure in the optimizer's own metric, ``|g / (sqrt(v_hat) + eps)|^2``, with the second
            moment it has at that time (`rootscale.training.metric`).
        coordinates: for the share of coordinates where noise dominates: how many of them to look at, drawn at random
            from all parameters once. A thousand cost little and are enough for an error of three percent.
        process_group: of DistributedDataParallel or FSDP2, ``torch.distributed.group.WORLD`` say.
        model: the FSDP2 model whose parameters they are; ``preconditioned`` and ``coordinates`` are not for it.
        seed: for the draw of the coordinates.
        listen: whether gradients are looked at from now on, or after `listen` is called.
    """

    def __init__(
        self,
        parameters: torch.optim.Optimizer | Iterable[Tensor],
        window: int = 100,
        *,
        preconditioned: bool = False,
        coordinates: int = 0,
        process_group: dist.ProcessGroup | None = None,
        model: torch.nn.Module | None = None,
        seed: int = 0,
        listen: bool = True,
    ) -> None:
        self._measured: tuple[torch.optim.Optimizer, list[int]] | None = None
        if isinstance(parameters, torch.optim.Optimizer):
            groups: list[list[Tensor]] = [list(group["params"]) for group in parameters.param_groups]
            self._measured = parameters, [len(group) for group in groups]
        elif preconditioned:
            raise TypeError("preconditioned=True needs the optimizer, for its second moment; got parameters")
        else:
            groups = [list(parameters)]
        self._number = len(groups)
        members = [(p, i) for i, group in enumerate(groups) for p in group if p.requires_grad]
        if not members:
            raise ValueError("parameters must hold at least one that requires a gradient, got none")
        self._parameters = [p for p, _ in members]
        self._device = self._parameters[0].device
        self._wide = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters) else torch.float32
        self._group = torch.tensor([i for _, i in members], device=self._device)
        self._metric = Metric(parameters) if isinstance(parameters, torch.optim.Optimizer) and preconditioned else None
        self._ranks = process_group
        self._points = self._draw(int(nonnegative("coordinates", coordinates)), seed)
        self._steps: deque[tuple[Tensor, float | Tensor]] = deque(maxlen=int(positive("window", window)))
        self._parts: list[_Part] = []
        self._open: _Part | None = None
        self._looking = False  # whether the part that is open is seen by the hooks, and not in .grad
        self._held: list[tuple[int, Tensor]] = []
        self._size = 0
        self._sharded = is_sharded(self._parameters)
        if self._sharded:
            check_sharded(self._parameters, process_group, model)
            if preconditioned or coordinates > 0:
                raise ValueError(
                    "preconditioned and coordinates need whole second moments and gradients, which no rank of FSDP2 "
                    "has; leave them out"
                )
        self._hooks = GradientHooks(self._parameters, self._see, model if self._sharded else None)
        self.listen(listen)

    def _draw(self, number: int, seed: int) -> dict[int, Tensor]:
        """Draw coordinates without replacement, and return their places in each parameter."""
        sizes = np.array([p.numel() for p in self._parameters])
        number = min(number, int(sizes.sum()))
        ends = np.cumsum(sizes)
        places = np.sort(np.random.default_rng(seed).choice(ends[-1], number, replace=False, shuffle=False))
        owners = np.searchsorted(ends, places, side="right")
        offsets = places - (ends - sizes)[owners]
        return {i: torch.tensor(offsets[owners == i], device=self._parameters[i].device) for i in np.unique(owners)}

    def _see(self, i: int, gradient: Tensor) -> None:
        if self._open is not None and self._looking:
            if i in self._open.seen:
                raise RuntimeError(
                    "a parameter has got two gradients in one part, and only their sum tells the noise: add the losses "
                    "and call backward once (and give torch.utils.checkpoint use_reentrant=False)"
                )
            self._open.seen.add(i)
            self._held.append((i, gradient))
            self._size += gradient.numel()
            if self._size > _HELD:
                self._look(self._open)

    def _hold_grads(self) -> None:
        grads = [(i, p.grad) for i, p in enumerate(self._parameters) if p.grad is not None]
        self._held = [(i, g.to_local()) if hasattr(g, "to_local") else (i, g) for i, g in grads]

    def _check_clear(self) -> None:
        self._hold_grads()
        held, self._held = self._held, []
        if any(bool(gradient.any()) for _, gradient in held):
            raise ValueError(
                ".grad holds the gradient of another step: call zero_grad() before the first part of a step"
            )

    @torch.no_grad()
    def _look(self, part: _Part) -> None:
        """Keep what is needed of the gradients held, and drop them."""
        held, self._held, self._size = self._held, [], 0
        if not held:
            return
        indices, gradients = [i for i, _ in held], [gradient for _, gradient in held]
        if any(gradient.is_sparse for gradient in gradients):
            raise TypeError("NoiseMeter needs dense gradients, got a sparse one (an Embedding with sparse=True?)")
        part.norms.update(zip(indices, self._norms(gradients), strict=True))
        if self._metric is not None:
            roots = self._metric.roots([self._parameters[i] for i in indices])
            known = [k for k, root in enumerate(roots) if root is not None]
            if known:
                scaled = torch._foreach_div([gradients[k] for k in known], [roots[k] for k in known])  # type: ignore[misc]
                part.scaled.update(zip([indices[k] for k in known], self._norms(scaled), strict=True))
            part.scaled.update({i: self._nan() for i, root in zip(indices, roots, strict=True) if root is None})
        for i, gradient in held:
            if i in self._points:
                part.points[i] = gradient.reshape(-1).index_select(0, self._points[i])

    def _norms(self, gradients: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return norms, in float32 at least: half precision would overflow."""
        norms: tuple[Tensor, ...] = torch._foreach_norm(list(gradients), 2, dtype=self._wide)
        return norms

    def _nan(self) -> Tensor:
        return torch.full((), math.nan, dtype=self._wide, device=self._device)

    def _squares(self, parts: list[_Part]) -> Tensor:
        """Return of each part: squared norms of the groups, those in the optimizer's metric, squared coordinates."""
        zero = torch.zeros((), dtype=self._wide, device=self._device)

        def by_group(norms: list[dict[int, Tensor]]) -> Tensor:
            flat = [one.get(i, zero).to(self._device) for one in norms for i in range(len(self._parameters))]
            squares = torch.stack(flat).view(len(norms), -1).square()
            return squares.new_zeros(len(norms), self._number).index_add_(1, self._group, squares)

        columns = [by_group([part.norms for part in parts])]
        if self._metric is not None:
            columns.append(by_group([part.scaled for part in parts]))
        if self._points:
            rows = []
            for part in parts:
                points = [part.points.get(i, zero.expand(len(places))) for i, places in self._points.items()]
                rows.append(torch.cat([some.to(self._device, self._wide) for some in points]))
            columns.append(torch.stack(rows).square())
        return torch.cat(columns, 1)

    @contextmanager
    def part(self, samples: float, weight: float = 1.0) -> Iterator[None]:
        """Open a context for the backward of one part of a step.

        Args:
            samples: how many samples it is the mean of.
            weight: by what its mean gradient is multiplied in ``.grad``: ``1 / n`` for ``n`` micro-batches, ``r`` of
                SVAG, times the scale of a ``GradScaler``.
        """
        positive("samples", samples)
        number("weight", weight, "a finite number other than 0", lambda x: x != 0)
        if self._open is not None:
            raise RuntimeError("a part is open already: each part is one backward")
        if not self._parts and len(self._steps) == 1:  # once: reading gradients makes a GPU wait
            self._check_clear()
        self._open = part = _Part(float(samples), float(weight))
        self._looking = bool(self._parts) or self._ranks is not None
        try:
            yield
            if not self._looking:  # .grad holds this part alone, and no rank but this one's
                self._hold_grads()
            self._look(part)
            self._parts.append(part)
        finally:
            self._open = None
            self._held, self._size = [], 0

    def listen(self, on: bool) -> None:
        """Put the hooks on the parameters, or take them off for steps that are not measured."""
        if on:
            self._hooks.attach()
        elif not self._sharded:  # those of gathered parameters are found in a forward
            self._hooks.remove()

    def latest(self, *, preconditioned: bool = False) -> tuple[float, float]:
        """Return the estimates of ``Tr Sigma`` and ``|grad f|^2`` of the latest step alone, of all parameters."""
        first = self._number if preconditioned else 0
        trace, gradient = self._steps[-1][0][:, first : first + self._number].sum(1).tolist()
        return trace, gradient

    def discard(self) -> None:
        """Forget the parts of this step, which was broken off."""
        self._parts.clear()

    def _check_measured(self) -> None:
        """Refuse to go on where the optimizer has got other parameters since the meter was made."""
        if self._measured is None:
            return
        optimizer, before = self._measured
        now = [len(group["params"]) for group in optimizer.param_groups]
        if now != before:
            raise ValueError(
                f"the optimizer's groups have {now} parameters, and had {before} when the meter was made, which does "
                "not measure the new ones: call meter.remove() and make a NoiseMeter anew after add_param_group"
            )

    @torch.no_grad()
    def update(self) -> None:
        """Take the estimates of a step whose parts are complete; call it before ``.grad`` is changed or cleared."""
        self._check_measured()
        parts, self._parts = self._parts, []
        ranks = 1 if self._ranks is None else dist.get_world_size(self._ranks)
        if not parts or len(parts) * ranks < 2:
            raise ValueError(
                f"a step needs at least two parts to tell noise from gradient, got {len(parts)}: without accumulation, "
                "split the batch into two halves, each with its own backward in `with meter.part(samples=len(half), "
                "weight=1 / 2)`, in some of the steps; data-parallel ranks are parts too, with process_group=..."
            )
        self._hold_grads()
        if not self._held:
            raise ValueError("no parameter has a .grad: update() comes before zero_grad()")
        whole = _Part(1.0, 1.0)
        self._look(whole)
        squares = self._squares([*parts, whole])
        weights = torch.tensor([part.weight**-2 for part in parts], dtype=self._wide)
        seen = (squares[:-1] * weights.to(self._device, non_blocking=True)[:, None]).sum(0)
        sums: list[float] = [
            len(parts),
            sum(1 / part.samples for part in parts),
            sum(part.weight for part in parts) / ranks,
            sum(part.weight**2 / part.samples for part in parts) / ranks**2,
        ]
        if self._ranks is None:
            self._solve(seen, squares[-1], *sums)
            return
        message = torch.cat([seen, *(seen.new_full((1,), x) for x in sums)])
        if self._sharded:  # each rank has a part of the whole gradient too
            message = torch.cat([squares[-1], message])
        dist.all_reduce(message, group=self._ranks)
        whole_squares, message = (
            (message[: len(seen)], message[len(seen) :]) if self._sharded else (squares[-1], message)
        )
        self._solve(message[:-4], whole_squares, *message[-4:])

    def _solve(self, seen: Tensor, whole: Tensor, count: Any, inverse: Any, weight: Any, spread: Any) -> None:
        """Solve the two equations; sums that are tensors stay on their device, as copying them would wait."""
        mean, inverse, weight = seen / count, inverse / count, weight**2
        determinant = spread - weight * inverse
        if not isinstance(determinant, Tensor) and math.isclose(spread, weight * inverse, rel_tol=1e-9):
            raise ValueError("parts of these weights do not tell noise from gradient (SVAG with ell = 1, say)")
        trace = (whole - weight * mean) / determinant
        self._steps.append((torch.stack((trace, mean - trace * inverse)), weight / spread))

    def _values(self) -> Array:
        """Return the estimates of the steps in the window, ``[steps, 2, columns]``."""
        if not self._steps:
            return np.empty((0, 2, self._number))
        values: Array = torch.stack([pair for pair, _ in self._steps]).double().cpu().numpy()
        return values

    def estimate(
        self, group: int | None = None, *, preconditioned: bool = False, batch_size: float | None = None
    ) -> Noise:
        """Return the estimates over the window, of all parameters or of one parameter group.

        Args:
            group: the number of a parameter group.
            preconditioned: in the optimizer's metric; from the steps at which it had a second moment.
            batch_size: for the share of coordinates; by default that of the steps.
        """
        if preconditioned and self._metric is None:
            raise ValueError("the optimizer's metric was not measured: make the meter with preconditioned=True")
        if group is not None and not 0 <= group < self._number:
            raise ValueError(f"group must be one of the {self._number} parameter groups, counted from 0, got {group}")
        values, groups = self._values(), slice(None) if group is None else slice(group, group + 1)
        first = self._number if preconditioned else 0
        columns = values[:, :, first : first + self._number][:, :, groups].sum(2)
        finite = np.isfinite(columns).all(1)
        if finite.sum() < 8:
            raise ValueError(f"at least 8 steps are needed for an interval, got {finite.sum()}{_dropped(finite)}")
        noise = noise_of(columns[finite])
        if not self._points:
            return noise
        size = float(self._steps[-1][1]) if batch_size is None else positive("batch_size", batch_size)
        owners = np.repeat([int(self._group[i]) for i in self._points], [len(x) for x in self._points.values()])
        points = values[finite][:, :, -len(owners) :][:, :, owners == group if group is not None else slice(None)]
        return Noise(noise.trace, noise.gradient, noise.scale, noise.steps, dominated_share(points, size), size)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        self._hooks.remove()


def _dropped(finite: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    return f" (and {(~finite).sum()} without a finite estimate)" if not finite.all() else ""
