"""Where SVAG starts: at the beginning, or in mid-run. On scikit-learn's digits, with RMSprop and Adam.

Claim: SVAG follows the discrete run from a state in mid-run, but not from the very start of a short run, where the
second moment is filling up and the gradient exceeds the noise. The theorems fix a second moment above zero to start
from, and are for runs in which the noise dominates.

Setting. Plans have 400 steps with a warm-up of 8, nearly as many as those of ``cifar10-svag-adam`` and ``-rmsprop``.
The gap is that of the mean train-loss curves (`rootscale.gap`) where it is largest, as a share of the range of the
discrete run's curve from its first step to its end, also where SVAG starts in mid-run.

    python -m rootscale.paper.experiments.digits_svag_start --seeds 16 --out results/digits-svag-start.json

About a minute on one core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from rootscale import Adam, BatchSize, Plan, RMSprop, Schedule
from rootscale.files import write_json
from rootscale.format import percent
from rootscale.gap import gaps
from rootscale.lab import Here, Settings, Variant, sweep
from rootscale.lab.provenance import environment
from rootscale.lab.settings import grid
from rootscale.paper.tasks import digits

OPTIMIZERS: dict[str, Adam | RMSprop] = {"RMSprop": RMSprop(1e-3, 0.999), "Adam": Adam(1e-3, 0.999, 0.999)}
BATCH, STEPS, WARMUP, POINTS, ELLS = 16, 400, 8, 20, (2.0, 4.0)
STARTS = {"at the beginning": 0, "in mid-run": STEPS // 2 * BATCH}

#: By optimizer, start and ell: the gap and its standard error over seeds.
Found = dict[str, dict[str, dict[str, tuple[float, float]]]]


def measure(seeds: int) -> Found:
    """Return the largest gap of each case."""
    found: Found = {}
    for name, optimizer in OPTIMIZERS.items():
        plan = Plan(optimizer, BatchSize(BATCH), steps=STEPS, schedule=Schedule("constant", warmup=WARMUP))
        task, whole, found[name] = replace(digits(), plan=plan), None, {}
        for start, samples in STARTS.items():
            settings = Settings(grid=grid(STEPS * BATCH, POINTS, samples, [BATCH]), switch_at=samples)
            variants = [Variant(), *(Variant(ell=ell) for ell in ELLS)]
            made = sweep(task, variants, seeds=range(seeds), settings=settings, execute=Here(seeds)).trajectories
            discrete, *others = (made[variant] for variant in variants)
            whole = whole or discrete
            found[name][start] = {}
            for ell, other in zip(ELLS, others, strict=True):
                far = gaps(discrete, other, ["train loss"], whole=whole)["train loss"].largest
                found[name][start][f"{ell:g}"] = (abs(far.gap), far.se)
    return found


def table(found: Found, seeds: int) -> Table:
    """Return what is stored as a table."""
    out = Table("optimizer", "SVAG starts", *(f"ℓ = {ell:g}" for ell in ELLS), title=f"gap / range, {seeds} seeds")
    for optimizer, starts in found.items():
        for start, ells in starts.items():
            out.add_row(optimizer, start, *(percent(*gap) for gap in ells.values()))
    return out


def main() -> None:
    """Run, save, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/digits-svag-start.json"))
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds must be at least 2, for a standard error; got {args.seeds}")
    torch.set_num_threads(1)  # the nets are tiny
    found = measure(args.seeds)
    made = {
        "command": f"python -m rootscale.paper.experiments.digits_svag_start --seeds {args.seeds}",
        **environment("cpu"),
        "seeds": list(range(args.seeds)),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, {"gaps": found, **made}, indent=1)
    Console().print(table(found, args.seeds))


if __name__ == "__main__":
    main()
