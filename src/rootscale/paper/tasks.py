"""Ready-made tasks: digits, MNIST, CIFAR-10 as in the paper, any folder of images, and generated images.

Each is a function that gives a `rootscale.lab.task.Task`; a command line names it as ``rootscale.paper.tasks:digits``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.lab.task import Task
from rootscale.paper import data
from rootscale.paper.models import MODELS, mlp
from rootscale.plan import BatchSize, Plan
from rootscale.schedule import Count, Schedule
from rootscale.training import optim

__all__ = [
    "RECIPES",
    "CropFlip",
    "Normalise",
    "Recipe",
    "accuracy",
    "cifar10",
    "cross_entropy",
    "digits",
    "from_folder",
    "generated",
    "image_task",
    "mnist",
    "paper_form",
    "paper_plan",
]

#: Of each channel of the training images, in [0, 1].
CIFAR10_STATISTICS = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)
MNIST_STATISTICS = (0.13066,), (0.30811,)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each sample whose largest output is its class, else 0."""
    return (outputs.argmax(-1) == targets).float()


@dataclass(frozen=True)
class Normalise:
    """Bytes [..., channels, height, width] to floats ``(x / 255 - mean) / std``, channel by channel.

    >>> Normalise((0.5,), (0.25,))(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    tensor([[[-2., 2.]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, images: Tensor) -> Normalise:
        """For the mean and the standard deviation of the bytes [n, channels, height, width]."""
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in range(images.shape[1]):  # counts of each byte: exact, and no floats of the size of the data
            share = torch.bincount(images[:, channel].flatten(), minlength=256).double()
            share /= share.sum()
            mean.append((share * values).sum().item())
            std.append((share * (values - mean[-1]).square()).sum().sqrt().clamp(min=1 / 255).item())
        return cls(tuple(mean), tuple(std))

    @property
    def black(self) -> tuple[float, ...]:
        """What becomes of the byte 0."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """The floats, of torch's default type."""
        x = x.to(torch.get_default_dtype())
        return x * _channels([1 / (255 * s) for s in self.std], x) + _channels(self.black, x)


def _channels(values: Sequence[float], like: Tensor) -> Tensor:
    """Constants [channels, 1, 1], made on the device: a copy from the host cannot be captured in a CUDA graph."""
    filled = [torch.full((1, 1, 1), value, dtype=like.dtype, device=like.device) for value in values]
    return torch.cat(filled) if len(filled) > 1 else filled[0]


