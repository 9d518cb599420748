"""A switch of batch size in mid-run, on scikit-learn's digits: rescale_ against half-measures.

Claim: after 12,000 samples the batch size is multiplied by 4, and later by 4 again. With everything converted the mean
train-loss curve stays where it was; with anything left out it does not. The gap is that of `rootscale.gap` between the
mean curves of 16 replicas where it is largest: a share of the range, after the switch, of the run that keeps its batch
size.

    python -m rootscale.paper.experiments.digits_switch --seeds 5 --out results/digits-switch.json

About 30 s a seed on one core; seeds that are already in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rootscale import ScalingWarning, __version__
from rootscale.files import write_json
from rootscale.format import plus_minus
from rootscale.paper.experiments.replicas import Run, curve, largest_gap
from rootscale.trajectory import Trajectory

PLAIN: dict[str, Any] = {"batch": 4}
WITH_BATCHNORM: dict[str, Any] = {"batch": 32, "lr": 1e-3, "betas": (0.98, 0.998), "batchnorm": 0.02}
WITH_EMA: dict[str, Any] = {"batch": 4, "ema": 0.999}
SAMPLES = {4: 38_400, 32: 30_720}

#: problem, what is done at the switch (options of rescale_; None: no switch, other random numbers)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "same batch size, other seed": (PLAIN, None),
    "rescale_": (PLAIN, {}),
    "hyperparameters, not the state": (PLAIN, {"state": False}),
    "linear rule": (PLAIN, {"rule": "linear"}),
    "learning rate only": (PLAIN, {"rule": "sqrt-eta"}),
    "nothing but the batch size": (PLAIN, {"rule": "none"}),
    "net with BatchNorm: rescale_": (WITH_BATCHNORM, {}),
    "net with BatchNorm: its momentum left alone": (WITH_BATCHNORM, {"model": None}),
    "average of the weights: rescale_": (WITH_EMA, {}),
    "average of the weights: its decay left alone": (WITH_EMA, {"ema": None}),
}


def gaps(seed: int) -> dict[str, float]:
    """The gap of every case, from warm starts of this seed."""
    starts: dict[int, tuple[Run, Trajectory]] = {}
    found = {}
    for name, (settings, options) in CASES.items():
        samples = SAMPLES[settings["batch"]]
        if id(settings) not in starts:
            start = Run(**settings, seed=seed)
            starts[id(settings)] = start, curve(start, 1000 + seed, [1], samples)
        start, base = starts[id(settings)]
        kappas = [1.0] if options is None else [4.0, 4.0]
        found[name] = largest_gap(base, curve(start, 2000 + seed, kappas, samples, **(options or {})))
    return found


def save(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, data)


def table(runs: dict[str, dict[str, float]]) -> Table:
    """Mean gap with its standard error over seeds."""
    out = Table("what is done at the switch", "gap / range", title=f"{len(runs)} seeds x 16 replicas")
    for name in CASES:
        values = [run[name] for run in runs.values()]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        out.add_row(name, plus_minus(statistics.mean(values), error, 3))
    return out


def main() -> None:
    """Run what is missing, save after each seed, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/digits-switch.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # the nets are tiny
    warnings.simplefilter("ignore", ScalingWarning)  # the wrong rules are meant
    data: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"gaps": {}}
    data |= {
        "command": f"python -m rootscale.paper.experiments.digits_switch --seeds {args.seeds}",
        "versions": {"rootscale": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": f"{platform.machine()} CPU, {os.cpu_count()} cores, 1 thread",
        "seeds": f"0 to {args.seeds - 1}: net and warm start; 1000 + seed: base; 2000 + seed: switched",
    }
    missing = [seed for seed in range(args.seeds) if str(seed) not in data["gaps"]]
    for seed in track(missing, "seeds", disable=not sys.stdout.isatty()):
        data["gaps"][str(seed)] = gaps(seed)
        save(args.out, data)
    Console().print(table(data["gaps"]))


if __name__ == "__main__":
    main()
