"""The noise of the gradient on given samples, exactly: from squared norms of per-sample gradients.

    Tr Sigma = mean_s |g_s|^2 - |g|^2,     g = mean_s g_s

with ``g_s`` the gradient of the loss of sample ``s``. The per-sample gradients themselves would take as much memory as
the model times the batch. `rootscale.training.collector` finds their norms in one forward and one backward of the
batch; where a layer has no formula, it takes explicit gradients, a few samples at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from rootscale.hparams import positive
from rootscale.noise import Noise
from rootscale.training.collector import Collector, mixing_layers, random_layers, sample_gradients, wide
from rootscale.training.layers import Sums, Wanted, add_sums, dense_sums
from rootscale.training.metric import Metric
from rootscale.training.noise_moments import add_moments, moments_of, read_numbers, squared_norms

Loss = Callable[[Any, Any], Tensor]


def _total(loss: Loss, outputs: Any, targets: Any, samples: int) -> Tensor:
    """Return the sum of the samples' losses."""
    value = loss(outputs, targets)
    if value.dim() == 0:
        return value * samples
    if value.shape != (samples,):
        raise ValueError(
            f"loss must return the mean over the samples or one value a sample, of shape ({samples},); "
            f"got shape {tuple(value.shape)}"
        )
    return value.sum()


def _fallback(
    model: nn.Module, loss: Loss, names: list[str], x: tuple[Tensor, ...], y: Tensor, wanted: Wanted
) -> dict[str, Sums]:
    """Sum explicit per-sample gradients, a few samples at a time; one by one where a layer does not know ``vmap``."""
    every = {name: p.detach() for name, p in model.named_parameters()}
    some = {name: every[name] for name in names}

    def one(parameters: dict[str, Tensor], x: tuple[Tensor, ...], y: Tensor) -> Tensor:
        outputs = functional_call(model, {**every, **parameters}, tuple(part.unsqueeze(0) for part in x))
        return _total(loss, outputs, y.unsqueeze(0), 1)

    pieces: dict[str, list[Sums]] = {name: [] for name in some}
    each = sum(p.numel() for p in some.values()) // 16  # fewer calls, larger slices
    for rows in wanted.slices(len(y), each, y.device):
        xs = tuple(part[rows] for part in x)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")  # torch's own; faster than one by one
                gradients = sample_gradients(one, some, xs, y[rows])
        except (RuntimeError, ValueError, NotImplementedError):
            alone = [grad(one)(some, tuple(part[i] for part in xs), y[rows][i]) for i in range(len(y[rows]))]
            gradients = {name: torch.stack([g[name] for g in alone]) for name in some}
        for name, gradient in gradients.items():
            pieces[name].append(dense_sums(wide(gradient).contiguous(), wanted))
    return {name: add_sums(piece) for name, piece in pieces.items()}


def _refuse(model: nn.Module) -> None:
    """Refuse models whose samples see each other, or whose gradients are random."""
    for name, layer in mixing_layers(model):
        raise ValueError(
            f"{name or 'the model'} is a {type(layer).__name__} that normalizes with the batch's own statistics: "
            "the samples see each other and have no gradients of their own; call model.eval(), or use NoiseMeter"
        )
    for name, layer, _ in random_layers(model):
        raise ValueError(f"{name or 'the model'} is an active {type(layer).__name__}; call model.eval() first")
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
            raise ValueError(
                f"{name or 'the model'} scales its gradient by how often a token occurs in the batch; "
                "make the Embedding with scale_grad_by_freq=False"
            )


_DEPENDENT = (
    " in the batch: the loss is a sum and not a mean over the samples, or they see each other, or are not along the "
    "first dimension, or the model is random; exact_noise needs samples with gradients of their own"
)


def _verify(audit: _Audit, x: tuple[Tensor, ...], y: Tensor, norms: Tensor) -> None:
    """Check that the sample with the largest gradient has the same norm alone as in the batch."""
    i = norms.argmax().unsqueeze(0)  # stays on its device: a number that is read waits for all work on a GPU
    total = _total(audit.loss, audit.model(*(part.index_select(0, i) for part in x)), y.index_select(0, i), 1)
    parameters = list(audit.named.values())
    gradients: list[Tensor | None] = list(torch.autograd.grad(total, parameters, allow_unused=True))
    squares = squared_norms([wide(_dense(g)) for g in gradients if g is not None])
    *alone, together = read_numbers([*squares, norms.index_select(0, i)[0]])
    square = math.fsum(alone)
    if not math.isclose(square, together, rel_tol=_tolerance(parameters)):
        raise ValueError(f"sample {int(i)} has |gradient|^2 = {square:.6g} alone and {together:.6g}{_DEPENDENT}")


