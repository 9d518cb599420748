"""The folder of runs: what is stored is found again, also by another process, and in other groups of seeds.

    FOLDER/<what>-<digest>/seeds-0-15/run.json          what it is: task, plan, variant, seeds, fingerprint, versions
    FOLDER/<what>-<digest>/seeds-0-15/trajectory.npz    its test functions, when it is finished (a `Trajectory`)
    FOLDER/<what>-<digest>/seeds-0-15/trajectory.csv    the same, a row for each seed and time, for pandas
    FOLDER/<what>-<digest>/seeds-0-15/checkpoint.pt     while it is not; a warm start keeps its last one
    FOLDER/<what>-<digest>/seeds-0-15/model.pt          with `Store.keep_models`: a state dict for each seed, or None
    FOLDER/<what>-<digest>/groups.jsonl                 which seeds each of these folders holds, a line for each

The digest is that of plan, variant and settings. Below it, every group of seeds that was trained in one program has a
folder of its own, and each seed is looked up in whatever group it is. What a folder holds stands in its run.json; the
list of groups only spares reading those without the seeds that are asked for, and a folder that is not listed is read.
A group is used only where its fingerprint (`rootscale.lab.fingerprint`) is that of the present task; otherwise it stays
as it is, and a new one is made beside it.
Several processes may work in one folder: a group is made by the one that holds the lock in it (`rootscale.files`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootscale.files import locked, remove_temporary, this_command
from rootscale.format import listed
from rootscale.lab.fingerprint import Fingerprints, differences
from rootscale.lab.group import Group, Spec, Wanted, joined, rows_of, write_facts
from rootscale.lab.states import select

if TYPE_CHECKING:
    from rootscale.lab.stopping import Stop
    from rootscale.trajectory import Trajectory

_log = logging.getLogger(__name__)

#: Seconds between looks at a run that another process makes, and between two lines about it.
_WAIT, _REPORT = 0.1, 60.0
#: The list of the groups of a shelf.
_LIST = "groups.jsonl"


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
        depends: files, folders and variables of the environment that runs depend on besides what is seen of them: runs
            that were made with others are not found.
    """

    folder: Path
    checkpoint_every: float = 20.0
    keep_models: bool = False
    wait: bool = True
    command: str | None = None
    temporary: bool = False
    depends: Sequence[str] = ()
    fingerprints: Fingerprints = field(default_factory=Fingerprints, compare=False, repr=False)
    opened: float = field(default_factory=time.time, compare=False, repr=False)
    _known: dict[Path, tuple[int, Group]] = field(default_factory=dict, compare=False, repr=False)
    _found: dict[tuple[Path, int], float] = field(default_factory=dict, compare=False, repr=False)
    _listed: dict[Path, tuple[int, dict[str, list[int]]]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).absolute())  # a run may change where it is

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was read behind: a job on another machine reads what it needs."""
        return {**self.__dict__, "_known": {}, "_found": {}, "_listed": {}}

    @property
    def made_by(self) -> str:
        """The command that is recorded."""
        return self.command or this_command()

    def want(self, spec: Spec, seeds: Sequence[int], with_state: bool = False) -> Wanted:
        """Return a description of runs by which they are looked up and made."""
        fingerprint = {} if self.temporary else self.fingerprints.of(spec.task, seeds, spec.start, self.depends)
        return Wanted(spec, tuple(seeds), fingerprint, with_state)

    # -- finding ------------------------------------------------------------------------------------------------

    def groups(self, spec: Spec, seeds: Collection[int] | None = None) -> list[Group]:
        """Return all groups of a spec, whatever task made them; or those that may hold some of these seeds."""
        shelf = self.folder / spec.name
        try:
            names = sorted(entry.name for entry in os.scandir(shelf))
        except (FileNotFoundError, NotADirectoryError):
            return []
        if seeds is not None:
            wanted, contents = set(seeds), self._contents(shelf)
            names = [name for name in names if name not in contents or not wanted.isdisjoint(contents[name])]
        return [group for name in names if (group := self._group(shelf / name / "run.json")) is not None]

    def _contents(self, shelf: Path) -> dict[str, list[int]]:
        """Return the seeds of the groups that are listed, by folder; only what was added since is read."""
        read, contents = self._listed.get(shelf, (0, {}))
        with suppress(FileNotFoundError), (shelf / _LIST).open("rb") as file:
            file.seek(read)
            for line in file:
                if not line.endswith(b"\n"):  # a process was ended while it wrote: the folder itself is read
                    break
                read += len(line)
                with suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    contents[entry["folder"]] = entry["seeds"]
        self._listed[shelf] = read, contents
        return contents

    def _group(self, path: Path) -> Group | None:
        """Return the group that a file describes, which is read anew where it was written since; None without one."""
        try:
            written = path.stat().st_mtime_ns
            if path not in self._known or self._known[path][0] != written:
                record = json.loads(path.read_text(encoding="utf-8"))
                self._known[path] = written, Group(path.parent, tuple(record["seeds"]), record["fingerprint"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}; remove its folder, and the run is made again") from None
        return self._known[path][1]

    def matching(self, wanted: Wanted) -> list[Group]:
        """Return the groups that hold some of the seeds, as the present task computes them."""
        seeds = set(wanted.seeds)
        return [
            group
            for group in self.groups(wanted.spec, seeds)
            if not seeds.isdisjoint(group.seeds) and not _changed(wanted, group)
        ]

    def locate(self, wanted: Wanted) -> dict[int, tuple[Group, int]]:
        """Return the group and the place in it of every seed that is finished."""
        found: dict[int, tuple[Group, int]] = {}
        seeds = set(wanted.seeds)
        for group in self.matching(wanted):
            if group.complete(wanted.with_state, self.keep_models):
                finished = group.finished()
                for place, seed in enumerate(group.seeds):
                    if seed in seeds:
                        found.setdefault(seed, (group, place))
                        self._found.setdefault((group.place, seed), finished)
        return found

    def missing(self, wanted: Wanted) -> list[int]:
        """Return the seeds that are not finished."""
        found = self.locate(wanted)
        return [seed for seed in wanted.seeds if seed not in found]

    def outdated(self, wanted: Wanted) -> list[str]:
        """Return what the present task computes differently from the one that made the groups with these seeds."""
        found: dict[str, None] = {}
        seeds = set(wanted.seeds)
        for group in self.groups(wanted.spec, seeds):
            if not seeds.isdisjoint(group.seeds):
                found |= dict.fromkeys(_changed(wanted, group))
        return list(found) if found and not self.matching(wanted) else []

    def reuse(self) -> dict[str, Any]:
        """Return how many of the runs that were found are older than this store, of how many, and from when they are.

        Copies of the store with other folders share the count.
        """
        old = sorted(moment for moment in self._found.values() if moment < self.opened)
        dates = [time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) for moment in (old[:1] + old[-1:])]
        return {"runs": len(old), "of": len(self._found), "made": list(dict.fromkeys(dates))}

    def seeds_of(self, spec: Spec) -> list[int]:
        """Return the seeds of all groups of a spec, finished or not."""
        return sorted({seed for group in self.groups(spec) for seed in group.seeds})

    def set_aside(self) -> Path | None:
        """Move all runs away, so that all are made anew; return where they are now, or None where there were none.

        Raises:
            BusyError: a process is making one of them.
        """
        if not self.folder.exists():
            return None
        for path in self.folder.glob("*/*/run.json"):
            group = Group(path.parent, (), {})
            if group.in_work():
                raise BusyError(f"{path.parent} is in work by {group.maker()}: its run cannot be made anew meanwhile")
        place = self.folder.with_name(f"{self.folder.name}-until-{time.strftime('%Y-%m-%dT%H-%M-%S')}")
        self.folder.rename(place)
        return place

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
        shelf, reported = self.folder / wanted.spec.name, 0.0
        with ExitStack() as held:
            while True:
                busy = ""
                with locked(shelf / ".lock", lambda: not stop.asked) as mine:
                    if not mine:
                        stop.end()
                    if not self.missing(wanted):
                        place = None
                        break
                    some = [g for g in self.matching(wanted) if not g.complete(wanted.with_state, self.keep_models)]
                    busy = next((group.maker() for group in some if group.in_work()), "")
                    if not busy:
                        same = (group.place for group in some if group.seeds == wanted.seeds)
                        place = next(same, None) or _new_place(shelf, wanted.seeds)
                        if held.enter_context(locked(place / ".lock")):
                            remove_temporary(place, all_processes=True)
                            write_facts(place, wanted, {**facts, "status": "running"})
                            break
                seeds = [str(seed) for seed in wanted.seeds]
                what = f"{wanted.spec.label}, {'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"
                if not self.wait and not wanted.with_state:
                    raise BusyError(f"another process is making {what} in {shelf}: {busy}")
                if time.monotonic() - reported > _REPORT:
                    reported = time.monotonic()
                    _log.info("waiting for %s, which is making %s in %s", busy or "another process", what, shelf)
                tell(0.0)
                stop.end()
                time.sleep(_WAIT)
            yield place


def as_store(store: Store | str | Path | None) -> Store | None:
    """Return a store from what people give: a folder, or a `Store` itself."""
    return store if store is None or isinstance(store, Store) else Store(Path(store))


def _changed(wanted: Wanted, group: Group) -> list[str]:
    """Return what the present task computes differently from the one that made a group, which has a seed of it."""
    if not wanted.fingerprint:
        return []
    first = str(next(seed for seed in group.seeds if seed in wanted.seeds))
    numbers = wanted.fingerprint["seeds"]
    now = {**wanted.fingerprint, "seeds": {first: numbers[first]} if first in numbers else {}}
    return differences(now, group.fingerprint)


def _new_place(shelf: Path, seeds: Sequence[int]) -> Path:
    """Return a folder that no group has, and list it; to be called by who holds the shelf's lock."""
    text = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
    number = 1
    while True:
        place = shelf / (f"seeds-{text}" + (f"-version-{number}" if number > 1 else ""))
        if not (place / "run.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            with (shelf / _LIST).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"folder": place.name, "seeds": list(seeds)}) + "\n")
            return place
        number += 1
