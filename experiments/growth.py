"""Growing the batch with the noise that the run itself shows: as good a model in fewer steps and seconds?

Claim. A batch that grows with the noise scale, measured online by `Grow` with its time counted, ends within a margin
of the small batch's validation loss (.01 nats for a GPT, .02 for the conv net), in less than 3/4 of the seconds.

Fixed before it was run. Hypotheses: (1) `Grow`, everything converted, is *same* by the margin on both nets; (2) on the
GPT it takes at most 3/4 of the seconds and 1/2 of the steps of the small batch; (3) with betas .9 and .95 the learning
rate alone at the same stages is as near to the base as `Grow` (difference below .01); (4) measuring takes at most 5 %
of the seconds; (5) the large batch from the start ends higher than `Grow`; (6) with Muon, `Grow` is *same* as well.
Seeds 0 to 7, all arms of a seed with the same start and the same order of samples. The learning rate of the small batch
was chosen before with seed 100, from factors of 2 (GPT: .008, at a third of the samples; conv net: .008, the middle of
.004 to .016, which end alike); that of the large batch is the best of three at the end.

Protocol. Nets: a byte-level GPT on enwik8 (2 layers of width 64, 64 bytes a sample; 6 layers of width 512 and 128 bytes
on a GPU), AdamW with betas .9 and .95, decay .1; a conv net with BatchNorm on scikit-learn's digits, shifted and with
noise, Adam with betas .9 and .999. A warm-up of 5 % and a cosine to 0. Every arm sees the same number of samples, and
starts at the small batch B (but for the last arm); the largest batch is 16 B. The arms:

- the small batch kept (the base);
- `Grow(run, share=0.5, factor=2, every=10, window=32)`, everything converted;
- the learning rate alone by the square root, at the stages of the `Grow` of the same seed (made first, not timed);
- a fixed ramp, converted: twice the batch after 1/8, 1/4, 3/8 and 1/2 of the samples;
- Seesaw (arXiv 2510.14717): where the cosine has halved, the learning rate by sqrt(2) and twice the batch;
- a late switch (arXiv 2602.14208): 16 times the batch after 3/4 of the samples, nothing else changed;
- 16 B from the start, at 1, 2 and 4 times the learning rate, betas as they are: the best of them counts.

With Muon for the matrices of the blocks (learning rate .02, not tuned; AdamW for the rest): the base, `Grow`, and the
learning rate alone. Seconds are those of training on one thread (CPU time), or of one GPU that runs share, without
evaluation.

Cost. About 70 minutes of one core for ``--net gpt``, 10 for ``--net convnet``, 35 for ``--net muon``.

Finding (conv net, n = 8, difference of the last validation loss from the small batch's .593). `Grow` ends .014 ± .007
lower, in 9 % of the steps and 25 % of the seconds: (1) is undecided, since it may be more than .02 lower. The learning
rate alone at its stages ends alike (+.000 ± .006), a fixed ramp lower (-.021 ± .004), Seesaw alike (-.006 ± .004, 71 %
of the seconds), a late switch a little higher (+.011 ± .002, 71 %). (5) is contradicted: the large batch from the start
ends .040 ± .006 higher at the tuned learning rate, but .011 ± .006 lower at 4 times it, in 16 % of the seconds. (4) is
not met on a net this small: measuring took 11 ± 9 % (95 %) of the seconds of `Grow`, against the same stages without
it. The GPTs are not run.

Deviation. In a first run all images of a batch had one shift, so that the noise of a batch did not average out; `Grow`
and both ramps ended .2 to .35 higher there. Each image has a shift of its own since then, and those data were replaced.

    rootscale study experiments/growth.py --net gpt --data FOLDER
    rootscale study experiments/growth.py --net gpt-6 --device cuda --data FOLDER
"""

from __future__ import annotations

import lzma
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from rootscale.compare import Alignment
from rootscale.lab import Arm, Loop, Study
from rootscale.lab.loop import parsed_source
from rootscale.training import BatchSchedule, Grow, ScheduledRun, ScheduledSampler
from rootscale.verdict import Absolute, Judge

GROUP = "beyond"
#: Points at which a run is evaluated.
POINTS = 16
MOST = 16
LOSS, UPDATES, SECONDS = "validation loss", "updates", "training seconds"


