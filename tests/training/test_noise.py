import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from rootscale import SGD, Adam, Plan
from rootscale.noise import Interval, Noise, dominated_share, noise_of
from rootscale.records import Muon
from rootscale.stats import student_quantile
from rootscale.training import SVAG, NoiseMeter, advise, optim
from rootscale.training import noise as module


@functools.cache
def weights_and_data(n=200):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return net.state_dict(), torch.randn(n, 4, dtype=torch.float64), torch.randint(3, (n,))


def problem():
    """A net with two layers, and its data."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    weights, x, y = weights_and_data()
    net.load_state_dict(weights)
    return net, x, y


@functools.cache
def rows():
    """Gradients of the single samples by brute force, ``[samples, coordinates]``; the first layer has 25 of these."""
    net, x, y = problem()
    found = []
    for i in range(len(x)):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return torch.stack(found)


LAYERS = {None: slice(None), 0: slice(25), 1: slice(25, None)}


def truth(gradients):
    """``Tr Sigma`` and ``|grad f|^2`` of per-sample gradients."""
    return gradients.var(0, unbiased=False).sum().item(), gradients.mean(0).square().sum().item()


def draws(sizes, steps, seed=0):
    """The samples of each part, ``[steps, size]``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(200, (steps, size), generator=generator) for size in sizes]


def obvious(gradients, weights, sizes, samples):
    """The two equations of the module's docstring, solved for each step, ``[steps, 2]``."""
    parts = [gradients[i].mean(1) for i in samples]
    total = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    mean_square = sum(part.square().sum(1) for part in parts) / len(parts)
    left = np.array(
        [
            [np.mean([1 / size for size in sizes]), 1.0],
            [sum(w**2 / b for w, b in zip(weights, sizes, strict=True)), sum(weights) ** 2],
        ]
    )
    return np.linalg.solve(left, torch.stack([mean_square, total.square().sum(1)]).numpy()).T


def measure(meter, net, x, y, steps, weights, sizes, seed=0):
    """Steps that add up parts, at fixed parameters."""
    for step in zip(*draws(sizes, steps, seed), strict=True):
        net.zero_grad()
        for weight, size, i in zip(weights, sizes, step, strict=True):
            with meter.part(size, weight):
                (weight * F.cross_entropy(net(x[i]), y[i])).backward()
        meter.update()
    return meter


def assert_unbiased(found, trace, square):
    """Within four standard errors: twice the half-width of a 95 % interval, and a bit."""
    for interval, expected in ((found.trace, trace), (found.gradient, square)):
        assert abs(interval.value - expected) < 4 / 1.96 * (interval.high - interval.low) / 2
    assert found.scale.value == pytest.approx(found.trace.value / found.gradient.value)


PARTS = {
    "four micro-batches": ([1 / 4] * 4, [8] * 4),
    "two of different sizes": ([0.25, 0.75], [4, 12]),
    "SVAG, ell = 2": (list(np.array([1 - math.sqrt(7), 1 + math.sqrt(7)]) / 2), [8, 8]),
    "with a scaled loss": ([1024 / 2] * 2, [8, 8]),
}


@pytest.mark.parametrize("parts", PARTS)
def test_the_meter_solves_the_two_equations_in_all_and_by_group(parts):
    net, x, y = problem()
    optimizer = torch.optim.Adam([{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    meter = measure(NoiseMeter(optimizer), net, x, y, 20, *PARTS[parts])
    for group, layer in LAYERS.items():
        expected = obvious(rows()[:, layer], *PARTS[parts], draws(PARTS[parts][1], 20))
        values = meter._values()
        np.testing.assert_allclose(values.sum(2) if group is None else values[:, :, group], expected, rtol=1e-9)
        assert str(meter.estimate(group)) == str(noise_of(expected))


@pytest.mark.parametrize("parts", PARTS)
def test_the_two_equations_are_unbiased(parts):
    weights, sizes = PARTS[parts]
    assert_unbiased(noise_of(obvious(rows(), weights, sizes, draws(sizes, 3000))), *truth(rows()))


def test_nine_intervals_in_ten_and_more_hold_the_truth():
    """95 % is the claim; 200 windows of 40 steps, bounds of four standard errors."""
    weights, sizes = PARTS["two of different sizes"]
    pairs = obvious(rows(), weights, sizes, draws(sizes, 8000))
    trace, gradient = truth(rows())
    expected = {"trace": trace, "gradient": gradient, "scale": trace / gradient}
    hits = dict.fromkeys(expected, 0)
    for window in pairs.reshape(200, 40, 2):
        found = noise_of(window)
        for name, value in expected.items():
            interval = getattr(found, name)
            hits[name] += interval.low <= value <= interval.high
    allowed = 4 * math.sqrt(0.05 * 0.95 / 200)
    assert all(abs(count / 200 - 0.95) < allowed for count in hits.values()), hits


def test_a_gradient_that_noise_hides_leaves_the_scale_open_above():
    generator = np.random.default_rng(0)
    found = noise_of(np.stack([10 + generator.normal(size=50), generator.normal(size=50)], 1))
    assert found.scale.high == math.inf
    assert 0 < found.scale.low < 1000
    assert found.gradient.low < 0 < found.gradient.high


@pytest.mark.parametrize("freedom", [7, 10, 30, 100])
def test_students_quantile_is_scipys(freedom):
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)


def test_gradients_are_left_as_they_are_and_hooks_can_be_removed():
    net, x, y = problem()
    F.cross_entropy(net(x), y).backward()
    expected = [p.grad.clone() for p in net.parameters()]
    meter = NoiseMeter(net.parameters())
    net.zero_grad()
    with meter.part(len(x)):
        F.cross_entropy(net(x), y).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), expected, strict=True))
    meter.remove()
    assert not any(p._backward_hooks for p in net.parameters())


