"""Per-sample gradients of a model without computing them: one look at each layer's input and output gradient.

A `Collector` watches the layers of a model that `rootscale.training.layers` has a formula for. It serves two callers:

- `exact_noise` runs an ordinary forward and backward. A layer's sums are computed as soon as the gradient of its
  output is known, so that nothing is kept (`Collector.forward`).
- The network oracle of `rootscale.theory` differentiates a pure function with `torch.func`, for many replicas at
  once. There the gradient of a layer's output is the gradient with respect to a zero added to it (`Collector.shifted`).

Parameters of other layers, and those that a forward uses more than once (`Collector.once`), need explicit per-sample
gradients: `sample_gradients`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from rootscale.training.layers import LayerSums, Sums, Wanted, layer_sums, own_dimensions, sums_gradients

#: The loss of one sample as a function of (parameters, inputs, target), none of which have a dimension for samples.
LossOfOne = Callable[[dict[str, Tensor], Any, Any], Tensor]


def wide(x: Tensor) -> Tensor:
    """Return ``x`` in float32 at least, because squares of half precision overflow."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class Seen:
    """A layer that a forward called with the samples along the first dimension.

    Args:
        layer: the layer.
        sums: its row of `rootscale.training.layers.LAYERS`.
        shape: of its output, without the samples.
    """

    layer: nn.Module
    sums: LayerSums
    shape: torch.Size

    def __call__(self, a: Tensor, delta: Tensor, wanted: Wanted) -> dict[str, Sums]:
        """Return the sums of the layer's parameters, from its input and the gradient of its output."""
        return self.sums(self.layer, a, delta, wanted)


class _Tape:
    """What the hooks see during a forward with shifts: by layer, what to add to its output, and what its input was."""

    def __init__(self, shifts: Mapping[str, Tensor]) -> None:
        self.shifts = shifts
        self.inputs: dict[str, Tensor] = {}


class Collector:
    """Watches the layers of a model that have a formula for sums over per-sample gradients.

    Hooks are registered once, and `remove` takes them off: ``torch.compile`` traces hooks, but not their registration.

    Args:
        model: the model to watch.
    """

    def __init__(self, model: nn.Module) -> None:
        #: By name, the layers that the last `forward` called with samples first.
        self.seen: dict[str, Seen] = {}
        #: By parameter, the sums that the backward of the last `forward` gave.
        self.found: dict[Tensor, Sums] = {}
        #: By parameter, where a backward may stop that finds the sum of its gradients on the way.
        self.edges: dict[Tensor, GradientEdge] = {}
        self._calls: Counter[str] = Counter()
        self._samples: int | None = None
        self._wanted = Wanted()
        self._tape: _Tape | None = None
        self._layers = {
            name: (layer, row) for name, layer in model.named_modules() if (row := layer_sums(layer)) is not None
        }
        self._hooks = [
            layer.register_forward_hook(functools.partial(self._hook, name), with_kwargs=True)
            for name, (layer, _) in self._layers.items()
        ]

    @contextmanager
    def forward(self, samples: int, wanted: Wanted | None = None) -> Iterator[None]:
        """Watch a forward of so many samples; its backward then fills `found`, as far as ``wanted``.

        A layer that is run again in the backward (checkpointing) is not counted twice.
        """
        self.clear()
        self._samples, self._wanted = samples, wanted or Wanted()
        try:
            yield
        finally:
            self._samples = None

    @contextmanager
    def shifted(self, shifts: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Add ``shifts`` to the outputs of the layers of these names in a forward, and note the layers' inputs."""
        self._tape = tape = _Tape(shifts)
        try:
            yield tape.inputs
        finally:
            self._tape = None

    def once(self, total: Tensor) -> set[Tensor]:
        """Return the parameters that the last `forward`, which gave ``total``, used once, in one call of a layer."""
        uses = _uses(total)
        own = (p for name, n in self._calls.items() if n == 1 for p in self._layers[name][0]._parameters.values())
        return {p for p in own if p is not None and uses[p] == 1}

    def clear(self) -> None:
        """Forget the last `forward`, and let its graph go."""
        for table in (self.seen, self.found, self.edges, self._calls):
            table.clear()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        if self._tape is not None:
            if name not in self._tape.shifts:
                return None
            self._tape.inputs[name] = args[0] if args else kwargs["input"]
            return output + self._tape.shifts[name]
        if self._samples is not None and output.requires_grad:
            self._calls[name] += 1
            self._watch(name, args[0] if args else kwargs["input"], output)
        return None

    def _watch(self, name: str, a: Tensor, output: Tensor) -> None:
        layer, row = self._layers[name]
        if a.dim() <= own_dimensions(layer) or len(a) != self._samples:
            return  # another layout: the first dimension is not that of the samples
        seen = self.seen[name] = Seen(layer, row, output.shape[1:])
        a, wanted = a.detach(), self._wanted

        def back(delta: Tensor) -> None:
            delta = wide(delta)
            with torch.no_grad(), torch.autocast(delta.device.type, enabled=False):
                sums = seen(a.to(delta.dtype) if a.is_floating_point() else a, delta, wanted)
            for key, one in sums.items():
                parameter = layer._parameters.get(key)
                if parameter is not None and parameter.requires_grad:
                    self.found[parameter] = one

        output.register_hook(back)  # type: ignore[no-untyped-call]
        for key in sums_gradients(layer, output, wanted.second):
            parameter = layer._parameters.get(key)
            if parameter is not None and parameter.requires_grad:
                self.edges[parameter] = get_gradient_edge(output)


def _uses(total: Tensor) -> Counter[Any]:
    """Return how often each parameter enters the graph of a loss."""
    uses: Counter[Any] = Counter()
    root: Any = total.grad_fn
    seen, stack = {root}, [] if root is None else [root]
    while stack:
        for child, _ in stack.pop().next_functions:
            if type(child).__name__ == "AccumulateGrad":
                uses[child.variable] += 1
            elif child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return uses


def sample_gradients(loss: LossOfOne, parameters: dict[str, Tensor], x: Any, y: Any) -> dict[str, Tensor]:
    """Return explicit per-sample gradients, ``{name: [samples, *shape]}``, by `torch.func.vmap`."""
    gradients: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return gradients


def mixing_layers(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Yield the layers, with their names, that normalize a sample by other samples of its batch."""
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            yield name, layer


def random_layers(model: nn.Module) -> Iterable[tuple[str, nn.Module, float]]:
    """Yield the layers, with their names and probabilities, that drop numbers at random."""
    for name, layer in model.named_modules():
        p = getattr(layer, "p" if isinstance(layer, _DropoutNd) else "dropout", None)
        if layer.training and isinstance(p, int | float) and p > 0:
            yield name, layer, float(p)
