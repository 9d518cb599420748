"""The samples of one optimizer step, and how they are laid out over backward passes and workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from rootscale.format import show
from rootscale.messages import say
from rootscale.schedule import Count, count
from rootscale.units import Number

__all__ = ["BatchSize"]


@dataclass(frozen=True)
class BatchSize:
    """Samples per optimizer step: ``micro`` per backward, times ``accumulation``, times ``workers``.

    >>> BatchSize.of("32x4x8").total
    1024

    Args:
        micro: samples of one backward on one worker.
        accumulation: backward passes of one step.
        workers: that share a step.

    Attributes:
        laid_out: whether accumulation or workers were given. ``256x1x1`` says that one forward has 256 samples; 256
            alone does not say how they are laid out.
    """

    micro: Count
    accumulation: int = None  # type: ignore[assignment]  # 1, where it is not given
    workers: int = None  # type: ignore[assignment]
    laid_out: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"micro": self.micro, "accumulation": self.accumulation, "workers": self.workers}
        object.__setattr__(self, "laid_out", not (self.accumulation is None and self.workers is None))
        object.__setattr__(self, "micro", count("batch_size", self.micro))
        for name in ("accumulation", "workers"):
            object.__setattr__(self, name, count(name, 1 if given[name] is None else given[name]))
        for name in given:
            value = getattr(self, name)
            if isinstance(value, Fraction) and (name != "micro" or not self.plain):
                raise ValueError(say("whole", name=name, value=show(value)))

    @classmethod
    def of(cls, value: BatchSize | Number | str) -> BatchSize:
        """Return the batch size of a number, or of ``"micro x accumulation x workers"`` such as ``"32x4x8"``."""
        if isinstance(value, BatchSize):
            return value
        if isinstance(value, str):
            parts = value.lower().replace("×", "x").split("x")
            if len(parts) not in (1, 3):
                raise ValueError(say("batch size", value=repr(value)))
            return cls(*(part.strip() for part in parts))  # type: ignore[arg-type]
        plain: Any = value
        return cls(plain.item() if getattr(value, "shape", None) == () else plain)  # a number in a tensor, or of numpy

    @property
    def total(self) -> Count:
        """Samples per optimizer step; a fraction stands for a nominal batch size, as SVAG's."""
        return self.micro * self.accumulation * self.workers

    @property
    def forward(self) -> Count:
        """Samples of one forward pass, over all workers: BatchNorm's running averages take a step with each."""
        return self.micro * self.workers

    @property
    def plain(self) -> bool:
        """Whether it has neither accumulation nor several workers."""
        return self.accumulation == self.workers == 1

    def at(self, other: BatchSize | Number | str) -> BatchSize:
        """Return the layout for another total: where it divides, the accumulation follows and the rest stays."""
        new = BatchSize.of(other)
        if not self.laid_out or new.laid_out:
            return new
        accumulation = Fraction(new.total) / (self.micro * self.workers)
        return replace(self, accumulation=int(accumulation)) if accumulation.denominator == 1 else new

    def forward_kappa(self, new: BatchSize) -> Fraction:
        """Return by how much the samples of a forward grow; all of kappa where one of the layouts is not known.

        >>> BatchSize.of("32x1x1").forward_kappa(BatchSize.of("32x4x1"))
        Fraction(1, 1)
        """
        known = self.laid_out == new.laid_out
        old_size, new_size = (self.forward, new.forward) if known else (self.total, new.total)
        return Fraction(new_size) / Fraction(old_size)

    def __str__(self) -> str:
        if self.plain:
            return show(self.total)
        return say(
            "layout of batch", total=show(self.total), micro=self.micro, accumulation=self.accumulation,
            workers=self.workers,
        )  # fmt: skip

    def to_json(self) -> int | str:
        """Return a number, or the text that `of` reads."""
        if not self.laid_out:
            return self.micro if isinstance(self.micro, int) else str(self.micro)
        return f"{self.micro}x{self.accumulation}x{self.workers}"
