"""Rules compared at a switch of the batch size, or from scratch: a base, its null, an arm for each rule and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rootscale import BatchSize, Plan, Schedule
from rootscale.format import percent
from rootscale.lab import Arm, Measure, Settings, Setup, Study, Table, Task, Variant, grid

__all__ = ["KEEPS", "Switch", "constant", "gaps_of"]

#: What tables hold of so many runs.
KEEPS = ("train loss", "test loss", "test accuracy", "noise scale")


@dataclass(frozen=True)
class Switch:
    """Runs that change their batch size on the way, by several rules.

    Args:
        sizes: batch sizes; the first is the base's.
        rules: texts of rules by name, given kappa; those that the optimizer has not at that kappa are left out.
        before: the share of the run before the switch; 0 compares from scratch.
        points: at which runs are measured.
        seeds: of each arm.
        judged: the test function whose gap is told.
        eval_samples: of each part of the data that are measured.
        noise: whether the noise is measured, which takes longer than the steps between two points.
        null_noise: whether it is measured along the null.
    """

    sizes: Sequence[int]
    rules: Callable[[int], Mapping[str, str]]
    before: Fraction = Fraction(0)
    points: int = 16
    seeds: int = 4
    judged: str = "train loss"
    eval_samples: int = 2048
    noise: bool = False
    null_noise: bool = False

    def study(self, name: str, claim: str, task: Task, device: str = "cpu", keeps: Sequence[str] = KEEPS) -> Study:
        """Return the batch kept, the same with other samples, and every rule at every batch size."""
        base, *larger = self.sizes
        total, largest = int(task.plan.samples or 0), self.sizes[-1]
        start = int(total * self.before) // largest * largest
        points = min(self.points, (total - start) // (2 * largest))
        measure = Measure(points, eval_samples=self.eval_samples, reestimate=True, noise=self.noise)
        cuda = device.startswith("cuda")
        setup = Setup(device, amp=cuda, fast=cuda)
        settings = Settings(grid(total, points, start, self.sizes), start, measure, setup)
        with_noise = replace(settings, measure=replace(measure, noise=True)) if self.null_noise else None
        null = Arm(f"B = {base:,}, other samples", task, Variant(other_samples=True), {"form": "null"}, with_noise)
        arms = [Arm(f"B = {base:,} kept", task), null]
        for size in larger:
            kappa = Fraction(size, base)
            place = f"{base:,} → {size:,}" if start else f"B = {size:,}"
            for form, variant in different(task, kappa, self.rules(int(kappa))).items():
                arms.append(Arm(f"{place}, {form}", task, variant, {"form": form}))
        return Study(name, arms, claim, self.seeds, settings, keeps=keeps, about={"judged": self.judged})


def different(task: Task, kappa: Fraction, rules: Mapping[str, str]) -> dict[str, Variant]:
    """Return the rules that exist at a kappa; of those that come to the same run, the first."""
    found: dict[Any, tuple[str, Variant]] = {}
    for name, text in rules.items():
        variant = Variant(kappa, text)
        try:
            optimizer = variant.plan(task.plan).optimizer
        except ValueError:  # the paper's form ends before this kappa
            continue
        rule = variant.the_rule(task.plan)
        weights = ({"beta1": getattr(record, "beta1", 0.0)} for record in (task.plan.optimizer, optimizer))
        key = optimizer, rule.factor("m", kappa, *weights), "v" in rule.units
        found.setdefault(key, (name, variant))
    return dict(found.values())


def constant(optimizer: Any, sizes: Sequence[int], epochs: Fraction | float, samples: int, warmup: int = 0) -> Plan:
    """Return a run at the smallest batch size, its learning rate constant.

    Args:
        optimizer: its hyperparameters.
        sizes: the length is a whole number of steps at the last of them.
        epochs: how long.
        samples: in the training data.
        warmup: steps of a linear warm-up.
    """
    total = int(epochs * samples) // sizes[-1] * sizes[-1]
    return Plan(optimizer, BatchSize(sizes[0]), steps=Fraction(total, sizes[0]), schedule=Schedule(warmup=warmup))


def gaps_of(table: Table) -> str:
    """Return the largest gap of the judged function for each form, at every batch size."""
    judged, parts = str(table.made["judged"]), dict[str, list[str]]()
    for arm in table.others:
        gap = None if arm.comparison is None else arm.comparison.gaps.get(judged)
        far = None if gap is None else gap.largest
        text = "diverged" if far is None or far.gap != far.gap else percent(far.gap, far.se)
        parts.setdefault(str(arm.factors.get("form", arm.label)), []).append(text)
    return "; ".join(f"{form} {' / '.join(texts)}" for form, texts in parts.items())
