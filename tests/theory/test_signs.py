"""SignSGD, Signum and Lion: their SDEs against what can be computed exactly, and the rules that keep them."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from reference import standard_errors

from rootscale import Adam
from rootscale.records import Lion, Signum
from rootscale.rules import get_rule
from rootscale.theory import (
    FAMILIES,
    FORMS,
    NGOS,
    Chain,
    Paths,
    SaveAt,
    case,
    cosine,
    discretise,
    fit_order,
    linear,
    quadratic,
    rescaled,
    run_chain,
    sde,
    solve,
    svag_chain,
    weak_error,
)
from rootscale.theory.equations import SGDState, SignumState
from rootscale.theory.oracle import Problem, svag
from rootscale.theory.signs import Memory, SaturatedSignSDE, SignFlowSDE, SignSDE, memory_of
from rootscale.theory.updates import UPDATES

D = torch.double
TESTS = {"theta": lambda x: x, "theta^2": lambda x: x * x, "cos theta": torch.cos}
MEMORIES = [Memory(), Memory(0.3, 0.7), Memory(0.1, 0.99), Memory(0.6, 0.5)]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def full(value, count=1, d=1):
    return torch.full((count, d), value, dtype=D)


# ---- the chain, and the way to the SDE and back


@pytest.mark.parametrize("optimizer", [Signum(0.1, 0.0), Signum(0.1, 0.8, 0.2), Lion(0.1, 0.7, 0.9, 0.2)], ids=str)
def test_a_chain_makes_the_steps_of_the_plain_update(optimizer):
    oracle = NGOS(cosine(3), 2.0)
    chain, theta = Chain(optimizer, oracle), torch.randn(5, 3, generator=rng(), dtype=D)
    x, other, state, draws = chain.start(theta), theta[..., None], {}, rng(1)
    for k in range(40):
        g = oracle.sample(x[0], draws)
        x = chain.step(k, x, g)
        other = UPDATES[optimizer.name](other, g[..., None], state, optimizer)
    torch.testing.assert_close(x[0], other[..., 0], rtol=1e-12, atol=1e-12)
    assert (x[0] - theta).abs().max() > 0.1


@pytest.mark.parametrize("form", ["paper", "time"])
@pytest.mark.parametrize("optimizer", [Signum(0.05, 0.9, 0.3), Lion(0.05, 0.8, 0.9, 0.3)], ids=lambda o: o.name)
def test_discretise_inverts_sde_and_the_rules_of_the_registry_keep_it(optimizer, form):
    chain = Chain(optimizer, NGOS(cosine(2), 4.0), FORMS[form])
    equation = sde(optimizer, chain.oracle, in_time=chain.form.in_time)
    same = discretise(equation, optimizer.eta)
    assert vars(same.optimizer) == pytest.approx(vars(optimizer), rel=1e-12)
    assert (same.form.in_time, same.oracle.sigma) == (chain.form.in_time, pytest.approx(4.0))
    moved = rescaled(chain, 4)
    after = sde(moved.optimizer, moved.oracle, in_time=moved.form.in_time)
    for name, value in vars(equation).items():
        if isinstance(value, float):
            assert getattr(after, name) == pytest.approx(value, rel=1e-12), name
    assert moved.clock == pytest.approx(4 * chain.clock)
    if form == "paper":
        assert after.memory == equation.memory
    rule = get_rule(("normalized-sqrt", "normalized-linear")[chain.form.in_time], optimizer.name)
    assert vars(moved.optimizer) == pytest.approx(vars(rule.convert_record(optimizer, 4)), rel=1e-12)
    kept = optimizer.constants(16), moved.optimizer.constants(64)
    if form == "paper":
        assert [c.sigma0 for c in kept] == pytest.approx([kept[0].sigma0] * 2)
        assert [c.decay for c in kept] == pytest.approx([kept[0].decay] * 2)


# ---- the constants of a memory


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_the_constants_of_a_memory_are_sums_over_its_weights(memory):
    w = np.zeros(6000)
    w[0] = memory.share
    w[1:] = (1 - memory.share) * (1 - memory.mu) * memory.mu ** np.arange(len(w) - 1)
    assert w.sum() == pytest.approx(1)
    tau2 = w @ w
    assert memory.size**2 == pytest.approx(tau2)
    assert memory.response == pytest.approx(math.sqrt(2 / math.pi / tau2))
    rho = np.array([w[n:] @ w[: len(w) - n] for n in range(1, 3500)]) / tau2
    recent = np.cumsum(w**2)[: len(rho)] / tau2
    for r in (1.0, -0.4):
        spread = math.asin(r) + 2 * np.arcsin(rho * r).sum()
        pull = (recent * rho * r / np.sqrt(1 - (rho * r) ** 2)).sum()
        at = torch.tensor(r, dtype=D)
        assert float(memory.covariance(at)) == pytest.approx(2 / math.pi * spread, rel=1e-9)
        assert float(memory.attraction(at)) == pytest.approx(2 / math.pi * pull, rel=1e-9, abs=1e-12)


def test_long_windows_have_the_limits_that_every_choice_of_a_keeps():
    """1 - mu times diffusion, pull and response squared: 2 log 2, 1/2 and 4 / pi; eta^2 / (1 - mu) is what counts."""
    long = Memory(1e-3, 1 - 1e-3)
    assert 1e-3 * long.diffusion == pytest.approx(2 * math.log(2), rel=2e-3)
    assert 1e-3 * long.pull == pytest.approx(0.5, rel=2e-3)
    assert 1e-3 * long.response**2 == pytest.approx(4 / math.pi, rel=2e-3)


@pytest.mark.parametrize("memory", [Memory(), Memory(0.3, 0.7)], ids=str)
def test_correlated_coordinates_diffuse_by_the_arcsine_of_their_correlation(memory):
    covariance = torch.tensor([[4.0, 1.2], [1.2, 1.0]], dtype=D)  # correlation 0.6
    oracle = NGOS(linear([0.0, 0.0], covariance), 5.0)
    equation = SignSDE(oracle, 0.5, memory)
    x = SGDState(torch.zeros(2, 2, dtype=D))
    root = equation.diffusion(0.0, x, torch.eye(2, dtype=D)).theta.T
    wanted = memory.covariance(torch.tensor([[1.0, 0.6], [0.6, 1.0]], dtype=D))
    torch.testing.assert_close(root @ root.T, wanted, rtol=1e-9, atol=1e-12)
    chain, steps = discretise(equation, 0.1), 200
    *_, (_, (theta, _)) = chain.iterate(chain.start(torch.zeros(4000, 2, dtype=D)), steps, rng(3))
    products = (theta[:, :, None] * theta[:, None, :]).flatten(1) / (steps * 0.1**2)
    window = memory.covariance(torch.ones((), dtype=D)) / steps  # what the start without momentum takes away
    assert (standard_errors(products, wanted.flatten()) < 4 + 30 * float(window)).all()
    with pytest.raises(ValueError, match="noise of full rank"):
        SignSDE(NGOS(linear([0.0, 0.0], torch.ones(2, 2, dtype=D)), 1.0), 0.5).diffusion(0.0, x, torch.eye(2, dtype=D))


def test_momentum_drifts_to_where_noise_is_smaller():
    """Without any gradient: a calculation gives -pull d log s / d theta, which no count of powers would see."""
    slope = 0.5
    problem = Problem(
        "exponential", 1, 1, torch.zeros_like, lambda theta, xi: torch.exp(slope * theta) * xi,
        lambda theta: torch.exp(2 * slope * theta),
    )  # fmt: skip
    equation = SignSDE(NGOS(problem, 1.0), 1.0, Memory(0.1, 0.9))
    expected = equation.drift(0.0, SGDState(full(0.3))).theta.item()
    assert expected == pytest.approx(-slope * equation.memory.pull, rel=1e-9)
    chain, draws = discretise(equation, 0.01), rng(2)
    *_, (_, x) = chain.iterate(chain.start(full(0.0, 20_000)), 100, draws)  # momentum fills
    *_, (_, y) = chain.iterate(x, 300, draws)
    change = (y[0] - x[0]) / (300 * chain.clock)
    assert standard_errors(change, torch.tensor([expected], dtype=D)).item() < 4
    assert abs(expected) > 8 * change.std() / 20_000**0.5


def test_two_coordinates_with_noise_of_their_own_are_pulled_apart_from_each_other():
    one, two = (SignSDE(NGOS(cosine(d), 1.0), 0.7, Memory(0.2, 0.8)) for d in (1, 2))
    x = torch.tensor([[0.4, 1.3]], dtype=D)
    both = two.drift(0.0, SGDState(x)).theta
    apart = [one.drift(0.0, SGDState(x[:, i : i + 1])).theta for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(apart, 1), rtol=1e-9, atol=0)


# ---- SignSGD in one dimension walks on a lattice: its expectations are exact, and so is its weak error


def expectations(chain, steps, start=3.0):
    """E phi after so many steps of SignSGD, by going backwards over the lattice."""
    eta, oracle = chain.optimizer.eta, chain.oracle
    x = start + eta * torch.arange(-steps, steps + 1, dtype=D)[:, None]
    down = Memory().expected_sign(oracle.gradient(x), oracle.sigma * oracle.variance(x).sqrt())[:, 0]
    values = torch.stack([phi(x[:, 0]) for phi in TESTS.values()], 1)
    up, down = (1 - down[:, None]) / 2, (1 + down[:, None]) / 2
    for _ in range(steps):
        values = up * values.roll(-1, 0) + down * values.roll(1, 0)
    return dict(zip(TESTS, values[steps].tolist(), strict=True))


def solution(equation, time, start=3.0, points=421, reach=7.0):
    """E phi of a one-dimensional SDE: the exponential of its generator in differences of fourth order."""
    x = torch.linspace(-reach, reach, points, dtype=D)
    step, inner = x[1] - x[0], torch.arange(2, points - 2)
    state = SGDState(x[:, None])
    drift = equation.drift(0.0, state).theta[:, 0]
    square = equation.diffusion(0.0, state, torch.ones(points, 1, dtype=D)).theta[:, 0] ** 2
    generator = torch.zeros(points, points, dtype=D)
    first, second = (1, -8, 0, 8, -1), (-1, 16, -30, 16, -1)
    for offset, a, b in zip(range(-2, 3), first, second, strict=True):
        generator[inner, inner + offset] = (drift * a / step + square * b / (2 * step**2))[inner] / 12
    row = torch.matrix_exp(generator * time)[(x - start).abs().argmin()]
    return {name: float(row @ phi(x)) for name, phi in TESTS.items()}


@pytest.fixture(scope="module")
def setting():
    made = case("signsgd")
    return made, solution(made.equation, 1.0)


def test_signsgd_is_of_order_one_exactly(setting):
    made, limit = setting
    errors = [{k: v - limit[k] for k, v in expectations(made.chain(n), n).items()} for n in (32, 64, 128, 256)]
    for name in TESTS:
        sizes = [abs(error[name]) for error in errors]
        orders = -np.diff(np.log2(sizes))
        assert sizes[0] > 1e-2
        assert orders == pytest.approx([1, 1, 1], abs=0.06), name


def test_the_measured_weak_error_is_the_exact_one(setting):
    made, limit = setting
    errors = weak_error(made.chain(16), made.equation, made.x0, made.save, paths=Paths(4000))
    for name, value in expectations(made.chain(16), 16).items():
        (error,), (se,) = errors.at(name)
        assert abs(error - (value - limit[name])) < 4 * se + 2e-3  # what Richardson's solver leaves
        assert abs(error) > 8 * se


def test_a_sign_that_hardly_ever_flips_is_no_control():
    """At 16 times the batch, with the learning rate kept, one path in thousands moves up: no coefficient fits that."""
    made = case("signsgd")
    base = made.chain(64)
    other = rescaled(base, 16, "none")
    errors = weak_error(base, other, made.x0, made.save, paths=Paths(1000))
    there = expectations(other, 4)
    for name, value in expectations(base, 64).items():
        (error,), (se,) = errors.at(name)
        assert abs(error - (value - there[name])) < 4 * se


def test_the_square_root_rule_keeps_signsgd_up_to_eta_squared_and_others_do_not():
    made = case("signsgd")

    def gap(steps, kappa, rule):
        base = made.chain(steps)
        there = expectations(rescaled(base, kappa, rule), steps // kappa)
        return max(abs(value - there[name]) for name, value in expectations(base, steps).items())

    for kappa in (4, 16):
        sqrt = [gap(n, kappa, None) for n in (256, 512, 1024)]
        assert -np.diff(np.log2(sqrt)) == pytest.approx([1, 1], abs=0.12)
        assert sqrt[0] < 6 * (1 + kappa) / 256
        for rule in ("none", "linear-eta"):
            wrong = [gap(n, kappa, rule) for n in (256, 1024)]
            assert min(wrong) > 0.3
            assert wrong[1] > 0.8 * wrong[0]  # it does not fall with eta
            assert wrong[1] > 10 * sqrt[2]


def test_where_the_gradient_exceeds_the_noise_the_limit_fails_and_the_saturated_sde_does_not():
    oracle, eta, steps = NGOS(quadratic([1.0]), 0.25), 0.125, 16
    assert 3.0 / oracle.sigma == 12  # gradient over noise at the start: every sign is the gradient's
    limit = sde(Signum(eta, 0.0), oracle)
    saturated = SaturatedSignSDE(oracle, limit.sigma0, eta)
    walked = expectations(discretise(saturated, eta), steps)["theta"]
    assert walked == pytest.approx(3 - steps * eta, abs=1e-3)
    assert solution(saturated, steps * eta**2)["theta"] == pytest.approx(walked, abs=0.02)
    assert solution(limit, steps * eta**2)["theta"] < walked - 0.7


def test_the_saturated_sde_is_the_nearer_one_at_large_steps(setting):
    made, limit = setting
    chain = made.chain(16)
    near = solution(SaturatedSignSDE(made.equation.oracle, made.equation.sigma0, chain.optimizer.eta), 1.0)
    for name, value in expectations(chain, 16).items():
        assert abs(near[name] - value) < abs(limit[name] - value)


# ---- momentum in time


def means(chain, g, steps, m=0.0):
    """E theta of Signum on a linear loss with unit noise, where momentum is normal: exact."""
    mu, sigma = chain.optimizer.mu, chain.oracle.sigma
    k = np.arange(1, steps + 1)
    mean = g + (m - g) * mu**k
    variance = sigma**2 * (1 - mu) / (1 + mu) * (1 - mu ** (2 * k))
    return -chain.optimizer.eta * sum(math.erf(a / math.sqrt(2 * b)) for a, b in zip(mean, variance, strict=True))


def flow_mean(equation, g, time, m=0.0, points=200_001):
    """E theta of the SDE on the same loss: an integral of an error function."""
    t = (np.linspace(0, math.sqrt(time), points)[1:]) ** 2
    mean = g + (m - g) * np.exp(-equation.c * t)
    spread = equation.sigma0 * np.sqrt(equation.c / 2 * -np.expm1(-2 * equation.c * t))
    sign = torch.erf(torch.from_numpy(mean / (math.sqrt(2) * spread))).numpy()
    return -np.trapezoid(np.r_[np.sign(m) if m else 0.0, sign], np.r_[0.0, t])


@pytest.mark.parametrize("m", [0.0, -1.0])
def test_signum_in_time_is_of_order_one_exactly_for_the_mean(m):
    equation, g = SignFlowSDE(NGOS(linear([0.8]), 1.0), 0.7, c=3.0), 0.8
    limit = flow_mean(equation, g, 1.0, m)
    errors = [abs(means(discretise(equation, 1 / n), g, n, m) - limit) for n in (64, 128, 256, 512)]
    assert errors[0] > 1e-3
    assert -np.diff(np.log2(errors)) == pytest.approx([1, 1, 1], abs=0.15)


def test_chain_and_solver_with_momentum_in_time_have_these_means():
    equation, g = SignFlowSDE(NGOS(linear([0.8]), 1.0), 0.7, c=3.0), 0.8
    x0, save = SignumState(full(0.0), full(0.0)), SaveAt([1.0])
    chain = discretise(equation, 1 / 32)
    walked = run_chain(chain, x0, save, Paths(20_000))["theta"]
    assert abs(walked.mean[0] - means(chain, g, 32)) < 4 * walked.se[0]
    solved = solve(equation, x0, save, h=1 / 64, scheme="richardson", paths=Paths(20_000, seed=1))["theta"]
    assert abs(solved.mean[0] - flow_mean(equation, g, 1.0)) < 4 * solved.se[0] + 2e-3


def test_lion_in_time_blurs_the_sign_of_signum():
    oracle = NGOS(cosine(1), 1.0)
    x = SignumState(full(0.5), full(0.3))
    drift = {mix: SignFlowSDE(oracle, 0.7, 3.0, mix).drift(0.0, x).theta.item() for mix in (0.0, 1e-4, 0.5)}
    assert drift[0.0] == drift[1e-4] == -1
    noise = 0.5 * 0.7 * (1 + 0.5 * math.cos(0.5))
    assert drift[0.5] == pytest.approx(-math.erf(0.3 / (math.sqrt(2) * noise)))


# ---- measured


@pytest.mark.parametrize(
    ("optimizer", "orders", "paths"),
    [
        ("signum", {"theta": 1, "theta^2": 1, "cos theta": 1}, 3000),
        ("lion", {"theta": 1, "theta^2": 1, "cos theta": 1}, 3000),
        ("signum-time", {"theta": 1, "theta^2": 1, "cos theta": 1, "m^2": 1}, 3000),
        ("lion-time", {"theta": 0.5, "theta^2": 0.5, "cos theta": 0.5}, 3000),
    ],
)
def test_measured_orders(optimizer, orders, paths):
    made = case(optimizer)
    chains = [made.chain(n) for n in (32, 64)]
    errors = weak_error(chains, made.equation, made.x0, made.save, paths=Paths(paths))
    for name, order in orders.items():
        fit = fit_order(errors, name)
        assert fit.se < 0.16
        assert fit.slope == pytest.approx(order, abs=0.2 + 2 * fit.se)


def test_momentum_kept_in_steps_keeps_signum_where_adams_rule_and_nothing_do_not():
    made = case("signum")
    made = replace(made, equation=replace(made.equation, memory=Memory(0.3, 0.7)))
    x0, base, found = SGDState(full(3.0)), made.chain(128), {}
    for rule in (None, "none", "sqrt with paper"):
        other = rescaled(base, 2, rule)
        found[rule] = abs(weak_error(base, other, x0, made.save, paths=Paths(1000)).at("theta^2")[0][0])
    assert found[None] < 0.1
    assert min(found["none"], found["sqrt with paper"]) > 3 * found[None]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["signum", "lion"])
def test_momentum_in_steps_is_of_order_one(optimizer):
    made = case(optimizer)
    chains = [made.chain(n) for n in (64, 128, 256)]
    errors = weak_error(chains, made.equation, made.x0, made.save, paths=Paths(80_000))
    for name in errors.names:
        assert fit_order(errors, name).slope == pytest.approx(1, abs=0.15)


# ---- what has no SDE says so


def t_density(nu):
    return math.gamma((nu + 1) / 2) / math.gamma(nu / 2) / math.sqrt((nu - 2) * math.pi)


def test_other_noise_gives_a_sign_another_drift_or_none():
    oracle = NGOS(cosine(1), 4.0, FAMILIES["student-t"])
    equation = sde(Signum(0.1, 0.0), oracle)
    assert equation.response == pytest.approx(2 * t_density(5))
    g = oracle.sample(full(1.0, 400_000), rng(5))
    signal = (oracle.gradient(full(1.0)) / oracle.variance(full(1.0)).sqrt()).item() / 4.0
    assert standard_errors(torch.sign(g), torch.tensor([equation.response * signal], dtype=D)).item() < 4
    tossed = NGOS(cosine(1), 4.0, FAMILIES["rademacher"]).sample(full(1.0, 40_000), rng(6))
    assert standard_errors(torch.sign(tossed), torch.zeros(1, dtype=D)).item() < 4  # blind to the gradient
    skewed = NGOS(cosine(1), 1e9, FAMILIES["skewed"]).sample(full(1.0, 40_000), rng(7))
    assert torch.sign(skewed).mean() == pytest.approx(2 / math.e - 1, abs=0.02)  # not of mean zero without a gradient


MISTAKES = [
    (lambda: sde(Signum(0.1, 0.0), NGOS(cosine(), 1.0, FAMILIES["rademacher"])), "density at 0"),
    (lambda: sde(Signum(0.1, 0.5), NGOS(cosine(), 1.0, FAMILIES["student-t"])), "use noise gaussian"),
    (lambda: sde(Lion(0.1), NGOS(cosine(), 1.0, FAMILIES["skewed"]), in_time=True), "use noise gaussian"),
    (lambda: sde(Signum(0.1, 0.0), NGOS(cosine(65), 1.0)), "for d <= 64, got d=65"),
    (lambda: sde(Signum(0.1, 0.0), NGOS(cosine(), 1.0), in_time=True), "needs momentum: mu > 0"),
    (lambda: sde(Adam(0.1), NGOS(cosine(), 1.0), in_time=True), "a choice of Signum and Lion; adam has one SDE"),
    (lambda: Chain(Adam(0.1), NGOS(cosine(), 1.0), FORMS["time"]), "form 'time' is for Signum and Lion with momentum"),
    (lambda: svag_chain(Chain(Signum(0.1), NGOS(cosine(), 1.0, FAMILIES["skewed"])), 2), "density at 0, which SVAG"),
    (lambda: discretise(SignFlowSDE(NGOS(cosine(), 1.0), 0.7, 4.0), 0.5), "gives mu=-1; need eta < 0.25"),
    (lambda: discretise(SaturatedSignSDE(NGOS(cosine(), 1.0), 0.7, 0.1), 0.2), "that of eta=0.1 alone, got eta=0.2"),
    (
        partial(SaturatedSignSDE, NGOS(linear([0.0, 0.0], torch.tensor([[1.0, 0.5], [0.5, 1.0]])), 1.0), 0.7, 0.1),
        "for independent Gaussian noise; use SignSDE",
    ),
    (lambda: Memory(0.0, 0.5), r"share must be in \(0, 1\], got 0.0"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_svag_of_gaussian_noise_is_gaussian_and_signum_in_time_takes_any_noise():
    chain = Chain(Signum(0.1, 0.8), NGOS(cosine(1), 3.0))
    fine = svag_chain(chain, 2)
    assert (fine.optimizer.eta, fine.optimizer.mu, fine.oracle.sigma) == (pytest.approx(0.05), 0.8, 6.0)
    assert sde(fine.optimizer, fine.oracle).sigma0 == pytest.approx(sde(chain.optimizer, chain.oracle).sigma0)
    skewed = Chain(Signum(0.1, 0.8), NGOS(cosine(1), 3.0, FAMILIES["skewed"]), FORMS["time"])
    half = svag_chain(skewed, 2)
    assert (half.optimizer.eta, half.optimizer.mu) == (pytest.approx(0.025), pytest.approx(0.95))
    assert half.oracle == svag(skewed.oracle, 2)
    assert memory_of(Adam(0.1)) is None
