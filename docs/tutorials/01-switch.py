# %% [markdown]
# # A switch on digits, and four ways to break it
#
# **What you will learn.** How to go on with four times the batch size in the middle of a
# PyTorch run, so that the run does not notice. And what happens if you forget a part of it:
# four common half-measures, each measured against the run that kept its batch size.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. All runs together take half a minute.

# %%
import copy
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rootscale import Run, ScalingWarning

torch.set_num_threads(1)  # the net is tiny: threads would only wait for each other

# %% [markdown]
# ## A run as people have it
#
# 1,797 images of handwritten digits and a small net with BatchNorm. Beside the net there are
# an AdamW, a learning rate that falls on a line, and an average of the weights (EMA), which is
# the model one would ship. Each of these four holds numbers that depend on the batch size.

# %%
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)


class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        layers = nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.02), nn.ReLU()
        self.model = nn.Sequential(*layers, nn.Linear(32, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, (0.98, 0.998))
        falls = lambda step: max(0.05, 1 - step / 1250)  # noqa: E731
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, falls)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.order = torch.randint(len(images), (32_768,))  # the samples, in their order
        self.seen, self.batch_size = 0, 32


# %% [markdown]
# The loop takes the next samples of that order, as many as the batch size says. So all runs
# of one seed see the same samples, in small batches or in large ones.


