"""Small nets on scikit-learn's digits, trained by Adam at a constant learning rate, and what their studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from rootscale import Adam, BatchSize, Plan
from rootscale.lab import Arm, Measure, Settings, Task, Variant, grid
from rootscale.lab.task import Tensors
from rootscale.lab.tasks import accuracy, convnet, cross_entropy, digits

__all__ = ["KEEPS", "NETS", "Net", "base_and_null"]

#: What tables hold of these runs.
KEEPS = ("train loss", "test loss", "test accuracy", "noise scale")


@dataclass(frozen=True)
class Net:
    """A net, and the runs that are made with it.

    Args:
        title: in words.
        data: makes the task, but for its name and plan.
        eta: the learning rate at the first batch size.
        sizes: batch sizes; the first is the base's.
        epochs: of a run.
        before: the share of a run before the batch size changes.
        points: at which it is measured after that.
        seeds: of each arm.
    """

    title: str
    data: Callable[[], Task]
    eta: float
    sizes: tuple[int, ...]
    epochs: int
    before: Fraction
    points: int
    seeds: int

    def task(self, name: str, betas: tuple[float, float]) -> Task:
        """Return the task, whose length is a whole number of steps at the largest batch size."""
        made = self.data()
        samples = self.epochs * len(made.train) // self.sizes[-1] * self.sizes[-1]
        plan = Plan(Adam(self.eta, *betas), BatchSize(self.sizes[0]), steps=Fraction(samples, self.sizes[0]))
        return replace(made, name=name, plan=replace(plan, batchnorm_momentum=made.plan.batchnorm_momentum))

    def settings(self, task: Task, switch: bool = True) -> Settings:
        """Return the settings of runs that change their batch size on the way, or from scratch."""
        total, largest = int(task.plan.samples or 0), self.sizes[-1]
        start = int(total * self.before) // largest * largest if switch else 0
        points = min(self.points, (total - start) // (2 * largest))
        measure = Measure(points, eval_samples=2048, reestimate=True, noise=not switch)
        return Settings(grid(total, points, start, self.sizes), start, measure)


def base_and_null(task: Task) -> Sequence[Arm]:
    """Return the run as it is, and the same with other samples, which shows how far a rerun is off."""
    size = int(task.plan.batch_size.total)
    return [
        Arm(f"B = {size} kept", task),
        Arm(f"B = {size}, other samples", task, Variant(other_samples=True), {"form": "null"}),
    ]


def _convnet() -> Task:
    """Return a conv net with BatchNorm on the digits as images."""
    made = digits()
    train, test = (Tensors(part.inputs.view(-1, 1, 8, 8), part.targets) for part in (made.train, made.test))
    plan = Plan(Adam(1e-3, 0.9, 0.999), BatchSize(16), steps=1, batchnorm_momentum=0.1)
    make = partial(convnet, 10, 1, 8, 0.1)
    return Task("convnet", plan, make, cross_entropy, train, test, {"accuracy": accuracy})


NETS: Mapping[str, Net] = {
    "mlp": Net("MLP on digits", digits, 5e-4, (4, 16, 64, 256), 36, Fraction(1, 4), 24, 16),
    "convnet": Net("conv net with BatchNorm on digits", _convnet, 1e-3, (16, 64, 256), 12, Fraction(3, 10), 16, 8),
}
