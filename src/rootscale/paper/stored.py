"""What is kept of an experiment, and what is said of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.files import write_json
from rootscale.lab import Arm, Result, Settings, Store, Study, Table, Task, Variant
from rootscale.lab.group import joined, rows_of
from rootscale.lab.sweeps import Sweep
from rootscale.paper.experiment import Experiment, Line, Options
from rootscale.paper.finals import SEED_DEVIATION, Final, final_values
from rootscale.plan import Plan
from rootscale.trajectory import Trajectory
from rootscale.verdict import LOSSES, compare

__all__ = [
    "Kept",
    "compared",
    "deviation_of",
    "finals_of",
    "outcome",
    "record_of",
    "refuse_others",
    "store",
]


def refuse_others(out: Path, options: Options) -> None:
    """Refuse to write over results of other settings; more seeds are the same experiment."""
    place = out / "experiment.json"
    if not place.exists():
        return
    try:
        before = json.loads(place.read_text(encoding="utf-8"))["options"]
    except (ValueError, KeyError):
        raise ValueError(f"{place} is not the record of an experiment; give another --out") from None
    now, before = options.to_dict(), {**Options().to_dict(), **before}  # older records lack newer options
    differ = [f"{name} {before[name]}" for name in now if name != "seeds" and before[name] != now[name]]
    if differ:
        raise ValueError(
            f"{out} holds results of other settings ({', '.join(differ)}): give another --out, or remove that folder"
        )
    if before["seeds"] > now["seeds"]:
        raise ValueError(f"{out} holds results of {before['seeds']} seeds: ask for as many, or give another --out")


@dataclass(frozen=True)
class Kept:
    """The runs of an experiment that a folder of results holds already.

    Args:
        arms: their trajectories, by the label of their line.
        warm: those before a switch, if there is one.
    """

    arms: Mapping[str, Trajectory] = field(default_factory=dict)
    warm: Trajectory | None = None

    @classmethod
    def read(cls, out: Path) -> Kept:
        """Read them."""
        if not (out / "experiment.json").exists():
            return cls()
        check = Table.load(out)
        return cls({arm.label: arm.trajectory for arm in (check.base, *check.others)}, check.warm)

    @classmethod
    def of(cls, out: Path, lines: Sequence[Line], settings: Settings) -> Kept:
        """Read them; runs that the present lines would make otherwise are refused."""
        found, by_label = cls.read(out), {line.label: line for line in lines}
        for label, runs in found.arms.items():
            wanted = by_label.get(label)
            if wanted is None or _what(runs) != _wanted(wanted, wanted.settings(settings)):
                raise ValueError(
                    f"{out} holds runs named {label!r}, which this version makes in another way or not at all: they "
                    "cannot be completed; make all of them anew with another --out"
                )
        return found

    def seeds(self, line: Line) -> list[int]:
        """Return the seeds of a line that are there."""
        return list(self.arms[line.label].meta["seeds"]) if line.label in self.arms else []


def _what(runs: Trajectory) -> dict[str, Any]:
    """Return what decides stored runs; a field that plans did not have then has its default."""
    found = {name: runs.meta[name] for name in ("task", "variant", "base_plan", "samples", "switch_at")}
    return _as_json({**found, "base_plan": Plan.from_dict(found["base_plan"]).to_dict()})


def _wanted(line: Line, settings: Settings) -> dict[str, Any]:
    """Return the same of a line."""
    made = {"task": line.task.name, "variant": line.variant.to_dict(), "base_plan": line.task.plan.to_dict()}
    return _as_json({**made, "samples": settings.grid, "switch_at": settings.switch_at})


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are when they have been written and read."""
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def store(
    experiment: Experiment,
    options: Options,
    out: Path,
    lines: Sequence[Line],
    settings: Settings,
    found: Mapping[tuple[tuple[int, ...], str], Sweep],
    missing: Sequence[str],
    kept: Kept = Kept(),  # noqa: B008 (frozen)
) -> None:
    """Write what finished runs gave to a folder.

    Args:
        experiment, options: what was run.
        out: the folder.
        lines, settings: that `Experiment.lines` gave.
        found: the runs by seeds and label of their line.
        missing: the names of those that are not finished.
        kept: runs that the folder holds, which are stored again with them.
    """
    command = experiment.command(options)
    arms: list[Result] = []
    for line in lines:
        parts = [swept.trajectories[line.variant] for (_, label), swept in found.items() if label == line.label]
        if line.label in kept.arms:
            parts.insert(0, kept.arms[line.label])
        if parts:
            runs = _by_seed([only(part, experiment.keeps) for part in parts])
            if arms:
                runs = on_the_clock(arms[0].trajectory, runs)
            arms.append(replace(arm_of(line.task, line.variant, runs), label=line.label))
    arms = [arms[0], *(compared(arms[0], arm) for arm in arms[1:])]
    starts = {seeds: swept.warm for (seeds, _), swept in found.items() if swept.warm is not None}
    warm = [*([] if kept.warm is None else [kept.warm]), *starts.values()]
    trajectories = [
        *kept.arms.values(),
        *(one for swept in found.values() for one in swept.trajectories.values()),
        *warm,
    ]
    made = {
        "command": command,
        **_environment(trajectories),
        "seeds": list(range(options.seeds)),
        "seconds": round(sum(float(trajectory.meta["seconds"]) for trajectory in trajectories), 1),
        "date": time.strftime("%Y-%m-%d"),
    }
    before = _by_seed([only(part, experiment.keeps) for part in warm]) if warm else None
    Table(lines[0].task.name, arms[0], tuple(arms[1:]), settings.switch_at, made, before).save(out)
    record = {
        "name": experiment.name,
        "title": experiment.title,
        "claim": experiment.claim,
        "source": experiment.source,
        "options": options.to_dict(),
        "test_samples": min(settings.measure.eval_samples, len(lines[0].task.test)),
        "missing": list(missing),
        **made,
    }
    write_json(out / "experiment.json", record, indent=1, allow_nan=False)


