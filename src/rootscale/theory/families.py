"""Noise families: distributions of the driving noise ``xi`` of a stochastic gradient.

The noise of an oracle is ``z = Sigma^(1/2)(theta) xi`` with ``xi`` of mean zero and unit covariance. **A noise family
is therefore a distribution of xi and nothing else**: Gaussian, Rademacher, centered exponential, Student-t, the counts
of a mini-batch, and SVAG's combination of two draws of any of them. A family is a function of standard normals, so
that a chain and the solver of its SDE can share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from rootscale.hparams import positive
from rootscale.rules import svag_weights
from rootscale.theory_settings import GAUSSIAN, RADEMACHER, SKEWED, STUDENT_T


class Draw(NamedTuple):
    """A driving noise and a Brownian increment on the same probability space.

    Args:
        xi: ``[P, rank]``, of the family's distribution: mean zero, unit covariance.
        brownian: ``[P, rank]``, exactly standard normal, as near to ``xi`` as the family can make it.
    """

    xi: Tensor
    brownian: Tensor


@dataclass(frozen=True)
class Family:
    """A distribution of ``xi`` whose coordinates are independent: a function of as many standard normals.

    Args:
        name: as in `FAMILIES`.
        transform: maps a standard normal to one coordinate of ``xi``. An increasing map is the quantile coupling,
            which of all couplings has the greatest correlation of ``xi`` and ``brownian``.
        third: ``E xi^3`` of a coordinate.
        fourth: ``E xi^4`` of a coordinate.
    """

    name: str
    transform: Callable[[Tensor], Tensor] = field(repr=False)
    third: float
    fourth: float

    def __post_init__(self) -> None:
        w = torch.linspace(-9, 9, 9001, dtype=torch.double)
        density, xi = torch.softmax(-w * w / 2, 0), self.transform(w)
        mean, variance = float(density @ xi), float(density @ xi.square())
        if not (abs(mean) < 0.01 and abs(variance - 1) < 0.05):  # rough: of heavy tails much lies beyond 9
            raise ValueError(
                f"xi must have mean 0 and variance 1, since sigma and Sigma have its size; the transform of "
                f"{self.name!r} gives {mean:.3g} and {variance:.3g}"
            )

    def normals(self, rank: int) -> int:
        """Return how many standard normals a draw takes from each path."""
        return rank

    def couple(self, w: Tensor, rank: int) -> Draw:
        """Return the draw that these standard normals ``w`` (``[P, normals(rank)]``) give."""
        return Draw(self.transform(w), w)

    def at(self, sigma: float) -> Family | StudentT | Minibatch | Svag:
        """Return the family at another noise scale: the same, so its third moment does not shrink with ``sigma``."""
        return self


@dataclass(frozen=True)
class StudentT:
    """Student's t with ``nu`` degrees of freedom, scaled to unit variance: ``xi = w sqrt((nu - 2) / chi^2_nu)``.

    Moments of order ``nu`` and above do not exist, against the bounded moments condition.
    """

    nu: int = 5

    def __post_init__(self) -> None:
        if not (isinstance(self.nu, Integral) and self.nu >= 3):
            raise ValueError(f"nu must be an integer >= 3, for a finite variance, got {self.nu!r}")

    def normals(self, rank: int) -> int:
        """Return how many normals a draw takes: for each coordinate one for the numerator and ``nu`` for chi^2."""
        return rank * (1 + self.nu)

    def couple(self, w: Tensor, rank: int) -> Draw:
        """Return ``xi`` and its numerator ``w``, which is the Brownian increment."""
        w = w.reshape(w.shape[0], rank, 1 + self.nu)
        numerator = w[:, :, 0]
        return Draw(numerator * torch.sqrt((self.nu - 2) / w[:, :, 1:].square().sum(-1)), numerator)

    def at(self, sigma: float) -> StudentT:
        """Return the family at another noise scale: the same."""
        return self


@dataclass(frozen=True)
class Minibatch:
    """The noise of a mini-batch of ``batch_size`` samples drawn with replacement from ``rank`` data points.

    With ``N_i`` the number of times that point ``i`` was drawn, ``xi_i = sqrt(n / B) (N_i - B / n)``; it makes
    ``grad f + B^(-1/2) Sigma^(1/2) xi`` the mean of the ``B`` gradients, exactly. The Brownian increment is independent
    of the batch: any coupling is valid, and none that is near is known for all ``theta`` at once.

    ``sigma = 1 / sqrt(B)`` ends at 1, and the third moment of ``z`` goes as ``sigma``: on skewed data, ``eta -> 0`` at
    fixed ``sigma0`` has no limit by batch size alone. `svag` takes it further, with a third moment that shrinks.
    """

    batch_size: int

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or int(self.batch_size) != self.batch_size or self.batch_size < 1:
            raise ValueError(f"batch_size must be an integer >= 1, got {self.batch_size!r}")

    def normals(self, rank: int) -> int:
        """Return how many normals a draw takes: one for each sample, and ``rank`` for the Brownian increment."""
        return self.batch_size + rank

    def couple(self, w: Tensor, rank: int) -> Draw:
        """Return the counts of the batch, centered and scaled, and an independent Brownian increment."""
        picks, brownian = w[:, : self.batch_size], w[:, self.batch_size :]
        index = (torch.special.ndtr(picks) * rank).long().clamp_(0, rank - 1)
        counts = torch.zeros_like(brownian).scatter_add_(1, index, torch.ones_like(picks))
        return Draw(math.sqrt(rank / self.batch_size) * (counts - self.batch_size / rank), brownian)

    def at(self, sigma: float) -> Minibatch:
        """Return mini-batches of ``1 / sigma^2`` samples, which must be a whole number."""
        size = 1 / positive("sigma", sigma) ** 2
        if round(size) < 1 or abs(size - round(size)) > 1e-9 * size:
            raise ValueError(
                f"mini-batches have sigma = 1/sqrt(B) with an integer B >= 1, got sigma={sigma:.6g} (B={size:.6g}); "
                f"use sigma={1 / math.sqrt(max(1, round(size))):.6g}, or svag() for a larger noise scale"
            )
        return Minibatch(round(size))


@dataclass(frozen=True)
class Svag:
    """The driving noise of SVAG: ``(r1 xi1 + r2 xi2) / ell`` for two independent draws of ``base``.

    Its third moment is ``(3 ell^2 - 1) / (2 ell^3)`` times that of the base, which falls as ``1 / ell``.
    """

    base: Family | StudentT | Minibatch | Svag
    ell: float

    def normals(self, rank: int) -> int:
        """Return how many normals two draws of the base take."""
        return 2 * self.base.normals(rank)

    def couple(self, w: Tensor, rank: int) -> Draw:
        """Return the same combination of the two driving noises and of the two Brownian increments."""
        r1, r2 = svag_weights(self.ell)
        half = self.base.normals(rank)
        one, two = self.base.couple(w[:, :half], rank), self.base.couple(w[:, half:], rank)
        return Draw((r1 * one.xi + r2 * two.xi) / self.ell, (r1 * one.brownian + r2 * two.brownian) / self.ell)

    def at(self, sigma: float) -> Svag:
        """Return the base at ``sigma / ell``."""
        return Svag(self.base.at(sigma / self.ell), self.ell)


AnyFamily = Family | StudentT | Minibatch | Svag
#: The noise families by name. "skewed" is the centered exponential; mini-batches need a size, hence `Minibatch`.
FAMILIES: Mapping[str, AnyFamily] = MappingProxyType({
    GAUSSIAN: Family(GAUSSIAN, lambda w: w, third=0.0, fourth=3.0),
    RADEMACHER: Family(RADEMACHER, lambda w: torch.where(w < 0, -1.0, 1.0).to(w), third=0.0, fourth=1.0),
    SKEWED: Family(SKEWED, lambda w: -torch.special.log_ndtr(-w) - 1, third=2.0, fourth=9.0),
    STUDENT_T: StudentT(5),
})  # fmt: skip
