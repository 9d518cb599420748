"""What a `Run` costs: a step, a scheduler, a change of batch size, a batch size that varies, a checkpoint.

Everything is a ratio to the same thing without it, timed in turn with it: torch's fused AdamW, with one parameter group
and with eight; its scheduler; its ``state_dict``. A change of batch size is compared with saving the state, converting
the copy and loading it again.

    python benchmarks/run.py [--parameters 10000000] [--repeats 15] [--device cpu]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from measure import clock, peak
from rich.console import Console
from rich.table import Table

from rootscale.training import Run


def make(parameters: int, groups: int, device: str) -> torch.optim.AdamW:
    """Return an optimizer with a state, in tensors of a million parameters or a tenth of them each."""
    size = min(max(parameters // 10, 1), 1_000_000)
    tensors = [torch.nn.Parameter(torch.zeros(size, device=device)) for _ in range(parameters // size)]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    held = [{"params": tensors[i::groups]} for i in range(groups)]
    optimizer = torch.optim.AdamW(held, lr=1e-4, betas=(0.9, 0.999), fused=True)
    optimizer.step()
    return optimizer


def reload(optimizer: torch.optim.Optimizer, kappa: float) -> None:
    """Make the same change by way of a copy of the state."""
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["exp_avg_sq"] = state["exp_avg_sq"] / kappa
        state["step"] = state["step"] / kappa
    optimizer.load_state_dict(saved)


def in_turn(functions: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Return the least seconds of some functions, called in turn: other work on the machine only adds to them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(repeats + 3):
        for name, function in functions.items():
            seconds = clock(function, device)
            if i >= 3:
                times[name].append(seconds)
    return {name: min(values) for name, values in times.items()}


def steps(parameters: int, groups: int, repeats: int, device: str) -> tuple[float, float, float]:
    """Return a step of a Run over the stock step, of batches that vary over it, and the latter in seconds."""
    plain, inside, varied = (make(parameters, groups, device) for _ in range(3))
    Run(inside, tuned_at=256, batch_size=1024)
    run = Run(varied, tuned_at=256, batch_size=1024)
    sizes = [1024, 300]

    def vary() -> None:
        sizes.reverse()
        run.batch_size = sizes[0]
        varied.step()

    found = in_turn({"stock": plain.step, "run": inside.step, "varied": vary}, repeats, device)
    return found["run"] / found["stock"], found["varied"] / found["stock"], found["stock"]


def schedulers(repeats: int) -> dict[str, float]:
    """Return the seconds of a scheduler's step: stock, in a Run at the script's batch size, and at four times it."""
    found: dict[str, Callable[[], object]] = {}
    for name, size in (("stock", None), ("kappa=1", 256), ("kappa=4", 1024)):
        optimizer = make(1000, 8, "cpu")
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**6)
        if size is not None:
            Run(optimizer, tuned_at=256, batch_size=size, scheduler=scheduler, interval="step")
        optimizer.step()

        def hundred(scheduler: torch.optim.lr_scheduler.LRScheduler = scheduler) -> None:
            for _ in range(100):
                scheduler.step()

        found[name] = hundred
    return {name: seconds / 100 for name, seconds in in_turn(found, repeats, "cpu").items()}


def main() -> None:
    """Measure and print; the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    table = Table("", "groups", "over the stock step")
    lines = []
    for groups in (1, 8):
        step, varied, stock = steps(args.parameters, groups, args.repeats, args.device)
        table.add_row(f"step (stock: {1e3 * stock:.2f} ms)", str(groups), f"{step:.3f}")
        table.add_row("step, another batch size before each", str(groups), f"{varied:.3f}")
        lines.append(f"run_step={step:.3f} varied_step={varied:.3f} ({groups} groups)")
    optimizer = make(args.parameters, 1, args.device)
    copied = make(args.parameters, 1, args.device)
    run = Run(optimizer, tuned_at=256)
    sizes = [1024, 256]

    def change() -> None:
        sizes.reverse()
        run.batch_size = sizes[0]

    found = in_turn({"change": change, "reload": lambda: reload(copied, 1.0)}, args.repeats, args.device)
    run.batch_size = 1024
    state = 2 * 4 * args.parameters
    more = {"change": max(peak(change, args.device) for _ in range(2)) / state}
    run.batch_size = 1024
    more["state_dict"] = peak(optimizer.state_dict, args.device) / state
    for name, share in more.items():
        table.add_row(f"memory of a {name}", "1", f"{100 * share:.0f} % of the state")
    own = schedulers(args.repeats)
    Console().print(table)
    threads = f", {torch.get_num_threads()} threads" if args.device == "cpu" else ""
    print(f"{args.device}{threads}, torch {torch.__version__}, {args.parameters:,} parameters, n = {args.repeats}")
    print("\n".join(lines))
    print(f"change={found['change'] / found['reload']:.3f} of save, convert, load")
    print(" ".join(f"scheduler_step[{name}]={1e6 * seconds:.1f}us" for name, seconds in own.items()))


if __name__ == "__main__":
    main()
