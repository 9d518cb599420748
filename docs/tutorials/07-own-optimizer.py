# %% [markdown]
# # Derive the units of your own optimizer by counting degrees
#
# **What you will learn.** How to find out, with pencil and paper, how the learning rate and the state of
# an optimizer scale with the batch size. And how to tell `rescale_` about it and check the answer in
# seconds, before you rely on it.
#
# You need PyTorch and `pip install -e ".[plot]"`. All runs together take half a minute.

# %%
from fractions import Fraction

import matplotlib.pyplot as plt
import torch

from rootscale.degrees import Piece, count_degrees
from rootscale.report.plotting import plain_axes
from rootscale.report.styles import SOFT, STYLES
from rootscale.theory.toys import Setting, live_gaps
from rootscale.training import register, rescale_

torch.set_num_threads(1)

# %% [markdown]
# ## An optimizer that no table has
#
# SGD divides the gradient by nothing, Adam by `sqrt(v)`. This one is half way between them, and
# divides by the fourth root (with other details it is known as Padam):
#
#     m <- beta1 m + (1 - beta1) g
#     v <- beta2 v + (1 - beta2) g^2
#     theta <- theta - lr * m / v^(1/4)


# %%
class Between(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                v = state.setdefault("v", p.grad.square())
                m.lerp_(p.grad, 1 - beta1)
                v.lerp_(p.grad.square(), 1 - beta2)
                p.sub_(group["lr"] * m / v**0.25)


# %% [markdown]
# It is refused, since nobody has said what its numbers are measured in:

# %%
optimizer = Between([torch.nn.Parameter(torch.ones(3))], lr=0.01)
try:
    rescale_(optimizer, 4)
except TypeError as error:
    print(error)

# %% [markdown]
# ## Counting
#
# Multiply the batch by `kappa`. Three things happen, and no more:
#
# 1. the *mean* of the gradient stays,
# 2. its *noise* is multiplied by `kappa^(-1/2)`,
# 3. there are `1 / kappa` times the steps for the same samples.
#
# Now look at each piece of the update where noise dominates:
#
# - `m` matters by its mean, which moves the parameters. That stays: degree 0.
# - `v` averages the squared noise: `kappa^(-1)`.
# - `m / v^(1/4)` is multiplied by `kappa^(1/4)`.
# - A step has to go `kappa` times as far, since it stands for `kappa` steps. `kappa^(1/4)` of that
#   comes by itself, and the learning rate has to supply the rest: `kappa^(3/4)`.
#
# `count_degrees` does this for any product of powers. A `Piece` is an average: of which power of the gradient,
# and whether its mean or its noise matters.

# %%
powers = count_degrees(
    {"momentum": Piece(degree=1, by="mean"), "squares": Piece(degree=2, by="noise")},
    {"momentum": 1, "squares": Fraction(-1, 4)},
)
print("learning rate: kappa to the power", powers.eta)
print("state:", {name: str(power) for name, power in powers.state.items()})

# %% [markdown]
# The same count gives the rules that are known. Only the power of `v` differs:

# %%
pieces = {"m": Piece(), "v": Piece(2, "noise")}
for name, power in {"SGD": 0, "Between": Fraction(-1, 4), "Adam": Fraction(-1, 2)}.items():
    print(f"{name:8} lr * kappa^({count_degrees(pieces, {'m': 1, 'v': power}).eta})")

# %% [markdown]
# ## Registering it
#
# `register` needs the hyperparameters and the state of the class. Each has a unit of the table
# (`rootscale units` prints it), or one of the pieces that were counted. `beta1` and `beta2` are
# averages over samples as in Adam.

# %%
row = register(
    Between,
    values={"lr": "eta", "betas": ("beta1", "beta2")},
    state={"m": "momentum", "v": "squares"},
    exponents=powers,
    why="m / v^(1/4): v falls as 1/kappa, the step grows as kappa^(1/4)",
)
optimizer = Between([torch.nn.Parameter(torch.ones(3))], lr=0.01, betas=(0.98, 0.999))
for change in rescale_(optimizer, 16):
    print(f"{change.name:10} {change.before:g} -> {change.after:g}   {change.status}")

# %% [markdown]
# `beta1` stops at a floor of 0.9, as Adam's does. Note the status of the learning rate: `heuristic`.
# A count of powers is no theorem. So test it.
#
# ## Testing it
#
# `live_gaps` trains the live class on a small noisy problem, two thousand replicas at once. In
# mid-run it changes the batch size, converts by `rescale_`, and goes on. It returns how far the mean
# loss leaves that of the run that kept its batch: `own` is the row above, `null` the same batch with
# other noise, `nothing` no conversion at all.


# %%
def make(parameters):
    return Between(parameters, lr=0.004, betas=(0.98, 0.99))


rules = {"own": None, "nothing": "none"}
for name, gap in live_gaps(make, rules, kappa=4, setting=Setting(replicas=2048)).items():
    print(f"{name:8} {100 * gap.gap:+6.1f} ± {100 * gap.se:.1f} % of the range")

# %% [markdown]
# How sharp is that test? Register the same class with other powers of the learning rate, as if one had
# counted wrongly:

# %%
found = {}
for power in (Fraction(k, 8) for k in range(2, 11)):
    cls = type(f"Power{power.numerator}of{power.denominator}", (Between,), {})
    register(
        cls,
        values={"lr": power, "betas": ("beta1", "beta2")},
        state={"m": 0, "v": -1},
    )
    make = lambda parameters, cls=cls: cls(parameters, lr=0.004, betas=(0.98, 0.99))  # noqa: E731
    found[power] = live_gaps(make, {"own": None}, kappa=4, setting=Setting(replicas=1024))
for power in (Fraction(1, 2), Fraction(3, 4), Fraction(1)):
    gap = found[power]["own"]
    print(f"lr * kappa^({power}): {100 * gap.gap:+.1f} ± {100 * gap.se:.1f} %")

# %% The gap over the power of the learning rate: it is smallest at three quarters, the power that was counted
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
plain_axes([axis])
gaps = [one["own"] for one in found.values()]
size, error = [100 * abs(gap.gap) for gap in gaps], [200 * gap.se for gap in gaps]
axis.errorbar([float(power) for power in found], size, error, color=STYLES[1].colour, marker="o")
null = found[Fraction(3, 4)]["null"]
axis.axhline(100 * abs(null.gap), color=SOFT, linestyle=":", label="same batch, other noise")
axis.axvline(0.75, color=STYLES[4].colour, linestyle="--", label="what was counted")
axis.set(xlabel="power of kappa in the learning rate", ylabel="largest gap, % of the range")
axis.legend(frameon=False)
plt.show()

# %% tags=["check"]
sizes = {power: abs(one["own"].gap) for power, one in found.items()}
assert min(sizes, key=sizes.get) == Fraction(3, 4)
assert sizes[Fraction(3, 4)] < 0.03 < 0.08 < min(sizes[Fraction(1, 2)], sizes[Fraction(1)])

# %% [markdown]
# ## What to remember
#
# - Three facts are enough: the mean stays, noise falls as `kappa^(-1/2)`, steps are fewer by `kappa`.
# - Ask of each piece of the state whether its *mean* or its *noise* matters in the update.
# - The square root is no law of nature. It is what Adam's `sqrt(v)` leaves; SGD has the first power, and what lies
#   between them has what lies between.
# - Register before you load a checkpoint of a converted run, and hold a row against `live_gaps` before
#   you trust it.
#
# ## Where to go next
#
# - [Which optimizer, which rule, how sure](../optimizers.md): the registry, and all that is known
# - [Muon and the family of rules](06-muon.md): when momentum is divided by its own size
# - [Notation](../notation.md) and [theory](../theory.md): what a theorem says beyond counting
