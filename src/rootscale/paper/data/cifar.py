"""CIFAR-10, in three layouts."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rootscale.paper.data.layouts import Bytes, Images, Layout, Part, content, image_count, joined, labels_in, read

__all__ = ["CIFAR10", "cifar10"]


def cifar10(folder: str | os.PathLike[str] | None = None, rows: int | None = 10_000) -> Images:
    """Return CIFAR-10, 50,000 + 10,000 images [3, 32, 32], from any layout of the table `CIFAR10`.

    Args:
        folder: that holds the files, or one of the folders of the layout; None is ``ROOTSCALE_DATA``.
        rows: how many images each file must have; None for any number, as for a subset.
    """
    train, test = read("CIFAR-10", CIFAR10, folder, rows)
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    return Images(train, test, tuple(names.split()))


def _cifar_binary(paths: Sequence[Path], rows: int | None) -> Part:
    """Read the official binary files: for each image a byte of label, then the planes red, green and blue."""

    def one(path: Path) -> Part:
        data = np.frombuffer(content(path), np.uint8)
        table = data.reshape(image_count(path, rows, data.size, 3073), 3073)
        return table[:, 1:].reshape(-1, 3, 32, 32), labels_in(path, table[:, 0], 10)

    return joined(map(one, paths))


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
