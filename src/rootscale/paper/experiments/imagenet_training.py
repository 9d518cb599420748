"""A run on ImageNet in PyTorch, on any number of GPUs: it is resumed from its checkpoint as if it had not stopped."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale.files import whole
from rootscale.paper.experiments.imagenet_images import Draws, Folder, Micro
from rootscale.paper.transforms import Normalise
from rootscale.plan import Plan
from rootscale.training.adapters import make_optimizer

__all__ = ["Job", "agreed", "process", "train"]

#: Of each channel of ImageNet's training images, in [0, 1].
STATISTICS = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: Several processes ask the first one whether to stop at every so many steps: asking costs time.
ASK_EVERY = 16


@dataclass(frozen=True)
class Job:
    """What the runs have in common.

    Args:
        root: folder with ``train`` and ``val``.
        model: makes the net for so many classes.
        size: of the images.
        base: the plan at its batch size.
        micro: samples through the net at once.
        points: at which the accuracy is measured.
        device: where.
        workers: processes that decode, for each process that trains.
        every: seconds between checkpoints.
        deadline: of `time.monotonic`.
    """

    root: Path
    model: Callable[[int], nn.Module]
    size: int
    base: Plan
    micro: int
    points: int
    device: torch.device
    workers: int
    every: float = 300.0
    deadline: float = math.inf


def process() -> tuple[int, int]:
    """Return the number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def agreed(stop: bool, keep: bool, device: torch.device) -> tuple[bool, bool]:
    """Return what the first process says: whether to stop, and whether to write a checkpoint."""
    flags = torch.tensor([stop, keep], device=device).int()
    dist.broadcast(flags, 0)
    first, second = flags.tolist()
    return bool(first), bool(second)


def train(job: Job, batch: int, seed: int, runs: Path, *, late: bool = False) -> dict[str, Any] | None:
    """Make a run at a batch size under the rule, or resume it.

    Args:
        job: what the runs have in common.
        batch: the batch size.
        seed: of the run.
        runs: folder of the checkpoints.
        late: only read what is finished.

    Returns:
        What was measured; None if there was no time, with a checkpoint to resume from.
    """
    run = _Run(job, batch, seed, runs)
    if run.finished:
        return run.record
    return None if late or not run.advance() else run.record


