"""AdamW with a state of 8 bits against one of 32 bits, when the batch size changes in mid-run.

Claim: multiplying the scales of the blocks converts a quantised state as well as multiplying the numbers converts one
in 32 bits. Left as they are, both depart.

    python benchmarks/quantised_adam.py [--seeds 16] [--out results/optimizers/quantised.json]

scikit-learn's digits, MLP 64-128-10, AdamW of bitsandbytes (needs ``pip install bitsandbytes scikit-learn``) in 8 and
in 32 bits: 12,000 samples at batch size 4, then 24,000 more at batch size 4 (the base), 16 and 64. Every variant of a
seed goes on from the same state. Replicas are trained side by side; the blocks of 256 numbers that share a scale do not
cross from one to the next, and biases stay in 32 bits. The gap is that of `rootscale.gap` between the mean curves of
the train loss where it is largest. Two minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bitsandbytes
import torch
from rich.progress import track

from rootscale import AdamW
from rootscale.files import write_json
from rootscale.gap import gaps
from rootscale.lab import Here, Measure, Settings, Task, Variant, sweep
from rootscale.lab.provenance import environment
from rootscale.lab.settings import grid
from rootscale.lab.tasks import digits, mlp
from rootscale.optimizers import FAMILIES

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
    cls: Callable[..., torch.optim.Optimizer] = getattr(bitsandbytes.optim, name)
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
    arms = {(kappa, label): Variant(Fraction(kappa), rule) for kappa in KAPPAS for label, rule in RULES.items()}
    null = Variant(other_samples=True)
    runs = sweep(
        task_of(name), [Variant(), null, *arms.values()], seeds=range(seeds), settings=settings, execute=Here(seeds),
        store=store,
    ).trajectories  # fmt: skip
    base = runs[Variant()]

    def largest(variant: Variant) -> dict[str, float]:
        found = gaps(base, runs[variant], ["train loss"])["train loss"].largest
        return {"gap": round(found.gap, 4), "se": round(found.se, 4)}

    return {
        f"kappa={kappa}": {"null": largest(null)} | {label: largest(arms[kappa, label]) for label in RULES}
        for kappa in KAPPAS
    }


def main() -> None:
    """Run, and save the gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--store", type=Path, help="the folder of the runs, which are resumed from there")
    parser.add_argument("--out", type=Path, default=Path("results/optimizers/quantised.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {kind: measured(name, args.seeds, args.store) for kind, name in track(BITS.items())}
    made = {"command": f"python benchmarks/quantised_adam.py --seeds {args.seeds}", **environment("cpu")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(args.out, {"gaps": found, "seeds": args.seeds, "bitsandbytes": version("bitsandbytes"), **made})


if __name__ == "__main__":
    main()
