import functools
import math

import pytest
import torch
from networks import COVERED, MODELS, N, Tokens, brute_force, case, statistics, tokens
from torch import nn
from torch.nn import functional as F

from rootscale import Adam, Plan
from rootscale.training import advise, exact_noise, layers, optim
from rootscale.training import persample as module


def truth(gradients, size=None, roots=None):
    """Tr Sigma, |grad f|^2 and the share, of per-sample gradients."""
    variance = {n: g.var(0, unbiased=False) for n, g in gradients.items()}
    square = {n: g.mean(0).square() for n, g in gradients.items()}
    scale = {n: 1 if roots is None else roots[n].square() for n in gradients}
    found = [sum((x[n] / scale[n]).sum().item() for n in gradients) for x in (variance, square)]
    if size is None:
        return found
    alive = sum(int((g != 0).any(0).sum()) for g in gradients.values())
    return *found, sum(int((variance[n] > size * square[n]).sum()) for n in gradients) / alive


def agrees(noise, trace, gradient, share=None):
    return (
        noise.trace.value == pytest.approx(trace, rel=1e-10)
        and noise.gradient.value == pytest.approx(gradient, rel=1e-10)
        and noise.scale.value == pytest.approx(trace / gradient, rel=1e-9)
        and (share is None or noise.share.value == share)
        and noise.trace.low == noise.trace.value == noise.trace.high
    )


@pytest.mark.parametrize("second", [False, True], ids=["norms", "coordinates"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_brute_force(name, second):
    model, x, y = case(name)
    gradients = brute_force(model, F.cross_entropy, x, y)
    noise = exact_noise(model, F.cross_entropy, x, y, batch_size=2 if second else None)
    size = 2 if second and name != "attention" else None  # the gradient of its key's bias is 0 but for rounding
    assert agrees(noise, *truth(gradients, size))
    for parameter, one in noise.parameters.items():
        assert agrees(one, *truth({parameter: gradients[parameter]}, size)), parameter
    expected = sum(g.reshape(N, -1).square().sum(1) for g in gradients.values())
    assert torch.allclose(noise.norms, expected, rtol=1e-10, atol=0)
    assert (noise.share is None) is not second


@pytest.mark.parametrize("name", COVERED)
def test_layers_of_the_table_need_one_forward_and_no_vmap(name, monkeypatch):
    def refuse(*args):
        raise AssertionError("fell back")

    monkeypatch.setattr(module, "_fallback", refuse)
    model, x, y = case(name)
    calls = []
    model.register_forward_hook(lambda *args: calls.append(1))
    exact_noise(model, F.cross_entropy, x, y)
    assert len(calls) == 2  # the other one is of one sample, to verify


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("tied weights", {"embed.weight"}),
        ("used twice", {"layer.weight", "layer.bias", "other.weight", "scale"}),
        (
            "attention",
            {f"attention.{n}" for n in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")},
        ),
    ],
)
def test_only_the_parameters_that_need_it_fall_back(name, rest, monkeypatch):
    seen, fallback = [], module._fallback

    def spy(model, loss, names, *args):
        seen.extend(names)
        return fallback(model, loss, names, *args)

    monkeypatch.setattr(module, "_fallback", spy)
    model, x, y = case(name)
    exact_noise(model, F.cross_entropy, x, y)
    assert set(seen) == rest


def test_small_temporaries_chunks_and_losses_of_each_sample_give_the_same(monkeypatch):
    model, x, y = case("conv2d, groups")
    whole = exact_noise(model, F.cross_entropy, x, y, batch_size=2)
    monkeypatch.setitem(layers.ROOM, "cpu", 100)

    def each(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")

    parts = exact_noise(model, each, x, y, batch_size=2, chunk=3)
    assert parts.trace.value == pytest.approx(whole.trace.value, rel=1e-12)
    assert parts.gradient.value == pytest.approx(whole.gradient.value, rel=1e-12)
    assert parts.share == whole.share
    assert torch.allclose(parts.norms, whole.norms, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, optim.Adam, optim.RMSprop],
    ids=lambda make: f"{make.__module__.split('.')[0]} {make.__name__}",
)
def test_the_optimizers_metric_and_its_groups(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    optimizer = make([{"params": model[0].parameters()}, {"params": model[2].parameters(), "eps": 0.1}], lr=0.0)
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randint(3, (30,))
    with pytest.raises(ValueError, match=r"no second moment of 0\.weight yet: take a step first"):
        exact_noise(model, F.cross_entropy, x, y, optimizer=optimizer, preconditioned=True)
    for rows in (slice(0, 10), slice(10, 30)):
        model.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    gradients = brute_force(model, F.cross_entropy, x, y)
    roots = {}
    for name, p in model.named_parameters():
        state, eps = optimizer.state[p], 1e-8 if name.startswith("0") else 0.1
        v = state["exp_avg_sq"] / (1 - 0.999**2) if "exp_avg_sq" in state else state["square_avg"]
        roots[name] = v.sqrt() + eps
    noise = exact_noise(model, F.cross_entropy, x, y, optimizer=optimizer, preconditioned=True)
    assert agrees(noise, *truth(gradients))
    assert agrees(noise.preconditioned, *truth(gradients, None, roots))
    for layer, group in zip("02", noise.groups, strict=True):
        assert agrees(group, *truth({n: g for n, g in gradients.items() if n.startswith(layer)}))


def test_amsgrad_divides_by_the_maximum():
    model, x, y = case("linear")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, amsgrad=True)
    for factor in (3, 1e-3):
        model.zero_grad()
        (factor * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
    roots = {
        n: (optimizer.state[p]["max_exp_avg_sq"] / (1 - 0.999**2)).sqrt() + 1e-8 for n, p in model.named_parameters()
    }
    noise = exact_noise(model, F.cross_entropy, x, y, optimizer=optimizer, preconditioned=True)
    assert agrees(noise.preconditioned, *truth(brute_force(model, F.cross_entropy, x, y), None, roots))


def test_gradients_and_modules_are_left_as_they_were():
    model, x, y = case("no bias")
    exact_noise(model, F.cross_entropy, x, y)
    assert all(p.grad is None for p in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())
    with torch.no_grad():
        assert exact_noise(model, F.cross_entropy, x, y).trace.value > 0


def test_half_precision_does_not_overflow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), statistics(nn.BatchNorm1d, 3)).half()
    x, y = 300 * torch.randn(N, 4).half(), torch.randint(3, (N,))
    with torch.no_grad():
        model[0].weight /= 300

    def loss(outputs, targets):
        return F.cross_entropy(outputs.float(), targets)

    half = exact_noise(model, loss, x, y)
    full = exact_noise(model.float(), loss, x.float(), y)
    assert full.norms.max() > torch.finfo(torch.float16).max
    assert half.trace.value == pytest.approx(full.trace.value, rel=0.01)


