# %% [markdown]
# # The SDE of a small network, solved
#
# **What you will learn.** What a stochastic differential equation (SDE) says about a training run, and why
# it has no batch size in it. Then you solve the SDE of Adam for a real network, and lay it beside
# Adam itself and beside SVAG, which simulates it with mini-batches.
#
# You need PyTorch and `pip install -e ".[lab,plot]"`. All runs together take a minute.

# %%
from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from rootscale import Adam
from rootscale.theory import FORMS, AdamState, Chain, NetworkOracle, Paths, SaveAt
from rootscale.theory import rescaled, run_chain, sde, solve, svag_chain

torch.set_num_threads(1)

# %% [markdown]
# ## From steps to a curve
#
# One step of Adam moves the parameters a bit along the gradient and a bit at random, since a batch is not
# the whole data. Make the steps smaller and take more of them, such that drift and randomness keep
# their proportion. In the limit the path is the solution of an SDE,
#
#     d theta = (drift) dt + (noise) dW,
#
# where `dW` is a normal random vector of variance `dt`. For Adam a step takes the time `eta^2`: after `k` steps it is
# `t = k eta^2`. With `sigma = 1 / sqrt(batch size)`, the whole equation has four constants:

# %%
adam = Adam(eta=1e-3, beta1=0.98, beta2=0.998)
for batch_size, optimizer in {
    8: adam,
    32: Adam(eta=2e-3, beta1=0.92, beta2=0.992, eps=5e-9),
}.items():
    held = optimizer.constants(batch_size)
    print(
        f"B = {batch_size:2}: sigma0 {held.sigma0:.3g}, c1 {held.c1:.4g}, c2 {held.c2:.4g}, eps0 {held.eps0:.3g}"
    )

# %% [markdown]
# The second line is Adam at four times the batch size, converted by the square root rule: twice the learning
# rate, four times `1 - beta`, half of `eps`. The constants are the same, so the equation is the same, and so are the
# dynamics. That is all there is to the rule.
#
# ## A network as an oracle
#
# To solve the SDE we need the full gradient and the covariance of its noise. The paper calls this
# intractable for networks, since the covariance of 1,210 parameters is a matrix of a million numbers, at every step.
# But a step needs only *one random vector* with that covariance, and the gradient of a randomly
# weighted loss is one. It costs a full-batch backward. `NetworkOracle` does this for any
# `nn.Module`:

# %%
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data[:200] / 16, dtype=torch.float32)
labels = torch.tensor(digits.target[:200])
net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
loss = partial(nn.functional.cross_entropy, reduction="none")
oracle = NetworkOracle(net, loss, (images, labels), batch_size=8)
print(oracle)

# %% [markdown]
# ## A start in mid-run
#
# The theory holds where noise dominates, which it does not in the first steps. So train a while with
# `torch.optim.Adam`, and take its state: the parameters, `m`, and `u = v / sigma^2`, which is `v` in units
# that do not depend on the batch size.

# %%
warm = 1000
optimizer = torch.optim.Adam(net.parameters(), lr=adam.eta, betas=(adam.beta1, adam.beta2))
for batch in torch.randint(200, (warm, 8)):
    optimizer.zero_grad()
    loss(net(images[batch]), labels[batch]).mean().backward()
    optimizer.step()

states = [optimizer.state[p] for p in net.parameters()]
m, v = (torch.cat([one[k].flatten() for one in states])[None] for k in ("exp_avg", "exp_avg_sq"))
theta = nn.utils.parameters_to_vector(net.parameters()).detach()[None]
x0 = AdamState(theta, m, v * 8)
noise = oracle.variance(theta).sum() / oracle.gradient(theta).square().sum()
print(f"loss {oracle.losses(theta).mean():.3f}, noise scale {noise:.0f} samples")

# %% [markdown]
# ## Three processes from one start
#
# Now let 16 replicas go on from this one state, each with its own randomness. `chain` is discrete Adam at batch size 8.
# `equation` is its SDE, which the solver follows in steps of the same length.

