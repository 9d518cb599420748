# %% [markdown]
# # Is it the same? `check` and `compare`
#
# **What you will learn.** How to have a change of batch size judged: *same*, *different* or *undecided*, with
# controlled error, instead of by a look at two curves. `check` makes the runs itself; `compare` judges
# runs that you have already, from their logs.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. All runs together take half a minute.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from rootscale import Adam, Plan
from rootscale.lab import Here, Measure, Task, Variant, check

torch.set_num_threads(1)  # the net is tiny: threads would only wait for each other

# %% [markdown]
# ## A task
#
# A task is a model, its data, a loss for each sample, and the plan of the run.

# %%
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
task = Task(
    "digits",
    plan=Plan(Adam(eta=5e-4, beta1=0.99, beta2=0.999), batch_size=4, steps=8_000),
    model=lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"),
    train=(images[:1437], labels[:1437]),
    test=(images[1437:], labels[1437:]),
)

# %% [markdown]
# ## The check
#
# We ask for three things from sample 12,000 on, a third of the run: four times the batch by the rule, sixteen times,
# and four times with the learning rate alone. Eight seeds of each are trained together. Runs of one seed see the same
# samples in the same order, which makes their differences small: that is why eight are enough.

# %%
found = check(
    task,
    [4, 16, Variant(4, "sqrt-eta", name="B = 16, learning rate only")],
    seeds=8,
    switch_at=12_000,
    measure=Measure(points=16),
    execute=Here(),
)
for arm in found.others:
    print(f"{arm.label}: {arm.verdict}")
    for name in ("train loss", "test loss"):
        print(f"    {arm.comparison.gaps[name]}")

# %% [markdown]
# How to read this. The **gap** is the distance of the mean curves as a share of how far the base curve
# moves. A run is **same** if the band around the gap, averaged over neighbouring times, stays within 5 %
# (`Judge(tolerance=...)`), **different** if the band lies wholly outside somewhere, and **undecided** otherwise: then
# it says how many seeds would decide. Undecided is an answer too: it keeps you from calling two runs equal because
# there were few of them. Where the number of seeds is absurd, the gap lies about at the tolerance itself: then take a
# smaller batch, or decide how much of a gap you can live with.
#
# The picture has the same in it: on the left the mean curves with two standard errors, on the right the gaps with their
# bands, and the tolerance in grey.

# %% Left, the train loss of the four runs; right, their gaps: only the learning rate alone leaves the grey tolerance
from rootscale.report import draw_curves
from rootscale.report.plotting import plain_axes
from rootscale.report.styles import STRIP, STYLES

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True, layout="constrained")
arms = [found.base, *found.others]
draw_curves(left, {arm.label: arm.trajectory for arm in arms}, "train loss")
plain_axes([right])
right.axhspan(-5, 5, color=STRIP, alpha=0.15)
for arm, style in zip(arms[1:], STYLES[1:], strict=False):
    gap, seen = arm.comparison.gaps["train loss"], arm.trajectory.meta["samples"]
    right.fill_between(seen, 100 * gap.low, 100 * gap.high, color=style.colour, alpha=0.15)
    right.plot(seen, 100 * gap.gap, color=style.colour, linestyle=style.matplotlib)
right.set(xlabel="samples seen", ylabel="gap, % of the range")
plt.show()

# %% [markdown]
# A check that finds a difference also says what it sees, and what to do:

# %%
from rootscale.lab.recommendation import recommend

for cause in found["B = 16, learning rate only"].causes:
    print("-", cause)
for sentence in recommend(found):
    print("-", sentence)

# %% [markdown]
# On the command line it is `rootscale check task.py:task --to 16 64 --switch-at 12000`. That also writes
# a report in one HTML page, begins with 4 seeds, and adds more until the verdict is decided.
#
# ## From logs that you have
#
# Runs that were made elsewhere have logs: JSON lines, CSV, TensorBoard, W&B, MLflow, the Trainer's state. Here we
# write those of the check as a loop of your own would have, one file for each run, with steps and losses.


# %%
def write_logs(arm, folder, batch_size):
    Path(folder).mkdir(exist_ok=True)
    for seed, losses in enumerate(arm.trajectory.values["train loss"]):
        rows = zip(arm.trajectory.meta["samples"], losses, strict=True)
        lines = [json.dumps({"step": n // batch_size, "loss": float(one)}) for n, one in rows]
        Path(folder, f"seed-{seed}.jsonl").write_text("\n".join(lines))


write_logs(found.base, "b4", 4)
write_logs(found["B = 16"], "b16", 16)
write_logs(found["B = 16, learning rate only"], "lr-only", 16)
print(Path("b16/seed-0.jsonl").read_text().splitlines()[0])

# %% [markdown]
# The runs are compared at equal samples seen, so the batch sizes have to be known:

# %%
# !rootscale compare b4 --to b16 --batch-size 4 16

# %% [markdown]
# The command does not know that the files are pairs: that `seed-0` of both sides began alike and saw the
# same samples. So it compares two sets of eight independent runs, whose means differ by luck. `--paired` tells it:

# %%
# !rootscale compare b4 --to b16 --batch-size 4 16 --paired

# %% [markdown]
# And the half-measure:

# %%
# !rootscale compare b4 --to lr-only --batch-size 4 16 --paired

# %% tags=["check"]
verdicts = [arm.verdict for arm in found.others]
assert verdicts == ["same", "undecided", "different"], verdicts
assert 8 < found["B = 64"].comparison.gaps["test loss"].seeds_needed <= 64

# %% [markdown]
# The exit code is 0 for same, 1 for different and 3 for undecided, so a script can act on it.
#
# ## What to remember
#
# - Decide by bands, not by eye, and compare at equal samples seen, never at equal steps.
# - Runs of one seed should see the same samples in the same order at every batch size. Pairs need far
#   fewer seeds: here the band was more than ten times as narrow.
# - One run a side gives no verdict, whatever the curves look like.
# - "Same" is about the loss curve within a tolerance. It does not say that the run is a good one.
#
# ## Where to go next
#
# - [The check, step by step](../same.md), and [a loop of your own in it](../same.md#your-own-loop)
# - [Comparing runs by their logs](../same.md#logs-that-you-have): formats, clocks, smoothing
# - [What the verdicts mean](../same.md#the-verdict), and how often they are wrong
