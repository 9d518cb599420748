"""The largest preconditioned curvature: on losses where it is known, and on what cannot be measured."""

import copy
import math

import pytest
import torch
from torch import nn

from rootscale.averagings import stability_bound
from rootscale.training import measure_stability
from rootscale.training.stability import COST, Stability, stable_beta1

LR, EPS = 3e-3, 1e-3


class Quadratic(nn.Module):
    """x^T H x / 2 with a rotated spectrum, as one parameter or as two."""

    def __init__(self, curvatures, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = len(curvatures)
        turn, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
        self.hessian = (turn * torch.tensor(curvatures, dtype=torch.float64)) @ turn.T
        start = torch.randn(size, generator=generator, dtype=torch.float64)
        self.first, self.second = nn.Parameter(start[:3].clone()), nn.Parameter(start[3:].clone())

    def forward(self, factor=1.0):
        x = torch.cat([self.first, self.second])
        return factor * (x @ self.hessian @ x) / 2


def loss(model, batch):
    return model(batch)


def trained(make, model, steps=30, batch=1.0):
    optimizer = make(model)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        noise = torch.randn(1, generator=generator, dtype=torch.float64)
        (model(batch) + noise[0] * sum((p.sin()).sum() for p in model.parameters())).backward()
        optimizer.step()
    return optimizer


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=LR, betas=(0.9, 0.99), eps=EPS)


SPECTRUM = (0.1, -2.0, 3.0, 5.0, 0.0, 40.0, 1.0, 39.0)


def expected(model, optimizer, v_hat, rates=None, decays=0.0, factor=1.0):
    """The largest eigenvalue of D^-1/2 H D^-1/2 times lr, by LAPACK in float64."""
    parameters = list(model.parameters())
    scale = torch.cat(
        [(rate / (v_hat(p).sqrt() + EPS)).sqrt() for p, rate in zip(parameters, rates or [LR] * 2, strict=True)]
    )
    hessian = factor * model.hessian + decays * torch.eye(len(scale), dtype=torch.float64)
    return float(torch.linalg.eigvalsh(scale[:, None] * hessian * scale)[-1])


def corrected(optimizer, beta2=0.99):
    return lambda p: optimizer.state[p]["exp_avg_sq"] / (1 - beta2 ** float(optimizer.state[p]["step"]))


@pytest.mark.parametrize("products", COST)
def test_the_eigenvalue_of_a_quadratic_is_that_of_lapack(products):
    model = Quadratic(SPECTRUM)
    optimizer = trained(adam, model)
    found = measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12, products=products)
    assert found.eta_h == pytest.approx(expected(model, optimizer, corrected(optimizer)), rel=1e-6)
    assert found.products == products
    assert found.residual < 1e-3


def test_learning_rates_of_groups_and_an_l2_term_are_part_of_it():
    model = Quadratic(SPECTRUM)
    groups = [{"params": [model.first], "lr": 0.05}, {"params": [model.second], "lr": LR}]
    optimizer = trained(lambda m: torch.optim.Adam(groups, betas=(0.9, 0.99), eps=EPS, weight_decay=7.0), model)
    found = measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12)
    known = expected(model, optimizer, corrected(optimizer), rates=[0.05, LR], decays=7.0)
    assert found.eta_h == pytest.approx(known, rel=1e-9)


def test_decoupled_decay_adds_no_curvature():
    model = Quadratic(SPECTRUM)
    optimizer = trained(
        lambda m: torch.optim.AdamW(m.parameters(), lr=LR, betas=(0.9, 0.99), eps=EPS, weight_decay=7.0), model
    )
    found = measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12)
    assert found.eta_h == pytest.approx(expected(model, optimizer, corrected(optimizer)), rel=1e-9)


def test_rmsprop_has_no_bias_correction():
    model = Quadratic(SPECTRUM)
    optimizer = trained(lambda m: torch.optim.RMSprop(m.parameters(), lr=LR, alpha=0.99, eps=EPS), model)
    known = expected(model, optimizer, lambda p: optimizer.state[p]["square_avg"])
    assert measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12).eta_h == pytest.approx(
        known, rel=1e-9
    )


