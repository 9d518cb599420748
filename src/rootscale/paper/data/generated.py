"""Images that are made, for smoke tests without any data."""

from __future__ import annotations

import torch

from rootscale.lab.task import Tensors
from rootscale.paper.data.layouts import Images

__all__ = ["patterns"]


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
