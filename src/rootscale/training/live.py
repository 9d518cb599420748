"""A live run as the objects it consists of, and a change of its batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler

from rootscale.batch_size import BatchSize
from rootscale.format import show
from rootscale.hparams import positive
from rootscale.training.markers import Carried, same, units_of
from rootscale.training.targets import bare_optimizers, several
from rootscale.units import Number

__all__ = ["Interval", "Live", "Size", "Switch", "is_reached"]

Interval = Literal["step", "epoch"]
Size = BatchSize | Number | str


@dataclass(frozen=True)
class Live:
    """Hold the objects of a run that are converted together; each may be one or several.

    Args:
        optimizer, scheduler, model, ema, interval: as for `rescale_`.
    """

    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None
    ema: Any = None
    interval: Interval | Sequence[Interval] = "step"

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, Iterator):  # it can be read only once
            object.__setattr__(self, "optimizer", list(self.optimizer))

    def given(self, argument: str) -> list[Any]:
        """Return what was given for an argument, as a list."""
        if argument == "optimizer":
            return list(bare_optimizers(self.optimizer))
        return several(getattr(self, argument))

    @property
    def carried(self) -> list[Carried]:
        """Return the units of each optimizer."""
        return [units_of(one.param_groups) for one in self.given("optimizer") if hasattr(one, "param_groups")]


@dataclass(frozen=True)
class Switch:
    """A change of batch size.

    Args:
        kappa: new batch size over old one.
        forward_kappa: the same of the samples of one forward pass.
        sizes: the batch sizes before and after; None where they are not known.
        forward_given: whether ``forward_kappa`` was said, by layouts or as a number, and is not taken to be ``kappa``.
        unclear: what to say where it was said by halves, and there is BatchNorm to convert.
    """

    kappa: float
    forward_kappa: float
    sizes: tuple[float | None, float | None] = (None, None)
    forward_given: bool = False
    unclear: str = ""

    @classmethod
    def of(
        cls,
        kappa: float | None,
        batch_size: Size | tuple[Size, Size] | None = None,
        forward_kappa: float | None = None,
        carried: Sequence[Carried] = (),
    ) -> Switch:
        """Return the change that is meant.

        Args:
            kappa: new batch size over old one, or None where batch sizes are given.
            batch_size: the old and the new one; the new one alone where the run carries the old one.
            forward_kappa: None is what the batch sizes say.
            carried: the units of the run's optimizers.

        Raises:
            ValueError: both or none were given, or the run is at another batch size than the old one.
        """
        if (kappa is None) == (batch_size is None):
            given = "neither" if kappa is None else "both"
            raise ValueError(
                "give either kappa or batch_size=(before, after), as in rescale_(optimizer, 4) or "
                f"rescale_(optimizer, batch_size=(16, 64)); got {given}"
            )
        known: set[float | None] = {one.batch_size for one in carried} or {None}
        if kappa is not None:
            kappa = positive("kappa", kappa)
            now = known.pop() if len(known) == 1 else None
            forward = kappa if forward_kappa is None else positive("forward_kappa", forward_kappa)
            return cls(kappa, forward, (now, None if now is None else now * kappa), forward_kappa is not None)
        before, after = _pair(batch_size, known)
        sizes = float(before.total), float(after.total)
        for one in known - {None}:
            if one is not None and not same(one, sizes[0]):
                raise ValueError(f"the run is at batch size {show(one)}, not at {show(sizes[0])}")
        if forward_kappa is not None:
            return cls(sizes[1] / sizes[0], positive("forward_kappa", forward_kappa), sizes, forward_given=True)
        forward, both = float(before.forward_kappa(after)), before.laid_out and after.laid_out
        unclear = _half_laid_out(before, after) if before.laid_out != after.laid_out else ""
        return cls(sizes[1] / sizes[0], forward, sizes, both, unclear)


def _pair(given: Any, known: set[float | None]) -> tuple[BatchSize, BatchSize]:
    if isinstance(given, list | tuple):
        if len(given) != 2:
            raise ValueError(f"batch_size must be (before, after) or the new one alone, got {len(given)} numbers")
        return BatchSize.of(given[0]), BatchSize.of(given[1])
    after = BatchSize.of(given)
    if len(known) != 1 or None in known:
        raise ValueError(
            f"the run does not carry its batch size: give batch_size=(before, {given!r}), or call "
            "track_(optimizer, batch_size=...) when the run starts"
        )
    return BatchSize.of(known.pop() or 0), after


def _half_laid_out(before: BatchSize, after: BatchSize) -> str:
    """Return what to say of a layout beside a number: how many samples a forward had, or will have, is not known."""
    laid, plain = (before, after) if before.laid_out else (after, before)
    example = tuple(one.to_json() if one.laid_out else f"{one.total}x1x1" for one in (before, after))
    return (
        f"batch_size has the layout {laid.to_json()} beside {plain.total}, which does not say how many samples "
        f"one forward has, and BatchNorm averages over those: give both as layouts, as in {example}, both as numbers, "
        f"as in ({before.total}, {after.total}), or forward_kappa too"
    )


def is_reached(batch_size: Any, carried: Sequence[Carried]) -> bool:
    """Return whether all optimizers of a run carry the batch size that a change would end at."""
    if batch_size is None or not carried:
        return False
    sizes = [float(BatchSize.of(one).total) for one in several(batch_size)]
    return all(one.batch_size is not None and same(one.batch_size, sizes[-1]) for one in carried)
