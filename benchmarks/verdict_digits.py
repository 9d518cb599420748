"""How often the check's verdict is wrong, on digits.

    python benchmarks/verdict_digits.py [--repetitions 200] [--seeds 16] [--device cpu] [--out results/verdict]

For every entry of a catalogue, many seeds are run once; groups of 16 of them are repetitions of a check, and all of
them together give the true gap. Runs are kept, and a benchmark that was stopped goes on where it was. About 40 minutes
on two cores, three on a GPU.

- Null pairs (the same settings, other seeds): "different" in at most 5 %.
- Wrong rules: "same" in at most 5 % for every entry whose true gap is at least twice the tolerance. The others are
  listed with their gap.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from rootscale.cli.console import make_console
from rootscale.cli.watching import observing
from rootscale.files import whole, write_json
from rootscale.format import plus_minus
from rootscale.lab import Arm, Forked, Here, Settings, Setup, Study, Task, Variant, grid
from rootscale.lab.provenance import environment
from rootscale.lab.tasks import digits
from rootscale.stats import binomial_limit
from rootscale.trajectory import Trajectory
from rootscale.verdict import LOSSES, compare

TOLERANCE = 0.05
VERDICTS = ("same", "undecided", "different")


@dataclass(frozen=True)
class Problem:
    """A task, when its batch size is switched (0: from scratch), by how much, and what is done wrong."""

    task: Task
    switch_at: int
    kappas: tuple[int, int]
    entries: dict[str, dict[str, Any]]

    def variant(self, entry: str) -> Variant:
        """The batch size goes up at the switch, and again half-way from there."""
        first, second = self.kappas
        middle = (self.switch_at + int(self.task.plan.samples or 0)) // 2
        return Variant(first, ramp=((middle, Fraction(second)),), name=entry, **self.entries[entry])


RULE: dict[str, Any] = {}
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "digits": lambda: Problem(
        digits(samples=40_000),
        12_000,
        (4, 16),
        {
            "the square root rule": RULE,
            "no state": {"rule": "without v, step_counter"},
            "state zeroed": {"zero_state": True},
            "no beta1": {"rule": "without beta1"},
            "no beta2": {"rule": "without beta2"},
            "linear": {"rule": "linear"},
            "learning rate only": {"rule": "sqrt-eta"},
            "nothing": {"rule": "none"},
        },
    ),
    "digits with BatchNorm": lambda: Problem(
        digits(batchnorm=True, samples=43_008),
        12_288,
        (4, 16),
        {"the square root rule": RULE, "BatchNorm left alone": {"rule": "without batchnorm"}},
    ),
    "digits with an EMA": lambda: Problem(
        digits(ema=0.999, samples=40_000),
        12_000,
        (4, 16),
        {"the square root rule": RULE, "EMA left alone": {"rule": "without ema"}},
    ),
    "digits with weight decay": lambda: Problem(
        digits(weight_decay=0.1, samples=40_000),
        12_000,
        (4, 16),
        {"the square root rule": RULE, "decay left alone": {"rule": "without decoupled_decay"}},
    ),
    "digits with a warm-up, from scratch": lambda: Problem(
        digits(warmup=8_000, samples=40_000),
        0,
        (4, 4),
        {"the square root rule": RULE, "warm-up left alone": {"rule": "without warmup"}},
    ),
}


def part(trajectory: Trajectory, first: int, size: int) -> Trajectory:
    """Some of the replicas."""
    rows = slice(first, first + size)
    meta = {"seeds": trajectory.meta["seeds"][rows]}
    return Trajectory(trajectory.times, {name: v[rows] for name, v in trajectory.values.items()}, meta=meta)


def judge(base: Trajectory, other: Trajectory, repetitions: int, seeds: int, shift: int = 0) -> dict[str, Any]:
    """Return the verdicts of all repetitions, and the true gap from all seeds; ``shift`` takes other seeds' base."""
    total = repetitions * seeds
    counts = dict.fromkeys(VERDICTS, 0)
    for i in range(repetitions):
        one = part(base, (i * seeds + shift) % total, seeds)
        found = compare(one, part(other, i * seeds, seeds), tolerance=TOLERANCE, deciding=LOSSES)
        counts[str(found.verdict)] += 1
    rolled = part(base, 0, total)
    true = compare(rolled, part(other, 0, total), tolerance=TOLERANCE, deciding=LOSSES, resamples=200)
    far = max((gap.largest for gap in true.decisive), key=lambda largest: abs(largest.gap))
    return {"gap": abs(far.gap), "error": (far.high - far.low) / 2, "counts": counts}


