"""What `check_oracle` says of oracles whose assumptions are known to hold or to fail."""

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rootscale.theory import FAMILIES, NGOS, NetworkOracle, check_oracle, cosine, linear, logistic, quadratic
from rootscale.theory.families import Minibatch, StudentT
from rootscale.theory.oracle import svag

POINTS = torch.tensor([[1.0, -0.5], [0.0, 2.0]]).double()


def verdicts(report):
    return {check.name: check.verdict for check in report.checks}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", ["gaussian", "rademacher"])
def test_an_oracle_that_is_as_the_theorems_ask_passes(family, seed):
    report = check_oracle(NGOS(cosine(2), 8.0, FAMILIES[family]), POINTS, draws=40_000, seed=seed)
    assert set(verdicts(report).values()) == {"holds"}
    assert report.holds
    assert "->" not in str(report)


def test_skewness_fails_where_it_stays_as_sigma_grows_and_not_under_svag():
    base = NGOS(cosine(2), 8.0, FAMILIES["skewed"])
    assert check_oracle(base, POINTS, draws=40_000)["low skewness"].verdict == "fails"
    assert "SVAG" in check_oracle(base, POINTS, draws=40_000)["low skewness"].consequence

    @dataclass(frozen=True)
    class AsSvag:
        """At another noise scale it is SVAG's."""

        oracle: NGOS

        def __getattr__(self, name):
            return getattr(self.oracle, name)

        def at(self, sigma):
            return svag(self.oracle, sigma / self.oracle.sigma)

    assert check_oracle(AsSvag(base), POINTS, draws=100_000)["low skewness"].verdict == "holds"


def test_skewed_mini_batches_of_one_sample_leave_skewness_undecided():
    features, labels = torch.full((8, 1), 0.28).double(), torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]).double()
    oracle = NGOS(logistic(features, labels), 1.0, Minibatch(1))
    assert check_oracle(oracle, torch.zeros(1, 1), draws=20_000)["low skewness"].verdict == "undecided"
    larger = NGOS(logistic(features, labels), 0.25, Minibatch(16))  # from 16 samples to 1 skewness grows with sigma
    assert check_oracle(larger, torch.zeros(1, 1), draws=20_000)["low skewness"].verdict == "fails"


@pytest.mark.parametrize("seed", range(3))
def test_infinite_moments_fail_and_exponential_tails_do_not(seed):
    heavy = NGOS(quadratic([1.0, 2.0]), 8.0, StudentT(3))
    assert check_oracle(heavy, POINTS, seed=seed)["finite moments"].verdict == "fails"
    exponential = NGOS(quadratic([1.0, 2.0]), 8.0, FAMILIES["skewed"])
    assert check_oracle(exponential, POINTS, seed=seed)["finite moments"].verdict != "fails"


@dataclass(frozen=True)
class Changed:
    """An oracle with one thing wrong."""

    base: NGOS
    shift: float = 0.0
    scale: float = 1.0
    size: float = 1.0

    def __getattr__(self, name):
        return getattr(self.base, name)

    def variance(self, theta):
        return self.scale * self.base.variance(theta)

    def sample(self, theta, generator=None):
        return self.base.sample(theta, generator) * self.size + self.shift


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({"shift": 0.5}, "unbiased", "different drifts"),
        ({"size": 1.2}, "variance", "wrong target"),
        ({"scale": 64.0}, "variance", "without sigma"),
        ({"scale": 1.3}, "noise of the SDE", "standard normal xi"),
    ],
)
def test_an_oracle_that_is_not_what_it_says_is_named(change, name, text):
    report = check_oracle(Changed(NGOS(cosine(2), 8.0), **change), POINTS, draws=40_000)
    assert report[name].verdict == "fails"
    assert not report.holds
    assert text in report[name].consequence
    assert report[name].consequence in str(report)


@pytest.mark.parametrize(("sigma", "verdict"), [(10.0, "holds"), (1.5, "undecided"), (0.5, "fails")])
def test_whether_noise_dominates_is_the_ratio_of_traces(sigma, verdict):
    report = check_oracle(NGOS(linear([1.0, 0.0]), sigma), POINTS[:1], draws=2000)
    assert report["noise dominates"].verdict == verdict
    assert f"at least {2 * sigma**2:.3g}" in report["noise dominates"].measured


def test_a_network_in_single_precision_is_checked_like_any_other():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    data = torch.randn(40, 6), torch.randint(3, (40,))
    oracle = NetworkOracle(net, functools.partial(cross_entropy, reduction="none"), data, batch_size=4)
    report = check_oracle(oracle, oracle.start(2), draws=4000)
    assert report.holds, str(report)
    assert report["noise dominates"].verdict == "undecided"
    # a sum over the batch is not the mean that sigma and Sigma are of
    summed = check_oracle(Changed(oracle, size=4.0), oracle.start(2), draws=4000)
    assert summed["variance"].verdict == "fails"


def test_a_gradient_that_is_not_finite_ends_the_check():
    oracle = NGOS(cosine(2), 8.0)
    broken = replace(oracle, problem=replace(oracle.problem, gradient=lambda theta: theta / 0))
    report = check_oracle(broken, POINTS)
    assert verdicts(report) == {"finite coefficients": "fails"}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda o: check_oracle(o, POINTS[:, :1]), r"theta must be \[points, 2\], a row for each point, got \[2, 1\]"),
        (lambda o: check_oracle(o, POINTS, draws=10), "draws must be at least 1000"),
        (lambda o: check_oracle(replace(o, sigma=0.0), POINTS), "sigma must be > 0, got 0"),
        (lambda o: check_oracle(o, POINTS, draws=1000)["skew"], "no check 'skew'; there are 'finite coefficients'"),
    ],
)
def test_mistakes_are_named(wrong, text):
    with pytest.raises((ValueError, KeyError), match=text):
        wrong(NGOS(cosine(2), 8.0))
