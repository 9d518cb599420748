"""Where a dataset lies on disk: its layouts, the folder that holds it, and errors that say which file is wrong."""

from __future__ import annotations

import gzip
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

from rootscale.lab.task import Tensors

__all__ = [
    "VARIABLE", "Images", "Layout", "content", "data_folder", "image_count", "joined", "labels_in", "locate", "read",
    "tensors",
]  # fmt: skip


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
            "it (`rootscale reproduce` also takes it as --data)"
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
        f"{name} is not in {root}{_source(folder)}: set {VARIABLE} to the folder that holds it (`rootscale reproduce` "
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
