# %% [markdown]
# # Muon and the family of rules
#
# **What you will learn.** Why Adam's rule is wrong for optimizers that divide momentum by its own size, such as Muon,
# Lion, Signum and LAMB, and which family of rules they have instead. And how to convert a run in which Muon and AdamW
# work side by side, in one call.
#
# You need PyTorch 2.9 or newer (for its `Muon`) and `pip install -e ".[lab,plot]"`. All runs together
# take half a minute.

# %%
import copy
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from rootscale import Run, ScalingWarning
from rootscale.records import Muon
from rootscale.theory.toys import Setting, toy_gaps
from rootscale.training import exact_noise

torch.set_num_threads(1)  # the net is tiny: threads would only wait for each other
warnings.simplefilter("ignore", ScalingWarning)  # some rules are wrong on purpose here

# %% [markdown]
# ## Divided by what?
#
# Adam moves by `m / sqrt(v)`. Its `v` averages *single* squared gradients, so `sqrt(v)` is the noise of one batch, and
# a batch `kappa` times as large makes it smaller by `sqrt(kappa)`.
#
# Muon moves by momentum divided by *momentum's own size*: it makes the matrix `m` orthogonal. Lion and Signum
# take its sign. Where noise dominates, that size is the noise that is *left in the average* `m`. It depends on the
# batch size **and** on how many steps `m` averages over. So there is a choice: how much of
# momentum's window is kept. Call it `a`, from 0 (as many steps) to 1 (as many samples):
#
# | | becomes | a = 0 | a = 1/2 | a = 1 |
# |---|---|---|---|---|
# | `1 - momentum` | times `kappa^a` | kept | `kappa^(1/2)` | `kappa` |
# | learning rate | times `kappa^((1 + a) / 2)` | `kappa^(1/2)` | `kappa^(3/4)` | `kappa` |
# | momentum buffer | times `kappa^((a - 1) / 2)` | `kappa^(-1/2)` | `kappa^(-1/4)` | kept |
# | weight decay | times `kappa^((1 - a) / 2)` | `kappa^(1/2)` | `kappa^(1/4)` | kept |
#
# The names of these rules are `normalized-sqrt`, `normalized-half` and `normalized-linear`. Adam's rule is none of
# them: it takes the learning rate of `a = 0` and the momentum of `a = 1`.
#
# ## On a toy
#
# `toy_gaps` simulates the plain update on a small quadratic loss of a matrix, with noise that dominates. After 160
# steps the batch is multiplied by 4 and converted by each rule.

# %%
rules = {
    "a = 0 (default)": None,
    "a = 1/2": "normalized-half",
    "a = 1": "normalized-linear",
    "Adam's rule": "sqrt with paper",
    "nothing": "none",
}
muon = Muon(0.007, 0.95, weight_decay=0.1, nesterov=False)
toy = toy_gaps(muon, rules, 4, toy="matrix", setting=Setting(replicas=256))
print("largest gap, % of the base curve's range, ± standard error over 256 replicas")
for name, gap in toy.items():
    print(f"{name:16} {100 * gap.gap:+6.1f} ± {100 * gap.se:.1f}")

# %% [markdown]
# `null` is the same batch size with other noise: nothing can be nearer than that. All of the family are near, `a = 1`
# the nearest. Adam's rule is further off: it shortens the average, which leaves more noise in `m`, and by that the step
# is divided.
#
# ## Live: Muon and AdamW in one run
#
# In practice Muon trains the matrices, and AdamW everything else. Here is such a run on digits.

# %%
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)


