"""Image data: readers of what lies on disk, with errors that say which file is wrong, generated images, transforms.

Nothing is downloaded. Each reader takes the folder that holds the data; without one it takes the folder that the
environment variable ``ROOTSCALE_DATA`` names. A dataset may lie there in several layouts, and is looked for in that
folder and in the folders that other tools make in it. Folders of images need Pillow, which is an extra.
"""

from __future__ import annotations

import gzip
import importlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rootscale.lab.task import Tensors

#: The environment variable that names the folder of the data.
VARIABLE = "ROOTSCALE_DATA"
Bytes = NDArray[np.uint8]
Part = tuple[Bytes, NDArray[Any]]


class Images(NamedTuple):
    """Images as bytes [n, channels, height, width] with their labels (int64), and the names of the classes."""

    train: Tensors
    test: Tensors
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a dataset lies on disk.

    Args:
        name: in words.
        folders: where to look, below the folder that was given.
        train, test: the names of the files, all of which are needed.
        read: inputs and labels of such files; its second argument is how many images a file must have, if given.
        suffixes: what may be added to a name.
    """

    name: str
    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[Sequence[Path], int | None], Part]
    suffixes: tuple[str, ...] = ("",)

    def find(self, folder: Path) -> tuple[dict[str, Path], list[str]]:
        """Return the files that are in a folder, by name, and the names that are missing."""
        found: dict[str, Path] = {}
        names = self.train + self.test
        for name in names:
            for suffix in self.suffixes:
                path = folder / f"{name}{suffix}"
                if path.is_file():
                    found.setdefault(name, path)
        return found, [name for name in names if name not in found]


def data_folder(folder: str | os.PathLike[str] | None, name: str = "the data") -> Path:
    """Return the folder that holds some data: the one that is given, or else the one that ``ROOTSCALE_DATA`` names.

    Args:
        folder: that is given; None is none.
        name: of the data, for errors.
    """
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        raise ValueError(
            f"there is no folder to read {name} from: set the environment variable {VARIABLE} to the folder that holds "
            "it (`rootscale study` also takes it as --data)"
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}{_source(folder)} to read {name} from")
    return root


def _source(folder: object) -> str:
    return "" if folder is not None else f" (from {VARIABLE})"


def read(
    name: str, layouts: Sequence[Layout], folder: str | os.PathLike[str] | None, rows: int | None
) -> tuple[Tensors, Tensors]:
    """Return the training and the test part of a dataset, from the first of its layouts that is there.

    Args:
        name: of the dataset, for errors.
        layouts: in which it may lie.
        folder: that holds it; None is ``ROOTSCALE_DATA``.
        rows: how many images each file must have; None is any number.
    """
    layout, paths = locate(name, layouts, folder)
    parts = (layout.read([paths[file] for file in files], rows) for files in (layout.train, layout.test))
    train, test = (tensors(*part) for part in parts)
    return train, test


def locate(
    name: str, layouts: Sequence[Layout], folder: str | os.PathLike[str] | None
) -> tuple[Layout, dict[str, Path]]:
    """Return the first layout that is there, and its files; otherwise raise an error that lists what was looked for."""
    root = data_folder(folder, name)
    partly = []
    for layout in layouts:
        for below in layout.folders:
            found, missing = layout.find(root / below)
            if not missing:
                return layout, found
            if found:
                partly.append(f"\n  {root / below} has {', '.join(found)} but not {', '.join(missing)} ({layout.name})")
    if partly:
        raise ValueError(f"{name} is not complete:{''.join(partly)}")
    looked = "".join(
        f"\n  {layout.name}: {layout.train[0]} ... {layout.test[-1]}"
        f"{' or with ' + ', '.join(filter(None, layout.suffixes)) if len(layout.suffixes) > 1 else ''}"
        f" in {', '.join(layout.folders)}"
        for layout in layouts
    )
    raise ValueError(
        f"{name} is not in {root}{_source(folder)}: set {VARIABLE} to the folder that holds it (`rootscale study` "
        f"also takes it as --data). Looked there for{looked}"
    )


def tensors(inputs: Bytes, labels: NDArray[Any]) -> Tensors:
    """Return arrays of images and labels as the data of a task."""
    return Tensors(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels.astype(np.int64)))


def joined(parts: Iterable[Part]) -> Part:
    """Return the images and labels of several files as one part."""
    inputs, labels = zip(*parts, strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


def content(path: Path) -> bytes:
    """Return what is in a file, which may be compressed."""
    unpack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
    try:
        return unpack.get(path.suffix, bytes)(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read or is truncated: {error}") from None


def labels_in(path: Path, labels: NDArray[Any], classes: int, count: int | None = None) -> NDArray[Any]:
    """Return the labels of a file if they are as they must be, and else raise an error.

    Args:
        path: of the file, for errors.
        labels: that were read from it.
        classes: how many there are; labels are whole numbers from 0 to ``classes - 1``.
        count: how many labels there must be; None is any number.
    """
    expected = f"labels must be whole numbers from 0 to {classes - 1}"
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: {expected}, got values of type {labels.dtype}")
    if count is not None and labels.shape != (count,):
        raise ValueError(f"{path}: there must be {count:,} labels, got an array of shape {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"{path}: {expected}, got {labels.min()} to {labels.max()}")
    return labels


def image_count(path: Path, rows: int | None, size: int, row: int) -> int:
    """Return how many images of ``row`` bytes are in ``size`` bytes, which must be ``rows`` where that is given."""
    if rows is None:
        if not size or size % row:
            raise ValueError(f"{path} must have a multiple of {row:,} bytes (an image), got {size:,} bytes")
        return size // row
    if size != rows * row:
        raise ValueError(f"{path} must have {rows:,} x {row:,} = {rows * row:,} bytes, got {size:,}")
    return rows


# -- MNIST ----------------------------------------------------------------------------------------------------


def mnist(folder: str | os.PathLike[str] | None = None) -> Images:
    """Return MNIST, 60,000 + 10,000 images [1, 28, 28], from IDX files (table `MNIST`): plain, .gz or .xz."""
    train, test = read("MNIST", MNIST, folder, None)
    return Images(train, test, tuple("0123456789"))


def _idx(path: Path, dimensions: int) -> Bytes:
    """Return an IDX file of bytes: 0, 0, 8, the number of dimensions, their sizes (big-endian), the bytes."""
    data = content(path)
    head = 4 + 4 * dimensions
    magic = bytes([0, 0, 8, dimensions])
    if data[:4] != magic or len(data) < head:
        raise ValueError(f"{path} must begin with the IDX header {magic.hex()} and sizes, got {data[:4].hex()!r}")
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, head, 4)]
    expected = head + int(np.prod(shape, dtype=object))
    if len(data) != expected:
        sizes = " x ".join(map(str, shape))
        raise ValueError(f"{path} must have {expected:,} bytes (header, then {sizes}), got {len(data):,}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _mnist_idx(paths: Sequence[Path], rows: int | None) -> Part:
    """Read images and labels from a pair of files."""
    images, labels = _idx(paths[0], 3), _idx(paths[1], 1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28):
        raise ValueError(
            f"{paths[0]} must have {len(labels):,} images of 28 x 28, as many as {paths[1]} has labels, "
            f"got shape {images.shape}"
        )
    return images[:, None].copy(), labels_in(paths[1], labels, 10)


#: The layouts of MNIST.
MNIST = (
    Layout(
        "IDX files",
        ("MNIST/raw", "mnist", "mnist/MNIST/raw", "."),
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        _mnist_idx,
        ("", ".gz", ".xz"),
    ),
)


# -- folders of images --------------------------------------------------------------------------------------------

#: What `image_folder` takes for an image.
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def image_folder(path: str | os.PathLike[str], size: int = 32) -> Images:
    """Return images [n, 3, size, size] in class folders, ``train/CLASS/*`` and ``val/CLASS/*`` (or ``test/CLASS/*``).

    The shorter side of each is scaled to ``size`` and the middle is taken. Classes are numbered in the order of their
    names, as torchvision does. Needs Pillow.
    """
    root = Path(path).expanduser()
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    tests = [root / name for name in ("val", "test") if (root / name).is_dir()]
    if not (root / "train").is_dir() or not tests:
        raise ValueError(f"{root} must have the folders train and val (or test), each with a folder for each class")
    classes = classes_in(root / "train")
    if classes_in(tests[0]) != classes:
        differ = sorted(set(classes) ^ set(classes_in(tests[0])))
        raise ValueError(f"{root / 'train'} and {tests[0]} must have the same classes, got {', '.join(differ)} in one")
    parts = (_class_folders(part, classes, size) for part in (root / "train", tests[0]))
    train, test = (tensors(*part) for part in parts)
    return Images(train, test, classes)


def classes_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders in a folder, in order: the classes of an image folder."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} must have a folder for each class, got none")
    return tuple(names)


def _class_folders(folder: Path, classes: tuple[str, ...], size: int) -> Part:
    ops = pillow("ImageOps")
    files, labels = [], []
    for label, name in enumerate(classes):
        here = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        if not here:
            raise ValueError(f"{folder / name} has no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
        files += here
        labels += [label] * len(here)
    images = np.empty((len(files), 3, size, size), np.uint8)
    for image, file in zip(images, files, strict=True):
        image[:] = decode(str(file), file, lambda picture: ops.fit(picture, (size, size)))
    return images, np.asarray(labels)


def pillow(module: str) -> Any:
    """Return a module of Pillow, which is an extra."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError:
        raise ValueError("image files need Pillow, which is not installed; pip install 'rootscale[lab]'") from None


def decode(name: str, source: Any, change: Callable[[Any], Any] = lambda picture: picture) -> Bytes:
    """Return one image as bytes [3, height, width].

    Args:
        name: for errors.
        source: a path, or an open file.
        change: what is done to the picture before its bytes are taken.
    """
    image = pillow("Image")
    try:
        with image.open(source) as picture:
            return np.asarray(change(picture.convert("RGB")), np.uint8).transpose(2, 0, 1)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(f"{name} is truncated or no image: {error}") from None


# -- generated images --------------------------------------------------------------------------------------------


def patterns(
    train: int = 2048, test: int = 512, classes: int = 10, size: int = 32, noise: float = 60.0, seed: int = 0
) -> Images:
    """Return generated images in the form of CIFAR-10's: a smooth pattern for each class, under noise; for smoke tests.

    Args:
        train, test: how many images.
        classes: how many classes, all equally likely.
        size: of the square images, which have 3 channels.
        noise: standard deviation of each byte; the patterns' own is about 30.
        seed: of the patterns and the images; the same numbers every time.
    """
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(classes, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    smooth = 30 * (smooth - smooth.mean()) / smooth.std()

    def part(count: int) -> Tensors:
        labels = torch.randint(classes, (count,), generator=generator)
        images = 128 + smooth[labels] + noise * torch.randn(count, 3, size, size, generator=generator)
        return Tensors(images.round().clamp(0, 255).to(torch.uint8), labels)

    return Images(part(train), part(test), tuple(f"pattern {i}" for i in range(classes)))


# -- transforms on the device ------------------------------------------------------------------------------------


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
