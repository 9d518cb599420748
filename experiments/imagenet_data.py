"""ImageNet from a folder of JPEG files, decoded when they are read, and Tiny-ImageNet-20, which fits into memory."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rootscale.lab.data import (
    IMAGE_SUFFIXES,
    Bytes,
    Images,
    Layout,
    Part,
    classes_in,
    data_folder,
    decode,
    labels_in,
    locate,
    read,
)  # fmt: skip

__all__ = ["IMAGENET", "TINY", "Crop", "Folder", "imagenet", "tiny"]

#: Mean and standard deviation of each channel of the training images, in [0, 1].
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TINY = (0.48754, 0.44252, 0.37323), (0.27292, 0.26566, 0.27592)


@dataclass(frozen=True, eq=False)
class Folder:
    """Images in class folders, ``root/CLASS/*``, decoded by threads when a batch is read.

    Args:
        root: the folder.
        size: of the square images.
        share: of the shorter side, in the middle, that becomes the image.
        device: of what is read.
    """

    root: Path
    size: int
    share: float = 1.0
    device: torch.device = torch.device("cpu")

    @cached_property
    def files(self) -> list[tuple[str, int]]:
        """The files, each with the number of its class."""
        found = []
        for label, name in enumerate(classes_in(self.root)):
            with os.scandir(self.root / name) as entries:
                here = sorted(entry.path for entry in entries if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES)
            found += [(path, label) for path in here]
        if not found:
            raise ValueError(f"{self.root} has no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
        return found

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.files)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return images in bytes and their labels, in the shape of ``index``."""
        chosen = [self.files[i] for i in index.flatten().tolist()]
        with ThreadPoolExecutor() as pool:  # Pillow decodes beside Python
            images = np.stack(list(pool.map(lambda file: decode(file[0], file[0], self._square), chosen)))
        labels = torch.tensor([label for _, label in chosen]).view(index.shape)
        inputs = torch.from_numpy(images).view(*index.shape, 3, self.size, self.size)
        return inputs.to(self.device), labels.to(self.device)

    def to(self, device: torch.device) -> Folder:
        """Return the same images, which are read to another device."""
        return replace(self, device=device)

    def _square(self, picture: Any) -> Any:
        """Return the middle of a picture, scaled."""
        width, height = picture.size
        side = min(width, height) * self.share
        left, top = (width - side) / 2, (height - side) / 2
        return picture.resize((self.size, self.size), 2, box=(left, top, left + side, top + side))  # 2: bilinear


@dataclass(frozen=True)
class Crop:
    """A random part of each image, scaled to all of it, and mirrored half of the time: the usual for ImageNet.

    The part has 8 to 100 % of the area and sides of 3:4 to 4:3, as far as they fit. Takes images [..., 3, size, size]
    and ``draws`` uniforms [..., 5].
    """

    draws = 5

    def __call__(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Return the images, cropped and mirrored."""
        flat, u = x.reshape(-1, *x.shape[-3:]), uniforms.reshape(-1, self.draws).to(x.dtype).unbind(1)
        area, ratio = 0.08 + 0.92 * u[0], ((2 * u[1] - 1) * math.log(4 / 3)).exp()
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        mirror, none = torch.where(u[4] < 0.5, -width, width), torch.zeros_like(width)
        rows = [mirror, none, (2 * u[2] - 1) * (1 - width), none, height, (2 * u[3] - 1) * (1 - height)]
        places = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(flat.shape), align_corners=False)
        return F.grid_sample(flat, places, align_corners=False).view(x.shape)


def imagenet(folder: str | os.PathLike[str] | None, part: str, size: int = 224) -> Folder:
    """Return the images of ``train``, or those of ``val``, of which the middle 7/8 are taken."""
    root = data_folder(folder, "ImageNet")
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise ValueError(f"{root} must have the folders train and val, each with a folder for each class")
    return Folder(root / part, size, 1.0 if part == "train" else 7 / 8)


def tiny(folder: str | os.PathLike[str] | None = None) -> Images:
    """Return Tiny-ImageNet-20: 10,000 + 1,000 images [3, 64, 64] of the first 20 classes of Tiny-ImageNet-200.

    From ``train.npz``, ``val.npz`` (``jpeg``: all files end to end, ``offsets``: n + 1 numbers, ``labels``) and
    ``classes.txt`` (label, WordNet id and words, with tabs between). Needs Pillow.
    """
    train, test = read("Tiny-ImageNet-20", LAYOUTS, folder, None)
    layout, paths = locate("Tiny-ImageNet-20", LAYOUTS, folder)
    lines = paths[layout.train[1]].read_text(encoding="utf-8").splitlines()
    return Images(train, test, tuple(line.split("\t")[-1] for line in lines))


def _jpeg_npz(paths: Sequence[Path], rows: int | None) -> Part:
    """Read JPEG files that lie end to end in an .npz, with their offsets and labels, and the list of classes."""
    path, listing = paths
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            data, offsets, labels = arrays["jpeg"].tobytes(), arrays["offsets"], arrays["labels"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or has no jpeg, offsets and labels: {error}") from None
    if len(offsets) != len(labels) + 1 or offsets[-1] != len(data):
        raise ValueError(
            f"{path} must have {len(labels) + 1:,} offsets (one more than labels) that end at {len(data):,} bytes, "
            f"got {len(offsets):,} that end at {offsets[-1:]}"
        )
    images: Bytes = np.empty((len(labels), 3, 64, 64), np.uint8)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        image = decode(f"image {i} of {path}", io.BytesIO(data[start:stop]))
        if image.shape != (3, 64, 64):
            raise ValueError(f"image {i} of {path} must be 64 x 64, got {image.shape[2]} x {image.shape[1]}")
        images[i] = image
    return images, labels_in(path, labels, len(listing.read_text(encoding="utf-8").splitlines()))


#: The layout of Tiny-ImageNet-20.
LAYOUTS = (
    Layout(
        "JPEG files in .npz", ("tiny-imagenet-20", "."), ("train.npz", "classes.txt"), ("val.npz", "classes.txt"),
        _jpeg_npz,
    ),
)  # fmt: skip
