"""Does the square root rule keep the accuracy of ResNet-50 on ImageNet? And, in small, on 20 classes of it?

Claim. "We achieve around 74 % validation accuracy with batch size 256 and the accuracy drops by at most 1.5 % at batch
size 32768" (Adam under the rule, eps = 1e-8; for eps = 1e-30, 3 % from B = 1,024 to 16,384; section 5; appendix,
"Square Root Scaling Experiments", ImageNet). Fixed before it was run: one seed of the small copy; contradicted if the
accuracy at the end falls by more than 1.5 points beyond its error.

Protocol. The appendix "Experiment Configuration Details": batches drawn with replacement, lr 3e-4, betas .999, L2 1e-4,
90 epochs, of which 5 are an exponential warm-up; lr divided by 10 at epochs 50 and 80 (the text says 5/18 of the run
for the former, which is epoch 25; its epochs are taken). Random crops and mirror images of 224 pixels, of which the
paper says nothing. Large batches go through the net in parts of 256, over which BatchNorm takes its statistics, so that
its momentum stays as it is. The small copy, ``--images tiny``, has 60 epochs of Tiny-ImageNet-20 at B = 64, 256 and
1,024, its batches whole. JPEG files are decoded by threads while a run waits for them, ``train/CLASS/*`` and
``val/CLASS/*``; a run is one process on one GPU.

Cost. Tiny-ImageNet-20: 13 minutes on one H200. ImageNet has not been run; it would take days.

Finding. One seed on 20 classes, which the net hardly learns: nothing is judged.

    rootscale study experiments/imagenet.py --images tiny --device cuda --data FOLDER
    rootscale study experiments/imagenet.py --images imagenet --device cuda --data FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

from imagenet_data import IMAGENET, TINY, Crop, imagenet, tiny
from nets import resnet50
from recipes import staircase, steps_of

from rootscale import Adam, BatchSize, Plan
from rootscale.lab import Arm, Judge, Measure, Settings, Setup, Study, Task, Tensors, Variant, grid
from rootscale.lab.data import CropFlip, Normalise, patterns
from rootscale.lab.task import OnDisk
from rootscale.lab.tasks import accuracy, convnet, cross_entropy, image_task
from rootscale.verdict import Absolute

GROUP = "paper"
#: The paper's limit, on the validation accuracy at the end.
JUDGE = Judge(Absolute(0.015), decide_by=("test accuracy",), over="end")
#: The paper's batch size; shares of the run that are warm-up, and after which the learning rate falls.
BASE, WARMUP, DECAYS = 256, Fraction(1, 18), (Fraction(5, 9), Fraction(8, 9))
#: Training and test images, and samples that go through the net at once.
COUNTS, MICRO = (1_281_167, 50_000), 256
CLAIMS = {
    "imagenet": "ResNet-50 on ImageNet: 256 to 32,768 under the rule costs at most 1.5 points of accuracy",
    "tiny": "ResNet-50 on Tiny-ImageNet-20, 64 to 1,024: the rule costs at most 1.5 points of accuracy",
}


def plan(samples: int, epochs: float, eps: float = 1e-8, size: int = BASE) -> Plan:
    """Return the paper's run, whose values hold at a batch size; shorter runs keep the shares of the schedule."""
    steps = steps_of(samples, epochs, size)
    adam = Adam(eta=3e-4, beta1=0.999, beta2=0.999, eps=eps, weight_decay=1e-4)
    return Plan(adam, BatchSize(size), steps=steps, schedule=staircase(steps, WARMUP, DECAYS), batchnorm_momentum=0.1)


def _tiny(folder: str | None, part: str) -> Tensors:
    images: Tensors = getattr(tiny(folder), part)
    return images


def task(images: str, epochs: float, eps: float, smallest: int, data: str = "", smoke: bool = False) -> Task:
    """Return the run at the smallest batch size; on generated images for a smoke test."""
    if smoke:
        small = plan(128, epochs, eps, BASE // 16).convert(smallest, "with paper").plan
        return image_task("smoke-imagenet", patterns(128, 64, classes=4, size=16), small, partial(convnet, 4, width=8))
    if images == "tiny":
        train, test = (OnDisk(n, partial(_tiny, data or None, part)) for part, n in (("train", 10_000), ("test", 1000)))
        normalise, name, net = Normalise(*TINY), "tiny-imagenet-20-resnet50", partial(resnet50, 20)
        augment: CropFlip | Crop = CropFlip(8, normalise.black)
    else:
        train, test = (
            OnDisk(n, partial(imagenet, data or None, part)) for part, n in zip(("train", "val"), COUNTS, strict=True)
        )
        normalise, name, net, augment = Normalise(*IMAGENET), "imagenet-resnet50", partial(resnet50, 1000), Crop()
    converted = plan(len(train), epochs, eps).convert(smallest, "with paper").plan
    return Task(
        name, converted, net, cross_entropy, train, test, {"accuracy": accuracy}, prepare=normalise, augment=augment,
        draws=augment.draws,
    )  # fmt: skip


def study(
    images: str, epochs: float = 0.0, eps: float = 1e-8, sizes: Sequence[int] = (), data: str = "", device: str = "cpu",
    smoke: bool = False,
) -> Study:  # fmt: skip
    """Return the smallest batch size, and the others under the rule."""
    whole, usual = (60, (64, 256, 1024)) if images == "tiny" else (90, (256, 1024, 4096, 16384, 32768))
    first, *others = (16, 32) if smoke else sorted(sizes or usual)
    made = task(images, 4 if smoke else epochs or whole, eps, first, data, smoke)
    arms = [Arm(f"B = {first:,}", made)]
    arms += [Arm(f"B = {size:,}", made, Variant(Fraction(size, first), "with paper")) for size in others]
    cuda = device.startswith("cuda")
    many = images != "tiny"
    points, seen = (18, 10_000) if many else (20, 1000)
    measure = Measure(points, eval_samples=seen, noise=not many, reestimate=True)
    setup = Setup(device, MICRO if many else None, amp=cuda, fast=cuda and not many)
    settings = Settings(grid(int(made.plan.samples or 0), points, 0, [first, *others]), 0, measure, setup)
    name = ("imagenet" if many else "tiny-imagenet") + "-resnet50" + ("" if eps == 1e-8 else f"-eps-{eps:g}")
    return Study(name, arms, CLAIMS[images], 1, settings, judge=JUDGE)


def studies(
    images: str = "", epochs: float = 0.0, eps: float = 1e-8, sizes: tuple[int, ...] = (), data: str = "",
    device: str = "cpu", smoke: bool = False,
) -> list[Study]:  # fmt: skip
    """Return the study on ``imagenet``, on ``tiny``, or both."""
    if images not in ("", *CLAIMS):
        raise ValueError(f"--images must be one of {', '.join(CLAIMS)}, got {images!r}")
    return [study(one, epochs, eps, sizes, data, device, smoke) for one in ([images] if images else CLAIMS)]


STUDY = studies
