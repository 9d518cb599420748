r"""ResNet-50 on ImageNet, from a folder of images, on any number of GPUs; and on Tiny-ImageNet-20, in the lab.

The claim. "We achieve around 74 % validation accuracy with batch size 256 and the accuracy drops by at most 1.5 % at
batch size 32768" (Adam under the square root rule, eps = 1e-8; for eps = 1e-30, 3 % from B = 1,024 to 16,384; appendix
"Square Root Scaling Experiments", ImageNet).

Setting. The appendix "Experiment Configuration Details", section ImageNet: batches of 256 drawn with replacement, lr
3e-4, betas .999, L2 1e-4, 90 epochs, of which 5 are an exponential warm-up; lr divided by 10 at epochs 50 and 80 (the
text says 5/18 of the run for the former, which is epoch 25; its epochs are taken). Random crops and mirror images of
224 pixels, the usual; the paper says nothing of them. Larger batches are accumulated from micro-batches of 256, over
which BatchNorm takes its statistics, so that its momentum stays as it is.

``imagenet-resnet50`` takes a folder of JPEG files, ``train/CLASS/*`` and ``val/CLASS/*``, decoded by worker processes
while the GPU computes; all randomness is drawn from seed and position, so that a run goes on after a stop as if there
had been none, and several processes make the run that one makes with more accumulation. ``tiny-imagenet-resnet50`` has
its images in the GPU's memory: pipeline and rule at B = 64, 256 and 1,024.

Cost. Of ``tiny-imagenet-resnet50``, 8 minutes in two processes on one H200 that had other work too; ImageNet has not
been run.

    rootscale reproduce imagenet-resnet50 --device cuda --data FOLDER --minutes 60
    torchrun --nproc-per-node 8 -m rootscale.paper.experiments.imagenet_resnet50 \
        --data FOLDER --device cuda --batch-sizes 256 32768
    rootscale reproduce tiny-imagenet-resnet50 --device cuda --data FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.files import command_line, whole, write_json
from rootscale.lab import Settings, Variant
from rootscale.lab.provenance import environment
from rootscale.paper import data
from rootscale.paper.experiment import Experiment, Line, Options, Stored
from rootscale.paper.finals import ACCURACY, Final, accuracies, format_gap
from rootscale.paper.models import convnet
from rootscale.paper.models import resnet50 as library_resnet50
from rootscale.paper.parts import settings_for
from rootscale.paper.tasks import Normalise, Recipe, image_task
from rootscale.plan import Plan
from rootscale.training.adapters import make_optimizer
from rootscale.training.positions import generator

#: The paper's batch size.
BASE = 256
#: Batch sizes of a smoke test are this many times smaller.
SHRINK = 16
#: Of each channel of ImageNet's training images, in [0, 1].
STATISTICS = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


#: The paper's settings, from its appendix "Experiment Configuration Details" (section ImageNet).
RECIPE = Recipe(
    partial(hparams.Adam, eta=3e-4, beta1=0.999, beta2=0.999), (Fraction(5, 9), Fraction(8, 9)), warmup=Fraction(1, 18)
)


def imagenet_plan(samples: int, epochs: float = 90, eps: float = 1e-8, batch_size: int = BASE) -> Plan:
    """The paper's run at batch size 256; shorter ones keep the shares.

    Args:
        samples: in the training data.
        epochs: of ``floor(samples / batch_size)`` steps; of a part of one, whole steps.
        eps: 1e-8 and 1e-30 in the paper.
        batch_size: at which the values hold as given; nothing is converted.
    """
    return RECIPE.plan(samples, epochs, batch_size, eps=eps)


class _FromTransformers(nn.Module):
    """ResNet-50 of ``transformers``, for where there is no torchvision: the same net."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from transformers import ResNetConfig, ResNetForImageClassification

        self.net = ResNetForImageClassification(ResNetConfig(num_labels=classes))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.net.resnet.embedder(x)
        for stage in self.net.resnet.encoder.stages:
            hidden = stage(hidden)
        outputs: Tensor = self.net.classifier[-1](hidden.mean((-2, -1)))
        return outputs


def resnet50(classes: int) -> nn.Module:
    """ResNet-50 of torchvision or timm, or else of transformers."""
    try:
        return library_resnet50(classes)
    except ValueError as missing:
        try:
            return _FromTransformers(classes)
        except ImportError:
            raise missing from None


# -- images from a folder --------------------------------------------------------------------------------------------


