import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from rootscale import SGD, Adam, Plan
from rootscale.training import SVAG, NoiseMeter, advise
from rootscale.training.noise import Interval, Noise, _noise, _student


def problem(n=200):
    """A net, its data, and Tr Sigma and |grad f|^2 by brute force, for each layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(n, 4, dtype=torch.float64), torch.randint(3, (n,))
    rows = []
    for i in range(n):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append([torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in (net[0], net[2])])
    net.zero_grad()
    gradients = [torch.stack(layer) for layer in zip(*rows, strict=True)]
    trace = [g.var(0, unbiased=False).sum().item() for g in gradients]
    square = [g.mean(0).square().sum().item() for g in gradients]
    return net, x, y, trace, square


def measure(meter, net, x, y, steps, weights, sizes, seed=0):
    """Steps that add up parts, at fixed parameters."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        net.zero_grad()
        for weight, size in zip(weights, sizes, strict=True):
            i = torch.randint(len(x), (size,), generator=generator)
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
def test_estimates_are_unbiased_in_all_and_by_group(parts):
    net, x, y, trace, square = problem()
    optimizer = torch.optim.Adam([{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    meter = measure(NoiseMeter(optimizer, window=3000), net, x, y, 3000, *PARTS[parts])
    for group, truth in ((None, (sum(trace), sum(square))), *enumerate(zip(trace, square, strict=True))):
        assert_unbiased(meter.estimate(group), *truth)


def test_nine_intervals_in_ten_and_more_hold_the_truth():
    """95 % is the claim; 200 windows of 40 steps, bounds of four standard errors."""
    net, x, y, trace, square = problem()
    meter = NoiseMeter(net.parameters(), window=8000)
    measure(meter, net, x, y, 8000, *PARTS["four micro-batches"])
    pairs = meter._values().sum(2)
    truth = {"trace": sum(trace), "gradient": sum(square), "scale": sum(trace) / sum(square)}
    hits = dict.fromkeys(truth, 0)
    for window in pairs.reshape(200, 40, 2):
        found = _noise(window)
        for name, value in truth.items():
            interval = getattr(found, name)
            hits[name] += interval.low <= value <= interval.high
    allowed = 4 * math.sqrt(0.05 * 0.95 / 200)
    assert all(abs(count / 200 - 0.95) < allowed for count in hits.values()), hits


def test_a_gradient_that_noise_hides_leaves_the_scale_open_above():
    generator = np.random.default_rng(0)
    found = _noise(np.stack([10 + generator.normal(size=50), generator.normal(size=50)], 1))
    assert found.scale.high == math.inf
    assert 0 < found.scale.low < 1000
    assert found.gradient.low < 0 < found.gradient.high


@pytest.mark.parametrize("freedom", [7, 10, 30, 100])
def test_students_quantile_is_scipys(freedom):
    assert _student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)


def test_gradients_are_left_as_they_are_and_hooks_can_be_removed():
    net, x, y, _, _ = problem()
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
    net, x, y, trace, square = problem()
    svag = SVAG(torch.optim.SGD(net.parameters(), lr=0.0), 2)
    meter, generator = NoiseMeter(net.parameters(), window=2000), torch.Generator().manual_seed(1)
    for _ in range(2000):
        net.zero_grad()
        for r in svag.passes():
            i = torch.randint(len(x), (8,), generator=generator)
            with meter.part(8, r):
                (r * F.cross_entropy(net(x[i]), y[i])).backward()
        meter.update()
    assert_unbiased(meter.estimate(), sum(trace), sum(square))


def test_mistakes_are_told():
    net, x, y, _, _ = problem()
    meter = NoiseMeter(net.parameters())
    with pytest.raises(ValueError, match="a step needs at least two parts to tell noise from gradient, got 0"):
        meter.update()
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

    advice = advise(plan, noise(low))
    assert advice.kappa == pytest.approx(kappa)
    assert advice.batch_size == pytest.approx(64 * kappa)
    assert re.search(limit, str(advice))
