"""One run of a task: R replicas at one batch size, from scratch or from a switch in mid-run, measured on a grid.

A run is a pure function of task, variant and seeds: everything random is drawn from the seeds by position, so that a
run which is interrupted and resumed is the run that was not, bit for bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rootscale.lab.learner import Learner
from rootscale.lab.provenance import environment
from rootscale.lab.settings import Settings, Setup
from rootscale.lab.stream import Stream
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.plan import Plan
from rootscale.training.positions import generator
from rootscale.trajectory import Trajectory

__all__ = ["Run"]

#: The gradient's noise is measured on the training samples of the evaluation, in this many batches.
NOISE_BATCHES = 16


class _Stage(NamedTuple):
    """A part of a run with one batch size; ``pace`` are the samples of the simulated run in one step."""

    start: int
    kappa: Fraction
    plan: Plan
    batch: int
    pace: Fraction


class Run:
    """A run under way.

    >>> from rootscale.paper.tasks import digits
    >>> task = digits()
    >>> run = Run(task, Variant(kappa=4), [0, 1], Settings(grid=(0, 320, 640)))
    >>> trajectory = run.finish()
    >>> trajectory.values["train loss"].shape
    (2, 3)

    Args:
        task: what is learned.
        variant: batch size, rule, SVAG.
        seeds: one for each replica; all are trained at once.
        settings: what is measured when, and where.
        warm: for a switch in mid-run: the `state_dict` of a run of the base variant at the switch, of the same seeds.
            Without it, that part is run first.

    Attributes:
        step: steps taken since the switch.
        position: samples seen (of the run that SVAG simulates, where that is what it is).
        seconds: spent in training and measuring so far.
    """

    def __init__(
        self,
        task: Task,
        variant: Variant,
        seeds: Sequence[int],
        settings: Settings,
        warm: Mapping[str, Any] | None = None,
    ) -> None:
        self.task, self.variant, self.seeds, self.settings = task, variant, list(seeds), settings
        device = torch.device(settings.setup.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {settings.setup.device!r} is not there: torch sees no CUDA GPU; take cpu")
        self.guards = variant.guards(task.plan)
        self.learner = _learner(task, self.seeds, device, settings.setup)
        self.step, self.seconds = 0, 0.0
        self.values: dict[str, list[list[float]]] = {}
        self.diverged: list[int | None] = [None] * len(self.seeds)
        base = int(task.plan.batch_size.total)
        self.start = settings.switch_at // base * base
        self.position = Fraction(self.start)
        places = [self.start, *(at for at, _ in variant.ramp)]
        self._stages = [
            _Stage(place, kappa, plan, int(plan.batch_size.total), plan.batch_size.total / Fraction(variant.ell) ** 2)
            for place, kappa, plan in zip(places, variant.kappas, variant.plans(task.plan), strict=True)
        ]
        first = min(*settings.grid, *places)
        if first < self.start:
            raise ValueError(f"grid and ramp must begin at the switch, {self.start} samples, got {first}")
        longest = max(stage.pace for stage in self._stages)
        if any(b - a < longest for a, b in pairwise(settings.grid)):
            raise ValueError(
                f"a step at {variant.label(task.plan)} is longer than the distance of the grid's points: ask for fewer "
                f"points (at most {max(1, int((settings.grid[-1] - self.start) / longest))})"
            )
        self._bounds: list[float] = []
        self._dropout_seed = generator(self.seeds[0], 4).initial_seed() // 2
        lane = 0 if variant.ell == 1 else 1
        self._stream = Stream(len(task.train), self.seeds, settings.setup.replacement, lane, device)
        self._probes = _probes(task, settings.measure.eval_samples, device)
        if self.start and warm is None:
            warm = self._warm_up()
        if warm is not None:
            self.learner.load_state_dict(warm["learner"])
            self._bounds = list(warm["bounds"])
            self.diverged = [None if lost is None else self.start for lost in warm["diverged"]]
        self._stage, self.warnings = -1, dict.fromkeys(self.guards)
        self._enter(0)

    @property
    def plan(self) -> Plan:
        """Of the present stage."""
        return self._stages[self._stage].plan

    def _enter(self, number: int) -> None:
        """Begin a stage: convert what trains."""
        old = Fraction(1) if self._stage < 0 else self._stages[self._stage].kappa
        stage, self._stage = self._stages[number], number
        ell = self.variant.ell if number == 0 else 1.0
        rule = self.variant.the_rule(self.task.plan)
        changes = self.learner.rescale(float(stage.kappa / old), ell, rule, self.variant.averaging)
        self.warnings |= dict.fromkeys(changes.warnings)
        if self.variant.zero_state:
            self.learner.zero_state()

    def _warm_up(self) -> dict[str, Any]:
        first = Run(self.task, Variant(), self.seeds, replace(self.settings, grid=(0, self.start), switch_at=0))
        first.finish()
        return first.state_dict()

    # -- the loop -----------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the last point of the grid has been measured, or all replicas have diverged."""
        return self.measured == len(self.settings.grid) or (self.measured > 0 and None not in self.diverged)

    @property
    def progress(self) -> float:
        """The share of the run that has been made."""
        return 1.0 if self.done else float((self.position - self.start) / max(1, self.settings.grid[-1] - self.start))

    @property
    def measured(self) -> int:
        """How many points of the grid have been."""
        return len(next(iter(self.values.values()), []))

    def advance(self) -> None:
        """A measurement where the grid has a point, or else a step."""
        began = time.perf_counter()
        if self._due():
            self._measure()
        else:
            self._train()
        self.seconds += time.perf_counter() - began

    def finish(self, on_progress: Callable[[float], object] | None = None) -> Trajectory:
        """All that is left of it."""
        with torch.random.fork_rng():
            while not self.done:
                self.advance()
                if on_progress is not None:
                    on_progress(self.progress)
        return self.trajectory()

    def _due(self) -> bool:
        half = self._stages[self._stage].pace / 2
        return not self.done and self.settings.grid[self.measured] - half <= self.position

    def _train(self) -> None:
        if self._stage + 1 < len(self._stages) and self.position >= self._stages[self._stage + 1].start:
            self._enter(self._stage + 1)
        stage = self._stages[self._stage]
        eta = stage.plan.learning_rate(float(self.position / stage.pace))
        torch.manual_seed(self._dropout_seed + self.step)
        passes = self.learner.passes
        first = int(self.position) if passes == 1 else self.start + self.step * passes * stage.batch
        batches = []
        for start in range(first, first + passes * stage.batch, stage.batch):
            stop, draws = start + stage.batch, self.task.draws
            uniforms = self._stream.uniforms(start, stop, draws) if self.task.augment is not None else None
            batches.append((self._stream.indices(start, stop), uniforms))
        self.learner.step(batches, eta, stage.plan.clip)
        self.step += 1
        self.position += stage.pace

    # -- measuring ----------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        torch.manual_seed(self._dropout_seed + self.step)  # the noise is measured with dropout
        found = {name: [float(v) for v in value.double().cpu()] for name, value in self._functions().items()}
        place = self.settings.grid[self.measured]
        losses = found["train loss"]
        if not self._bounds:
            self._bounds = [self.settings.setup.max_loss or loss + 99 * abs(loss) for loss in losses]
        for r, (loss, bound) in enumerate(zip(losses, self._bounds, strict=True)):
            if self.diverged[r] is None and not (math.isfinite(loss) and loss <= bound):
                self.diverged[r] = place
        for name, row in found.items():
            kept = [math.nan if lost is not None else v for v, lost in zip(row, self.diverged, strict=True)]
            self.values.setdefault(name, []).append(kept)

    def _functions(self) -> dict[str, Tensor]:
        learner, functions = self.learner, {"loss": self.task.loss, **self.task.metrics}
        found: dict[str, Tensor] = {}
        for split, (x, y) in self._probes.items():
            found |= {f"{split} {name}": value for name, value in learner.means(x, y, functions).items()}
        if self.settings.measure.noise:
            found |= self._noise()
        found["parameter norm"] = learner.squared_norm(learner.trained).sqrt().detach()
        for name, function in self.task.functions.items():
            found[name] = torch.stack(
                [torch.as_tensor(function(learner.replica(r))).detach().double() for r in range(learner.replicas)]
            )
        return found

    def _noise(self) -> dict[str, Tensor]:
        """Norm of the gradient, Tr Sigma and noise scale, from equal batches of fixed training samples.

        With batch gradients ``g_k`` of ``b`` samples: ``Tr Sigma = b / (K - 1) sum_k |g_k - g_bar|^2``, and
        ``|g_bar|^2 - Tr Sigma / (K b)`` estimates ``|grad f|^2`` without bias.
        """
        x, y = (part[: self.settings.measure.noise_samples] for part in self._probes["train"])
        batches = min(NOISE_BATCHES, len(x))
        b = len(x) // batches
        total: list[Tensor] = []
        squares: Tensor | float = 0.0
        for k in range(batches):
            part = slice(k * b, (k + 1) * b)
            gradient = self.learner.gradient(x[part], y[part])
            squares = squares + self.learner.squared_norm(gradient)
            total = gradient if not total else [a + g for a, g in zip(total, gradient, strict=True)]
        mean = self.learner.squared_norm(total) / batches**2
        trace = b * (squares - batches * mean) / max(1, batches - 1)
        unbiased = (mean - trace / (batches * b)).clamp_min(1e-12 * mean)
        scale = torch.where(mean > 0, trace / unbiased, 1e12)  # no gradient at all: beyond all measure
        return {"gradient norm": mean.sqrt(), "Tr Sigma": trace, "noise scale": scale}

    # -- what comes out -----------------------------------------------------------------------------------------

    def trajectory(self) -> Trajectory:
        """The test functions so far; NaN from where a replica diverged."""
        eta, size = self.task.plan.optimizer.eta, float(self.task.plan.batch_size.total)
        places = self.settings.grid
        missing = len(places) - self.measured
        lost = [[math.nan] * len(self.seeds)] * (missing if None not in self.diverged else 0)
        values = {name: np.array(rows + lost).T for name, rows in self.values.items()}
        length = self.measured + len(lost)
        return Trajectory(
            np.array(places[:length]) * eta**2 / size,
            values,
            meta={
                "task": self.task.name,
                "variant": self.variant.to_dict(),
                "label": self.variant.label(self.task.plan),
                "plan": self.plan.to_dict(),
                "base_plan": self.task.plan.to_dict(),
                "samples": list(places[:length]),
                "seeds": self.seeds,
                "switch_at": self.start,
                "diverged_at": self.diverged,
                "steps": self.step,
                "replacement": self.settings.setup.replacement,
                "guards": list(self.warnings),
                "seconds": round(self.seconds, 3),
                **environment(self.settings.setup.device),
            },
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "learner": self.learner.state_dict(),
            "step": self.step,
            "position": str(self.position),
            "stage": self._stage,
            "values": self.values,
            "diverged": self.diverged,
            "bounds": self._bounds,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, in a run made with the same arguments."""
        while self._stage < state["stage"]:
            self._enter(self._stage + 1)
        self.learner.load_state_dict(state["learner"])
        self.position = Fraction(state["position"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.values, self.diverged = state["values"], state["diverged"]
        self._bounds = state["bounds"]


def _learner(task: Task, seeds: Sequence[int], device: torch.device, setup: Setup) -> Learner:
    if setup.fast and device.type == "cuda":
        from rootscale.lab.fast import fast_learner

        return fast_learner(task, seeds, device, micro=setup.micro, amp=setup.amp is not False)
    return Learner(task, seeds, device, micro=setup.micro, amp=bool(setup.amp))


def _probes(task: Task, most: int, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Fixed samples on which all runs of a task are measured."""
    probes = {}
    for split, data in (("train", task.train), ("test", task.test)):
        if data is not None:
            index = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:most]
            x, y = data[index]
            x, y = x.to(device), y.to(device)
            probes[split] = (x if task.prepare is None else task.prepare(x), y)
    return probes
