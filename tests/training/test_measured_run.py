"""`Run(measure=...)`: beta1 at a larger batch follows the measured curvature, and what is beyond it is said."""

import copy
import math
import warnings

import pytest
import torch

from rootscale import Adam, Plan, ScalingWarning
from rootscale.averagings import stability_bound
from rootscale.noise import Interval, Noise
from rootscale.training import Run, advise, measure_stability
from rootscale.training.stability import Stability, stable_beta1


def trained(steps=40, lr=1e-3, betas=(0.9, 0.999)):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2, dtype=torch.double)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=betas)
    x = torch.randn(256, 6, dtype=torch.double)

    def loss(model, batch):
        return model(batch).square().mean()

    def step():
        optimizer.zero_grad()
        loss(model, x[torch.randint(256, (8,))]).backward()
        optimizer.step()

    for _ in range(steps):
        step()
    batches = list(x.split(64))
    return model, optimizer, step, lambda **more: measure_stability(model, optimizer, loss, batches, **more)


def of(eta_h, noise=None):
    return Stability(eta_h, (eta_h,), 0.0, 10, "double backward", noise)


def used(run, optimizer):
    """The betas of a step."""
    seen = []
    handle = optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["betas"]))
    return seen, handle


def test_beta1_is_the_measured_value_and_never_above_the_scripts():
    for eta_h, kappa, wanted in (
        (0.24, 4, 0.6),
        (0.24, 16, (0.75 * 0.24 * 16 - 1) / (0.75 * 0.24 * 16 + 1)),
        (9, 16, 0.9),
    ):
        _, optimizer, step, _ = trained()
        run = Run(optimizer, tuned_at=8, measure=lambda eta_h=eta_h: of(eta_h))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScalingWarning)
            run.batch_size = 8 * kappa
        seen, handle = used(run, optimizer)
        step()
        handle.remove()
        assert seen[0][0] == pytest.approx(wanted, abs=1e-6)
        assert run.stability.eta_h == eta_h
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_what_is_measured_at_a_larger_batch_is_in_the_scripts_units():
    _, optimizer, _step, measure = trained()
    alone = measure().eta_h
    run = Run(optimizer, tuned_at=8, measure=measure)
    run.batch_size = 32
    assert run.stability.eta_h == pytest.approx(alone, rel=1e-12)
    run.batch_size = 128  # v is that of 32 now, smaller by 4; its bias correction counts 10 steps in place of 40
    assert run.stability.eta_h == pytest.approx(alone, rel=2e-3)


def test_a_ramp_ends_with_the_state_of_one_jump():
    states = []
    for path in ((16, 64, 128), (128,)):
        _, optimizer, _, measure = trained()
        run = Run(optimizer, tuned_at=8, measure=measure)
        for size in path:
            run.batch_size = size
        states.append([optimizer.state[p] for p in optimizer.param_groups[0]["params"]])
        run.batch_size = 8
        states.append([optimizer.state[p] for p in optimizer.param_groups[0]["params"]])
    for one, other in zip(states[0], states[2], strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(one[key], other[key], rtol=1e-6, atol=0)
    _, optimizer, _, _ = trained()
    for own, back in zip((optimizer.state[p] for p in optimizer.param_groups[0]["params"]), states[3], strict=True):
        assert torch.allclose(own["exp_avg"], back["exp_avg"], rtol=1e-9, atol=0)


def test_nothing_is_measured_where_the_batch_shrinks_or_returns():
    calls = []
    _, optimizer, _, _ = trained()
    run = Run(optimizer, tuned_at=8, measure=lambda: calls.append(1) or of(0.2))
    for size in (4, 32, 16, 8):
        run.batch_size = size
    assert len(calls) == 1


def test_without_a_second_moment_the_floor_is_kept_and_said():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    run = Run(optimizer, tuned_at=8, measure=lambda: of(0.2))
    with pytest.warns(ScalingWarning, match="no second moment yet"):
        run.batch_size = 128
    assert run.stability is None
    assert run.values()["beta1"] == pytest.approx(0.9)


def test_a_copy_keeps_the_measured_floor():
    _, optimizer, _, _ = trained()
    run = Run(optimizer, tuned_at=8, measure=lambda: of(0.24))
    run.batch_size = 128
    again = copy.deepcopy(run)
    assert again.values() == run.values()


def test_what_lies_beyond_the_edge_or_the_noise_is_said():
    _, optimizer, _, _ = trained()
    noise = Noise(Interval(1, 1, 1), Interval(1, 1, 1), Interval(50, 40, 60), 4)
    run = Run(optimizer, tuned_at=8, measure=lambda: of(5.0, noise))
    with pytest.warns(ScalingWarning) as said:
        run.batch_size = 8 * 16
    text = " ".join(str(one.message) for one in said)
    assert "kappa eta h = 80" in text
    assert "at most 60 samples" in text


def test_other_optimizers_and_other_floors_are_refused():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"Adam, AdamW or RMSprop; this run has sgd"):
        Run(torch.optim.SGD([p], lr=0.1), tuned_at=8, measure=lambda: of(1))
    with pytest.raises(ValueError, match="its own way"):
        Run(torch.optim.Adam([p]), tuned_at=8, rule="sqrt with paper", measure=lambda: of(1))


def test_the_noise_over_the_batches_is_that_of_their_gradients():
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.double)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        model.weight.fill_(0.0)
    x = torch.randn(64, 32, dtype=torch.double) + 0.5
    batches = [one[:, None] for one in x]

    def loss(model, batch):  # its gradient is the mean of the batch: |grad f|^2 = 1/4 and Tr Sigma = 1
        return (model(torch.ones(1, 1, dtype=torch.double)) * batch).mean() + model.weight.square().sum() / 2

    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    with torch.no_grad():
        model.weight.fill_(0.0)
    found = measure_stability(model, optimizer, loss, batches, samples=32).noise
    assert found.scale.low < 4 < found.scale.high
    assert found.trace.value == pytest.approx(1, abs=0.4)
    with pytest.raises(ValueError, match="even number of batches"):
        measure_stability(model, optimizer, loss, batches[:3], samples=32)


def test_advice_stays_below_its_share_of_the_bound():
    noise = Noise(Interval(1, 1, 1), Interval(1, 1, 1), Interval(1e6, 1e6, 1e6), 4)
    plan = Plan(Adam(1e-3, 0.9, 0.999), 8)
    advice = advise(plan, noise, eta_h=2.0)
    assert advice.kappa == pytest.approx(0.75 * stability_bound(0.9) / 2.0, rel=1e-6)
    assert "eta h = 2" in advice.limit
    paper = advise(plan, noise, "sqrt with paper", eta_h=3.0).kappa
    assert paper * 3.0 == pytest.approx(0.75 * stability_bound(1 - paper * 0.1), rel=1e-6)
    assert advise(plan, noise, eta_h=1e-9).limit.startswith("the noise scale")
    assert math.isclose(stable_beta1(0.9, 16, 0.24), 0.4845, abs_tol=1e-3)
