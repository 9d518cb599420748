"""A study: labelled arms that are run (or read from logs), judged against a base, and kept as one table.

`rootscale.lab.check`, `rootscale.lab.compare`, the search for the largest batch, the demo and every experiment are
studies. An arm is a `Task`, a training `Loop` of the user's own, or runs that were logged elsewhere; what it differs by
is in its fields, and nothing is read back from labels.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rootscale._version import __version__
from rootscale.compare.alignment import Alignment
from rootscale.compare.comparison import Logged, logged
from rootscale.compare.result import Result, Table
from rootscale.lab.execute import Execute, default_executor, limited
from rootscale.lab.group import Spec, joined
from rootscale.lab.jobs import make, start_of, store_or_temporary
from rootscale.lab.loop import Loop
from rootscale.lab.loop_runs import LoopSpec
from rootscale.lab.observe import Observer
from rootscale.lab.provenance import environment
from rootscale.lab.rounds import Rounds
from rootscale.lab.settings import Settings
from rootscale.lab.stopping import Deadline, UnfinishedError
from rootscale.lab.store import Store, as_store
from rootscale.lab.task import Task
from rootscale.lab.task_runs import TaskSpec
from rootscale.lab.variant import Variant
from rootscale.noise import NOISE_SCALE
from rootscale.plan import Plan
from rootscale.stats import student_quantile
from rootscale.verdict import FEWEST, Judge

if TYPE_CHECKING:
    from rootscale.compare.log import Log
    from rootscale.trajectory import Trajectory

_SETTINGS, _ALIGNMENT, _JUDGE = Settings((0, 1)), Alignment(), Judge()
#: Of logs, which were made elsewhere, only what read them is known.
_VERSIONS = {"rootscale": __version__, "numpy": np.__version__}
#: The column of a log that holds the noise scale, and that of the lower end of its interval (`rootscale.tracking`).
_SCALE, _LOW = "noise_scale", "noise_scale_low"


@dataclass(frozen=True, eq=False)
class Arm:
    """One way of training.

    Args:
        label: of the arm, unique in its study: for legends and messages only.
        run: a `Task`, a `Loop`, or the logs of runs that were made elsewhere.
        variant: how it differs from the plan of the task or loop.
        factors: further fields by which arms differ, such as the optimizer or a recipe; those of the variant (rule,
            kappa, ell) need not be given.
        settings: where they are others than the study's.
    """

    label: str
    run: Task | Loop | Sequence[Log]
    variant: Variant = Variant()
    factors: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings | None = None

    @property
    def subject(self) -> Task | Loop | None:
        """What is trained; None for logs."""
        return self.run if isinstance(self.run, Task | Loop) else None

    @property
    def batch_size(self) -> Fraction | None:
        """Of the run, at its end; None for logs, and for SVAG, whose batch size is nominal."""
        subject = self.subject
        if subject is None or self.variant.ell != 1:
            return None
        size = subject.batch_size if isinstance(subject, Loop) else subject.plan.batch_size.total
        return Fraction(size) * self.variant.kappas[-1]

    @property
    def fields(self) -> dict[str, Any]:
        """All fields by which the arm differs."""
        return {**self.variant.factors, **self.factors}


@dataclass(frozen=True, eq=False)
class Study:
    """Arms, compared with the first of them.

    Args:
        name: of the study, and of its folder.
        arms: the base first. All of them are tasks, or all loops, or all logs.
        claim: what is asked, in a sentence.
        seeds: how many runs of each arm, or their seeds; ``"auto"`` adds seeds until all verdicts are decided.
        settings: of tasks: what is measured when, and how they are trained.
        alignment: of the logs of loops, or of logs.
        judge: what makes arms the same.
        checkpoint: from which the runs of loops start, in which ``{seed}`` stands for the seed.
        paired: whether logs share seeds in the order in which they are given.
        keeps: the test functions that the table holds, in single precision; all in full, where empty.
        keep_models: whether the trained models are stored with the runs, for studies that go on from them.
        about: further facts for the record, in JSON's types.
        stored: a table of earlier runs of these arms, which are not made again; `completing` checks that they are.
    """

    name: str
    arms: Sequence[Arm]
    claim: str = ""
    seeds: int | Sequence[int] | Literal["auto"] = "auto"
    settings: Settings = _SETTINGS
    alignment: Alignment = _ALIGNMENT
    judge: Judge = _JUDGE
    checkpoint: str | None = None
    paired: bool = False
    keeps: Sequence[str] = ()
    keep_models: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    stored: Table | None = None

    def __post_init__(self) -> None:
        for arm in self.arms:
            if isinstance(arm.run, Loop) and (arm.variant.ell != 1 or arm.variant.ramp or arm.variant.zero_state):
                raise ValueError(
                    "a variant with SVAG, a ramp or a zeroed state is for a Task: a loop of your own is run at other "
                    "batch sizes and by other rules"
                )
        labels = [arm.label for arm in self.arms]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(
                    f"two arms are called {label!r}: give one of them another label (of a variant, name=...)"
                )
        if len({type(arm.subject) for arm in self.arms}) > 1:
            raise ValueError("all arms of a study must be tasks, or all loops, or all logs")
        if self.judge.against and self.judge.against not in labels:
            raise ValueError(f"the judge compares with {self.judge.against!r}; the arms are {', '.join(labels)}")

    @property
    def base(self) -> Arm:
        """The arm that the others are compared with."""
        return self.arms[0]

    @cached_property
    def specs(self) -> Mapping[str, Spec]:
        """What is run, by label; nothing for logs."""
        return {arm.label: self._spec(arm) for arm in self.arms if arm.subject is not None}

    def _spec(self, arm: Arm) -> Spec:
        if isinstance(arm.run, Loop):
            return LoopSpec(arm.run, arm.variant, self.checkpoint)
        assert isinstance(arm.run, Task)
        return TaskSpec(arm.run, arm.variant, arm.settings or self.settings)

    def with_options(
        self, seeds: int | Sequence[int] | Literal["auto"] | None = None, device: str | None = None, small: bool = False
    ) -> Study:
        """Return the study with other seeds or on another device; or a small one, for a try: the first points alone."""
        study = self if seeds is None else replace(self, seeds=seeds)
        if device is not None:
            study = study._with_settings(lambda one: replace(one, setup=replace(one.setup, device=device)))
        if small:
            study = study._with_settings(_shortened)
            study = study if seeds is not None else replace(study, seeds=FEWEST)
        return study

    def _with_settings(self, change: Callable[[Settings], Settings]) -> Study:
        arms = [arm if arm.settings is None else replace(arm, settings=change(arm.settings)) for arm in self.arms]
        return replace(self, arms=arms, settings=change(self.settings))

    # -- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        store: Store | str | Path | None = None,
        execute: Execute | None = None,
        observe: Observer | None = None,
        budget: float | None = None,
    ) -> Table:
        """Make what is missing, judge it, and store the table; a study that was stopped is resumed.

        Args:
            store: the folder of the table, or a `Store`; the runs are in ``runs`` below it. None keeps nothing.
            execute: what runs them, a process for each core, or this process where a GPU computes, where None.
            observe: callbacks for progress and measurements.
            budget: seconds after which no more seeds are added.
        """
        rounds, watch = Rounds.of(self.seeds, budget), observe or Observer()
        self.refuse(rounds.first)
        with store_or_temporary(as_store(store)) as given:
            place = replace(given, keep_models=given.keep_models or self.keep_models)

            def compared(some: Sequence[Arm], seeds: Sequence[int], within: Deadline) -> tuple[Table, list[Result]]:
                table = self.look(some, seeds, place, execute, watch, within)
                return table, list(table.others)

            table, results = rounds.run(self.arms[1:], compared, watch.note)
            table = replace(table, others=tuple(results))
            table = replace(table, made={**table.made, **_spent(table), "reused": place.reuse()})
            table.save(place.folder)
        return table

    def look(
        self, arms: Sequence[Arm], seeds: Sequence[int], store: Store, execute: Execute | None = None,
        observe: Observer | None = None, within: Deadline = Deadline(),  # noqa: B008 (frozen)
    ) -> Table:  # fmt: skip
        """Return the table of the base and some arms at some seeds, whose runs are made where they are missing."""
        used = [self.base, *arms]
        self.make(used, seeds, store, execute, observe, within)
        return self.table(used, seeds, _runs(store), store.made_by)

    def make(
        self, arms: Sequence[Arm], seeds: Sequence[int], store: Store, execute: Execute | None = None,
        observe: Observer | None = None, within: Deadline = Deadline(),  # noqa: B008 (frozen)
    ) -> None:  # fmt: skip
        """Make the runs of some arms that are missing.

        Raises:
            UnfinishedError: the deadline passed; the same call resumes the runs, and `collect` returns what there is.
        """
        specs = {arm.label: self.specs[arm.label] for arm in arms if arm.subject is not None}
        done = {spec: self._stored_seeds(label) for label, spec in specs.items()}
        execute = limited(execute or default_executor(self.settings.setup.device), within)
        make(list(specs.values()), seeds, _runs(store), execute, observe or Observer(), done)

    def collect(self, store: Store | str | Path) -> Table:
        """Return the table of all runs that are finished, and store it; ``made["missing"]`` names those that are not.

        Raises:
            UnfinishedError: no run of the base is finished, so there is nothing to compare with.
        """
        place, seeds = as_store(store), Rounds.of(self.seeds).first
        assert place is not None
        finished = {arm.label: self._finished(arm, seeds, _runs(place)) for arm in self.arms}
        if not finished[self.base.label]:
            raise UnfinishedError(f"no run of the base, {self.base.label}, is finished: the same command resumes it")
        left = {arm.label: [seed for seed in seeds if seed not in finished[arm.label]] for arm in self.arms}
        missing = [f"{label}, seeds {', '.join(map(str, some))}" for label, some in left.items() if some]
        arms = [arm for arm in self.arms if finished[arm.label]]
        table = self.table(arms, seeds, _runs(place), place.made_by)
        made = {**table.made, **_spent(table), "reused": place.reuse()}
        table = replace(table, made={**made, **({"missing": missing} if missing else {})})
        table.save(place.folder)
        return table

    def all_stored(self, store: Store) -> Study:
        """Return the study with the seeds of which a store holds runs, whatever was asked for when they were made."""
        runs = _runs(store)
        seeds = {seed for arm in self.arms if arm.subject is not None for seed in runs.seeds_of(self.specs[arm.label])}
        return replace(self, seeds=sorted(seeds))

    def completing(self, table: Table) -> Study:
        """Return the study with the runs of a stored table, of which only those that it lacks are made.

        Raises:
            ValueError: the table has runs that this study would make otherwise, or does not have.
        """
        arms = {arm.label: arm for arm in self.arms if isinstance(arm.run, Task)}
        for result in (table.base, *table.others):
            arm = arms.get(result.label)
            if arm is None or _identity(result.trajectory) != self._identity(arm):
                raise ValueError(
                    f"the stored table has runs named {result.label!r}, which this study makes in another way or not "
                    "at all: they cannot be completed. Give another folder, or the options they were made with"
                )
        return replace(self, stored=table)

    def _identity(self, arm: Arm) -> dict[str, Any]:
        """Return what decides the runs of an arm, as their record has it."""
        spec = self.specs[arm.label]
        assert isinstance(spec, TaskSpec)
        made = {"task": spec.task.name, "samples": spec.settings.grid, "switch_at": spec.settings.switch_at}
        plan = spec.task.plan
        return _as_json({**made, **_conversion(spec.variant, plan), "plan": spec.variant.plan(plan).to_dict()})

    def _stored(self, label: str) -> Trajectory | None:
        """Return the stored runs of an arm."""
        results = () if self.stored is None else (self.stored.base, *self.stored.others)
        return next((result.trajectory for result in results if result.label == label), None)

    def _stored_seeds(self, label: str) -> list[int]:
        runs = self._stored(label)
        return [] if runs is None else list(runs.meta["seeds"])

    def _finished(self, arm: Arm, seeds: Sequence[int], runs: Store) -> list[int]:
        """Return the seeds of an arm that are stored or finished."""
        there = self._stored_seeds(arm.label)
        want = runs.want(self.specs[arm.label], [seed for seed in seeds if seed not in there])
        return [*there, *runs.locate(want)]

    def _trajectory(self, arm: Arm, seeds: Sequence[int], runs: Store) -> Trajectory:
        """Return all runs of an arm that are stored or finished."""
        found, there = self._stored(arm.label), self._stored_seeds(arm.label)
        parts = [] if found is None else [found]
        want = runs.want(self.specs[arm.label], [seed for seed in seeds if seed not in there])
        done = runs.locate(want)
        if done:
            parts.append(runs.trajectory(replace(want, seeds=tuple(seed for seed in want.seeds if seed in done))))
        parts = [only(part, self.keeps) for part in parts]
        return parts[0] if len(parts) == 1 else joined(parts)

    def table(self, arms: Sequence[Arm], seeds: Sequence[int], runs: Store, command: str = "") -> Table:
        """Return the table of arms whose runs are finished, the base first."""
        found, read = self._read(arms, seeds, runs)
        results = [self.result(arm, one, runs, seeds) for arm, one in zip(arms, found, strict=True)]
        labels = [arm.label for arm in arms]
        beside = found[labels.index(self.judge.against)] if self.judge.against in labels else found[0]
        others = [
            self.judged(arm, result, beside, read, side)
            for side, (arm, result) in enumerate(zip(arms[1:], results[1:], strict=True), 1)
        ]
        made = {
            **({"command": command} if command else {}),
            **(environment(self.settings.setup.device) if self.base.subject is not None else {"versions": _VERSIONS}),
            **({"seeds": list(seeds)} if seeds else {}),
            "date": time.strftime("%Y-%m-%d"),
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
            **({"claim": self.claim} if self.claim else {}),
            **self.about,
            **({"notes": list(read.notes)} if read is not None else {}),
        }
        switch, warm = 0, None
        if isinstance(self.base.run, Task):
            switch, warm = self.settings.switch_at, self._warm(labels, seeds, runs)
        return Table(self.name, results[0], tuple(others), switch, made, warm, self.judge)

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, arms: Sequence[Arm], seeds: Sequence[int], runs: Store) -> tuple[list[Trajectory], Logged | None]:
        """Return the trajectories of arms; of logs, how they were read too."""
        if isinstance(self.base.run, Task):
            found = [self._trajectory(arm, seeds, runs) for arm in arms]
            return [found[0], *(on_the_clock(found[0], one) for one in found[1:])], None
        logs = [self.logs(arm, seeds, runs) for arm in arms]
        read = logged([arm.label for arm in arms], logs, self)
        base, *others = read.trajectories
        return [with_noise(base, logs[0]) if self.base.subject is not None else base, *others], read

    def _warm(self, labels: Sequence[str], seeds: Sequence[int], runs: Store) -> Trajectory | None:
        """Return the runs up to the switch, where there is one."""
        stored = None if self.stored is None else self.stored.warm
        there = [] if stored is None else list(stored.meta["seeds"])
        left = [seed for seed in seeds if seed not in there]
        made = start_of([self.specs[label] for label in labels], left, runs)
        parts = [only(part, self.keeps) for part in (stored, made) if part is not None]
        return joined(parts) if len(parts) > 1 else parts[0] if parts else None

    def logs(self, arm: Arm, seeds: Sequence[int], runs: Store) -> list[Log]:
        """Return what the runs of an arm logged."""
        if isinstance(arm.run, Task | Loop):
            spec = self.specs[arm.label]
            assert isinstance(spec, LoopSpec)
            finished = runs.locate(runs.want(spec, seeds))
            return list(spec.logs(runs, [seed for seed in seeds if seed in finished]).values())
        return list(arm.run)

    def result(self, arm: Arm, trajectory: Trajectory, runs: Store, seeds: Sequence[int]) -> Result:
        """Return what an arm gave, not yet compared: with its plan and what was changed in it, where it has one."""
        subject, variant, base = arm.subject, arm.variant, arm is self.base
        kind = "base" if base else "log" if subject is None else "svag" if variant.ell != 1 else "batch size"
        guards: list[str] = list(trajectory.meta.get("guards", ()))
        if arm.label in self.specs:
            guards += self.specs[arm.label].warnings(runs, seeds)
        if subject is None or subject.plan is None:
            kind = "base" if base else "log"
            return Result(arm.label, kind, None, None, trajectory, None, tuple(guards), (), arm.fields)
        plan = variant.plan(subject.plan)
        changes = None
        if kind == "batch size":
            changes = subject.plan.explain(plan.batch_size, variant.the_rule(subject.plan)).to_dict()
        warned = tuple(dict.fromkeys([*(() if base else variant.guards(subject.plan)), *guards]))
        return Result(arm.label, kind, plan, changes, trajectory, None, warned, (), arm.fields)

    def judged(
        self, arm: Arm, result: Result, base: Trajectory, read: Logged | None = None, side: int = 1,
        whole: Trajectory | None = None,
    ) -> Result:  # fmt: skip
        """Return what an arm gave with its comparison, and the causes where it is different.

        Args:
            arm, result: which.
            base: the runs that it is compared with.
            read: how they were read, where they are logs.
            side: the number of the arm in there.
            whole: the base to its end, where ``base`` is the first part of its runs.
        """
        judge = self.judge
        if read is not None:
            judge = replace(judge, decide_by=judge.decide_by or base.names)
        comparison = judge.compare(base, result.trajectory, whole=whole)
        result = replace(result, comparison=comparison if read is None else read.concluded(comparison, side))
        if comparison.verdict == "different" and arm.label in self.specs:
            result = replace(result, causes=self.specs[arm.label].causes(result, base))
        return result

    # -- mistakes -----------------------------------------------------------------------------------------------

    def refuse(self, seeds: Sequence[int]) -> None:
        """Refuse, before anything is run, what would be refused after all runs have been made."""
        for spec in self.specs.values():
            spec.refuse(seeds, self.judge.decide_by or ())


def _runs(store: Store) -> Store:
    """Return the store of the runs of a study."""
    return replace(store, folder=store.folder / "runs")


def _identity(runs: Trajectory) -> dict[str, Any]:
    """Return what decided stored runs; a field that plans did not have then has its default."""
    meta = runs.meta
    found = {name: meta[name] for name in ("task", "samples", "switch_at")}
    variant, base, plan = (
        Variant.from_dict(meta["variant"]),
        Plan.from_dict(meta["base_plan"]),
        Plan.from_dict(meta["plan"]),
    )
    return _as_json({**found, **_conversion(variant, base), "plan": plan.to_dict()})


def _conversion(variant: Variant, plan: Plan) -> dict[str, Any]:
    """Return what a variant makes of a plan: not the text of its rule, which has synonyms, but what it converts."""
    record = {name: value for name, value in variant.to_dict().items() if name != "rule"}
    rows = sorted(variant.the_rule(plan).units) if set(variant.kappas) != {1} else []
    return {**record, "base_plan": plan.to_dict(), "rows": rows}


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are when they have been written and read, to twelve digits."""
    found: dict[str, Any] = json.loads(json.dumps(values), parse_float=lambda text: float(f"{float(text):.12g}"))
    return found


