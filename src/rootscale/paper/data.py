"""Readers of image data on disk: bytes in tensors, and errors that say which file is wrong.

Nothing is downloaded. Each reader takes the folder that holds the data; without one it takes the folder that the
environment variable ``ROOTSCALE_DATA`` names. A dataset comes in several layouts, which are rows of a table, and is
looked for in that folder and in the folders that other tools make in it.
"""

from __future__ import annotations

import gzip
import importlib
import io
import lzma
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rootscale.lab.task import Tensors

__all__ = [
    "CIFAR10",
    "MNIST",
    "TINY_IMAGENET20",
    "VARIABLE",
    "Images",
    "Layout",
    "cifar10",
    "classes_in",
    "decode",
    "image_folder",
    "mnist",
    "patterns",
    "pillow",
    "tiny_imagenet20",
]

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
        """The files there, by name, and the names that are missing."""
        found: dict[str, Path] = {}
        names = self.train + self.test
        for name in names:
            for suffix in self.suffixes:
                path = folder / f"{name}{suffix}"
                if path.is_file():
                    found.setdefault(name, path)
        return found, [name for name in names if name not in found]


def cifar10(folder: str | os.PathLike[str] | None = None, rows: int | None = 10_000) -> Images:
    """CIFAR-10, 50,000 + 10,000 images [3, 32, 32], from any layout of the table `CIFAR10`.

    Args:
        folder: that holds the files, or one of the folders of the layout; None is ``ROOTSCALE_DATA``.
        rows: how many images each file must have; None for any number, as for a subset.
    """
    train, test = _read("CIFAR-10", CIFAR10, folder, rows)
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    return Images(train, test, tuple(names.split()))


def mnist(folder: str | os.PathLike[str] | None = None) -> Images:
    """MNIST, 60,000 + 10,000 images [1, 28, 28], from IDX files (table `MNIST`): plain, .gz or .xz."""
    train, test = _read("MNIST", MNIST, folder, None)
    return Images(train, test, tuple("0123456789"))


def tiny_imagenet20(folder: str | os.PathLike[str] | None = None) -> Images:
    """Tiny-ImageNet-20, 10,000 + 1,000 images [3, 64, 64] of the first 20 classes of Tiny-ImageNet-200.

    From ``train.npz``, ``val.npz`` (``jpeg``: all files end to end, ``offsets``: n + 1 numbers, ``labels``) and
    ``classes.txt`` (label, WordNet id and words, with tabs between). Needs Pillow.
    """
    train, test = _read("Tiny-ImageNet-20", TINY_IMAGENET20, folder, None)
    where, paths = _locate("Tiny-ImageNet-20", TINY_IMAGENET20, folder)
    lines = (paths[where.train[0]].parent / "classes.txt").read_text(encoding="utf-8").splitlines()
    return Images(train, test, tuple(line.split("\t")[-1] for line in lines))


#: What `image_folder` takes for an image.
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def image_folder(path: str | os.PathLike[str], size: int = 32) -> Images:
    """Images in class folders, ``train/CLASS/*`` and ``val/CLASS/*`` (or ``test/CLASS/*``), as [n, 3, size, size].

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
    train, test = (_tensors(*part) for part in parts)
    return Images(train, test, classes)


def patterns(
    train: int = 2048, test: int = 512, classes: int = 10, size: int = 32, noise: float = 60.0, seed: int = 0
) -> Images:
    """Generated images in the form of CIFAR-10's: a smooth pattern for each class, under noise; for smoke tests.

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


def classes_in(folder: Path) -> tuple[str, ...]:
    """The names of the folders in a folder, in order: the classes of an image folder."""
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
    """A module of Pillow, which is an extra."""
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError:
        raise ValueError("image files need Pillow, which is not installed; pip install 'rootscale[lab]'") from None


