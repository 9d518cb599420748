"""What the columns of logs are: the clock on which runs are compared, and the metrics.

The clock of runs at different batch sizes counts samples or tokens seen. A log has a column of them, or steps and a
batch size. A fraction of epochs will do as well, on the same data.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rootscale.compare.log import Array, Log, Series
from rootscale.format import show

#: What counts the data seen, in the order of preference, with the names that its column has.
CLOCKS = {
    "samples": (
        "samples", "samples_seen", "num_samples", "n_samples", "consumed_samples", "consumed_train_samples",
        "num_samples_seen", "examples", "examples_seen", "train/samples", "train/samples_seen", "images_seen",
    ),
    "tokens": (
        "tokens", "tokens_seen", "num_tokens", "n_tokens", "num_input_tokens_seen", "consumed_tokens", "total_tokens",
        "n_tokens_seen", "num_tokens_seen", "train/tokens", "train/tokens_seen", "train/num_input_tokens_seen",
        "throughput/total_tokens",
    ),
    "epochs": ("epoch", "epochs", "train/epoch"),
    "time": ("time",),
}  # fmt: skip
#: The names of a column of steps.
STEPS = (
    "step", "steps", "global_step", "trainer/global_step", "train/global_step", "_step", "iteration", "iter",
    "train_step", "training_step", "num_steps",
)  # fmt: skip
#: The names of a column of batch sizes.
BATCH_SIZES = ("batch_size", "global_batch_size", "train_batch_size", "total_batch_size", "train/batch_size")
#: Columns that are neither metrics nor clocks.
OTHERS = (
    "_runtime", "_timestamp", "timestamp", "wall_time", "walltime", "created_at", "run_id", "seed", "total_flos",
    "relative time (process)", "index", "level_0", "unnamed: 0",
)  # fmt: skip


@dataclass(frozen=True)
class Clock:
    """What one log counts the data by.

    Args:
        unit: ``samples``, ``tokens``, ``epochs``, ``steps``, or the name of a column that was asked for.
        places: gives the clock at each of some rows of the log.
        source: in words.
    """

    unit: str
    places: Callable[[Series], Array]
    source: str


def is_clock(name: str) -> bool:
    """Return whether a column of this name counts something, and is nothing to be compared."""
    plain = name.lower()
    known = (*STEPS, *BATCH_SIZES, *OTHERS, *(name for names in CLOCKS.values() for name in names))
    return plain in known


def find_clock(sides: Sequence[Sequence[Log]], asked: str | None, batch_sizes: Sequence[float]) -> list[list[Clock]]:
    """Return the clock of each log; all have one unit.

    Args:
        sides: the logs of each side.
        asked: the name of a column; None looks for one that is known.
        batch_sizes: of each side, where they were given.
    """
    if batch_sizes and len(batch_sizes) != len(sides):
        raise ValueError(
            f"need one batch size for each of the {len(sides)} sides, the base first; got "
            f"{len(batch_sizes)}: {', '.join(map(show, batch_sizes))}"
        )
    sizes: list[float | None] = [float(size) for size in batch_sizes] or [None] * len(sides)
    for size in sizes:
        if size is not None and not size > 0:
            raise ValueError(f"a batch size must be above 0, got {show(size)}")
    pairs = [[(log, size) for log in logs] for logs, size in zip(sides, sizes, strict=True)]
    if asked is not None:
        return [[_asked(log, asked, size) for log, size in side] for side in pairs]
    for unit in CLOCKS:
        found = [[_of_unit(unit, log, size) for log, size in side] for side in pairs]
        if all(clock is not None for side in found for clock in side):
            return [[clock for clock in side if clock is not None] for side in found]
    raise ValueError(_no_clock(pairs))


def _asked(log: Log, name: str, size: float | None) -> Clock:
    if name not in log.columns:
        raise ValueError(f"{log.name} has no column {name!r} for the clock; it has {_names(log)}")
    if name.lower() in STEPS and (size or _size(log)):
        return _by_steps(log, name, size or _size(log))
    unit = next((unit for unit, names in CLOCKS.items() if name.lower() in names), None)
    return _by_column(log, name, unit or ("steps" if name.lower() in STEPS else name))


def _of_unit(unit: str, log: Log, size: float | None) -> Clock | None:
    """Return the clock of a log in this unit, or None where it has none."""
    if unit == "samples" and size is not None:
        step = _first(log, STEPS)
        if step is not None:
            return _by_given_size(log, step, size)
    name = _first(log, CLOCKS[unit])
    if name is not None and not (unit == "epochs" and _whole_epochs(log.columns[name])):
        return _by_column(log, name, unit)
    if unit != "samples":
        return None
    step, varying = _first(log, STEPS), _first(log, BATCH_SIZES)
    if step is not None and varying is not None:
        return _by_varying_steps(log, step, varying)
    return None if step is None or log.batch_size is None else _by_steps(log, step, log.batch_size)


def _by_column(log: Log, name: str, unit: str) -> Clock:
    return Clock(unit, lambda series: log.columns[name].at(series), f"column {name!r}")


def _by_steps(log: Log, step: str, size: float | None) -> Clock:
    assert size is not None
    places = log.columns[step]
    return Clock("samples", lambda series: size * places.at(series), f"column {step!r} x {show(size)}")


def _by_given_size(log: Log, step: str, size: float) -> Clock:
    """Return the clock by a batch size that was given, which is there to be used: a log may count those of one device.

    But no one batch size is right for a log whose samples are no multiple of its steps: the batch size changed, or the
    steps were numbered anew. Its samples count then.
    """
    name, clock = _first(log, CLOCKS["samples"]), _by_steps(log, step, size)
    if name is not None and not _multiple(log.columns[name].at(log.columns[step]), log.columns[step].values):
        return replace(_by_column(log, name, "samples"), source=f"column {name!r}, which is no multiple of {step!r}")
    logged = _size(log)
    if logged in (None, size):
        return clock
    return replace(clock, source=f"{clock.source} as given; the log itself says {show(logged)}")


def _multiple(samples: Array, steps: Array) -> bool:
    """Return whether samples are one factor times the steps, within a step; they are if they tell no place at all."""
    known = np.isfinite(samples) & (steps > 0)
    samples, steps = samples[known], steps[known]
    if not len(steps) or np.sum(np.diff(samples) > 0) < len(samples) / 2:
        return True
    size = samples[0] / steps[0]
    return bool(np.all(np.abs(samples - size * steps) <= size))


def _by_varying_steps(log: Log, step: str, size: str) -> Clock:
    """Return the clock of a log that has the batch size of each step."""
    steps, sizes = log.columns[step], log.columns[size].at(log.columns[step])
    known = sizes[np.isfinite(sizes)]
    if np.ptp(known) == 0:
        return _by_steps(log, step, float(known[0]))
    if np.any(np.diff(steps.values) < 0):
        raise ValueError(
            f"the batch size of {log.name} changes and its steps go back: log the samples seen, or name their column "
            "with --clock"
        )
    sizes = np.where(np.isfinite(sizes), sizes, known[0])
    seen = np.concatenate([[steps.values[0] * sizes[0]], steps.values[0] * sizes[0] + np.cumsum(
        np.diff(steps.values) * sizes[1:])])  # fmt: skip
    summed = Series(seen, steps.index)
    return Clock("samples", lambda series: summed.at(series), f"columns {step!r} and {size!r}, summed up")


def _size(log: Log) -> float | None:
    """Return the one batch size that a log knows of."""
    name = _first(log, BATCH_SIZES)
    if name is None:
        return log.batch_size
    values = log.columns[name].values
    return float(values[0]) if np.ptp(values) == 0 else None


def _whole_epochs(series: Series) -> bool:
    """Return whether epochs are counted as whole numbers with several rows each: they then tell no place."""
    return bool(np.all(series.values == np.round(series.values))) and len(np.unique(series.values)) < len(series)


def _first(log: Log, names: Sequence[str]) -> str | None:
    """Return the log's column that has the first of these names, whatever its capitals."""
    plain = {column.lower(): column for column in log.columns}
    return next((plain[name] for name in names if name in plain), None)


