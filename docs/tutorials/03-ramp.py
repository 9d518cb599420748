# %% [markdown]
# # From the noise to a ramp
#
# **What you will learn.** How noisy the gradient of your run is, measured while you train, and how
# large a batch that allows. And how to let the batch size grow with it: the same loss at equal
# samples seen, in a fraction of the steps.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. All runs together take half a minute.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rootscale import Adam, Plan
from rootscale.training import BatchSchedule, NoiseMeter, ScheduledRun, ScheduledSampler, advise

torch.set_num_threads(1)  # the net is tiny: threads would only wait for each other

# %%
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
data = TensorDataset(images, labels)


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.98, 0.998))


# %% [markdown]
# ## The noise scale
#
# The gradient of a batch is the gradient of the whole data, plus noise. The noise shrinks with the
# batch. The **noise scale** is the batch size at which both are as long:
#
#     noise scale = (mean squared noise of one sample) / (squared length of the full gradient)
#
# Far below it, a batch is mostly noise, and four small steps say as much as one large one: the scaling rule
# holds. Above it a larger batch only shows the same gradient more often.
#
# To measure noise you need at least two gradients of the same step. Anyone who accumulates has them:
# the meter looks at each part on its way.

# %%
model, optimizer = build(seed=0)
meter = NoiseMeter(optimizer, window=150)
for step in range(600):
    optimizer.zero_grad()
    for part in torch.randint(len(data), (4, 8)):  # four micro-batches of eight
        with meter.part(samples=8, weight=1 / 4):
            (nn.functional.cross_entropy(model(images[part]), labels[part]) / 4).backward()
    meter.update()  # before anything changes .grad
    optimizer.step()
    if step % 150 == 149:
        print(f"{32 * (step + 1):6,} samples: noise scale {meter.estimate().scale} samples")

# %% [markdown]
# The brackets are 95 % intervals over the last 150 steps. Early in training all samples pull in
# one direction, and the noise scale is small. Later they disagree, and it grows. That is why runs
# should begin with small batches, and need not end with them.
#
# `advise` makes a batch size of it. It takes the lower end of the interval, so that a poor
# measurement does not raise the batch:

# %%
plan = Plan(Adam(eta=2e-3, beta1=0.98, beta2=0.998), batch_size=32)
print(advise(plan, meter.estimate()))

# %% [markdown]
# ## The ramp
#
# `BatchSchedule.from_noise` is a schedule without fixed stages: now and then you show it what the
# meter found, and it doubles the batch while that stays below a share of the noise scale. Three lines of
# the loop are new: the sampler, the run, and `run.batches(loader)` instead of `loader`. The run
# sets its batch size before each batch, as in [the first tutorial](01-switch.md).


# %%
def ramp(seed, schedule, micro=None, rule=None):
    model, optimizer = build(seed)
    sampler = ScheduledSampler(len(data), schedule, micro=micro, seed=seed)
    run = ScheduledRun(sampler, optimizer, model=model, rule=rule)
    loader, meter = DataLoader(data, batch_sampler=sampler), NoiseMeter(optimizer, window=50)
    history = []
    for _ in range(14):
        steps = 0
        for x, y in run.batches(loader):
            backward(model, x, y, run, meter)
            if run.complete:
                steps += make_step(optimizer, meter)
        history.append(after_pass(model, run, meter, steps))
    return np.array(history)


# %% [markdown]
# A batch of more than `micro` samples comes in micro-batches, and each is a part for the meter.
# `run.weight` is its share of the batch, and `run.complete` says that the step is due. After each
# pass over the data we note the loss and let the batch grow.


# %%
def backward(model, x, y, run, meter):
    with meter.part(samples=len(x), weight=run.weight):
        (nn.functional.cross_entropy(model(x), y) * run.weight).backward()


def make_step(optimizer, meter):
    meter.update()
    optimizer.step()
    optimizer.zero_grad()
    return 1


# %%
@torch.no_grad()
def full_loss(model):
    return nn.functional.cross_entropy(model(images), labels).item()


