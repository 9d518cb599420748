"""The paper's hyperparameters for language models, at its batch size or converted to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from rootscale import hparams
from rootscale.batch_size import BatchSize
from rootscale.plan import Plan
from rootscale.schedule import Schedule

__all__ = ["RECIPES", "Pretraining", "Recipe", "micro_batch", "recipe_plan", "whole_steps"]


@dataclass(frozen=True)
class Recipe:
    """An optimizer of the paper's appendix at its batch size, and its linear schedule.

    Args:
        optimizer: at ``batch_size``; weight decay is decoupled, as in the code that the paper used (fairseq's Adam).
        batch_size: in sequences.
        warmup: the share of the run; the learning rate then falls linearly to 0.
        steps: the paper's, at that batch size.
    """

    optimizer: hparams.AdamW
    batch_size: int
    warmup: Fraction
    steps: int


#: From the appendix "Experiment Configuration Details": the tables of GPT and RoBERTa (pre-training). Clipping is off.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "gpt": Recipe(
            hparams.AdamW(1e-3, 0.9875, 0.996, 2e-8, weight_decay=1e-4), 1024, Fraction(1000, 12_500), 12_500
        ),
        "roberta": Recipe(
            hparams.AdamW(1e-3, 0.99375, 0.996, 2e-6, weight_decay=1e-4), 1024, Fraction(5520, 92_000), 92_000
        ),
        # The SVAG experiments fix the betas at .9 and .98.
        "gpt-svag": Recipe(hparams.AdamW(1e-3, 0.9, 0.98, 2e-8, weight_decay=1e-4), 1024, Fraction(2, 25), 12_500),
        "roberta-svag": Recipe(hparams.AdamW(1e-3, 0.9, 0.98, 2e-6, weight_decay=1e-4), 1024, Fraction(3, 50), 92_000),
    }
)


def recipe_plan(
    name: str,
    *,
    batch_size: int = 1024,
    samples: int | None = None,
    eps: float | None = None,
    eta: float | None = None,
    reference: int | None = None,
) -> Plan:
    """Return a run of the paper, at its batch size of 1024 or converted to another by the rule.

    Args:
        name: one of `RECIPES`.
        batch_size: in sequences; all hyperparameters are converted from 1024 to it.
        samples: sequences of the whole run; None is the paper's number. The warm-up keeps its share.
        eps, eta: others than the paper's at batch size 1024.
        reference: the batch size at which the paper's values are taken to hold, for small copies of its experiments;
            None is its own.

    >>> plan = recipe_plan("gpt", batch_size=256)
    >>> plan.steps, plan.schedule.warmup, plan.optimizer.eta, plan.optimizer.beta1
    (50000, 4000, 0.0005, 0.996875)
    """
    if name not in RECIPES:
        raise ValueError(f"a recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    recipe = RECIPES[name]
    own = recipe.optimizer
    optimizer = hparams.AdamW(
        own.eta if eta is None else eta, own.beta1, own.beta2, own.eps if eps is None else eps,
        weight_decay=own.weight_decay,
    )  # fmt: skip
    size = recipe.batch_size if reference is None else reference
    steps = Fraction(recipe.steps) if samples is None else Fraction(samples, size)
    schedule = Schedule("linear", warmup=steps * recipe.warmup)
    plan = Plan(optimizer, BatchSize(size), steps=steps, schedule=schedule)
    return plan.convert(batch_size, "with paper").plan  # a run at a much larger batch warns by itself


@dataclass(frozen=True)
class Pretraining:
    """How a language model is pre-trained.

    Args:
        recipe: one of `RECIPES`; empty is that of the model.
        batch_size: in sequences, to which the recipe is converted.
        epochs: the length of the run; None is the paper's number of sequences.
        eps, eta: others than the paper's, at its batch size.
        reference: the batch size at which the recipe's values are taken to hold; None is the paper's 1024.
    """

    recipe: str = ""
    batch_size: int = 1024
    epochs: float | None = None
    eps: float | None = None
    eta: float | None = None
    reference: int | None = None

    def plan(self, windows: int) -> Plan:
        """Return the plan of a run on so many windows of text."""
        samples = whole_steps(windows, self.epochs, self.batch_size)
        values = {"eps": self.eps, "eta": self.eta, "reference": self.reference}
        return recipe_plan(self.recipe, batch_size=self.batch_size, samples=samples, **values)  # type: ignore[arg-type]


def whole_steps(windows: int, epochs: float | None, batch_size: int) -> int | None:
    """Return the sequences of a run, a whole number of steps; None for the paper's number."""
    if epochs is None:
        return None
    if epochs <= 0:
        raise ValueError(f"epochs must be positive, got {epochs}")
    return max(1, int(epochs * windows) // batch_size) * batch_size


def micro_batch(length: int, vocabulary: int, most: int = 512) -> int:
    """Return how many sequences go through a model at once: a power of 2 with at most 2^31 outputs (8 GB of floats).

    >>> micro_batch(128, 50_257), micro_batch(128, 256)
    (256, 512)
    """
    fit = max(1, 2**31 // (length * vocabulary))
    return min(most, 1 << (fit.bit_length() - 1))
