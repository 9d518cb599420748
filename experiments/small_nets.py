"""Small nets that a CPU trains in minutes, and what their studies share.

An MLP and a conv net with BatchNorm learn scikit-learn's digits and need no data. A ResNet-8 with GroupNorm learns
CIFAR-10 in 8 x 8 pixels, and a GPT of two layers the bytes of enwik8; both are read below ``ROOTSCALE_DATA``.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import cifar10
import numpy as np
import torch
from recipes import staircase
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import Adam, BatchSize, Plan, Schedule
from rootscale.hparams import Optimizer
from rootscale.lab import Arm, Measure, Settings, Setup, Study, Table, Task, Tensors, Variant, grid
from rootscale.lab.tasks import accuracy, convnet, cross_entropy, digits
from rootscale.training.adapters import make_optimizer

__all__ = [
    "KEEPS", "LENGTH", "NETS", "RESULTS", "Net", "at_rate", "base_and_null", "conv_task",
    "paper_schedule", "tuned", "tuning",
]  # fmt: skip

#: Where tables are stored.
RESULTS = Path(__file__).parents[1] / "results"

#: What tables hold of these runs.
KEEPS = ("train loss", "test loss", "test accuracy", "noise scale")


@dataclass(frozen=True)
class Net:
    """A net, and the runs that are made with it.

    Args:
        title: in words.
        data: makes the task, but for its name and plan.
        eta: the learning rate at the first batch size.
        sizes: batch sizes; the first is the base's.
        samples: of a run.
        before: the share of a run before the batch size changes.
        points: at which it is measured after that.
        seeds: of each arm.
        judged: the loss that is compared, in training or in test.
        warmup: steps of a linear warm-up.
        eval_samples: of training and of test data, on which a run is measured.
    """

    title: str
    data: Callable[[], Task]
    eta: float
    sizes: tuple[int, ...]
    samples: int
    before: Fraction
    points: int
    seeds: int
    judged: str = "train loss"
    warmup: int = 0
    eval_samples: int = 2048

    def task(
        self,
        name: str,
        betas: tuple[float, float] = (0.9, 0.999),
        optimizer: Optimizer | None = None,
        schedule: Callable[[int], Schedule] | None = None,
    ) -> Task:
        """Return the task, whose length is a whole number of steps at the largest batch size.

        Args:
            name: of the task.
            betas: of Adam, at the net's learning rate.
            optimizer: another one.
            schedule: makes the learning rate's schedule from the steps; None keeps it constant after the warm-up.
        """
        made = self.data()
        steps = self.samples // self.sizes[-1] * self.sizes[-1] // self.sizes[0]
        chosen = Schedule(warmup=self.warmup) if schedule is None else schedule(steps)
        plan = Plan(optimizer or Adam(self.eta, *betas), BatchSize(self.sizes[0]), steps=steps, schedule=chosen)
        return replace(made, name=name, plan=replace(plan, batchnorm_momentum=made.plan.batchnorm_momentum))

    def settings(self, task: Task, switch: bool = True) -> Settings:
        """Return the settings of runs that change their batch size on the way, or from scratch."""
        total, largest = int(task.plan.samples or 0), self.sizes[-1]
        start = int(total * self.before) // largest * largest if switch else 0
        points = min(self.points, (total - start) // (2 * largest))
        measure = Measure(points, eval_samples=self.eval_samples, reestimate=True, noise=not switch)
        setup = Setup(fast=True, amp=False)  # CUDA graphs, which a CPU does not have
        return Settings(grid(total, points, start, self.sizes), start, measure, setup)


def base_and_null(task: Task) -> Sequence[Arm]:
    """Return the run as it is, and the same with other samples, which shows how far a rerun is off."""
    size = int(task.plan.batch_size.total)
    return [
        Arm(f"B = {size} kept", task),
        Arm(f"B = {size}, other samples", task, Variant(other_samples=True), {"form": "null"}),
    ]


_CONV_PLAN = Plan(Adam(1e-3, 0.9, 0.999), BatchSize(16), steps=1, batchnorm_momentum=0.1)


def conv_task(plan: Plan = _CONV_PLAN) -> Task:
    """Return a conv net with BatchNorm on the digits as images."""
    made = digits()
    train, test = (Tensors(part.inputs.view(-1, 1, 8, 8), part.targets) for part in (made.train, made.test))
    make = partial(convnet, 10, 1, 8, 0.1)
    return Task("convnet", plan, make, cross_entropy, train, test, {"accuracy": accuracy})


def paper_schedule(steps: int, decays: Sequence[Fraction] = (Fraction(3, 5),)) -> Schedule:
    """Return the paper's schedule for images: a warm-up over 2 % of the run, divisions by 10 after some shares of it.

    Args:
        steps: of the run.
        decays: the shares; the paper's for Adam.
    """
    return staircase(steps, Fraction(1, 50), decays)


# -- learning rates that are tuned before a study ----------------------------------------------------------------------


def at_rate(make: Callable[[Any, Any], Any], more: float, parameters: Iterable[Tensor], record: Any) -> Any:
    """Return the optimizer that ``make`` makes, with so many times the learning rate of its record."""
    return make(parameters, replace(record, eta=record.eta * more))


def tuning(name: str, net: Net, task: Task, factors: Sequence[float], noise: bool = False) -> Study:
    """Return the study that finds a learning rate: the base batch with some factors of the task's rate, from scratch.

    Its seeds, 100 and 101, are none of those of the study that the rate is for. With ``noise``, the noise is measured
    along the runs.
    """
    arms = []
    for factor in (1.0, *(factor for factor in factors if factor != 1)):
        rate = task.plan.optimizer.eta * factor
        own = replace(task, name=f"{task.name}-rate-{rate:g}")
        own = replace(own, optimizer=partial(at_rate, task.optimizer or make_optimizer, factor))
        arms.append(Arm(f"learning rate {rate:g}", own, factors={"rate": rate}))
    settings = replace(net, points=8).settings(task, switch=False)
    settings = replace(settings, measure=replace(settings.measure, noise=noise, reestimate=False))
    claim = f"{net.title}: the learning rate at the base batch, for {name}"
    return Study(f"tuning-{name}", arms, claim, (100, 101), settings, keeps=KEEPS)


def tuned(name: str, judged: str) -> tuple[float, float]:
    """Return the learning rate whose runs end lowest, and the noise scale over the middle half of these runs.

    The noise scale is NaN where the noise was not measured.

    Raises:
        ValueError: the rates have not been tried.
    """
    place = RESULTS / f"tuning-{name}.npz"
    if not place.is_file():
        raise ValueError(f"the learning rate for {name} is not tuned yet: run the file with --tune --results results")
    table = Table.load(place)
    ends = {}
    for result in (table.base, *table.others):
        losses = result.trajectory.values[judged][:, -1]
        if np.isfinite(losses).all():
            ends[float(losses.mean())] = result
    best = ends[min(ends)]
    scales = best.trajectory.values.get("noise scale", np.full((1, 8), np.nan))
    quarter = scales.shape[1] // 4
    return float(best.factors["rate"]), float(np.median(scales[:, quarter:-quarter]))


@dataclass(frozen=True, eq=False)
class Late:
    """Data that are read when they are first asked for, so that a study can be described without them.

    Args:
        read: returns all parts of the data.
        part: the number of the part.
        size: how many samples it has.
    """

    read: Callable[[], tuple[Tensors, ...]]
    part: int
    size: int

    def __len__(self) -> int:
        """Return how many samples there are."""
        return self.size

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples."""
        return self.read()[self.part][index]

    def to(self, device: torch.device) -> Tensors:
        """Return the data themselves on another device."""
        return self.read()[self.part].to(device)


