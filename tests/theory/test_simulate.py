"""`run_chain`: a chain over continuous time, from counter-based normals."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from calls import chained
from torch import nn

from rootscale import SGD, Adam, AdamW, RMSprop
from rootscale.rules import svag_weights
from rootscale.theory import (
    FAMILIES,
    FORMS,
    NGOS,
    AdamState,
    Chain,
    NetworkOracle,
    Paths,
    RateSchedule,
    RMSpropState,
    SaveAt,
    batch_gap,
    case,
    cosine,
    logistic,
    quadratic,
    rescaled,
    run_chain,
    svag_chain,
)
from rootscale.theory.equations import SGDState
from rootscale.theory.families import Minibatch
from rootscale.theory.oracle import Problem, svag
from rootscale.theory.random import normal


def network(batch_size: int = 2) -> NetworkOracle:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    module = nn.Linear(3, 2).double()
    return NetworkOracle(module, partial(F.cross_entropy, reduction="none"), (x, y), batch_size)


def logits() -> NGOS:
    x = torch.tensor([[1.0, 0.2], [-0.5, 1.0], [0.3, -1.0]], dtype=torch.float64)
    return NGOS(logistic(x, torch.tensor([1.0, 0.0, 1.0])), 0.5, Minibatch(4))


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", [FORMS["paper"], FORMS["torch"]], ids=lambda form: form.name)
def test_run_chain_is_the_chain_step_by_step_with_its_counter_at_t0(form, compile):
    oracle = svag(NGOS(cosine(d=2), 2.0, FAMILIES["skewed"]), 3)
    chain = Chain(Adam(0.2, 0.9, 0.95, eps=0.1), oracle, form)
    h, first, steps = chain.clock, 7, 5
    x0 = AdamState(*torch.tensor([[[1.0, -1.0]], [[0.2, 0.1]], [[2.0, 1.0]]], dtype=torch.float64))
    functions = {"theta": lambda x: x.theta[:, 0], "u": lambda x: x.u[:, 1]}
    times = [first * h, (first + 3) * h, (first + steps) * h]
    result = chained(chain, x0, functions, times, seed=3, t0=first * h, paths=4, keep=True, compile=compile)
    x = chain.unscaled(tuple(part.expand(4, -1) for part in x0))
    for k in range(steps):
        x = chain.step(first + k, x, oracle.drawn(x[0], normal(3, k, (4, oracle.normals))))
    expected = chain.scaled(x)
    torch.testing.assert_close(torch.tensor(result.values["theta"][:, 2]), expected.theta[:, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.tensor(result.values["u"][:, 2]), expected.u[:, 1], rtol=1e-12, atol=1e-12)
    assert result.values["theta"][:, 0].tolist() == [1.0] * 4


@pytest.mark.parametrize("make", [network, logits])
def test_svag_is_drawn_as_the_combination_of_two_stochastic_gradients(make):
    base, ell = make(), 2
    oracle = svag(base, ell)
    theta = torch.randn(5, base.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = normal(0, 0, (5, oracle.normals))
    one, two = w.chunk(2, 1)
    r1, r2 = svag_weights(ell)
    expected = r1 * base.drawn(theta, one) + r2 * base.drawn(theta, two)
    torch.testing.assert_close(oracle.drawn(theta, w), expected, rtol=1e-12, atol=1e-13)


def test_the_samples_that_normals_pick_are_uniform():
    # 6 samples, 60,000 picks: chi-squared with 5 degrees of freedom, 99.9 % quantile 20.5.
    oracle = network()
    picked = []
    oracle.__dict__["minibatch"] = lambda theta, index: picked.append(index)
    oracle.drawn(torch.zeros(30_000, oracle.d), normal(5, 0, (30_000, 2)))
    counts = torch.bincount(picked[0].flatten(), minlength=6).double()
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 20.5


def test_chain_and_svag_of_a_network_agree_in_mean_with_each_other_at_equal_times():
    oracle = network()
    chain = Chain(RMSprop(0.05, 0.99, eps=0.1), oracle, FORMS["torch"])
    x0 = RMSpropState(oracle.start(1), oracle.variance(oracle.start(1)))
    functions = {"loss": lambda x: oracle.losses(x.theta).mean(1)}
    times = [0.0, 20 * chain.clock]
    plain = chained(chain, x0, functions, times, seed=0, paths=400, compile=False)["loss"]
    fine = chained(svag_chain(chain, 2), x0, functions, times, seed=1, paths=400, compile=False)["loss"]
    assert plain.mean[0] == fine.mean[0]
    se = float((plain.se[1] ** 2 + fine.se[1] ** 2) ** 0.5)
    assert abs(plain.mean[1] - fine.mean[1]) < 4 * se
    assert plain.mean[0] - plain.mean[1] > 20 * se  # the run has gone somewhere


def test_an_oracle_that_only_samples_is_refused_with_the_way_that_works():
    class Samples:
        sigma, d, rank = 1.0, 1, 1

    chain = Chain(SGD(0.1), Samples())
    with pytest.raises(TypeError, match=r"needs an oracle with normals and drawn.*Samples has none.*Chain.iterate"):
        chained(chain, SGDState(torch.zeros(1, 1)), {}, [0.1], seed=0)


def test_diverged_paths_are_counted_and_reported():
    chain = Chain(SGD(30.0), NGOS(quadratic([1.0]), 1.0))
    x0 = SGDState(torch.ones(1, 1))
    with pytest.warns(RuntimeWarning, match="5 of 5 paths diverged"):
        result = chained(chain, x0, {"theta": lambda x: x.theta[:, 0]}, [0.0, 300 * 30.0], seed=0, paths=5)
    assert result.diverged.tolist() == [0, 5]


def test_a_state_of_another_optimizer_is_refused():
    chain = Chain(Adam(0.1, 0.9, 0.99), NGOS(cosine(), sigma=10.0))
    with pytest.raises(ValueError, match=r"x0 must be AdamState\(theta, m, u\) of tensors, got RMSpropState of"):
        chained(chain, RMSpropState(torch.ones(1, 1), torch.ones(1, 1)), {}, [0.1], seed=0, t0=0.05, paths=2)


@pytest.mark.parametrize("of_noise", [lambda s: s, lambda s: 16 * s.square()], ids=["deviation", "with sigma"])
def test_a_variance_that_is_not_that_of_the_noise_is_refused(of_noise):
    spread = torch.tensor([0.5, 2.0], dtype=torch.double)
    problem = Problem(
        "own", 2, 2, lambda theta: theta, lambda theta, xi: spread * xi, lambda theta: of_noise(spread).expand_as(theta)
    )
    chain = Chain(RMSprop(0.1, 0.9, 0.1), NGOS(problem, 4.0))
    x0 = RMSpropState(*torch.ones(2, 1, 2, dtype=torch.double))
    with pytest.raises(ValueError, match=r"without sigma; at x0 parameter 1 has (2|64), its noise gives 4"):
        chained(chain, x0, None, [0.1], seed=0, paths=2)


def test_a_noise_of_nothing_but_rounding_is_no_mistake():
    same = NGOS(logistic(0.3 * torch.ones(7, 2), torch.ones(7)), 0.5)  # all points alike: no noise
    x0 = RMSpropState(*torch.ones(2, 1, 2))
    chained(Chain(RMSprop(0.1, 0.9, 0.1), same), x0, None, [0.1], seed=0, paths=2)


@pytest.mark.parametrize(("kappa", "schedule"), [(16, None), (64, "cosine")])
def test_the_predicted_gap_of_a_batch_is_that_of_runs(kappa, schedule):
    theta = torch.full((1, 1), 6.0).double()
    course = None if schedule is None else RateSchedule(schedule, 0.25, 1.0)
    optimizer = AdamW(eta=1 / 32, beta1=0.995, beta2=0.998, eps=3.2, weight_decay=0.003)
    chain = Chain(optimizer, NGOS(cosine(), 16.0), schedule=course)
    x0 = AdamState(theta, chain.oracle.gradient(theta), chain.oracle.variance(theta))
    save = SaveAt([0.75, 1.25], {"loss": lambda x: (x.theta.square() + x.theta.cos())[:, 0] / 2}, start=0.25)
    predicted = batch_gap(chain, kappa, x0, save, h=1 / 64, paths=Paths(200, seed=3))["loss"]
    base = run_chain(chain, x0, save, Paths(2000, seed=1))["loss"]
    larger = run_chain(rescaled(chain, kappa), x0, save, Paths(2000, seed=2))["loss"]
    measured, se = larger.mean - base.mean, np.hypot(larger.se, base.se)
    assert (measured > 10 * se).all()
    np.testing.assert_allclose(predicted.mean, measured, rtol=0.2)
    assert (predicted.se < se).all()  # one Brownian path for both


def test_gaps_are_predicted_for_adam_alone():
    setting = case("rmsprop")
    with pytest.raises(ValueError, match=r"predicted for Adam and AdamW, .* got rmsprop"):
        batch_gap(setting.chain(16), 4, setting.x0, setting.save, h=1 / 16)
