"""Tasks that come with the library, and what image tasks are made of.

Each of the first is a function that gives a `rootscale.lab.Task`; a command line names it by ``digits``, ``mnist``,
``image_folder`` or ``generated``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.lab import data
from rootscale.lab.data import CropFlip, Images, Normalise
from rootscale.lab.task import Task
from rootscale.plan import Plan
from rootscale.schedule import Schedule

__all__ = ["accuracy", "cross_entropy", "digits", "image_folder", "image_task", "mnist"]

#: Of the training images of MNIST, in [0, 1].
MNIST_STATISTICS = (0.13066,), (0.30811,)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each sample whose largest output is its class, else 0."""
    return (outputs.argmax(-1) == targets).float()


def digits(
    *,
    batchnorm: bool = False,
    ema: float | None = None,
    weight_decay: float = 0.0,
    warmup: int = 0,
    samples: int = 52_000,
) -> Task:
    """scikit-learn's digits: 1,437 images of 8 x 8 to train with, 360 to test, MLP 64-32-10, Adam at batch size 4.

    Learning rate 5e-4, betas .99 and .999. Small enough for hundreds of runs on a CPU, and at that batch size the noise
    dominates the gradient but for the first few thousand samples.

    Args:
        batchnorm: with BatchNorm of momentum .02; batch size 32, learning rate 1e-3, betas .98 and .998.
        ema: decay of an average of the parameters, such as .999.
        weight_decay: decoupled, as AdamW's.
        warmup: samples of a linear warm-up.
        samples: the length of the run.
    """
    momentum = 0.02 if batchnorm else None
    size = 32 if batchnorm else 4
    values: dict[str, float] = (
        {"eta": 1e-3, "beta1": 0.98, "beta2": 0.998} if batchnorm else {"eta": 5e-4, "beta1": 0.99, "beta2": 0.999}
    )
    plan = Plan(
        hparams.AdamW(**values, weight_decay=weight_decay) if weight_decay else hparams.Adam(**values),
        BatchSize(size),
        steps=Fraction(samples, size),
        schedule=Schedule(warmup=Fraction(warmup, size)),
        ema=ema,
        batchnorm_momentum=momentum,
    )
    options = {"batchnorm": batchnorm, "ema": ema, "decay": weight_decay, "warmup": warmup}
    inputs, targets = _digits()
    return Task(
        "-".join(["digits", *(name for name, given in options.items() if given)]),
        plan,
        partial(mlp, (64, 32, 10), momentum),
        cross_entropy,
        (inputs[:1437], targets[:1437]),
        (inputs[1437:], targets[1437:]),
        {"accuracy": accuracy},
    )