def _by_seed(parts: Sequence[Trajectory]) -> Trajectory:
    """Return the replicas of all parts; of a seed that is there twice, the first."""
    seen, found = set[int](), list[Trajectory]()
    for part in parts:
        new = [place for place, seed in enumerate(part.meta["seeds"]) if seed not in seen]
        seen.update(part.meta["seeds"])
        if new:
            found.append(rows_of(part, new))
    return joined(found)


def only(trajectory: Trajectory, names: Sequence[str]) -> Trajectory:
    """Return some of the test functions of a trajectory, in single precision; all of it, where none is named."""
    if not names:
        return trajectory
    kept = {
        name: trajectory.values[name].astype(np.float32).astype(np.float64)
        for name in names
        if name in trajectory.values
    }
    return replace(trajectory, values=kept)


def on_the_clock(base: Trajectory, other: Trajectory) -> Trajectory:
    """Return runs at the times of the base, where both were measured after the same samples.

    Another learning rate makes another continuous time of the same samples.
    """
    same = base.meta["samples"] == other.meta["samples"]
    return replace(other, times=base.times) if same else other


def _environment(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Versions and hardware of the runs, which may have been made elsewhere than they are collected."""
    metas = [trajectory.meta for trajectory in trajectories]

    def all_of(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(values))

    versions = {name: all_of(meta["versions"][name] for meta in metas) for name in metas[0]["versions"]}
    return {"versions": versions, "hardware": all_of(meta["hardware"] for meta in metas)}


def compared(base: Result, arm: Result) -> Result:
    """Return the arm compared with the base; the verdict rests on the losses, as that of `rootscale check`."""
    deciding = [name for name in base.trajectory.names if name in LOSSES]
    return replace(arm, comparison=compare(base.trajectory, arm.trajectory, deciding=deciding))


def record_of(out: str | Path) -> dict[str, Any]:
    """What ``experiment.json`` in a folder of results says."""
    place = Path(out) / "experiment.json"
    try:
        record: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{out} holds no experiment.json; give a folder that `rootscale reproduce` wrote") from None
    except ValueError as error:
        raise ValueError(f"{place} is not the record of an experiment: {error}") from None
    return record


def finals_of(out: str | Path, check: Table | None = None) -> list[Final]:
    """The table of final values of a folder of results, from the trajectories in it; ``check`` if they were read."""
    check = check or Table.load(out)
    return final_values([check.base, *check.others], deviation_of(record_of(out)))


def deviation_of(record: Mapping[str, Any]) -> float | None:
    """Return the standard deviation over seeds of a final test accuracy; None where it was not measured."""
    return SEED_DEVIATION if record["name"].startswith("cifar10") and not record["options"]["smoke"] else None


def outcome(experiment: Experiment, out: str | Path) -> str:
    """What came out, in a sentence."""
    assert experiment.words is not None
    missing = len(record_of(out)["missing"])
    unfinished = f" (unfinished: {missing} {'runs are' if missing > 1 else 'run is'} missing)" if missing else ""
    return experiment.words(finals_of(out)) + unfinished


def arm_of(task: Task, variant: Variant, trajectory: Trajectory) -> Result:
    """Return what a variant of a task gave, not yet compared."""
    runs = Store(Path())
    study = Study(task.name, [Arm("base", task), Arm("other", task, variant)])
    return study.result(study.arms[variant != Variant()], trajectory, runs, ())
