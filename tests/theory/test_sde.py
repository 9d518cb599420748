import math
from dataclasses import replace

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from reference import euler_maruyama, ornstein_uhlenbeck, standard_errors

from rootscale import Adam, theory_settings
from rootscale.theory import NGOS, AdamState, RateSchedule, RMSpropState, case, cosine, linear, quadratic, sde
from rootscale.theory.discrete import SCHEDULES, Scheduled
from rootscale.theory.equations import SGDSDE, AdamSDE, RMSpropSDE, SGDState, auxiliary, gamma, lowest_u, mu, tau

H = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
S = torch.tensor([[1.0, -0.3], [-0.3, 0.5]]).double()
PATHS = 20_000


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def moments(theta, mean, cov):
    centred = theta - mean
    products = (centred[:, :, None] * centred[:, None, :]).flatten(1)
    return max(standard_errors(theta, mean).max(), standard_errors(products, cov.flatten()).max())


def test_sgd_on_a_quadratic_is_an_ornstein_uhlenbeck_process():
    equation = SGDSDE(NGOS(quadratic(H, covariance=S), 1.0), sigma0=0.7)
    start = torch.tensor([1.0, -1.0]).double()
    x = euler_maruyama(equation, SGDState(start.expand(PATHS, 2)), 0.0, 0.8 / 200, 200, rng(1))
    assert moments(x.theta, *ornstein_uhlenbeck(H, 0.7**2 * S, start, 0.8)) < 4


def test_rmsprop_with_stationary_u_is_an_ornstein_uhlenbeck_process():
    sigma0, eps0 = 0.7, 0.3
    variance = torch.tensor([1.0, 0.25]).double()
    curvature = torch.tensor([2.0, 0.5]).double()
    equation = RMSpropSDE(NGOS(quadratic(curvature, covariance=variance), 1.0), sigma0, c2=3.0, eps0=eps0)
    start = torch.tensor([1.0, -1.0]).double()
    x = RMSpropState(start.expand(PATHS, 2), variance.expand(PATHS, 2))
    x = euler_maruyama(equation, x, 0.0, 0.6 / 200, 200, rng(2))
    assert torch.equal(x.u, variance.expand(PATHS, 2))  # stationary, to the bit
    p = sigma0 * variance.sqrt() + eps0
    mean, cov = ornstein_uhlenbeck(torch.diag(curvature / p), torch.diag(sigma0**2 * variance / p**2), start, 0.6)
    assert moments(x.theta, mean, cov) < 4


def test_adams_m_on_a_linear_loss_is_an_ornstein_uhlenbeck_process_and_theta_its_weighted_integral():
    c1, c2, sigma0, eps0, t0, duration, gbar = 2.0, 1.0, 0.7, 0.3, 0.5, 0.6, 1.5
    equation = AdamSDE(NGOS(linear([gbar]), 1.0), sigma0, c1, c2, eps0)
    one = torch.ones(PATHS, 1).double()
    x = euler_maruyama(equation, AdamState(0 * one, 0 * one, one), t0, duration / 200, 200, rng(3))
    mean, cov = ornstein_uhlenbeck(
        torch.tensor([[c1]]).double(), torch.tensor([[(sigma0 * c1) ** 2]]).double(), -gbar * one[0], duration
    )
    assert moments(x.m - gbar, mean, cov) < 4
    s = torch.linspace(0, duration, 20_001).double()
    gamma1, gamma2 = 1 - torch.exp(-c1 * (t0 + s)), 1 - torch.exp(-c2 * (t0 + s))
    rate = gamma2.sqrt() / gamma1 / (sigma0 + eps0 * gamma2.sqrt())
    expected = -torch.trapezoid(rate * gbar * (1 - torch.exp(-c1 * s)), s)
    assert standard_errors(x.theta, expected).item() < 4


