"""The solver against a slow, obvious loop; its orders; and that results depend on the seed alone."""

from __future__ import annotations

import gc
import math
import shutil

import numpy as np
import pytest
import torch
from calls import solved

from rootscale.theory import NGOS, AdamState, Paths, RMSpropState, SaveAt, cosine, engine, logistic, quadratic
from rootscale.theory.engine import System, drive
from rootscale.theory.equations import SGDSDE, AdamSDE, RMSpropSDE, SGDState
from rootscale.theory.random import normal
from rootscale.theory.solver import SCHEMES, Scheme, euler, heun, increment, suits

COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
ORACLE = NGOS(cosine(3), sigma=1.0)
RMSPROP = RMSpropSDE(ORACLE, sigma0=0.7, c2=2.0, eps0=0.3)
ADAM = AdamSDE(ORACLE, sigma0=0.7, c1=3.0, c2=2.0, eps0=0.3)


def full(*values: float, paths: int = 1, d: int = 3, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.full((paths, d), value, dtype=dtype) for value in values]


X_RMSPROP, X_ADAM = RMSpropState(*full(1.0, 0.3)), AdamState(*full(1.0, 0.2, 0.3))
CASES = {"sgd": (SGDSDE(ORACLE, 0.5), SGDState(*full(1.0)), 0.0), "rmsprop": (RMSPROP, X_RMSPROP, 0.0),
         "adam": (ADAM, X_ADAM, 0.5)}  # fmt: skip
FUNCTIONS = {"theta": lambda x: x.theta[:, 0], "cos": lambda x: x.theta.cos().sum(1)}