def _tolerance(parameters: Iterable[Tensor]) -> float:
    """Return how far rounding may carry two ways to the same gradient apart."""
    return 0.01 if all(p.dtype in (torch.float32, torch.float64) for p in parameters) else 0.1


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


@dataclass(frozen=True)
class ExactNoise(Noise):
    """What `exact_noise` found. The intervals are points: there is no error but rounding.

    Args:
        trace, gradient, scale, share, batch_size: as in `Noise`, of the given samples taken as the whole data set.
        samples: how many there are.
        norms: ``|g_s|^2`` of each sample, ``[samples]``.
        parameters: the same of each parameter, by its name.
        groups: the same of each parameter group of the optimizer.
        preconditioned: in the optimizer's metric.
    """

    samples: int = 0
    norms: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)
    parameters: Mapping[str, Noise] = field(default_factory=dict, repr=False)
    groups: tuple[Noise, ...] = field(default=(), repr=False)
    preconditioned: Noise | None = None

    def _source(self) -> str:
        return f"exact on {self.samples} samples"


@torch.enable_grad()
def exact_noise(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor | tuple[Tensor, ...],
    targets: Tensor,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    preconditioned: bool = False,
    batch_size: float | None = None,
    chunk: int = 256,
) -> ExactNoise:
    """Return ``Tr Sigma``, ``|grad f|^2`` and the noise scale on given samples, exactly: an audit, not for every step.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    >>> images, labels = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
    >>> noise = exact_noise(model, F.cross_entropy, images, labels, batch_size=16)
    >>> noise.samples, sorted(noise.parameters)
    (64, ['0.bias', '0.weight', '3.bias', '3.weight'])

    It takes one forward and one backward of each chunk of samples, and nothing of the size of per-sample gradients, for
    Linear, Conv1d to Conv3d, Embedding, LayerNorm, GroupNorm, RMSNorm and BatchNorm in ``eval`` mode. Parameters of
    other layers, and those used more than once, are done by ``torch.func.vmap`` of their gradients, or sample by sample
    where that fails. ``batch_size`` and ``preconditioned`` need every coordinate's variance: in convolutions and on
    sequences that takes per-sample gradients after all, a few samples at a time.

    The samples are taken as the whole data set. For a few of a larger one, ``|grad f|^2`` comes out larger by about
    ``Tr Sigma / samples``, and the scale smaller; never above about ``samples``.

    Args:
        model: in ``eval`` mode if it has BatchNorm or dropout; the samples along the first dimension of its inputs.
        loss: of ``(model(inputs), targets)``: the mean over the samples, or a value for each.
        inputs: a tensor, or a tuple of them for ``model(*inputs)``; moved to the model's device chunk by chunk.
        targets: what the loss wants, the samples along the first dimension.
        optimizer: for results by parameter group.
        preconditioned: also in the optimizer's metric, ``|g / (sqrt(v_hat) + eps)|^2``; needs the optimizer.
        batch_size: ``B`` for the share of the coordinates where noise dominates, ``Sigma_ii / B > (d_i f)^2``.
        chunk: how many samples to take at a time.
    """
    _refuse(model)
    named: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("the model must have a parameter that requires a gradient, got none")
    if batch_size is not None:
        positive("batch_size", batch_size)
    if preconditioned and optimizer is None:
        raise ValueError("preconditioned=True needs the optimizer, for its second moment; give optimizer=...")
    roots = _roots(named, optimizer) if optimizer is not None and preconditioned else {}
    xs = inputs if isinstance(inputs, tuple) else (inputs,)
    samples = len(targets)
    if not samples or any(len(x) != samples for x in xs):
        given = f"{' and '.join(str(len(x)) for x in xs)} inputs and {samples} targets"
        raise ValueError(f"inputs and targets must have as many samples, at least one; got {given}")
    wanted = Wanted(second=preconditioned or batch_size is not None)
    found = _collect(_Audit(model, loss, named, wanted), xs, targets, int(positive("chunk", chunk)))
    groups = () if optimizer is None else tuple({id(p) for p in group["params"]} for group in optimizer.param_groups)
    members = [[name for name, p in named.items() if id(p) in group] for group in groups]
    return _result(found, samples, batch_size, members, roots)


