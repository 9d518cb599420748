"""Many runs: what is missing is made, what was stopped is resumed, what is finished is only read."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rootscale.files import need_writable
from rootscale.format import listed, show
from rootscale.lab.execute import Execute
from rootscale.lab.group import Spec, Wanted
from rootscale.lab.observe import Observer, silent
from rootscale.lab.stopping import Stop, held_interrupts
from rootscale.lab.store import Store
from rootscale.trajectory import Trajectory


def make(
    specs: Sequence[Spec], seeds: Sequence[int], store: Store, execute: Execute, observe: Observer,
    stored: Mapping[Spec, Collection[int]] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Make the runs of some specs with these seeds, as far as they are missing; their warm starts first.

    Args:
        specs, seeds: which.
        store: where they are.
        execute: what runs them.
        observe: callbacks for progress.
        stored: seeds of specs that are stored elsewhere, and not made.

    Raises:
        UnfinishedError: the deadline of the executor passed. The same call resumes the runs.
        BusyError: another process is making a run, and the store does not wait.
        KeyboardInterrupt: Ctrl-C, which is held back until a step is done and a checkpoint is written.
    """
    with held_interrupts() as interrupted:
        first, second = _jobs(specs, seeds, store, execute, observe, stored)
        if first or second:
            need_writable(store.folder, "the runs", "--out")
        for phase, offset in ((first, 0), (second, _runs(first))):
            report = partial(_report, phase, offset, _runs(first) + _runs(second), observe)
            if phase:
                execute.run(phase, store.folder, report, interrupted)
            if phase is first:
                starts = replace(store, keep_models=False)  # nobody wants the models of warm starts
                for warm in _starts(specs):
                    if needing := _needing(warm, specs, seeds, stored):
                        _refuse_diverged(starts.trajectory(starts.want(warm, needing)), warm)


def _starts(specs: Sequence[Spec]) -> list[Spec]:
    """Return the warm starts of some specs, each once."""
    return list(dict.fromkeys(spec.warm for spec in specs if spec.warm is not None))


def _needing(
    warm: Spec, specs: Sequence[Spec], seeds: Sequence[int], stored: Mapping[Spec, Collection[int]]
) -> list[int]:
    """Return the seeds of a warm start from which a run goes on that is not stored elsewhere."""
    rest = [stored.get(spec, ()) for spec in specs if spec.warm == warm]
    return [seed for seed in seeds if any(seed not in some for some in rest)]


@dataclass(frozen=True)
class _Job:
    """A group of seeds of one spec; everything it needs and gives is in the store."""

    store: Store
    wanted: Wanted
    observe: Observer

    @property
    def label(self) -> str:
        return self.wanted.spec.label + (", warm start" if self.wanted.with_state else "")

    @property
    def name(self) -> str:
        """What it is called in messages."""
        seeds = [str(seed) for seed in self.wanted.seeds]
        return f"{self.label}, {'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"

    def __call__(self, tell: Callable[[float], object], stop: Stop) -> None:
        self.wanted.spec.make(self.store, self.wanted, self.observe, tell, stop)


def _jobs(
    specs: Sequence[Spec], seeds: Sequence[int], store: Store, execute: Execute, observe: Observer,
    stored: Mapping[Spec, Collection[int]],
) -> tuple[list[_Job], list[_Job]]:  # fmt: skip
    """Return the jobs of the warm starts, and those of the specs, which begin when the first are done."""
    wanted_seeds = [(spec, [seed for seed in seeds if seed not in stored.get(spec, ())]) for spec in specs]
    missing = [(spec, store.missing(store.want(spec, some))) for spec, some in wanted_seeds if some]
    starts = replace(store, keep_models=False)
    wanted = []
    for warm in _starts(specs):
        needed = {seed for spec, some in missing for seed in some if spec.warm == warm}
        used = _needing(warm, specs, seeds, stored)
        parts = ([seed for seed in used if (seed in needed) is want] for want in (True, False))
        wanted += [(warm, some, want) for some, want in zip(parts, (True, False), strict=True)]
    first = _split(starts, wanted, execute, observe)
    return first, _split(store, [(spec, some, False) for spec, some in missing], execute, observe)


def _split(
    store: Store, wanted: Sequence[tuple[Spec, Sequence[int], bool]], execute: Execute, observe: Observer
) -> list[_Job]:
    """Split what is missing into as many jobs as there are workers, if it is enough for that."""
    some = [store.want(spec, seeds, with_state) for spec, seeds, with_state in wanted if len(seeds)]
    left = [(want, store.missing(want)) for want in some]
    most = min(execute.together, math.ceil(sum(len(seeds) for _, seeds in left) / execute.workers()))
    found = []
    for want, seeds in left:
        if not seeds:
            continue
        if outdated := store.outdated(want):
            observe.note(
                f"{want.spec.label}: the stored runs were made with another {', '.join(outdated)}; they stay, and "
                "new ones are made"
            )
        groups = store.split(want, want.spec.together(max(1, most)))
        within = Observer(note=silent, measured=observe.measured, logged=observe.logged)  # what a job can take along
        found += [_Job(store, store.want(want.spec, group, want.with_state), within) for group in groups]
    return found


def _runs(jobs: Sequence[_Job]) -> int:
    return sum(len(job.wanted.seeds) for job in jobs)


def _report(jobs: Sequence[_Job], offset: int, total: int, observe: Observer, number: int, share: float) -> None:
    """Report the progress of a job as that of each of its seeds."""
    first = offset + _runs(jobs[:number])
    for run in range(first, first + _runs(jobs[number : number + 1])):
        observe.progress(jobs[number].label, run, total, share)


def _refuse_diverged(warm: Trajectory, spec: Spec) -> None:
    lost = warm.meta["diverged_at"]
    if None not in lost:
        raise ValueError(
            f"all {len(lost)} runs diverged before the switch at {show(round(warm.meta['samples'][-1]))} samples, the "
            f"first after {show(min(lost))}: switch before, or take a smaller learning rate"
        )


@contextmanager
def store_or_temporary(store: Store | None) -> Iterator[Store]:
    """Give the store, or one that is removed at the end."""
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Store(Path(folder), checkpoint_every=math.inf, temporary=True)


def start_of(specs: Sequence[Spec], seeds: Sequence[int], store: Store) -> Trajectory | None:
    """Return the trajectory up to the switch of the first of some specs that has one, of the seeds that are there."""
    starts, place = _starts(specs), replace(store, keep_models=False)
    if not starts:
        return None
    done = place.locate(place.want(starts[0], seeds))
    there = [seed for seed in seeds if seed in done]
    return place.trajectory(place.want(starts[0], there)) if there else None
