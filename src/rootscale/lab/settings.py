"""What the runs of a study have in common: when and what is measured, and how they are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rootscale.lab.provenance import device_of

#: Of the time of a check, the most that is spent on measuring, if nothing else is asked for.
SHARE = 0.2
#: A forward and a backward pass of a sample, in forward passes.
GRADIENT = 3
#: Points of a run and samples at each of them, from the most to the least, of which the first that fit are taken.
_LADDER = (
    (40, 2048), (40, 1024), (40, 512), (32, 512), (32, 256), (24, 256), (20, 256), (16, 256), (12, 256), (12, 128),
    (10, 128), (10, 64), (8, 64), (6, 64),
)  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """What is measured along a run.

    Args:
        points: how many points of a run are measured, where a grid is made from it.
        eval_samples: training samples, and test samples, on which losses and metrics are measured; all of them where
            there are fewer.
        noise: whether the norm of the gradient and its noise are measured.
        noise_samples: training samples on which they are.
        reestimate: whether the test loss is measured a second time, with BatchNorm's statistics taken anew over those
            training samples: its running averages lag behind where they are long, or where a run has begun just now.
            It is no part of what a run is; a model without BatchNorm, or a task without test data, has none.
        norms: whether the noise is also measured in Adam's metric and in the dual norms of sign and spectral updates.
        share: of the work of a check, the most that is measuring: the numbers above are then upper limits. Work is
            counted in samples that pass through the model, so that equal checks measure equally on all machines. A
            run of fewer than some 3,000 samples has a larger share: it needs a few points all the same. None takes
            the numbers as given.
    """

    points: int = 40
    eval_samples: int = 2048
    noise: bool = True
    noise_samples: int = 2048
    reestimate: bool = False
    norms: bool = False
    share: float | None = None

    def __post_init__(self) -> None:
        _at_least_one(self, "points", "eval_samples", "noise_samples")
        if self.share is not None and not 0 < self.share < 1:
            raise ValueError(f"share must lie between 0 and 1, got {self.share}")

    def work(self, train: int, test: int) -> int:
        """Return the samples that pass through the model at one point, of so many training and test samples.

        They are those of the losses, those in train mode that say whether the run has diverged, those of BatchNorm's
        statistics and the test loss with them, and those of the noise.
        """
        of_train, of_test = min(self.eval_samples, train), min(self.eval_samples, test)
        seen = 2 * of_train + of_test + (of_train + of_test if self.reestimate and test else 0)
        return seen + (GRADIENT * min(self.noise_samples, self.eval_samples, train) if self.noise else 0)

    def fitted(self, trained: int, train: int, test: int) -> Measure:
        """Return what is measured along a run of so many samples: no more than `share` allows, where it can be.

        Args:
            trained: samples that each run is trained on.
            train, test: samples of the data.
        """
        if self.share is None:
            return self
        room = self.share / (1 - self.share) * GRADIENT * trained
        for points, samples in _LADDER:
            found = replace(
                self, points=min(self.points, points), eval_samples=min(self.eval_samples, samples),
                noise_samples=min(self.noise_samples, samples),
            )  # fmt: skip
            if found.points * found.work(train, test) <= room:
                break
        return found


@dataclass(frozen=True)
class Setup:
    """How a run is trained.

    Args:
        device: of torch, such as ``cpu`` or ``cuda``.
        micro: most samples that go through the model at once; None takes whole batches.
        amp: whether the model runs in bfloat16 (autocast); None is where ``fast`` is chosen, on a GPU.
        fast: whether a GPU trains by CUDA graphs; a CPU ignores it.
        replacement: whether samples are drawn independently, as the theory wants, or shuffled anew for every epoch.
        max_loss: the train-mode loss above which a replica diverges, see
            `rootscale.compare.divergence`; None is 100 times the first one.
    """

    device: str = "cpu"
    micro: int | None = None
    amp: bool | None = None
    fast: bool = False
    replacement: bool = True
    max_loss: float | None = None

    def __post_init__(self) -> None:
        _at_least_one(self, "micro")
        device_of(self.device)


@dataclass(frozen=True)
class Settings:
    """What the runs of a study have in common.

    Args:
        grid: the samples seen at which a run is measured, increasing; the last is its end. See `grid`.
        switch_at: samples seen before the batch size changes; 0 changes it from the first step on.
        measure: what is measured there.
        setup: how the runs are trained.
    """

    grid: tuple[int, ...]
    switch_at: int = 0
    measure: Measure = field(default_factory=Measure)
    setup: Setup = field(default_factory=Setup)


def _at_least_one(settings: Measure | Setup, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def grid(stop: int, points: int = 50, start: int = 0, batch_sizes: Sequence[int] = (1,)) -> tuple[int, ...]:
    """Return evenly spaced numbers of samples seen, with whole steps at every batch size where there is room for that.

    >>> grid(1000, 5, batch_sizes=[4, 16])
    (0, 192, 400, 608, 800, 1000)
    """
    if stop <= start:
        raise ValueError(f"the end must lie after the start, {start} samples, got {stop}")
    if points < 1:
        raise ValueError(f"points must be at least 1, got {points}")
    unit = math.lcm(*batch_sizes)
    if unit > (stop - start) / (2 * points):
        unit = max(batch_sizes)
    places = [start + round((stop - start) * j / points / unit) * unit for j in range(points)]
    return tuple(sorted({*(place for place in places if place == start or stop - place >= max(batch_sizes)), stop}))