def test_batches_are_averaged_and_their_spread_is_reported():
    model = Quadratic(SPECTRUM)
    optimizer = trained(adam, model)
    found = measure_stability(model, optimizer, loss, [0.5, 1.0, 1.5, 2.0], iterations=8, tolerance=1e-12)
    known = expected(model, optimizer, corrected(optimizer), factor=1.25)
    assert found.eta_h == pytest.approx(known, rel=1e-9)
    assert found.per_batch == pytest.approx([known * x / 1.25 for x in (0.5, 1.0, 1.5, 2.0)], rel=1e-9)
    spread = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64).std() / 1.25 * known / 2
    assert found.error == pytest.approx(float(spread), rel=1e-9)
    assert math.isnan(measure_stability(model, optimizer, loss, [1.0]).error)


def test_the_cost_is_that_of_the_gradients_that_were_taken():
    taken = []

    def counted(model, batch):
        taken.append(batch)
        return model(batch)

    model = Quadratic(SPECTRUM)
    optimizer = trained(adam, model)
    found = measure_stability(model, optimizer, counted, [1.0, 2.0], iterations=4, products="gradient differences")
    assert found.gradients == len(taken)
    taken.clear()
    found = measure_stability(model, optimizer, counted, [1.0, 2.0], iterations=4)
    assert found.gradients == 1 + 3 * (len(taken) - 1)


def test_another_second_moment_can_be_given():
    model = Quadratic(SPECTRUM)
    optimizer = trained(adam, model)
    flat = [torch.full_like(p, 4.0) for p in model.parameters()]
    found = measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12, roots=flat)
    assert found.eta_h == pytest.approx(LR / 4 * 40.0, rel=1e-9)


def test_training_at_the_measured_edge_is_stable_below_it_and_not_above():
    """With v fixed, Adam at the bound: a run at .95 of it shrinks, one at 1.05 grows, at three values of beta1."""
    for beta1 in (0.0, 0.5, 0.9):
        ends = {}
        for share in (0.95, 1.05):
            model = Quadratic(SPECTRUM[:1] + (2.0,) * 3 + SPECTRUM[4:])
            optimizer = torch.optim.Adam(model.parameters(), lr=1e9, betas=(beta1, 0.999), eps=1e9)
            for p in model.parameters():  # D is eps, and the average of beta1 is in its steady state
                m, v = torch.zeros_like(p), torch.ones_like(p)
                optimizer.state[p] = {"step": torch.tensor(1e6), "exp_avg": m, "exp_avg_sq": v}
            eta_h = measure_stability(model, optimizer, loss, [1.0], iterations=8, tolerance=1e-12).eta_h
            assert eta_h == pytest.approx(40.0, rel=1e-6)
            optimizer.param_groups[0]["lr"] *= share * stability_bound(beta1) / eta_h
            seen = []
            for _ in range(2000):
                optimizer.zero_grad()
                value = model(1.0)
                value.backward()
                optimizer.step()
                seen.append(float(value.detach()))
            ends[share] = max(seen[200:])
        assert ends[0.95] < 1 < 1e6 < ends[1.05]


# -- networks ----------------------------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    layers = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 4)
    return nn.Sequential(*layers).double()


def batches():
    torch.manual_seed(1)
    return [(torch.randn(40, 6).double(), torch.randint(4, (40,))) for _ in range(3)]