class Folder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images in class folders, decoded one by one: bytes [3, size, size] and the number of the class.

    Samples are asked for by number and position in the run; the crop depends on seed and position only.

    Args:
        root: folder with a folder for each class.
        size: of the images.
        seed: of the crops; None is the middle of the image, as in tests.
    """

    def __init__(self, root: Path, size: int, seed: int | None = None) -> None:
        self.size, self.seed = size, seed
        self.classes = data.classes_in(root)
        self.files: list[str] = []
        self.labels: list[int] = []
        for label, name in enumerate(self.classes):
            with os.scandir(root / name) as entries:
                names = sorted(e.name for e in entries if Path(e.name).suffix.lower() in data.IMAGE_SUFFIXES)
            self.files += [os.path.join(root, name, file) for file in names]
            self.labels += [label] * len(names)
        if not self.files:
            raise ValueError(f"{root} has no images ({', '.join(sorted(data.IMAGE_SUFFIXES))})")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        """An image by its number, at a position of the run."""
        number, position = key
        path = self.files[number]
        change = partial(middle, size=self.size) if self.seed is None else partial(self._cropped, position=position)
        pixels = data.decode(path, path, change)
        return torch.from_numpy(np.ascontiguousarray(pixels)), self.labels[number]

    def _cropped(self, picture: Any, position: int) -> Any:
        assert self.seed is not None
        return crop(picture, self.size, np.random.default_rng((self.seed, 2, position)))


def crop(picture: Any, size: int, random: np.random.Generator) -> Any:
    """A part of 8 to 100 % of the area with sides of 3:4 to 4:3, scaled to a square; mirrored half of the time."""
    width, height = picture.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            break
    else:
        w = h = min(width, height)
        left, top = (width - w) // 2, (height - h) // 2
    part = picture.resize((size, size), 2, box=(left, top, left + w, top + h))  # 2: bilinear
    return part.transpose(0) if random.random() < 0.5 else part  # 0: left to right


def middle(picture: Any, size: int) -> Any:
    """The middle 7/8 of the shorter side, as a square."""
    width, height = picture.size
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), 2, box=(left, top, left + side, top + side))


class Draws(torch.utils.data.Sampler[list[tuple[int, int]]]):
    """The micro-batches of this process: numbers drawn with replacement, by seed and step, and their positions.

    Micro-batch j of a step goes to process ``j mod world``: what is trained does not depend on how many there are.

    Args:
        samples: in the data.
        batch, micro: samples of a step, and of a micro-batch.
        steps: the first step and the end.
        seed: of the numbers.
        rank, world: of the process.
    """

    def __init__(
        self, samples: int, batch: int, micro: int, steps: range, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        if batch % (micro * world):
            raise ValueError(
                f"a batch of {batch} cannot be made of micro-batches of {micro} in {world} processes: the batch size "
                f"must be a multiple of {micro * world}"
            )
        self.samples, self.batch, self.micro, self.steps = samples, batch, micro, steps
        self.seed, self.rank, self.world = seed, rank, world

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self.steps:
            numbers = torch.randint(self.samples, (self.batch,), generator=generator(self.seed, 9, step)).tolist()
            keys = [(number, step * self.batch + i) for i, number in enumerate(numbers)]
            for start in range(self.rank * self.micro, self.batch, self.world * self.micro):
                yield keys[start : start + self.micro]

    def __len__(self) -> int:
        """How many micro-batches there are."""
        return len(self.steps) * (self.batch // (self.micro * self.world))


# -- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What is common to the runs.

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


def train(job: Job, batch: int, seed: int, runs: Path, *, late: bool = False) -> dict[str, Any] | None:
    """A run at a batch size under the rule; None if there was no time, with a checkpoint to go on from.

    Args:
        job: what is common to the runs.
        batch: the batch size.
        seed: of the run.
        runs: folder of the checkpoints.
        late: only read what is finished.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    plan = job.base.at(batch)
    assert plan.total_steps is not None
    steps = math.ceil(plan.total_steps)
    images = Folder(job.root / "train", job.size, seed)
    torch.manual_seed(seed)
    model = job.model(len(images.classes)).to(job.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    micro = min(job.micro, batch // world)
    # Statistics are taken over micro-batches, and process 0 keeps the average: of its own, one in each ``world``.
    momentum = job.base.at(micro * world).batchnorm_momentum
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = momentum
    optimizer = make_optimizer(model.parameters(), plan.optimizer)
    what = json.dumps([plan.to_dict(), job.size, job.micro, job.points], sort_keys=True)
    place = runs / f"B-{batch}-seed-{seed}-{hashlib.sha256(what.encode()).hexdigest()[:10]}.pt"
    record: dict[str, Any] = {"batch_size": batch, "seed": seed, "steps": [], "test accuracy": [], "test loss": []}
    record |= {"train loss": [], "diverged": False, "seconds": 0.0}
    first = 0
    if place.exists():
        held = torch.load(place, map_location=job.device, weights_only=True)
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        first, record = held["step"], held["record"]
    if first >= steps or record["diverged"]:
        return record
    if late:
        return None
    net: nn.Module = model
    if world > 1:
        net = nn.parallel.DistributedDataParallel(model, device_ids=[job.device] if job.device.type == "cuda" else None)
    draws = Draws(len(images), batch, micro, range(first, steps), seed, rank, world)
    loader = torch.utils.data.DataLoader(
        images, batch_sampler=draws, num_workers=job.workers, pin_memory=job.device.type == "cuda",
        persistent_workers=job.workers > 0, prefetch_factor=4 if job.workers else None,
    )  # fmt: skip
    parts = iter(loader)
    measured = {round(steps * (i + 1) / job.points) for i in range(job.points)}
    saved = began = time.monotonic()
    total = torch.zeros((), device=job.device)
    since = 0

    def save(step: int) -> None:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "record": record}
            with whole(place) as temporary:
                torch.save(state, temporary)

    accumulation = batch // (micro * world)
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate(step)
        optimizer.zero_grad()
        for i in range(accumulation):
            x, y = next(parts)
            x, y = x.to(job.device, non_blocking=True), y.to(job.device, non_blocking=True)
            last = i == accumulation - 1
            with nullcontext() if last or world == 1 else net.no_sync():  # type: ignore[operator]
                loss = losses(net, x, y, job.device) / accumulation
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        since += 1
        optimizer.step()
        if step + 1 in measured:
            found = evaluate(model, job)
            mean = total / since
            if world > 1:
                dist.all_reduce(mean)
                mean /= world
            record["steps"].append(step + 1)
            record["train loss"].append(float(mean))
            for name, value in found.items():
                record[name].append(value)
            total.zero_()
            since = 0
            record["diverged"] = not all(map(math.isfinite, (float(mean), found["test loss"])))
        stop, keep = time.monotonic() > job.deadline, time.monotonic() - saved > job.every
        if world > 1:  # process 0 has the clock, and all do what it says; asking costs time
            stop, keep = _agreed(stop, keep, job.device) if (step + 1) % 16 == 0 else (False, False)
        finished = step + 1 == steps or record["diverged"]
        if stop or keep or finished:
            record["seconds"] += time.monotonic() - began
            saved = began = time.monotonic()
            save(step + 1)
        if finished:
            return record
        if stop:
            return None
    return record


def _agreed(stop: bool, keep: bool, device: torch.device) -> tuple[bool, bool]:
    flags = torch.tensor([stop, keep], device=device).int()
    dist.broadcast(flags, 0)
    first, second = flags.tolist()
    return bool(first), bool(second)


def losses(net: nn.Module, x: Tensor, y: Tensor, device: torch.device) -> Tensor:
    """The mean loss of a micro-batch of bytes; in bfloat16 on a GPU."""
    x = STATISTICS(x).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        return F.cross_entropy(net(x), y)


@torch.no_grad()
def evaluate(model: nn.Module, job: Job) -> dict[str, float]:
    """Accuracy and loss on the validation images; every process measures its share of them."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
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
        pixels, labels = x.to(job.device), y.to(job.device)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=job.device.type == "cuda"):
            outputs = model(STATISTICS(pixels).contiguous(memory_format=torch.channels_last)).float()
        right = (outputs.argmax(1) == labels).sum()
        sums += torch.stack(
            [right.double(), F.cross_entropy(outputs, labels, reduction="sum").double(), sums.new_tensor(len(y))]
        )
    model.train()
    if world > 1:
        dist.all_reduce(sums)
    return {"test accuracy": float(sums[0] / sums[2]), "test loss": float(sums[1] / sums[2])}


def generated(root: Path) -> None:
    """Images of four patterns as JPEG files, for smoke tests."""
    image = data.pillow("Image")
    held = data.patterns(64, 32, classes=4, size=20, noise=20.0)
    for split, part in (("train", held.train), ("val", held.test)):
        for i, (pixels, label) in enumerate(zip(part.inputs, part.targets, strict=True)):
            folder = root / split / f"class{int(label)}"
            folder.mkdir(parents=True, exist_ok=True)
            image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(folder / f"{i}.jpeg", quality=95)


@dataclass(frozen=True)
class Machine:
    """How the images get through the net.

    Args:
        micro: images through the net at once; BatchNorm takes its statistics over them.
        size: of the images.
        workers: processes that decode, for each process that trains.
    """

    micro: int = 256
    size: int = 224
    workers: int = max(1, (os.cpu_count() or 2) - 1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, also for torchrun; the exit status is 3 while runs are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/imagenet-resnet50"), help="folder of the results")
    parser.add_argument("--runs", type=Path, help="folder of the checkpoints; default: runs/NAME of --out")
    parser.add_argument("--data", help=f"folder with train and val; default: {data.VARIABLE}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="default: 256 1024 4096 16384 32768")
    parser.add_argument("--epochs", type=float, help="default: 90")
    parser.add_argument("--eps", type=float, help="default: 1e-8")
    parser.add_argument("--seeds", type=int, help="default: 1")
    parser.add_argument("--points", type=int, help="at which the accuracy is measured; default: 18")
    parser.add_argument("--micro", type=int, default=Machine.micro, help="images through the net at once")
    parser.add_argument("--size", type=int, default=Machine.size, help="of the images")
    parser.add_argument("--workers", type=int, default=Machine.workers, help="that decode")
    parser.add_argument("--minutes", type=float, help="stop after that time, with a checkpoint")
    parser.add_argument("--smoke", action="store_true", help="a small net on generated images")
    args = parser.parse_args(argv)
    options = EXPERIMENTS[0].options(
        smoke=args.smoke,
        batch_sizes=None if args.batch_sizes is None else tuple(args.batch_sizes),
        **{name: getattr(args, name) for name in ("data", "device", "epochs", "eps", "seeds", "points")},
    )
    runs = args.runs or Path("build/smoke" if args.smoke else ".") / "runs" / args.out.name
    command = command_line(
        "python -m rootscale.paper.experiments.imagenet_resnet50", sys.argv[1:] if argv is None else argv
    )
    machine = Machine(args.micro, args.size, args.workers)
    return 0 if run(options, args.out, runs, args.minutes, command, machine) else 3


def run(
    options: Options, out: Path, runs: Path, minutes: float | None, command: str, machine: Machine | None = None
) -> bool:
    """All runs that are missing, or as much of them as there is time for; in as many processes as torchrun started."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    device = torch.device(options.device)
    if several:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            job = _job(options, device, machine or Machine(), Path(temporary))
            job = replace(job, deadline=math.inf if minutes is None else time.monotonic() + 60 * minutes)
            return _run(job, options, out, runs, command)
    finally:
        if several:
            dist.destroy_process_group()


def _job(options: Options, device: torch.device, machine: Machine, temporary: Path) -> Job:
    if options.smoke:
        generated(temporary)
        base = imagenet_plan(64, options.epochs, options.eps, batch_size=BASE // SHRINK // 2)
        base = replace(base, optimizer=hparams.Adam(3e-3, 0.9, 0.98, options.eps, weight_decay=1e-4))
        return Job(temporary, partial(convnet, width=8, momentum=0.1), 16, base, 4, options.points, device, 0)
    root = Path(options.data or os.environ.get(data.VARIABLE, ""))
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise ValueError(
            f"the folder of the images must have train and val, each with a folder for each class, got {root}"
        )
    base = imagenet_plan(len(Folder(root / "train", machine.size)), options.epochs, options.eps)
    return Job(root, resnet50, machine.size, base, machine.micro, options.points, device, machine.workers)


def _run(job: Job, options: Options, out: Path, runs: Path, command: str) -> bool:
    runs.mkdir(parents=True, exist_ok=True)
    found, complete = [], True
    for seed in range(options.seeds):
        for size in options.batch_sizes:
            late = time.monotonic() >= job.deadline
            if dist.is_initialized():
                late, _ = _agreed(late, False, job.device)
            record = train(job, size // SHRINK if options.smoke else size, seed, runs, late=late)
            complete = complete and record is not None
            if record is not None:
                found.append(record)
    if not dist.is_initialized() or dist.get_rank() == 0:
        _write(job, options, out, found, complete, command)
    return complete


def _write(job: Job, options: Options, out: Path, found: list[dict[str, Any]], complete: bool, command: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "name": "imagenet-resnet50",
        "command": command,
        "smoke": options.smoke,
        "seeds": options.seeds,
        "base_plan": job.base.to_dict(),
        "complete": complete,
        "runs": found,
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
        "date": time.strftime("%Y-%m-%d"),
        **environment(str(job.device)),
    }
    write_json(out / "imagenet.json", record, indent=1)
    for one in found:
        last = "diverged" if one["diverged"] else f"{100 * one['test accuracy'][-1]:.2f} %"
        print(f"B = {one['batch_size']:,}, seed {one['seed']}: test accuracy {last}, {one['seconds']:.0f} s")


def stored(folder: Path) -> Stored | None:
    """The accuracies in ``imagenet.json``."""
    if not (folder / "imagenet.json").exists():
        return None
    record = json.loads((folder / "imagenet.json").read_text(encoding="utf-8"))
    ends: dict[int, list[float]] = {}
    for run in record["runs"]:
        ends.setdefault(run["batch_size"], []).append(math.nan if run["diverged"] else run["test accuracy"][-1])
    words = "test accuracy " + ", ".join(f"B = {size:,}: {100 * np.mean(ends[size]):.2f} %" for size in ends)
    if record["smoke"]:
        words = f"a smoke test on generated images, which says nothing about the claim: {words}"
    words += "" if record["complete"] else " (unfinished)"
    return Stored(words, record["seeds"], record["hardware"], folder / "imagenet.json")


def script(options: Options, out: Path, runs: Path, minutes: float | None) -> bool:
    """All of it, as `rootscale reproduce` calls it."""
    return run(options, out, runs, minutes, EXPERIMENTS[0].command(options))


# -- Tiny-ImageNet-20, in the lab ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _tiny(folder: str | None) -> data.Images:
    return data.tiny_imagenet20(folder)


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The base, which is the smallest batch, and the others under the rule."""
    sizes = sorted(size // SHRINK if options.smoke else size for size in options.batch_sizes)
    images = data.patterns(128, 64, classes=4, size=16) if options.smoke else _tiny(options.data)
    n = len(images.train)
    plan = imagenet_plan(n, options.epochs, options.eps, BASE // SHRINK if options.smoke else BASE)
    plan = plan.at(sizes[0])
    model = partial(convnet, classes=4, width=8, momentum=0.1) if options.smoke else partial(resnet50, 20)
    task = image_task("smoke-imagenet" if options.smoke else "tiny-imagenet-20-resnet50", images, plan, model)
    made = [Line(f"B = {size:,}", task, Variant(Fraction(size, sizes[0]))) for size in sizes]
    return made, settings_for(options, plan, sizes, eval_samples=1000)


def words(finals: Sequence[Final]) -> str:
    """Accuracies, and the gap at the largest batch."""
    text = "test accuracy " + accuracies(finals)
    return text + (f"; gap at {finals[-1].label}: {format_gap(ACCURACY, finals[-1].accuracy)}" if finals[1:] else "")


EXPERIMENTS = [
    Experiment(
        name="imagenet-resnet50",
        title="ResNet-50 on ImageNet",
        claim="About 74 % at B = 256, and at most 1.5 % less at B = 32768 (Adam, eps = 1e-8)",
        source="Section 5, figure on large scale experiments; appendix, Square Root Scaling Experiments, ImageNet",
        minutes=6000,
        defaults=Options(epochs=90, batch_sizes=(256, 1024, 4096, 16384, 32768), model="resnet50", points=18),
        script=script,
        takes=("device", "data", "epochs", "batch_sizes", "eps", "seeds", "points"),
        stored=stored,
        smoke={"epochs": 2, "batch_sizes": (128, 256), "points": 2},
    ),
    Experiment(
        name="tiny-imagenet-resnet50",
        title="ResNet-50 on Tiny-ImageNet-20",
        claim="On ImageNet, about 74 % at B = 256, and at most 1.5 % less at B = 32768 (Adam, eps = 1e-8)",
        source="Section 5, figure on large scale experiments; appendix, Square Root Scaling Experiments, ImageNet",
        minutes=20,
        defaults=Options(epochs=60, batch_sizes=(64, 256, 1024), model="resnet50", points=20),
        lines=lines,
        words=words,
        smoke={"batch_sizes": (64, 256), "epochs": 4},
    ),
]


if __name__ == "__main__":
    sys.exit(main())