def test_tau_is_a_smooth_step_and_mu_the_identity_above_u_min_and_never_below_half_of_it():
    z = torch.linspace(-1, 2, 301).double()
    inner = z[(z > 0) & (z < 1)]
    expected = torch.exp(-1 / inner) / (torch.exp(-1 / inner) + torch.exp(-1 / (1 - inner)))
    torch.testing.assert_close(tau(inner), expected, rtol=1e-12, atol=1e-300)
    assert (tau(z[z <= 0]) == 0).all()
    assert (tau(z[z >= 1]) == 1).all()
    u = torch.linspace(-1, 3, 401).double()
    assert torch.equal(mu(u, 0.5)[u >= 0.5], u[u >= 0.5])
    assert (mu(u, 0.5) >= 0.25).all()
    v = u.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mu(v, 0.5).sum(), v)
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("which", ["rmsprop", "adam"])
def test_auxiliary_sde_has_the_same_paths_where_u_stays_above_u_min_and_others_where_it_does_not(which):
    oracle, one = NGOS(cosine(2), 1.0), torch.ones(64, 2).double()
    equation, x = {
        "rmsprop": (RMSpropSDE(oracle, 0.7, 2.0, 0.1), RMSpropState(one, 4 * one)),
        "adam": (AdamSDE(oracle, 0.7, 1.5, 2.0, 0.1), AdamState(one, one, 4 * one)),
    }[which]
    duration, steps = 1.0, 50
    low = lowest_u(equation.c2, x.u, duration)
    end = euler_maruyama(equation, x, 0.3, duration / steps, steps, rng(4))
    same = euler_maruyama(auxiliary(equation, low), x, 0.3, duration / steps, steps, rng(4))
    for a, b in zip(end, same, strict=True):
        assert torch.equal(a, b)
    assert (end.u >= low).all()
    other = euler_maruyama(auxiliary(equation, 6.0), x, 0.3, duration / steps, steps, rng(4))
    assert (other.theta - end.theta).abs().min() > 1e-6


