"""How long a check of a conv net takes on a CPU, as it measures now and as it did before.

    python benchmarks/check_cost.py [--minutes 15] [--runs build/bench-check] [--out results/benchmarks]

A net of two convolutions with BatchNorm on scikit-learn's digits (16 x 16), Adam, batch size 16, 1,000 steps, switched
to 64 and 256 after a quarter of the run. "Before": 8 seeds, stacked, measured at 40 points on 2,048 samples (all there
are), and judged once. "Now": what `rootscale check` does by default. Both run in a process for each core with one
thread. Processor time is counted, which other work on the machine hardly changes. A benchmark that was stopped, or
whose minutes were over, goes on where it was; about twelve minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rootscale import Adam, BatchSize, Plan
from rootscale.files import write_json
from rootscale.lab import Deadline, Forked, Judge, Measure, Observer, Store, Table, Task, UnfinishedError, check
from rootscale.lab.provenance import environment
from rootscale.lab.settings import SHARE

#: Seconds between two lines.
EVERY = 30.0


def net() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(512, 10))


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float()


def task(steps: int) -> Task:
    data = load_digits()
    x = nn.functional.interpolate(torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, scale_factor=2)
    y = torch.tensor(data.target)
    plan = Plan(Adam(eta=1e-4, beta1=0.9, beta2=0.999), batch_size=BatchSize(16), steps=steps)
    loss = partial(nn.functional.cross_entropy, reduction="none")
    return Task("conv", plan, net, loss, (x[:1437], y[:1437]), (x[1437:], y[1437:]), {"accuracy": accuracy})


@dataclass
class Spent:
    """The processor time of a check over all starts of this benchmark, kept in a file; and lines on its progress."""

    file: Path
    name: str
    began: float = field(default_factory=lambda: processor_seconds())
    before: float = 0.0
    said: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.file.exists():
            self.before = json.loads(self.file.read_text(encoding="utf-8"))["seconds"]

    @property
    def seconds(self) -> float:
        return self.before + processor_seconds() - self.began

    def keep(self) -> None:
        write_json(self.file, {"seconds": self.seconds})

    def __call__(self, label: str, run: int, runs: int, share: float) -> None:
        if time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            print(f"{self.name}: run {run + 1} of {runs} ({label}) is at {100 * share:.0f} %", flush=True)


def processor_seconds() -> float:
    """Return the seconds of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(steps: int, before: bool, folder: Path, deadline: Deadline) -> tuple[Table, float]:
    """Return what a check found and the seconds of the processor that it took.

    Raises:
        UnfinishedError: the deadline passed; the same call goes on.
    """
    seeds: int | Literal["auto"] = 8 if before else "auto"
    measure, judge = (Measure(), Judge(looks="once")) if before else (Measure(share=SHARE), Judge())
    spent = Spent(folder / "spent.json", folder.name)
    stacked: Callable[[], Any] = partial(mock.patch, "rootscale.lab.task_runs.stacking_pays", return_value=True)
    try:
        with stacked() if before else mock.MagicMock():
            found = check(
                task(steps), [4, 16], seeds=seeds, switch_at=4 * steps, measure=measure, judge=judge,
                execute=Forked(deadline=deadline), store=Store(folder),
                observe=Observer(progress=spent, note=lambda text: print(f"{folder.name}: {text}", flush=True)),
            )  # fmt: skip
    finally:
        spent.keep()
    return found, spent.seconds


def main() -> None:
    """Time both, print a line for each and the ratio, and store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=15.0, help="of this start; the next goes on")
    parser.add_argument("--runs", type=Path, default=Path("build/bench-check"))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    deadline = Deadline.after(60 * args.minutes)
    found = {}
    for name, before in (("now", False), ("before", True)):
        try:
            result, seconds = timed(args.steps, before, args.runs / f"{name}-{args.steps}", deadline)
        except UnfinishedError:
            raise SystemExit(f"{args.minutes:g} minutes are over; the same command goes on") from None
        verdicts = {arm.label: arm.verdict for arm in result.others}
        seeds = {arm.label: arm.trajectory.replicas for arm in result.others}
        measuring = result.made["measuring"]
        found[name] = {"seconds": round(seconds, 1), "verdicts": verdicts, "seeds": seeds, "measuring": measuring}
        print(
            f"{name}: {seconds:.0f} s, {100 * measuring:.0f} % of it measuring, seeds {seeds}, {verdicts}", flush=True
        )
    ratio = found["before"]["seconds"] / found["now"]["seconds"]
    equal = found["now"]["verdicts"] == found["before"]["verdicts"]
    print(f"check_cost: {ratio:.1f} times as fast, verdicts equal: {equal}")
    record = {"steps": args.steps, **environment("cpu"), **found, "times": round(ratio, 2), "verdicts_equal": equal}
    write_json(args.out / "check_cost.json", record)


if __name__ == "__main__":
    main()
