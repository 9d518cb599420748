"""Do two measured numbers say how far a run will be off when its batch grows? A map of stored switches.

Claim. The gap after a switch follows from how far the new batch is from the noise scale, ``kappa B / B_noise``, and how
near a step is to its edge, ``kappa eta h`` over ``2 (1 + beta1) / (1 - beta1)`` (`rootscale.training.stability`), more
than from the name of the net. Fixed before they were fitted: the log of the gap is linear in the logs of the two, and
of the longest memory after the switch in steps; fitted without a net, that predicts the net's gaps within a factor of
two more often than the mean of the other nets' gaps at the same kappa does.

Protocol. Every stored switch in mid-run of Adam or AdamW, everything converted and at once, whose net a CPU trains in
minutes: MLP, conv net, tiny GPT. The base run of each is made again up to the switch with two seeds that no study has
(100 and 101), and both numbers are measured there. The gap is the largest on the way, as in the study. A case that
several studies have counts once.

Cost. Ten minutes on a core of a CPU.

Finding. Contradicted (21 switches, n = 8 to 16): fitted without a net, the two numbers are within a factor of two less
often than kappa alone (results/README.md has the counts). The tiny GPT is past its noise scale and near its edge at 16
times, and hardly off; the conv net is neither, and far off. What predicts best was found afterwards and is no
hypothesis: the number of steps that are left. So the names of the nets stay in the table of evidence, and no run is put
on this map.

    python experiments/map_of_switches.py --data FOLDER                    measure, and write results/map.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Claim
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rootscale.evidence import Row, cases_of
from rootscale.files import write_json
from rootscale.lab import Measure, Settings, Study, Trial, Variant
from rootscale.lab.study_file import StudyFile
from rootscale.training.stability import measure_stability

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
#: What was measured at the switch, by study.
MEASURED, SEEDS = RESULTS / "map.json", (100, 101)
#: The files whose switches are made again, and batches of a size on which the curvature is measured.
FILES, BATCHES = ("ablations", "floors", "stages", "digits_switch", "language_switch", "far_from_scratch"), 4


def rebuilt(data: str) -> Iterator[Study]:
    """Yield the studies of a switch that are stored and small."""
    for file in FILES:
        for study in StudyFile(HERE / f"{file}.py").studies(data=data):
            large = study.name.startswith(("gpt-switch", "floors-gpt-9", "floors-gpt-kappa"))
            if study.settings.switch_at and not large and (RESULTS / f"{study.name}.npz").exists():
                yield study


def measured(study: Study, seed: int) -> dict[str, float]:
    """Return ``eta h`` and the noise scale of the base run of a study at its switch."""
    task: Any = study.base.run
    run = Trial(task, Variant(), [seed], Settings((0, study.settings.switch_at), measure=Measure()))
    run.finish()
    size = 64 if "gpt" in study.name else 256
    index = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))[: BATCHES * size]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no double backward
            mean: Tensor = task.loss(model(batch[0]), batch[1]).mean()
        return mean

    learner: Any = run.learner
    batches = [task.train[part] for part in torch.split(index, size)]
    found = measure_stability(learner.nets.model, learner.optimizer, loss, batches, seed=seed)
    return {"seed": seed, "eta_h": found.eta_h, "noise_scale": float(run.values["noise scale"][-1][0])}


def measure(data: str) -> None:
    """Measure every study that is not measured yet, and store it beside the others."""
    for study in rebuilt(data):
        stored = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
        if study.name not in stored:
            stored[study.name] = [measured(study, seed) for seed in SEEDS]
            print(study.name, stored[study.name], flush=True)
            write_json(MEASURED, stored, indent=1)


# -- what the numbers predict ------------------------------------------------------------------------------------------


def memory(row: Row) -> float:
    """Return how many steps the longest average lasts after the switch."""
    betas = (max(1 - row.kappa * (1 - beta), 0.9) for beta in (row.beta1, row.beta2))
    return max(1 / (1 - beta) for beta in betas)


#: What is fitted: the logs of these numbers.
PREDICTORS: Mapping[str, Sequence[Callable[[Row], float]]] = {
    "the two numbers and the memory": (lambda row: row.noise, lambda row: row.edge, memory),
    "the two numbers": (lambda row: row.noise, lambda row: row.edge),
    "the noise scale": (lambda row: row.noise,),
    "the edge": (lambda row: row.edge,),
    "kappa": (lambda row: row.kappa,),
    "the steps left": (lambda row: row.steps,),
}


def points() -> list[Row]:
    """Return the cases that are on the map."""
    found = cases_of("adam", what="everything", switched=True, stages=1, late=False)
    return [row for row in found if not math.isnan(row.noise) and not math.isnan(row.edge)]


def left_out(rows: Sequence[Row], numbers: Sequence[Callable[[Row], float]]) -> list[float]:
    """Return the errors of the log of the gap, each net's predicted by a fit to the others."""
    errors = []
    for net in dict.fromkeys(row.net for row in rows):
        others = [row for row in rows if row.net != net]
        design = [[1.0, *(math.log(number(row)) for number in numbers)] for row in others]
        fit = np.linalg.lstsq(np.array(design), np.array([math.log(abs(row.gap)) for row in others]), rcond=None)[0]
        for row in (row for row in rows if row.net == net):
            predicted = float(np.dot(fit, [1.0, *(math.log(number(row)) for number in numbers)]))
            errors.append(predicted - math.log(abs(row.gap)))
    return errors


def same_kappa(rows: Sequence[Row]) -> list[float]:
    """Return the errors where a net's gap is taken to be the mean of the others' at the same kappa."""
    errors = []
    for row in rows:
        others = [math.log(abs(one.gap)) for one in rows if one.net != row.net and one.kappa == row.kappa]
        errors += [float(np.mean(others)) - math.log(abs(row.gap))] if others else []
    return errors


def claims(results: Path) -> list[Claim]:
    """Return how often each way to predict the gap of a net is within a factor of two."""
    rows = points()
    ways = {name: left_out(rows, numbers) for name, numbers in PREDICTORS.items()}
    ways["the mean of other nets at the same kappa"] = same_kappa(rows)
    counts = [f"{name} {sum(abs(e) < math.log(2) for e in errors)} of {len(errors)}" for name, errors in ways.items()]
    asked = "Noise scale and edge predict the gap of a net that they were not fitted to, within a factor of two"
    seeds = [row.n for row in rows]
    command = "python experiments/map_of_switches.py"
    return [
        Claim(
            asked, f"within a factor of two: {', '.join(counts)}", f"{min(seeds)} to {max(seeds)}", "map.json", command
        )
    ]


def figures(results: Path) -> dict[str, Any]:
    """Return the gap over each of the two numbers, with a line for each net and betas."""
    from drawing import sweep

    rows, drawn = points(), {}
    axes = {"noise": "kappa B / noise scale", "edge": "kappa eta h / its bound", "steps": "steps after the switch"}
    for name, label in axes.items():
        found = [
            (f"{row.net}, {row.beta1:g}, {row.beta2:g}{', averaged' if row.ema else ''}", getattr(row, name),
             100 * abs(row.gap), 100 * row.se) for row in rows
        ]  # fmt: skip
        drawn[f"map-{name}"] = sweep(found, label, "largest gap, % of the loss's fall", "Switches of Adam, converted")
    return drawn


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("ROOTSCALE_DATA", "."))
    torch.set_num_threads(1)
    measure(parser.parse_args().data)