def _result(
    found: dict[str, Sums], samples: int, size: float | None, groups: list[list[str]], roots: dict[str, Tensor]
) -> ExactNoise:
    """Return the noise of all parameters, of each, of the groups of names, and in the metric of ``roots`` if any."""
    parts = dict(zip(found, moments_of(list(found.values()), samples, size), strict=True))
    scaled = moments_of([found[name] for name in roots], samples, size, list(roots.values()))
    return ExactNoise(
        **add_moments(list(parts.values())).noise(size),
        samples=samples,
        norms=_norms(found.values()),
        parameters={name: Noise(**part.noise(size)) for name, part in parts.items()},
        groups=tuple(Noise(**add_moments([parts[name] for name in group]).noise(size)) for group in groups),
        preconditioned=Noise(**add_moments(scaled).noise(size)) if scaled else None,
    )


def _roots(named: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    roots: dict[str, Tensor] = {}
    for name, root in zip(named, Metric(optimizer).roots(named.values()), strict=True):
        if root is None:
            raise ValueError(f"the optimizer has no second moment of {name} yet: take a step first")
        roots[name] = root
    return roots


@dataclass(frozen=True)
class _Audit:
    """What is measured: the named parameters of a model under a loss, and the sums over their gradients."""

    model: nn.Module
    loss: Loss
    named: dict[str, Tensor]
    wanted: Wanted


def _collect(audit: _Audit, xs: tuple[Tensor, ...], targets: Tensor, chunk: int) -> dict[str, Sums]:
    """Return the sums over all samples, chunk by chunk; ``first`` is always there."""
    device = next(iter(audit.named.values())).device
    pieces: dict[str, list[Sums]] = {name: [] for name in audit.named}
    collector = Collector(audit.model)
    try:
        for start in range(0, len(targets), chunk):
            x = tuple(part[start : start + chunk].to(device) for part in xs)
            y = targets[start : start + chunk].to(device)
            one = _pass(audit, collector, x, y)
            for name in audit.named:
                pieces[name] = [add_sums([*pieces[name], one[name]])]
            if start == 0 or len(y) < chunk:  # a layout may be mistaken for another at one number of samples only
                _verify(audit, x, y, _norms(one.values()))
    finally:
        collector.remove()
    return {name: total for name, (total,) in pieces.items()}


def _norms(found: Iterable[Sums]) -> Tensor:
    """Return ``|g_s|^2`` of each sample over all parameters."""
    return torch.stack([one.norms for one in found if one.norms is not None]).sum(0)


def _pass(audit: _Audit, collector: Collector, x: tuple[Tensor, ...], y: Tensor) -> dict[str, Sums]:
    """Return the sums over one chunk of samples."""
    with collector.forward(len(y), audit.wanted):
        total = _total(audit.loss, audit.model(*x), y, len(y))
    once = collector.once(total)
    edges = {p: edge for p, edge in collector.edges.items() if p in once}  # only to have the backward come by
    plain = [p for p in audit.named.values() if p not in edges]
    inputs: list[Any] = [*plain, *dict.fromkeys(edges.values())]
    gradients: list[Tensor | None] = list(torch.autograd.grad(total, inputs, allow_unused=True))
    given = dict(zip(plain, gradients, strict=False))
    sums: dict[str, Sums] = {}
    firsts: dict[str, Tensor] = {}
    for name, p in audit.named.items():
        found = collector.found.get(p) if p in once else None
        first = found.first if p in edges and found is not None else given.get(p)
        if first is None:
            zero = torch.zeros_like(wide(p.detach()))
            sums[name] = Sums(zero.new_zeros(len(y)), zero if audit.wanted.second else None, zero)
        elif found is not None:
            sums[name] = found._replace(first=wide(_dense(first)))
        else:
            firsts[name] = wide(_dense(first))
    if firsts:
        sums |= _explicit(audit, firsts, x, y)
    return sums


def _explicit(audit: _Audit, firsts: dict[str, Tensor], x: tuple[Tensor, ...], y: Tensor) -> dict[str, Sums]:
    """Return the sums of explicit per-sample gradients, which must add up to those of the batch."""
    found = _fallback(audit.model, audit.loss, list(firsts), x, y, audit.wanted)
    for name, one in found.items():
        assert one.first is not None
        assert one.norms is not None
        error = float((one.first - firsts[name]).square().sum() / one.norms.sum())
        if error > _tolerance(audit.named.values()) ** 2:
            raise ValueError(f"the gradients of {name}, sample by sample, do not add up to the one{_DEPENDENT}")
    return {name: one._replace(first=firsts[name]) for name, one in found.items()}
