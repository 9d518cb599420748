"""Convert an optimizer in place, once: the numbers of a `Run`'s step, written down for good.

`Run` keeps the script's numbers, and is what a training loop wants. This is for those who want new numbers: a script
that goes on at the new batch size as if it had always had it.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from rootscale.batch_size import BatchSize
from rootscale.changes import Change, Changes, Reminder, ScalingWarning
from rootscale.format import show
from rootscale.hparams import positive
from rootscale.training.averages import NormLayers, ParameterAverage
from rootscale.training.guards import doubts, momentum_look
from rootscale.training.optimizers import (
    Rules,
    check_forward,
    common_rule,
    prefixed_errors,
    ruled_optimizers,
    several,
)
from rootscale.training.projected import ProjectedOptimizer, is_projected
from rootscale.training.run import Size, arrive_all, check_layouts
from rootscale.training.schedulers import is_driven

if TYPE_CHECKING:
    from rootscale.rules import Rule
    from rootscale.training.state import StateScaling


def rescale_(
    optimizer: Any,
    kappa: float | None = None,
    *,
    batch_size: tuple[Size, Size] | None = None,
    model: Any = None,
    ema: Any = None,
    clip: float | None = None,
    rule: Rules = None,
    state: bool = True,
    loss: Literal["mean", "sum"] = "mean",
    forward_kappa: float | None = None,
    dry_run: bool = False,
    scheduler: None = None,
) -> Changes:
    """Convert an optimizer to ``kappa`` times its batch size, in place and for good.

    Everything is checked first; after an error nothing has changed. Nothing is remembered: a second call converts a
    second time, and a checkpoint has the new numbers. The steps that are left, intervals and the clip are yours to
    change (``changes.remaining``), and so is a learning-rate scheduler: make it anew for the new numbers, or use `Run`,
    in which it goes on as it is.

    Args:
        optimizer: one that has a row in `rootscale.optimizers`, or several in a list, a dictionary or a container.
        kappa: new batch size over old one; any positive number.
        batch_size: instead of ``kappa``, the old and the new one, as in ``(16, 64)`` or ``("16x1x1", "16x4x1")``.
        model: the model (or several) whose BatchNorm momentum is to be converted.
        ema: averages of the parameters, as for `Run`.
        clip: the largest gradient norm until now; that from now on is ``changes.clip``.
        rule, loss: as for `Run`.
        state: whether the optimizer's state is converted too; without it the run is disturbed until the averages
            have forgotten the old batch size.
        forward_kappa: the same as ``kappa`` for the samples of one forward pass, which BatchNorm averages over; None is
            ``kappa``, or what the layouts of ``batch_size`` say; 1 is a change by gradient accumulation alone.
        dry_run: only check, and return what would be changed.
        scheduler: refused; see above.

    Returns:
        What was changed and what is left to you; print it.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.98, 0.999))
    >>> changes = rescale_(optimizer, batch_size=(16, 64), clip=1.0)
    >>> changes["lr"].after, optimizer.param_groups[0]["lr"], changes.clip, changes.steps_factor
    (0.002, 0.002, 0.5, 0.25)
    """
    for name, value in (("state", state), ("dry_run", dry_run)):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
    if scheduler is not None:
        raise TypeError(
            "rescale_ writes new numbers once, and a scheduler sets its own at every step: use "
            "Run(optimizer, tuned_at=..., batch_size=..., scheduler=scheduler), or make the scheduler anew"
        )
    if loss not in ("mean", "sum"):
        raise ValueError(f"loss must be 'mean' or 'sum' (over the batch), got {loss!r}")
    kappa, forward, sizes = _change(kappa, batch_size, forward_kappa)
    found = ruled_optimizers(optimizer, rule, summed=loss == "sum")
    for held in found:
        if is_projected(held.optimizer):
            raise ValueError(
                f"{held.prefix}this {type(held.optimizer).__name__} is in a Run, which keeps its numbers: set "
                "run.batch_size, or call run.detach() first"
            )
    common = common_rule(found)
    optimizers = [ProjectedOptimizer(held.optimizer, held.rules, held.prefix) for held in found]
    layers = NormLayers(several(model), refuse_scripted=forward != 1 and "batchnorm" in common.units)
    averages = [ParameterAverage(one) for one in several(ema)]
    if batch_size is not None and forward_kappa is None and layers.layers and "batchnorm" in common.units:
        check_layouts(*map(BatchSize.of, batch_size))
    _check_shared(optimizers, kappa)

    rows, scalings, messages = [], [], []
    for one in optimizers:
        with prefixed_errors(one.prefix):
            one.check(kappa)
            check_forward(one, kappa, forward)
            if state:
                scalings.append(one.scaling(kappa))
            own = [*one.changes(kappa), *(one.state_changes(kappa) if state else ())]
        rows += [replace(row, name=f"{one.prefix}{row.name}", field=f"{one.prefix}{row.field}") for row in own]
        messages += _warnings(one, kappa, state, bool(layers.layers))
    rows += layers.changes(common, forward)
    rows += [average.change(common, kappa) for average in averages]
    if clip is not None:
        clip = positive("clip", clip)
        after = float(common.convert("clip", clip, kappa, "clip"))
        rows.append(Change("clip", clip, after, common.units.get("clip")))
    for message in messages:  # before anything is changed, for those who turn warnings into errors
        python_warnings.warn(message, ScalingWarning, stacklevel=2)
    looks = [line for one in optimizers for line in momentum_look(one, kappa, None if sizes is None else max(sizes))]
    if not dry_run:
        _convert(optimizers, scalings, averages, layers, common, (kappa, forward))
    left = _left(kappa, sizes, float(common.convert("clip", 1.0, kappa)), clip is None)
    left += tuple(layers.left(common, forward)) + tuple(looks)
    used = [pair for one in optimizers for pair in one.families]
    return Changes.made(kappa, common, rows, messages, optimizers=used, batchnorm=bool(layers.layers), remaining=left)


def _change(
    kappa: float | None, batch_size: Any, forward_kappa: float | None
) -> tuple[float, float, tuple[float, float] | None]:
    """Return kappa, that of a forward pass, and the batch sizes where they are known."""
    if (kappa is None) == (batch_size is None):
        raise ValueError(
            "give either kappa or batch_size=(before, after), as in rescale_(optimizer, 4) or "
            f"rescale_(optimizer, batch_size=(16, 64)); got {'neither' if kappa is None else 'both'}"
        )
    own = None if forward_kappa is None else positive("forward_kappa", forward_kappa)
    if kappa is not None:
        kappa = positive("kappa", kappa)
        return kappa, kappa if own is None else own, None
    if not isinstance(batch_size, list | tuple) or len(batch_size) != 2:
        raise ValueError(f"batch_size must be (before, after), such as (16, 64), got {batch_size!r}")
    before, after = map(BatchSize.of, batch_size)
    sizes = float(before.total), float(after.total)
    return sizes[1] / sizes[0], float(before.forward_kappa(after)) if own is None else own, sizes


def _warnings(one: ProjectedOptimizer, kappa: float, state: bool, batchnorm: bool) -> list[str]:
    messages = [f"{one.prefix}{text}" for name, rule in one.rules.items() for text in rule.check(name)]
    if is_driven(one.optimizer) and kappa != 1:
        messages.append(
            f"{one.prefix}a scheduler drives this {type(one.optimizer).__name__} and will set its old learning rates "
            "again: use Run(..., scheduler=scheduler), or make the scheduler anew for the new ones"
        )
    return [*messages, *doubts(one, kappa, state, batchnorm=batchnorm)]


def _convert(
    optimizers: Sequence[ProjectedOptimizer],
    scalings: Sequence[StateScaling],
    averages: Sequence[ParameterAverage],
    layers: NormLayers,
    rule: Rule,
    to: tuple[float, float],
) -> None:
    """Convert all or nothing; the plain numbers of groups, which nothing refuses, come last."""
    owners = optimizers if scalings else ()
    interrupted = arrive_all(owners, scalings, averages, layers, rule, to, (1.0, 1.0))
    tensors: set[int] = set()
    for one in optimizers:
        one.write(to[0], tensors)
    if interrupted is not None:
        raise interrupted


def _check_shared(optimizers: Sequence[ProjectedOptimizer], kappa: float) -> None:
    """Refuse a tensor that optimizers share as a hyperparameter and that their rules convert differently."""
    seen: dict[int, tuple[int, Any]] = {}
    for i, one in enumerate(optimizers):
        for _, group, projection in one.groups():
            for key in projection.units:
                if isinstance(group[key], torch.Tensor):
                    first, after = seen.setdefault(id(group[key]), (i, projection.factor(key, kappa)))
                    if after != projection.factor(key, kappa):
                        raise ValueError(
                            f"optimizers {first} and {i} share a tensor as their {key}, but their rules convert it "
                            "differently; give each a tensor of its own"
                        )


def _left(kappa: float, sizes: tuple[float, float] | None, factor: float, clips: bool) -> tuple[str, ...]:
    if kappa == 1:
        return ()
    change = f"times {show(kappa)}" if sizes is None else f"{show(sizes[0])} -> {show(sizes[1])}"
    lines: list[str] = [
        Reminder(f"batch size of the data loader (or accumulation, or workers): {change}", "batch size"),
        Reminder(
            f"steps left, and every interval in steps (logging, evaluation, checkpoints): divide by {show(kappa)}",
            "steps",
        ),
    ]
    if clips and factor != 1:
        lines.append(Reminder(f"gradient clip, if there is one: times {show(factor)}", "clip"))
    return tuple(lines)
