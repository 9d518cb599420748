"""CIFAR-10 as in the paper: the reader of its images, and the task of a recipe (`recipes`) with a net (`nets`)."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from nets import NETS, group_batchnorm
from recipes import paper_plan, recipe
from torch import nn

from rootscale import hparams
from rootscale.lab import Measure, Settings, Setup, Task, Tensors, grid
from rootscale.lab.data import (
    Bytes,
    CropFlip,
    Images,
    Layout,
    Normalise,
    Part,
    content,
    image_count,
    joined,
    labels_in,
    patterns,
    read,
)
from rootscale.lab.task import OnDisk
from rootscale.lab.tasks import accuracy, convnet, cross_entropy, image_task
from rootscale.optimizers import FAMILIES
from rootscale.training import optim

__all__ = ["BASE", "SMOKE", "TITLES", "images", "paper_form", "settings", "task"]

#: The paper's batch size, from which all others are converted.
BASE = 256
#: Batch sizes of a smoke test are this many times smaller.
SMOKE = 16
#: Nets and optimizers as a reader knows them.
TITLES = {"vgg16": "VGG-16", "resnet56": "ResNet-56", "adam": "Adam", "rmsprop": "RMSprop"}
#: Of each channel of the training images, in [0, 1].
STATISTICS = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)
#: Images of the test set that measure the accuracy (all of them), and as many of the training set.
EVAL = 10_000


def task(
    net: str = "vgg16",
    optimizer: str = "adam",
    epochs: float = 500,
    eps: float = 1e-8,
    kind: str = "authors",
    data: str = "",
    smoke: bool = False,
    factors: Sequence[str] = (),
) -> Task:
    """Return the paper's run at batch size 256 (`recipes.paper_plan`); for a smoke test a small one like it.

    The paper says nothing of augmentation; as in its code, this is a crop from a border of 4 and a flip. Its figures
    call the ResNet ResNet-50, its appendix ResNet-56; the latter is the one made for CIFAR-10.

    Args:
        net: one of `nets.NETS`.
        optimizer: ``adam`` or ``rmsprop``.
        epochs: 500 in the paper; the schedule keeps its shares.
        eps: 1e-8 or 1e-30 in the paper.
        kind: a text of `recipes.recipe`.
        data: the folder that holds the images; empty is ``ROOTSCALE_DATA``.
        smoke: a small net on generated images.
        factors: of `recipes.FACTORS`, by which the recipe is changed.
    """
    if net not in NETS:
        raise ValueError(f"the net must be one of {', '.join(NETS)}, got {net!r}")
    chosen = recipe("+".join((kind, *factors)))
    name = "-".join(["smoke" if smoke else "cifar10", net, optimizer, *factors])
    size, group = BASE // (SMOKE if smoke else 1), chosen.group
    group = group // SMOKE if smoke and group else group
    plan = paper_plan(
        optimizer, samples=512 if smoke else 50_000, epochs=epochs, batch_size=size, eps=eps, recipe=chosen
    )
    make: Any = partial(convnet, width=8) if smoke else NETS[net]
    make = partial(make, 10, momentum=0.1, freeze_last=chosen.freezes_head(net))
    make = partial(_made, make, chosen.head_std(net), group)
    maker = paper_form if chosen.previous_moment else None
    if smoke:
        return image_task(name, patterns(512, 128, size=16), plan, make, optimizer=maker)
    train, test = (OnDisk(n, partial(_part, data or None, part)) for part, n in (("train", 50_000), ("test", 10_000)))
    normalise = Normalise(*STATISTICS)
    return Task(
        name, plan, make, cross_entropy, train, test, {"accuracy": accuracy}, prepare=normalise,
        augment=CropFlip(4, normalise.black), draws=CropFlip.draws, optimizer=maker,
    )  # fmt: skip


def _part(folder: str | None, part: str) -> Tensors:
    """Return a part of the images."""
    found: Tensors = getattr(images(folder), part)
    return found


def settings(
    task: Task, sizes: Sequence[int], points: int, switch_at: int = 0, stop: int | None = None, device: str = "cpu",
    bfloat16: bool = True,
) -> Settings:  # fmt: skip
    """Return when runs are measured, and how they are trained: on a GPU by CUDA graphs, in bfloat16.

    Args:
        task: of the runs.
        sizes: all batch sizes that occur, so that the points of the grid are whole numbers of steps.
        points: at which runs are measured.
        switch_at: samples before a switch in mid-run.
        stop: samples at the end; None is the end of the plan.
        device: of torch.
        bfloat16: whether a GPU runs the model in bfloat16; otherwise in float32, with TF32 in its convolutions.
    """
    stop, largest = int(task.plan.samples or 0) if stop is None else stop, max(sizes)
    if stop - switch_at < 4 * largest:
        raise ValueError(
            f"{stop - switch_at:,} samples are fewer than four steps at batch size {largest:,}: ask for more epochs or "
            "smaller batches"
        )
    points, cuda = min(points, (stop - switch_at) // (2 * largest)), device.startswith("cuda")
    measure = Measure(points, eval_samples=EVAL, reestimate=True)
    return Settings(
        grid(stop, points, switch_at, sizes), switch_at, measure, Setup(device, amp=cuda and bfloat16, fast=cuda)
    )


def _made(make: Any, head_std: float | None, group: int | None) -> nn.Module:
    """Return a net with another last layer, or with another BatchNorm.

    Args:
        make: makes it; its last layer is called ``last``.
        head_std: the standard deviation of the last layer's weights, its bias being zero; None leaves it alone.
        group: samples over which BatchNorm takes its statistics; None is the whole batch.
    """
    net: nn.Module = make()
    if head_std is not None:  # after all else is drawn: the other layers begin as they do without it
        last = net.get_submodule("last")
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, 0.0, head_std)
        nn.init.zeros_(last.bias)
    return net if group is None else group_batchnorm(net, group)


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


# -- the images ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def images(folder: str | os.PathLike[str] | None = None, rows: int | None = 10_000) -> Images:
    """Return CIFAR-10, 50,000 + 10,000 images [3, 32, 32], from any layout of the table `CIFAR10`.

    Args:
        folder: that holds the files, or one of the folders of the layout; None is ``ROOTSCALE_DATA``.
        rows: how many images each file must have; None for any number, as for a subset.
    """
    train, test = read("CIFAR-10", CIFAR10, folder, rows)
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    return Images(train, test, tuple(names.split()))


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dicts, lists, strings, numbers and numpy arrays, and calls nothing else: a pickle may hold any code."""

    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("_codecs", "encode"): lambda text, encoding: str(text).encode(encoding),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it would call {module}.{name}, where only numpy arrays are expected")
        return self._allowed[module, name]


