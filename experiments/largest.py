"""Does the noise scale predict the largest batch that trains the same? Branches along two runs.

Claim. Fixed before it was run: along each run the largest batch that is the same (within 5 % of the range of the loss)
grows with the noise scale, and lies within a factor of 4 of the Euclidean noise scale at its start; the noise scale in
Adam's metric is nearer to it, by the mean of the absolute logarithm of the ratio over the starts of both nets.

Protocol. `rootscale largest` with a tiny GPT on enwik8 (2 layers, width 32, sequences of 32 bytes; AdamW, betas .9 and
.99, B = 8) and a conv net with BatchNorm on digits (Adam, betas .9 and .999, B = 16), at constant learning rates. From
each start (3, 10, 25 and 50 % of the run) branches go to the end of the run at 2, 4, ... times the batch, everything
converted, with seeds 0 to 7. The largest batch that is the same has the interval from the last batch that is the same
to the first that is different; its middle is the geometric one.

Finding, conv net (n = 4 to 8). At 3 and 10 % of the run the largest batch lies between 32 and 64, then between 64 and
128; the noise scale is 106, then 209, so that it grows with the batch and lies within a factor of 4. At 25 % the
interval is 16 to 256 and at 50 % it has no upper end, so that nothing is said there. Adam's metric is not nearer (a
mean factor of 3.7, Euclidean 3.6): contradicted. The noise scale is too large by 2 to 3 at each start that tells. The
GPT was not run.

Cost. About 20 minutes of one core for both.

Finding. On the conv net (4 to 8 seeds) the largest batch lies a factor of 3.6 from the noise scale on the mean, and
Adam's metric is no nearer (3.7). The GPT is not run yet.

    rootscale largest experiments/largest.py:gpt --switch-at 3% 10% 25% 50% --seeds 8
    rootscale largest experiments/largest.py:convnet --switch-at 3% 10% 25% 50% --to 32 64 128 256 512 --seeds 8

``largest.json`` in the folder of each is stored as results/largest-gpt.json and results/largest-convnet.json.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import Claim
from small_nets import NETS

from rootscale import AdamW, BatchSize, Plan
from rootscale.format import few_digits, listed
from rootscale.lab import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Titles of what is branched, by name.
TITLES = {"gpt": "tiny GPT on enwik8, B = 8", "convnet": "conv net on digits, B = 16"}
#: Sequences of the GPT's run, and epochs of the conv net's.
SEQUENCES, EPOCHS = 65_536, 24


def gpt() -> Task:
    """Return the tiny GPT."""
    from language_models import enwik8_gpt

    plan = Plan(AdamW(1e-3, 0.9, 0.99), BatchSize(8), steps=Fraction(SEQUENCES, 8), sequence_length=32)
    return enwik8_gpt("largest-gpt", lambda windows: plan, "gpt-tiny", 32)


def convnet() -> Task:
    """Return the conv net with BatchNorm."""
    return replace(NETS["convnet"], samples=EPOCHS * 1437).task("largest-convnet", (0.9, 0.999))


def stored(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the branches of each net whose search is stored."""
    files = {name: results / f"largest-{name}.json" for name in TITLES}
    return {name: json.loads(file.read_text())["branches"] for name, file in files.items() if file.exists()}


def middle(branch: dict[str, Any], base: int) -> float | None:
    """Return the middle of the interval in which the largest batch lies; None without an upper end."""
    if branch["same"] is None or branch["different"] is None:
        return None
    return math.sqrt(max(branch["same"], base) * branch["different"])


def errors(branches: list[dict[str, Any]], base: int) -> dict[str, list[float]]:
    """Return log2 of noise scale over largest batch at each start that has both, by norm."""
    found: dict[str, list[float]] = {}
    for branch in branches:
        largest = middle(branch, base)
        for norm, (value, _, _) in branch["noise_scales"].items():
            if largest is not None and value is not None:
                found.setdefault(norm, []).append(math.log2(value / largest))
    return found


def outcome(name: str, branches: list[dict[str, Any]]) -> str:
    """Return the largest batch at each start beside the noise scales, in words."""
    base, parts = {"gpt": 8, "convnet": 16}[name], []
    for branch in branches:
        upper = branch["different"] or "not seen"
        scales = [f"{few_digits(value)} ({norm})" for norm, (value, _, _) in branch["noise_scales"].items() if value]
        parts.append(
            f"after {branch['samples']:,.0f} samples {branch['same']} to {upper}, noise scale {listed(scales)}"
        )
    off = errors(branches, base)
    mean = [f"{few_digits(2 ** (sum(map(abs, one)) / len(one)))} ({norm})" for norm, one in off.items()]
    return f"mean factor between noise scale and largest batch: {listed(mean)}; {'; '.join(parts)}"


def claims(results: Path) -> list[Claim]:
    """Return a row of the table of claims for each net."""
    found, known = [], stored(results)
    for name, title in TITLES.items():
        claim = f"{title}: the largest batch that is the same grows with the noise scale, within a factor of 4 of it"
        command = f"`rootscale largest experiments/largest.py:{name} ...`"
        if name in known:
            seeds = {str(arm["seeds"]) for branch in known[name] for arm in branch["arms"]}
            row = Claim(claim, outcome(name, known[name]), " to ".join(sorted(seeds)), f"largest-{name}.json", command)
            found.append(row)
        else:
            found.append(Claim(claim, "not run", "", "", command))
    return found


def figures(results: Path) -> dict[str, Figure]:
    """Return the figure of the largest batch beside the noise scales along the runs."""
    import matplotlib.pyplot as plt

    found = stored(results)
    if not found:
        return {}
    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 4), squeeze=False)
    for axis, (name, branches) in zip(axes[0], found.items(), strict=True):
        at = [branch["samples"] for branch in branches]
        for branch in branches:
            upper = branch["different"] or 2 * (branch["same"] or 1)
            axis.plot([branch["samples"]] * 2, [branch["same"] or 1, upper], "k-", linewidth=4, alpha=0.6)
        axis.plot([], [], "k-", linewidth=4, alpha=0.6, label="largest batch that is the same")
        for norm in branches[0]["noise_scales"]:
            axis.plot(at, [branch["noise_scales"].get(norm, [math.nan])[0] for branch in branches], "o-", label=norm)
        axis.set(yscale="log", xlabel="samples seen at the start of the branches", ylabel="samples", title=TITLES[name])
        axis.legend(fontsize=8)
    figure.tight_layout()
    return {"largest": figure}
