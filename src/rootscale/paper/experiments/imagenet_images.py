"""ImageNet from a folder of JPEG files, decoded one by one: crops and draws depend on seed and position only."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rootscale.paper.data.generated import patterns
from rootscale.paper.data.pictures import IMAGE_SUFFIXES, classes_in, decode, pillow
from rootscale.training.positions import generator

__all__ = ["Draws", "Folder", "Micro", "crop", "generated", "middle"]


class Folder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images in class folders, decoded one by one: bytes [3, size, size] and the number of the class.

    Samples are asked for by number and position in the run; the crop depends on seed and position only.

    Args:
        root: folder with a folder for each class.
        size: of the images.
        seed: of the crops; None is the middle of the image, as in tests.
    """

    def __init__(self, root: Path, size: int, seed: int | None = None) -> None:
        self.size, self.seed = size, seed
        self.classes = classes_in(root)
        self.files: list[str] = []
        self.labels: list[int] = []
        for label, name in enumerate(self.classes):
            with os.scandir(root / name) as entries:
                names = sorted(e.name for e in entries if Path(e.name).suffix.lower() in IMAGE_SUFFIXES)
            self.files += [os.path.join(root, name, file) for file in names]
            self.labels += [label] * len(names)
        if not self.files:
            raise ValueError(f"{root} has no images ({', '.join(sorted(IMAGE_SUFFIXES))})")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """Return an image by its number, at a position of the run."""
        number, position = key
        path = self.files[number]
        change = partial(middle, size=self.size) if self.seed is None else partial(self._cropped, position=position)
        pixels = decode(path, path, change)
        return torch.from_numpy(np.ascontiguousarray(pixels)), self.labels[number]

    def _cropped(self, picture: Any, position: int) -> Any:
        assert self.seed is not None
        return crop(picture, self.size, np.random.default_rng((self.seed, 2, position)))


def crop(picture: Any, size: int, random: np.random.Generator) -> Any:
    """Return 8 to 100 % of the area with sides of 3:4 to 4:3, scaled to a square, and mirrored half of the time."""
    width, height = picture.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            break
    else:
        w = h = min(width, height)
        left, top = (width - w) // 2, (height - h) // 2
    part = picture.resize((size, size), 2, box=(left, top, left + w, top + h))  # 2: bilinear
    return part.transpose(0) if random.random() < 0.5 else part  # 0: left to right


def middle(picture: Any, size: int) -> Any:
    """Return the middle 7/8 of the shorter side, as a square."""
    width, height = picture.size
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), 2, box=(left, top, left + side, top + side))


class Micro(NamedTuple):
    """How the batches of a run are cut up: samples of a step and of a micro-batch, and which process this is."""

    batch: int
    size: int
    rank: int = 0
    world: int = 1

    @property
    def parts(self) -> int:
        """Micro-batches of this process in a step."""
        return self.batch // (self.size * self.world)


class Draws(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """The micro-batches of this process: numbers drawn with replacement, by seed and step, and their positions.

    Micro-batch j of a step goes to process ``j mod world``: what is trained does not depend on how many there are.

    Args:
        samples: in the data.
        micro: how batches are cut up.
        steps: the first step and the end.
        seed: of the numbers.
    """

    def __init__(self, samples: int, micro: Micro, steps: range, seed: int) -> None:
        least = micro.size * micro.world
        if micro.batch % least:
            raise ValueError(
                f"a batch of {micro.batch} cannot be made of micro-batches of {micro.size} in {micro.world} processes: "
                f"the batch size must be a multiple of {least}"
            )
        self.samples, self.micro, self.steps, self.seed = samples, micro, steps, seed

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        batch, size, rank, world = self.micro
        for step in self.steps:
            numbers = torch.randint(self.samples, (batch,), generator=generator(self.seed, 9, step)).tolist()
            keys = [(number, step * batch + i) for i, number in enumerate(numbers)]
            for start in range(rank * size, batch, world * size):
                yield keys[start : start + size]

    def __len__(self) -> int:
        """How many micro-batches there are."""
        return len(self.steps) * self.micro.parts


def generated(root: Path) -> None:
    """Write images of four patterns as JPEG files, for smoke tests."""
    image = pillow("Image")
    held = patterns(64, 32, classes=4, size=20, noise=20.0)
    for split, part in (("train", held.train), ("val", held.test)):
        for i, (pixels, label) in enumerate(zip(part.inputs, part.targets, strict=True)):
            folder = root / split / f"class{int(label)}"
            folder.mkdir(parents=True, exist_ok=True)
            image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(folder / f"{i}.jpeg", quality=95)
