import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rootscale import Adam, Plan
from rootscale.training import advise, exact_noise, layers, optim
from rootscale.training import persample as module

N = 7


class Tokens(nn.Module):
    """Embeds tokens that repeat, and takes the mean over the sequence."""

    def __init__(self, *layers, **options):
        super().__init__()
        self.embed = nn.Embedding(5, 4, **options)
        self.body = nn.Sequential(*layers)

    def forward(self, tokens):
        return self.body(self.embed(tokens)).flatten(1)


class Tied(nn.Module):
    """The embedding is the output layer too."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.embed(tokens)))).mean(1)


class Twice(nn.Module):
    """One layer used twice, a parameter of its own, and a weight used outside its layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.other, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        x = self.layer(torch.tanh(self.layer(x)))
        return self.last(self.scale * (self.other(x) + F.linear(x, self.other.weight)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0]).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


class FirstDimensionJoined(nn.Module):
    """Reshapes positions into the first dimension, as language models do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).view(len(x), -1, 3).mean(1)


def statistics(norm, channels):
    """BatchNorm with running statistics that are not 0 and 1."""
    layer = norm(channels)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer.eval()


def inner(*shape):
    return lambda: torch.randn(N, *shape, dtype=torch.float64)


def tokens():
    return torch.randint(5, (N, 6))


MODELS = {
    "linear": (lambda: nn.Linear(4, 3), inner(4)),
    "linear on sequences": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten()), inner(5, 4)),
    "linear on long sequences": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Flatten()), inner(3, 5, 2)),
    "linear, wide": (lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Flatten()), inner(2, 20)),
    "no bias": (lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(inplace=True), nn.Linear(3, 2)), inner(4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, padding="same", dilation=2), nn.Flatten()), inner(3, 9)),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, (3, 2), (2, 1), (1, 0), bias=False), nn.Flatten()),
        inner(3, 7, 6),
    ),
    "conv2d, groups": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, 2, 2, 2, groups=2), nn.Flatten()), inner(4, 8, 9)),
    "conv2d, depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Flatten()), inner(4, 5, 5)),
    "conv2d, many channels": (lambda: nn.Sequential(nn.Conv2d(16, 20, 3), nn.Tanh(), nn.Flatten()), inner(16, 4, 4)),
    "conv2d, circular": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten()),
        inner(2, 5, 5),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2, stride=2, padding=1), nn.Flatten()), inner(2, 4, 5, 3)),
    "embedding, repeated tokens": (lambda: Tokens(nn.Linear(4, 3)), tokens),
    "embedding, padding": (lambda: Tokens(nn.Tanh(), padding_idx=2), tokens),
    "embedding, one token": (lambda: Tokens(nn.Linear(4, 3)), lambda: torch.randint(5, (N,))),
    "embedding, sparse": (lambda: Tokens(nn.Linear(4, 3), sparse=True), tokens),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "layer norm, two dimensions": (lambda: nn.Sequential(nn.LayerNorm([3, 4]), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "RMS norm": (lambda: nn.Sequential(nn.RMSNorm(4), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()), inner(4, 3, 3)),
    "batch norm": (lambda: nn.Sequential(statistics(nn.BatchNorm2d, 4), nn.Tanh(), nn.Flatten()), inner(4, 3, 3)),
    "batch norm, flat": (lambda: nn.Sequential(nn.Linear(4, 4), statistics(nn.BatchNorm1d, 4), nn.Tanh()), inner(4)),
    "frozen layer": (
        lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3)),
        inner(4),
    ),
    "tied weights": (Tied, tokens),
    "used twice": (Twice, inner(4)),
    "other layers": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 3)), inner(4)),
    "transposed convolution": (lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Flatten()), inner(2, 4)),
    "attention": (Attention, inner(5, 4)),
    "LSTM": (Recurrent, inner(5, 4)),
    "positions in the first dimension": (FirstDimensionJoined, inner(5, 4)),
}


def case(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().double()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    return model, inputs(), torch.randint(2, (N,))


def brute_force(model, loss, x, y):
    """Per-sample gradients, one sample at a time: parameter -> [samples, ...]."""
    rows = []
    for i in range(len(y)):
        model.zero_grad()
        loss(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        rows.append(
            {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in model.named_parameters()}
        )
    model.zero_grad()
    return {n: torch.stack([r[n] for r in rows]) for n, p in model.named_parameters() if p.requires_grad}


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


COVERED = [name for name in MODELS if list(MODELS).index(name) < list(MODELS).index("tied weights")]


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
    "a layer across samples": ([nn.Linear(4, 3), Centred()], r"has \|gradient\|\^2 = .* the samples see each other"),
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
    with pytest.raises(ValueError, match=r"as many samples, got \[7\] and 6"):
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
    with pytest.raises(ValueError, match="use centered=False"):
        exact_noise(model, F.cross_entropy, x, y, optimizer=centered, preconditioned=True)
    with pytest.raises(ValueError, match="how often a token occurs"):
        exact_noise(Tokens(scale_grad_by_freq=True), F.cross_entropy, tokens(), y)
    assert math.isinf(exact_noise(model, lambda a, b: 0 * a.sum(1), x, y).scale.value)


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