def entropy(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def run_of(model, steps=20):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for i in range(steps):
        optimizer.zero_grad()
        entropy(model, batches()[i % 3]).backward()
        optimizer.step()
    return optimizer


def test_nothing_of_the_run_is_changed():
    model = network()
    optimizer = run_of(model)
    model[3].eval()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    parts = batches()
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    measure_stability(model, optimizer, entropy, parts)
    after = model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_both_kinds_of_products_agree_with_dropout_and_batchnorm():
    model = network()
    optimizer = run_of(model)
    twice = measure_stability(model, optimizer, entropy, batches(), iterations=60, tolerance=1e-9)
    differences = measure_stability(
        model, optimizer, entropy, batches(), iterations=60, tolerance=1e-9, products="gradient differences"
    )
    assert differences.eta_h == pytest.approx(twice.eta_h, rel=1e-5)
    assert measure_stability(model, optimizer, entropy, batches(), seed=1).eta_h != twice.eta_h  # other dropout


def test_float32_differences_are_near_double_backward():
    model = network().float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parts = [(x.float(), y) for x, y in batches()]
    for part in parts:
        optimizer.zero_grad()
        entropy(model, part).backward()
        optimizer.step()
    one, other = (measure_stability(model, optimizer, entropy, parts, products=kind) for kind in COST)
    assert other.eta_h == pytest.approx(one.eta_h, rel=0.02)


class Once(torch.autograd.Function):
    """An operation whose backward cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh() ** 2)


class Tanh(nn.Module):
    def forward(self, x):
        return Once.apply(x)


def test_without_double_backward_gradients_are_differenced():
    model = network()
    optimizer = run_of(model)
    known = measure_stability(model, optimizer, entropy, batches(), iterations=60, tolerance=1e-9)
    model[2] = Tanh()
    found = measure_stability(model, optimizer, entropy, batches(), iterations=60, tolerance=1e-9)
    assert found.products == "gradient differences"
    assert found.eta_h == pytest.approx(known.eta_h, rel=1e-5)


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta_h", [0.03, 0.24, 2.95, 30.0])
@pytest.mark.parametrize("kappa", [2, 4, 16, 64])
def test_the_candidate_uses_its_share_of_the_bound(eta_h, kappa):
    beta1 = stable_beta1(0.9, kappa, eta_h)
    paper = 1 - kappa * (1 - 0.9)
    assert 0 <= beta1 < 1
    assert beta1 >= paper
    if beta1 > max(paper, 0):
        assert kappa * eta_h == pytest.approx(stability_bound(beta1) / (2 * 0.75), rel=1e-12)
    else:
        assert kappa * eta_h * 0.75 <= max(1, stability_bound(max(paper, 0)) / 2) * (1 + 1e-12)


def test_no_change_of_the_batch_changes_no_beta1():
    assert stable_beta1(0.9, 1, 100.0) == 0.9
    assert stable_beta1(0.0, 16, 100.0) == 0.0
    assert Stability(-1.0, (-1.0,), 0.0, 3, "double backward").largest_kappa(0.9) == math.inf


# -- what cannot be measured -------------------------------------------------------------------------------------------


def linear(dtype=torch.float32):
    model = nn.Linear(2, 1).to(dtype)
    return model, torch.optim.Adam(model.parameters())


def squares(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({}, ValueError, "no second moment yet: take some optimizer steps first"),
        ({"batches": []}, ValueError, "batches must be a list of one batch or more"),
        ({"iterations": 1}, ValueError, "iterations"),
        ({"products": "forward"}, ValueError, "products must be one of"),
        ({"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1)}, TypeError, "divide by sqrt"),
        ({"optimizer": lambda m: torch.optim.Adam(m.parameters(), maximize=True)}, ValueError, "maximises"),
        ({"dtype": torch.bfloat16}, TypeError, "float32 or float64, got torch.bfloat16"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, error, text):
    model, optimizer = linear(change.get("dtype", torch.float32))
    if "optimizer" in change:
        optimizer = change["optimizer"](model)
    options = {name: change[name] for name in ("iterations", "products") if name in change}
    with pytest.raises(error, match=text):
        measure_stability(model, optimizer, squares, change.get("batches", [torch.ones(4, 2)]), **options)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (lambda model, x: model(x).square().sum(1), TypeError, "a tensor of one number; got a tensor of shape"),
        (lambda model, x: squares(model, x) * math.nan, ValueError, "has diverged has no eta h"),
        (lambda model, x: squares(model, x).detach(), ValueError, "does not depend on the model"),
    ],
)
def test_losses_that_are_none_are_refused(bad, error, text):
    model, optimizer = linear()
    squares(model, torch.ones(4, 2)).backward()
    optimizer.step()
    with pytest.raises(error, match=text):
        measure_stability(model, optimizer, bad, [torch.ones(4, 2)])