def test_autocast_does_not_reach_the_squares():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3, bias=False), 300 * torch.randn(N, 5, 4), torch.randint(3, (N,))

    def loss(outputs, targets):
        return F.cross_entropy(outputs.float().mean(1) / 300, targets)

    with torch.autocast("cpu", torch.bfloat16):
        low = exact_noise(model, loss, x, y, batch_size=2)
    full = exact_noise(model, loss, x, y, batch_size=2)
    assert low.norms.dtype == torch.float32
    assert low.trace.value == pytest.approx(full.trace.value, rel=0.02)


def test_advice_can_be_taken_from_it():
    model, x, y = case("linear")
    noise = exact_noise(model, F.cross_entropy, x, y, batch_size=2)
    advice = advise(Plan(Adam(1e-3, 0.999, 0.999), 1), noise)
    assert advice.kappa == pytest.approx(noise.scale.value)
    assert f"(exact on {N} samples)" in str(noise)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class CentredLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) - super().forward(x).mean(0)


class Random(nn.Module):
    def forward(self, x):
        return F.dropout(x)


REFUSED = {
    "BatchNorm": ([nn.Linear(4, 3), nn.BatchNorm1d(3)], r"1 is a BatchNorm1d .* own statistics.* call model\.eval\(\)"),
    "without running statistics": ([nn.BatchNorm1d(4, track_running_stats=False).eval()], "0 is a BatchNorm1d"),
    "Dropout": ([nn.Linear(4, 3), nn.Dropout(0.5)], r"1 is an active Dropout; call model\.eval\(\) first"),
    "dropout unseen": ([nn.Linear(4, 3), Random()], r"has \|gradient\|\^2 = .* alone and .* in the batch"),
    "a layer across samples": ([nn.Linear(4, 3), Centred()], r"has \|gradient\|\^2 = .* or they see each other"),
    "one that falls back": ([CentredLinear(4, 3)], r"gradients of 0\.weight, sample by sample, do not add up"),
    "no parameters": ([nn.Tanh()], "a parameter that requires a gradient, got none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_samples_that_see_each_other_are_refused(name):
    torch.manual_seed(0)
    layers, message = REFUSED[name]
    model, x = nn.Sequential(*layers).double(), torch.randn(N, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        exact_noise(model, F.cross_entropy, x, torch.randint(3, (N,)))


def test_mistakes_in_the_arguments_are_told():
    model, x, y = case("linear")
    with pytest.raises(ValueError, match="as many samples, at least one; got 7 inputs and 6 targets"):
        exact_noise(model, F.cross_entropy, x, y[:6])
    with pytest.raises(
        ValueError, match=r"the mean over the samples or one value a sample, of shape \(7,\); got .*7, 3"
    ):
        exact_noise(model, lambda outputs, _: outputs, x, y)
    with pytest.raises(ValueError, match="needs the optimizer"):
        exact_noise(model, F.cross_entropy, x, y, preconditioned=True)
    with pytest.raises(TypeError, match=r"expected Adam, AdamW or RMSprop, which divide by sqrt\(v\), got SGD"):
        exact_noise(
            model, F.cross_entropy, x, y, optimizer=torch.optim.SGD(model.parameters(), 1.0), preconditioned=True
        )
    centered = torch.optim.RMSprop(model.parameters(), centered=True)
    with pytest.raises(TypeError, match=r"which divide by sqrt\(v\), got RMSprop \(rmsprop-centered\); known are adam"):
        exact_noise(model, F.cross_entropy, x, y, optimizer=centered, preconditioned=True)
    with pytest.raises(ValueError, match="how often a token occurs"):
        exact_noise(Tokens(scale_grad_by_freq=True), F.cross_entropy, tokens(), y)
    assert math.isinf(exact_noise(model, lambda a, b: 0 * a.sum(1), x, y).scale.value)


def test_a_loss_that_sums_is_told():
    total = functools.partial(F.cross_entropy, reduction="sum")
    with pytest.raises(ValueError, match="in the batch: the loss is a sum and not a mean over the samples, or"):
        exact_noise(nn.Linear(4, 3), total, torch.randn(6, 4), torch.randint(3, (6,)))


def test_a_last_chunk_that_is_mistaken_for_another_layout_is_refused():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.outer(torch.tanh(self.inner(x.transpose(0, 1))).mean(0))

    torch.manual_seed(0)
    model = TimeFirst().double()
    x, y = torch.randn(20, 6, 6, dtype=torch.float64), torch.randint(3, (20,))
    one, other = (exact_noise(model, F.cross_entropy, x, y, chunk=chunk).trace.value for chunk in (20, 5))
    assert one == pytest.approx(other)
    with pytest.raises(ValueError, match="alone"):  # its last chunk has 6 samples, as many as there are positions
        exact_noise(model, F.cross_entropy, x, y, chunk=7)


@pytest.mark.parametrize("depth", [1, 6])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_few_numbers_are_read_from_the_device_whatever_the_depth(depth, batch_size, monkeypatch):
    """A number that is read makes a GPU wait: small nets would be slower than explicit per-sample gradients."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), *hidden, nn.Flatten(), nn.Linear(4 * 36, 3))
    x, y, reads = torch.randn(8, 1, 8, 8), torch.randint(3, (8,)), []
    for name in ("__float__", "__int__", "__bool__", "item", "tolist"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, own=own, name=name: (reads.append(name), own(self))[1])
    exact_noise(model, nn.functional.cross_entropy, x, y, batch_size=batch_size)
    assert reads == ["tolist"] * (2 if batch_size is None else 3)
