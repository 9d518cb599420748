"""What docs/errata.md says of the code; the page itself compares the formulas, and its examples run as tests too."""

import math

import pytest
import torch

from rootscale import Adam, RMSprop, Schedule
from rootscale.rules import get_rule
from rootscale.theory import (
    NGOS,
    Chain,
    Paths,
    SaveAt,
    case,
    cosine,
    discretise,
    linear,
    quadratic,
    rescaled,
    solve,
    svag_chain,
)
from rootscale.theory.equations import SGDSDE, SGDState, lowest_u

D = torch.double


@pytest.mark.parametrize("c2", [0.5, 2.0, 8.0])
def test_u_never_falls_below_its_bound_on_the_sde_or_the_chain_though_it_falls_below_the_papers(c2):
    t0, end = 0.5, 2.0
    u0 = torch.tensor([1.0, 3.0]).to(D)
    low = lowest_u(c2, u0, end - t0)
    sde_u = math.exp(-c2 * (end - t0))  # without noise: du = -c2 u dt, from the smallest u0
    assert low <= sde_u < 2 ** (-c2 * (end - t0))
    for eta2 in (1 / (2 * c2), 0.1 / c2, 0.01 / c2):
        chain_u = (1 - c2 * eta2) ** math.floor((end - t0) / eta2 + 1e-9)
        assert low <= chain_u * (1 + 1e-12)
    assert (1 - 0.5) ** math.floor((end - t0) * 2 * c2 + 1e-9) < 2 ** (-c2 * (end - t0))


def test_second_moment_of_a_solved_step_is_the_step_times_the_diffusion():
    x0, s = 0.7, 1.3
    equation = SGDSDE(NGOS(quadratic([1.0]), 1.0), sigma0=s)
    ratios = []
    for h in (0.04, 0.01):
        save = SaveAt([h], {"square": lambda x: (x.theta[:, 0] - x0).square()})
        mean, se = solve(
            equation, SGDState(torch.full((1, 1), x0, dtype=D)), save, h=h, scheme="richardson", paths=Paths(200_000)
        )["square"]
        exact = (x0 * math.expm1(-h)) ** 2 - s**2 * math.expm1(-2 * h) / 2
        assert abs(mean[0] - exact) < 4 * se[0] + 2 * h**3
        ratios.append(mean[0] / h)
    assert ratios == pytest.approx([s**2, s**2], rel=0.06)  # of order h: with the printed h^2 they would vanish


def test_deviation_of_v_is_of_the_order_of_the_root_of_one_minus_beta():
    gbar, sigma, deviations = 0.3, 1.0, []
    for beta in (0.9, 0.975):
        chain = Chain(RMSprop(1e-9, beta), NGOS(linear([gbar]), sigma))
        x = chain.start(torch.zeros(40_000, 1, dtype=D))
        x = (x[0], torch.full_like(x[0], gbar**2 + sigma**2))
        *_, (_, (_, v)) = chain.iterate(x, round(4 / (1 - beta)), torch.Generator().manual_seed(1))
        deviations.append(float(v.std()))
        exact = math.sqrt((1 - beta) / (1 + beta) * (2 * sigma**4 + 4 * gbar**2 * sigma**2))
        assert deviations[-1] == pytest.approx(exact, rel=4 / math.sqrt(2 * 40_000) + 5e-4)
    assert deviations[0] / deviations[1] == pytest.approx(2.0, rel=0.03)  # 1 - beta is 4 times smaller


def test_discretise_makes_sigma_grow_as_one_over_eta():
    equation = case("rmsprop").equation
    assert [discretise(equation, eta).oracle.sigma * eta for eta in (0.2, 0.02)] == pytest.approx([equation.sigma0] * 2)


def test_equal_times_of_two_batch_sizes_are_at_counters_divided_by_kappa():
    chain, kappa, t0 = Chain(Adam(0.05, 0.99, 0.995), NGOS(cosine(), 4.0)), 4, 0.5
    larger = rescaled(chain, kappa)
    counter = t0 / chain.clock
    assert counter / kappa * larger.clock == pytest.approx(t0, rel=1e-12)
    assert kappa * counter * larger.clock == pytest.approx(kappa**2 * t0, rel=1e-12)  # as printed
    assert get_rule("sqrt", "adam").units["step_counter"].form(counter, kappa) == pytest.approx(counter / kappa)


def test_linear_decay_falls_from_the_end_of_the_warm_up_to_the_end_of_the_run():
    schedule, warmup, steps = Schedule("linear", warmup=1000), 1000, 12_500
    rates = [schedule.eta(1e-3, k, steps) for k in range(warmup, steps + 1, 500)]
    expected = [1e-3 * (steps - k) / (steps - warmup) for k in range(warmup, steps + 1, 500)]
    assert rates == pytest.approx(expected, rel=1e-12, abs=1e-18)
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("ell", [2, 3, 8])
def test_svag_takes_ell_squared_steps_in_the_time_of_one(ell):
    chain = case("adam").chain(32)
    assert chain.clock / svag_chain(chain, ell).clock == pytest.approx(ell**2, rel=1e-12)
