"""What is measured along a run: losses, metrics, norms and the noise of the gradient on fixed samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rootscale.lab.replicas import initialized, squared_norm
from rootscale.training.norms import norm_layers

if TYPE_CHECKING:
    from rootscale.lab.learner import Learner
    from rootscale.lab.settings import Measure
    from rootscale.lab.task import Task

#: The gradient's noise is measured in this many batches, or in fewer of so many samples: each costs a pass.
NOISE_BATCHES, NOISE_BATCH, FEWEST_BATCHES = 16, 32, 4
#: The name of the mean loss of the steps since the last point, as a training loop prints it.
STEP_LOSS = "train loss (batch)"
#: The name of the test loss with BatchNorm's statistics taken anew over training samples.
REESTIMATED_LOSS = "test loss (BatchNorm re-estimated)"


class Probes:
    """Fixed samples of a task, on which all of its runs are measured.

    Args:
        task: whose samples, loss, metrics and functions are measured.
        measure: what is measured, and on how many samples.
        device: where.

    Attributes:
        samples: prepared inputs and targets of ``train`` and, where the task has test data, of ``test``.
    """

    def __init__(self, task: Task, measure: Measure, device: torch.device) -> None:
        self.task, self.measure = task, measure
        self.samples: dict[str, tuple[Tensor, Tensor]] = {}
        for split, data in (("train", task.train), ("test", task.test)):
            if data is not None:
                index = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: measure.eval_samples]
                x, y = (part.to(device) for part in data[index])
                self.samples[split] = (x if task.prepare is None else task.prepare(x), y)
        self._reestimates = measure.reestimate and "test" in self.samples and bool(norm_layers(initialized(task, 0)))

    def values(self, learner: Learner) -> dict[str, Tensor]:
        """Return the value of every test function for each replica, ``[R]`` each.

        Losses and metrics are those in eval mode.
        """
        functions = {"loss": self.task.loss, **self.task.metrics}
        found: dict[str, Tensor] = {}
        for split, (x, y) in self.samples.items():
            found |= {f"{split} {name}": value for name, value in learner.means(x, y, functions).items()}
        if self._reestimates:
            found[REESTIMATED_LOSS] = learner.means(
                *self.samples["test"], {"loss": self.task.loss}, statistics=self.samples["train"][0]
            )["loss"]
        if self.measure.noise:
            x, y = (part[: self.measure.noise_samples] for part in self.samples["train"])
            found |= gradient_noise(learner, x, y, self.measure.norms)
        found["parameter norm"] = squared_norm(learner.trained, learner.replicas).sqrt().detach()
        for name, function in self.task.functions.items():
            found[name] = torch.stack(
                [torch.as_tensor(function(learner.replica(r))).detach().double() for r in range(learner.replicas)]
            )
        return found

    def train_mode_loss(self, learner: Learner) -> Tensor:
        """Return the loss of the training samples in train mode, ``[R]``: BatchNorm takes their statistics."""
        return learner.means(*self.samples["train"], {"loss": self.task.loss}, train=True)["loss"]


def _euclidean(tensors: Sequence[Tensor], replicas: int) -> Tensor:
    return squared_norm(tensors, replicas).sqrt()


def _absolute(tensors: Sequence[Tensor], replicas: int) -> Tensor:
    """Return the sum of absolute values: the dual norm of steps that all have one size, as those of signs have."""
    return torch.stack([t.float().abs().reshape(replicas, -1).sum(1) for t in tensors]).sum(0)


def _nuclear(tensors: Sequence[Tensor], replicas: int) -> Tensor:
    """Return the sum of singular values of all matrices: the dual norm of steps whose singular values are all one.

    Convolutions are matrices of their outputs, as in Muon; biases and gains are left out.
    """
    shapes = [t.shape if replicas == 1 else t.shape[1:] for t in tensors]
    matrices = [
        t.float().reshape(replicas, shape[0], -1) for t, shape in zip(tensors, shapes, strict=True) if len(shape) > 1
    ]
    return torch.stack([torch.linalg.matrix_norm(matrix, "nuc") for matrix in matrices]).sum(0)


#: Norms of gradients besides the Euclidean one, by what follows the name of a test function. In Adam's metric a
#: gradient is divided by ``sqrt(v_hat) + eps`` first. The last two are the dual norms of arXiv 2602.03001.
NORMS: Mapping[str, Callable[[Sequence[Tensor], int], Tensor]] = MappingProxyType(
    {", Adam's metric": _euclidean, ", sign": _absolute, ", spectral": _nuclear}
)


def gradient_noise(learner: Learner, x: Tensor, y: Tensor, norms: bool = False) -> Mapping[str, Tensor]:
    """Return norm of the gradient, Tr Sigma and noise scale, from equal batches of fixed training samples.

    With batch gradients ``g_k`` of ``b`` samples: ``Tr Sigma = b / (K - 1) sum_k |g_k - g_bar|^2``, and
    ``|g_bar|^2 - Tr Sigma / (K b)`` estimates ``|grad f|^2`` without bias.

    Args:
        learner: whose replicas are measured.
        x, y: the samples.
        norms: whether the same is measured in the other `NORMS` too. There ``|g_bar|^2`` exceeds the gradient's by
            ``Tr Sigma / (K b)`` only in about: exactly where either of the two dominates.
    """
    batches = min(NOISE_BATCHES, max(FEWEST_BATCHES, len(x) // NOISE_BATCH), len(x))
    b = len(x) // batches
    parts, total, squares = [], list[Tensor](), torch.zeros(())
    for k in range(batches):
        part = slice(k * b, (k + 1) * b)
        gradient = learner.gradient(x[part], y[part])
        squares = squares + squared_norm(gradient, learner.replicas)
        total = gradient if not total else [a + g for a, g in zip(total, gradient, strict=True)]
        parts += [gradient] if norms else []
    mean = squared_norm(total, learner.replicas) / batches**2
    trace = b * (squares - batches * mean) / max(1, batches - 1)
    found = {"gradient norm": mean.sqrt(), "Tr Sigma": trace, "noise scale": _scale(trace, mean, batches * b)}
    return found | (_in_norms(learner, parts, [t / batches for t in total], b) if norms else {})


def _scale(trace: Tensor, mean: Tensor, samples: int) -> Tensor:
    """Return the noise scale, given the squared norm of the gradient of so many samples."""
    unbiased = (mean - trace / samples).clamp_min(1e-12 * mean)
    return torch.where(mean > 0, trace / unbiased, 1e12)  # no gradient at all: beyond all measure


def _in_norms(learner: Learner, parts: Sequence[Sequence[Tensor]], mean: Sequence[Tensor], b: int) -> dict[str, Tensor]:
    """Return Tr Sigma and noise scale in the `NORMS`; Adam's metric is left out for optimizers without it.

    Before the first step the second moment is taken to be that of these gradients, as it will be after a few.
    """
    roots, found = learner.roots(), dict[str, Tensor]()
    if roots is not None and not roots:
        squares = [torch.stack([g.square() for g in tensors]).mean(0) for tensors in zip(*parts, strict=True)]
        roots = [square.sqrt().clamp_min(1e-12) for square in squares]
    for name, norm in NORMS.items():
        divisors: Sequence[Tensor | float] | None = roots if name == ", Adam's metric" else [1.0] * len(mean)
        if divisors is None:
            continue
        noise = torch.zeros(())
        for part in parts:
            rest = [(g - m) / d for g, m, d in zip(part, mean, divisors, strict=True)]
            noise = noise + norm(rest, learner.replicas).square()
        trace = b * noise / max(1, len(parts) - 1)
        squared = norm([m / d for m, d in zip(mean, divisors, strict=True)], learner.replicas).square()
        found |= {f"Tr Sigma{name}": trace, f"noise scale{name}": _scale(trace, squared, b * len(parts))}
    return found