# %%
chain = Chain(adam, oracle, FORMS["torch"])
equation = sde(adam, oracle)
clock = adam.eta**2  # the time that a step takes
times = [(warm + k) * clock for k in range(0, 201, 20)]
functions = {
    "train loss": lambda x: oracle.losses(x.theta).mean(1),
    "gradient norm": lambda x: oracle.gradient(x.theta).norm(dim=1),
}
save = SaveAt(times, functions, start=warm * clock, keep=True)

# %%
runs = {"Adam, B = 8": run_chain(chain, x0, save, Paths(16, seed=1))}
runs["the SDE"] = solve(equation, x0, save, h=clock, paths=Paths(16, seed=2))

# %% [markdown]
# **SVAG** is for nets whose full gradient is too expensive. It combines two mini-batch gradients into one
# with `ell` times the noise, and makes `ell^2` small steps for each of Adam's, by the same rule at
# `kappa = 1 / ell^2`. The larger `ell`, the nearer it is to the SDE.

# %%
runs["SVAG, ell = 2"] = run_chain(svag_chain(chain, 2), x0, save, Paths(16, seed=3))

# %% [markdown]
# Last, Adam at four times the batch size: by the rule, and with its hyperparameters kept. Both start
# from the same state of the SDE. A step of Adam at 32 stands for four steps at 8, so 50 steps are enough.


# %%
def at_32(rule, seed):
    large = rescaled(chain, 4, rule)
    own = [save.start + k * large.clock for k in range(0, 51, 5)]  # its clock
    found = run_chain(large, x0, replace(save, times=own), Paths(16, seed=seed))
    return replace(found, times=runs["the SDE"].times)  # at equal samples seen


runs["Adam, B = 32, the rule"] = at_32("sqrt", seed=4)
runs["Adam, B = 32, kept"] = at_32("none", seed=5)

# %% [markdown]
# The largest distance to the SDE, in percent of the range of its mean curve, ± the standard error over
# 16 replicas:

# %%
from rootscale.gap import gaps

for name, run in runs.items():
    if name != "the SDE":
        found = gaps(runs["the SDE"], run)["train loss"].largest
        print(f"{name:24} {100 * found.gap:+6.1f} ± {100 * found.se:.1f} %")

# %% Adam, SVAG and the SDE lie on each other over continuous time; Adam with its hyperparameters kept does not
from rootscale.report import draw_curves

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axis, name in zip(axes, functions, strict=True):
    draw_curves(axis, runs, name)
    axis.ticklabel_format(axis="x", scilimits=(0, 0))
axes[1].get_legend().remove()
plt.show()

# %% tags=["check"]
far = {name: gaps(runs["the SDE"], run)["train loss"].largest for name, run in runs.items()}
for name in ("Adam, B = 8", "SVAG, ell = 2", "Adam, B = 32, the rule"):
    assert abs(far[name].gap) < max(0.1, 4 * far[name].se), name
assert far["Adam, B = 32, kept"].gap > 0.15 > 4 * far["Adam, B = 32, kept"].se

# %% [markdown]
# Bands are two standard errors over the replicas. Adam, SVAG and the SDE have the same mean curves within that
# error. Adam at four times the batch is about 2 % away by the rule, and more than 40 % with its hyperparameters kept.
#
# ## What to remember
#
# - An SDE describes a run *on average over its randomness*, in the limit of small steps. It knows neither batch size
#   nor learning rate, only four constants and the time `k eta^2`.
# - Runs with equal constants are the same run. Solving these equations for the hyperparameters is the square root
#   scaling rule.
# - `Sigma^(1/2) xi` is the gradient of one randomly weighted loss. So the SDE of a network of modest size can be
#   solved; for large ones SVAG does it with mini-batches.
# - 16 replicas cannot see a difference of a percent. `weak_error` can, and measures the order of
#   convergence: [theory](../theory.md).
#
# ## Where to go next
#
# - [Theory](../theory.md): oracles, chains, SDEs, weak errors and their order
# - [the study on digits](../../experiments/sde_digits.py): the same with 32 replicas of a larger net, and with controls
# - [Limitations](../how-far.md#what-the-rule-does-not-cover): where the equation stops being a description
