import itertools
import math

import pytest
import torch
from reference import sgd_on_quadratic, standard_errors, warm_up_second_moment

from rootscale import SGD, Adam, AdamW, RMSprop
from rootscale.records import NAdam
from rootscale.rules import get_rule
from rootscale.theory import (
    FAMILIES,
    FORMS,
    NGOS,
    Chain,
    RateSchedule,
    cosine,
    discretise,
    linear,
    logistic,
    quadratic,
    rescaled,
    sde,
    svag_chain,
)
from rootscale.theory.discrete import SCHEDULES, RMSpropW
from rootscale.theory.equations import SGDSDE
from rootscale.theory.families import Minibatch
from rootscale.theory.oracle import svag

TORCH = {
    "sgd": (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd, l2": (SGD(0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    "rmsprop": (RMSprop(0.02, 0.95, 1e-3), lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.95, eps=1e-3)),
    "rmsprop, l2": (
        RMSprop(0.02, 0.95, 1e-8, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.95, eps=1e-8, weight_decay=0.1),
    ),
    "adam": (Adam(0.02, 0.9, 0.99, 1e-3), lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.9, 0.99), eps=1e-3)),
    "adam, l2": (
        Adam(0.02, 0.8, 0.95, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
    ),
    "adamw": (
        AdamW(0.02, 0.8, 0.95, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.3),
    ),
    "sgd, momentum, l2": (
        SGD(0.02, momentum=0.8, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.8, weight_decay=0.05),
    ),
}


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TORCH)
def test_torch_form_equals_torch_optim_for_hundreds_of_steps(name):
    optimizer, make = TORCH[name]
    oracle = NGOS(cosine(4), 0.7, FAMILIES["skewed"])
    chain = Chain(optimizer, oracle, FORMS["torch"])
    theta = torch.randn(6, 4, generator=rng(1), dtype=torch.double)
    x, parameter = chain.start(theta), torch.nn.Parameter(theta.clone())
    live, draws = make([parameter]), rng(2)
    for k in range(500):
        g = oracle.sample(x[0], draws)
        x = chain.step(k, x, g)
        parameter.grad = g.clone()
        live.step()
        torch.testing.assert_close(x[0], parameter.data, rtol=1e-12, atol=1e-12)
    assert (x[0] - theta).abs().min() > 1e-3  # it went somewhere


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", TORCH)
def test_a_schedule_is_that_of_torch_in_steps(name, schedule):
    optimizer, make = TORCH[name]
    oracle, steps = NGOS(cosine(4), 0.7), 40
    base = Chain(optimizer, oracle, FORMS["torch"])
    course = RateSchedule(schedule, duration=steps * base.clock)
    chain = Chain(optimizer, oracle, FORMS["torch"], course)
    theta = torch.randn(6, 4, generator=rng(1), dtype=torch.double)
    x, parameter = chain.start(theta), torch.nn.Parameter(theta.clone())
    live, draws = make([parameter]), rng(2)
    factors = SCHEDULES[schedule](torch.arange(steps + 1).double() / steps)
    rate = torch.optim.lr_scheduler.LambdaLR(live, lambda k: float(factors[k]))
    for k in range(steps):
        g = oracle.sample(x[0], draws)
        x = chain.step(k, x, g)
        parameter.grad = g.clone()
        live.step()
        rate.step()
        torch.testing.assert_close(x[0], parameter.data, rtol=1e-11, atol=1e-12)


def test_rmsprop_with_decoupled_decay_is_rmsprop_and_a_shrinking_of_theta():
    theta, g = torch.randn(2, 5, 3, generator=rng(3), dtype=torch.double)
    oracle, v = NGOS(cosine(3), 1.0), torch.full((5, 3), 0.7).double()
    plain = Chain(RMSprop(0.1, 0.9, 0.01), oracle).step(0, (theta, v), g)
    decayed = Chain(RMSpropW(0.1, 0.9, 0.01, weight_decay=0.3), oracle).step(0, (theta, v), g)
    torch.testing.assert_close(decayed[0], plain[0] - 0.1 * 0.3 * theta, rtol=1e-12, atol=1e-14)
    assert torch.equal(decayed[1], plain[1])


def test_sgd_with_momentum_has_the_moments_of_its_recursion_and_those_of_its_sde_as_eta_vanishes():
    """On a quadratic with unit noise everything is linear: (theta, b) has a transition matrix of two by two."""
    h, mu, sigma0, theta0, duration = 3.0, 0.6, 0.7, 1.5, 1.0
    decay = math.exp(-h * duration)
    truth = torch.tensor([theta0 * decay, sigma0**2 * (1 - decay**2) / (2 * h)]).double()
    gaps = []
    for steps in (64, 128, 256):
        chain = discretise(SGDSDE(NGOS(quadratic([h]), 1.0), sigma0, momentum=mu), (1 - mu) * duration / steps)
        eta, sigma = chain.optimizer.eta, chain.oracle.sigma
        assert chain.clock == pytest.approx(duration / steps, rel=1e-12)
        step = torch.tensor([[1 - eta * h, -eta * mu], [h, mu]]).double()
        noise = sigma * torch.tensor([-eta, 1.0]).double()
        mean, cov = torch.tensor([theta0, 0.0]).double(), torch.zeros(2, 2).double()
        for _ in range(steps):
            mean, cov = step @ mean, step @ cov @ step.T + noise[:, None] * noise
        gaps.append(torch.stack((mean[0], cov[0, 0])) - truth)
        if steps == 64:  # and the chain is that recursion
            *_, (_, (theta, _)) = chain.iterate(chain.start(torch.full((100_000, 1), theta0).double()), steps, rng(4))
            assert standard_errors(theta, mean[0]).item() < 4
            assert standard_errors((theta - mean[0]).square(), cov[0, 0]).item() < 4
    for coarse, fine in itertools.pairwise(gaps):
        assert (coarse / fine).tolist() == pytest.approx([2.0, 2.0], rel=0.1)  # order 1 in eta


