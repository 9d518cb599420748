"""MNIST, from IDX files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rootscale.paper.data.layouts import Bytes, Images, Layout, Part, content, labels_in, read

__all__ = ["MNIST", "mnist"]


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
