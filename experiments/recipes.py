"""How the paper's runs on CIFAR-10 are trained: what its text says, what its authors' code does, and what lies between.

A `Recipe` is a record of choices. The paper's text and its code (github.com/abhishekpanigrahi1996/Adaptive-SDE, commit
29c04c2) differ in some of them, and this project's first runs differ from both; `FACTORS` names each difference, so
that an experiment can change one at a time. A recipe is given as text: a name of `RECIPES`, then any factors.

>>> recipe("authors") == recipe("house+decays+head+bias-correction+warm-up")
True
>>> recipe("authors+groups").group
256
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from rootscale import BatchSize, Plan, Schedule, hparams
from rootscale.sizes import Count

__all__ = ["DECAYS", "FACTORS", "OPTIMIZERS", "RECIPES", "Recipe", "paper_plan", "recipe", "staircase", "steps_of"]

#: The optimizers of the paper's CIFAR-10 runs.
OPTIMIZERS = ("adam", "rmsprop")
#: Shares of the run after which the learning rate is divided by 10: as the paper's appendix has them, and as the README
#: of the authors' code does (epochs 300 and 400 of 500 for RMSprop, 300 for Adam).
DECAYS: Mapping[str, Mapping[str, tuple[Fraction, ...]]] = MappingProxyType(
    {
        "text": {"adam": (Fraction(3, 5),), "rmsprop": (Fraction(4, 5), Fraction(9, 10))},
        "code": {"adam": (Fraction(3, 5),), "rmsprop": (Fraction(3, 5), Fraction(4, 5))},
    }
)
#: The peak learning rate, every beta, and the L2 term in the gradient, at batch size 256.
ETA, BETA, WEIGHT_DECAY = 1e-3, 0.999, 1e-4
#: Inputs of ResNet-56's last layer.
RESNET_WIDTH = 64
#: The share of the run that is warm-up, where the warm-up is not counted in epochs.
WARMUP = Fraction(1, 50)


@dataclass(frozen=True)
class Recipe:
    """The choices of a run on CIFAR-10 that the paper's text leaves open, or that its code makes differently.

    Args:
        decays: when the learning rate falls, a key of `DECAYS`.
        authors_head: whether the last layer is that of the authors' code. VGG's is then drawn from N(0, .01^2) with a
            bias of zero and stays fixed; ResNet's is drawn from N(0, 2 / 64) and is trained. Otherwise the last layer
            of both is initialised as torch does, and stays fixed.
        bias_correction: whether RMSprop corrects its second moment for starting at zero, as Adam with beta1 = 0 does.
        warmup_epochs: length of the warm-up, at most half of the run; None is 2 % of the run.
        group: samples over which BatchNorm takes its statistics; None is the whole batch.
        bfloat16: whether a GPU runs the model in bfloat16; otherwise in float32, with TF32 in its convolutions.
        previous_moment: whether an update divides by ``v_k``, as the paper's theory does, and not by ``v_{k+1}``.
    """

    decays: str = "text"
    authors_head: bool = False
    bias_correction: bool = False
    warmup_epochs: int | None = None
    group: int | None = None
    bfloat16: bool = True
    previous_moment: bool = False

    def freezes_head(self, model: str) -> bool:
        """Return whether the last layer of a model stays as it is initialised."""
        return not self.authors_head or not model.startswith("resnet")

    def head_std(self, model: str) -> float | None:
        """Return the standard deviation of the weights that a model's last layer begins with; None is torch's."""
        if not self.authors_head:
            return None
        return RESNET_WIDTH**-0.5 * 2**0.5 if model.startswith("resnet") else 0.01

    def optimizer(self, name: str, eps: float = 1e-8, weight_decay: float = WEIGHT_DECAY) -> hparams.Optimizer:
        """Return the hyperparameters at batch size 256: eta = 1e-3 and betas of .999."""
        if name == "adam" or self.bias_correction:
            beta1 = BETA if name == "adam" else 0.0
            return hparams.Adam(eta=ETA, beta1=beta1, beta2=BETA, eps=eps, weight_decay=weight_decay)
        return hparams.RMSprop(eta=ETA, beta=BETA, eps=eps, weight_decay=weight_decay)

    def schedule(self, name: str, steps: int, epochs: float) -> Schedule:
        """Return the warm-up, and the decays of an optimizer."""
        share = WARMUP if self.warmup_epochs is None else min(self.warmup_epochs / Fraction(epochs), Fraction(1, 2))
        return staircase(steps, share, DECAYS[self.decays][name])


def staircase(steps: int, warmup: Fraction, decays: Sequence[Fraction]) -> Schedule:
    """Return the paper's schedule for images: an exponential warm-up from a thousandth, then divisions by 10.

    Args:
        steps: of the run.
        warmup: its share of the run.
        decays: shares of the run after which the learning rate is divided.
    """
    milestones: list[Count] = [steps * share for share in decays]
    return Schedule(
        "multistep",
        warmup=steps * warmup,
        warmup_shape="exponential",
        warmup_start=1e-3,
        milestones=milestones,
        gamma=0.1,
    )


def steps_of(samples: int, epochs: float, batch_size: int) -> int:
    """Return the steps of a run whose epochs are ``floor(samples / batch_size)`` steps, at least one."""
    return max(1, round(epochs * max(1, samples // batch_size)))


#: What may be changed in a recipe, one thing each.
FACTORS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "decays": {"decays": "code"},
        "head": {"authors_head": True},
        "bias-correction": {"bias_correction": True},
        "warm-up": {"warmup_epochs": 10},
        "groups": {"group": 256},
        "fp32": {"bfloat16": False},
        "v_k": {"previous_moment": True},
    }
)
#: Recipes by name, as the factors they have: this project's first runs, and the authors' code.
RECIPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"house": (), "authors": ("decays", "head", "bias-correction", "warm-up")}
)


def recipe(text: str | Recipe = "house") -> Recipe:
    """Return the recipe that a text names: one of `RECIPES`, followed by factors of `FACTORS`, joined by ``+``."""
    if isinstance(text, Recipe):
        return text
    name, *factors = text.split("+")
    if name not in RECIPES or any(factor not in FACTORS for factor in factors):
        raise ValueError(
            f"a recipe is one of {', '.join(RECIPES)}, and may be followed by +FACTOR, one or more of "
            f"{', '.join(FACTORS)}; got {text!r}"
        )
    changes: dict[str, Any] = {}
    for factor in (*RECIPES[name], *factors):
        changes |= FACTORS[factor]
    return replace(Recipe(), **changes)


def paper_plan(
    optimizer: str = "adam",
    *,
    samples: int = 50_000,
    epochs: float = 500,
    batch_size: int = 256,
    eps: float = 1e-8,
    recipe: str | Recipe = "house",
    batchnorm_momentum: float | None = 0.1,
) -> Plan:
    """Return the paper's run on CIFAR-10 at its base batch size; `Plan.at` gives those at other sizes.

    From its appendix "Experiment Configuration Details", section CIFAR-10: batches of 256, sampled with replacement,
    peak learning rate 1e-3, beta = .999 (RMSprop) or beta1 = beta2 = .999 (Adam), ``500 * floor(50000 / 256) = 97500``
    steps. In the first 2 % of the steps the learning rate is ``eta 10^-3 (10^3)^(epochs / 10)``; it is divided by 10
    after 80 % and 90 % (RMSprop) or 60 % (Adam) of the run. Weight decay 1e-4 is from the captions of the figures in
    "Square Root Scaling Experiments", as an L2 term in the gradient, which is what torch's Adam and RMSprop do. Shorter
    runs keep the shares. The recipe ``authors`` is that of the paper's code instead.

    Args:
        optimizer: one of `OPTIMIZERS`.
        samples: in the training data.
        epochs: of ``floor(samples / batch_size)`` steps; of a part of one, whole steps.
        batch_size: at which the learning rate and the rest hold as given; nothing is converted.
        eps: 1e-8 and 1e-30 in the paper.
        recipe: `recipe`'s text, or a `Recipe`.
        batchnorm_momentum: that the rule converts with the batch size. The paper leaves torch's .1 at every batch size:
            a `Variant` without the row ``batchnorm`` does that.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
    chosen = _recipe(recipe)
    steps = steps_of(samples, epochs, batch_size)
    return Plan(
        chosen.optimizer(optimizer, eps),
        BatchSize(batch_size),
        steps=steps,
        schedule=chosen.schedule(optimizer, steps, epochs),
        batchnorm_momentum=batchnorm_momentum,
    )


_recipe = recipe  # `paper_plan` has an argument of that name
