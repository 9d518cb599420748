"""How far may beta1 fall when the batch grows? Choose it from the measured curvature of the run.

Claim. Adam is stable while ``eta h < 2 (1 + beta1) / (1 - beta1)``, with ``h`` the largest eigenvalue of
``D^(-1/2) H D^(-1/2)``, and the square root rule multiplies ``eta h`` by kappa. So beta1 at kappa times the batch is to
be ``max(1 - kappa (1 - beta1), (s kappa - 1) / (s kappa + 1))`` with ``s = .75 eta h`` measured at the switch. It is
compared with the paper's value where there is one, with a floor of .9, with the learning rate alone, and with a ladder
of fixed values that shows where the edge is.

Protocol. Four nets (`NETS`), betas (.9, .999), (.9, .95), (.95, .999), 4, 16 and 64 times the batch (conv net: 4 and
16), one switch in mid-run, 8 seeds. All runs of a seed start from one state and see the same samples; the null sees
others. Told is the largest gap of the loss after the switch over its range (`rootscale.gap`). results/PROTOCOL.md has
the hypotheses, which were written before the runs.

Cost. About 5 hours of one core; every seed of a cell is a job of its own.

    python experiments/stability.py --processes 8 --data FOLDER      make what is missing, then collect
    python experiments/stability.py --collect                        write results/stability from what is finished
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rootscale import Adam, BatchSize, Plan
from rootscale.files import whole
from rootscale.lab import Measure, Settings, Task, Trial, Variant, grid
from rootscale.lab.task import Tensors
from rootscale.paper import tasks
from rootscale.paper.data import cifar10
from rootscale.paper.experiment import Options
from rootscale.paper.experiments.floors import PROBLEMS
from rootscale.training.stability import Stability, measure_stability, stability_bound
from rootscale.trajectory import Trajectory
from rootscale.verdict import compare

BETAS: Mapping[str, tuple[float, float]] = {"999": (0.9, 0.999), "95": (0.9, 0.95), "long": (0.95, 0.999)}
#: Fixed values of beta1 after the switch, by kappa: where is the edge?
LADDER: Mapping[int, Sequence[float]] = {4: (), 16: (0.0, 0.5, 0.8, 0.95), 64: (0.5, 0.8, 0.95)}
#: Steps before the switch over which squares of gradients and 1 / D are averaged.
WINDOW = 200
#: Batches that the curvature is measured on.
BATCHES = 4


@dataclass(frozen=True)
class Net:
    """What is trained: how a task is made from betas and data, the batch sizes, and where the batch changes."""

    task: Callable[[tuple[float, float], str | None], Task]
    sizes: Sequence[int]
    before: Fraction
    function: str
    points: int = 16
    eval_samples: int = 512
    measured: int = 256

    @property
    def kappas(self) -> list[int]:
        return [size // self.sizes[0] for size in self.sizes[1:]]


class Block(nn.Module):
    """Two convolutions with GroupNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(4, outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet8() -> nn.Module:
    """ResNet-8 with GroupNorm for images of 8 x 8: a stem, a block each of 8, 16 and 32 channels, and a last layer."""
    stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.GroupNorm(4, 8), nn.ReLU()
    blocks = Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def pooled(data: str | None) -> tuple[Tensors, Tensors]:
    """Return CIFAR-10 in 8 x 8 pixels, each the mean of 16, with mean 0 and deviation 1; kept beside the runs."""
    place = Path(os.environ.get("STABILITY_CACHE", "runs")) / "cifar10-8x8.npz"
    if not place.exists():
        held = cifar10(data)
        small: dict[str, np.ndarray[Any, Any]] = {}
        for name, part in (("train", held.train), ("test", held.test)):
            means = torch.nn.functional.avg_pool2d(torch.as_tensor(part.inputs).float(), 4)
            small |= {name: means.round().byte().numpy(), f"{name} labels": part.targets.numpy()}
        place.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(place, allow_pickle=False, **small)
    with np.load(place) as read_back:
        parts = {name: torch.as_tensor(read_back[name]) for name in read_back.files}
    mean, deviation = parts["train"].float().mean((0, 2, 3)), parts["train"].float().std((0, 2, 3))

    def normal(x: Tensor) -> Tensor:
        return (x.float() - mean[:, None, None]) / deviation[:, None, None]

    train, test = (Tensors(normal(parts[name]), parts[f"{name} labels"].long()) for name in ("train", "test"))
    return train, test


def _resnet8(betas: tuple[float, float], data: str | None) -> Task:
    train, test = pooled(data)
    plan = Plan(Adam(1e-3, *betas), BatchSize(8), steps=24_576 // 8)
    return Task("stability-resnet8", plan, resnet8, tasks.cross_entropy, train, test, {"accuracy": tasks.accuracy})


def _of(
    problem: str, sizes: Sequence[int], epochs: float | None = None
) -> Callable[[tuple[float, float], str | None], Task]:
    def make(betas: tuple[float, float], data: str | None) -> Task:
        chosen = PROBLEMS[problem]
        epochs_of = chosen.options.epochs if epochs is None else epochs
        options: Options = replace(chosen.options, batch_sizes=tuple(sizes), data=data, epochs=epochs_of)
        return chosen.task(betas, options)

    return make


NETS: Mapping[str, Net] = {
    "mlp": Net(_of("digits", (4, 256)), (4, 16, 64, 256), Fraction(1, 4), "train loss", 24, 2048),
    "conv": Net(_of("convnet", (16, 256)), (16, 64, 256), Fraction(3, 10), "train loss", eval_samples=2048),
    "resnet8": Net(_resnet8, (8, 32, 128, 512), Fraction(3, 10), "train loss"),
    "gpt": Net(_of("gpt-tiny", (8, 512), 0.0114), (8, 32, 128, 512), Fraction(2, 5), "test loss", 12, 256, measured=64),
}


# -- one seed of one cell ----------------------------------------------------------------------------------------------


@dataclass
class History:
    """What the optimizer saw in the last steps before the switch: mean squared gradients, and the mean of 1 / D."""

    squares: dict[Tensor, Tensor] = field(default_factory=dict)
    inverse: dict[Tensor, Tensor] = field(default_factory=dict)
    steps: int = 0

    def add(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state[p]
                corrected = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
                self._sum(self.squares, p, p.grad.square())
                self._sum(self.inverse, p, 1 / (corrected.sqrt() + group["eps"]))

    def _sum(self, sums: dict[Tensor, Tensor], p: Tensor, value: Tensor) -> None:
        sums[p] = sums[p].add_(value) if p in sums else value.clone()


def before_the_switch(task: Task, seed: int, start: int) -> tuple[Trial, History]:
    """Return the run of a seed up to the switch."""
    run, history = Trial(task, Variant(), [seed], Settings(grid=(0, start), measure=Measure(noise=False))), History()
    last = start / float(task.plan.batch_size.total) - WINDOW
    hook = None
    with torch.random.fork_rng():
        while not run.done:
            if hook is None and run.step >= last:
                hook = run.learner.optimizer.register_step_post_hook(history.add)  # type: ignore[attr-defined]
            run.advance()
    if hook is not None:
        hook.remove()
    return run, history


def curvatures(task: Task, run: Trial, history: History, size: int, seed: int) -> dict[str, Stability]:
    """Return ``eta h`` with ``D`` from the second moment of now, and with three other readings of it."""
    learner: Any = run.learner
    model, optimizer = learner.nets.model, learner.optimizer
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(task.train), generator=generator)[: BATCHES * size]
    batches = [task.train[index[i : i + size]] for i in range(0, BATCHES * size, size)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        with sdpa_kernel(SDPBackend.MATH):  # the others have no double backward
            return task.loss(model(x), y).mean()

    readings: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "next": lambda g, p: (beta2(g) * v_hat(g, p) + (1 - beta2(g)) * history.squares[p] / history.steps).sqrt(),
        "window": lambda g, p: (history.squares[p] / history.steps).sqrt(),
        "harmonic": lambda g, p: history.steps / history.inverse[p] - g["eps"],
    }

    def beta2(group: Any) -> float:
        return float(group["betas"][1])

    def v_hat(group: Any, p: Tensor) -> Tensor:
        state = optimizer.state[p]
        found: Tensor = state["exp_avg_sq"] / (1 - beta2(group) ** float(state["step"]))
        return found

    found = {"now": measure_stability(model, optimizer, loss, batches, seed=seed)}
    for name, reading in readings.items():
        roots = [reading(g, p) + g["eps"] for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        found[name] = measure_stability(model, optimizer, loss, batches, seed=seed, roots=roots)
    return found


def arms(task: Task, kappas: Sequence[int], eta_h: float) -> Iterator[tuple[str, int, float, Variant]]:
    """Yield label, kappa, beta1 and variant of all runs at larger batches; of those that are equal, the first."""
    beta1 = task.plan.optimizer.beta1  # type: ignore[attr-defined]
    for kappa in kappas:
        rules = {
            "paper": "sqrt with floor:0.0,0.9",
            "measured": f"sqrt with floor:kappa*{0.75 * eta_h:.6f},0.9",
            "floor .9": "sqrt with floor:0.9,0.9",
            "learning rate only": "sqrt-eta",
        }
        if 1 - kappa * (1 - beta1) <= 1e-9:
            del rules["paper"]
        for value in LADDER[kappa]:
            share = (1 + value) / (1 - value) / kappa
            rules[f"beta1 {value:g}"] = f"sqrt with floor:kappa*{share:.9f},0.9"
        seen: dict[tuple[float, bool], str] = {}
        for label, rule in rules.items():
            variant = Variant(kappa, rule)
            new = variant.plan(task.plan).optimizer.beta1  # type: ignore[attr-defined]
            key = round(new, 6), "v" in variant.the_rule(task.plan).units
            if key not in seen:
                seen[key] = label
                yield label, kappa, new, variant
            else:
                yield f"{label} = {seen[key]}", kappa, new, variant


def trial(net: str, betas: str, seed: int, folder: Path, data: str | None) -> str:
    """Make all runs of a seed of a cell, and write them to one file."""
    place, started = folder / f"{net}-{betas}-{seed}.npz", time.time()
    if place.exists():
        return f"{place.name} was there"
    torch.set_num_threads(1)
    chosen = NETS[net]
    task = chosen.task(BETAS[betas], data)
    samples = int(task.plan.samples or 0)
    start = int(samples * chosen.before) // chosen.sizes[-1] * chosen.sizes[-1]
    warm, history = before_the_switch(task, seed, start)
    measured = time.time()
    found = curvatures(task, warm, history, chosen.measured, seed)
    measured = time.time() - measured
    state = warm.state_dict()
    points = min(chosen.points, (samples - start) // (2 * chosen.sizes[-1]))
    settings = Settings(
        grid(samples, points, start, chosen.sizes), start,
        Measure(points, eval_samples=chosen.eval_samples, noise=False),
    )  # fmt: skip
    curves: dict[str, np.ndarray[Any, Any]] = {}
    values: dict[str, float] = {}
    same: dict[str, str] = {}

    def keep(label: str, variant: Variant) -> None:
        made = Trial(task, variant, [seed], settings, state).finish()
        curve = np.full(len(settings.grid), np.nan, np.float32)
        curve[: made.values[chosen.function].shape[1]] = made.values[chosen.function][0]
        curves[label] = curve

    keep("base", Variant())
    keep("other samples", Variant(other_samples=True))
    for label, kappa, beta1, variant in arms(task, chosen.kappas, found["now"].eta_h):
        name, _, twin = label.partition(" = ")
        values[f"{kappa} {name}"] = beta1
        if twin:
            same[f"{kappa} {name}"] = f"{kappa} {twin}"
        else:
            keep(f"{kappa} {name}", variant)
    record = {
        "net": net, "betas": betas, "seed": seed, "samples": list(settings.grid), "beta1": values, "same": same,
        "eta_h": {name: one.eta_h for name, one in found.items()},
        "error": {name: one.error for name, one in found.items()},
        "residual": {name: one.residual for name, one in found.items()},
        "gradients": found["now"].gradients, "seconds measuring": measured, "seconds": time.time() - started,
        "hardware": platform.processor() or platform.machine(), "torch": torch.__version__,
    }  # fmt: skip
    with whole(place) as path, open(path, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, record=json.dumps(record), **curves)
    return f"{place.name} {record['seconds']:.0f} s, eta h {found['now'].eta_h:.3g}"


# -- all of them -------------------------------------------------------------------------------------------------------


#: What is known of a seed, and its curves by label.
Seed = tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]


def read(folder: Path, out: Path) -> dict[str, list[Seed]]:
    """Return all finished seeds by cell: those of the stored file, and those of the runs that it has not."""
    found: dict[tuple[str, int], Seed] = {}
    if (out / "runs.npz").exists():
        with np.load(out / "runs.npz") as held:
            for record in json.loads(str(held["records"])):
                key = f"{record['net']}-{record['betas']}", record["seed"]
                start = f"{key[0]}-{key[1]}/"
                found[key] = record, {k.removeprefix(start): held[k] for k in held.files if k.startswith(start)}
    for place in sorted(folder.glob("*-*-*.npz")):
        with np.load(place) as held:
            record = json.loads(str(held["record"]))
            key = f"{record['net']}-{record['betas']}", record["seed"]
            found.setdefault(key, (record, {k: held[k] for k in held.files if k != "record"}))
    names = [f"{net}-{betas}" for net in NETS for betas in BETAS]
    return {name: [found[key] for key in sorted(found) if key[0] == name] for name in names}


def write(runs: Mapping[str, Sequence[Seed]], out: Path) -> None:
    """Store all seeds in one file."""
    arrays = {
        f"{name}-{record['seed']}/{label}": curve
        for name, cell in runs.items()
        for record, curves in cell
        for label, curve in curves.items()
    }
    records = [record for cell in runs.values() for record, _ in cell]
    with whole(out / "runs.npz") as path, open(path, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, records=json.dumps(records), **arrays)


def gap_of(cell: Sequence[Seed], label: str) -> dict[str, float]:
    """Return the largest gap of an arm to the base over its range, in percent, with its standard error and n."""
    runs: dict[str, list[np.ndarray[Any, Any]]] = {"base": [], label: []}
    for record, curves in cell:
        runs["base"].append(curves["base"])
        runs[label].append(curves[record["same"].get(label, label)])
    seeds = [record["seed"] for record, _ in cell]
    samples = cell[0][0]["samples"]
    base, other = (
        Trajectory(
            np.array(samples, float), {"loss": np.array(runs[name], float)},
            meta={"seeds": seeds, "samples": samples, "switch_at": samples[0]},
        )
        for name in ("base", label)
    )  # fmt: skip
    found = compare(base, other, ["loss"])
    worst = found.worst
    lost = int(np.isnan(np.array(runs[label])[:, -1]).sum())
    if worst is None or math.isnan(worst.judged.gap):
        return {"gap": math.nan, "se": math.nan, "n": len(seeds), "diverged": lost}
    return {"gap": 100 * worst.judged.gap, "se": 100 * worst.judged.se, "n": len(seeds), "diverged": lost}


def capped(record: dict[str, Any], curves: dict[str, np.ndarray[Any, Any]]) -> Seed:
    """Return a seed with one more arm: the measured value, but never above beta1 itself; its run is one of the others.

    Where the measured value is larger, the arm is that of beta1 kept.
    """
    beta1 = BETAS[record["betas"]][0]
    values, same = dict(record["beta1"]), dict(record["same"])
    for label, value in record["beta1"].items():
        kappa, _, name = label.partition(" ")
        if name == "measured":
            kept = {0.9: "floor .9", 0.95: "beta1 0.95"}[beta1]
            source = label if value <= beta1 else f"{kappa} {kept}"
            capped_label = f"{kappa} measured, at most beta1"
            values[capped_label], same[capped_label] = min(value, beta1), same.get(source, source)
    return {**record, "beta1": values, "same": same}, curves


def summary(runs: Mapping[str, Sequence[Seed]]) -> dict[str, Any]:
    """Return what was measured in each cell that has two seeds or more, and the gap of every arm."""
    cells: dict[str, Any] = {}
    for name, seeds in runs.items():
        if len(seeds) < 2:
            continue
        cell = [capped(record, curves) for record, curves in seeds]
        labels = list(dict.fromkeys(label for record, _ in cell for label in record["beta1"]))
        shared = [label for label in labels if all(label in record["beta1"] for record, _ in cell)]
        cells[name] = {
            "seeds": [record["seed"] for record, _ in cell],
            "eta_h": {key: [record["eta_h"][key] for record, _ in cell] for key in cell[0][0]["eta_h"]},
            "error": {key: [record["error"][key] for record, _ in cell] for key in cell[0][0]["error"]},
            "gradients": [record["gradients"] for record, _ in cell],
            "seconds": sum(record["seconds"] for record, _ in cell),
            "null": gap_of(cell, "other samples"),
            "arms": {
                label: {"beta1": [record["beta1"][label] for record, _ in cell], **gap_of(cell, label)}
                for label in shared
            },
        }
    return cells


def collect(folder: Path, out: Path) -> None:
    """Store what is finished, and write the page."""
    out.mkdir(parents=True, exist_ok=True)
    runs = read(folder, out)
    write(runs, out)
    cells = summary(runs)
    (out / "README.md").write_text(page(cells), encoding="utf-8")
    print(*judged(cells), sep="\n")


def page(cells: Mapping[str, Any]) -> str:
    """Return the page of the results in Markdown."""
    lines = [
        "# beta1 by measured stability",
        "",
        "The largest gap of the loss after the switch, in percent of the range of the kept batch's curve, ± a standard",
        "error over the seeds; in brackets the median beta1 after the switch. `null` is the same batch with other",
        "samples, `eta h` the median of the curvature measured at the switch. Betas: `999` (.9, .999), `95` (.9, .95),",
        "`long` (.95, .999). Made by `python experiments/stability.py`; the curves of all seeds are in `runs.npz`.",
        "",
        "| net-betas (n; null; eta h) | kappa | paper | measured | measured, at most beta1 | floor .9 | lr only "
        "| fixed beta1 after the switch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        null = cell["null"]
        head = (
            f"{name} ({len(cell['seeds'])}; {null['gap']:.1f} ± {null['se']:.1f}; {median(cell['eta_h']['now']):.2g})"
        )
        for kappa in (4, 16, 64):
            arms = {
                label.partition(" ")[2]: arm
                for label, arm in cell["arms"].items()
                if label.partition(" ")[0] == str(kappa)
            }
            if not arms:
                continue
            named = [
                _told(arms[label]) if label in arms else "–"
                for label in ("paper", "measured", "measured, at most beta1", "floor .9", "learning rate only")
            ]
            fixed = ", ".join(_told(arm) for label, arm in arms.items() if label.startswith("beta1 "))
            lines.append(f"| {head} | {kappa} | {' | '.join(named)} | {fixed or '–'} |")
    lines += ["", *by_share(cells)]
    lines += ["", *(f"- {line}" for line in judged(cells)), ""]
    return "\n".join(lines)


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _told(arm: Mapping[str, Any]) -> str:
    lost = f", {arm['diverged']} lost" if arm["diverged"] else ""
    return f"{arm['gap']:.1f} ± {arm['se']:.1f} [{median(arm['beta1']):.2f}]{lost}"


def shares(cells: Mapping[str, Any]) -> list[tuple[float, str, dict[str, Any]]]:
    """Return ``kappa eta h`` over the bound of every fixed value of beta1, its name and what came of it, in order."""
    found = []
    for name, cell in cells.items():
        eta_h = float(np.mean(cell["eta_h"]["now"]))
        for label, arm in cell["arms"].items():
            kappa, _, kind = label.partition(" ")
            if kind.startswith(("beta1 ", "paper", "floor")):
                bound = stability_bound(arm["beta1"][0])
                found.append((float(kappa) * eta_h / bound, f"{name} {label}", arm))
    return sorted(found, key=lambda one: one[0])


def by_share(cells: Mapping[str, Any]) -> list[str]:
    """Return a table of the gaps of all fixed values by ``kappa eta h`` over their bound."""
    lines = ["| kappa eta h over the bound | fixed values | gap: median, largest | thrown |", "|---|---|---|---|"]
    placed, edges = shares(cells), (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, math.inf)
    for low, high in pairwise(edges):
        gaps = [abs(arm["gap"]) for share, _, arm in placed if low <= share < high]
        if gaps:
            thrown = sum(gap > 50 for gap in gaps)
            place = f"{low:g} to {high:g}" if high < math.inf else f"above {low:g}"
            lines.append(f"| {place} | {len(gaps)} | {median(gaps):.0f}, {max(gaps):.0f} % | {thrown} |")
    return lines


def judged(cells: Mapping[str, Any]) -> list[str]:
    """Return what became of the hypotheses in results/PROTOCOL.md, in a line each."""
    lines = []
    for rival in ("measured", "measured, at most beta1"):
        pairs = [
            (f"{name} at {kappa}", cell["arms"][f"{kappa} {rival}"], cell["arms"][f"{kappa} floor .9"])
            for name, cell in cells.items()
            for kappa in (4, 16, 64)
            if f"{kappa} {rival}" in cell["arms"]
        ]
        means = [float(np.mean([abs(one["gap"]) for one in side])) for side in list(zip(*pairs, strict=True))[1:]]
        farther, nearer = [], 0
        for name, arm, floor in pairs:
            more, error = abs(arm["gap"]) - abs(floor["gap"]), math.hypot(arm["se"], floor["se"])
            nearer += more < 0
            if more > max(5, 2 * error):
                farther.append(f"{name} ({abs(arm['gap']):.0f} instead of {abs(floor['gap']):.0f} %)")
        lines.append(
            f"{rival}: the largest gaps have the mean {means[0]:.1f} %, those of the floor of .9 "
            f"{means[1]:.1f} %, over {len(pairs)} cells; "
            f"nearer in {nearer}; farther by more than 5 % and twice the error: {', '.join(farther) or 'nowhere'}"
        )
    placed = shares(cells)
    thrown = [one for one in placed if one[2]["diverged"] or abs(one[2]["gap"]) > 50]
    wrong = [f"{name} ({share:.2f} of the bound, {arm['gap']:.0f} %)" for share, name, arm in thrown if share < 0.5]
    lines.append(
        f"the bound: {len(thrown)} fixed values threw the loss by more than 50 %, the nearest at "
        f"{min((one[0] for one in thrown), default=math.nan):.2f} of it; "
        f"{sum(one[0] < 0.5 for one in placed)} are below half of it; both: {', '.join(wrong) or 'none'}"
    )
    for reading in ("next", "harmonic", "window"):
        ratios = {
            name: float(np.mean(np.array(cell["eta_h"]["now"]) / np.array(cell["eta_h"][reading])))
            for name, cell in cells.items()
        }
        lines.append(f"now over {reading}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return lines


def _job(job: tuple[str, str, int, Path, str | None]) -> str:
    try:
        return trial(*job)
    except Exception:
        return f"{job[:3]} failed: {traceback.format_exc()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--cells", nargs="+", default=[f"{net}-{betas}" for net in NETS for betas in BETAS])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--data", default=os.environ.get("ROOTSCALE_DATA"), help="folder that holds enwik8")
    parser.add_argument("--runs", type=Path, default=Path("runs/stability"))
    parser.add_argument("--out", type=Path, default=Path("results/stability"))
    parser.add_argument("--collect", action="store_true", help="make nothing")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    if not args.collect:
        jobs = [(*cell.split("-"), seed, args.runs, args.data) for seed in range(args.seeds) for cell in args.cells]
        with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(_job, job) for job in jobs]):
                print(done.result(), flush=True)
    collect(args.runs, args.out)


if __name__ == "__main__":
    main()