# %%
def train(run, samples):
    for _ in range(samples // run.batch_size):
        batch = run.order[run.seen : run.seen + run.batch_size]
        loss = nn.functional.cross_entropy(run.model(images[batch]), labels[batch])
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        run.ema.update_parameters(run.model)
        run.seen += run.batch_size


run = Training(seed=0)
train(run, 8192)

# %% [markdown]
# ## The switch
#
# With more memory available, training continues at batch size 128. `kappa` is the ratio of the
# batch sizes, here 4. Give `Run` everything that belongs to the training. It keeps the numbers of
# the script, and makes each step in the units of the new batch size; print both:

# %%
beside = dict(scheduler=run.scheduler, model=run.model, ema=run.ema)
follow = Run(run.optimizer, tuned_at=32, batch_size=128, **beside)
run.batch_size = 128
for change in follow.changes:
    print(f"{change.name:22}{change.before:>12.6g} -> {change.after:.6g}")
print("the learning rate that the script sees:", run.optimizer.param_groups[0]["lr"])

# %% [markdown]
# The learning rate grew by the square root of 4. But that is one row of many. The betas, BatchNorm's momentum
# and the EMA's decay are lengths of memories, counted in steps. A step now has four times the samples, so the
# memories are a fourth as long. `factor of exp_avg_sq` is the optimizer's *state*: Adam's running mean of squared
# gradients is mostly noise, and the noise of a batch of 128 has a fourth of the variance. `factor of step`
# counts time: one step now is worth four, and the scheduler advances by four.
#
# What a `Run` cannot see, it names:

# %%
for text in follow.changes.remaining:
    print("-", text)

# %% [markdown]
# ## Four ways to break it
#
# From one state of the run we go on in seven ways. `rule="sqrt-eta"` is the learning rate alone,
# by the same square root; "nothing" only takes larger batches; the others leave out one part. "Kept, other samples"
# changes nothing but the luck of the draw, and shows how large a gap means nothing.


# %%
def convert(run, **options):
    all_of_it = dict(scheduler=run.scheduler, model=run.model, ema=run.ema)
    Run(run.optimizer, tuned_at=32, batch_size=128, **(all_of_it | options))
    run.batch_size = 128


# %%
def leave_state(run):
    state = copy.deepcopy(run.optimizer.state_dict()["state"])
    convert(run)
    for live, before in zip(run.optimizer.state.values(), state.values(), strict=True):
        live.update(before)


ways = {
    "batch size kept": lambda run: None,
    "kept, other samples": lambda run: run.order.random_(len(images)),
    "everything converted": convert,
    "nothing": lambda run: setattr(run, "batch_size", 128),
    "learning rate only": lambda run: convert(run, rule="sqrt-eta", model=None, ema=None),
    "state left": leave_state,
    "BatchNorm and EMA left": lambda run: convert(run, model=None, ema=None),
}

# %% [markdown]
# The library warns when it sees that something is missing: a rule that does not keep the training, or
# a scheduler that was not given.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", ScalingWarning)
    ways["learning rate only"](Training(seed=0))
    convert(Training(seed=0), scheduler=None)
for warning in caught:
    print("-", warning.message)


# %% [markdown]
# Now four seeds of each. Every 1,024 samples we take the loss over all images, of the model and of
# its average.


# %%
@torch.no_grad()
def full_loss(net):
    net.eval()
    loss = nn.functional.cross_entropy(net(images), labels).item()
    net.train()
    return loss


def curves(run):
    found = []
    for _ in range(20):
        train(run, 1024)
        found.append((full_loss(run.model), full_loss(run.ema)))
    return found


# %%
warnings.simplefilter("ignore", ScalingWarning)
losses = {name: [] for name in ways}
for seed in range(4):
    start = Training(seed)
    train(start, 8192)
    for name, way in ways.items():
        twin = copy.deepcopy(start)
        way(twin)
        losses[name].append(curves(twin))

# %% [markdown]
# A `Trajectory` holds the curves of all seeds. The **gap** of two sets of runs is the distance of
# their mean curves as a share of how far the base curve falls. Its largest value over time says how
# well a run was kept:

# %%
from rootscale.gap import gaps
from rootscale.trajectory import Trajectory

samples = 8192 + 1024 * np.arange(1, 21)
runs = {}
for name, values in losses.items():
    model, ema = np.moveaxis(np.array(values), 2, 0)
    runs[name] = Trajectory.of_runs(samples, {"loss": model, "loss of the average": ema})

print("largest gap, in % of the base curve's range (± standard error, 4 seeds)\n")
print(f"{'':24}{'loss':>16}{'of the average':>18}")
for name in list(ways)[1:]:
    found = [gap.largest for gap in gaps(runs["batch size kept"], runs[name]).values()]
    cells = [f"{100 * abs(one.gap):.1f} ± {100 * one.se:.1f}" for one in found]
    print(f"{name:24}{cells[0]:>16}{cells[1]:>18}")

# %% Loss and loss of the average over samples seen: converted it follows the kept run, the half-measures leave it
from rootscale.report import draw_curves

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
shown = {name: runs[name] for name in ways if name != "kept, other samples"}
for axis, name in zip(axes, ("loss", "loss of the average"), strict=True):
    draw_curves(axis, shown, name)
axes[0].get_legend().remove()
plt.show()

# %% tags=["check"]
size = {
    name: [abs(gap.largest.gap) for gap in gaps(runs["batch size kept"], runs[name]).values()]
    for name in ways
}
assert max(size["everything converted"]) < 0.06
for broken in list(ways)[3:]:
    assert max(size[broken]) > 2 * max(size["everything converted"]), broken
assert size["BatchNorm and EMA left"][1] > 3 * size["BatchNorm and EMA left"][0]

# %% [markdown]
# ## What to remember
#
# - Give **everything in one call**: optimizer, scheduler, model (for BatchNorm), average. Then
#   give the loader the new batch size.
# - The learning rate alone is what most people change. It is off by more than a fourth of the curve's
#   range, and the average of the weights by half of it.
# - The clock of a scheduler that was not given runs four times too slowly in samples.
# - A forgotten average shows where you look last: the loss of the model is off by a tenth, and that of the
#   average, which you ship, by half.
# - What is left of a gap with everything converted is the price of larger steps. The rule is exact
#   for small steps, and holds while the noise of a batch dominates its gradient. How large a batch
#   that allows can be measured: the next tutorials do.
#
# ## Where to go next
#
# - [The same from a checkpoint, in a loop of your own](02-resume.md)
# - [How far may the batch grow?](03-ramp.md)
# - [Live runs](../live-runs.md): everything that a `Run` does, and what it refuses
