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
    torchrun --nproc-per-node 8 -m rootscale reproduce imagenet-resnet50 \
        --data FOLDER --device cuda --batch-sizes 256 32768
    rootscale reproduce tiny-imagenet-resnet50 --device cuda --data FOLDER
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.files import locked, write_json
from rootscale.lab import Settings, Variant
from rootscale.lab.provenance import environment
from rootscale.paper import data
from rootscale.paper.experiment import Experiment, Line, Options, Stored
from rootscale.paper.experiments.imagenet_images import Folder, generated
from rootscale.paper.experiments.imagenet_training import Job, agreed, process, train
from rootscale.paper.finals import ACCURACY, Final, accuracies, format_gap
from rootscale.paper.models import convnet
from rootscale.paper.models import resnet50 as library_resnet50
from rootscale.paper.parts import settings_for
from rootscale.paper.recipes import staircase, steps_of
from rootscale.paper.shown import Outcome, Shown, judge_ends, tell_ends
from rootscale.paper.tasks import image_task
from rootscale.plan import Plan

_log = logging.getLogger(__name__)


#: The paper's batch size.
BASE = 256
#: Batch sizes of a smoke test are this many times smaller.
SHRINK = 16
#: From its appendix "Experiment Configuration Details" (section ImageNet): shares of warm-up, and of the decays.
WARMUP, DECAYS = Fraction(1, 18), (Fraction(5, 9), Fraction(8, 9))


def imagenet_plan(samples: int, epochs: float = 90, eps: float = 1e-8, batch_size: int = BASE) -> Plan:
    """The paper's run at batch size 256; shorter ones keep the shares.

    Args:
        samples: in the training data.
        epochs: of ``floor(samples / batch_size)`` steps; of a part of one, whole steps.
        eps: 1e-8 and 1e-30 in the paper.
        batch_size: at which the values hold as given; nothing is converted.
    """
    steps = steps_of(samples, epochs, batch_size)
    adam = hparams.Adam(eta=3e-4, beta1=0.999, beta2=0.999, eps=eps, weight_decay=1e-4)
    schedule = staircase(steps, WARMUP, DECAYS)
    return Plan(adam, BatchSize(batch_size), steps=steps, schedule=schedule, batchnorm_momentum=0.1)


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


#: Images through the net at once, over which BatchNorm takes its statistics; and the size of the images.
MICRO, SIZE = 256, 224


def script(options: Options, out: Path, runs: Path, minutes: float | None) -> bool:
    """Make all runs that are missing, or as many as there is time for, in as many processes as torchrun started."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    device = torch.device(options.device)
    if several:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        with tempfile.TemporaryDirectory() as temporary, locked(runs / "locks" / f"script-{process()[0]}") as mine:
            job = _job(options, device, Path(temporary))
            job = replace(job, deadline=math.inf if minutes is None else time.monotonic() + 60 * minutes)
            return mine and _run(job, options, out, runs)
    finally:
        if several:
            dist.destroy_process_group()


def _job(options: Options, device: torch.device, temporary: Path) -> Job:
    if options.smoke:
        generated(temporary)
        base = imagenet_plan(64, options.epochs, options.eps, batch_size=BASE // SHRINK // 2)
        base = replace(base, optimizer=hparams.Adam(3e-3, 0.9, 0.98, options.eps, weight_decay=1e-4))
        return Job(temporary, partial(convnet, width=8, momentum=0.1), 16, base, 4, options.points, device, 0)
    root = data.data_folder(options.data, "ImageNet")
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise ValueError(f"{root} must have the folders train and val, each with a folder for each class")
    base = imagenet_plan(len(Folder(root / "train", SIZE)), options.epochs, options.eps)
    workers = max(1, (os.cpu_count() or 2) - 1)
    return Job(root, resnet50, SIZE, base, MICRO, options.points, device, workers)


def _run(job: Job, options: Options, out: Path, runs: Path) -> bool:
    runs.mkdir(parents=True, exist_ok=True)
    found, complete = [], True
    for seed in range(options.seeds):
        for size in options.batch_sizes:
            late = time.monotonic() >= job.deadline
            if dist.is_initialized():
                late, _ = agreed(late, False, job.device)
            record = train(job, size // SHRINK if options.smoke else size, seed, runs, late=late)
            complete = complete and record is not None
            if record is not None:
                found.append(record)
    if process()[0] == 0:
        _write(job, options, out, found, complete)
    return complete


def _write(job: Job, options: Options, out: Path, found: list[dict[str, Any]], complete: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "name": "imagenet-resnet50",
        "command": EXPERIMENTS[0].command(options),
        "smoke": options.smoke,
        "seeds": options.seeds,
        "base_plan": job.base.to_dict(),
        "complete": complete,
        "runs": found,
        "processes": process()[1],
        "date": time.strftime("%Y-%m-%d"),
        **environment(str(job.device)),
    }
    write_json(out / "imagenet.json", record, indent=1)
    for one in found:
        last = "diverged" if one["diverged"] else f"{100 * one['test accuracy'][-1]:.2f} %"
        _log.info(
            "B = %s, seed %s: test accuracy %s, %.0f s", f"{one['batch_size']:,}", one["seed"], last, one["seconds"]
        )


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


@lru_cache(maxsize=1)
def _tiny(folder: str | None) -> data.Images:
    return data.tiny_imagenet20(folder)


def lines(options: Options) -> tuple[list[Line], Settings]:
    """The base, which is the smallest batch, and the others under the rule."""
    sizes = sorted(size // SHRINK if options.smoke else size for size in options.batch_sizes)
    images = data.patterns(128, 64, classes=4, size=16) if options.smoke else _tiny(options.data)
    n = len(images.train)
    plan = imagenet_plan(n, options.epochs, options.eps, BASE // SHRINK if options.smoke else BASE)
    plan = plan.at(sizes[0], "with paper")
    model = partial(convnet, classes=4, width=8, momentum=0.1) if options.smoke else partial(resnet50, 20)
    task = image_task("smoke-imagenet" if options.smoke else "tiny-imagenet-20-resnet50", images, plan, model)
    made = [Line(f"B = {size:,}", task, Variant(Fraction(size, sizes[0]), "with paper")) for size in sizes]
    return made, settings_for(options, plan, sizes, eval_samples=1000)


def words(finals: Sequence[Final]) -> str:
    """Accuracies, and the gap at the largest batch."""
    text = "test accuracy " + accuracies(finals)
    return text + (f"; gap at {finals[-1].label}: {format_gap(ACCURACY, finals[-1].accuracy)}" if finals[1:] else "")


def headline(finals: Sequence[Final]) -> str:
    """Return what the largest batch comes to."""
    base, *others = finals
    ends = {f"{final.batch_size // base.batch_size} times the batch": final.accuracy for final in others[-1:]}
    return f"ResNet-50 on 20 classes, which it hardly learns: {tell_ends(ends)}"


def judge(finals: Sequence[Final]) -> Outcome:
    """Return whether the accuracies are within the paper's 1.5 points."""
    return judge_ends([final.accuracy for final in finals[1:]], 0.015)


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
        shares=True,
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
        shown=Shown(
            headline,
            limit=0.015,
            judge=judge,
            stands_for="imagenet-resnet50",
            differs="another data set (20 classes, 10,000 images), on which the net learns little; B = 64 to 1,024",
        ),
    ),
]