def test_it_works_inside_svag():
    net, x, y = problem()
    svag = SVAG(torch.optim.SGD(net.parameters(), lr=0.0), 2)
    meter, samples = NoiseMeter(net.parameters()), draws([8, 8], 20)
    for step in zip(*samples, strict=True):
        net.zero_grad()
        for r, i in zip(svag.passes(), step, strict=True):
            with meter.part(8, r):
                (r * F.cross_entropy(net(x[i]), y[i])).backward()
        meter.update()
    np.testing.assert_allclose(meter._values().sum(2), obvious(rows(), svag.weights, [8, 8], samples), rtol=1e-9)


def test_gradients_of_the_step_before_are_told_and_zeros_are_clear():
    net, x, y = problem()
    meter = NoiseMeter(net.parameters())

    def step():
        for half in (slice(0, 8), slice(8, 16)):
            with meter.part(8, 0.5):
                (F.cross_entropy(net(x[half]), y[half]) / 2).backward()
        meter.update()

    step()
    with pytest.raises(ValueError, match=r"another step: call zero_grad\(\) before the first part"):
        step()
    net.zero_grad(set_to_none=False)
    step()


def test_mistakes_are_told():
    net, x, y = problem()
    meter = NoiseMeter(net.parameters())
    with pytest.raises(ValueError, match="a step needs at least two parts to tell noise from gradient, got 0"):
        meter.update()
    with meter.part(8):
        F.cross_entropy(net(x[:8]), y[:8]).backward()
    with pytest.raises(ValueError, match="got 1: without accumulation, split the batch into two halves"):
        meter.update()
    net.zero_grad()
    with pytest.raises(ValueError, match="at least 8 steps are needed for an interval, got 0"):
        meter.estimate()
    with pytest.raises(ValueError, match="weight must be a finite number other than 0"), meter.part(8, 0.0):
        pass
    with pytest.raises(ValueError, match="do not tell noise from gradient"):
        measure(meter, net, x, y, 1, [1.0, 1e-30], [8, 8])
    with pytest.raises(ValueError, match="at least one that requires a gradient"):
        NoiseMeter([torch.zeros(2)])
    with meter.part(8), pytest.raises(RuntimeError, match="a part is open already"), meter.part(8):
        pass


def noise(low):
    return Noise(Interval(1, 1, 1), Interval(1, 1, 1), Interval(2 * low, low, 4 * low), 100)


@pytest.mark.parametrize(
    ("plan", "low", "kappa", "limit"),
    [
        (Plan(Adam(1e-3, 0.99, 0.999), 64), 640, 10, "the noise scale, at least 640 samples"),
        (Plan(Adam(1e-3, 0.9, 0.999), 64), 6400, 5, r"kappa \(1 - beta1\) < 1/2, with beta1 = 0\.9"),
        (Plan(Adam(1e-3, 0.99, 0.95), 64), 6400, 10, r"kappa \(1 - beta2\) < 1/2, with beta2 = 0\.95"),
        (Plan(SGD(1e-3), 64), 6400, 100, "the noise scale"),
    ],
)
def test_advice_is_the_largest_safe_kappa_and_the_limit_that_binds(plan, low, kappa, limit):
    import re

    advice = advise(plan, noise(low), rule="with paper")
    assert advice.kappa == pytest.approx(kappa)
    assert advise(plan, noise(low)).limit.startswith("the noise scale")  # floors see to the averages
    assert advice.batch_size == pytest.approx(64 * kappa)
    assert re.search(limit, str(advice))


