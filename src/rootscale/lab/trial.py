"""One run of a task: R replicas at one batch size, from scratch or from a switch in mid-run, measured on a grid.

A run is a pure function of task, variant and seeds. Everything random is drawn from the seeds by position, so that a
run which is interrupted and resumed is the uninterrupted one, bit for bit on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rootscale.compare.divergence import Divergence
from rootscale.lab.learner import make_learner
from rootscale.lab.probes import STEP_LOSS, Probes
from rootscale.lab.provenance import environment
from rootscale.lab.spent import Spent
from rootscale.lab.stream import Stream
from rootscale.lab.variant import Variant
from rootscale.training.positions import generator
from rootscale.trajectory import Trajectory

if TYPE_CHECKING:
    from rootscale.lab.settings import Settings
    from rootscale.lab.task import Task
    from rootscale.plan import Plan


class _Stage(NamedTuple):
    """A part of a run with one batch size.

    Attributes:
        start: the samples seen where it begins.
        kappa: its batch size over the plan's.
        plan: the converted plan.
        batch: its batch size.
        pace: the samples of the simulated run in one step; the batch size, but for SVAG.
    """

    start: int
    kappa: Fraction
    plan: Plan
    batch: int
    pace: Fraction


class Trial:
    """A run under way.

    >>> from rootscale.lab import Settings
    >>> from rootscale.lab.tasks import digits
    >>> task = digits()
    >>> run = Trial(task, Variant(kappa=4), [0, 1], Settings(grid=(0, 320, 640)))
    >>> trajectory = run.finish()
    >>> trajectory.values["train loss"].shape
    (2, 3)

    Args:
        task: what is learned.
        variant: batch size, rule, SVAG.
        seeds: one for each replica; all are trained at once.
        settings: what is measured when, and how the run is trained.
        warm: for a switch in mid-run: the `state_dict` of a run of the base variant at the switch, of the same seeds.
            Without it, that part is run first.

    Attributes:
        step: steps taken since the switch.
        position: samples seen (of the run that SVAG simulates, where ``ell`` is not 1).
        spent: its seconds so far, and the memory that it takes.
        values: of each test function, one row of replicas for each point of the grid that has been measured.
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
            raise ValueError(f"device {settings.setup.device!r} is not there: torch sees no CUDA GPU; use cpu")
        self.guards = variant.guards(task.plan)
        self.start = _switch(task.plan, settings)
        self._stages = _stages(task.plan, variant, self.start)
        _check_grid(settings, self._stages, variant.label(task.plan))
        self.learner = make_learner(task, self.seeds, settings.setup)
        self.step, self.position, self.spent = 0, Fraction(self.start), Spent(device)
        self.values: dict[str, list[list[float]]] = {}
        self._divergence = Divergence(len(self.seeds), settings.setup.max_loss)
        self._dropout_seed = generator(self.seeds[0], 4).initial_seed() // 2
        lane = (variant.ell != 1) + 4 * variant.other_samples
        self._stream = Stream(len(task.train), self.seeds, settings.setup.replacement, lane, device)
        self._probes = Probes(task, settings.measure, device)
        if self.start and warm is None:
            warm = self._warm_up()
        if warm is not None:
            self._start_from(warm)
        self._stage, self.warnings = -1, dict.fromkeys(self.guards)
        self._enter(0)

    @property
    def plan(self) -> Plan:
        """Return the plan of the present stage."""
        return self._stages[self._stage].plan

    @property
    def diverged(self) -> list[int | None]:
        """Return, for each replica, the samples seen where it diverged, or None; see `Divergence`."""
        return self._divergence.places

    def _warm_up(self) -> dict[str, Any]:
        first = Trial(self.task, Variant(), self.seeds, replace(self.settings, grid=(0, self.start), switch_at=0))
        first.finish()
        return first.state_dict()

    def _start_from(self, warm: Mapping[str, Any]) -> None:
        """Continue a run of the base variant at the switch."""
        self.learner.load_state_dict(warm["learner"])
        self.learner.step_loss()  # of steps before the switch
        self._divergence.after(warm, self.start)

    def _enter(self, number: int) -> None:
        """Begin a stage: convert what trains."""
        stage, old = self._stages[number], Fraction(1) if self._stage < 0 else self._stages[self._stage].kappa
        self._stage = number
        micro, before = self.settings.setup.micro, stage.batch * old / stage.kappa
        forward_kappa = forward_samples(stage.batch, micro) / forward_samples(before, micro)
        ell = self.variant.ell if number == 0 else 1.0
        rule = self.variant.the_rule(self.task.plan)
        changes = self.learner.rescale(float(stage.kappa / old), rule, ell, float(forward_kappa))
        self.warnings |= dict.fromkeys(changes.warnings)
        if self.variant.zero_state:
            self.learner.zero_state()
        self.spent.begin_stage()

    # -- the loop -----------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Return whether the last point of the grid has been measured, or all replicas have diverged."""
        return self.measured == len(self.settings.grid) or (self.measured > 0 and self._divergence.everywhere)

    @property
    def progress(self) -> float:
        """Return the share of the run that has been made."""
        return 1.0 if self.done else float((self.position - self.start) / max(1, self.settings.grid[-1] - self.start))

    @property
    def measured(self) -> int:
        """Return how many points of the grid have been measured."""
        return len(next(iter(self.values.values()), []))

    def advance(self) -> None:
        """Measure where the grid has a point, or else take a step."""
        if self._due():
            with self.spent.measured():
                self._measure()
            return
        ended = self._stage + 1 < len(self._stages) and self.position >= self._stages[self._stage + 1].start
        with self.spent.stepped(first=ended):
            if ended:
                self._enter(self._stage + 1)
            self._train()

    def finish(self, on_progress: Callable[[float], object] | None = None) -> Trajectory:
        """Make all that is left of the run, and return its trajectory."""
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
        stage = self._stages[self._stage]
        eta = stage.plan.learning_rate(float(self.position / stage.pace))
        self._seed_dropout()
        self.learner.step(list(self._batches(stage)), eta, stage.plan.clip)
        self.step += 1
        self.position += stage.pace

    def _seed_dropout(self) -> None:
        seed = self._dropout_seed + self.step
        if (
            torch.device(self._stream.device).type == "cpu"
        ):  # torch.manual_seed would take a third of a small net's step
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _batches(self, stage: _Stage) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the sample numbers of the next step, and the uniforms of their augmentation, for each pass."""
        passes = self.learner.passes
        first = int(self.position) if passes == 1 else self.start + self.step * passes * stage.batch
        for start in range(first, first + passes * stage.batch, stage.batch):
            stop, draws = start + stage.batch, self.task.draws
            uniforms = self._stream.uniforms(start, stop, draws) if self.task.augment is not None else None
            yield self._stream.indices(start, stop), uniforms

    def _measure(self) -> None:
        self._seed_dropout()  # the noise is measured with dropout
        found = self._probes.values(self.learner)
        loss, of_steps = self._probes.train_mode_loss(self.learner), self.learner.step_loss()
        found[STEP_LOSS] = loss if of_steps is None else of_steps
        rows = {name: [float(v) for v in value.double().cpu()] for name, value in found.items()}
        place, last = self.settings.grid[self.measured], self.measured + 1 == len(self.settings.grid)
        self._divergence.watch(place, loss.tolist(), rows["parameter norm"], last)
        first = not self.measured
        for name, row in rows.items():
            if first or name in self.values:  # a run that an older version began has fewer test functions
                kept = [math.nan if lost is not None else v for v, lost in zip(row, self.diverged, strict=True)]
                self.values.setdefault(name, []).append(kept)

    # -- what comes out -----------------------------------------------------------------------------------------

    def trajectory(self) -> Trajectory:
        """Return the test functions so far; NaN from where a replica diverged."""
        eta, size = self.task.plan.optimizer.eta, float(self.task.plan.batch_size.total)
        length = len(self.settings.grid) if self._divergence.everywhere else self.measured
        places = np.array(self.settings.grid[:length])
        lost = np.array([places >= (math.inf if place is None else place) for place in self.diverged])
        values = {name: np.full((len(self.seeds), length), math.nan) for name in self.values}
        for name, rows in self.values.items():
            values[name][:, : self.measured] = np.array(rows).T
            values[name][lost] = math.nan
        return Trajectory(
            places * eta**2 / size,
            values,
            meta={
                "task": self.task.name,
                "variant": self.variant.to_dict(),
                "label": self.variant.label(self.task.plan),
                "plan": self.plan.to_dict(),
                "base_plan": self.task.plan.to_dict(),
                "samples": places.tolist(),
                "seeds": self.seeds,
                "switch_at": self.start,
                "diverged_at": list(self.diverged),
                "steps": self.step,
                "replacement": self.settings.setup.replacement,
                "guards": list(self.warnings),
                "seconds": round(self.spent.seconds, 3),
                "measuring": round(self.spent.measuring, 3),
                "runs": [{"seeds": self.seeds, "steps": self.step, **self.spent.to_dict()}],
                **environment(self.settings.setup.device),
            },
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to resume."""
        return {
            "learner": self.learner.state_dict(),
            "step": self.step,
            "position": str(self.position),
            "stage": self._stage,
            "values": self.values,
            **self.spent.state_dict(),
            **self._divergence.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume, in a run made with the same arguments."""
        while self._stage < state["stage"]:
            self._enter(self._stage + 1)
        self.learner.load_state_dict(state["learner"])
        self.position = Fraction(state["position"])
        self.step, self.values = state["step"], state["values"]
        self.spent.load_state_dict(state)
        self._divergence.load_state_dict(state)


def forward_samples(batch: Fraction | int, micro: int | None) -> Fraction:
    """Return the mean number of samples in one forward pass of a batch that is cut into parts of at most ``micro``.

    >>> forward_samples(4, 8), forward_samples(64, 8), forward_samples(16, 5)
    (Fraction(4, 1), Fraction(8, 1), Fraction(4, 1))
    """
    return Fraction(batch, 1 if micro is None else math.ceil(Fraction(batch) / micro))


def _switch(plan: Plan, settings: Settings) -> int:
    """Return the samples seen before the switch: whole steps of the base."""
    base = int(plan.batch_size.total)
    return settings.switch_at // base * base


def _stages(plan: Plan, variant: Variant, start: int) -> list[_Stage]:
    places = [start, *(at for at, _ in variant.ramp)]
    return [
        _Stage(place, kappa, new, int(new.batch_size.total), new.batch_size.total / Fraction(variant.ell) ** 2)
        for place, kappa, new in zip(places, variant.kappas, variant.plans(plan), strict=True)
    ]


def _check_grid(settings: Settings, stages: Sequence[_Stage], label: str) -> None:
    """Raise where the points of the grid lie before the switch, or closer to each other than steps."""
    start = stages[0].start
    first = min(*settings.grid, *(stage.start for stage in stages))
    if first < start:
        raise ValueError(f"grid and ramp must begin at the switch, {start} samples, got {first}")
    longest = max(stage.pace for stage in stages)
    if any(b - a < longest for a, b in pairwise(settings.grid)):
        raise ValueError(
            f"a step at {label} is longer than the distance of the grid's points: ask for fewer points "
            f"(at most {max(1, int((settings.grid[-1] - start) / longest))})"
        )
