"""How far may beta1 fall when the batch grows? Choose it from the measured curvature of the run.

Claim. Adam is stable while ``eta h < 2 (1 + beta1) / (1 - beta1)``, with ``h`` the largest eigenvalue of
``D^(-1/2) H D^(-1/2)``, and the square root rule multiplies ``eta h`` by kappa. So beta1 at kappa times the batch may
be ``max(1 - kappa (1 - beta1), (s kappa - 1) / (s kappa + 1))``, ``s = .75 eta h``, and never above beta1 itself, a
limit that was chosen after the first runs of this study. Fixed before the runs with eight seeds of all nets: (1) over
all cells the mean of the largest gaps with the limited value is smaller than with a floor of .9; (2) in no cell is it
farther off than the floor of .9 by more than 5 % and twice the error; (3) no fixed value that keeps ``kappa eta h``
below half of its bound throws the loss by more than half of its range; (4) with beta2 = .95 the nearest fixed value is
below the measured one in more than half of the cells at 16 and 64 times, as a short memory of ``v`` ends an overshoot
sooner (overshoot.py).

Protocol. MLP and conv net with BatchNorm on digits, ResNet-8 with GroupNorm on CIFAR-10 in 8 x 8 pixels, tiny GPT;
betas .9/.999, .9/.95, .95/.999; 4, 16 and 64 times the batch (conv net: 4 and 16), one switch in mid-run. ``eta h`` is
the mean of other seeds (100 and 101) at the switch, in results/stability-eta-h.json. The fixed values of `LADDER` show
where the edge is. Values of beta1 that agree are one arm. Compared is the largest gap of the loss after the switch.
Seeds 0 to 7.

Cost. About two hours of one core of a CPU for all twelve, the GPT half of it.

Finding. The eight seeds are not run yet. The first runs, stability-first-*, measured each seed at its own switch (n =
8, tiny GPT 2): over 33 cells the largest gap is 16.0 % of the range on the mean with the measured value, 17.1 % with a
floor of .9, and it is nearer in 26. On the tiny GPT at 64 times it was farther, with beta1 above .98: hence the limit.

    python experiments/stability.py --net resnet8                         measure eta h first
    rootscale study experiments/stability.py --net resnet8 --betas 999
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Claim, claim_of, stored
from small_nets import NETS, RESULTS, base_and_null
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rootscale.files import write_json
from rootscale.lab import Arm, Measure, Settings, Study, Trial, Variant
from rootscale.training import measure_stability
from rootscale.training.stability import Stability, stable_beta1
from rootscale.verdict import Judge

BETAS: Mapping[str, tuple[float, float]] = {"999": (0.9, 0.999), "95": (0.9, 0.95), "long": (0.95, 0.999)}
ON = ("mlp", "convnet", "resnet8", "gpt")
#: What was measured at the switch: ``eta h`` of each seed by net, betas and seed.
MEASURED, SEEDS = RESULTS / "stability-eta-h.json", (100, 101)
#: Fixed values of beta1 after the switch, by kappa.
LADDER: Mapping[int, Sequence[float]] = {4: (), 16: (0.0, 0.5, 0.8), 64: (0.5, 0.8)}
#: Batches on which the curvature is measured, and their size.
BATCHES, SIZES = 4, {"gpt": 64}
#: How the first runs call a net.
FIRST = {"convnet": "conv"}


def values(beta1: float, eta_h: float, kappa: int) -> dict[str, float]:
    """Return beta1 after the switch by the name of how it is chosen; equal values have the first name."""
    paper = 1 - kappa * (1 - beta1)
    measured = stable_beta1(beta1, kappa, eta_h)
    named = {"paper": paper} if paper > 1e-9 else {}
    named |= {"measured": measured, "measured, at most beta1": min(measured, beta1), "floor .9": max(paper, 0.9)}
    named |= {f"beta1 {value:g}": value for value in LADDER[kappa] if value > paper}
    found: dict[float, str] = {}
    for name, value in named.items():
        found.setdefault(round(value, 3), name)
    return {name: value for value, name in found.items()}


def eta_h(net: str, betas: str) -> float:
    """Return ``eta h`` at the switch, the mean over the seeds that it was measured with."""
    stored = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
    if betas not in stored.get(net, {}):
        raise ValueError(f"eta h of {net} is not measured yet: python experiments/stability.py --net {net}")
    return float(np.mean([one["eta_h"] for one in stored[net][betas]]))


def study(net: str, betas: str) -> Study:
    """Return the base, its null, the learning rate alone, and every value of beta1 at each kappa."""
    chosen, (beta1, beta2) = NETS[net], BETAS[betas]
    task = chosen.task(f"stability-{net}-{betas}", (beta1, beta2))
    sizes, arms = chosen.sizes, list(base_and_null(task))
    for kappa in (size // sizes[0] for size in sizes[1:]):
        arrow = f"{sizes[0]} → {sizes[0] * kappa}"
        for name, value in values(beta1, eta_h(net, betas), kappa).items():
            variant = Variant(kappa, f"sqrt with floor:{value:g},0.9")
            arms.append(Arm(f"{arrow}, {name}", task, variant, {"form": name, "beta1": value}))
        arms.append(Arm(f"{arrow}, learning rate only", task, Variant(kappa, "sqrt-eta"), {"form": "rate"}))
    claim = f"{chosen.title}, betas {beta1:g} and {beta2:g}: beta1 by measured stability"
    judge = Judge(decide_by=(chosen.judged,))
    return Study(
        f"stability-{net}-{betas}",
        arms,
        claim,
        8,
        chosen.settings(task),
        judge=judge,
        keeps=("train loss", "test loss"),
    )


def measured(net: str, betas: str, seed: int) -> tuple[Stability, float]:
    """Return ``eta h`` and the noise scale of one seed at the switch."""
    chosen = NETS[net]
    task = chosen.task(f"stability-{net}-{betas}", BETAS[betas])
    run = Trial(task, Variant(), [seed], Settings((0, chosen.settings(task).switch_at), measure=Measure()))
    run.finish()
    size = SIZES.get(net, 256)
    index = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))[: BATCHES * size]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no double backward
            return task.loss(model(batch[0]), batch[1]).mean()

    learner: Any = run.learner
    batches = [task.train[part] for part in torch.split(index, size)]
    found = measure_stability(learner.nets.model, learner.optimizer, loss, batches, seed=seed)
    return found, float(run.values["noise scale"][-1][0])


def studies(net: str = "", betas: str = "") -> list[Study]:
    """Return the studies of one net or betas, or of all."""
    return [study(one, two) for one in ([net] if net else ON) for two in ([betas] if betas else BETAS)]


def measure(net: str) -> None:
    """Measure ``eta h`` of a net with all betas, and store it beside what was measured before."""
    rows = {
        betas: [
            {"seed": seed, "eta_h": one.eta_h, "error": one.error, "gradients": one.gradients, "noise_scale": noise}
            for seed in SEEDS
            for one, noise in [measured(net, betas, seed)]
        ]
        for betas in BETAS
    }
    stored = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
    write_json(MEASURED, {**stored, net: rows}, indent=1)


def claims(results: Path) -> list[Claim]:
    """Return the rows of the table of claims, with those of the first runs, which chose beta1 for each seed alone."""
    found = []
    for net in ON:
        for name in BETAS:
            beta1, beta2 = BETAS[name]
            title = f"{NETS[net].title}, betas {beta1:g} and {beta2:g}"
            claim = f"{title}: beta1 by measured stability"
            table = stored(results, f"stability-{net}-{name}")
            found.append(claim_of(claim, table, f"stability-{net}-{name}", __file__))
            first = f"stability-first-{FIRST.get(net, net)}-{name}"
            text = f"{title}: beta1 by the stability of each seed at its switch, the first runs"
            found.append(claim_of(text, stored(results, first), first, __file__))
    return found


STUDY = studies

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=ON, required=True)
    torch.set_num_threads(1)
    measure(parser.parse_args().net)