def obvious(equation, x0, functions, steps: int, h: float, seed: int, scheme: Scheme, t0: float, paths: int):
    """One step size after the other, increment by increment, path by path of equal seed."""
    fine, total = scheme.draws, dict.fromkeys(functions, 0.0)
    for n, weight in scheme.levels:
        x = type(x0)(*(part.expand(paths, -1) for part in x0))
        for i in range(steps * n):
            share = fine // n
            w = sum(normal(seed, j, (paths, equation.oracle.rank)) for j in range(i * share, (i + 1) * share))
            dw, t = w * math.sqrt(h / fine), torch.tensor(t0 + i * h / n, dtype=torch.float64)
            a, b = equation.drift(t, x), equation.diffusion(t, x, dw)
            y = type(x0)(*(p + q * h / n + r for p, q, r in zip(x, a, b, strict=True)))
            if scheme.step is heun:
                c, d = equation.drift(t + h / n, y), equation.diffusion(t + h / n, y, dw)
                y = type(x0)(
                    *(p + (q + r) * h / n / 2 + (s + v) / 2 for p, q, r, s, v in zip(x, a, c, b, d, strict=True))
                )
            x = y
        for name, f in functions.items():
            total[name] = total[name] + weight * f(x)
    return total


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_solver_equals_the_obvious_loop(case: str, scheme: Scheme) -> None:
    equation, x0, t0 = CASES[case]
    if not suits(scheme, equation, x0, t0):
        assert scheme.step is heun
        assert case != "adam"
        with pytest.raises(ValueError, match=r"solves the Stratonovich equation.*use one of euler, richardson"):
            solved(equation, x0, FUNCTIONS, [t0 + 0.3], h=0.1, seed=4, scheme=scheme, t0=t0, paths=20)
        return
    result = solved(
        equation, x0, FUNCTIONS, [t0, t0 + 0.3, t0 + 0.7], h=0.1, seed=4, scheme=scheme, t0=t0, paths=20, keep=True
    )
    for column, steps in enumerate((0, 3, 7)):
        expected = obvious(equation, x0, FUNCTIONS, steps, 0.1, 4, scheme, t0, 20)
        for name in FUNCTIONS:
            np.testing.assert_allclose(result.values[name][:, column], expected[name].numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_increment_of_an_equation_is_drift_and_diffusion(case: str) -> None:
    equation, x0, _ = CASES[case]
    x = type(x0)(*(normal(1, i, (50, 3)).abs() for i in range(len(x0))))
    t, dw = torch.tensor(0.5, dtype=torch.float64), normal(1, 9, (50, 3))
    for h in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        own = increment(equation, t, h, x, dw)
        for a, b, c in zip(equation.drift(t, x), equation.diffusion(t, x, dw), own, strict=True):
            torch.testing.assert_close(c, a * 0.1 + b, rtol=1e-13, atol=1e-14)


def test_an_equation_needs_no_increment_of_its_own() -> None:
    class Plain:
        oracle = ORACLE
        drift, diffusion = staticmethod(RMSPROP.drift), staticmethod(RMSPROP.diffusion)

    both = [solved(e, X_RMSPROP, FUNCTIONS, [1.0], h=0.1, seed=1, paths=9, keep=True) for e in (Plain(), RMSPROP)]
    np.testing.assert_allclose(both[0].values["cos"], both[1].values["cos"], rtol=1e-12)


def test_euler_on_ornstein_uhlenbeck_has_the_moments_of_its_recursion() -> None:
    lam, sigma0, h, steps, paths = 1.5, 0.8, 0.05, 20, 40_000
    equation = SGDSDE(NGOS(quadratic([lam]), 1.0), sigma0)
    result = solved(
        equation, SGDState(*full(2.0, d=1)), {"x": lambda x: x.theta[:, 0], "xx": lambda x: x.theta[:, 0] ** 2},
        [steps * h], h=h, seed=11, paths=paths,
    )  # fmt: skip
    a = 1 - lam * h
    mean = 2 * a**steps
    variance = sigma0**2 * h * (1 - a ** (2 * steps)) / (1 - a**2)
    for name, expected in (("x", mean), ("xx", mean**2 + variance)):
        estimate, se = result[name]
        assert abs(estimate[0] - expected) < 4 * se[0]
    assert result["x"].se[0] == pytest.approx(math.sqrt(variance / paths), rel=0.02)


def test_richardson_on_ornstein_uhlenbeck_is_near_the_exact_mean_where_euler_is_not() -> None:
    equation, x0 = SGDSDE(NGOS(quadratic([1.5]), 1.0), 1e-3), SGDState(*full(2.0, d=1))
    exact, f = 2 * math.exp(-1.5), {"x": lambda x: x.theta[:, 0]}
    gap = {
        name: abs(solved(equation, x0, f, [1.0], h=0.05, seed=0, paths=100, scheme=name)["x"].mean[0] - exact)
        for name in SCHEMES
    }
    assert gap["euler"] > 0.01
    assert gap["richardson"] < gap["euler"] / 10
    assert gap["heun"] < gap["euler"] / 10
    assert gap["heun-richardson"] < gap["heun"] / 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "scheme", "name"),
    [
        ("sgd", "euler", "theta"),
        ("rmsprop", "euler", "theta"),
        ("adam", "euler", "theta"),
        ("adam", "heun", "theta^2"),
        ("adam", "richardson", "theta^2"),
    ],
)
def test_weak_order_of_a_scheme_is_what_its_row_says(case: str, scheme: str, name: str) -> None:
    """From what halving the step changes, on one Brownian path."""
    (equation, x0, t0), row = CASES[case], SCHEMES[scheme]
    halved = tuple((2 * n, -weight) for n, weight in row.levels)
    difference = Scheme("difference", row.step, row.levels + halved, row.order)
    functions = {"theta": lambda x: x.theta.mean(1), "theta^2": lambda x: x.theta.square().mean(1)}
    change, se = np.transpose([
        [part[0] for part in solved(
            equation, x0, functions, [t0 + 1], h=h, seed=7, scheme=difference, t0=t0, paths=200_000
        )[name]]
        for h in (1 / 8, 1 / 16, 1 / 32)
    ])  # fmt: skip
    assert (np.abs(change) > 5 * se).all()
    relative = se / np.abs(change) / math.log(2)
    order = math.log2(change[0] / change[2]) / 2
    assert abs(order - row.order) < 0.15 + 2 * math.hypot(relative[0], relative[2]) / 2