def after_pass(model, run, meter, steps):
    row = [run.seen, steps, run.batch_size, full_loss(model)]
    if run.sampler.schedule.share is None:  # stages that are fixed: nothing to measure
        return [*row, np.nan, np.nan, np.nan]
    noise = meter.estimate()
    run.grow(noise)
    return [*row, noise.scale.value, noise.scale.low, noise.scale.high]


# %% [markdown]
# ## Did the run notice?
#
# Three seeds of three runs: the batch kept at 32, the ramp, and a ramp of the same stages in which the
# batch grows and nothing is converted.

# %%
import warnings

from rootscale import ScalingWarning

warnings.simplefilter("ignore", ScalingWarning)  # the third one is wrong on purpose
found = {"batch size kept": [], "ramp, converted": [], "ramp, nothing converted": []}
for seed in range(3):
    grown = BatchSchedule.from_noise(32, share=0.5, most=1024)
    found["ramp, converted"].append(ramp(seed, grown, micro=16))
    found["batch size kept"].append(ramp(seed, BatchSchedule([(0, 32)]), micro=16))
    stages = BatchSchedule(grown.stages)
    found["ramp, nothing converted"].append(ramp(seed, stages, micro=16, rule="none"))
    print(f"seed {seed}: {stages}")

# %%
from rootscale.gap import gaps
from rootscale.trajectory import Trajectory

samples = np.arange(8_000, 25_001, 1_000)  # from about where the ramp begins
runs = {
    name: Trajectory.of_runs(
        samples, {"loss": [np.interp(samples, one[:, 0], one[:, 3]) for one in histories]}
    )
    for name, histories in found.items()
}
for name, histories in found.items():
    gap = gaps(runs["batch size kept"], runs[name])["loss"].largest
    steps = np.mean([one[:, 1].sum() for one in histories])
    print(
        f"{name:24}{steps:6.0f} steps, gap {100 * gap.gap:+5.1f} ± {100 * gap.se:.1f} % (3 seeds)"
    )

# %% Left, the batch grows and stays below the noise scale; right, the converted ramp has the loss of the kept batch
from rootscale.report import draw_curves
from rootscale.report.styles import STYLES

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
seen, _, size, _, value, low, high = found["ramp, converted"][0].T
high = np.where(np.isfinite(high), high, 1e5)
left.fill_between(seen, low, high, color=STYLES[4].colour, alpha=0.2, linewidth=0)
left.plot(seen, value, color=STYLES[4].colour, label="noise scale, 95 % interval")
left.step(seen, size, color=STYLES[1].colour, label="batch size", where="pre")
left.set(yscale="log", ylim=(16, 4096), xlabel="samples seen", ylabel="samples")
left.legend(frameon=False, fontsize=8)
draw_curves(right, runs, "loss")
right.set_yscale("log")
plt.show()

# %% tags=["check"]
sizes = {
    name: abs(gaps(runs["batch size kept"], run)["loss"].largest.gap) for name, run in runs.items()
}
assert sizes["ramp, converted"] < 0.05 < 0.08 < sizes["ramp, nothing converted"]
assert np.mean([one[:, 1].sum() for one in found["ramp, converted"]]) < 550

# %% [markdown]
# ## What to remember
#
# - The noise scale says how large a batch may be *now*. It grows as training goes on.
# - Measure it where you accumulate (or over data-parallel ranks, or with SVAG): it costs a few percent.
# - Trust the **lower end** of its interval. An upper end of `inf` says that the gradient could not be told
#   from zero in that window; take a longer one.
# - A ramp that is converted is the same run in fewer steps. A batch that grows while everything
#   else stays is another run.
#
# ## Where to go next
#
# - [Batch-size schedules](../batch-schedules.md): fixed stages, streams, checkpoints, and a larger batch in
#   place of a smaller learning rate
# - [The noise of the gradient](../noise.md): in Adam's metric, by coordinates, exactly
# - [Is it the same?](04-same.md) A verdict with bands instead of a look at curves
