"""Small networks in float64 with every kind of layer, and their explicit per-sample gradients."""

import torch
from torch import nn
from torch.nn import functional as F

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
    "conv2d, reflected": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), nn.Flatten()),
        inner(2, 5, 5),
    ),
    "conv1d, replicated": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 2, 2, stride=2, padding=1, padding_mode="replicate", groups=2), nn.Flatten()
        ),
        inner(4, 6),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2, stride=2, padding=1), nn.Flatten()), inner(2, 4, 5, 3)),
    "embedding, repeated tokens": (lambda: Tokens(nn.Linear(4, 3)), tokens),
    "embedding, padding": (lambda: Tokens(nn.Tanh(), padding_idx=2), tokens),
    "embedding, one token": (lambda: Tokens(nn.Linear(4, 3)), lambda: torch.randint(5, (N,))),
    "embedding, sparse": (lambda: Tokens(nn.Linear(4, 3), sparse=True), tokens),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "layer norm, two dimensions": (lambda: nn.Sequential(nn.LayerNorm([3, 4]), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "RMS norm": (lambda: nn.Sequential(nn.RMSNorm(4), nn.Tanh(), nn.Flatten()), inner(3, 4)),
    "group norm, flat": (lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Tanh()), inner(4)),
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


#: Those whose layers all have a formula, and whose parameters are all used once.
COVERED = [name for name in MODELS if list(MODELS).index(name) < list(MODELS).index("tied weights")]