@dataclass(frozen=True)
class CropFlip:
    """A random crop of the image with a border around it, and a random mirror image: the usual for CIFAR-10.

    Takes images [..., channels, height, width] after `Normalise` and `draws` uniforms [..., 3] in [0, 1): the crop
    begins at row ``floor(u0 (2 padding + 1))`` and column ``floor(u1 (2 padding + 1))`` of the image with its border,
    and is mirrored where ``u2 < 1/2``.

    Args:
        padding: width of the border.
        fill: its value in each channel; `Normalise.black` for a black border.
    """

    padding: int
    fill: tuple[float, ...]
    draws = 3

    def __call__(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """The images, cropped and mirrored; in memory they are ``channels_last``."""
        lead, (height, width) = x.shape[:-3], x.shape[-2:]
        x, u = x.reshape(-1, *x.shape[-3:]), uniforms.reshape(-1, self.draws, 1)
        span = 2 * self.padding + 1
        shift = (u[:, :2] * span).long().clamp(max=span - 1) - self.padding
        rows = torch.arange(height, device=x.device) + shift[:, 0]
        columns = torch.arange(width, device=x.device)
        columns = torch.where(u[:, 2] < 0.5, width - 1 - columns, columns) + shift[:, 1]
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        image = torch.arange(len(x), device=x.device)
        taken = x.movedim(1, -1)[image[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
        out = torch.where(inside[:, None], taken, _channels(self.fill, x))
        return out.reshape(*lead, *out.shape[1:])


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
    """MNIST (`rootscale.paper.data.mnist`), MLP 784-128-10, Adam of learning rate 5e-4, betas .99 and .999.

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


@dataclass(frozen=True)
class Recipe:
    """An optimizer of the paper's appendix at its batch size, and the schedule of its learning rate.

    Args:
        optimizer: makes it of ``eps`` and ``weight_decay``.
        milestones: shares of the run after which the learning rate is divided by 10.
        warmup: the share in which it rises from a thousandth, exponentially.
    """

    optimizer: Callable[..., hparams.Optimizer]
    milestones: tuple[Fraction, ...]
    warmup: Fraction = Fraction(1, 50)

    def plan(
        self,
        samples: int,
        epochs: float,
        batch_size: int,
        *,
        eps: float = 1e-8,
        weight_decay: float = 1e-4,
        batchnorm_momentum: float | None = 0.1,
    ) -> Plan:
        """The run; the arguments are those of `paper_plan`."""
        steps = max(1, round(epochs * max(1, samples // batch_size)))
        milestones: list[Count] = [steps * share for share in self.milestones]
        return Plan(
            self.optimizer(eps=eps, weight_decay=weight_decay),
            BatchSize(batch_size),
            steps=steps,
            schedule=Schedule(
                "multistep",
                warmup=steps * self.warmup,
                warmup_shape="exponential",
                warmup_start=1e-3,
                milestones=milestones,
                gamma=0.1,
            ),
            batchnorm_momentum=batchnorm_momentum,
        )


#: The paper's settings for CIFAR-10, from its appendix "Experiment Configuration Details" (section CIFAR-10).
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "adam": Recipe(partial(hparams.Adam, eta=1e-3, beta1=0.999, beta2=0.999), (Fraction(3, 5),)),
        "rmsprop": Recipe(partial(hparams.RMSprop, eta=1e-3, beta=0.999), (Fraction(4, 5), Fraction(9, 10))),
    }
)


def paper_plan(
    optimizer: str = "adam",
    *,
    samples: int = 50_000,
    epochs: float = 500,
    batch_size: int = 256,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    batchnorm_momentum: float | None = 0.1,
) -> Plan:
    """The paper's run on CIFAR-10 at its base batch size; `Plan.at` gives those at 1024, 4096 and 16384.

    From its appendix "Experiment Configuration Details", section CIFAR-10: batches of 256, sampled with replacement,
    peak learning rate 1e-3, beta = .999 (RMSprop) or beta1 = beta2 = .999 (Adam), ``500 * floor(50000 / 256) = 97500``
    steps. In the first 2 % of the steps the learning rate is ``eta 10^-3 (10^3)^(epochs / 10)``; it is divided by 10
    after 80 % and 90 % (RMSprop) or 60 % (Adam) of the run. Weight decay 1e-4 from the captions of the figures in
    "Square Root Scaling Experiments", as an L2 term in the gradient, which is what torch's Adam and RMSprop do. Shorter
    runs keep the shares.

    Args:
        optimizer: one of `RECIPES`.
        samples: in the training data.
        epochs: of ``floor(samples / batch_size)`` steps; of a part of one, whole steps.
        batch_size: at which the learning rate and the rest hold as given; nothing is converted.
        eps: 1e-8 and 1e-30 in the paper.
        weight_decay: the L2 term.
        batchnorm_momentum: that the rule converts with the batch size. The paper leaves torch's .1 at every batch size:
            a `Variant` with the rule ``"without batchnorm"`` does that.
    """
    if optimizer not in RECIPES:
        raise ValueError(f"optimizer must be one of {', '.join(RECIPES)}, got {optimizer!r}")
    return RECIPES[optimizer].plan(
        samples, epochs, batch_size, eps=eps, weight_decay=weight_decay, batchnorm_momentum=batchnorm_momentum
    )


def cifar10(
    folder: str | os.PathLike[str] | None = None,
    *,
    model: str | Callable[[], nn.Module] = "vgg16",
    optimizer: str = "adam",
    epochs: int = 500,
    eps: float = 1e-8,
    batchnorm_momentum: float | None = 0.1,
    freeze_last: bool = True,
    augment: bool = True,
    previous_moment: bool = False,
    images: data.Images | None = None,
) -> Task:
    """CIFAR-10 as in the paper (`paper_plan`), with VGG-16 or ResNet-56.

    The paper says nothing of augmentation; this is the usual crop from a border of 4 and flip. Its figures call the
    ResNet ResNet-50, its appendix ResNet-56; the latter is the one made for CIFAR-10.

    Args:
        folder: that holds the data (`rootscale.paper.data.cifar10`); None is ``ROOTSCALE_DATA``.
        model: ``vgg16``, ``resnet56`` (any of `rootscale.paper.models.MODELS`), or a function that makes one.
        optimizer: ``adam`` or ``rmsprop``.
        epochs: 500 in the paper; the schedule keeps its shares.
        eps: 1e-8 or 1e-30 in the paper.
        batchnorm_momentum: converted with the batch size, unless the `Variant` keeps ``batchnorm``, as the paper does.
        freeze_last: whether the last layer stays as it is initialised, as in the paper.
        augment: whether to crop and flip.
        previous_moment: whether to divide by ``v_k``, as in the paper's theory, instead of torch's ``v_{k+1}``.
        images: others in place of CIFAR-10, such as `rootscale.paper.data.patterns` for a smoke test.
    """
    held = data.cifar10(folder) if images is None else images
    plan = paper_plan(optimizer, samples=len(held.train), epochs=epochs, eps=eps, batchnorm_momentum=batchnorm_momentum)
    name = f"{'cifar10' if images is None else 'images'}-{model if isinstance(model, str) else 'own'}-{optimizer}"
    normalise = Normalise(*CIFAR10_STATISTICS) if images is None else None
    return image_task(
        name,
        held,
        plan,
        model,
        freeze_last=freeze_last,
        normalise=normalise,
        augment=augment,
        previous_moment=previous_moment,
    )


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int = 32,
    model: str | Callable[[], nn.Module] = "resnet56",
    plan: Plan | None = None,
    epochs: int = 100,
    augment: bool = True,
) -> Task:
    """A folder of images (`rootscale.paper.data.image_folder`) with class folders in ``train`` and ``val`` or ``test``.

    Args:
        path: of the folder.
        size: to which the images are scaled.
        model: one of `rootscale.paper.models.MODELS`, or a function that makes one.
        plan: of the run; None is the paper's Adam for CIFAR-10 over ``epochs``.
        epochs: where there is no plan.
        augment: whether to crop (from a border of an eighth of the size) and flip.
    """
    held = data.image_folder(path, size)
    plan = paper_plan(samples=len(held.train), epochs=epochs) if plan is None else plan
    return image_task(os.path.basename(os.path.abspath(path)), held, plan, model, augment=augment)


def generated(
    *,
    model: str | Callable[[], nn.Module] = "conv",
    plan: Plan | None = None,
    train: int = 2048,
    test: int = 512,
    classes: int = 10,
    size: int = 32,
    noise: float = 60.0,
    seed: int = 0,
    augment: bool = False,
) -> Task:
    """Generated images (`rootscale.paper.data.patterns`), for smoke tests without any data.

    Args:
        model: one of `rootscale.paper.models.MODELS`, or a function that makes one.
        plan: of the run; None is Adam of learning rate 1e-3, betas .95 and .99, 256 steps at batch size 16.
        train, test, classes, size, noise, seed: of the images.
        augment: whether to crop and flip.
    """
    held = data.patterns(train, test, classes, size, noise, seed)
    if plan is None:
        plan = Plan(hparams.Adam(eta=1e-3, beta1=0.95, beta2=0.99), BatchSize(16), steps=256)
    return image_task("generated", held, plan, model, augment=augment)


def image_task(
    name: str,
    images: data.Images,
    plan: Plan,
    model: str | Callable[[], nn.Module],
    *,
    freeze_last: bool = False,
    normalise: Normalise | None = None,
    augment: bool = True,
    previous_moment: bool = False,
) -> Task:
    """A task of any `rootscale.paper.data.Images`.

    Args:
        name: of the task.
        images: and their classes.
        plan: of the run; its BatchNorm momentum is the model's, .1 where it has none.
        model: one of `rootscale.paper.models.MODELS`, or a function that makes one.
        freeze_last: whether the last layer of a model of the table stays as it is initialised.
        normalise: how bytes become floats; None is by the mean and standard deviation of the training images.
        augment: whether to crop (from a border of an eighth of the size) and flip.
        previous_moment: whether to divide by ``v_k``, as in the paper's theory, instead of torch's ``v_{k+1}``.
    """
    inputs = images.train.inputs
    normalise = Normalise.of(inputs) if normalise is None else normalise
    crop = CropFlip(inputs.shape[-1] // 8, normalise.black) if augment else None
    return Task(
        name,
        plan,
        _maker(model, images, plan, freeze_last) if isinstance(model, str) else model,
        cross_entropy,
        images.train,
        images.test,
        {"accuracy": accuracy},
        prepare=normalise,
        augment=crop,
        draws=CropFlip.draws if augment else 0,
        optimizer=paper_form if previous_moment else None,
    )


def _maker(model: str, images: data.Images, plan: Plan, freeze_last: bool) -> Callable[[], nn.Module]:
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, or a function that makes one, got {model!r}")
    options: dict[str, Any] = {"classes": len(images.classes), "channels": images.train.inputs.shape[1]}
    if plan.batchnorm_momentum is not None:
        options["momentum"] = plan.batchnorm_momentum
    return partial(MODELS[model], **options, freeze_last=freeze_last)


def paper_form(parameters: Any, record: hparams.Optimizer) -> torch.optim.Optimizer:
    """The paper's Adam or RMSprop, which divide by ``v_k`` (`rootscale.training.optim`), of these hyperparameters."""
    parameters = list(parameters)
    tensors = [p for entry in parameters for p in (entry["params"] if isinstance(entry, dict) else [entry])]
    options = {"capturable": all(p.device.type != "cpu" for p in tensors)}  # so that CUDA graphs can hold a step
    if isinstance(record, hparams.SGD) or record.eps_root:
        raise ValueError(f"the paper's form exists of adam, adamw and rmsprop, without eps_root; got {record}")
    if isinstance(record, hparams.RMSprop):
        return optim.RMSprop(parameters, record.eta, record.beta, record.eps, record.weight_decay, **options)
    options["decoupled_weight_decay"] = isinstance(record, hparams.AdamW)
    return optim.Adam(parameters, record.eta, (record.beta1, record.beta2), record.eps, record.weight_decay, **options)
