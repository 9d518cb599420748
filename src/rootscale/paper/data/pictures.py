"""Images in files: folders of them, and Tiny-ImageNet-20. They need Pillow, which is an extra."""

from __future__ import annotations

import importlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.paper.data.layouts import Bytes, Images, Layout, Part, labels_in, locate, read, tensors

__all__ = ["IMAGE_SUFFIXES", "TINY_IMAGENET20", "classes_in", "decode", "image_folder", "pillow", "tiny_imagenet20"]


#: What `image_folder` takes for an image.
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def tiny_imagenet20(folder: str | os.PathLike[str] | None = None) -> Images:
    """Return Tiny-ImageNet-20, 10,000 + 1,000 images [3, 64, 64] of the first 20 classes of Tiny-ImageNet-200.

    From ``train.npz``, ``val.npz`` (``jpeg``: all files end to end, ``offsets``: n + 1 numbers, ``labels``) and
    ``classes.txt`` (label, WordNet id and words, with tabs between). Needs Pillow.
    """
    train, test = read("Tiny-ImageNet-20", TINY_IMAGENET20, folder, None)
    where, paths = locate("Tiny-ImageNet-20", TINY_IMAGENET20, folder)
    lines = (paths[where.train[0]].parent / "classes.txt").read_text(encoding="utf-8").splitlines()
    return Images(train, test, tuple(line.split("\t")[-1] for line in lines))


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


def _jpeg_npz(paths: Sequence[Path], rows: int | None) -> Part:
    """Read JPEG files that lie end to end in an .npz, with their offsets and labels, and the list of classes."""
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
    return images, labels_in(path, labels, len(listing.read_text(encoding="utf-8").splitlines()))


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