def _digits() -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1] and labels of all 1,797 digits, in an order that does not depend on anything."""
    try:
        load = importlib.import_module("sklearn.datasets").load_digits
    except ImportError:
        raise ValueError(
            "digits come with scikit-learn, which is not installed; pip install 'rootscale[lab]'"
        ) from None
    held = load()
    order = torch.randperm(len(held.data), generator=torch.Generator().manual_seed(0))
    return torch.tensor(held.data / 16, dtype=torch.float32)[order], torch.tensor(held.target)[order]


def mnist(folder: str | os.PathLike[str] | None = None, *, epochs: int = 5, batch_size: int = 32) -> Task:
    """MNIST (`rootscale.lab.data.mnist`), MLP 784-128-10, Adam of learning rate 5e-4, betas .99 and .999.

    Args:
        folder: that holds the data; None is ``ROOTSCALE_DATA``.
        epochs: the length of the run.
        batch_size: of the plan.
    """
    held = data.mnist(folder)
    adam = hparams.Adam(eta=5e-4, beta1=0.99, beta2=0.999)
    plan = Plan(adam, BatchSize(batch_size), epochs=epochs, dataset_size=len(held.train))
    model = partial(mlp, (784, 128, 10))
    return image_task("mnist", held, plan, model, normalise=Normalise(*MNIST_STATISTICS), augment=False)


def image_folder(
    path: str | os.PathLike[str],
    *,
    size: int = 32,
    make: Callable[[], nn.Module] | None = None,
    plan: Plan | None = None,
    epochs: int = 100,
    augment: bool = True,
) -> Task:
    """A folder of images (`rootscale.lab.data.image_folder`) with class folders in ``train`` and ``val`` or ``test``.

    Args:
        path: of the folder.
        size: to which the images are scaled.
        make: makes the net; None is a conv net with BatchNorm.
        plan: of the run; None is Adam of learning rate 1e-3, betas .9 and .999, at batch size 64 over ``epochs``.
        epochs: where there is no plan.
        augment: whether to crop (from a border of an eighth of the size) and flip.
    """
    images = data.image_folder(path, size)
    if plan is None:
        adam = hparams.Adam(eta=1e-3, beta1=0.9, beta2=0.999)
        plan = Plan(adam, BatchSize(64), epochs=epochs, dataset_size=len(images.train), batchnorm_momentum=0.1)
    return image_task(os.path.basename(os.path.abspath(path)), images, plan, make, augment=augment)


def generated(
    images: Images | None = None,
    *,
    make: Callable[[], nn.Module] | None = None,
    plan: Plan | None = None,
    augment: bool = False,
) -> Task:
    """Return a task of generated images, for smoke tests without any data.

    Args:
        images: of `rootscale.lab.data.patterns`; None is its default.
        make: makes the net; None is a conv net.
        plan: of the run; None is Adam of learning rate 1e-3, betas .95 and .99, 256 steps at batch size 16.
        augment: whether to crop and flip.
    """
    if plan is None:
        plan = Plan(hparams.Adam(eta=1e-3, beta1=0.95, beta2=0.99), BatchSize(16), steps=256)
    return image_task("generated", data.patterns() if images is None else images, plan, make, augment=augment)


def image_task(
    name: str,
    images: Images,
    plan: Plan,
    make: Callable[[], nn.Module] | None = None,
    *,
    normalise: Normalise | None = None,
    augment: bool = True,
    optimizer: Callable[[Any, Any], Any] | None = None,
) -> Task:
    """Return a task of any `rootscale.lab.data.Images`.

    Args:
        name: of the task.
        images: and their classes.
        plan: of the run.
        make: makes the net; None is a conv net, with BatchNorm where the plan has a momentum for it.
        normalise: how bytes become floats; None is by the mean and standard deviation of the training images.
        augment: whether to crop (from a border of an eighth of the size) and flip.
        optimizer: as of `rootscale.lab.Task`.
    """
    inputs = images.train.inputs
    normalise = Normalise.of(inputs) if normalise is None else normalise
    crop = CropFlip(inputs.shape[-1] // 8, normalise.black) if augment else None
    if make is None:
        make = partial(convnet, len(images.classes), inputs.shape[1], momentum=plan.batchnorm_momentum)
    return Task(
        name,
        plan,
        make,
        cross_entropy,
        images.train,
        images.test,
        {"accuracy": accuracy},
        prepare=normalise,
        augment=crop,
        draws=CropFlip.draws if augment else 0,
        optimizer=optimizer,
    )


# -- small nets --------------------------------------------------------------------------------------------------


def mlp(sizes: Sequence[int] = (64, 32, 10), momentum: float | None = None) -> nn.Module:
    """Linear layers of these sizes with ReLU between them, over flattened inputs.

    Args:
        sizes: inputs, hidden units, outputs.
        momentum: of BatchNorm before each ReLU; None is without BatchNorm.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes must have at least inputs and outputs, got {tuple(sizes)}")
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes[:-1]):
        layers.append(nn.Linear(inputs, outputs, bias=momentum is None))
        layers += [] if momentum is None else [nn.BatchNorm1d(outputs, momentum=momentum)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class Classifier(nn.Module):
    """Features, their mean over the image, and a last layer, which may be fixed."""

    def __init__(self, features: nn.Module, width: int, classes: int, freeze_last: bool) -> None:
        super().__init__()
        self.features = features
        self.last = nn.Linear(width, classes).requires_grad_(not freeze_last)
        for module in features.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.features(x).mean((-2, -1)))
        return outputs


def convolution(inputs: int, outputs: int, momentum: float | None, stride: int = 1) -> list[nn.Module]:
    """3 x 3, with BatchNorm or with a bias."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=momentum is None)
    return [convolution] if momentum is None else [convolution, nn.BatchNorm2d(outputs, momentum=momentum)]


def convnet(
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    momentum: float | None = None,
    freeze_last: bool = False,
) -> nn.Module:
    """A small conv net: three 3 x 3 convolutions of ``width, 2 width, 4 width`` channels, the first two pooled.

    Args:
        classes: outputs.
        channels: of the images.
        width: of the first layer.
        momentum: of BatchNorm; None is without BatchNorm.
        freeze_last: whether the last layer stays as it is initialised.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, width, 2 * width, 4 * width)):
        layers += [*convolution(inputs, outputs, momentum), nn.ReLU(), nn.MaxPool2d(2)]
    return Classifier(nn.Sequential(*layers[:-1]), 4 * width, classes, freeze_last)
