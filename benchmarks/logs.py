"""Measure what it costs to compare long logs: the command, with polars and without, against polars reading the files.

Every figure is that of a process of its own, from its start to its end: CPU seconds of all its threads, and the most
memory that it held. The yardstick reads the same files with `polars.read_ndjson`, one after the other, and does nothing
else.

    python benchmarks/logs.py [--runs 16] [--rows 1000000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

YARDSTICK = """
import sys
import polars
for path in sys.argv[1:]:
    polars.read_ndjson(path)
"""
#: The command where polars cannot be imported.
WITHOUT = """
import sys
sys.modules["polars"] = None
from rootscale.cli import main
sys.exit(main(sys.argv[1:]))
"""


def write_logs(folder: Path, runs: int, rows: int) -> tuple[list[str], list[str]]:
    """Write the logs of two sides, of batch sizes 16 and 64 over the same samples; return their paths."""
    rng, sides = np.random.default_rng(0), []
    for side, size in (("base", 16), ("large", 64)):
        paths = []
        for run in range(runs // 2):
            path = folder / f"{side}-{run}.jsonl"
            step = np.arange(1, rows + 1)
            samples = step * size
            loss = 1 + 2 * np.exp(-samples / (3 * rows)) + 0.05 * rng.standard_normal(rows)
            columns = zip(step.tolist(), samples.tolist(), loss.tolist(), strict=True)
            with path.open("w") as file:
                file.writelines(f'{{"step": {k}, "samples": {n}, "loss": {value:.6f}}}\n' for k, n, value in columns)
            paths.append(str(path))
        sides.append(paths)
    return sides[0], sides[1]


def cost(*words: str) -> tuple[float, float, float]:
    """Return the CPU seconds, the seconds and the megabytes of a process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):
        raise SystemExit(f"{' '.join(words[:3])} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


def measure(folder: Path, runs: int, rows: int) -> None:
    base, large = write_logs(folder, runs, rows)
    size = sum(Path(path).stat().st_size for path in (*base, *large)) / 1e6
    print(f"{runs} logs of {rows:,} rows, {size:,.0f} MB\n\n{'':34}   CPU s  seconds   MB at most")
    compare = ("compare", *base, "--to", *large)
    processes: Sequence[tuple[str, Sequence[str]]] = (
        ("polars.read_ndjson of each file", ("-c", YARDSTICK, *base, *large)),
        ("rootscale compare, with polars", ("-m", "rootscale", *compare)),
        ("rootscale compare, without polars", ("-c", WITHOUT, *compare)),
    )
    for name, words in processes:
        cpu, seconds, memory = cost(*words)
        print(f"{name:34}  {cpu:6.1f}  {seconds:7.1f}   {memory:10,.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="of the logs, which stay there; default: a temporary one")
    args = parser.parse_args()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        measure(args.folder, args.runs, args.rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.runs, args.rows)


if __name__ == "__main__":
    main()
