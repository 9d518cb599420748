"""What the theorems ask of an oracle, measured on an oracle of your own.

The paper's theorems hold for a well-behaved oracle whose noise ``z`` (`rootscale.theory.oracle`) has bounded moments
and low skewness:

    E[|z|^(2m)]^(1/(2m)) <= C_2m (1 + |theta|) for all m,         |E[z^3]| <= K_3(theta) / sigma

Nothing finite proves either. What can be seen in samples is whether they are violated: a mean or covariance that is
not the stated one, moments that grow with the number of samples, and a third moment that stays as ``sigma`` grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rootscale.theory.oracle import Oracle, need_oracle

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
#: From how many standard errors on a difference counts, over all coordinates together.
_SURE = 5.0
#: The share of samples by which the tail is judged, and the index of a tail whose fourth moment is not finite.
_TAIL, _FOURTH = 0.005, 1 / 4
#: Noise this many times as large as the gradient dominates it: the term that the SDE drops is then below a tenth.
_DOMINATES = 10.0
#: Standard normals that are drawn at most to compare ``noise`` with ``variance``.
_NUMBERS = 1_000_000
#: The factor between the two noise scales at which the third moment is measured.
_APART = 4.0


@dataclass(frozen=True)
class Check:
    """One thing that the theorems ask for.

    Args:
        name: what is asked for.
        verdict: ``holds``, ``fails`` or ``undecided``.
        measured: what was seen.
        consequence: what follows, and what can be done, where it does not hold.
    """

    name: str
    verdict: str
    measured: str
    consequence: str = ""


@dataclass(frozen=True)
class OracleReport:
    """What `check_oracle` found.

    Args:
        sigma: the noise scale of the oracle.
        draws: how many stochastic gradients were drawn at each point.
        checks: one for each thing that was asked.
    """

    sigma: float
    draws: int
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing failed."""
        return all(check.verdict != FAILS for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """Return a check by its name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; there are {', '.join(repr(check.name) for check in self.checks)}")

    def __str__(self) -> str:
        """Return a line for each check, and what follows from those that do not hold."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"oracle at sigma={self.sigma:g}, {self.draws:,} gradients at each point"
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            yield f"{check.name:<{width}}  {check.verdict:<9}  {check.measured}"
            if check.consequence:
                yield f"{'':<{width}}  -> {check.consequence}"


def check_oracle(oracle: Oracle, theta: Tensor, *, draws: int = 100_000, seed: int = 0) -> OracleReport:
    """Measure whether an oracle is what it says, and whether the theorems' assumptions are seen to fail.

    >>> from rootscale.theory import FAMILIES, NGOS, cosine
    >>> report = check_oracle(NGOS(cosine(2), 4.0, FAMILIES["skewed"]), torch.ones(1, 2))
    >>> report["low skewness"].verdict, report["finite moments"].verdict
    ('fails', 'holds')

    Args:
        oracle: with ``gradient``, ``noise``, ``variance`` and ``sample``; with ``at`` the skewness is measured at a
            second noise scale too.
        theta: points to look at, ``[points, d]``: where your run starts, and a few that it comes to.
        draws: how many stochastic gradients to draw at each point, all at once; a few thousand for a network.
        seed: of the random numbers.
    """
    need_oracle(oracle)
    if theta.ndim != 2 or theta.shape[1] != oracle.d or not len(theta):
        raise ValueError(f"theta must be [points, {oracle.d}], a row for each point, got {list(theta.shape)}")
    if draws < 1000:
        raise ValueError(f"draws must be at least 1000, for moments to mean something, got {draws}")
    if not oracle.sigma > 0:
        raise ValueError(f"an oracle without noise has no SDE; sigma must be > 0, got {oracle.sigma}")
    values = {"gradient": oracle.gradient(theta).double(), "variance": oracle.variance(theta).double()}
    broken = [name for name, value in values.items() if not bool(value.isfinite().all())]
    if broken or bool((values["variance"] < 0).any()):
        what = " and ".join(broken) or "variance"
        return OracleReport(oracle.sigma, draws, (
            Check("finite coefficients", FAILS, f"{what} not finite, or negative, at a point", "no SDE starts there"),
        ))  # fmt: skip
    noises = [_drawn(oracle, point, draws, seed + i) for i, point in enumerate(theta)]
    checks = (
        Check("finite coefficients", HOLDS, f"gradient and variance at {len(theta)} points"),
        _mean(noises, values["variance"]),
        _variance(noises, values["variance"]),
        _stated(oracle, theta, values["variance"], seed),
        _moments(noises),
        _skewness(oracle, theta, noises, draws, seed + len(theta)),
        _dominance(oracle, values["gradient"], values["variance"]),
    )
    return OracleReport(oracle.sigma, draws, checks)


def _drawn(oracle: Oracle, point: Tensor, draws: int, seed: int) -> Tensor:
    """Return so many draws of ``z`` at a point ``[d]``: ``[draws, d]``."""
    generator = torch.Generator(point.device).manual_seed(seed)
    sample = oracle.sample(point.expand(draws, -1).contiguous(), generator)
    return (sample.double() - oracle.gradient(point[None]).double()) / oracle.sigma


def _surest(values: Tensor, expected: Tensor | float) -> float:
    """Return how many standard errors the mean over rows is away from what is expected, in the worst column."""
    gap, se = (values.mean(0) - expected).abs(), values.std(0) / math.sqrt(len(values))
    exact = 1e-9 * values.abs().amax(0)  # a column without noise has no standard error
    return float(torch.where(gap <= exact, 0.0, gap / se.clamp(min=1e-300)).max())


def _scaled(noise: Tensor) -> Tensor:
    """Return noise over its standard deviation by coordinate; coordinates without noise are left out."""
    size = noise.std(0)
    return noise[:, size > 1e-12 * size.max()] / size[size > 1e-12 * size.max()]


def _threshold(columns: int) -> float:
    """Return the standard errors that the largest of so many columns must have to be more than chance."""
    return math.hypot(_SURE, math.sqrt(2 * math.log(max(1, columns))))


def _mean(noises: list[Tensor], variance: Tensor) -> Check:
    worst = max(_surest(z, 0.0) for z in noises)
    sure = worst > _threshold(variance.numel())
    return Check(
        "unbiased", FAILS if sure else HOLDS, f"mean of sample less gradient: at most {worst:.1f} standard errors",
        "sample(theta) is not gradient(theta) plus noise of mean zero: chain and SDE have different drifts" * sure,
    )  # fmt: skip


def _variance(noises: list[Tensor], variance: Tensor) -> Check:
    pairs = list(zip(noises, variance, strict=True))
    ratios = [float((z.square().mean(0)[v > 0] / v[v > 0]).mean()) for z, v in pairs]
    worst = max(_surest(z.square(), v) for z, v in pairs)
    far = max((abs(math.log(ratio)) for ratio in ratios if ratio > 0), default=math.inf) > 0.05
    sure = worst > _threshold(variance.numel()) and far  # heavy tails make many standard errors of small differences
    return Check(
        "variance", FAILS if sure else HOLDS, "sample's over sigma^2 variance(theta): "
        + ", ".join(f"{ratio:.3g}" for ratio in ratios),
        "variance(theta) must be that of a sample's noise without sigma^2, or u has the wrong target" * sure,
    )  # fmt: skip


def _stated(oracle: Oracle, theta: Tensor, variance: Tensor, seed: int) -> Check:
    """Compare ``variance`` with what ``noise`` gives for standard normal ``xi``."""
    generator = torch.Generator(theta.device).manual_seed(seed)
    worst, rows = 0.0, max(64, min(4000, _NUMBERS // oracle.rank))
    for point, stated in zip(theta, variance, strict=True):
        xi = torch.randn(rows, oracle.rank, generator=generator, dtype=theta.dtype, device=theta.device)
        worst = max(worst, _surest(oracle.noise(point.expand(rows, -1).contiguous(), xi).double().square(), stated))
    sure = worst > _threshold(variance.numel())
    return Check(
        "noise of the SDE", FAILS if sure else HOLDS, f"noise(theta, xi)^2 less variance: at most {worst:.1f} s.e.",
        "noise(theta, xi) for standard normal xi must have the variance variance(theta)" * sure,
    )  # fmt: skip


def _moments(noises: list[Tensor]) -> Check:
    """Judge the tail of ``|z|`` by its extreme value index ``1 / nu``: moments of order ``nu`` and above are infinite.

    The estimate is that of Dekkers, Einmahl and de Haan (1989), which is zero or less for exponential and shorter
    tails.
    """
    index, se = max(_tail(z) for z in noises)
    kurtosis = max(float(_scaled(z).pow(4).mean(0).max()) for z in noises)
    measured = f"tail index of |z| {index:.2f} ± {se:.2f} (0 or less: all moments), kurtosis up to {kurtosis:.3g}"
    if index + 2 * se < _FOURTH and index < 3 * se:
        return Check("finite moments", HOLDS, measured)
    return Check(
        "finite moments", FAILS if index > 3 * se else UNDECIDED, measured,
        "noise with heavy tails: the order of the weak error is not known; gradient clipping bounds it",
    )  # fmt: skip


def _tail(noise: Tensor) -> tuple[float, float]:
    """Return the extreme value index of ``|z|`` and its standard error."""
    size = noise.norm(dim=1).sort(descending=True).values
    top = max(50, round(_TAIL * len(size)))
    excess = (size[:top] / size[top].clamp(min=1e-300)).log()
    first, second = float(excess.mean()), float(excess.square().mean())
    if second <= first**2 * (1 + 1e-9):  # no spread: bounded noise, such as of two values
        return -math.inf, 1 / math.sqrt(top)
    index = first + 1 - 0.5 / (1 - first**2 / second)
    return index, math.sqrt((1 + max(index, 0.0) ** 2) / top)


def _third(noise: Tensor) -> tuple[float, float]:
    """Return the largest third moment over cubed deviation of a coordinate, and its standard error."""
    cubes = _scaled(noise).pow(3)
    mean, se = cubes.mean(0), cubes.std(0) / math.sqrt(len(cubes))
    worst = int((mean.abs() / se.clamp(min=1e-300)).argmax())
    return float(mean[worst].abs()), float(se[worst])


def _skewness(oracle: Oracle, theta: Tensor, noises: list[Tensor], draws: int, seed: int) -> Check:
    third, se = max((_third(z) for z in noises), key=lambda pair: pair[0] / max(pair[1], 1e-300))
    measured = f"E z^3 over its deviation cubed: at most {third:.3g} ± {se:.1g}"
    if third < _threshold(sum(z.shape[1] for z in noises)) * se:
        return Check("low skewness", HOLDS, measured + " (none seen)")
    effect = "skewness that stays as sigma grows halves the weak order; SVAG's third moment falls as 1.5 / ell"
    try:
        wider = oracle.at(_APART * oracle.sigma)  # type: ignore[attr-defined]
        more = max(_third(_drawn(wider, point, draws, seed + i)) for i, point in enumerate(theta))
    except (AttributeError, ValueError):  # no other noise scale, or none so large (mini-batches)
        return Check("low skewness", UNDECIDED, measured + "; the oracle has no larger sigma to compare with", effect)
    measured += f"; at {_APART:g} sigma {more[0]:.3g} ± {more[1]:.1g} (allowed {third / _APART:.3g})"
    stays = more[0] - 3 * more[1] > 2 * third / _APART
    return Check("low skewness", FAILS if stays else HOLDS, measured, effect * stays)


def _dominance(oracle: Oracle, gradient: Tensor, variance: Tensor) -> Check:
    ratios = oracle.sigma**2 * variance.sum(1) / gradient.square().sum(1).clamp(min=1e-300)
    low = float(ratios.min())
    measured = f"sigma^2 Tr Sigma / |gradient|^2 at least {low:.3g}"
    if low >= _DOMINATES:
        return Check("noise dominates", HOLDS, measured)
    return Check(
        "noise dominates", FAILS if low < 1 else UNDECIDED, measured,
        "the SDE leaves (gradient)^2 / sigma^2 out of u: expect a gap that grows with the batch size",
    )  # fmt: skip