def by_hand(opt, theta, gradients):
    """Definitions 2.1 and 2.2 of the paper, one scalar at a time."""
    beta1, beta2 = (0.0, opt.beta) if isinstance(opt, RMSprop) else (opt.beta1, opt.beta2)
    m = v = 0.0
    for k, g in enumerate(gradients):
        m_new, v_new = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        if isinstance(opt, RMSprop):
            theta = theta - opt.eta * g / (math.sqrt(v) + opt.eps)
        elif k > 0:
            v_hat = v / (1 - beta2**k)
            theta = theta - opt.eta * (m_new / (1 - beta1 ** (k + 1))) / (math.sqrt(v_hat) + opt.eps)
        m, v = m_new, v_new
    return theta, m, v


@pytest.mark.parametrize("optimizer", [RMSprop(0.03, 0.9, 0.5), Adam(0.03, 0.7, 0.9, 0.01)], ids=lambda o: o.name)
def test_paper_form_is_the_definition(optimizer):
    chain = Chain(optimizer, NGOS(linear([1.0]), 2.0))
    gradients = torch.randn(50, generator=rng(3), dtype=torch.double)
    x = chain.start(torch.tensor([[0.4]], dtype=torch.double))
    for k, g in enumerate(gradients):
        x = chain.step(k, x, g.reshape(1, 1))
    theta, m, v = by_hand(optimizer, 0.4, gradients.tolist())
    expected = (theta, v) if len(x) == 2 else (theta, m, v)
    assert [float(each) for each in x] == pytest.approx(expected, rel=1e-12)


def test_adam_in_the_papers_form_makes_no_update_at_step_zero_and_only_fills_the_state():
    for optimizer in (Adam(0.1, 0.9, 0.99), AdamW(0.1, 0.9, 0.99, weight_decay=0.5)):
        chain = Chain(optimizer, NGOS(linear([1.0]), 1.0))
        theta = torch.ones(2, 1).double()
        x = chain.step(0, chain.start(theta), 3 * theta)
        assert torch.equal(x[0], theta)
        torch.testing.assert_close(x[1], 0.1 * 3 * theta, rtol=1e-12, atol=0)
        torch.testing.assert_close(x[2], 0.01 * 9 * theta, rtol=1e-12, atol=0)
        assert torch.isfinite(chain.step(1, x, theta)[0]).all()


def test_sgd_on_a_quadratic_has_the_moments_of_its_recursion():
    h = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    s = torch.tensor([[1.0, -0.3], [-0.3, 0.5]]).double()
    theta0 = torch.tensor([1.0, -1.0]).double()
    chain = Chain(SGD(0.2), NGOS(quadratic(h, covariance=s), 0.8, FAMILIES["rademacher"]))
    paths = 100_000
    *_, (_, (theta,)) = chain.iterate(chain.start(theta0.expand(paths, 2)), 12, rng(4))
    mean, cov = sgd_on_quadratic(h, s, theta0, 0.2, 0.8, 12)
    assert (standard_errors(theta, mean) < 4).all()
    centred = theta - mean
    assert (standard_errors((centred[:, :, None] * centred[:, None, :]).flatten(1), cov.flatten()) < 4).all()