def _names(log: Log) -> str:
    return ", ".join(map(repr, log.columns)) or "no columns of numbers"


def _no_clock(pairs: Sequence[Sequence[tuple[Log, float | None]]]) -> str:
    units = [(log, [unit for unit in CLOCKS if _of_unit(unit, log, size)]) for side in pairs for log, size in side]
    lacking = next((log for log, found in units if not found), None)
    if lacking is None:
        (first, some), (last, others) = units[0], units[-1]
        return (
            f"the runs have no clock in common: {first.name} counts {', '.join(some)}, {last.name} "
            f"counts {', '.join(others)}; give the batch sizes (--batch-size 16 64) or a column (--clock NAME)"
        )
    what = "steps but no batch size" if _first(lacking, STEPS) else "no column of samples, tokens or steps"
    return (
        f"{lacking.name} has {what}; its columns are {_names(lacking)}. Runs of different batch sizes are compared "
        "at equal samples or tokens seen: give the batch sizes, the base first (--batch-size 16 64), or name the "
        "column that counts samples or tokens (--clock NAME)"
    )


# -- metrics ---------------------------------------------------------------------------------------------------------


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss by its name: lower is better, and a run that diverges sends it up.

    >>> is_loss("train/loss"), is_loss("eval_nll"), is_loss("accuracy"), is_loss("loss_scale")
    (True, True, False, False)
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return bool({"loss", "nll", "perplexity", "ppl", "bpb", "bpc"} & set(words)) and not {"scale", "scaler"} & set(
        words
    )


def choose_metrics(sides: Sequence[Sequence[Log]], asked: Sequence[str]) -> list[str]:
    """Return the metrics that are compared: those asked for, or else the losses, or else the only one there is.

    All runs must have them.
    """
    logs = [log for side in sides for log in side]
    if asked:
        for name in asked:
            for log in logs:
                if name not in log.columns:
                    raise ValueError(f"{log.name} has no metric {name!r}{_near(name, log)}; it has {_listed(log)}")
        return list(dict.fromkeys(asked))
    common = [name for name in _metrics(logs[0]) if all(name in log.columns for log in logs)]
    losses = [name for name in common if is_loss(name)]
    if losses:
        return losses
    if len(common) == 1:
        return common
    if common:
        raise ValueError(
            f"none of the metrics that all runs have is called a loss: give those to compare with --metric, of "
            f"{', '.join(map(repr, common))}"
        )
    odd = next((log for log in logs if set(_metrics(log)) != set(_metrics(logs[0]))), logs[-1])
    raise ValueError(
        f"the runs have no metric in common: {logs[0].name} has {_listed(logs[0])}, {odd.name} has {_listed(odd)}"
    )


def _metrics(log: Log) -> list[str]:
    return [name for name in log.columns if not is_clock(name)]


def _listed(log: Log) -> str:
    return ", ".join(map(repr, _metrics(log))) or "none"


def _near(name: str, log: Log) -> str:
    near = difflib.get_close_matches(name, _metrics(log), 1, 0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
