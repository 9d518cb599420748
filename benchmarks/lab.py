"""The learners of the lab against a plain training loop, in the same run.

    python benchmarks/lab.py                      # CPU: 16 replicas in one program against one after the other
    python benchmarks/lab.py --device cuda        # GPU: graph + compile against DataLoader + eager, images a second

On a CPU: digits, MLP 64-32-10, steps of Adam (issue: at least 5 times as fast at batch sizes up to 64). On a GPU:
ResNet-56 and VGG-16 on images of 32 x 32 (at least 3 times as fast as the plain loop at batch size 256).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from rootscale.lab import Setup, Task
from rootscale.lab.data import patterns
from rootscale.lab.learner import Learner, make_learner
from rootscale.lab.learner_graph import GraphLearner
from rootscale.lab.stream import Stream
from rootscale.lab.tasks import digits, image_task

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

from nets import NETS
from recipes import paper_plan

#: Steps between two looks at the clock, for which a GPU has to be waited for.
BLOCK = 20


def stepper(task: Task, learner: Learner, batch: int, device: str = "cpu") -> Callable[[], None]:
    """Return a function that takes a step of a learner on fresh samples."""
    stream = Stream(len(task.train), range(learner.replicas), device=device)
    position = 0

    def step() -> None:
        nonlocal position
        stop = position + batch
        uniforms = stream.uniforms(position, stop, task.draws) if task.augment is not None else None
        learner.step([(stream.indices(position, stop), uniforms)], 1e-3)
        position = stop

    return step


def rate(step: Callable[[], object], seconds: float, device: str, warm: int = 8) -> float:
    """Steps a second."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(warm):
        step()
    wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(BLOCK):
            step()
        wait()
        count += BLOCK
    return count / (time.perf_counter() - began)


def ensemble(repeats: int) -> dict[str, float]:
    """How many times as fast 16 replicas are in one program as one after the other."""
    torch.set_num_threads(1)  # the tensors are tiny
    task, found = digits(), {}
    table = Table("batch size", "ratio", "interquartile range", title="16 replicas in one program")
    for batch in (4, 16, 64):
        together, alone = (stepper(task, make_learner(task, range(n), Setup()), batch) for n in (16, 1))
        ratios = [16 * rate(together, 0.5, "cpu") / rate(alone, 0.5, "cpu") for _ in range(repeats)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found[f"ensemble_{batch}"] = middle
        table.add_row(str(batch), f"{middle:.1f}", f"{low:.1f} - {high:.1f}")
    Console().print(table)
    return found


def plain_loop(task: Task, batch: int, device: str) -> Callable[[], None]:
    """What people write: a DataLoader, the model as it is, Adam."""
    inputs, targets = task.train[torch.arange(len(task.train))]
    sampler = RandomSampler(inputs, replacement=True, num_samples=10**9)
    loader = DataLoader(
        TensorDataset(inputs, targets), batch, sampler=sampler, num_workers=8, pin_memory=True, drop_last=True
    )
    torch.manual_seed(0)
    model = task.model().to(device).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=1e-4)
    batches: Iterator[list[torch.Tensor]] = iter(loader)

    def step() -> None:
        x, y = (part.to(device, non_blocking=True) for part in next(batches))
        if task.prepare is not None:
            x = task.prepare(x)
        if task.augment is not None:
            x = task.augment(x, torch.rand(len(x), task.draws, device=device))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _learner_steps(make: Callable[[Task], Learner], task: Task, batch: int) -> Callable[[], None]:
    return stepper(task, make(task), batch, "cuda")


def throughput(
    seconds: float, models: list[str], batches: list[int], replicas: list[int], quick: bool = False
) -> dict[str, float]:
    """Images a second of all replicas, and the ratios to the plain loop; ``quick``: only of the fast path."""
    setup, found = Setup("cuda", amp=True), {}
    images = patterns(50_000, 100, 10, 32, 60.0, 0)
    table = Table("model", "batch size", "how", "images/s", "ratio", title=torch.cuda.get_device_name())
    for model in models:
        plan = paper_plan(samples=len(images.train))
        task = image_task(model, images, plan, partial(NETS[model], momentum=0.1))
        for batch in batches:
            learners: dict[str, Callable[[Task], Learner]] = {
                "data on the GPU, eager, bf16": lambda task: make_learner(task, [0], setup),
                "graph": lambda task: GraphLearner(task, 0, setup, compile=False),
                "graph, compiled": lambda task: GraphLearner(task, 0, setup),
            }
            counts = {f"the same, {count} replicas": count for count in replicas if batch <= 1024}
            for name, count in counts.items():
                learners[name] = partial(make_learner, seeds=range(count), setup=replace(setup, fast=True))
            ways: dict[str, Callable[[], Callable[[], None]]] = {
                "DataLoader, eager": partial(plain_loop, task, batch, "cuda"),
                **{name: partial(_learner_steps, make, task, batch) for name, make in learners.items()},
            }
            if quick:  # the plain loop takes a minute to fill its queue with the largest batches
                kept = ("DataLoader, eager", "graph, compiled", *counts) if batch <= 1024 else ("graph, compiled",)
                ways = {name: ways[name] for name in kept}
            base: float | None = None
            for name, make in ways.items():
                began = time.perf_counter()
                per_second = rate(make(), seconds, "cuda") * batch * counts.get(name, 1)
                base = per_second if name == "DataLoader, eager" else base
                ratio = None if base is None else per_second / base
                table.add_row(model, str(batch), name, f"{per_second:,.0f}", "" if ratio is None else f"{ratio:.2f}")
                print(
                    f"{model} {batch} {name}: {per_second:,.0f} images/s ({time.perf_counter() - began:.0f} s)",
                    flush=True,
                )
                torch.cuda.empty_cache()
                if ratio is not None and name == "graph, compiled":
                    found[f"{model}_{batch}"] = ratio
                elif ratio is not None and name in counts:
                    found[f"{model}_{batch}_replicas_{counts[name]}"] = ratio
    Console().print(table)
    return found


def main() -> None:
    """Measure, print the table, and the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--models", nargs="+", default=["resnet56", "vgg16"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[256, 16384])
    parser.add_argument(
        "--replicas", nargs="+", type=int, default=[3, 4, 6], help="on a GPU, up to batch size 1024: in one program"
    )
    parser.add_argument(
        "--quick", action="store_true", help="on a GPU: only the fast path, and the plain loop up to batch size 1024"
    )
    args = parser.parse_args()
    cpu = args.device == "cpu"
    fast = partial(throughput, args.seconds, args.models, args.batch_sizes, args.replicas, args.quick)
    found = ensemble(args.repeats) if cpu else fast()
    print(f"{args.device}, torch {torch.__version__}")
    print(" ".join(f"{name}={value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
