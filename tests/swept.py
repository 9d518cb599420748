"""Runs of variants of one task, as the store has them: what a study makes, without its table and verdicts."""

from dataclasses import dataclass, field, replace

from rootscale.lab import Observer
from rootscale.lab.execute import default_executor
from rootscale.lab.jobs import make, start_of, store_or_temporary
from rootscale.lab.store import as_store
from rootscale.lab.task_runs import TaskSpec


@dataclass
class Swept:
    """The trajectory of each variant, the warm start, and the files of kept models by variant and seed."""

    trajectories: dict
    warm: object = None
    models: dict = field(default_factory=dict)


def sweep(task, variants, *, seeds, settings, store=None, execute=None, observe=None):
    specs = {variant: TaskSpec(task, variant, settings) for variant in variants}
    with store_or_temporary(as_store(store)) as place:
        make(list(specs.values()), seeds, place, execute or default_executor("cpu"), observe or Observer())
        wanted = {variant: place.want(spec, seeds) for variant, spec in specs.items()}
        found = {variant: place.trajectory(want) for variant, want in wanted.items()}
        models = {}
        for variant, want in wanted.items() if place.keep_models else ():
            models |= {(variant, seed): file for seed, file in place.models(want).items()}
        return Swept(found, start_of(list(specs.values()), seeds, place), models)


def finished(task, variants, *, seeds, settings, store):
    """Whether `sweep` would only read, warm starts included."""
    place = as_store(store)
    specs = [TaskSpec(task, variant, settings) for variant in variants]
    starts = replace(place, keep_models=False)
    return not any(
        [*(starts.missing(starts.want(spec.warm, seeds)) for spec in specs if spec.warm),
         *(place.missing(place.want(spec, seeds)) for spec in specs)]
    )  # fmt: skip
