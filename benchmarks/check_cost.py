"""How long a check of a conv net takes on a CPU, as it measures now and as it did before.

    python benchmarks/check_cost.py [--steps 1000] [--out results/benchmarks]

A net of two convolutions with BatchNorm on scikit-learn's digits (16 x 16), Adam, batch size 16, switched to 64 and 256
after a quarter of the run. "Before": 8 seeds stacked in one program, measured at 40 points on 2,048 samples. "Now":
seeds as they are needed, one by one, and a fifth of the work for measuring. Processor time of one process and thread.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rootscale import Adam, BatchSize, Plan
from rootscale.files import write_json
from rootscale.lab import Check, Here, Measure, Task, check
from rootscale.lab.provenance import environment
from rootscale.lab.settings import SHARE


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
    plan = Plan(Adam(eta=1e-3, beta1=0.9, beta2=0.999), batch_size=BatchSize(16), steps=steps)
    loss = partial(nn.functional.cross_entropy, reduction="none")
    return Task("conv", plan, net, loss, (x[:1437], y[:1437]), (x[1437:], y[1437:]), {"accuracy": accuracy})


def timed(steps: int, before: bool) -> tuple[Check, float]:
    """Return what a check found and the seconds of the processor that it took."""
    torch.set_num_threads(1)
    seeds: int | Literal["auto"] = 8 if before else "auto"
    measure = Measure() if before else Measure(share=SHARE)
    began = time.process_time()
    with mock.patch("rootscale.lab.sweeps.stacking_pays", return_value=True) if before else mock.MagicMock():
        found = check(task(steps), [4, 16], seeds=seeds, switch_at=4 * steps, measure=measure, execute=Here())
    return found, time.process_time() - began


def main() -> None:
    """Time both, print a line for each and the ratio, and store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    args = parser.parse_args()
    found = {}
    for name, before in (("now", False), ("before", True)):
        result, seconds = timed(args.steps, before)
        verdicts = {arm.label: arm.verdict for arm in result.others}
        seeds, measuring = len(result.made["seeds"]), result.made["measuring"]
        found[name] = {"seconds": round(seconds, 1), "verdicts": verdicts, "seeds": seeds, "measuring": measuring}
        print(f"{name}: {seconds:.0f} s, {seeds} seeds, {100 * measuring:.0f} % measuring, {verdicts}", flush=True)
    ratio = found["before"]["seconds"] / found["now"]["seconds"]
    equal = found["now"]["verdicts"] == found["before"]["verdicts"]
    print(f"check_cost: {ratio:.1f} times as fast, verdicts equal: {equal}")
    record = {"steps": args.steps, **environment("cpu"), **found, "times": round(ratio, 2)}
    write_json(args.out / "check_cost.json", record)


if __name__ == "__main__":
    main()
