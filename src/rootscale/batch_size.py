"""The samples of one optimizer step, and how they are laid out over backward passes and workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from rootscale.format import show
from rootscale.messages import say
from rootscale.sizes import Count, count, samples_of, show_samples
from rootscale.units import Number


@dataclass(frozen=True)
class BatchSize:
    """Samples per optimizer step: ``micro`` per backward, times ``accumulation``, times ``workers``.

    >>> BatchSize.of("32x4x8").total
    1024

    Args:
        micro: samples of one backward on one worker.
        accumulation: backward passes of one step.
        workers: that share a step.

        sequence_length: tokens of a sample, where samples are sequences; sizes may then be given in tokens.

    Attributes:
        laid_out: whether accumulation or workers were given. ``256x1x1`` says that one forward has 256 samples; 256
            alone does not say how they are laid out.
    """

    micro: Count
    accumulation: int = None  # type: ignore[assignment]  # 1, where it is not given
    workers: int = None  # type: ignore[assignment]
    sequence_length: int | None = field(default=None, compare=False)
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
        object.__setattr__(self, "sequence_length", _length(self.sequence_length))

    @classmethod
    def of(cls, value: BatchSize | Number | str, sequence_length: int | None = None) -> BatchSize:
        """Return the batch size of a number, of ``"0.5M tokens"``, or of a layout such as ``"32x4x8"``.

        A layout is ``micro x accumulation x workers``, in samples. `rootscale.sizes.samples_of` says what a text
        without a unit counts.

        >>> BatchSize.of("0.5M tokens", sequence_length=2000).total
        250
        """
        sequence_length = _length(sequence_length)
        if isinstance(value, BatchSize):
            if sequence_length is None or value.sequence_length == sequence_length:
                return value
            if value.sequence_length is not None:
                raise ValueError(
                    say("two sequence lengths", length=show(value.sequence_length), value=show(sequence_length))
                )
            layout = {"accumulation": value.accumulation, "workers": value.workers} if value.laid_out else {}
            return cls(value.micro, **layout, sequence_length=sequence_length)
        if isinstance(value, str):
            parts = value.lower().replace("×", "x").split("x")
            if len(parts) not in (1, 3):
                raise ValueError(say("batch size", value=repr(value)))
            if len(parts) == 1:
                return cls(samples_of("batch_size", value, sequence_length), sequence_length=sequence_length)
            micro, accumulation, workers = (part.strip() for part in parts)
            return cls(micro, accumulation, workers, sequence_length)  # type: ignore[arg-type]
        plain: Any = value
        number = plain.item() if getattr(value, "shape", None) == () else plain  # a number in a tensor, or of numpy
        return cls(number, sequence_length=sequence_length)

    @property
    def total(self) -> Count:
        """Samples per optimizer step; a fraction stands for a nominal batch size, as SVAG's."""
        return self.micro * self.accumulation * self.workers

    @property
    def tokens(self) -> Count | None:
        """Tokens per optimizer step; None where the length of a sequence is not known."""
        return None if self.sequence_length is None else self.total * self.sequence_length

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
        new = BatchSize.of(other, self.sequence_length)
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
        total = show_samples(self.total, self.sequence_length)
        if self.plain:
            return total
        return say(
            "layout of batch", total=total, micro=self.micro, accumulation=self.accumulation,
            workers=self.workers,
        )  # fmt: skip

    def to_json(self) -> int | str:
        """Return a number, or the text that `of` reads."""
        if not self.laid_out:
            return self.micro if isinstance(self.micro, int) else str(self.micro)
        return f"{self.micro}x{self.accumulation}x{self.workers}"


def _length(tokens: Any) -> int | None:
    """Return the tokens of a sequence, a whole number."""
    length = None if tokens is None else count("sequence_length", tokens)
    if isinstance(length, Fraction):
        raise ValueError(say("whole", name="sequence_length", value=show(length)))
    return length
