"""The check: will this run survive a change of batch size?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from rootscale.files import command_line, write_json
from rootscale.format import show
from rootscale.lab.provenance import environment
from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.sweep import Progress, sweep
from rootscale.lab.task import Task
from rootscale.lab.variant import Variant
from rootscale.noise import noise_cause
from rootscale.plan import Plan
from rootscale.rules import default_rule
from rootscale.trajectory import Trajectory, need_keys
from rootscale.verdict import FEWEST, Comparison, Verdict, compare, need_levels

__all__ = ["Arm", "Check", "arm_of", "check"]

#: What the verdict rests on, if nothing else is asked for.
LOSSES = ("train loss", "test loss")
#: Fewer steps than this after the change are too few for the averages of a run to follow an SDE.
FEW_STEPS = 100
#: BatchNorm's statistics of fewer samples are noisy enough to make another model of it.
BATCHNORM_SAMPLES = 32


@dataclass(frozen=True)
class Arm:
    """One way of running the task, and how it compares with the base.

    Args:
        label: such as ``B = 16``, ``B = 16, linear`` or ``SVAG ell = 2``; unique within a check.
        kind: ``base``, ``batch size`` or ``svag``.
        plan: the plan of this run.
        changes: from the base's plan, as `rootscale.changes.Changes.to_dict` gives them; None for the base.
        trajectory: of its replicas; ``meta`` has ``samples`` (the samples seen at each time) and ``seeds``.
        comparison: with the base; its verdict is None where there were too few seeds. None for the base itself.
        guards: warnings that the conversion gave.
        causes: why it is different, likeliest first.
    """

    label: str
    kind: str
    plan: Plan
    changes: Mapping[str, Any] | None
    trajectory: Trajectory
    comparison: Comparison | None = None
    guards: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """None for the base, and where there were too few seeds for one."""
        return None if self.comparison is None else self.comparison.verdict


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        task: its name.
        base: the run as it is.
        others: what it was compared with.
        switch_at: samples seen before the switch; 0 for runs from scratch.
        made: how: command, versions, hardware, seconds (of all runs, however often they were stopped).
        warm: the trajectory up to the switch, where there is one.
    """

    task: str
    base: Arm
    others: tuple[Arm, ...]
    switch_at: int
    made: Mapping[str, Any]
    warm: Trajectory | None = None

    @property
    def verdict(self) -> Verdict:
        """Different if any arm is, same if all are."""
        verdicts = {arm.verdict for arm in self.others}
        return "different" if "different" in verdicts else "same" if verdicts == {"same"} else "undecided"

    def __getitem__(self, label: str) -> Arm:
        """The arm of that label."""
        for arm in (self.base, *self.others):
            if arm.label == label:
                return arm
        labels = ", ".join(repr(arm.label) for arm in (self.base, *self.others))
        raise KeyError(f"no arm {label!r}; there are {labels}")

    def save(self, folder: str | Path) -> Path:
        """Write it to a folder: ``check.json`` and one ``.npz`` for each arm."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arms = []
        for i, arm in enumerate((self.base, *self.others)):
            arm.trajectory.save(folder / f"arm-{i}.npz")
            arms.append(
                {
                    "label": arm.label,
                    "kind": arm.kind,
                    "plan": arm.plan.to_dict(),
                    "changes": arm.changes,
                    "trajectory": f"arm-{i}.npz",
                    "comparison": None if arm.comparison is None else arm.comparison.to_dict(),
                    "guards": list(arm.guards),
                    "causes": list(arm.causes),
                    "verdict": arm.verdict,
                }
            )
        if self.warm is not None:
            self.warm.save(folder / "warm.npz")
        record = {
            "task": self.task,
            "verdict": self.verdict,
            "switch_at": self.switch_at,
            "warm": None if self.warm is None else "warm.npz",
            "arms": arms,
            "made": dict(self.made),
        }
        write_json(folder / "check.json", record, allow_nan=False)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Check:
        """Read what `save` wrote."""
        folder = Path(folder)
        try:
            record = json.loads((folder / "check.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{folder} holds no check.json; give the folder that `rootscale check --out FOLDER` wrote"
            ) from None
        except ValueError as error:
            raise ValueError(f"{folder / 'check.json'} is not a saved check: {error}") from None
        need_keys("a check", record, ("task", "switch_at", "warm", "arms", "made"))
        if not isinstance(record["arms"], list) or not record["arms"]:
            raise ValueError("'arms' of a check must be a list, with the base first")
        arms = [_read_arm(folder, arm) for arm in record["arms"]]
        warm = None if record["warm"] is None else Trajectory.load(folder / record["warm"])
        return cls(record["task"], arms[0], tuple(arms[1:]), record["switch_at"], record["made"], warm)


def _read_arm(folder: Path, arm: Any) -> Arm:
    """Read an arm of ``check.json`` and its trajectory."""
    keys = ("label", "kind", "plan", "changes", "trajectory", "comparison", "guards", "causes")
    need_keys("an arm of a check", arm, keys)
    return Arm(
        label=arm["label"],
        kind=arm["kind"],
        plan=Plan.from_dict(arm["plan"]),
        changes=arm["changes"],
        trajectory=Trajectory.load(folder / arm["trajectory"]),
        comparison=None if arm["comparison"] is None else Comparison.from_dict(arm["comparison"]),
        guards=tuple(arm["guards"]),
        causes=tuple(arm["causes"]),
    )


def check(
    task: Task,
    kappas: Sequence[float | Fraction] = (),
    rule: str | Sequence[str | None] | None = None,
    ells: Sequence[float] = (),
    seeds: int | Sequence[int] = 16,
    switch_at: int = 0,
    *,
    variants: Sequence[Variant] = (),
    stop: int | None = None,
    points: int = 40,
    functions: Sequence[str] | None = None,
    tolerance: float = 0.05,
    level: float = 0.95,
    folder: str | Path | None = None,
    together: int = 16,
    workers: int | None = None,
    engine: str = "processes",
    address: str | None = None,
    gpus: float = 0.0,
    tensorboard: bool = False,
    on_progress: Progress | None = None,
    command: str | None = None,
    **settings: Any,
) -> Check:
    """Run a task as it is and at other batch sizes, and say whether the trajectories are the same.

    Args:
        task: what is learned.
        kappas: batch sizes over the plan's.
        rule: by which the run is converted; several are each tried at each batch size. None is the optimizer's own.
        ells: of SVAG, at the plan's batch size.
        seeds: how many replicas of each run, or their seeds.
        switch_at: samples seen before the switch in mid-run; 0 compares runs from scratch.
        variants: anything else to compare.
        stop: samples seen at the end; None is the whole plan.
        points: of the time grid.
        functions: test functions on which the verdict rests; None is the losses. All others are compared as well, but
            for the noise scale, and shown with verdicts of their own.
        tolerance: share of the range of the base's mean curve that counts as the same.
        level: of the confidence bands.
        folder: where runs and result are kept, so that a check that was stopped goes on; None keeps nothing.
        together: seeds in one program.
        workers, engine, address, gpus: as for `rootscale.lab.sweep`.
        tensorboard: write event files too.
        on_progress: as for `rootscale.lab.sweep`.
        command: what to record as the command that made it.
        **settings: fields of `rootscale.lab.Measure` and `rootscale.lab.Setup`, such as ``device`` and ``replacement``.
    """
    rules = [rule] if rule is None or isinstance(rule, str) else list(rule)
    tried = [Variant(Fraction(kappa), one) for kappa in kappas for one in rules]
    tried += [Variant(ell=ell) for ell in ells]
    tried += [variant for variant in variants if variant not in tried]
    tried = [variant for variant in tried if variant != Variant()]
    if not tried:
        raise ValueError("nothing to compare: give kappas, ells or variants that differ from the plan itself")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if len(numbers) < FEWEST:
        raise ValueError(f"at least {FEWEST} seeds are needed for a verdict, got {len(numbers)}")
    _check_words(task, tried, functions, tolerance, level)
    sizes = [int(Fraction(task.plan.batch_size.total) * kappa) for v in (Variant(), *tried) for kappa in v.kappas]
    size = sizes[0]
    total = task.plan.samples
    assert total is not None
    stop = int(total) if stop is None else stop
    if not 0 < stop <= total:
        raise ValueError(f"stop must lie in the run of {show(total)} samples, got {stop}")
    if not 0 <= switch_at < stop:
        raise ValueError(f"switch_at must lie in the run of {stop} samples, got {switch_at}")
    switch_at = switch_at // size * size
    names = Measure.__dataclass_fields__
    measure = Measure(points, **{key: value for key, value in settings.items() if key in names})
    setup = Setup(**{key: value for key, value in settings.items() if key not in names})
    common = Settings(grid(stop, points, switch_at, sizes), switch_at, measure, setup)
    for variant in tried:  # says what is not possible before anything is run
        variant.plans(task.plan)
    runs = None if folder is None else Path(folder) / "runs"
    swept = sweep(
        task, [Variant(), *tried], numbers, common, runs,
        together=together, workers=workers, engine=engine, address=address, gpus=gpus, tensorboard=tensorboard,
        on_progress=on_progress,
    )  # fmt: skip
    all_runs = [*swept.trajectories.values(), *([] if swept.warm is None else [swept.warm])]
    base = swept.trajectories[Variant()]
    deciding = list(functions) if functions is not None else [name for name in base.names if name in LOSSES]
    arms = []
    for variant in tried:
        trajectory = swept.trajectories[variant]
        comparison = compare(base, trajectory, tolerance=tolerance, level=level, deciding=deciding)
        arm = arm_of(task, variant, trajectory)
        arm = replace(arm, comparison=comparison)
        if comparison.verdict == "different":
            causes = tuple(_causes(task, variant, arm, base, common))
            arm = replace(arm, causes=causes or tuple(_otherwise(variant, comparison)))
        arms.append(arm)
    made = {
        "command": command or command_line(Path(sys.argv[0]).name, sys.argv[1:]),
        **environment(common.setup.device),
        "seeds": numbers,
        "seconds": round(sum(float(one.meta["seconds"]) for one in all_runs), 1),
        "date": time.strftime("%Y-%m-%d"),
        "tolerance": tolerance,
        "level": level,
    }
    result = Check(task.name, arm_of(task, Variant(), base), tuple(arms), switch_at, made, swept.warm)
    if folder is not None:
        result.save(folder)
    return result


def _check_words(
    task: Task, tried: Sequence[Variant], functions: Sequence[str] | None, tolerance: float, level: float
) -> None:
    """Refuse what would be refused after all runs have been made."""
    need_levels(tolerance, level)
    splits = ("train",) if task.test is None else ("train", "test")
    known = [f"{split} {name}" for split in splits for name in ("loss", *task.metrics)]
    known += ["gradient norm", "Tr Sigma", "parameter norm", *task.functions]
    for name in functions or ():
        if name not in known:
            raise ValueError(f"the verdict cannot rest on {name!r}; there are {', '.join(map(repr, known))}")
    labels = [variant.label(task.plan) for variant in (Variant(), *tried)]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two runs are called {label!r}: give one of the variants a name, Variant(..., name=...)")


def arm_of(task: Task, variant: Variant, trajectory: Trajectory) -> Arm:
    """The arm of a variant, not yet compared."""
    plan = variant.plan(task.plan)
    kind = "base" if variant == Variant() else "svag" if variant.ell != 1 else "batch size"
    changes = None
    if kind == "batch size":
        changes = task.plan.explain(plan.batch_size, variant.the_rule(task.plan)).to_dict()
    guards = dict.fromkeys([*variant.guards(task.plan), *trajectory.meta.get("guards", ())])
    return Arm(variant.label(task.plan), kind, plan, changes, trajectory, guards=tuple(guards))


def _causes(task: Task, variant: Variant, arm: Arm, base: Trajectory, settings: Settings) -> Iterator[str]:
    """Why an arm is different, likeliest first."""
    own = default_rule(task.plan.optimizer.name)
    rule = variant.the_rule(task.plan)
    if variant.ell == 1 and rule.name != own.name:
        left = [
            key
            for key, unit in own.units.items()
            if key in _used(task.plan, settings) and rule.units.get(key) != unit and unit.form.text != "x"
        ]
        if left:
            yield f"rule {rule.name!r} does not convert {', '.join(left)} as {own.name!r} does"
    lost = [place for place in arm.trajectory.meta["diverged_at"] if place is not None]
    if lost:
        yield f"{len(lost)} of {arm.trajectory.replicas} runs diverged, the first after {show(min(lost))} samples"
    gone = sum(place is not None for place in base.meta["diverged_at"])
    if gone:
        yield f"{gone} of {base.replicas} runs of the base diverged"
    size = int(arm.plan.batch_size.total)
    yield from noise_cause(base, size, settings.measure.noise_samples)
    yield from arm.guards if variant.ell == 1 and rule.name == own.name else ()
    steps = arm.trajectory.meta["steps"]
    if steps < FEW_STEPS:
        yield f"only {steps} steps are left after the change: too few for the SDE to describe them"
    model = task.model()
    normalised = any("BatchNorm" in type(module).__name__ for module in model.modules())
    smallest = min(size, int(task.plan.batch_size.total))
    if normalised and smallest < BATCHNORM_SAMPLES and variant.kappa != 1:
        yield (
            f"BatchNorm normalises with the statistics of the batch: those of {smallest} samples make another model "
            f"than those of {max(size, int(task.plan.batch_size.total))}, whatever the hyperparameters"
        )


def _otherwise(variant: Variant, comparison: Comparison) -> Iterator[str]:
    """What is left where no cause is seen: the step is too long, and how long it may be."""
    largest, kappa = max(abs(gap.largest.gap) for gap in comparison.decisive), float(max(variant.kappas))
    if kappa > 1 and largest > comparison.tolerance:
        safe = 1 + (kappa - 1) * comparison.tolerance / largest
        yield (
            "none of the known causes is seen: the steps may be too large for the curvature of the loss; the error of "
            f"a discretisation grows as kappa - 1, so kappa = {show(float(f'{safe:.2g}'))} may be within the tolerance"
        )


def _used(plan: Plan, settings: Settings) -> set[str]:
    """Rows of the table that matter for this plan."""
    used = {"eta", "beta1", "beta2", "eps"}
    used |= {"v", "step_counter"} if settings.switch_at else set()
    used |= {"warmup"} if plan.schedule.warmup else set()
    used |= {"ema"} if plan.ema is not None else set()
    used |= {"clip"} if plan.clip is not None else set()
    used |= {"batchnorm"} if plan.batchnorm_momentum is not None else set()
    used |= (
        {"decoupled_decay"}
        if plan.optimizer.name == "adamw" and getattr(plan.optimizer, "weight_decay", False)
        else set()
    )
    return used
