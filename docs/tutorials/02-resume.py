# %% [markdown]
# # A checkpoint resumed at another batch size, in a loop of your own
#
# **What you will learn.** How a plain PyTorch script goes on from its checkpoint with four times
# the batch size. A `Run` makes the steps; the loader, the number of steps left and the gradient
# clip are your half, and this page shows what each of them does if it is forgotten.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. All runs together take half a minute.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from rootscale import Run

torch.set_num_threads(1)  # the net is tiny: threads would only wait for each other

# %% [markdown]
# ## The script before the change
#
# An ordinary script: AdamW, a cosine schedule over the whole run, a gradient clip, a loader. One
# label in ten is wrong, so that gradients are noisy and the clip has something to do.

# %%
BATCH, SAMPLES, CLIP = 16, 30_720, 0.8
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < 0.1
labels[wrong] = (labels[wrong] + 1) % 10


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.98, 0.998))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SAMPLES // BATCH)
    return model, optimizer, scheduler


# %% [markdown]
# The loop makes `steps` steps. On the way it notes the samples seen, the loss over all data and the
# learning rate.


# %%
def batches(batch_size, seed):  # stands for your DataLoader(..., shuffle=True, drop_last=True)
    order = torch.Generator().manual_seed(seed)
    while True:
        shuffled = torch.randperm(len(images), generator=order)
        for batch in shuffled[: len(images) // batch_size * batch_size].split(batch_size):
            yield images[batch], labels[batch]


@torch.no_grad()
def full_loss(model):
    return nn.functional.cross_entropy(model(images), labels).item()


# %%
def train(parts, steps, batch_size, clip, seed, seen=0):
    (model, optimizer, scheduler), history = parts, []
    for _, (x, y) in zip(range(steps), batches(batch_size, seed), strict=False):
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        seen += batch_size
        if seen % 1536 == 0:
            history.append((seen, full_loss(model), scheduler.get_last_lr()[0]))
    return history


# %% [markdown]
# Train a fourth of the run and save it, as always:


# %%
def save(parts, file):
    torch.save([part.state_dict() for part in parts], file)


def load(parts, file):
    for part, state in zip(parts, torch.load(file), strict=True):
        part.load_state_dict(state)
    return parts


first = SAMPLES // 4
parts = build(seed=0)
before = train(parts, first // BATCH, BATCH, CLIP, seed=0)
save(parts, "run-0.pt")

# %% [markdown]
# ## The script after the change
#
# Tomorrow's machine takes batches of 64. The script is the same: `build` still makes everything for
# batches of 16. One line is new, before or after the load.

# %%
model, optimizer, scheduler = parts = load(build(seed=0), "run-0.pt")
run = Run(optimizer, tuned_at=BATCH, batch_size=64, scheduler=scheduler)
print(run)

# %% [markdown]
# Everything under `left to you` is yours. For this script it is three things:
#
# | yours | before | after |
# |---|---|---|
# | the loader's batch size | 16 | 64 |
# | the steps left | 1,440 | 360, by `run.steps(1440)` |
# | the clip | 0.8 | 0.4, by `run.clip(0.8)` |

# %%
steps_left = run.steps((SAMPLES - first) // BATCH)
after = train(parts, steps_left, 64, run.clip(CLIP), seed=1, seen=first)
print(f"{steps_left} steps at 64, {after[-1][0]:,} samples in all, clip {run.clip(CLIP)}")
print(f"learning rate at the end {after[-1][2]:.1e}, loss {after[-1][1]:.3f}")

# %% [markdown]
# ## Forgetting your half
#
# Four seeds each: the run that stays at 16, the resumed one, and three that forget something.

# %%
plans = {  # batch size of the loader, what the steps and the clip are multiplied by
    "stays at 16": None,
    "resumed at 64": (64, 1 / 4, 1 / 2),
    "clip forgotten": (64, 1 / 4, 1),
    "loader forgotten": (16, 1 / 4, 1 / 2),
    "steps forgotten": (64, 1, 1 / 2),
}


def resumed(seed, plan):
    _, optimizer, scheduler = parts = load(build(seed), f"run-{seed}.pt")
    batch_size, steps, clip = plan or (16, 1, 1)
    if plan:
        Run(optimizer, tuned_at=BATCH, batch_size=4 * BATCH, scheduler=scheduler)
    steps = round((SAMPLES - first) // BATCH * steps)
    return train(parts, steps, batch_size, CLIP * clip, seed + 100, seen=first)


# %%
histories = {name: [] for name in plans}
for seed in range(4):
    parts = build(seed)
    train(parts, first // BATCH, BATCH, CLIP, seed)
    save(parts, f"run-{seed}.pt")
    for name, plan in plans.items():
        histories[name].append(resumed(seed, plan))
histories = {name: np.array(found) for name, found in histories.items()}

# %% [markdown]
# How far each leaves the run that stayed, at equal samples seen. The gap is the distance of the mean
# curves as a share of the base curve's range; 4 seeds, ± its standard error:

# %%
from rootscale.gap import gaps
from rootscale.trajectory import Trajectory

runs = {
    name: Trajectory.of_runs(found[0, :, 0], {"loss": found[:, :, 1]})
    for name, found in histories.items()
}
for name in ("resumed at 64", "clip forgotten"):
    found = gaps(runs["stays at 16"], runs[name])["loss"].largest
    print(f"{name:16} {100 * found.gap:+.1f} ± {100 * found.se:.1f} % of the range")
for name, run in runs.items():
    mean, se = run["loss"]
    print(f"{name:16} ends at {run.times[-1]:>7,.0f} samples, loss {mean[-1]:.3f} ± {se[-1]:.3f}")

# %% Loss and learning rate over samples seen: the resumed run follows the one that stayed; forgotten parts leave it
from rootscale.report import draw_curves

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
draw_curves(axes[0], runs, "loss")
rates = {
    name: Trajectory.of_runs(found[0, :, 0], {"learning rate": found[:, :, 2]})
    for name, found in histories.items()
}
draw_curves(axes[1], rates, "learning rate")
axes[1].get_legend().remove()
axes[0].set_xlim(first, 1.3 * SAMPLES)
axes[1].set_xlim(first, 2 * SAMPLES)
plt.show()


# %% tags=["check"]
def largest(name):
    return gaps(runs["stays at 16"], runs[name])["loss"].largest


assert abs(largest("resumed at 64").gap) < 0.08
assert largest("clip forgotten").gap < largest("resumed at 64").gap
assert (
    runs["loader forgotten"].times[-1]
    < 0.5 * SAMPLES
    < 3 * SAMPLES
    < runs["steps forgotten"].times[-1]
)

# %% [markdown]
# - **The loader forgotten:** the run makes steps for batches of 64 and gets batches of 16. Its
#   learning rate falls to zero after a fourth of the samples, and there it ends.
# - **The steps forgotten:** the run goes on for four times as long. The cosine has passed its lowest
#   point, and the learning rate rises again to twice its old peak.
# - **The clip forgotten:** the norm of a noisy gradient falls as `1/sqrt(4)` with the batch, so that the
#   old clip acts more seldom. That moves the run by 9 % of the range: from a little above the one that
#   stayed to a little below it. The row is a `heuristic`, right where noise makes up most of the norm; neither choice
#   is exact here.
#
# ## The next checkpoint
#
# A checkpoint is in the units of the script, whatever the batch size was when it was saved. So it has
# nothing to say about batch sizes, and a fresh process may take any other one:

# %%
model, optimizer, scheduler = parts = load(build(seed=0), "run-0.pt")
Run(optimizer, tuned_at=BATCH, batch_size=64, scheduler=scheduler)
history = train(parts, 100, 64, 0.4, seed=1)
save(parts, "run-64.pt")

model, optimizer, scheduler = parts = load(build(seed=0), "run-64.pt")
run = Run(optimizer, tuned_at=BATCH, batch_size=32, scheduler=scheduler)
print(f"kappa = {run.kappa:g}, step {run.clock:g} of the script, {run.samples:,.0f} samples seen")
print(f"learning rate {scheduler.get_last_lr()[0]:.6f}, and in a step {run.values()['lr']:.6f}")
history = train(parts, 50, 32, run.clip(CLIP), seed=2)

# %% [markdown]
# ## What to remember
#
# - One line, `Run(optimizer, tuned_at=..., batch_size=..., scheduler=...)`. The numbers of the script stay.
# - Your half: the loader's batch size, the steps left (`run.steps(n)`), the clip (`run.clip(norm)`), and
#   every interval in steps. `print(run)` lists it.
# - Checkpoints are valid at every batch size, also in a script without that line.
#
# ## Where to go next
#
# - [Convert the checkpoint file itself, or a configuration file](05-convert.md)
# - [Is it the same? Check it](04-same.md)
# - [Checkpoints in live runs](../live-runs.md#checkpoints)
