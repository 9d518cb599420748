"""Logs the runs of a sweep or a check to a tracker: ``Observer(measured=Track("wandb"))``.

One callback serves all of them: `Track` takes the mean over replicas of every test function, and the samples seen as
the step. What differs between trackers is a row of `TRACKERS`: how a run is opened, which gives a function that logs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rootscale.lab.trial import Trial

__all__ = [
    "Track",
]

#: Logs values by name at a step.
Log = Callable[[Mapping[str, float], int], object]

#: The project, or the experiment, of all runs.
PROJECT = "rootscale"


@dataclass(frozen=True)
class Opened:
    """A run as a tracker is told of it.

    Args:
        name: task, label and seeds.
        place: its folder.
        config: plan, variant and seeds.
        resumed_at: the step from which on points are written anew; None at the start.
    """

    name: str
    place: Path
    config: Mapping[str, Any]
    resumed_at: int | None


class Track:
    """Logs every measurement of every run to a tracker; each process opens its own runs.

    Args:
        tracker: a key of `TRACKERS`; or a function that opens an `Opened` run and returns one that logs.
    """

    def __init__(self, tracker: str | Callable[[Opened], Log]) -> None:
        if isinstance(tracker, str) and tracker not in TRACKERS:
            raise ValueError(f"a tracker must be one of {', '.join(TRACKERS)}, got {tracker!r}")
        self.tracker = tracker
        self._logs: dict[Path, Log] = {}
        if isinstance(tracker, str):
            _need(TRACKERS[tracker][0], tracker)  # says what is missing before anything is run

    def __getstate__(self) -> dict[str, Any]:
        """Leave open runs behind: every process has its own."""
        return {"tracker": self.tracker, "_logs": {}}

    def __call__(self, place: Path, run: Trial) -> None:
        """Log the latest measurement."""
        point = run.measured - 1
        samples = run.settings.grid[point]
        if place not in self._logs:
            label = run.variant.label(run.task.plan)
            config = {"plan": run.plan.to_dict(), "variant": run.variant.to_dict(), "seeds": list(run.seeds)}
            name = f"{run.task.name}, {label}, {place.name}"
            opened = Opened(name, place, config, samples if point else None)
            make = TRACKERS[self.tracker][1] if isinstance(self.tracker, str) else self.tracker
            self._logs[place] = make(opened)
        means = {}
        for name, rows in run.values.items():
            kept = [value for value in rows[point] if np.isfinite(value)]
            if kept:
                means[name] = sum(kept) / len(kept)
        self._logs[place](means, samples)


def _tensorboard(run: Opened) -> Log:
    """Write event files into the folder of the run."""
    writer = _need("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run.place), purge_step=run.resumed_at)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _wandb(run: Opened) -> Log:
    """Start a run of Weights & Biases, by the settings of its environment."""
    started = _need("wandb", "wandb").init(
        project=PROJECT, name=run.name, config=dict(run.config), dir=str(run.place), reinit="create_new"
    )
    return lambda values, step: started.log(dict(values), step=step)


def _mlflow(run: Opened) -> Log:
    """Start a run of MLflow, at the address of its environment."""
    mlflow = _need("mlflow", "mlflow")
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(PROJECT)
    experiment = client.create_experiment(PROJECT) if found is None else found.experiment_id
    number = client.create_run(experiment, run_name=run.name).info.run_id
    client.log_dict(number, dict(run.config), "config.json")

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            client.log_metric(number, name.replace("(", "").replace(")", ""), value, step=step)  # it takes no brackets

    return log


#: By name: the library that is needed, and what opens a run.
TRACKERS: dict[str, tuple[str, Callable[[Opened], Log]]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
}


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"logging to {package} needs the package {package!r}: pip install {package}") from None