def test_heun_for_adam_is_of_second_order_where_the_noise_vanishes_and_euler_of_first() -> None:
    equation = AdamSDE(ORACLE, sigma0=1e-9, c1=3.0, c2=2.0, eps0=0.3)
    for step, order in ((euler, 1), (heun, 2)):
        difference = Scheme("difference", step, ((1, 1.0), (2, -1.0)), order)
        gaps = [
            solved(equation, X_ADAM, FUNCTIONS, [1.5], h=h, seed=3, scheme=difference, t0=0.5)["theta"].mean[0]
            for h in (1 / 32, 1 / 64)
        ]
        assert math.log2(gaps[0] / gaps[1]) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_results_do_not_depend_on_chunks(chunk: int) -> None:
    whole, parts = (
        solved(ADAM, X_ADAM, FUNCTIONS, [0.8, 1.1], h=0.1, seed=2, t0=0.5, paths=100, keep=True, chunk=c)
        for c in (100, chunk)
    )
    for name in FUNCTIONS:
        np.testing.assert_allclose(parts.values[name], whole.values[name], rtol=1e-12, atol=1e-13)


def test_means_over_chunks_are_those_of_all_paths() -> None:
    kept = solved(RMSPROP, X_RMSPROP, FUNCTIONS, [0.5, 1.0], h=0.1, seed=2, paths=100, keep=True)
    streamed = solved(RMSPROP, X_RMSPROP, FUNCTIONS, [0.5, 1.0], h=0.1, seed=2, paths=100, chunk=9)
    assert not streamed.values
    assert streamed.replicas == 100
    for name in FUNCTIONS:
        np.testing.assert_allclose(streamed[name].mean, kept[name].mean, rtol=1e-12)
        np.testing.assert_allclose(streamed[name].se, kept[name].se, rtol=1e-11)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(solved(RMSPROP, X_RMSPROP, FUNCTIONS, [0.3], h=0.1, seed=2, paths=12_000, keep=True))
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(results[0].values["cos"], results[1].values["cos"], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_results_do_not_depend_on_when_else_they_are_observed(first: int) -> None:
    f = FUNCTIONS
    alone = solved(RMSPROP, X_RMSPROP, f, [0.6], h=0.1, seed=2, paths=10, keep=True)
    among = solved(RMSPROP, X_RMSPROP, f, [0.1 * first, 0.4, 0.6], h=0.1, seed=2, paths=10, keep=True)
    np.testing.assert_allclose(among.values["cos"][:, -1], alone.values["cos"][:, -1], rtol=1e-13)


def test_float32_follows_float64() -> None:
    both = [
        solved(
            RMSPROP, RMSpropState(*full(1.0, 0.3, dtype=dtype)), FUNCTIONS, [1.0], h=0.05, seed=2, paths=100, keep=True
        )
        for dtype in (torch.float32, torch.float64)
    ]
    np.testing.assert_allclose(both[0].values["cos"], both[1].values["cos"], atol=2e-4)


def test_paths_may_start_at_different_places_and_wide_problems_solve() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(80, 4, generator=generator).double(), torch.rand(80, generator=generator).round()
    equation = SGDSDE(NGOS(logistic(features, labels.double()), 1.0), 0.5)  # rank 80: laid out by coordinate
    x0 = SGDState(torch.randn(30, 4, generator=generator).double())
    result = solved(equation, x0, {"theta": lambda x: x.theta[:, 0]}, [0.0, 0.3], h=0.1, seed=2, keep=True, chunk=11)
    np.testing.assert_array_equal(result.values["theta"][:, 0], x0.theta[:, 0].numpy())
    x = x0.theta
    for k in range(3):
        x = SGDState(x)
        x = equation.increment(0.0, x, 0.1, math.sqrt(0.1) * normal(2, k, (30, 80))).theta + x.theta
    np.testing.assert_allclose(result.values["theta"][:, 1], x[:, 0].numpy(), rtol=1e-11, atol=1e-13)


def eager_and_compiled(case: str, scheme: str, offsets: list[float]) -> None:
    """Assert that compiled steps give the results of eager ones, observed at these times after the start."""
    equation, x0, t0 = CASES[case]
    times = [t0 + offset for offset in offsets]
    eager, compiled = (
        solved(
            equation, x0, FUNCTIONS, times, h=0.1, seed=4, scheme=scheme, t0=t0, paths=50, keep=True, compile=compile,
            chunk=20,
        )
        for compile in (False, True)
    )  # fmt: skip
    for name in FUNCTIONS:
        np.testing.assert_allclose(compiled.values[name], eager.values[name], rtol=1e-11, atol=1e-12)


@pytest.fixture
def traced(monkeypatch):
    """Steps are traced for a compiler, in one graph as always, and the graph is run without one."""
    plain = torch.compile

    def trace(function, *, dynamic, fullgraph, options):
        return plain(function, backend="eager", dynamic=dynamic, fullgraph=fullgraph)

    monkeypatch.setattr(torch, "compile", trace)
    engine._compile.cache_clear()
    yield
    engine._compile.cache_clear()


@pytest.mark.parametrize(("case", "scheme"), [("adam", "euler"), ("rmsprop", "richardson")])
def test_traced_steps_equal_eager_ones_to_rounding(case: str, scheme: str, traced) -> None:
    eager_and_compiled(case, scheme, [0.4, 0.5, 1.1])


@COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("case", ["rmsprop", "adam"])
@pytest.mark.parametrize("scheme", ["euler", "richardson"])
def test_compiled_equals_eager_to_rounding(case: str, scheme: str) -> None:
    eager_and_compiled(case, scheme, [0.4, 0.5, 1.1])


@COMPILER
@pytest.mark.slow
def test_more_equations_than_torch_remembers_are_all_compiled(monkeypatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    for i in range(10):
        equation = SGDSDE(NGOS(cosine(2), 1.0), 0.1 * (i + 1))
        solved(equation, SGDState(*full(1.0, d=2)), {"x": lambda x: x.theta[:, 0]}, [0.2], h=0.1, seed=1, compile=True)


def test_without_a_compiler_a_notice_of_one_line_and_the_same_result(monkeypatch) -> None:
    def absent(function, **options):
        def fail(*arguments):
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand more lines")

        return fail

    monkeypatch.setattr(torch, "compile", absent)
    equation = RMSpropSDE(ORACLE, sigma0=0.71, c2=2.0)  # one that no other test has compiled
    arguments = (equation, X_RMSPROP, FUNCTIONS, [0.3, 1.0])
    eager = solved(*arguments, h=0.1, seed=1, paths=10, keep=True)
    with pytest.warns(RuntimeWarning, match="taken eagerly: InvalidCxxCompiler: No working C\\+\\+ compiler found$"):
        other = solved(*arguments, h=0.1, seed=1, paths=10, keep=True, compile=True)
    np.testing.assert_allclose(other.values["cos"], eager.values["cos"], rtol=1e-13)


def test_a_mistake_in_the_equation_is_not_taken_for_a_missing_compiler(monkeypatch) -> None:
    class Broken:
        oracle = ORACLE

        def drift(self, t, x):
            raise ZeroDivisionError("of the equation")

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(ZeroDivisionError, match="of the equation"):
        solved(Broken(), X_RMSPROP, FUNCTIONS, [0.3], h=0.1, seed=1, compile=True)


class Explosive:
    """``dx = x^3 dt + dW``: finite in finite time for no path, and sooner for those that start far out."""

    oracle = NGOS(quadratic([1.0]), 1.0)

    def drift(self, t, x):
        return SGDState(x.theta**3)

    def diffusion(self, t, x, dw):
        return SGDState(0.1 * dw)


def test_diverged_paths_are_counted_reported_and_left_out() -> None:
    x0 = SGDState(torch.tensor([[0.01], [3.0], [0.02], [9.0]], dtype=torch.float64))
    f = {"x": lambda x: x.theta[:, 0]}
    with pytest.warns(
        RuntimeWarning, match=r"2 of 4 paths diverged \(first seen at t=0.6\); means are over the others"
    ):
        result = solved(Explosive(), x0, f, [0.1, 0.6, 1.2], h=0.1, seed=1, keep=True, chunk=3)
    assert result.diverged.tolist() == [0, 1, 2]
    assert np.isnan(result.values["x"][[1, 3], 2]).all()
    with pytest.warns(RuntimeWarning, match="2 of 4 paths diverged"):
        streamed = solved(Explosive(), x0, f, [0.1, 0.6, 1.2], h=0.1, seed=1, chunk=3)
    assert streamed.diverged.tolist() == [0, 1, 2]
    np.testing.assert_allclose(streamed["x"].mean[2], result.values["x"][[0, 2], 2].mean())


def test_a_test_function_that_is_not_finite_counts_as_diverged() -> None:
    x0 = SGDState(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match="1 of 2 paths diverged"):
        result = solved(
            SGDSDE(Explosive.oracle, 1e-6), x0, {"log": lambda x: x.theta[:, 0].log()}, [0.1], h=0.1, seed=1
        )
    assert result.diverged.tolist() == [1]


def test_where_all_paths_diverged_there_is_no_mean() -> None:
    x0 = SGDState(torch.full((3, 1), 50.0, dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match="3 of 3 paths diverged"):
        result = solved(Explosive(), x0, {"x": lambda x: x.theta[:, 0]}, [2.0], h=0.1, seed=1)
    assert np.isnan(result["x"].mean).all()
    assert np.isnan(result["x"].se).all()


def test_memory_does_not_grow_with_the_number_of_steps() -> None:
    def alive(x) -> torch.Tensor:
        """Bytes of all tensors there are at the end of a solve."""
        every = {t.data_ptr(): t.nbytes for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() > 1000}
        held.append(sum(every.values()))
        return x.theta[:, 0]

    equation, held = SGDSDE(NGOS(quadratic([1.0, 2.0]), 1.0), 0.5), []
    x0 = SGDState(torch.ones(2000, 2, dtype=torch.float64))
    for steps in (20, 400):
        gc.collect()
        solved(equation, x0, {"x": alive}, [steps * 0.125], h=0.125, seed=1)
    # A state is 32 KB: keeping those of 400 steps would take 12 MiB more.
    assert held[0] > x0.theta.nbytes
    assert held[1] - held[0] < 10 * x0.theta.nbytes


def test_progress_is_the_share_that_is_done() -> None:
    shares: list[float] = []
    solved(RMSPROP, X_RMSPROP, FUNCTIONS, [0.3, 0.6], h=0.1, seed=1, paths=10, chunk=5, progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) == 4  # two chunks, observed twice
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_what_made_a_trajectory_stands_in_it() -> None:
    meta = solved(RMSPROP, X_RMSPROP, FUNCTIONS, [0.3], h=0.1, seed=17, scheme="richardson", paths=5).meta
    assert meta == {
        "seed": 17, "h": 0.1, "t0": 0.0, "paths": 5, "dtype": "float64", "device": "cpu", "scheme": "richardson",
        "equation": "RMSpropSDE",
    }  # fmt: skip


def test_whole_steps_are_found_through_rounding() -> None:
    assert SaveAt([0.5, 0.8, 1.1], start=0.5).steps(0.1) == [0, 3, 6]
    with pytest.raises(ValueError, match=r"whole steps h=0.1 after start=0.5; t=0.83 is not, 0.8 is"):
        SaveAt([0.83], start=0.5).steps(0.1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scheme": "milstein"}, "no scheme 'milstein'; there are euler, heun, richardson"),
        ({"times": [0.2, 0.2]}, r"times must be increasing, and not before start=0; got \[0.2, 0.2\]"),
        ({"times": [-0.2]}, r"not before start=0; got \[-0.2\]"),
        ({"times": []}, "times must be increasing"),
        ({"h": -0.1}, "h must be a finite number > 0, got -0.1"),
        ({"paths": 0}, "count of Paths must be a whole number of at least 1, got 0"),
        ({"paths": 9.5}, "count of Paths must be a whole number of at least 1, got 9.5"),
        ({"chunk": 0}, "chunk of Paths must be a whole number of at least 1, got 0"),
        ({"seed": None}, r"seed must be an integer from 0 to 2\^64 - 1, got None"),
        ({"times": 0.2}, r"times must be a list of times, got 0.2; use \[0.2\]"),
        ({"times": [math.nan]}, "times must be finite, got nan"),
        ({"functions": lambda x: x.theta}, "must be test functions by name, .* got <function"),
        ({"functions": {}}, "got none that suits this state"),
        ({"functions": {"f": lambda x: x.theta}}, r"'f' must give one number for each path, \[1\], got \[1, 3\]"),
        ({"functions": {"f": lambda x: x.theta.mean()}}, r"one number for each path, \[1\], got \[\]"),
        ({"functions": {"f": lambda x: 1.0}}, r"one number for each path, \[1\], got 1.0"),
        ({"x0": full(1.0)}, r"x0 must be RMSpropState\(theta, u\) of tensors, got list of \(Tensor\)"),
        ({"x0": AdamState(*full(1.0, 1.0, 1.0))}, r"x0 must be RMSpropState\(theta, u\) .* got AdamState"),
        ({"x0": RMSpropState(*full(1.0, 0.3, d=1))}, r"theta of x0 must be \[P, 3\] or \[1, 3\], .* got \[1, 1\]"),
        ({"x0": RMSpropState(*full(math.nan, 0.3))}, "theta of x0 must be finite, got 3 numbers that are not"),
        ({"x0": RMSpropState(*full(1.0, -0.3))}, "u of x0 must be >= 0, as a mean of squares is, got -0.3"),
        (
            {"x0": RMSpropState(torch.ones(1, 3), torch.ones(1, 3).long())},
            "must all be float32 or all float64, on one device, got torch.float32 on cpu, torch.int64 on cpu",
        ),
        ({"x0": RMSpropState(*torch.ones(2, 1, 3).long())}, "must all be float32 or all float64, .* got torch.int64"),
        ({"x0": RMSpropState(torch.ones(3), torch.ones(3))}, r"must be \[P, d\], or \[1, d\] .* got \[\[3\], \[3\]\]"),
        (
            {"x0": RMSpropState(*full(1.0, 0.3, paths=4)), "paths": 5},
            r"numbers of paths differ: states have \[4\], Paths has count=5",
        ),
    ],
)
def test_mistakes_are_refused_with_what_would_work(change, text: str) -> None:
    arguments = {"x0": X_RMSPROP, "functions": FUNCTIONS, "times": [0.2], "h": 0.1, "seed": 1, "paths": None} | change
    x0, functions, times = (arguments.pop(name) for name in ("x0", "functions", "times"))
    with pytest.raises(ValueError, match=text):
        solved(RMSPROP, x0, functions, times, **arguments)


def test_adams_equation_cannot_start_at_zero() -> None:
    with pytest.raises(ValueError, match=r"Adam's SDE needs start > 0 .* got start=0.0; give SaveAt a start"):
        solved(ADAM, X_ADAM, FUNCTIONS, [0.2], h=0.1, seed=1)


def test_a_plain_tuple_is_read_in_the_order_of_the_state() -> None:
    one, two = (solved(RMSPROP, x0, FUNCTIONS, [0.2], h=0.1, seed=1, paths=9) for x0 in (X_RMSPROP, tuple(X_RMSPROP)))
    assert one["cos"].mean == two["cos"].mean


def test_drive_hands_out_the_documented_normals() -> None:
    def advance(k, t, h, x, w):
        return ((x[0][0] + (k + 1) * sum((i + 1) * z for i, z in enumerate(w)),),)

    for draws in (1, 2, 3):
        x0 = ((torch.zeros(1, 2, dtype=torch.float64),),)
        system, save = System(advance, 1.0, 2, draws), SaveAt([5.0], keep=True)
        result = drive(system, x0, lambda t, x: {"x": x[0][0][:, 1]}, save, Paths(12, 6, chunk=5))
        expected = sum(
            (k + 1) * (i + 1) * normal(6, k * draws + i, (12, 2))[:, 1] for k in range(5) for i in range(draws)
        )
        np.testing.assert_allclose(result.values["x"][:, 0], expected.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("compile", [False, True])
def test_a_gpu_gives_the_results_of_a_cpu_to_rounding(compile: bool) -> None:
    cpu, gpu = (
        solved(ADAM, AdamState(*(y.to(device) for y in X_ADAM)), FUNCTIONS, [0.8, 1.5], h=0.1, seed=2, t0=0.5,
              paths=1000, keep=True, compile=compile and device == "cuda")
        for device in ("cpu", "cuda")
    )  # fmt: skip
    np.testing.assert_allclose(gpu.values["cos"], cpu.values["cos"], rtol=1e-10, atol=1e-11)
