"""What a store of many runs costs: to make, to open and to judge, for a task and for a loop of one's own.

    python benchmarks/store.py [--runs 100 1000 10000] [--folder build/bench-store]

Half of the runs are the base, and half have four times the batch size: a line fitted to 64 points (a task, 16 seeds in
a program), and 100 logged rows (a loop, each run by itself). Opened means: which runs are finished, and made by this
program. Every number is measured in a process of its own: processor time, which other work on the machine hardly
changes, without the three seconds that importing torch takes; and the most memory in use, of which 310 MB are torch.
Runs that were made are not made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from rootscale import Adam, BatchSize, Plan
from rootscale.lab import Arm, Here, Judge, Loop, Observer, RunLog, Settings, Store, Study, Task, Variant, grid
from rootscale.lab.observe import silent

STEPS, ROWS = 32, 100


def train(batch_size: int, seed: int, log: RunLog) -> None:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(ROWS, generator=generator) * 0.1 / math.sqrt(batch_size)
    for step in range(1, 1 + ROWS):
        log(samples=64 * step, loss=1 / step + float(noise[step - 1]))


def line() -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-1.0], [0.5]]) + 0.1 * torch.randn(64, 1, generator=generator)
    plan = Plan(Adam(eta=0.02, beta1=0.9, beta2=0.99), batch_size=BatchSize(4), steps=STEPS)
    return Task("line", plan, lambda: torch.nn.Linear(3, 1), lambda outputs, y: (outputs - y).square(), (x, y))


def study(kind: str, seeds: int) -> Study:
    subject = Loop("loop", train, 16) if kind == "loop" else line()
    arms = [Arm("base", subject), Arm("four times", subject, Variant(4))]
    settings = Settings(grid(4 * STEPS, 8, batch_sizes=[4, 16]))
    return Study(kind, arms, seeds=seeds, settings=settings, judge=Judge(0.2))


def measured(kind: str, what: str, seeds: int, folder: Path) -> dict[str, float]:
    """Return the seconds and the memory of one of the three; called in a process of its own."""
    asked, store = study(kind, seeds), Store(folder)
    runs = replace(store, folder=folder / "runs")
    importlib.import_module("torch._dynamo")  # which the first step of any optimizer does otherwise
    began = time.process_time()
    if what == "make":
        asked.make(asked.arms, range(seeds), store, Here(), Observer(note=silent))
    elif what == "open":
        missing = [runs.missing(runs.want(asked.specs[arm.label], range(seeds))) for arm in asked.arms]
        assert missing == [[], []], f"{sum(map(len, missing))} runs are not found again"
    else:
        asked.collect(store)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - began, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--folder", type=Path, default=Path("build/bench-store"))
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)  # kind, what, seeds: in a process of its own
    args = parser.parse_args()
    if args.only:
        kind, what, seeds = args.only
        print(json.dumps(measured(kind, what, int(seeds), args.folder)))
        return
    print("| kind | runs | made, s | opened, s | judged, s | memory, MB |\n|---|---|---|---|---|---|")
    for kind in ("task", "loop"):
        for count in args.runs:
            folder = args.folder / f"{kind}-{count}"
            found = {}
            for what in ("make", "open", "judge"):
                words = [sys.executable, __file__, "--folder", str(folder), "--only", kind, what, str(count // 2)]
                found[what] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            seconds = " | ".join(f"{found[what]['seconds']:.2f}" for what in found)
            print(f"| {kind} | {count:,} | {seconds} | {found['judge']['memory']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