def _cifar_pickle(paths: Sequence[Path], rows: int | None) -> Part:
    """Read the Python version of CIFAR-10, as torchvision keeps it: a dict of ``data`` [n, 3072] and ``labels``."""

    def one(path: Path) -> Part:
        try:
            batch = _ArraysOnly(io.BytesIO(content(path)), encoding="latin1").load()
            data, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        except Exception as error:  # a broken pickle raises almost anything
            raise ValueError(f"{path} is truncated or no batch of CIFAR-10: {error}") from None
        expected = labels.size if rows is None else rows
        if data.dtype != np.uint8 or data.shape != (expected, 3072) or labels.shape != (expected,):
            raise ValueError(
                f"{path} must have uint8 data of shape ({expected}, 3072) and {expected} labels, "
                f"got {data.dtype} of shape {data.shape} and labels of shape {labels.shape}"
            )
        return data.reshape(-1, 3, 32, 32), labels_in(path, labels, 10)

    return joined(map(one, paths))


def _cifar_packed(paths: Sequence[Path], rows: int | None) -> Part:
    """Read packed planes: xz of R-G, G, B-G [3, n, 32, 32], differenced along height and along width, all modulo 256.

    The last path is that of the labels, as .npy.
    """

    def one(path: Path) -> Bytes:
        data = np.frombuffer(content(path), np.uint8)
        planes = data.reshape(3, image_count(path, rows, data.size, 3072), 32, 32)
        planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
        planes[0] += planes[1]
        planes[2] += planes[1]
        return planes.transpose(1, 0, 2, 3)

    with ThreadPoolExecutor() as pool:  # unpacking takes a second or two a file, and runs beside Python
        inputs = np.concatenate(list(pool.map(one, paths[:-1])))
    try:
        labels = np.load(paths[-1], allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{paths[-1]} is truncated or no .npy file: {error}") from None
    return inputs, labels_in(paths[-1], labels, 10, len(inputs))


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
#: The layouts of CIFAR-10.
CIFAR10 = (
    Layout(
        "Python pickles, torchvision's folder",
        ("cifar-10-batches-py", ".", "cifar10/cifar-10-batches-py", "cifar10"),
        _BATCHES,
        ("test_batch",),
        _cifar_pickle,
    ),
    Layout(
        "packed planes",
        ("cifar10", "."),
        (*(f"train{i}.xz" for i in range(1, 6)), "train_labels.npy"),
        ("test.xz", "test_labels.npy"),
        _cifar_packed,
    ),
)