def test_momentum_that_is_normalised_has_to_be_noise_too():
    """Momentum of weight 0.95 has the noise of 39 batches; by a = 1 the learning rate is right where it has none."""
    plan = Plan(Muon(0.02, mu=0.95), 64)
    advice = advise(plan, noise(64 * 39 * 3))
    assert advice.kappa == pytest.approx(3)
    assert (
        advice.limit == "the noise of momentum, which averages 39 batches, at a noise scale of at least 7,490 samples"
    )
    assert advise(plan, noise(64 * 39 * 3), "normalized-half").kappa == pytest.approx(9)
    assert advise(plan, noise(64 * 39 * 3), "normalized-linear").kappa == pytest.approx(117)


OPTIMIZERS = {
    "torch Adam": torch.optim.Adam,
    "torch AdamW, foreach off": lambda groups: torch.optim.AdamW(groups, foreach=False),
    "torch RMSprop": torch.optim.RMSprop,
    "the paper's Adam": optim.Adam,
    "the paper's RMSprop": optim.RMSprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_the_optimizers_metric_too(name):
    net, x, y = problem()
    optimizer = OPTIMIZERS[name]([{"params": net[0].parameters()}, {"params": net[2].parameters(), "eps": 1e-2}])
    meter = NoiseMeter(optimizer, preconditioned=True)
    measure(meter, net, x, y, 1, *PARTS["four micro-batches"])  # without a second moment: not counted
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for some in (slice(0, 20), slice(20, 200)):
        net.zero_grad()
        F.cross_entropy(net(x[some]), y[some]).backward()
        optimizer.step()
    weights, sizes = PARTS["two of different sizes"]
    measure(meter, net, x, y, 20, weights, sizes)
    roots = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            v = state["exp_avg_sq"] / (1 - 0.999**2) if "exp_avg_sq" in state else state["square_avg"]
            roots.append((v.sqrt() + group["eps"]).flatten())
    scaled = rows() / torch.cat(roots)
    for group, layer in LAYERS.items():
        expected = obvious(scaled[:, layer], weights, sizes, draws(sizes, 20))
        found, wanted = meter.estimate(group, preconditioned=True), noise_of(expected)
        assert found.steps == 20
        for name in ("trace", "gradient", "scale"):
            one, other = dataclasses.astuple(getattr(found, name)), dataclasses.astuple(getattr(wanted, name))
            assert one == pytest.approx(other, rel=1e-8)


def test_without_a_second_moment_there_is_no_metric():
    net, x, y = problem()
    meter = NoiseMeter(torch.optim.Adam(net.parameters()), preconditioned=True)
    measure(meter, net, x, y, 10, *PARTS["four micro-batches"])
    assert meter.estimate().steps == 10
    with pytest.raises(ValueError, match=r"at least 8 steps are needed .* got 0 \(and 10 without a finite estimate\)"):
        meter.estimate(preconditioned=True)


@pytest.fixture(scope="module")
def counted():
    """A meter that has looked at all 43 coordinates."""
    net, x, y = problem()
    meter = NoiseMeter(net.parameters(), window=200, coordinates=10**6)
    return measure(meter, net, x, y, 200, *PARTS["four micro-batches"])


@pytest.mark.parametrize("size", [None, 4, 1000])
def test_the_share_of_coordinates_lies_in_its_interval(counted, size):
    """At the steps' batch size, where nearly all are noise, and where the data cannot tell."""
    variance, square = rows().var(0, unbiased=False), rows().mean(0).square()
    found = counted.estimate(batch_size=size)
    assert found.batch_size == pytest.approx(size or 32)
    assert found.share.low <= (variance > found.batch_size * square).double().mean() <= found.share.high
    assert found.share.high - found.share.low < (0.4 if size != 1000 else 1)
    assert found.share.low <= found.share.value <= found.share.high
    assert "of the coordinates at batch size" in str(found)


def test_the_interval_of_the_share_holds_the_truth_also_near_the_threshold():
    """Most lie within two standard errors of it; of 200 windows the interval may miss one in twenty."""
    generator, coordinates, steps = np.random.default_rng(0), 300, 50
    excess = generator.normal(0.1, 0.3, size=coordinates)
    misses = 0
    for _ in range(200):
        sample = generator.choice(coordinates, 100, replace=False)
        noise = excess[sample] + 1.5 * generator.normal(size=(steps, 100)) + generator.normal(size=(steps, 1))
        found = dominated_share(np.stack([noise, np.zeros_like(noise)], 1), 1.0)
        misses += not found.low <= (excess > 0).mean() <= found.high
    assert misses <= 10


def test_the_share_is_of_coordinates_that_have_a_gradient_and_by_group():
    torch.manual_seed(0)
    dead, live = nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(50))
    optimizer = torch.optim.Adam([{"params": [dead]}, {"params": [live]}])
    meter = NoiseMeter(optimizer, coordinates=100)
    for _ in range(20):
        optimizer.zero_grad()
        for _ in range(2):
            with meter.part(4, 1 / 2):
                (0 * dead.sum() + live @ torch.randn(50) / 4).backward()
        meter.update()
    assert meter.estimate(0).share is None
    assert meter.estimate(1).share == meter.estimate().share
    assert meter.estimate().share.high == 1


