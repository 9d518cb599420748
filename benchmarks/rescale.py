"""Measure what a change of batch size in mid-run costs: rescale_ on Adam states of several sizes.

The yardstick is the optimizer step of the same state, timed in turn with it. The peer is what one does without it:
save the state, convert it in the copy, load it again.

    python benchmarks/rescale.py [--parameters 1000 1000000 100000000] [--repeats 7] [--device cpu]
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from measure import clock, peak
from rich.console import Console
from rich.table import Table

from rootscale.training import rescale_


def make(parameters: int, device: str) -> torch.optim.Adam:
    """Return an optimizer with a state: ten tensors, or as many as make a million parameters each."""
    size = min(parameters // 10, 1_000_000)
    tensors = [torch.nn.Parameter(torch.zeros(size, device=device)) for _ in range(parameters // size)]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    optimizer = torch.optim.Adam(tensors, lr=1e-4, betas=(0.99, 0.999))
    optimizer.step()
    return optimizer


def reload(optimizer: torch.optim.Adam, kappa: float) -> None:
    """Make the same conversion by way of a copy of the state."""
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["exp_avg_sq"] = state["exp_avg_sq"] / kappa
        state["step"] = state["step"] / kappa
    for group in saved["param_groups"]:
        group["lr"] *= kappa**0.5
        group["eps"] /= kappa**0.5
        group["betas"] = tuple(1 - kappa * (1 - beta) for beta in group["betas"])
    optimizer.load_state_dict(saved)


def measure(parameters: int, repeats: int, device: str, table: Table) -> str:
    """Add the rows of one size to the table, and return them as one line."""
    optimizer = make(parameters, device)
    kappas = [2.0, 0.5]  # there and back, so that the state stays what it is
    names = {
        "optimizer.step": lambda kappa: optimizer.step(),
        "rescale_": lambda kappa: rescale_(optimizer, kappa),
        "save, convert, load": lambda kappa: reload(optimizer, kappa),
    }
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(2 * repeats):
        for name, function in names.items():
            times[name].append(clock(lambda f=function, k=kappas[i % 2]: f(k), device))  # type: ignore[misc]
    step, line = statistics.median(times["optimizer.step"]), []
    for name, function in names.items():
        extra = max(peak(lambda f=function, k=k: f(k), device) for k in kappas) / (2 * 4 * parameters)  # type: ignore[misc]
        median = statistics.median(times[name])
        spread = f"{1e3 * min(times[name]):.2f} - {1e3 * max(times[name]):.2f}"
        row = f"{1e3 * median:.2f}", spread, f"{median / step:.2f}", f"{100 * extra:.1f} %"
        table.add_row(f"{parameters:,}", name, *row)
        line.append(f"{name}={median / step:.2f} steps, +{100 * extra:.1f} % of the state")
    return f"{parameters:,} parameters: {'; '.join(line[1:])}"


def main() -> None:
    """Measure and print; the ratios last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000, 1_000_000, 100_000_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    table = Table("parameters", "", "median ms", "range ms", "optimizer steps", "extra memory / state")
    lines = [measure(parameters, args.repeats, args.device, table) for parameters in args.parameters]
    threads = f", {torch.get_num_threads()} threads" if args.device == "cpu" else ""
    Console().print(table)
    print(f"{args.device}{threads}, torch {torch.__version__}, n = {2 * args.repeats}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