# -- nets and data -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a feed-forward layer, each added to their input."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return out


class GPT(nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if "out" in name or "down" in name else 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at each place."""
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        out: Tensor = self.head(self.norm(self.blocks(hidden)))
        return out


def convnet() -> nn.Module:
    """Return three convolutions with BatchNorm, and a linear layer."""
    widths, layers = (1, 16, 32, 32), []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(a, b, 3, stride=1 + (i > 0), padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


@lru_cache(maxsize=1)
def text(folder: str, length: int, smoke: bool) -> tuple[Tensor, Tensor]:
    """Return samples of ``length + 1`` bytes for training and for validation; generated ones for a smoke test."""
    if smoke:
        source = torch.Generator().manual_seed(0)
        flat = (torch.randint(4, (400 * (length + 1),), generator=source).cumsum(0) % 97).to(torch.uint8)
    else:
        place = folder or os.environ.get("ROOTSCALE_DATA", "")
        with lzma.open(Path(place) / "enwik8" / "enwik8.xz") as file:
            flat = torch.frombuffer(bytearray(file.read(36_000_000)), dtype=torch.uint8)
    windows = flat[: len(flat) // (length + 1) * (length + 1)].view(-1, length + 1)
    held_out = min(512, len(windows) // 8)
    return windows[:-held_out], windows[-held_out:]


@lru_cache(maxsize=1)
def images(smoke: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return digits for training and for validation."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1297], order[1297:]
    return (x[train], y[train]), (x[held_out], y[held_out])


@dataclass(frozen=True)
class Net:
    """A net, how it is trained, and how long.

    Args:
        rate: the learning rate at the small batch.
        size: the small batch.
        samples: that a run sees.
        margin: of the final loss.
        shape: of a GPT: layers, width, heads, length; None is the conv net.
        muon: the learning rate of Muon for the matrices of the blocks; 0 is AdamW alone.
    """

    rate: float
    size: int
    samples: int
    margin: float
    betas: tuple[float, float]
    decay: float
    shape: tuple[int, int, int, int] | None = None
    muon: float = 0.0

    def optimizers(self, model: nn.Module, times: float) -> list[torch.optim.Optimizer]:
        """Return AdamW, or Muon and AdamW for the rest."""
        blocks = [p for p in getattr(model, "blocks", nn.Module()).parameters() if p.dim() == 2] if self.muon else []
        rest = [p for p in model.parameters() if all(p is not other for other in blocks)]
        adam = torch.optim.AdamW(rest, times * self.rate, betas=self.betas, weight_decay=self.decay)
        muon = [torch.optim.Muon(blocks, self.muon, weight_decay=0.0)] if blocks else []
        return [*muon, adam]


GPT_2 = dict(betas=(0.9, 0.95), decay=0.1, shape=(2, 64, 2, 64))
NETS: Mapping[str, Net] = {
    "gpt": Net(8e-3, 8, 49152, 0.01, **GPT_2),  # type: ignore[arg-type]
    "muon": Net(8e-3, 8, 49152, 0.01, **GPT_2, muon=0.02),  # type: ignore[arg-type]
    "convnet": Net(8e-3, 8, 65536, 0.02, (0.9, 0.999), 0.0),
    "gpt-6": Net(4e-4, 8, 131072, 0.01, (0.9, 0.95), 0.1, (6, 512, 8, 128)),
}


# -- ways to the same model --------------------------------------------------------------------------------------------


def kept(net: Net) -> BatchSchedule:
    """Return the small batch from the start to the end."""
    return BatchSchedule([(0, net.size)])


def ramp(net: Net) -> BatchSchedule:
    """Return twice the batch after each eighth of the samples, four times."""
    return BatchSchedule([(i * net.samples // 8, net.size * 2**i) for i in range(5)])


def late(net: Net) -> BatchSchedule:
    """Return the largest batch for the last quarter."""
    return BatchSchedule([(0, net.size), (net.samples * 3 // 4, net.size * MOST)])


def large(net: Net) -> BatchSchedule:
    """Return the largest batch from the start."""
    return BatchSchedule([(0, net.size * MOST)])


def seesaw(net: Net) -> BatchSchedule:
    """Return twice the batch where the cosine has halved."""
    stages = [(int(place * net.samples), net.size * 2 ** (i + 1)) for i, place in enumerate(halvings())]
    return BatchSchedule([(0, net.size), *(stage for stage in stages if stage[1] <= net.size * MOST)])


def halvings() -> list[float]:
    """Return the places in a run, from 0 to 1, at which warm-up and cosine are at 1/2, 1/4, ... of the peak."""
    return [0.05 + 0.95 * math.acos(2.0 ** (1 - k) - 1) / math.pi for k in range(1, 9)]


def cosine(place: float) -> float:
    """Return the learning rate at a place in the run, over its peak."""
    return place / 0.05 if place < 0.05 else (1 + math.cos(math.pi * min(1.0, (place - 0.05) / 0.95))) / 2


def stairs(place: float) -> float:
    """Return the steps of Seesaw: what the cosine is at its halvings."""
    return min(1.0, place / 0.05) * 0.5 ** sum(place >= one for one in halvings())


@dataclass(frozen=True)
class Way:
    """How the batch grows.

    Args:
        schedule: of batches; None is `Grow`.
        rule: by which is converted; None is the optimizer's own.
        decay: of the learning rate.
        same_stages: at the stages of the `Grow` of the same seed.
        times: the learning rate of the small batch.
    """

    label: str
    schedule: Callable[[Net], BatchSchedule] | None = None
    rule: str | None = None
    decay: Callable[[float], float] = cosine
    same_stages: bool = False
    times: float = 1.0


WAYS = (
    Way("small batch kept", kept),
    Way("Grow, converted"),
    Way("Grow's stages, learning rate only", rule="sqrt-eta", same_stages=True),
    Way("fixed ramp, converted", ramp),
    Way("Seesaw", seesaw, "sqrt-eta", stairs),
    Way("late switch, nothing converted", late, "none"),
    *(Way(f"large batch from the start, {times} times the learning rate", large, times=times) for times in (1, 2, 4)),
)


@dataclass(frozen=True)
class Training:
    """The loop of an arm, as `rootscale.lab.Loop` calls it."""

    net: Net
    way: Way
    device: str = "cpu"
    data: str = ""
    smoke: bool = False

    def source(self) -> str:
        """Return what decides a run: the arm, and this program but for what reads finished runs."""
        program = parsed_source(Path(__file__).read_text(encoding="utf-8").partition("\n# -- what is judged")[0])
        return f"{self.net!r} {self.way.label} {self.device} {self.smoke} {program}"

    def programs(self) -> list[Path]:
        """Return the files whose imports decide a run too."""
        return [Path(__file__)]

    def __call__(self, batch_size: int, seed: int, log: Callable[..., None]) -> None:
        """Make a run."""
        schedule = None if self.way.schedule is None else self.way.schedule(self.net)
        if self.way.same_stages:
            schedule = self.train(seed, None, Way("Grow"), lambda **row: None)
        self.train(seed, schedule, self.way, log)

    def train(self, seed: int, schedule: BatchSchedule | None, way: Way, log: Callable[..., None]) -> BatchSchedule:
        """Train, and return the batch sizes."""
        net = self.net
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        model = (GPT(*net.shape) if net.shape else convnet()).to(self.device)
        optimizers = net.optimizers(model, way.times)
        start = net.size if schedule is None else schedule.size(0)
        schedulers = [LambdaLR(one, lambda step: way.decay(step * start / net.samples)) for one in optimizers]
        x, y, evaluate = self.batches(model, seed)
        sampler = ScheduledSampler(len(x), start if schedule is None else schedule, seed=seed, epoch=net.samples)
        run = ScheduledRun(sampler, optimizers, scheduler=schedulers, model=model, rule=way.rule, tuned_at=start)
        grow = Grow(run, most=net.size * MOST) if schedule is None else None
        updates, seconds, logged, begun = 0, 0.0, 0, self.now()
        draws = torch.Generator().manual_seed(seed)
        for places in run.batches(sampler):
            i = torch.tensor(places)
            self.loss(model, x[i], y[i], draws).mul(run.weight).backward()  # type: ignore[no-untyped-call]
            if run.complete:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                for scheduler in schedulers:
                    scheduler.step()
                updates += 1
            if run.complete and run.seen * POINTS // net.samples > logged:
                seconds, logged = seconds + self.now() - begun, run.seen * POINTS // net.samples
                row = {LOSS: evaluate(), UPDATES: updates, SECONDS: seconds, "size": run.batch_size}
                scale = {} if grow is None or grow.noise is None else {"noise_scale": grow.noise.scale.value}
                log(samples=min(run.seen, net.samples), **row, **{k: v for k, v in scale.items() if math.isfinite(v)})
                begun = self.now()
        return sampler.schedule

    def now(self) -> float:
        """Return seconds: of this process on a CPU, which others do not slow down; of the clock on a GPU."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def batches(self, model: nn.Module, seed: int) -> tuple[Tensor, Tensor, Callable[[], float]]:
        """Return training samples and their targets, and what evaluates the model."""
        if self.net.shape:
            train, held_out = text(self.data, self.net.shape[-1], self.smoke)
            x, y = train[:, :-1], train[:, 1:]
            test_x, test_y = held_out[:, :-1], held_out[:, 1:]
        else:
            (x, y), (test_x, test_y) = images(self.smoke)

        @torch.no_grad()
        def evaluate() -> float:
            model.eval()
            parts = zip(torch.split(test_x, 128), torch.split(test_y, 128), strict=True)
            source = torch.Generator().manual_seed(0)
            draws = range(1 if self.net.shape else 4)  # of shifts and noise, which are always the same
            losses = [self.loss(model, a, b, source) for a, b in parts for _ in draws]
            model.train()
            return float(torch.stack(losses).mean())

        return x, y, evaluate

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, source: torch.Generator) -> Tensor:
        """Return the mean loss; each image is shifted and blurred with noise, in training and for validation."""
        if self.net.shape:
            x, y = x.to(self.device).long(), y.to(self.device).long()
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        down, right = torch.randint(3, (2, len(x)), generator=source)
        shifted = F.pad(x, (1, 1, 1, 1), value=-1.0).unfold(2, 8, 1).unfold(3, 8, 1)
        x = shifted[torch.arange(len(x)), :, down, right]
        x = x + 0.7 * torch.randn(x.shape, generator=source)
        return F.cross_entropy(model(x.to(self.device)), y.to(self.device))


