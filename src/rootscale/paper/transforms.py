"""What is done to images on the device: bytes to floats, and random crops and mirror images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["CropFlip", "Normalise"]


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