def _shortened(settings: Settings) -> Settings:
    """Return settings with the first points alone, measured on few samples."""
    few = replace(settings.measure, eval_samples=64, noise_samples=64)
    return replace(settings, grid=settings.grid[:4], measure=few)


def need_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that are too few for a verdict."""
    if len(seeds) < FEWEST or len(set(seeds)) < len(seeds):
        raise ValueError(f"at least {FEWEST} different seeds are needed for a verdict, got {list(seeds)}")


def only(trajectory: Trajectory, names: Sequence[str]) -> Trajectory:
    """Return some of the test functions of a trajectory, in single precision; all of it, where none is named."""
    if not names:
        return trajectory
    values = {
        name: trajectory.values[name].astype(np.float32).astype(np.float64)
        for name in names
        if name in trajectory.values
    }
    return replace(trajectory, values=values)


def on_the_clock(base: Trajectory, other: Trajectory) -> Trajectory:
    """Return runs at the times of the base, where both were measured after the same samples.

    Another learning rate makes another continuous time of the same samples.
    """
    same = base.meta["samples"] == other.meta["samples"]
    return replace(other, times=base.times) if same else other


def with_noise(base: Trajectory, logs: Sequence[Log]) -> Trajectory:
    """Return the base with the noise scale that its runs logged first, with its interval, if they did.

    The lower end is the least of those that were logged; without any, Student's over the runs.
    """
    columns = [log.columns for log in logs]
    first = [float(one[_SCALE].values[0]) for one in columns if _SCALE in one and len(one[_SCALE])]
    first = [value for value in first if 0 < value < math.inf]
    if not first:
        return base
    lows = [float(one[_LOW].values[0]) for one in columns if _LOW in one and len(one[_LOW])]
    middle, spread = float(np.median(first)), 1.0
    if len(first) > 1:
        error = float(np.std(np.log(first), ddof=1)) / math.sqrt(len(first))
        spread = math.exp(student_quantile(len(first) - 1) * error)
    low = min(lows) if lows else middle / spread
    return replace(base, meta={**base.meta, NOISE_SCALE: [middle, max(0.0, low), middle * spread]})


def _spent(table: Table) -> dict[str, Any]:
    """Return the seconds of all runs, and the share of them that was measuring, as far as the runs say.

    Loops of the user's do not, and runs of older versions know no share.
    """
    results = (table.base, *table.others)
    known = [one.meta for one in (*(result.trajectory for result in results), table.warm) if one is not None]
    if not all("seconds" in meta for meta in known):
        return {}
    seconds = sum(float(meta["seconds"]) for meta in known)
    measuring = [float(meta["measuring"]) for meta in known if "measuring" in meta]
    share = round(sum(measuring) / seconds, 3) if seconds and len(measuring) == len(known) else None
    return {"seconds": round(seconds, 1), "measuring": share}