class _Run:
    """A run under way."""

    def __init__(self, job: Job, batch: int, seed: int, runs: Path) -> None:
        self.job, self.seed = job, seed
        self.rank, self.world = process()
        self.plan = job.base.at(batch, "with paper")
        assert self.plan.total_steps is not None
        self.steps = math.ceil(self.plan.total_steps)
        self.measured = {round(self.steps * (i + 1) / job.points) for i in range(job.points)}
        self.micro = Micro(batch, min(job.micro, batch // self.world), self.rank, self.world)
        self.images = Folder(job.root / "train", job.size, seed)
        torch.manual_seed(seed)
        made = job.model(len(self.images.classes))
        self.model = made.to(job.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Statistics are taken over micro-batches, and process 0 keeps the average: of its own, one in each ``world``.
        momentum = job.base.at(self.micro.size * self.world).batchnorm_momentum
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = momentum
        self.optimizer = make_optimizer(self.model.parameters(), self.plan.optimizer)
        what = json.dumps([self.plan.to_dict(), job.size, job.micro, job.points], sort_keys=True)
        self.place = runs / f"B-{batch}-seed-{seed}-{hashlib.sha256(what.encode()).hexdigest()[:10]}.pt"
        self.record: dict[str, Any] = {"batch_size": batch, "seed": seed}
        self.record |= {name: [] for name in ("steps", "test accuracy", "test loss", "train loss")}
        self.record |= {"diverged": False, "seconds": 0.0}
        self.step = 0
        self._load()
        self.total, self.since = torch.zeros((), device=job.device), 0
        self.began = self.saved = time.monotonic()

    @property
    def finished(self) -> bool:
        return self.step >= self.steps or bool(self.record["diverged"])

    def advance(self) -> bool:
        """Train to the end, or to the deadline; return whether it is the end."""
        net: nn.Module = self.model
        if self.world > 1:
            ids = [self.job.device] if self.job.device.type == "cuda" else None
            net = nn.parallel.DistributedDataParallel(self.model, device_ids=ids)
        batches = self._batches()
        while not self.finished:
            self._step(net, batches)
            self.step += 1
            if self.step in self.measured:
                self._measure()
            now = time.monotonic()
            stop, keep = now > self.job.deadline, now - self.saved > self.job.every
            if self.world > 1:
                stop, keep = agreed(stop, keep, self.job.device) if self.step % ASK_EVERY == 0 else (False, False)
            if stop or keep or self.finished:
                self._save()
            if stop:
                return self.finished
        return True

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        draws = Draws(len(self.images), self.micro, range(self.step, self.steps), self.seed)
        workers = self.job.workers
        loader = torch.utils.data.DataLoader(
            self.images, batch_sampler=draws, num_workers=workers, pin_memory=self.job.device.type == "cuda",
            persistent_workers=workers > 0, prefetch_factor=4 if workers else None,
        )  # fmt: skip
        return iter(loader)

    def _step(self, net: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate(self.step)
        self.optimizer.zero_grad()
        parts = self.micro.parts
        for i in range(parts):
            x, y = (part.to(self.job.device, non_blocking=True) for part in next(batches))
            last = i == parts - 1
            with nullcontext() if last or self.world == 1 else net.no_sync():  # type: ignore[operator]
                loss = F.cross_entropy(outputs(net, x, self.job.device), y) / parts
                loss.backward()  # type: ignore[no-untyped-call]
            self.total += loss.detach()
        self.since += 1
        self.optimizer.step()

    def _measure(self) -> None:
        found, mean = evaluate(self.model, self.job), self.total / self.since
        if self.world > 1:
            dist.all_reduce(mean)
            mean /= self.world
        self.record["steps"].append(self.step)
        self.record["train loss"].append(float(mean))
        for name, value in found.items():
            self.record[name].append(value)
        self.total.zero_()
        self.since = 0
        self.record["diverged"] = not all(map(math.isfinite, (float(mean), found["test loss"])))

    def _save(self) -> None:
        self.record["seconds"] += time.monotonic() - self.began
        if self.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            with whole(self.place) as temporary:
                torch.save({**state, "step": self.step, "record": self.record}, temporary)
        self.began = self.saved = time.monotonic()

    def _load(self) -> None:
        if self.place.exists():
            held = torch.load(self.place, map_location=self.job.device, weights_only=True)
            self.model.load_state_dict(held["model"])
            self.optimizer.load_state_dict(held["optimizer"])
            self.step, self.record = held["step"], held["record"]


def outputs(net: nn.Module, x: Tensor, device: torch.device) -> Tensor:
    """Return what a net makes of images in bytes; in bfloat16 on a GPU."""
    x = STATISTICS(x).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        made: Tensor = net(x)
    return made.float()


@torch.no_grad()
def evaluate(model: nn.Module, job: Job) -> dict[str, float]:
    """Return accuracy and loss on the validation images; every process measures its share of them."""
    rank, world = process()
    images = Folder(job.root / "val", job.size)
    keys = [(i, i) for i in range(rank, len(images), world)]
    batches = [keys[i : i + job.micro] for i in range(0, len(keys), job.micro)]
    loader = torch.utils.data.DataLoader(images, batch_sampler=batches, num_workers=job.workers)
    sums = torch.zeros(3, dtype=torch.float64, device=job.device)
    if world > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    model.eval()
    for x, y in loader:
        labels, found = y.to(job.device), outputs(model, x.to(job.device), job.device)
        right = (found.argmax(1) == labels).sum().double()
        loss = F.cross_entropy(found, labels, reduction="sum").double()
        sums += torch.stack([right, loss, sums.new_tensor(len(y))])
    model.train()
    if world > 1:
        dist.all_reduce(sums)
    return {"test accuracy": float(sums[0] / sums[2]), "test loss": float(sums[1] / sums[2])}