def decode(name: str, source: Any, change: Callable[[Any], Any] = lambda picture: picture) -> Bytes:
    """One image as bytes [3, height, width].

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


def _read(
    name: str, layouts: Sequence[Layout], folder: str | os.PathLike[str] | None, rows: int | None
) -> tuple[Tensors, Tensors]:
    layout, paths = _locate(name, layouts, folder)
    parts = (layout.read([paths[file] for file in files], rows) for files in (layout.train, layout.test))
    train, test = (_tensors(*part) for part in parts)
    return train, test


def _locate(
    name: str, layouts: Sequence[Layout], folder: str | os.PathLike[str] | None
) -> tuple[Layout, dict[str, Path]]:
    """The first layout that is there, and its files; else an error that says where was looked for what."""
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if not given:
        raise ValueError(f"{name} needs the folder that holds it: set the environment variable {VARIABLE} to it")
    root = Path(given).expanduser()
    source = "" if folder is not None else f" (from {VARIABLE})"
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}{source} to read {name} from")
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
        f"{name} is not in {root}{source}; set the environment variable {VARIABLE} to the folder that holds it. "
        f"Looked there for{looked}"
    )


def _tensors(inputs: Bytes, labels: NDArray[Any]) -> Tensors:
    return Tensors(torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels.astype(np.int64)))


def _content(path: Path) -> bytes:
    """What is in a file, which may be compressed."""
    unpack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}
    try:
        return unpack.get(path.suffix, bytes)(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read or is truncated: {error}") from None


def _labels(path: Path, labels: NDArray[Any], classes: int) -> NDArray[Any]:
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{path} must have labels from 0 to {classes - 1}, got values of type {labels.dtype}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"{path} must have labels from 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    return labels


def _count(path: Path, rows: int | None, size: int, row: int) -> int:
    """How many images of ``row`` bytes are in ``size`` bytes."""
    if rows is None:
        if not size or size % row:
            raise ValueError(f"{path} must have a multiple of {row:,} bytes (an image), got {size:,} bytes")
        return size // row
    if size != rows * row:
        raise ValueError(f"{path} must have {rows:,} x {row:,} = {rows * row:,} bytes, got {size:,}")
    return rows


def _cifar_binary(paths: Sequence[Path], rows: int | None) -> Part:
    """The official binary files: for each image a byte of label, then the planes red, green and blue."""

    def one(path: Path) -> Part:
        data = np.frombuffer(_content(path), np.uint8)
        table = data.reshape(_count(path, rows, data.size, 3073), 3073)
        return table[:, 1:].reshape(-1, 3, 32, 32), _labels(path, table[:, 0], 10)

    return _joined(map(one, paths))


def _joined(parts: Any) -> Part:
    inputs, labels = zip(*parts, strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


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
    """The Python version of CIFAR-10, as torchvision keeps it: a dict of ``data`` [n, 3072] and ``labels``."""

    def one(path: Path) -> Part:
        try:
            batch = _ArraysOnly(io.BytesIO(_content(path)), encoding="latin1").load()
            data, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        except Exception as error:  # a broken pickle raises almost anything
            raise ValueError(f"{path} is truncated or no batch of CIFAR-10: {error}") from None
        expected = labels.size if rows is None else rows
        if data.dtype != np.uint8 or data.shape != (expected, 3072) or labels.shape != (expected,):
            raise ValueError(
                f"{path} must have uint8 data of shape ({expected}, 3072) and {expected} labels, "
                f"got {data.dtype} of shape {data.shape} and labels of shape {labels.shape}"
            )
        return data.reshape(-1, 3, 32, 32), _labels(path, labels, 10)

    return _joined(map(one, paths))


def _cifar_packed(paths: Sequence[Path], rows: int | None) -> Part:
    """Packed planes: xz of R-G, G, B-G [3, n, 32, 32], differenced along height and along width, all modulo 256.

    The last path is that of the labels, as .npy.
    """

    def one(path: Path) -> Bytes:
        data = np.frombuffer(_content(path), np.uint8)
        planes = data.reshape(3, _count(path, rows, data.size, 3072), 32, 32)
        planes = planes.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
        planes[0] += planes[1]
        planes[2] += planes[1]
        return planes.transpose(1, 0, 2, 3)

    with ThreadPoolExecutor() as pool:  # unpacking takes a second or two a file, and runs beside Python
        inputs = np.concatenate(list(pool.map(one, paths[:-1])))
    labels = _array(paths[-1], len(inputs))
    return inputs, _labels(paths[-1], labels, 10)


def _array(path: Path, rows: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is truncated or no .npy file: {error}") from None
    if array.shape != (rows,) or array.dtype.kind not in "iu":
        raise ValueError(f"{path} must have {rows:,} whole numbers, got {array.dtype} of shape {array.shape}")
    return array


def _idx(path: Path, dimensions: int) -> Bytes:
    """An IDX file of bytes: 0, 0, 8, the number of dimensions, their sizes (big-endian), the bytes."""
    data = _content(path)
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
    images, labels = _idx(paths[0], 3), _idx(paths[1], 1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28):
        raise ValueError(
            f"{paths[0]} must have {len(labels):,} images of 28 x 28, as many as {paths[1]} has labels, "
            f"got shape {images.shape}"
        )
    return images[:, None].copy(), _labels(paths[1], labels, 10)


def _jpeg_npz(paths: Sequence[Path], rows: int | None) -> Part:
    """JPEG files end to end in an .npz, with their offsets and labels, and the list of classes."""
    path, listing = paths
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
            data, offsets, labels = held["jpeg"].tobytes(), held["offsets"], held["labels"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or has no jpeg, offsets and labels: {error}") from None
    if len(offsets) != len(labels) + 1 or offsets[-1] != len(data):
        raise ValueError(
            f"{path} must have {len(labels) + 1:,} offsets (one more than labels) that end at {len(data):,} bytes, "
            f"got {len(offsets):,} that end at {offsets[-1:]}"
        )
    images = np.empty((len(labels), 3, 64, 64), np.uint8)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        name = f"image {i} of {path}"
        image = decode(name, io.BytesIO(data[start:stop]))
        if image.shape != (3, 64, 64):
            raise ValueError(f"{name} must be 64 x 64, got {image.shape[2]} x {image.shape[1]}")
        images[i] = image
    return images, _labels(path, labels, len(listing.read_text(encoding="utf-8").splitlines()))


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
        "official binary files",
        ("cifar-10-batches-bin", ".", "cifar10/cifar-10-batches-bin", "cifar10"),
        tuple(f"{name}.bin" for name in _BATCHES),
        ("test_batch.bin",),
        _cifar_binary,
    ),
    Layout(
        "packed planes",
        ("cifar10", "."),
        (*(f"train{i}.xz" for i in range(1, 6)), "train_labels.npy"),
        ("test.xz", "test_labels.npy"),
        _cifar_packed,
    ),
)

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

#: The layout of Tiny-ImageNet-20.
TINY_IMAGENET20 = (
    Layout(
        "JPEG files in .npz",
        ("tiny-imagenet-20", "."),
        ("train.npz", "classes.txt"),
        ("val.npz", "classes.txt"),
        _jpeg_npz,
    ),
)