# -- a ResNet-8 with GroupNorm, which has no batch statistics ----------------------------------------------------------


class Block(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(4, outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of images or of features."""
        return torch.relu(self.body(x) + self.short(x))


def resnet8() -> nn.Module:
    """Return a stem, a block each of 8, 16 and 32 channels, and a last layer, for images of 8 x 8."""
    stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.GroupNorm(4, 8), nn.ReLU()
    blocks = Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


@cache
def _pooled() -> tuple[Tensors, Tensors]:
    """Return CIFAR-10 in 8 x 8 pixels, each the mean of 16, with mean 0 and deviation 1.

    They are the first 25,000 training images and the first 5,000 of the test. A file ``cifar10-8x8.npz`` in the data
    folder, with the pooled bytes of ``train`` and ``test`` and their labels, is used instead of CIFAR-10 itself.
    """
    place = Path(os.environ.get("ROOTSCALE_DATA", ".")) / "cifar10-8x8.npz"
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    if place.exists():
        with np.load(place) as arrays:
            for name in ("train", "test"):
                parts[name] = torch.tensor(arrays[name]), torch.tensor(arrays[f"{name} labels"]).long()
    else:
        images = cifar10.images()
        for name, part, most in (("train", images.train, 25_000), ("test", images.test, 5_000)):
            pixels = part.inputs[:most].float()
            parts[name] = F.avg_pool2d(pixels, 4).round().byte(), part.targets[:most].long()
    mean, deviation = (f(parts["train"][0].float(), (0, 2, 3))[:, None, None] for f in (torch.mean, torch.std))
    train, test = (Tensors((x.float() - mean) / deviation, y) for x, y in (parts["train"], parts["test"]))
    return train, test


def _pictures(make: Callable[[], nn.Module], batchnorm: float | None = None) -> Task:
    train, test = Late(_pooled, 0, 25_000), Late(_pooled, 1, 5_000)
    plan = Plan(Adam(1e-3, 0.9, 0.999), BatchSize(8), steps=1, batchnorm_momentum=batchnorm)
    return Task("pictures", plan, make, cross_entropy, train, test, {"accuracy": accuracy})


# -- a GPT of two layers -----------------------------------------------------------------------------------------------

#: Bytes of enwik8 for training and, after them, for the test; the length of a sequence; width, heads and layers.
TRAIN_BYTES, TEST_BYTES, LENGTH, WIDTH, HEADS, LAYERS = 8_000_000, 400_000, 32, 32, 2, 2


class Layer(nn.Module):
    """Causal attention and a feed-forward net, each after a LayerNorm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [n, length, width] of the next layer."""
        parts = self.attend(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.join(mixed)
        out: Tensor = x + self.feed(self.norms[1](x))
        return out


class TinyGPT(nn.Module):
    """Bytes [n, length] to logits of the byte after each."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.last = nn.Linear(WIDTH, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [n, length, 256]."""
        logits: Tensor = self.last(self.layers(self.bytes(tokens) + self.places.weight))
        return logits


def _token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the bytes of each sequence."""
    losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


@cache
def _enwik8() -> tuple[Tensors, Tensors]:
    """Return sequences of the first bytes of enwik8, and of those after them."""
    folder = Path(os.environ.get("ROOTSCALE_DATA", "."))
    places = [folder / part / f"enwik8{end}" for part in ("enwik8", ".") for end in (".xz", "")]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        raise ValueError(f"enwik8 or enwik8.xz was not found in {folder}: set ROOTSCALE_DATA to its folder")
    with lzma.open(place) if place.suffix == ".xz" else place.open("rb") as file:
        tokens = torch.from_numpy(np.frombuffer(file.read(TRAIN_BYTES + TEST_BYTES), np.uint8).copy()).long()
    parts = []
    for part in torch.split(tokens, [TRAIN_BYTES, TEST_BYTES]):
        windows = part[: (len(part) - 1) // LENGTH * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)
        parts.append(Tensors(windows[:, :-1].contiguous(), windows[:, 1:].contiguous()))
    return parts[0], parts[1]


def _gpt() -> Task:
    train, test = (Late(_enwik8, i, (size - 1) // LENGTH) for i, size in enumerate((TRAIN_BYTES, TEST_BYTES)))
    plan = Plan(Adam(2e-3, 0.9, 0.999), BatchSize(8), steps=1)
    return Task("gpt", plan, TinyGPT, _token_loss, train, test)


_MLP_SAMPLES, _CONV_SAMPLES = 36 * 1437, 12 * 1437
NETS: Mapping[str, Net] = {
    "mlp": Net("MLP on digits", digits, 5e-4, (4, 16, 64, 256), _MLP_SAMPLES, Fraction(1, 4), 24, 16),
    "convnet": Net(
        "conv net with BatchNorm on digits", conv_task, 1e-3, (16, 64, 256), _CONV_SAMPLES, Fraction(3, 10), 16, 8
    ),
    "gpt": Net(
        "tiny GPT on enwik8", _gpt, 2e-3, (8, 32, 128, 512), 2**16, Fraction(2, 5), 16, 8, "test loss",
        warmup=256, eval_samples=1024,
    ),
    "resnet8": Net(
        "ResNet-8 with GroupNorm on CIFAR-10 in 8 x 8 pixels", partial(_pictures, resnet8), 1e-3, (8, 32, 128, 512),
        2**16, Fraction(3, 10), 16, 8,
    ),
    "pictures": Net(
        "conv net with BatchNorm on CIFAR-10 in 8 x 8 pixels", partial(_pictures, partial(convnet, 10, 3, 8, 0.1), 0.1),
        1e-3, (16, 64, 256, 1024), 2**17, Fraction(3, 10), 16, 8,
    ),
}  # fmt: skip
