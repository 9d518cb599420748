"""What SVAG, the noise meter, the paper's optimizers and ensembles cost, against a plain step in the same run.

    python benchmarks/training.py [--device cpu] [--repeats 15]

- SVAG: a step of a conv net with two batches against a step with one, in time (at most 2.05) and memory (1.05).
- NoiseMeter: a step of four micro-batches with it against one without (at most 1.02); also with the optimizer's metric
  and a thousand coordinates.
- exact_noise: the noise on given samples, against per-sample gradients by ``torch.func.vmap(grad)``: how many times as
  fast (at least 3).
- The paper's Adam and RMSprop (v_k) against torch's foreach step on the same parameters (at most 1.1).
- The lab's ensemble, on a CPU: 16 replicas in one program, how many times as fast as one after the other (at least 5).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lab import ensemble
from measure import clock, peak
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from rootscale.training import SVAG, NoiseMeter, exact_noise, optim


def conv_net(width: int) -> nn.Module:
    """A small residual-free conv net for 32 x 32 images."""
    layers: list[nn.Module] = []
    channels = 3
    for i in range(4):
        layers += [nn.Conv2d(channels, width * 2**i, 3, stride=1 + (i > 0), padding=1), nn.BatchNorm2d(width * 2**i)]
        layers.append(nn.ReLU())
        channels = width * 2**i
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def mnist_net() -> nn.Module:
    """The conv net of PyTorch's MNIST example, without its dropout."""
    convs = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convs, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def stepper(ell: float, device: str, batch: int, width: int) -> Callable[[], None]:
    """A training step with SVAG; ``ell = 1`` is a plain one."""
    torch.manual_seed(0)
    model = conv_net(width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    svag = SVAG(optimizer, ell, model=model)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        for r in svag.passes():
            (r * F.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def accumulated(
    make: Callable[[torch.optim.Optimizer], NoiseMeter] | None, device: str, batch: int, width: int
) -> Callable[[], None]:
    """A step of four micro-batches, with a noise meter or without."""
    torch.manual_seed(0)
    model = conv_net(width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    meter = make(optimizer) if make else None
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(4):
            with meter.part(batch, 1 / 4) if meter else nullcontext():
                (F.cross_entropy(model(x), y) / 4).backward()  # type: ignore[no-untyped-call]
        if meter:
            meter.update()
        optimizer.step()

    return step


def audits(model: nn.Module, shape: tuple[int, ...], device: str, samples: int) -> dict[str, Callable[[], object]]:
    """The noise on given samples, exactly: by `exact_noise` and by per-sample gradients."""
    torch.manual_seed(0)
    model = model.to(device).eval()
    x, y = torch.randn(samples, *shape, device=device), torch.randint(10, (samples,), device=device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    def per_sample() -> tuple[Tensor, Tensor]:
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()])
        gradient = torch.stack([g.mean(0).square().sum() for g in gradients.values()]).sum()
        return squares.sum(0).mean() - gradient, gradient

    exact = partial(exact_noise, model, F.cross_entropy, x, y, chunk=samples)
    trace = exact().trace.value
    if abs(float(per_sample()[0]) / trace - 1) > 0.01:
        raise RuntimeError("exact_noise and per-sample gradients differ")
    return {"vmap(grad)": per_sample, "exact_noise": exact, "with coordinates": partial(exact, batch_size=samples)}


def optimizer_steps(device: str, size: int) -> dict[str, Callable[[], object]]:
    """Steps of several optimizers on parameters like those of a small transformer."""
    shapes = [(size, size), (size, 4 * size), (4 * size, size), (size,), (4 * size,)] * 4
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "torch Adam": partial(torch.optim.Adam, foreach=True),
        "paper's Adam": optim.Adam,
        "torch RMSprop": partial(torch.optim.RMSprop, foreach=True),
        "paper's RMSprop": optim.RMSprop,
    }
    steps: dict[str, Callable[[], object]] = {}
    for name, maker in makers.items():
        parameters = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        steps[name] = maker(parameters).step
    return steps


def main() -> None:
    """Measure in turn, print the table, and the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    small = args.device == "cpu"
    batch, width, size = (64, 32, 512) if small else (512, 64, 2048)
    everything = partial(NoiseMeter, preconditioned=True, coordinates=1000)
    steps: dict[str, Callable[[], object]] = {
        "plain step": stepper(1, args.device, batch, width),
        "SVAG step": stepper(2, args.device, batch, width),
        "accumulation": accumulated(None, args.device, batch, width),
        "with NoiseMeter": accumulated(NoiseMeter, args.device, batch, width),
        "with all it can do": accumulated(everything, args.device, batch, width),
        **optimizer_steps(args.device, size),
    }
    nets = {"MNIST net": (mnist_net(), (1, 28, 28)), "conv net": (conv_net(width), (3, 32, 32))}
    for net, (model, shape) in nets.items():
        steps |= {f"{net}: {name}": step for name, step in audits(model, shape, args.device, batch).items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(args.repeats + 3):
        for name, step in steps.items():
            seconds = clock(step, args.device)
            if i >= 3:  # the first rounds warm up
                times[name].append(seconds)
    memory = {name: peak(steps[name], args.device) for name in ("plain step", "SVAG step")}
    ratios, table = {}, Table("", "against", "median ratio", "interquartile range")
    comparisons = [
        ("SVAG step", "plain step"),
        ("with NoiseMeter", "accumulation"),
        ("with all it can do", "accumulation"),
        *((f"{net}: vmap(grad)", f"{net}: {name}") for net in nets for name in ("exact_noise", "with coordinates")),
        ("paper's Adam", "torch Adam"),
        ("paper's RMSprop", "torch RMSprop"),
    ]
    for name, base in comparisons:
        pairs = [a / b for a, b in zip(times[name], times[base], strict=True)]
        low, ratios[name, base], high = statistics.quantiles(pairs, n=4)
        table.add_row(name, base, f"{ratios[name, base]:.3f}", f"{low:.3f} - {high:.3f}")
    Console().print(table)
    threads = f", {torch.get_num_threads()} threads" if small else ""
    print(f"{args.device}{threads}, torch {torch.__version__}, n = {args.repeats}, batch {batch}")
    shown = {
        "svag_time": ratios["SVAG step", "plain step"],
        "svag_memory": memory["SVAG step"] / memory["plain step"],
        "noise_meter": ratios["with NoiseMeter", "accumulation"],
        "exact_noise": ratios["MNIST net: vmap(grad)", "MNIST net: exact_noise"],
        "adam_vk": ratios["paper's Adam", "torch Adam"],
        "rmsprop_vk": ratios["paper's RMSprop", "torch RMSprop"],
    }
    if small:
        shown |= ensemble(5)
    print(" ".join(f"{name}={value:.2f}" for name, value in shown.items()))


if __name__ == "__main__":
    main()
