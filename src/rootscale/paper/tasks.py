"""Ready-made tasks: digits, MNIST, CIFAR-10 as in the paper, any folder of images, and generated images.

Each is a function that gives a `rootscale.lab.task.Task`; a command line names it as ``rootscale.paper.tasks:digits``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.lab.task import Task
from rootscale.optimizers import FAMILIES
from rootscale.paper import data
from rootscale.paper.models import MODELS, group_batchnorm, mlp
from rootscale.paper.recipes import Recipe, paper_plan
from rootscale.paper.recipes import recipe as as_recipe
from rootscale.paper.transforms import CropFlip, Normalise
from rootscale.plan import Plan
from rootscale.schedule import Schedule
from rootscale.training import optim

__all__ = [
    "accuracy",
    "cifar10",
    "cross_entropy",
    "digits",
    "from_folder",
    "generated",
    "image_task",
    "mnist",
    "paper_form",
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


def cifar10(
    folder: str | os.PathLike[str] | None = None,
    *,
    model: str | Callable[[], nn.Module] = "vgg16",
    optimizer: str = "adam",
    epochs: int = 500,
    eps: float = 1e-8,
    recipe: str | Recipe = "house",
    images: data.Images | None = None,
) -> Task:
    """Return CIFAR-10 as in the paper (`rootscale.paper.recipes.paper_plan`), with VGG-16 or ResNet-56.

    The paper says nothing of augmentation; as in its code, this is a crop from a border of 4 and a flip. Its figures
    call the ResNet ResNet-50, its appendix ResNet-56; the latter is the one made for CIFAR-10.

    Args:
        folder: that holds the data (`rootscale.paper.data.cifar10`); None is ``ROOTSCALE_DATA``.
        model: ``vgg16``, ``resnet56`` (any of `rootscale.paper.models.MODELS`), or a function that makes one.
        optimizer: ``adam`` or ``rmsprop``.
        epochs: 500 in the paper; the schedule keeps its shares.
        eps: 1e-8 or 1e-30 in the paper.
        recipe: a text of `rootscale.paper.recipes.recipe`, such as ``authors``, or a `Recipe`.
        images: others in place of CIFAR-10, such as `rootscale.paper.data.patterns` for a smoke test.
    """
    held = data.cifar10(folder) if images is None else images
    plan = paper_plan(optimizer, samples=len(held.train), epochs=epochs, eps=eps, recipe=recipe)
    name = f"{'cifar10' if images is None else 'images'}-{model if isinstance(model, str) else 'own'}-{optimizer}"
    normalise = Normalise(*CIFAR10_STATISTICS) if images is None else None
    return image_task(name, held, plan, model, recipe=recipe, normalise=normalise)


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
    images: data.Images | None = None,
    *,
    model: str | Callable[[], nn.Module] = "conv",
    plan: Plan | None = None,
    augment: bool = False,
) -> Task:
    """Return a task of generated images, for smoke tests without any data.

    Args:
        images: of `rootscale.paper.data.patterns`; None is its default.
        model: one of `rootscale.paper.models.MODELS`, or a function that makes one.
        plan: of the run; None is Adam of learning rate 1e-3, betas .95 and .99, 256 steps at batch size 16.
        augment: whether to crop and flip.
    """
    if plan is None:
        plan = Plan(hparams.Adam(eta=1e-3, beta1=0.95, beta2=0.99), BatchSize(16), steps=256)
    return image_task("generated", data.patterns() if images is None else images, plan, model, augment=augment)


def image_task(
    name: str,
    images: data.Images,
    plan: Plan,
    model: str | Callable[[], nn.Module],
    *,
    recipe: str | Recipe | None = None,
    normalise: Normalise | None = None,
    augment: bool = True,
) -> Task:
    """Return a task of any `rootscale.paper.data.Images`.

    Args:
        name: of the task.
        images: and their classes.
        plan: of the run; its BatchNorm momentum is the model's, .1 where it has none.
        model: one of `rootscale.paper.models.MODELS`, or a function that makes one.
        recipe: of the last layer, of BatchNorm and of the second moment; None trains a model as it is made.
        normalise: how bytes become floats; None is by the mean and standard deviation of the training images.
        augment: whether to crop (from a border of an eighth of the size) and flip.
    """
    inputs = images.train.inputs
    normalise = Normalise.of(inputs) if normalise is None else normalise
    crop = CropFlip(inputs.shape[-1] // 8, normalise.black) if augment else None
    chosen = None if recipe is None else as_recipe(recipe)
    return Task(
        name,
        plan,
        _maker(model, images, plan, chosen) if isinstance(model, str) else model,
        cross_entropy,
        images.train,
        images.test,
        {"accuracy": accuracy},
        prepare=normalise,
        augment=crop,
        draws=CropFlip.draws if augment else 0,
        optimizer=paper_form if chosen is not None and chosen.previous_moment else None,
    )


def _maker(model: str, images: data.Images, plan: Plan, recipe: Recipe | None) -> Callable[[], nn.Module]:
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, or a function that makes one, got {model!r}")
    options: dict[str, Any] = {"classes": len(images.classes), "channels": images.train.inputs.shape[1]}
    if plan.batchnorm_momentum is not None:
        options["momentum"] = plan.batchnorm_momentum
    if recipe is None:
        return partial(MODELS[model], **options)
    return by_recipe(recipe, model, partial(MODELS[model], **options))


def by_recipe(recipe: Recipe, model: str, make: Callable[..., nn.Module]) -> Callable[[], nn.Module]:
    """Return what makes a model as a recipe asks; ``make`` takes ``freeze_last``, and its last layer is ``last``."""
    frozen = partial(make, freeze_last=recipe.freezes_head(model))
    return partial(made_by, frozen, recipe.head_std(model), recipe.group)


def made_by(make: Callable[[], nn.Module], head_std: float | None, group: int | None) -> nn.Module:
    """Return a model with another last layer, or with another BatchNorm.

    Args:
        make: makes the model; its last layer is called ``last``.
        head_std: the standard deviation of the last layer's weights, its bias being zero; None leaves it alone.
        group: samples over which BatchNorm takes its statistics; None is the whole batch.
    """
    model = make()
    if head_std is not None:  # after all else is drawn: the other layers begin as they do without it
        last = model.get_submodule("last")
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, 0.0, head_std)
        nn.init.zeros_(last.bias)
    return model if group is None else group_batchnorm(model, group)


def paper_form(parameters: Any, record: hparams.Optimizer) -> torch.optim.Optimizer:
    """The paper's Adam or RMSprop, which divide by ``v_k`` (`rootscale.training.optim`), of these hyperparameters."""
    parameters = list(parameters)
    tensors = [p for entry in parameters for p in (entry["params"] if isinstance(entry, dict) else [entry])]
    capturable = all(p.device.type != "cpu" for p in tensors)  # so that CUDA graphs can hold a step
    options: dict[str, Any] = {"capturable": capturable}
    family = FAMILIES[record.name]
    if not family.adaptive or getattr(record, "eps_root", False):
        raise ValueError(f"the paper's form exists of adam, adamw and rmsprop, without eps_root; got {record}")
    if family.name == "rmsprop":
        return optim.RMSprop(parameters, **family.torch.arguments(record), **options)
    options["decoupled_weight_decay"] = family.name == "adamw"
    return optim.Adam(parameters, **family.torch.arguments(record), **options)
