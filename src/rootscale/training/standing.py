"""Where something beside an optimizer stands: in the units of the optimizer, ahead of them, or behind.

Ahead is what another optimizer was converted with, in a call of its own. Behind is what an earlier call was not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rootscale.format import show
from rootscale.training.markers import TAG, Carried, Part, same

__all__ = ["Standing", "left_behind"]


@dataclass(frozen=True)
class Standing:
    """What a change asks of BatchNorm's momentum, of parameter averages or of a scheduler.

    Args:
        part: which of them.
        kappa: by which they change.
        carried: the units of their optimizers, before the change.
        known: whether an earlier change in this process was given them. How many samples a forward pass has, which
            counts for BatchNorm, does not follow from the units.
    """

    part: Part
    kappa: float
    carried: Sequence[Carried]
    known: bool = False

    def due(self, tag: float) -> tuple[float, str]:
        """Return by which factor to convert what has been converted by ``tag`` so far, and a note for the report.

        Raises:
            ValueError: it is ahead, but not where this change leads.
        """
        if self.kappa == 1 or self._is_with(tag):
            return self.kappa, ""
        if self._is_there(tag):
            return 1.0, "at the new batch size already, by another call"
        if same(tag, 1.0) or any(same(tag, one) for one in self._parts):
            return self.kappa, ""
        name, units = self.part.argument, show(self.carried[0].kappa)
        raise ValueError(
            f"{self.part.what} has been converted by kappa = {show(tag)} and the optimizer by {units}, so a change of "
            f"both by {show(self.kappa)} does not bring them together: give {name} to one of the calls only, that of "
            f"the optimizer whose batch size it follows. If its number is one for the optimizer's batch size of now, "
            f"set its attribute {TAG} to {units}"
        )

    def behind(self, tags: Iterable[float]) -> Iterator[str]:
        """Yield a warning, if something that has been converted by one of ``tags`` lags behind its optimizers."""
        lags = [lag for tag in tags if not same(lag := self._lag(tag), 1.0)]
        if self.kappa != 1 and lags:
            yield left_behind(self.part.argument, lags[0])

    def _lag(self, tag: float) -> float:
        if self._is_there(tag):
            return 1.0
        if self.part.argument != "model":
            return 1.0 if self._is_with(tag) else self.carried[0].kappa / tag
        fits = self.known and any(same(tag, one) for one in self._parts)
        if not same(tag, 1.0) or fits or any(same(one.kappa, 1.0) for one in self.carried):
            return 1.0
        return self.carried[0].kappa if same(self._parts[0], 1.0) else self._parts[0]

    @property
    def _parts(self) -> list[float]:
        return [one.parts.get(self.part.argument, 1.0) for one in self.carried]

    @property
    def _units(self) -> list[float]:
        own = self._parts if self.part.argument == "model" else []
        return [*own, *(one.kappa for one in self.carried)]

    def _is_with(self, tag: float) -> bool:
        return any(same(tag, one) for one in self._units)

    def _is_there(self, tag: float) -> bool:
        return any(same(tag, one * self.kappa) for one in self._units)


def left_behind(argument: str, lag: float) -> str:
    """Return what to say of something that an earlier change by ``lag`` was not given; see `Part` for its argument."""
    number, back = show(lag), f"{1 / lag!r}"
    if argument == "ema":
        return (
            "the average of the parameters was not given to rescale_, so its decay still counts the steps of an "
            f"earlier batch size; to convert it now, set its decay to decay ** {number}, unless it was made since"
        )
    if argument == "model":
        return (
            "BatchNorm was not given to an earlier rescale_, so its momentum still is that of an earlier batch size; "
            f"to convert it now, set it to 1 - (1 - momentum) ** {number}, unless that change was one of accumulation, "
            "or the layers were made since"
        )
    return (
        "the scheduler was not given to an earlier rescale_, so its clock and its learning rates are those of an "
        f"earlier batch size, unless it was made since: go back with rescale_(optimizer, {back}), and then convert "
        f"both with rescale_(optimizer, {number}, scheduler=scheduler)"
    )
