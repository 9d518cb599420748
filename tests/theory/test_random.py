"""The counter-based normals: a function of (seed, path, step, coordinate), and normal."""

from __future__ import annotations

import itertools
import math
import shutil

import pytest
import torch
from scipy import stats

from rootscale.theory import random
from rootscale.theory.random import keys, normal, pair, paths

SEED = 20221128
EPS = torch.finfo(torch.float32).eps


def block(count: int, width: int, steps: int, seed: int = SEED, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """``[steps, count, width]``."""
    return torch.stack([normal(seed, step, (count, width), dtype=dtype) for step in range(steps)])


@pytest.fixture(scope="module")
def sample() -> torch.Tensor:
    """32 steps, 4,000 paths, 8 coordinates: a million normals."""
    return block(4000, 8, 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_to_the_fourth_are_those_of_a_normal(dtype: torch.dtype) -> None:
    z = block(4000, 8, 32, seed=SEED + 1, dtype=dtype).double()
    n = z.numel()
    # the variance of z^p is E z^2p - (E z^p)^2
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - expected) < 4 * math.sqrt(variance / n), f"E z^{power}"


def test_distribution_passes_kolmogorov_smirnov_at_even_and_odd_steps(sample: torch.Tensor) -> None:
    for half in (sample[::2], sample[1::2]):
        assert stats.kstest(half.flatten().numpy(), "norm").pvalue > 1e-3


def test_tails_are_as_heavy_as_a_normals(sample: torch.Tensor) -> None:
    for z in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(z) * sample.numel()
        assert abs(int((sample.abs() > z).sum()) - expected) < 5 * math.sqrt(expected)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard errors."""
    a, b = a.flatten(), b.flatten()
    return float(torch.corrcoef(torch.stack((a, b)))[0, 1]) * math.sqrt(a.numel())


@pytest.mark.parametrize("function", [lambda z: z, lambda z: z**2, torch.abs], ids=["z", "z^2", "|z|"])
@pytest.mark.parametrize("what", ["steps", "paths", "coordinates"])
def test_no_correlation_at_any_small_lag(sample: torch.Tensor, what: str, function) -> None:
    axis, z = ["steps", "paths", "coordinates"].index(what), function(sample)
    for lag in (1, 2, 3, 4, 7):
        n = sample.shape[axis]
        assert abs(correlation(z.narrow(axis, 0, n - lag), z.narrow(axis, lag, n - lag))) < 4.5, lag


@pytest.mark.parametrize("other", [1, 2, 1 << 31, 1 << 32, (1 << 63)])
def test_no_correlation_between_neighbouring_seeds(other: int) -> None:
    a, b = block(8000, 4, 4), block(8000, 4, 4, seed=SEED ^ other)
    assert abs(correlation(a, b)) < 4.5
    assert abs(correlation(a**2, b**2)) < 4.5


def test_a_single_path_over_many_steps_is_normal_and_uncorrelated() -> None:
    pairs = pair(paths(123_456, 1)[:, None], keys(SEED, 0, 200_000, 1).permute(1, 0, 2))
    z = torch.stack(pairs, -1).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    for lag in (1, 2, 3):
        assert abs(correlation(z[:-lag], z[lag:])) < 4.5


def test_sums_over_coordinates_of_products_have_the_variance_of_independent_ones(sample: torch.Tensor) -> None:
    # A hash that is linear in path and coordinate would show here: z(p,c) z(p,c') z(p',c) z(p',c').
    for a, b in itertools.combinations(range(4), 2):
        product = sample[:, :-1, a] * sample[:, :-1, b] * sample[:, 1:, a] * sample[:, 1:, b]
        n = product.numel()
        assert abs(float(product.mean())) < 4.5 / math.sqrt(n)


def test_a_number_depends_on_seed_path_step_and_coordinate_only() -> None:
    z = normal(5, 9, (100, 7))
    assert torch.equal(normal(5, 9, (60, 7), first_path=40), z[40:])
    assert torch.equal(normal(5, 9, (100, 3)), z[:, :3])
    assert torch.equal(pair(paths(0, 100), keys(5, 4, 1, 7)[0][:, :, None])[1].mT, z)
    assert torch.equal(keys(5, 0, 20, 7)[4], keys(5, 4, 1, 7)[0])
    for other in (normal(6, 9, (100, 7)), normal(5, 8, (100, 7)), normal(5, 11, (100, 7))):
        assert not bool((other == z).any())


def test_numbers_do_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = normal(3, 0, (50_000, 4))
        torch.set_num_threads(2)
        torch.testing.assert_close(normal(3, 0, (50_000, 4)), one, rtol=1e-14, atol=1e-15)
    finally:
        torch.set_num_threads(threads)


def test_numbers_are_the_same_in_every_version() -> None:
    expected = torch.tensor(GOLDEN, dtype=torch.float64)
    actual = torch.stack((normal(1, 0, (2, 2)), normal(1, 1, (2, 2)), normal(2**64 - 1, 10**9, (2, 2))))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_float32_has_the_bits_of_float64() -> None:
    gap = (normal(1, 4, (100_000, 2), dtype=torch.float32) - normal(1, 4, (100_000, 2))).abs()
    assert float(gap.median()) < 1e-7
    # where U1 is near 1 the radius is the root of a small difference
    assert float(gap.max()) < 1e-3


def test_polynomials_for_compiled_steps_are_exact_to_rounding() -> None:
    u = torch.cat((2.0 ** -torch.linspace(0, 32, 100_001), 1 - torch.linspace(0, 0.5, 100_001)))
    torch.testing.assert_close(random._log(u).double(), u.double().log(), rtol=3 * EPS, atol=0)
    x = torch.linspace(-1, 1, 100_001)
    cos, sin = random._cos_sin(x)
    torch.testing.assert_close(cos.double(), torch.cos(math.pi * x.double()), rtol=0, atol=8 * EPS)
    torch.testing.assert_close(sin.double(), torch.sin(math.pi * x.double()), rtol=0, atol=8 * EPS)


def compiles_to_the_eager_numbers(backend: str, dtype: torch.dtype, tolerance: float) -> None:
    arguments = (paths(0, 1000)[:, None], keys(7, 0, 1, 5)[0][:, None], dtype)
    torch.compiler.reset()  # or another backend's code would be taken
    compiled = torch.compile(pair, backend=backend, dynamic=False, fullgraph=True)(*arguments)
    for eager, other in zip(pair(*arguments), compiled, strict=True):
        torch.testing.assert_close(other, eager, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-14)])
def test_the_program_for_a_compiler_gives_the_eager_numbers_to_rounding(dtype: torch.dtype, tolerance: float) -> None:
    compiles_to_the_eager_numbers("eager", dtype, tolerance)  # what is traced, run without a C++ compiler


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its way to a compiler
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-14)])
def test_compiled_numbers_are_the_eager_ones_to_rounding(dtype: torch.dtype, tolerance: float) -> None:
    compiles_to_the_eager_numbers("inductor", dtype, tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.float64, 1e-14)])
def test_numbers_of_a_gpu_are_those_of_a_cpu_to_rounding(dtype: torch.dtype, tolerance: float) -> None:
    for step in (0, 1):
        gpu = normal(7, step, (10_000, 5), dtype=dtype, device="cuda").cpu()
        torch.testing.assert_close(gpu, normal(7, step, (10_000, 5), dtype=dtype), rtol=tolerance, atol=tolerance)


def test_paths_have_different_hashes() -> None:
    assert paths(0, 1 << 20).unique().numel() == 1 << 20


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, None])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\^64 - 1, got "):
        normal(seed, 0, (1, 1))


def test_steps_and_paths_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="steps are counted from 0, got step=-1"):
        normal(0, -1, (1, 1))
    with pytest.raises(ValueError, match="steps are counted from 0, got the pair -2"):
        keys(0, -2, 1, 1)
    with pytest.raises(ValueError, match=r"path indices must be in \[0, 2\^32\), got 4294967295 to 4294967296"):
        paths((1 << 32) - 1, 2)


def test_the_largest_number_is_finite() -> None:
    # U1 takes its smallest size, 2^-32, at the word 0
    u1 = torch.zeros(1, dtype=torch.int32).to(torch.float32).add_(0.5).mul_(2.0**-31)
    assert float(torch.sqrt(-torch.log(u1 * u1))) == pytest.approx(math.sqrt(64 * math.log(2)), rel=1e-6)
    assert random.M1 % 2 == random.M2 % 2 == 1  # odd, or the hash would lose bits


GOLDEN = [
    [[-0.4081243733934725, -0.12441754748140932], [-1.2969039321654796, -0.7315977083196331]],
    [[-1.1207367168851394, -0.4144612415251183], [0.2944098418407803, 0.13668169338795771]],
    [[-0.9602427484536763, -0.5295727735047014], [-2.495160324509875, -1.0019711061384355]],
]