# -- what is judged and drawn ------------------------------------------------------------------------------------------


def study(net: str = "", device: str = "cpu", data: str = "", smoke: bool = False) -> Iterator[Study]:
    """Yield the study of one net, or those that a CPU makes."""
    for name in [net] if net else ["gpt", "convnet", "muon"]:
        chosen = NETS[name]
        if smoke:
            shape = None if chosen.shape is None else (1, 16, 2, 8)
            chosen = Net(chosen.rate, 8, 2048, 0.5, chosen.betas, chosen.decay, shape, chosen.muon)
        ways = WAYS[:3] if chosen.muon else WAYS
        arms = []
        for i, way in enumerate(ways):
            loop = Loop(f"growth-{name}-{i}", Training(chosen, way, device, data, smoke), batch_size=chosen.size)
            arms.append(Arm(way.label, loop, factors={"way": way.label, "net": name}))
        judge = Judge(tolerance=Absolute(chosen.margin), over="end", decide_by=(LOSS,), looks="once")
        logged = Alignment((LOSS, UPDATES, SECONDS), window=0.0)
        claim = f"{TITLES[name]}: the batch grows from 8 to 128 with the noise measured online, as good within "
        claim += f"{chosen.margin:g}"
        seeds = 2 if smoke else 4 if name == "gpt-6" else 8
        yield Study(f"growth-{name}", arms, claim, seeds, judge=judge, alignment=logged)


TITLES = {"gpt": "GPT of 2 layers", "muon": "GPT of 2 layers, Muon", "convnet": "conv net", "gpt-6": "GPT of 6 layers"}


def studies(net: str = "", device: str = "cpu", data: str = "", smoke: bool = False) -> list[Study]:
    """Return the study of one net, or of all that a CPU makes."""
    return list(study(net, device, data, smoke))


STUDY: Any = studies