def rates(found: dict[str, Any]) -> Iterator[str]:
    """Yield shares with their standard errors; of none and of all, the exact limit at 95 %."""
    n = sum(found["counts"].values())
    for verdict in VERDICTS:
        count = found["counts"][verdict]
        if 0 < count < n:
            yield plus_minus(100 * count / n, 100 * math.sqrt(count / n * (1 - count / n) / n), 1)
        else:
            limit = 100 * binomial_limit(0, n)
            yield f"0 (< {limit:.1f})" if count == 0 else f"100 (> {100 - limit:.1f})"


def text_of(made: dict[str, Any]) -> str:
    """Return the table of all entries, and the worst rates."""
    results, n = made["results"], made["repetitions"]
    console = Console(width=120, record=True, file=io.StringIO())
    table = Table(
        "", "true gap, %", *(f"{verdict}, %" for verdict in VERDICTS), title="share of checks with each verdict"
    )
    for name, found in results.items():
        gap = "0" if name.endswith("null pairs") else f"{100 * found['gap']:.1f} ± {100 * found['error']:.1f}"
        table.add_row(name, gap, *rates(found))
    console.print(table)
    null = max(one["counts"]["different"] for name, one in results.items() if name.endswith("null pairs"))
    wrong = [one["counts"] for one in results.values() if one["gap"] >= 2 * TOLERANCE]
    same, decided = max(counts["same"] for counts in wrong), np.mean([counts["different"] for counts in wrong])
    limits = [binomial_limit(count, n) for count in (null, same)]
    lines = [
        *(line.rstrip() for line in console.export_text().splitlines()),
        f"{made['hardware']}, torch {made['versions']['torch']}, {n} repetitions of {made['seeds']} seeds",
        f"null_different={null / n:.3f} wrong_same={same / n:.3f} wrong_different={decided / n:.3f}",
        f"at 95 %, null_different < {limits[0]:.3f} and wrong_same < {limits[1]:.3f}",
        "± of a share is one standard error, of a gap half its band; (< x) and (> x) are exact limits at 95 %.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, judge, print the table, and the worst rates last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=Path, default=Path("runs/verdict"))
    parser.add_argument("--out", type=Path, default=Path("results/verdict"))
    args = parser.parse_args()
    cpu = args.device == "cpu"
    torch.set_num_threads(1 if cpu else torch.get_num_threads())
    total = args.repetitions * args.seeds
    results: dict[str, dict[str, Any]] = {}
    for name, make in PROBLEMS.items():
        problem = make()
        size = int(problem.task.plan.batch_size.total)
        stop = int(problem.task.plan.samples or 0)
        sizes = [size, *(size * kappa for kappa in problem.kappas)]
        settings = Settings(
            grid=grid(stop, 30, problem.switch_at, sizes), switch_at=problem.switch_at, setup=Setup(args.device)
        )
        entries = {entry: problem.variant(entry) for entry in problem.entries}
        with observing(make_console()) as observe:
            arms = [Arm("base", problem.task)]
            arms += [Arm(entry, problem.task, variant) for entry, variant in entries.items()]
            execute = Forked(together=400) if cpu else Here(total)
            study = Study(name, arms, seeds=range(total), settings=settings)
            table = study.run(args.runs / name.replace(" ", "-"), execute, observe)
        base = table.base.trajectory
        print(f"judging {name}", file=sys.stderr)
        results[f"{name}: null pairs"] = judge(base, base, args.repetitions, args.seeds, shift=args.seeds)
        for result in table.others:
            results[f"{name}: {result.label}"] = judge(base, result.trajectory, args.repetitions, args.seeds)
    args.out.mkdir(parents=True, exist_ok=True)
    made = {
        "command": f"python benchmarks/verdict_digits.py --repetitions {args.repetitions} --seeds {args.seeds}",
        **environment(args.device),
        "tolerance": TOLERANCE,
        "repetitions": args.repetitions,
        "seeds": args.seeds,
        "results": results,
    }
    write_json(args.out / "digits.json", made)
    text = text_of(made)
    print(text)
    with whole(args.out / "digits.txt") as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