def test_coordinates_are_drawn_once_without_replacement():
    parameters = [nn.Parameter(torch.zeros(1000)), nn.Parameter(torch.zeros(30, 100))]
    meter = NoiseMeter(parameters, coordinates=400)
    assert sum(len(places) for places in meter._points.values()) == 400
    for i, places in meter._points.items():
        assert len(places.unique()) == len(places)
        assert 0 <= places.min() <= places.max() < parameters[i].numel()
    assert 60 < len(meter._points[0]) < 140  # 100 expected, standard deviation 8
    assert all(
        torch.equal(places, NoiseMeter(parameters, coordinates=400)._points[i]) for i, places in meter._points.items()
    )


def test_steps_that_overflowed_are_left_out():
    net, x, y = problem()
    meter = measure(NoiseMeter(net.parameters(), window=50), net, x, y, 20, *PARTS["four micro-batches"])
    expected = meter.estimate()
    for _ in range(2):
        with meter.part(8, 0.5):
            (math.inf * F.cross_entropy(net(x), y)).backward()
    meter.update()
    assert meter.estimate() == expected


@pytest.mark.parametrize("limit", [0, 20, 10**6])
def test_holding_gradients_back_changes_nothing(limit, monkeypatch):
    monkeypatch.setattr(module, "_HELD", limit)
    net, x, y = problem()
    meter = measure(NoiseMeter(net.parameters(), coordinates=9), net, x, y, 8, *PARTS["four micro-batches"])
    net, x, y = problem()
    monkeypatch.setattr(module, "_HELD", 2**23)
    other = measure(NoiseMeter(net.parameters(), coordinates=9), net, x, y, 8, *PARTS["four micro-batches"])
    assert np.array_equal(meter._values(), other._values())


def test_two_backwards_in_one_part_are_told():
    net, x, y = problem()
    meter = NoiseMeter(net.parameters())
    with meter.part(samples=8, weight=1 / 2):
        (F.cross_entropy(net(x[:8]), y[:8]) / 2).backward()
    with meter.part(samples=8, weight=1 / 2):
        (F.cross_entropy(net(x[8:16]), y[8:16]) / 2).backward()
        with pytest.raises(RuntimeError, match=r"two gradients in one part.*: add the losses and call backward once"):
            (net[0].weight.square().sum() / 2).backward()


def test_parameters_that_came_after_the_meter_are_told():
    net, x, y = problem()
    optimizer = torch.optim.Adam(net[0].parameters())
    meter = NoiseMeter(optimizer)
    optimizer.add_param_group({"params": net[2].parameters()})
    for half in (slice(8), slice(8, 16)):
        with meter.part(samples=8, weight=1 / 2):
            (F.cross_entropy(net(x[half]), y[half]) / 2).backward()
    with pytest.raises(ValueError, match=r"have \[2, 2\] parameters, and had \[2\] when the meter was made"):
        meter.update()


def test_new_mistakes_are_told():
    net, x, y = problem()
    with pytest.raises(TypeError, match="needs the optimizer, for its second moment"):
        NoiseMeter(net.parameters(), preconditioned=True)
    with pytest.raises(TypeError, match="expected Adam, AdamW or RMSprop"):
        NoiseMeter(torch.optim.SGD(net.parameters()), preconditioned=True)
    meter = NoiseMeter(net.parameters())
    measure(meter, net, x, y, 8, *PARTS["four micro-batches"])
    with pytest.raises(ValueError, match="make the meter with preconditioned=True"):
        meter.estimate(preconditioned=True)
    with pytest.raises(ValueError, match="one of the 1 parameter groups, counted from 0, got -1"):
        meter.estimate(-1)
    for _ in range(2):
        with meter.part(8, 0.5):
            (F.cross_entropy(net(x), y) / 2).backward()
    net.zero_grad()
    with pytest.raises(ValueError, match=r"update\(\) comes before zero_grad\(\)"):
        meter.update()
    table = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(TypeError, match="needs dense gradients"), NoiseMeter(table.parameters()).part(2):
        table(torch.tensor([1, 2])).sum().backward()
