"""The paper's nets for images: VGG-16 and ResNet-56 for 32 x 32 pixels, ResNet-50, and BatchNorm over groups.

As the conv net of `rootscale.lab.tasks`, they work with stacked parameters (`torch.func.functional_call` under
`torch.func.vmap`; hence nothing is done in place) and in ``channels_last``. Where BatchNorm follows, a layer has no
bias: BatchNorm takes it away again, so its gradient is rounding error, which an adaptive optimizer would blow up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale.lab.tasks import Classifier, convolution

__all__ = ["NETS", "GroupedBatchNorm2d", "group_batchnorm", "resnet50", "resnet56", "vgg16"]


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm over groups of samples of a batch ("ghost batch norm", Hoffer et al. 2017).

    A large batch is then normalised as if its groups were small batches. The running averages take the mean of the
    groups' statistics once a batch, with the momentum ``p`` of the layer; ``n`` small batches of momentum ``q`` decay
    the past as much where ``p = 1 - (1 - q)^n``, which is how the scaling rule converts it.

    Args:
        features: channels of the images.
        group: samples in a group. A batch that is not a multiple of it is one group.
        momentum, eps: as for `torch.nn.BatchNorm2d`.
    """

    def __init__(self, features: int, group: int, momentum: float | None = 0.1, eps: float = 1e-5) -> None:
        super().__init__(features, eps, momentum)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images [batch, channels, height, width]."""
        size = x.shape[0]
        if not self.training or size <= self.group or size % self.group:
            out: Tensor = super().forward(x)
            return out
        wide = x.reshape(size // self.group, self.group, *x.shape[1:])
        wide = wide.float() if wide.dtype in (torch.bfloat16, torch.float16) else wide
        variance, mean = torch.var_mean(wide, (1, 3, 4), correction=0, keepdim=True)
        self._follow(mean, variance, wide[0, :, 0].numel())
        scale = self.weight[:, None, None] * torch.rsqrt(variance + self.eps)
        return ((wide - mean) * scale + self.bias[:, None, None]).to(x.dtype).reshape(x.shape)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running averages towards the statistics of a batch."""
        assert self.momentum is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        unbiased = count / (count - 1)
        self.running_mean.mul_(1 - self.momentum).add_(mean.mean(0).flatten() * self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(variance.mean(0).flatten() * (self.momentum * unbiased))


def group_batchnorm(model: nn.Module, group: int) -> nn.Module:
    """Return a model whose layers of BatchNorm take their statistics over groups of that many samples."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            place, _, own = name.rpartition(".")
            grouped = GroupedBatchNorm2d(layer.num_features, group, layer.momentum, layer.eps)
            setattr(model.get_submodule(place), own, grouped)
    return model


def vgg16(classes: int = 10, channels: int = 3, momentum: float = 0.1, freeze_last: bool = False) -> nn.Module:
    """VGG-16 with BatchNorm (Simonyan, Zisserman 2014) for 32 x 32 images: 13 convolutions and one linear layer.

    At that size the last convolutions see 2 x 2 pixels and the 4,096-wide hidden layers of the original have nothing to
    gather, so a single linear layer follows, as is usual for CIFAR-10. The paper fixes it throughout training
    (``freeze_last``), "to make the model 1-homogenous and avoid the optimization difficulties of 2-homogenous networks"
    (appendix "Experiment Configuration Details", CIFAR-10). 14,724,042 parameters with 3 channels and 10 classes.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [*convolution(inputs, width, momentum), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return Classifier(nn.Sequential(*layers), 512, classes, freeze_last)


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut without parameters (He et al.'s option A).

    Where the image shrinks, the shortcut takes every other pixel and fills the new channels with zeros.
    """

    def __init__(self, inputs: int, outputs: int, momentum: float) -> None:
        super().__init__()
        self.stride = outputs // inputs
        first = convolution(inputs, outputs, momentum, self.stride)
        self.body = nn.Sequential(*first, nn.ReLU(), *convolution(outputs, outputs, momentum))
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        if self.added:
            x = F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.added // 2, self.added // 2))
        return torch.relu(x + y)


def resnet56(classes: int = 10, channels: int = 3, momentum: float = 0.1, freeze_last: bool = False) -> nn.Module:
    """ResNet-56 for 32 x 32 images (He et al. 2015, section 4.2): three stages of 9 blocks with 16, 32, 64 channels.

    0.85 million parameters (853,018 with 3 channels and 10 classes). The paper uses it "without modification";
    ``freeze_last`` fixes the last layer, as the paper does.
    """
    layers = [*convolution(channels, 16, momentum), nn.ReLU()]
    inputs = 16
    for width in (16, 32, 64):
        for _ in range(9):
            layers.append(_Block(inputs, width, momentum))
            inputs = width
    return Classifier(nn.Sequential(*layers), 64, classes, freeze_last)


def _from_torchvision(library: Any, classes: int) -> nn.Module:
    model: nn.Module = library.models.resnet50(weights=None, num_classes=classes)
    return model


def _from_timm(library: Any, classes: int) -> nn.Module:
    model: nn.Module = library.create_model("resnet50", pretrained=False, num_classes=classes)
    return model


#: Where ResNet-50 may come from, best first.
RESNET50: Mapping[str, Callable[[Any, int], nn.Module]] = MappingProxyType(
    {"torchvision": _from_torchvision, "timm": _from_timm}
)


def resnet50(classes: int = 1000, channels: int = 3, momentum: float = 0.1, freeze_last: bool = False) -> nn.Module:
    """ResNet-50 for 224 x 224 images, torchvision's or timm's, whichever is installed (torchvision first)."""
    if channels != 3:
        raise ValueError(f"resnet50 takes images of 3 channels, got {channels}")
    for name, make in RESNET50.items():
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        model = make(library, classes)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = momentum
            if hasattr(module, "inplace"):
                setattr(module, "inplace", False)  # noqa: B010 (not every module has it)
        model.get_submodule("fc").requires_grad_(not freeze_last)
        return model
    raise ValueError(f"resnet50 needs {' or '.join(RESNET50)}, which are not installed; pip install torchvision")


#: Nets for CIFAR-10 by name; each takes ``classes``, ``channels``, ``momentum`` (of BatchNorm) and ``freeze_last``.
NETS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"vgg16": vgg16, "resnet56": resnet56})
