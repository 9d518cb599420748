"""What a check will cost: its runs counted, and a few steps timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from rootscale.lab.failures import blaming
from rootscale.lab.learner import make_learner
from rootscale.lab.probes import Probes
from rootscale.lab.settings import Settings
from rootscale.lab.stream import Stream
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant

#: Most samples of the longer of the two steps that are timed.
LONGEST = 512
#: How often something is timed, and the seconds from which on once is enough.
TRIES, LONG = 4, 0.5


@dataclass(frozen=True)
class Cost:
    """How long the runs of a check take, for one seed of each kind.

    Args:
        training: seconds of training, the warm start included.
        measuring: seconds of measuring.
        runs: how many kinds of runs there are.
    """

    training: float
    measuring: float
    runs: int

    @property
    def share(self) -> float:
        """The share that is spent on measuring."""
        return self.measuring / (self.training + self.measuring)

    def seconds(self, seeds: int, workers: int = 1) -> float:
        """Return how long so many seeds take, in so many processes."""
        return (self.training + self.measuring) * seeds / max(1, min(workers, seeds * self.runs))


def estimate_cost(task: Task, variants: Sequence[Variant], settings: Settings) -> Cost:
    """Time a few steps and a measurement of one seed, in one thread, and count how many there will be.

    Args:
        task: what is learned.
        variants: what it is compared with; the base is counted by itself.
        settings: of all runs.
    """
    device = torch.device(settings.setup.device)
    learner, probes = make_learner(task, [0], settings.setup), Probes(task, settings.measure, device)
    size = int(task.plan.batch_size.total)
    stream = Stream(len(task.train), [0], settings.setup.replacement, 0, device)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), blaming(f"a step of the task {task.name!r}"):
        torch.set_num_threads(1)  # as workers have it
        try:

            def step(samples: int) -> None:
                uniforms = stream.uniforms(0, samples, task.draws) if task.augment is not None else None
                learner.step([(stream.indices(0, samples), uniforms)], task.plan.optimizer.eta)

            longer = max(size + 1, min(LONGEST, 8 * size))
            short, long = _timed(lambda: step(size)), _timed(lambda: step(longer))
            point = _timed(lambda: probes.values(learner)) + _timed(lambda: probes.train_mode_loss(learner))
        finally:
            torch.set_num_threads(threads)
    each = max(0.0, (long - short) / (longer - size))  # seconds a sample, beyond what a step costs in any case
    once = max(0.0, short - each * size)
    stop, switch_at, points = settings.grid[-1], settings.switch_at, len(settings.grid)

    def seconds(variant: Variant, samples: int) -> float:
        kappa = Fraction(variant.kappa) / Fraction(variant.ell) ** 2
        passes = 1 if variant.ell == 1 else 2 * variant.ell**2
        return once * samples / float(size * kappa) + each * samples * passes

    training = seconds(Variant(), stop) + sum(seconds(variant, stop - switch_at) for variant in variants)
    return Cost(training, point * points * (1 + len(variants)), 1 + len(variants))


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of `TRIES`, of which the first warms up; what takes long is done once."""
    found = list[float]()
    while len(found) < TRIES and not any(seconds > LONG for seconds in found):
        before = time.perf_counter()
        work()
        found.append(time.perf_counter() - before)
    return min(found)
