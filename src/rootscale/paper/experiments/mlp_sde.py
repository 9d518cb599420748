"""A real network follows the SDE of Adam: `src/rootscale/paper/experiments/sde_digits.py` under the name ``mlp-sde``.

The claim, the setting and the cost are in that file: discrete Adam, SVAG and the SDE by Euler-Maruyama from a common
state in mid-training, 32 replicas each, on scikit-learn's digits. The paper calls the solution of the SDE intractable.

    rootscale reproduce mlp-sde
"""

from __future__ import annotations

import json
from pathlib import Path

from rootscale.format import percent
from rootscale.paper.experiment import Experiment, Options, Stored
from rootscale.paper.experiments import sde_digits

#: What a smoke test runs: all processes, for a moment.
SMALL = ["--eager", "--replicas", "3", "--warmup-samples", "400", "--samples", "64", "--points", "2"]


def script(options: Options, out: Path, runs: Path, minutes: float | None) -> bool:
    """The program of the theory's experiment: it is short, is not stopped, and keeps its runs with its results."""
    if minutes == 0:
        return (out / "digits.json").exists()
    status: int = sde_digits.main(["--out", str(out), "--device", options.device, *(SMALL if options.smoke else [])])
    return status == 0


def stored(folder: Path) -> Stored | None:
    """The gaps to discrete Adam in ``digits.json``."""
    if not (folder / "digits.json").exists():
        return None
    record = json.loads((folder / "digits.json").read_text(encoding="utf-8"))
    parts = []
    for process in record["processes"].values():
        found = process["against_discrete_adam"]
        if found is not None:
            loss = found["loss"]
            gap = percent(loss["largest_gap_over_range"], loss["its_standard_error"])
            parts.append(f"{process['label']} {gap}")
    words = "largest gap of the train loss to discrete Adam, over that curve's range: " + "; ".join(parts)
    hardware = record["processes"]["sde"]["hardware"]
    return Stored(words, record["settings"]["replicas"], hardware, folder / "digits.png")


EXPERIMENTS = [
    Experiment(
        name="mlp-sde",
        title="The SDE of a real network",
        claim="Not in the paper. Discrete Adam, SVAG and the solved SDE have one loss curve, for an MLP on digits (the "
        "paper calls the SDE's simulation intractable)",
        source="Section 4 and section 6, SVAG",
        minutes=15,
        defaults=Options(batch_sizes=(), seeds=32),
        script=script,
        stored=stored,
        place="theory",
    )
]
