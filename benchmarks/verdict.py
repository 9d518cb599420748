"""How often the verdict errs, and how often it decides, on runs that look like those of a GPT and of a BatchNorm net.

    python benchmarks/verdict.py [--repetitions 100] [--out results/verdict]

Runs are drawn from processes fitted to stored curves (`resampled.py`). Three numbers for each case, at 4, 8 and 16
seeds: how often null pairs are called different, how often runs whose gap breaks the definition
(`rootscale.verdict.definition`) are called the same, and which share of both is decided. Gaps of twice the tolerance
last, come and go, or are there at a single time; gaps of 1.2 to 1.8 tolerances last for a fifth of the run, or are
there in its last tenth or at its last time alone. The same under repeated looks: seeds are added from 2 to 32 until the
verdict decides. A gap that lies on the tolerance all the time has no right answer: there, either verdict counts as
wrong. A benchmark that was stopped goes on where it was; about half an hour on one core.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resampled import CASES, Process, first_seeds, fitted, trajectories
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import rootscale.bands
import rootscale.gap
import rootscale.looks
import rootscale.verdict
from rootscale.files import write_json
from rootscale.lab.provenance import environment
from rootscale.stats import binomial_limit
from rootscale.verdict import LOSSES, compare

Array = NDArray[np.float64]
TOLERANCE, RESAMPLES = 0.05, 1000
SEEDS = (4, 8, 16)
WAYS = ("any", "once")
ADDED = (*range(2, 17), *range(18, 33, 2))
NULL, LASTING, HUMP, EDGE = "null pairs", "twice the tolerance", "twice, for a fifth of the run", "on the tolerance"
SPIKE = "twice, at one time"
#: Gaps a little above the tolerance that break the definition: for as long as is averaged, or at the end.
SHORT = {f"{size:g} times, a fifth of the run": size for size in (1.2, 1.5, 1.8)}
LATE = {f"{size:g} times, the last tenth": size for size in (1.2, 1.5, 1.8)}
LAST = {f"{size:g} times, the last time": size for size in (1.2, 1.5, 1.8)}
NEAR = (*SHORT, *LATE, *LAST)
KINDS = (NULL, LASTING, HUMP, SPIKE, EDGE, *NEAR)


def truth(kind: str, length: int) -> Array:
    """Return the true gap over time."""
    x = np.linspace(0, 1, length)
    window = int(rootscale.bands.WINDOW * length)
    middle = np.abs(np.arange(length) - length // 2) <= window
    shapes = {
        **{name: size * middle for name, size in SHORT.items()},
        **{name: size * (np.arange(length) >= length - 1 - window) for name, size in LATE.items()},
        **{name: size * (np.arange(length) == length - 1) for name, size in LAST.items()},
        NULL: np.zeros(length),
        LASTING: 2 * np.minimum(3 * x, 1),
        HUMP: 2 * np.clip(1 - np.abs(x - 0.5) / 0.2, 0, None),
        SPIKE: 2.0 * (np.arange(length) == length // 3),
        EDGE: np.minimum(3 * x, 1),
    }
    found: Array = TOLERANCE * shapes[kind]
    return found


def at_once(process: Process, kind: str, seeds: int, looks: str, rng: np.random.Generator) -> str:
    """Return the verdict at a number of seeds."""
    base, other = trajectories(process, truth(kind, process.curve.shape[1]), seeds, rng)
    return str(compare(base, other, looks=looks, resamples=RESAMPLES, deciding=LOSSES).verdict)


def until_decided(process: Process, kind: str, looks: str, rng: np.random.Generator) -> tuple[str, int]:
    """Return the first verdict that is not "undecided", and the number of seeds that it took."""
    base, other = trajectories(process, truth(kind, process.curve.shape[1]), ADDED[-1], rng)
    for seeds in ADDED:
        first, second = first_seeds(base, seeds), first_seeds(other, seeds)
        verdict = compare(first, second, looks=looks, resamples=RESAMPLES, deciding=LOSSES).verdict
        if verdict != "undecided":
            return str(verdict), seeds
    return "undecided", ADDED[-1]


def cells() -> Iterator[tuple[str, str, str, int]]:
    """Yield case, truth, looks, and seeds; 0 adds seeds until the verdict decides."""
    for case in CASES:
        for kind in KINDS:
            yield from ((case, kind, looks, seeds) for looks in WAYS for seeds in SEEDS)
            if "pairs" in case and kind not in NEAR:  # independent runs are rarely decided by 32 seeds
                yield case, kind, "any", 0


def measure(process: Process, kind: str, looks: str, seeds: int, repetitions: int, entropy: int) -> dict[str, Any]:
    """Return the counts of the verdicts, and the mean number of seeds where they were added."""
    rng = np.random.default_rng(entropy)
    pairs = [
        (at_once(process, kind, seeds, looks, rng), seeds) if seeds else until_decided(process, kind, looks, rng)
        for _ in range(repetitions)
    ]
    counts = {verdict: sum(found == verdict for found, _ in pairs) for verdict in ("same", "undecided", "different")}
    return {"counts": counts, "seeds": float(np.mean([used for _, used in pairs]))}


def stored(path: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a benchmark that was stopped, if it was the same one."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if {key: before.get(key) for key in made} == made:
            return dict(before["cells"])
    return {}


def code() -> str:
    """Return a digest of what makes the bands and draws the runs."""
    here = Path(__file__)
    modules = (rootscale.bands, rootscale.gap, rootscale.looks, rootscale.verdict)
    files = [*(Path(str(module.__file__)) for module in modules), here, here.with_name("resampled.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    for node in [node for tree in trees for node in ast.walk(tree)]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""  # words may change
    return hashlib.sha256("".join(map(ast.dump, trees)).encode()).hexdigest()[:12]


def share(found: dict[str, Any], *verdicts: str) -> float:
    counts = found["counts"]
    return float(sum(counts[verdict] for verdict in verdicts) / sum(counts.values()))


def show(found: dict[str, Any], console: Console) -> dict[str, float]:
    """Print the tables; return the worst rates and the smallest shares that are decided."""
    worst: dict[str, float] = {}
    for looks in WAYS:
        for seeds in (*SEEDS, 0) if looks != "once" else SEEDS:
            when = f"at {seeds} seeds" if seeds else "adding seeds, 2 to 32, until decided"
            table = Table("in %", box=box.MARKDOWN, title=f"looks: {looks}, {when}", title_justify="left")
            for name in (
                "false different",
                "false same",
                "null decided",
                "twice decided",
                "hump decided",
                "on the edge",
                *(("false same, 1.2 to 1.8", "1.2 to 1.8 decided") if seeds else ()),
            ):
                table.add_column(name, justify="right")
            for case in CASES if seeds else [case for case in CASES if "pairs" in case]:
                kinds = KINDS if seeds else [kind for kind in KINDS if kind not in NEAR]
                of = {kind: found["|".join((case, kind, looks, str(seeds)))] for kind in kinds}
                row = {
                    "false different": share(of[NULL], "different"),
                    "false same": max(share(of[kind], "same") for kind in (LASTING, HUMP, SPIKE)),
                    "null decided": share(of[NULL], "same", "different"),
                    "twice decided": share(of[LASTING], "same", "different"),
                    "hump decided": share(of[HUMP], "same", "different"),
                    "on the edge": share(of[EDGE], "same", "different"),  # wrong on either side of it
                }
                if seeds:
                    row["false same, 1.2 to 1.8"] = max(share(of[kind], "same") for kind in NEAR)
                    row["1.2 to 1.8 decided"] = float(np.mean([share(of[kind], "different") for kind in NEAR]))
                cells = [f"{100 * value:.1f}" for value in row.values()]
                if not seeds:
                    cells[2:5] = [
                        f"{text} ({of[kind]['seeds']:.0f})"
                        for text, kind in zip(cells[2:5], (NULL, LASTING, HUMP), strict=True)
                    ]
                table.add_row(case, *cells)
                for name, value in row.items():
                    key, pick = f"{looks}, {when}: {name}", max if "false" in name or "edge" in name else min
                    if "decided" not in name or "pairs" in case:
                        worst[key] = pick(worst.get(key, value), value)
            console.print(table)
    return worst


def main() -> None:
    """Measure what is missing, print the tables, and the three numbers last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/verdict"))
    args = parser.parse_args()
    made = {"repetitions": args.repetitions, "tolerance": TOLERANCE, "resamples": RESAMPLES, "code": code()}
    args.out.mkdir(parents=True, exist_ok=True)
    path, processes = args.out / "verdict.json", {case: fitted(case) for case in CASES}
    found = stored(path, made)
    for number, cell in enumerate(track(list(cells()), "cells")):
        key = "|".join(map(str, cell))
        if key not in found:
            case, kind, looks, seeds = cell
            found[key] = measure(processes[case], kind, looks, seeds, args.repetitions, number)
            write_json(path, {**made, **environment("cpu"), "cells": found})
    with (args.out / "verdict.txt").open("w", encoding="utf-8") as file:
        for console in (Console(width=140), Console(width=140, file=file)):
            worst = show(found, console)
            limit = 100 * binomial_limit(0, args.repetitions)
            console.print(
                f"{args.repetitions} repetitions: 0 is below {limit:.1f} at 95 %; the worst of the cases above"
            )
            for seeds in SEEDS:
                for looks in WAYS:
                    key = f"{looks}, at {seeds} seeds: "
                    numbers = [worst[key + name] for name in ("false different", "false same")]
                    near = worst[f"{key}false same, 1.2 to 1.8"], worst[f"{key}1.2 to 1.8 decided"]
                    decided = min(worst[key + name] for name in ("null decided", "twice decided"))
                    console.print(
                        f"seeds={seeds} looks={looks} false_different={numbers[0]:.3f} false_same={numbers[1]:.3f} "
                        f"decided_pairs={decided:.3f} false_same_near={near[0]:.3f} decided_near={near[1]:.3f}"
                    )
    assert all(math.isfinite(value) for value in worst.values())


if __name__ == "__main__":
    main()
