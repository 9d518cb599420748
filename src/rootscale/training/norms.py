"""Find the layers of a model that average statistics over forward passes."""

from __future__ import annotations

from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules.batchnorm import _NormBase


def norm_layers(model: nn.Module, *, refuse_scripted: bool = True) -> dict[str, _NormBase]:
    """Return the layers with running statistics by name: BatchNorm of all kinds, InstanceNorm where it tracks them.

    TorchScript compiles a layer's momentum into its code as a constant, so that nobody can change it.

    Args:
        model: searched with all it holds; a layer that it holds twice is found once.
        refuse_scripted: whether a layer of TorchScript is an error; False leaves such layers out.

    Raises:
        TypeError: the model holds a layer with running statistics that was compiled by TorchScript.
    """
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, _NormBase):
            if layer.track_running_stats:
                found[name] = layer
        elif refuse_scripted and isinstance(layer, ScriptModule) and _averages(layer, 0.1):
            raise TypeError(
                f"layer {name or '(the model itself)'} is a {layer.original_name} compiled by TorchScript, whose "
                "momentum is a constant that cannot be changed; give the model as it is before torch.jit.script or "
                "torch.jit.trace and compile it afterwards, or keep the momentum with rule='without batchnorm'"
            )
    return found


def foreign_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers by name that have running statistics and a momentum, and are neither torch's nor TorchScript's.

    Such a momentum may be the weight of the new batch, as in torch, or that of the old statistics.
    """
    return {
        name: layer
        for name, layer in model.named_modules()
        if not isinstance(layer, _NormBase | ScriptModule) and _averages(layer, None)
    }


def _averages(layer: nn.Module, unknown: float | None) -> bool:
    """Whether a layer updates running statistics with a momentum (None is a plain average; ``unknown`` if hidden)."""
    buffers = {name for name, _ in layer.named_buffers(recurse=False)}
    return "running_mean" in buffers and getattr(layer, "momentum", unknown) is not None
