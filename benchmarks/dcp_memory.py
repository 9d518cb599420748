"""Memory and time to rebase a folder of torch.distributed.checkpoint: item by item, or by torch's planners.

``python benchmarks/dcp_memory.py --gigabytes 1`` writes a run under AdamW of that size, rebases it in both ways, each
in a process of its own, and prints the largest resident memory beyond that of the imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from rootscale.checkpoints import convert_checkpoint


def write(folder: Path, gigabytes: float) -> None:
    """Write the weights, exp_avg and exp_avg_sq of a run, and its groups."""
    rows, layers = 4096, 32
    columns = int(gigabytes * 2**30 / 3 / layers / rows / 4)
    names = [f"layers.{i}.weight" for i in range(layers)]
    state = {
        name: {"step": torch.tensor(8.0), **{key: torch.rand(rows, columns) for key in ("exp_avg", "exp_avg_sq")}}
        for name in names
    }
    group = {"params": names, "lr": 1e-3, "betas": (0.98, 0.999), "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False,
             "maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None,
             "decoupled_weight_decay": True}  # fmt: skip
    model = {name: torch.rand(rows, columns) for name in names}
    held = {"model": model, "optimizer": {"state": state, "param_groups": [group]}}
    save(held, checkpoint_id=folder, no_dist=True)


def planners(source: Path, target: Path) -> None:
    """Load everything with torch's planner, multiply the state in memory, and save."""
    held: dict[str, Any] = {}
    reader = FileSystemReader(source)
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(held, storage_reader=reader, planner=planner, no_dist=True)
    for state in held["optimizer"]["state"].values():
        state["exp_avg_sq"].mul_(0.25)
        state["step"].mul_(0.25)
    save(held, checkpoint_id=target, no_dist=True)


def items(source: Path, target: Path) -> None:
    """Convert the folder item by item."""
    convert_checkpoint(source, 16, 64, target)


def peak() -> int:
    """Return the largest resident memory of this process so far, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--way", choices=("items", "planners"))
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.way:
        before, start = peak(), time.perf_counter()
        {"items": items, "planners": planners}[args.way](args.folder / "in", args.folder / args.way)
        print(json.dumps({"way": args.way, "MB": peak() - before, "seconds": round(time.perf_counter() - start, 2)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "in", args.gigabytes)
        for way in ("items", "planners"):
            subprocess.run([sys.executable, __file__, "--way", way, "--folder", folder], check=True)


if __name__ == "__main__":
    main()