@pytest.mark.parametrize("family", ["gaussian", "skewed"])
def test_expected_second_moment_of_the_warm_up_is_the_papers(family):
    gbar = torch.tensor([0.5, -2.0]).double()
    chain = Chain(RMSprop(0.1, 0.9, 0.1), NGOS(linear(gbar), 1.5, FAMILIES[family]))
    v0, paths = torch.tensor([3.0, 0.1]).double(), 100_000
    x = (torch.zeros(paths, 2).double(), v0.expand(paths, 2))
    for k, (_, v) in chain.iterate(x, 10, rng(5)):
        assert (standard_errors(v, warm_up_second_moment(v0, gbar, 1.5, 0.9, k)) < 4.5).all()


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.05), RMSprop(0.05, 0.98, 0.3, 0.01), Adam(0.05, 0.95, 0.99, 0.2, 0.01),
        AdamW(0.05, 0.95, 0.99, 0.2, weight_decay=0.1), RMSpropW(0.05, 0.98, 0.3, 0.01, weight_decay=0.1),
        SGD(0.05, momentum=0.8),
    ],
    ids=repr,
)  # fmt: skip
def test_discretise_inverts_sde_and_walks_along_the_scaling_rule(optimizer):
    oracle = NGOS(cosine(2), 4.0)
    equation = sde(optimizer, oracle)
    same = discretise(equation, optimizer.eta)
    assert same.oracle.sigma == pytest.approx(4.0, rel=1e-12)
    assert vars(same.optimizer) == pytest.approx(vars(optimizer), rel=1e-12)
    rule, kappa = get_rule("with paper", optimizer.name), 4
    moved = discretise(equation, rule.convert("eta", optimizer.eta, kappa))
    assert moved.oracle.sigma == pytest.approx(4.0 / math.sqrt(kappa), rel=1e-12)
    assert moved.clock == pytest.approx(kappa * same.clock, rel=1e-12)
    rows = {"beta1": "beta1", "beta2": "beta2", "beta": "beta2", "eps": "eps", "eps_root": "eps_root"}
    for field, value in vars(optimizer).items():
        if field in rows and optimizer.name != "sgd":
            expected = rule.convert(rows[field], value, kappa)
            assert getattr(moved.optimizer, field) == pytest.approx(expected, rel=1e-9)
    if optimizer.name == "adamw":
        assert moved.optimizer.weight_decay == pytest.approx(rule.convert("decoupled_decay", 0.1, kappa))


def test_svag_chain_has_the_papers_hyperparameters_and_the_same_sde():
    x, y = torch.randn(8, 2, generator=rng(), dtype=torch.double), torch.arange(8) % 2
    chain, ell = Chain(Adam(0.1, 0.9, 0.95, 0.2), NGOS(logistic(x, y), 1.0, Minibatch(1))), 3
    svagged = svag_chain(chain, ell)
    paper = Adam(0.1 / ell, 1 - (1 - 0.9) / ell**2, 1 - (1 - 0.95) / ell**2, 0.2 * ell)
    assert vars(svagged.optimizer) == pytest.approx(vars(paper), rel=1e-12)
    assert svagged.oracle == svag(chain.oracle, ell)
    assert svagged.clock == pytest.approx(chain.clock / ell**2, rel=1e-12)
    before, after = sde(chain.optimizer, chain.oracle), sde(svagged.optimizer, svagged.oracle)
    for name in ("sigma0", "c1", "c2", "eps0"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-12)
    assert svag_chain(chain, 1) == chain


def test_rescaled_converts_what_the_rule_converts_and_always_the_noise():
    chain = Chain(Adam(0.1, 0.9, 0.95, 0.2), NGOS(cosine(1), 6.0))
    full, kept = rescaled(chain, 4), rescaled(chain, 4, "none")
    assert vars(full.optimizer) == pytest.approx(vars(Adam(0.2, 0.6, 0.8, 0.1)), rel=1e-12)
    assert kept.optimizer == chain.optimizer
    assert full.oracle.sigma == kept.oracle.sigma == 3.0
    assert rescaled(Chain(SGD(0.1), chain.oracle), 4).optimizer.eta == pytest.approx(0.4)
    with pytest.raises(ValueError, match=r"kappa=16 gives beta1=-0.6; need kappa < 10"):
        rescaled(chain, 16)


def test_the_share_of_a_new_gradient_in_v():
    oracle = NGOS(cosine(1), 1.0)
    assert Chain(Adam(0.1, 0.9, 0.75), oracle).share == Chain(RMSprop(0.1, 0.75), oracle).share == 0.25
    assert Chain(SGD(0.1), oracle).share == 1


def test_scaled_state_has_u_in_the_units_of_the_noise():
    chain = Chain(Adam(0.1), NGOS(cosine(2), 3.0))
    x = tuple(torch.rand(4, 2, generator=rng(i)).double() for i in range(3))
    torch.testing.assert_close(chain.scaled(x).u, x[2] / 9)
    for a, b in zip(chain.unscaled(chain.scaled(x)), x, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: discretise(sde(Adam(0.1), NGOS(cosine(), 1.0)), 0.5), "gives beta1=-1.5; need eta < 0.316228"),
        (lambda: sde(Adam(0.1, beta1=0.0), NGOS(cosine(), 1.0)), r"use RMSprop\(eta, beta=beta2\)"),
        (lambda: sde(Adam(0.1), NGOS(cosine(), 0.0)), "sigma > 0, got sigma=0.0"),
        (lambda: discretise(sde(Adam(0.1), NGOS(cosine(), 1.0)), -0.1), "eta must be a finite number > 0, got -0.1"),
        (lambda: Chain(NAdam(0.1), NGOS(cosine(), 1.0)), "of the records SGD, RMSprop, RMSpropW, Adam, .*; got NAdam"),
        (lambda: Chain(Adam(0.1), NGOS(cosine(), 1.0), "torch"), r"such as FORMS\['torch'\], got 'torch'"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("make", [Chain, sde])
def test_a_problem_is_no_oracle(make):
    with pytest.raises(TypeError, match=r"expected an oracle, such as NGOS\(cosine\(\), sigma=4.0\), got Problem"):
        make(Adam(0.1), cosine())
