"""Does a conversion of the scales of its blocks convert an optimizer's state of 8 bits?

Claim. Not in the paper. Multiplying the scales of the blocks converts a quantised state as well as multiplying the
numbers converts one in 32 bits. Left as they are, both depart.

Protocol. scikit-learn's digits, MLP 64-128-10, AdamW of bitsandbytes (an optional library) in 8 and in 32 bits: 12,000
samples at batch size 4, then 24,000 more at batch size 4 (the base), 16 and 64. All runs of a seed go on from the same
state. Replicas are trained side by side; the blocks of 256 numbers that share a scale do not cross from one to the
next, and biases stay in 32 bits. The gap is that of `rootscale.gap` between the mean curves of the train loss where it
is largest. 16 seeds, paired; the null has other samples.

Cost. Two minutes on one core.

Finding. Converted, both are within 5 % of the range of their own base, as the null is within 3; with the scales of v
left alone both depart by 10 % at 4 times the batch and 25 % at 16 times (n = 16).

    python experiments/quantised_adam.py
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from results import Claim
from rich.progress import track

from rootscale import AdamW
from rootscale.files import write_json
from rootscale.format import percent
from rootscale.gap import gaps
from rootscale.lab import Arm, Here, Measure, Result, Settings, Study, Task, Variant, grid
from rootscale.lab.provenance import environment
from rootscale.lab.tasks import digits, mlp
from rootscale.optimizers import FAMILIES

GROUP = "beyond"
NAME = "quantised-adam"
CLAIM = "AdamW on digits: a state of 8 bits is converted by the scales of its blocks as one of 32 bits is"
BITS = {"8 bits": "AdamW8bit", "32 bits": "AdamW32bit"}
KAPPAS, SWITCH, SAMPLES = (4, 16), 12_000, 36_000
#: What is done at the switch.
RULES = {
    "all converted": None,
    "state left as it is": "sqrt without v, m, step_counter",
    "scales of v left as they are": "sqrt without v",
    "learning rate only": "sqrt-eta",
    "nothing": "none",
}


def optimizer_of(name: str, parameters: Any, record: AdamW) -> torch.optim.Optimizer:
    """Return an optimizer of bitsandbytes; the matrices of all replicas together are large enough to be quantised."""
    cls: Callable[..., torch.optim.Optimizer] = getattr(importlib.import_module("bitsandbytes.optim"), name)
    return cls(parameters, **FAMILIES["adamw"].torch.arguments(record))


def task_of(name: str) -> Task:
    """Return the task of one kind of state."""
    plain = digits(weight_decay=0.01, samples=SAMPLES)
    return replace(
        plain, name=f"digits {name}", model=partial(mlp, (64, 128, 10)), optimizer=partial(optimizer_of, name)
    )


def measured(name: str, seeds: int, store: Path | None) -> dict[str, dict[str, dict[str, float]]]:
    """Return the largest gaps by kappa and by what is done, each against the run of its own kind that was kept."""
    settings = Settings(
        grid=grid(SAMPLES, 40, SWITCH, [4, 64]), switch_at=SWITCH, measure=Measure(noise=False, eval_samples=1437)
    )
    task, places = task_of(name), [(kappa, label) for kappa in KAPPAS for label in RULES]
    arms = [Arm("base", task), Arm("null", task, Variant(other_samples=True))]
    arms += [Arm(f"{kappa}, {label}", task, Variant(Fraction(kappa), RULES[label])) for kappa, label in places]
    table = Study(name, arms, seeds=range(seeds), settings=settings).run(store, Here(seeds))

    def largest(result: Result) -> dict[str, float]:
        found = gaps(table.base.trajectory, result.trajectory, ["train loss"])["train loss"].largest
        return {"gap": round(found.gap, 4), "se": round(found.se, 4)}

    null, *others = (largest(result) for result in table.others)
    found: dict[str, dict[str, dict[str, float]]] = {f"kappa={kappa}": {"null": null} for kappa in KAPPAS}
    for (kappa, label), gap in zip(places, others, strict=True):
        found[f"kappa={kappa}"][label] = gap
    return found


def claims(results: Path) -> list[Claim]:
    """Return the row of the table of claims: the gaps of each kind of state, with its scales converted or not."""
    path = results / f"{NAME}.json"
    if not path.exists():
        return [Claim(CLAIM, "", "", "", __file__)]
    found = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for key in (f"kappa={kappa}" for kappa in KAPPAS):
        for kind, measured_gaps in found["gaps"].items():
            shown = (
                f"{label} {percent(measured_gaps[key][label]['gap'], measured_gaps[key][label]['se'])}"
                for label in ("all converted", "scales of v left as they are", "null")
            )
            parts.append(f"{key.removeprefix('kappa=')} times the batch, {kind}: {', '.join(shown)}")
    return [Claim(CLAIM, "; ".join(parts), str(found["seeds"]), path.name, __file__)]


def main() -> None:
    """Run, and save the gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--store", type=Path, help="the folder of the runs, which are resumed from there")
    parser.add_argument("--out", type=Path, default=Path("results") / f"{NAME}.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {kind: measured(name, args.seeds, args.store) for kind, name in track(BITS.items())}
    made = {"command": f"python experiments/quantised_adam.py --seeds {args.seeds}", **environment("cpu")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, {"gaps": found, "seeds": args.seeds, "bitsandbytes": version("bitsandbytes"), **made})


if __name__ == "__main__":
    main()
