"""What experiments are made of: the paper's run on CIFAR-10 at some batch size, and what all runs have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial

from rootscale.lab.settings import Measure, Settings, Setup, grid
from rootscale.lab.task import Task
from rootscale.paper import data
from rootscale.paper.experiment import SMOKE, Options
from rootscale.paper.models import convnet
from rootscale.paper.recipes import paper_plan, recipe
from rootscale.paper.tasks import CIFAR10_STATISTICS, by_recipe, image_task
from rootscale.paper.transforms import Normalise
from rootscale.plan import Plan

__all__ = [
    "BASE", "TITLES", "cifar10_task", "kappa", "kept", "label_of", "place_of", "settings_for", "setup_for", "size_of",
]  # fmt: skip

#: The paper's batch size on CIFAR-10, from which all others are converted.
BASE = 256
#: Nets and optimizers as a reader knows them.
TITLES = {"vgg16": "VGG-16", "resnet56": "ResNet-56", "adam": "Adam", "rmsprop": "RMSprop"}
#: Images of the test set that measure the accuracy (all of CIFAR-10's), and as many of the training set.
EVAL = 10_000


def kappa(batch_size: int) -> Fraction:
    """Over the paper's 256."""
    return Fraction(batch_size, BASE)


def size_of(options: Options, batch_size: int) -> int:
    """What a batch size of the paper is in this experiment: a smoke test makes everything smaller."""
    return batch_size // SMOKE if options.smoke else batch_size


def label_of(options: Options, batch_size: int) -> str:
    """For legends.

    >>> label_of(Options(), 16384)
    'B = 16,384'
    """
    return f"B = {size_of(options, batch_size):,}"


def kept(options: Options) -> tuple[str, ...]:
    """Rows of the rule that are left alone."""
    return ("batchnorm",) if options.paper_batchnorm else ()


_cifar10 = lru_cache(maxsize=1)(data.cifar10)
_patterns = lru_cache(maxsize=1)(partial(data.patterns, 512, 128, size=16))


def cifar10_task(optimizer: str, options: Options, *factors: str) -> Task:
    """Return the paper's run on CIFAR-10 (`rootscale.paper.recipes.paper_plan`); for a smoke test, a small one like it.

    Args:
        optimizer: ``adam`` or ``rmsprop``.
        options: of the experiment, with its recipe.
        factors: of `rootscale.paper.recipes.FACTORS`, by which the recipe is changed.
    """
    images = _patterns() if options.smoke else _cifar10(options.data)
    chosen = recipe("+".join((options.recipe, *factors)))
    if options.smoke and chosen.group is not None:
        chosen = replace(chosen, group=chosen.group // SMOKE)
    plan = paper_plan(
        optimizer,
        samples=len(images.train),
        epochs=options.epochs,
        batch_size=size_of(options, BASE),
        eps=options.eps,
        recipe=chosen,
    )
    return image_task(
        "-".join(["smoke" if options.smoke else "cifar10", options.model, optimizer, *factors]),
        images,
        plan,
        by_recipe(chosen, options.model, partial(convnet, width=8, momentum=0.1)) if options.smoke else options.model,
        recipe=chosen,
        normalise=None if options.smoke else Normalise(*CIFAR10_STATISTICS),
    )


def place_of(plan: Plan, share: Fraction) -> int:
    """The samples seen after that share of a run, in whole steps."""
    assert plan.total_steps is not None
    return int(plan.total_steps * share) * int(plan.batch_size.total)


def settings_for(
    options: Options,
    plan: Plan,
    sizes: Sequence[int],
    switch_at: int = 0,
    *,
    stop: int | None = None,
    eval_samples: int = EVAL,
    micro: int | None = None,
) -> Settings:
    """What the runs of an experiment have in common.

    Args:
        options: of the experiment.
        plan: of its tasks.
        sizes: all batch sizes that occur, so that the points of the grid are whole numbers of steps.
        switch_at: samples before a switch in mid-run.
        stop: samples at the end; None is the end of the plan.
        eval_samples: of each part of the data that are measured.
        micro: samples that go through the model at once; None is all of a batch.
    """
    samples = plan.samples
    assert samples is not None
    stop, largest = int(samples) if stop is None else stop, max(sizes)
    if stop - switch_at < 4 * largest:
        raise ValueError(
            f"{stop - switch_at:,} samples are fewer than four steps at batch size {largest:,}: "
            "ask for more epochs or smaller batches"
        )
    points = min(options.points, (stop - switch_at) // (2 * largest))
    return Settings(
        grid=grid(stop, points, switch_at, sizes),
        switch_at=switch_at,
        measure=Measure(points, eval_samples=eval_samples, reestimate=True),
        setup=setup_for(options, micro),
    )


def setup_for(options: Options, micro: int | None = None, *factors: str) -> Setup:
    """Return how the runs are trained: on a GPU by CUDA graphs, in the precision of the recipe with those factors."""
    cuda = options.device.startswith("cuda")
    chosen = recipe("+".join((options.recipe, *factors)))
    return Setup(options.device, micro, amp=cuda and chosen.bfloat16, fast=cuda)