def test_decoupled_decay_and_an_eps_inside_the_root_enter_as_their_docstrings_say():
    oracle = NGOS(cosine(1), 1.0)
    x = AdamState(*(torch.full((1, 1), v, dtype=torch.double) for v in (0.5, 0.4, 2.0)))
    equation = AdamSDE(oracle, 0.7, 1.5, 2.0, 0.1, eps_root0=0.3, decay=0.25)
    g1, g2 = 1 - math.exp(-1.5 * 0.8), 1 - math.exp(-2.0 * 0.8)
    p = math.sqrt(0.7**2 * 2.0 + 0.3 * g2) + 0.1 * math.sqrt(g2)
    expected = -math.sqrt(g2) / g1 * 0.4 / p - 0.25 * 0.5
    assert equation.drift(0.8, x).theta.item() == pytest.approx(expected, rel=1e-12)
    rms = RMSpropSDE(oracle, 0.7, 2.0, 0.1, eps_root0=0.3, decay=0.25)
    y = RMSpropState(x.theta, x.u)
    p = math.sqrt(0.7**2 * 2.0 + 0.3) + 0.1
    slope = 0.5 - 0.5 * math.sin(0.5)
    assert rms.drift(0.0, y).theta.item() == pytest.approx(-slope / p - 0.25 * 0.5, rel=1e-12)
    sgd = SGDSDE(oracle, 0.7, decay=0.25)
    assert sgd.drift(0.0, SGDState(x.theta)).theta.item() == pytest.approx(-slope - 0.25 * 0.5, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_with_its_signal_the_drift_of_u_is_the_chains_mean(optimizer):
    made = case(optimizer)
    chain = made.chain(16)
    sigma, theta = chain.oracle.sigma, torch.full((1, 1), 3.0).double()  # the gradient is as large as the noise
    equation = replace(made.equation, signal=1 / sigma**2)
    x = made.x0._replace(theta=theta)
    nodes, weights = (torch.from_numpy(a) for a in hermegauss(20))  # E over the noise, exactly: u is quadratic in it
    many = tuple(part.expand(20, -1) for part in chain.unscaled(x))
    gradients = chain.oracle.gradient(many[0]) + sigma * chain.oracle.noise(many[0], nodes[:, None])
    after = chain.scaled(chain.step(made.start / chain.clock, many, gradients))
    mean = (weights / weights.sum()) @ after.u
    expected = x.u + chain.clock * equation.drift(made.start, x).u
    torch.testing.assert_close(mean[None], expected, rtol=1e-12, atol=0)
    without = x.u + chain.clock * made.equation.drift(made.start, x).u
    assert (expected - without).abs().min() > 0.01
    plain = [a * 0.1 + b for a, b in zip(equation.drift(1.0, x), equation.diffusion(1.0, x, theta), strict=True)]
    for a, b in zip(equation.increment(1.0, x, 0.1, theta), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("optimizer", ["sgd", "rmspropw", "adamw", "signsgd", "signum-time"])
def test_a_schedule_multiplies_what_moves_theta_and_nothing_else(optimizer):
    made = case(optimizer, "cosine")
    scheduled = Scheduled(made.equation, RateSchedule("linear", made.start, 2.0))
    x, t, dw = made.x0, made.start + 0.5, torch.full((1, 1), 0.3).double()
    for with_it, without in (
        (scheduled.drift(t, x), made.equation.drift(t, x)),
        (scheduled.diffusion(t, x, dw), made.equation.diffusion(t, x, dw)),
    ):
        torch.testing.assert_close(with_it.theta, 0.75 * without.theta, rtol=1e-12, atol=0)
        for a, b in zip(with_it[1:], without[1:], strict=True):
            assert torch.equal(a, b)
    plain = [a * 0.1 + b for a, b in zip(scheduled.drift(t, x), scheduled.diffusion(t, x, dw), strict=True)]
    for a, b in zip(scheduled.increment(t, x, 0.1, dw), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_schedules_are_those_of_the_command_line_and_stay_at_their_ends():
    assert tuple(SCHEDULES) == theory_settings.SCHEDULES
    for name in SCHEDULES:
        schedule = RateSchedule(name, 1.0, 2.0)
        assert float(schedule(0.0)) == float(schedule(1.0))
        assert float(schedule(9.0)) == float(schedule(3.0))
    assert float(RateSchedule("cosine", 1.0, 2.0)(1.5)) == pytest.approx((1 + math.sqrt(0.5)) / 2, rel=1e-12)


def test_schedules_of_signs_with_momentum_in_steps_and_unknown_ones_are_refused():
    with pytest.raises(ValueError, match="SignSDE has terms of other powers of eta"):
        Scheduled(case("signum").equation, RateSchedule("linear"))
    with pytest.raises(ValueError, match=r"schedule must be one of constant, linear, .*, got 'sqrt'"):
        RateSchedule("sqrt")


def test_gamma_is_the_limit_of_the_bias_correction():
    for eta in (0.1, 0.01):
        k, c = round(0.7 / eta**2), 1.5
        assert float(gamma(c, 0.7)) == pytest.approx(1 - (1 - c * eta**2) ** k, abs=c**2 * eta**2)


def test_l2_becomes_part_of_the_loss():
    equation = sde(Adam(0.1, weight_decay=0.3), NGOS(cosine(1), 2.0))
    theta = torch.ones(1, 1).double()
    assert equation.oracle.gradient(theta).item() == pytest.approx(1 - 0.5 * math.sin(1) + 0.3)
    assert equation.decay == 0


def test_wrong_u_min_is_named():
    with pytest.raises(ValueError, match="u_min must be a finite number > 0, got 0"):
        auxiliary(RMSpropSDE(NGOS(cosine(), 1.0), 1.0, 1.0), 0)
