# %% [markdown]
# # Convert a checkpoint and a config
#
# **What you will learn.** How to take a finished checkpoint file, and the configuration file of a training tool, to
# another batch size on the command line. Nothing has to be imported into your training script.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. It takes a few seconds.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)

# %% [markdown]
# ## A checkpoint
#
# An ordinary script with AdamW and a cosine, which has trained at batch size 16 and saved a dictionary:


# %%
def build(lr=1e-3, length=1600):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.98, 0.998))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


# %%
def train(parts, steps, batch_size, seed):
    order, rates = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        batch = torch.randint(len(images), (batch_size,), generator=order)
        nn.functional.cross_entropy(parts["model"](images[batch]), labels[batch]).backward()
        rates.append(parts["optimizer"].param_groups[0]["lr"])
        for one in ("optimizer", "scheduler"):
            parts[one].step()
        parts["optimizer"].zero_grad()
    return rates


# %%
parts = build()
rates = train(parts, 400, 16, seed=0)
torch.save({name: part.state_dict() for name, part in parts.items()}, "last.pt")

# %% [markdown]
# `rootscale checkpoint` finds the optimizer and the scheduler in the file by what they look like. Without `-o` it
# would only show what it would change.

# %%
# !rootscale checkpoint last.pt --from 16 --to 64 -o last_64.pt

# %% [markdown]
# Nothing in the file was executed, and the bytes of every tensor without a unit, such as the model, were copied. What
# changed inside the optimizer's state can be seen. (The bar on the left of the picture holds all that is below 1e-9:
# weights of pixels that are almost always empty.)

# %%
before, after = (torch.load(name)["optimizer"]["state"] for name in ("last.pt", "last_64.pt"))
for name in ("exp_avg", "exp_avg_sq", "step"):
    print(f"{name:11} times {after[0][name].norm() / before[0][name].norm():g}")

# %% Histograms of Adam's second moment in both files: the same shape, moved down by a factor of four
from rootscale.report.plotting import plain_axes
from rootscale.report.styles import STYLES

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
plain_axes([axis])
for held, style, label in ((before, STYLES[0], "last.pt"), (after, STYLES[1], "last_64.pt")):
    squares = torch.cat([one["exp_avg_sq"].flatten() for one in held.values()])
    axis.hist(squares.clamp(1e-9).log10(), 50, color=style.colour, histtype="step", label=label)
axis.set(xlabel="log10 of exp_avg_sq", ylabel="parameters")
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Resume
#
# The script gets the numbers for the new batch size: twice the learning rate, a quarter of the steps. Then it loads
# the new file as any other: nothing in it says that it was converted.


# %%
def loaded(file, **numbers):
    parts, held = build(**numbers), torch.load(file)
    for name, part in parts.items():
        part.load_state_dict(held[name])
    return parts


resumed = loaded("last_64.pt", lr=2e-3, length=400)
print("the scheduler is at step", resumed["scheduler"].last_epoch, "of", resumed["scheduler"].T_max)
rates_64 = train(resumed, 300, 64, seed=1)

# %% The learning rate over samples seen: it is doubled at the switch, and ends its cosine at the same sample
kept = train(loaded("last.pt"), 1200, 16, seed=1)
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
plain_axes([axis])
seen, seen_64 = 16 * np.arange(1600), 6400 + 64 * np.arange(300)
axis.plot(seen, rates + kept, color=STYLES[0].colour, label="stays at 16")
axis.plot(seen_64, rates_64, "--", color=STYLES[1].colour, label="goes on at 64")
axis.set(xlabel="samples seen", ylabel="learning rate")
axis.legend(frameon=False)
plt.show()

# %% tags=["check"]
assert np.isclose(rates_64[100], 2 * kept[400])
assert (resumed["scheduler"].last_epoch, resumed["scheduler"].T_max) == (400, 400)

# %% [markdown]
# ## A configuration file
#
# Other people's training tools have files. `rootscale convert` reads those of 17 kinds, among them DeepSpeed, axolotl,
# torchtitan, Megatron-LM and nanoGPT. Only the values that have to change do; comments, order and spacing stay.

# %%
config = """\
# a small GPT, after nanoGPT
batch_size = 12
gradient_accumulation_steps = 40
learning_rate = 6e-4  # max learning rate
beta1 = 0.9
beta2 = 0.95
weight_decay = 1e-1
max_iters = 600000
warmup_iters = 2000
lr_decay_iters = 600000
min_lr = 6e-5
eval_interval = 1000
dataset = 'openwebtext'
"""

# %%
with open("train.py", "w") as file:
    file.write(config)

# %%
# !rootscale convert train.py --to 1920

# %% [markdown]
# Read the table like this: `theorem` and `derived` rows follow from the SDE, `measured` rows from experiments, and a
# `heuristic` row is a good guess. The two betas stop at a floor of 0.9: shorter averages would not damp single steps
# any more. `-o FILE` or `--in-place` writes the file.
#
# A Python file is read and never executed. What cannot be understood is refused, and nothing is written:

# %%
with open("other.py", "w") as file:
    file.write(config.replace("beta2 = 0.95", "beta2 = choose()"))

# %% refused
# !rootscale convert other.py --to 1920

# %% [markdown]
# ## What to remember
#
# - `rootscale checkpoint FILE --from 16 --to 64 -o NEW`, then load it in a script with the new numbers.
# - `rootscale convert FILE --to N` shows a diff and the reasons. Nothing is written without `-o` or `--in-place`.
# - Both convert a file as a whole or not at all.
# - What stays yours: the loader, the steps left, the clip. The output ends with that list.
#
# ## Where to go next
#
# - [Checkpoints on disk](../checkpoints.md): Trainer, Lightning, Accelerate, DCP, safetensors, DeepSpeed
# - [Configuration files](../integrations/configs.md), and [what each tool spells how](../integrations/formats.md)
# - [Where you already train](../integrations/README.md): the same inside of a framework
