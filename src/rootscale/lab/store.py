"""The folder of runs: what is stored is found again, also by another process, and in other groups of seeds.

    FOLDER/<what>-<digest>/seeds-0-15/run.json          what it is: task, plan, variant, seeds, fingerprint, versions
    FOLDER/<what>-<digest>/seeds-0-15/trajectory.npz    its test functions, when it is finished (a `Trajectory`)
    FOLDER/<what>-<digest>/seeds-0-15/trajectory.csv    the same, a row for each seed and time, for pandas
    FOLDER/<what>-<digest>/seeds-0-15/checkpoint.pt     while it is not; a warm start keeps its last one
    FOLDER/<what>-<digest>/seeds-0-15/model.pt          where models are kept: a state dict for each seed, or None

The digest is that of plan, variant and settings. Below it, every group of seeds that was trained in one program has a
folder of its own, and each seed is looked up in whatever group it is. A group is used only where its fingerprint
(`rootscale.lab.fingerprint`) is that of the present task; otherwise it stays as it is, and a new one is made beside it.
Several processes of a machine may work in one folder: a group is made by the one that holds the lock in it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rootscale.files import locked, remove_temporary, this_command
from rootscale.lab.fingerprint import Fingerprints, differences
from rootscale.lab.group import Group, Spec, Wanted, joined, rows_of, write_facts
from rootscale.lab.states import select
from rootscale.lab.stopping import Stop
from rootscale.trajectory import Trajectory

__all__ = ["BusyError", "Store", "as_store"]

#: Seconds between looks at a run that another process makes.
_WAIT = 0.1


class BusyError(RuntimeError):
    """Another process is making a run that was asked for."""


@dataclass(frozen=True)
class Store:
    """A folder of runs.

    Args:
        folder: where it is; it is made when the first run is.
        checkpoint_every: seconds between two checkpoints of a run.
        keep_models: whether the trained parameters of each seed are stored too, those of the average where the plan
            has an EMA. They are no part of what a run is: one that was finished without them is resumed from its last
            checkpoint if that is still there, and else made again.
        wait: whether to wait for a run that another process makes, and then read it; otherwise `BusyError` is raised.
            Warm starts are waited for in any case.
        command: what is recorded as the command that made the runs; None is that of this process.
        temporary: whether nobody will look for its runs again; they then need no fingerprint.
    """

    folder: Path
    checkpoint_every: float = 20.0
    keep_models: bool = False
    wait: bool = True
    command: str | None = None
    temporary: bool = False
    fingerprints: Fingerprints = field(default_factory=Fingerprints, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).absolute())  # a run may change where it is

    @property
    def made_by(self) -> str:
        """The command that is recorded."""
        return self.command or this_command()

    def want(self, spec: Spec, seeds: Sequence[int], with_state: bool = False) -> Wanted:
        """Return a description of runs by which they are looked up and made."""
        fingerprint = {} if self.temporary else self.fingerprints.of(spec.task, seeds, spec.start)
        return Wanted(spec, tuple(seeds), fingerprint, with_state)

    # -- finding ------------------------------------------------------------------------------------------------

    def groups(self, spec: Spec) -> list[Group]:
        """Return all groups of a spec, whatever task made them."""
        found = []
        for path in sorted((self.folder / spec.name).glob("*/run.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                found.append(Group(path.parent, tuple(record["seeds"]), record["fingerprint"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path} is damaged: {error!r}; remove its folder, and the run is made again"
                ) from None
        return found

    def matching(self, wanted: Wanted) -> list[Group]:
        """Return the groups that hold some of the seeds, as the present task computes them."""
        return [
            group
            for group in self.groups(wanted.spec)
            if set(group.seeds) & set(wanted.seeds) and not differences(wanted.fingerprint, group.fingerprint)
        ]

    def locate(self, wanted: Wanted) -> dict[int, tuple[Group, int]]:
        """Return the group and the place in it of every seed that is finished."""
        found: dict[int, tuple[Group, int]] = {}
        for group in self.matching(wanted):
            if group.complete(wanted.with_state, self.keep_models):
                for place, seed in enumerate(group.seeds):
                    if seed in wanted.seeds:
                        found.setdefault(seed, (group, place))
        return found

    def missing(self, wanted: Wanted) -> list[int]:
        """Return the seeds that are not finished."""
        found = self.locate(wanted)
        return [seed for seed in wanted.seeds if seed not in found]

    def outdated(self, wanted: Wanted) -> list[str]:
        """Return what the present task computes differently from the one that made the groups with these seeds."""
        found: dict[str, None] = {}
        for group in self.groups(wanted.spec):
            if set(group.seeds) & set(wanted.seeds):
                found |= dict.fromkeys(differences(wanted.fingerprint, group.fingerprint))
        return list(found) if found and not self.matching(wanted) else []

    # -- reading ------------------------------------------------------------------------------------------------

    def trajectory(self, wanted: Wanted) -> Trajectory:
        """Read the trajectories of all seeds, which must be finished, in their order."""
        found = self.locate(wanted)
        read = {group.place: group.trajectory() for group, _ in found.values()}
        parts: list[tuple[Group, list[int]]] = []
        for seed in wanted.seeds:
            group, place = found[seed]
            if parts and parts[-1][0] == group:
                parts[-1][1].append(place)
            else:
                parts.append((group, [place]))
        return joined([rows_of(read[group.place], places) for group, places in parts])

    def state(self, wanted: Wanted) -> Any:
        """Read the last states of all seeds, as a run starts from them."""
        found = self.locate(wanted)
        states = {group.place: group.state() for group, _ in found.values()}
        return select([(states[found[seed][0].place], found[seed][1]) for seed in wanted.seeds])

    def models(self, wanted: Wanted) -> dict[int, tuple[Path, int]]:
        """Return the file of the model of each seed and the place in its list; seeds that diverged have none."""
        found: dict[int, tuple[Path, int]] = {}
        for seed, (group, place) in self.locate(wanted).items():
            if group.trajectory().meta["diverged_at"][place] is None:
                found[seed] = (group.file("model.pt"), place)
        return found

    # -- making -------------------------------------------------------------------------------------------------

    def split(self, wanted: Wanted, most: int) -> list[tuple[int, ...]]:
        """Return the seeds that are missing in groups of at most ``most``; one that was stopped stays as it was.

        It does so even where only some of its seeds are wanted.
        """
        missing, found = self.missing(wanted), list[tuple[int, ...]]()
        for group in self.matching(wanted):
            part = set(group.seeds) & set(wanted.seeds)
            if part <= set(missing) and not group.complete(wanted.with_state, self.keep_models):
                found.append(group.seeds)
                missing = [seed for seed in missing if seed not in part]
        return [*found, *(tuple(missing[i : i + most]) for i in range(0, len(missing), most))]

    @contextmanager
    def claim(
        self, wanted: Wanted, facts: Mapping[str, Any], tell: Callable[[float], object], stop: Stop
    ) -> Iterator[Path | None]:
        """Hold the folder of a group while it is made; None where another process has finished it meanwhile."""
        shelf = self.folder / wanted.spec.name
        with ExitStack() as held:
            while True:
                with locked(shelf / ".lock", lambda: not stop.asked) as mine:
                    if not mine:
                        stop.end()
                    if not self.missing(wanted):
                        place = None
                        break
                    some = [g for g in self.matching(wanted) if not g.complete(wanted.with_state, self.keep_models)]
                    if not any(group.in_work() for group in some):
                        same = (group.place for group in some if group.seeds == wanted.seeds)
                        place = next(same, None) or _new_place(shelf, wanted.seeds)
                        held.enter_context(locked(place / ".lock"))
                        remove_temporary(place, all_processes=True)
                        write_facts(place, wanted, {**facts, "status": "running"})
                        break
                if not self.wait and not wanted.with_state:
                    raise BusyError(f"another process is making {wanted.spec.label} in {shelf}")
                tell(0.0)
                stop.end()
                time.sleep(_WAIT)
            yield place


def as_store(store: Store | str | Path | None) -> Store | None:
    """Return a store from what people give: a folder, or a `Store` itself."""
    return store if store is None or isinstance(store, Store) else Store(Path(store))


def _new_place(shelf: Path, seeds: Sequence[int]) -> Path:
    """Return a folder that no group has; to be called by who holds the shelf's lock."""
    text = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
    if list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        text += f"-{hashlib.sha256(repr(list(seeds)).encode()).hexdigest()[:6]}"
    number = 1
    while True:
        place = shelf / (f"seeds-{text}" + (f"-version-{number}" if number > 1 else ""))
        if not (place / "run.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            return place
        number += 1