class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        matrices = [p for p in self.model.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        muon = torch.optim.Muon(matrices, lr=2e-3, momentum=0.95, nesterov=False)
        self.optimizers = [muon, torch.optim.AdamW(others, lr=1e-3, betas=(0.98, 0.998))]
        self.order = torch.randint(len(images), (16_384,))
        self.seen, self.batch_size = 0, 16


# %% [markdown]
# One call is for both, each by the rule of its kind:

# %%
run = Training(seed=0)
changes = Run(run.optimizers, tuned_at=16, batch_size=64).changes
print(changes.rule.name)
for name in ("lr", "momentum", "weight_decay", "beta1"):
    for number in (0, 1):
        if f"optimizer {number}: {name}" in changes:
            change = changes[f"optimizer {number}: {name}"]
            print(f"{change.name:28}{change.before:g} -> {change.after:g}")

# %% [markdown]
# A rule for one of them is chosen by its family: `rule={"muon": "normalized-half"}`. Three seeds of each, switched
# after 4,096 samples; AdamW always follows its own rule.


# %%
def train(run, samples):
    for _ in range(samples // run.batch_size):
        batch = run.order[run.seen : run.seen + run.batch_size]
        nn.functional.cross_entropy(run.model(images[batch]), labels[batch]).backward()
        for optimizer in run.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        run.seen += run.batch_size


@torch.no_grad()
def full_loss(run):
    return nn.functional.cross_entropy(run.model(images), labels).item()


# %%
def go_on(start, rule):
    run = copy.deepcopy(start)
    if rule != "kept":
        Run(run.optimizers, tuned_at=16, batch_size=64, rule={"muon": rule} if rule else None)
        run.batch_size = 64
    losses = []
    for _ in range(16):
        train(run, 512)
        losses.append(full_loss(run))
    return losses


# %%
losses = {name: [] for name in ("batch size kept", *rules)}
for seed in range(3):
    start = Training(seed)
    train(start, 4096)
    for name, found in losses.items():
        found.append(go_on(start, rules.get(name, "kept")))

# %%
from rootscale.gap import gaps
from rootscale.trajectory import Trajectory

samples = 4096 + 512 * np.arange(1, 17)
runs = {name: Trajectory.of_runs(samples, {"loss": found}) for name, found in losses.items()}
live = {name: gaps(runs["batch size kept"], runs[name])["loss"].largest for name in rules}
print("largest gap on digits, % of the base curve's range, ± standard error over 3 seeds")
for name, gap in live.items():
    print(f"{name:16} {100 * gap.gap:+6.1f} ± {100 * gap.se:.1f}")

# %% Left, the gaps of the rules, smallest for a = 1; right, on digits only a = 1 follows the batch that was kept
from rootscale.report import draw_curves
from rootscale.report.plotting import plain_axes
from rootscale.report.styles import STYLES

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
plain_axes([left])
for found, style, label in ((toy, STYLES[1], "toy"), (live, STYLES[6], "digits")):
    size, error = [100 * found[n].gap for n in rules], [200 * found[n].se for n in rules]
    left.errorbar(size, list(rules), xerr=error, fmt="o", color=style.colour, label=label)
left.invert_yaxis()
left.set_xlabel("largest gap, % of the range")
left.legend(frameon=False)
draw_curves(right, runs, "loss")
plt.show()

# %% [markdown]
# The toy and this run agree on the order, and here only `a = 1` keeps the run. Why is `a = 0` so far off? The count
# assumes that what is left in momentum is mostly noise. Momentum of 0.95 averages over 20 steps, here 320 samples.
# Compare that with the noise scale at the switch, the batch size at which noise and gradient are as long ([tutorial
# 3](03-ramp.md)):

# %%
start = Training(seed=0)
train(start, 4096)
noise = exact_noise(start.model, nn.functional.cross_entropy, images, labels)
print(f"noise scale at the switch: {noise.scale.value:.0f} samples; momentum averages over 320")

# %% tags=["check"]
assert abs(toy["a = 1"].gap) < 0.05 < 0.1 < toy["Adam's rule"].gap
assert (
    abs(live["a = 1"].gap) < 0.05 < 0.2 < min(live[n].gap for n in ("a = 0 (default)", "nothing"))
)
assert noise.scale.value < 320

# %% [markdown]
# The average is longer than the noise scale, so momentum is mostly *gradient* here. A normalised gradient has the same
# length at every batch size, and to go as far in a fourth of the steps the learning rate has to grow by 4: that is `a =
# 1`. Later in a run, and in large models, the noise scale is far larger. Over a GPT and a small net, four and sixteen
# times the batch, `a = 1/2` was the nearest on the whole, and `a = 1` threw the GPT's loss
# ([measurements](../../experiments/momentum.py)).
#
# ## What to remember
#
# - Adam's rule is not for Muon, Lion, Signum and LAMB. A `Run` knows the family of each optimizer and
#   picks its rule.
# - They have a family of rules with a choice `a`. `a = 0` is the default: momentum is kept, and there is no largest
#   `kappa`. `a = 1/2` is nearer in most runs, where no code of yours sets momentum. `a = 1` keeps momentum's window in
#   samples, and ends at `kappa = 1 / (1 - momentum)`.
# - Which `a` is right depends on whether momentum is noise or gradient. These rules are `derived` by counting powers,
#   not proven. Measure before you rely on one: [is it the same?](04-same.md)
# - Several optimizers go into one call, and all follow or none.
#
# ## Where to go next
#
# - [Which optimizer, which rule, how sure](../optimizers.md): the table of all families
# - [Derive the units of your own optimizer](07-own-optimizer.md) by the same counting
# - [Muon and Lion in training](../../experiments/momentum.py): the runs on a GPT and on digits
